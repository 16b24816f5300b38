/* SPDX-License-Identifier: MIT */
/*
 * A guest: a VM whose disk is a copy-on-write device over a block map, served over NBD from this
 * process, with the channel to its agent. Its directory lies in the process's part of the store's
 * tmp/, so whatever a kill leaves behind is removed by the next run.
 */

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "bake/channel.h"
#include "bake/common/slots.h"
#include "bake/guest/guest.h"
#include "bake/guest/internal.h"
#include "bake/guest/machine_room.h"
#include "bake/guest/memory.h"
#include "bake/template.h"
#include "bake/vm.h"
#include "bake/vm/page_server.h"
#include "bake/vm/tap.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    AHEAD_WORKERS = 8,            /* requests at once; a chunk is small and the line may be long */
    AHEAD_LOCAL_WORKERS = 2,      /* processors that unpack while the VMM starts */
    AHEAD_CACHE_BYTES = 64 << 20, /* unpacked ahead, of the cache that all guests share */
    SOCKET_NAME_MAX = 16,         /* "/agent.sock" and the like, see qemu.c */
};

static int make_directory(struct guest *g, struct err *e)
{
    static atomic_uint counter; /* only makes names differ */
    g->dir = mem_printf("%s/g%u", store_tmp_path(g->room->store), atomic_fetch_add(&counter, 1));
    if (!g->dir)
        return err_nomem(e, "guest");
    if (strlen(g->dir) + SOCKET_NAME_MAX >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        err_set(e, ERR_INPUT, "the path %s is too long for a unix socket", g->dir);
        return err_hint(e, "choose a store with a shorter path (--store)");
    }
    if (mkdir(g->dir, 0700) < 0)
        return err_sys(e, "making the directory %s", g->dir);
    g->memory_path = mem_printf("%s/memory", g->dir);
    return g->memory_path ? 0 : err_nomem(e, "guest");
}

/* Not to have it costs time, nothing else. */
static void fetch_ahead(struct guest *g, const struct guest_options *o)
{
    struct err e = ERR_INIT;
    bool from_afar = store_has_source(g->room->store);
    const struct prefetch_options options = {.workers =
                                                 from_afar ? AHEAD_WORKERS : AHEAD_LOCAL_WORKERS,
                                             .urgent = o->ahead_count,
                                             .cache = g->room->cache,
                                             .cache_bytes = AHEAD_CACHE_BYTES};
    if (o->ahead_count > 0 &&
        prefetch_start(&g->ahead, g->room->store, o->ahead, o->ahead_count, &options, &e) < 0)
        log_event(LOG_WARN, "bake", "nothing is fetched ahead: %s", e.text);
}

int guest_new(struct guest **out, const struct machine_room *r, const struct guest_options *o,
              struct err *e)
{
    AUTO_GUEST struct guest *g = mem_zalloc(sizeof(*g));
    if (!g)
        return err_nomem(e, "guest");
    g->room = r;
    g->memory_mb = o->memory_mb;
    g->booted = o->disk;
    g->secrets = o->secrets;
    if (o->console && !(g->console = mem_strdup(o->console)))
        return err_nomem(e, "guest");
    int rc = make_directory(g, e);
    fetch_ahead(g, o);
    if (rc == 0)
        rc = guest_disk_start(g, o->disk, e);
    if (rc < 0)
        return rc;
    *out = MOVE(g);
    return 0;
}

void guest_free(struct guest *g)
{
    if (!g)
        return;
    agent_free(g->agent);
    vm_free(g->vm);
    prefetch_stop(g->ahead);
    memory_close(g->memory);
    guest_disk_stop(g);
    block_map_free(g->boot_memory);
    struct err ignored = ERR_INIT;
    if (g->dir && g->console)
        guest_keep_console(g);
    if (g->dir && file_remove_tree(AT_FDCWD, g->dir, &ignored) < 0)
        log_event(LOG_WARN, "bake", "guest directory: %s", ignored.text);
    free(g->dir);
    free(g->memory_path);
    free(g->console);
    free(g);
}

struct vm_options guest_vm_options(const struct guest *g, const struct guest_options *o)
{
    return (struct vm_options){
        .driver = g->room->driver,
        .kernel = &g->room->kernel,
        .run_dir = g->dir,
        .nbd_socket = "nbd.sock",
        .disk_path = guest_disk_path(g),
        .memory_path = g->memory_path,
        .memory_shared = o->snapshot_again,
        .cpus = o->cpus,
        .memory_mb = o->memory_mb,
        .network = o->network,
        .tap = o->tap && g->room->tap ? g->room->tap->name : NULL,
        .scrub = o->scrub,
        .accel = g->room->accel,
        .cpu_template = g->room->cpu_template,
        .cancel = g->room->cancel,
    };
}

int guest_connect_network(struct guest *g, const struct guest_options *o, struct err *e)
{
    return agent_network(g->agent, o->tap && g->room->tap ? &g->room->tap->address : NULL, e);
}

/* Writes a map's bytes to a file of the guest's directory. */
static int export_file(const struct guest *g, const struct digest *map, const char *path,
                       uint64_t size, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_FD int fd = -1;
    int rc = store_get_map(g->room->store, map, &m, e);
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL, 0600, e);
    if (rc == 0)
        rc = store_export_map(g->room->store, m, fd, machine_cores(), g->room->cancel, e);
    if (rc == 0 && ftruncate(fd, (off_t)size) < 0)
        rc = err_sys(e, "setting the size of %s", path);
    return rc;
}

static bool takes_pages(const struct machine_room *r)
{
    struct err why = ERR_INIT; /* the driver tells it */
    return vm_driver_can(r->driver)->memory_pages && page_server_possible(&why) == 0;
}

bool guest_memory_is_copied(const struct machine_room *r)
{
    return !takes_pages(r) && !memory_has_files(r->memory);
}

/* Where the VMM finds the memory: served as it is read, else copied to a file. */
static int open_memory(struct guest *g, const struct digest *map, struct vm_options *options,
                       struct err *e)
{
    uint64_t size = options->memory_mb << 20;
    int rc = memory_open(&g->memory, g->room->memory, map, size, e);
    if (rc < 0)
        return rc;
    options->memory = memory_device(g->memory);
    bool by_page = takes_pages(g->room);
    const char *served = NULL;
    if (options->memory_shared && by_page) /* the next snapshot's file is a new one */
        return 0;
    if (options->memory_shared && !vm_driver_can(g->room->driver)->other_disk)
        return err_set(e, ERR_UNSUPPORTED, "a restored machine of %s cannot be snapshotted here",
                       g->room->vmm);
    if (!by_page && !options->memory_shared)
        rc = memory_file(g->memory, &served, e);
    if (by_page || served || rc < 0) {
        options->memory_path = served;
        return rc;
    }
    return export_file(g, map, g->memory_path, size, e);
}

int guest_load(struct guest *g, const struct guest_options *o, const struct guest_saved *s,
               struct err *e)
{
    AUTO_FREE char *state_path = mem_printf("%s/state", g->dir);
    if (!state_path)
        return err_nomem(e, "guest");
    struct vm_options options = guest_vm_options(g, o);
    int rc = open_memory(g, &s->memory, &options, e);
    if (rc < 0)
        return err_in(e, "loading the guest's memory");
    rc = export_file(g, &s->state, state_path, s->state_size, e);
    if (rc < 0)
        return err_in(e, "loading the device state");
    return vm_restore(&g->vm, &options, state_path, e);
}

int guest_restore(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                  const struct template *t, struct err *e)
{
    AUTO_GUEST struct guest *g = NULL;
    int rc = machine_room_fits(r, t, e);
    if (rc == 0)
        rc = guest_new(&g, r, o, e);
    if (rc == 0)
        rc = guest_load(g, o,
                        &(struct guest_saved){
                            .memory = t->memory, .state = t->state, .state_size = t->state_size},
                        e);
    if (rc == 0)
        rc = agent_connect(&g->agent, g->vm, GUEST_RESTORE_TIMEOUT_MS, r->cancel, e);
    if (rc == 0)
        rc = guest_set_clock(g, e);
    if (rc == 0)
        rc = agent_reseed(g->agent, e);
    if (rc == 0)
        rc = agent_thaw(g->agent, e);
    if (rc == 0 && o->tap)
        rc = guest_connect_network(g, o, e);
    if (rc < 0)
        return rc;
    *out = MOVE(g);
    return 0;
}
