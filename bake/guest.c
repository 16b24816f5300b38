/* SPDX-License-Identifier: MIT */
/*
 * A guest: a VM whose disk is a copy-on-write device over a block map, served over NBD from this
 * process, with the channel to its agent. Its directory lies in the process's part of the store's
 * tmp/, so whatever a kill leaves behind is removed by the next run.
 */
#include "bake/pipeline.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    BOOT_TIMEOUT_MS = 180000, /* kernel start to agent's hello; seconds even under TCG */
    BOOT_TRIES = 3,
    RESTORE_TIMEOUT_MS = 60000,
    AHEAD_WORKERS = 8,    /* requests at once; a chunk is small and the line may be long */
    SOCKET_NAME_MAX = 16, /* "/agent.sock" and the like, see qemu.c */
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
    const struct prefetch_options options = {.workers = AHEAD_WORKERS, .urgent = o->ahead_count};
    if (o->ahead_count > 0 && store_has_source(g->room->store) &&
        prefetch_start(&g->ahead, g->room->store, o->ahead, o->ahead_count, &options, &e) < 0)
        log_event(LOG_WARN, "bake", "nothing is fetched ahead: %s", e.text);
}

static int start_disk(struct guest *g, const struct guest_options *o, struct err *e)
{
    struct bdev *leaf = NULL;
    fetch_ahead(g, o);
    int rc = bdev_open_map(&leaf, o->disk, g->room->cache, e);
    g->leaf = leaf;
    if (rc == 0)
        rc = bdev_open_cow(&g->disk, leaf, store_tmp_dir(g->room->store), 0, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *socket = mem_printf("%s/nbd.sock", g->dir);
    return socket ? nbd_server_start(&g->nbd, g->disk, socket, e) : err_nomem(e, "guest");
}

static int guest_new(struct guest **out, const struct machine_room *r,
                     const struct guest_options *o, struct err *e)
{
    AUTO_GUEST struct guest *g = mem_zalloc(sizeof(*g));
    if (!g)
        return err_nomem(e, "guest");
    g->room = r;
    g->memory_mb = o->memory_mb;
    int rc = make_directory(g, e);
    if (rc == 0)
        rc = start_disk(g, o, e);
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
    nbd_server_stop(g->nbd);
    bdev_close(g->disk);
    struct err ignored = ERR_INIT;
    if (g->dir && file_remove_tree(AT_FDCWD, g->dir, &ignored) < 0)
        log_event(LOG_WARN, "bake", "guest directory: %s", ignored.text);
    free(g->dir);
    free(g->memory_path);
    free(g);
}

static struct vm_options make_vm_options(const struct guest *g, const struct guest_options *o)
{
    return (struct vm_options){
        .driver = g->room->driver,
        .kernel = &g->room->kernel,
        .run_dir = g->dir,
        .nbd_socket = "nbd.sock",
        .memory_path = g->memory_path,
        .cpus = o->cpus,
        .memory_mb = o->memory_mb,
        .network = o->network,
        .accel = g->room->accel,
        .cancel = g->room->cancel,
    };
}

static int boot_once(struct guest **out, const struct machine_room *r,
                     const struct guest_options *o, struct err *e)
{
    AUTO_GUEST struct guest *g = NULL;
    int rc = guest_new(&g, r, o, e);
    if (rc < 0)
        return rc;
    struct vm_options options = make_vm_options(g, o);
    rc = vm_boot(&g->vm, &options, e);
    if (rc == 0)
        rc = agent_connect(&g->agent, g->vm, BOOT_TIMEOUT_MS, r->cancel, e);
    if (rc == 0)
        rc = guest_set_clock(g, e);
    if (rc == 0)
        rc = agent_reseed(g->agent, e);
    if (rc == 0)
        rc = agent_mount(g->agent, e);
    if (rc == 0 && o->network)
        rc = agent_network(g->agent, NULL, e);
    if (rc < 0)
        return rc;
    *out = MOVE(g);
    return 0;
}

/*
 * Nothing of the task has run before the agent answers, so a boot that ended badly is tried again,
 * with a fresh disk: a kernel that is emulated on a busy host does panic now and then while it boots.
 */
int guest_boot(struct guest **out, const struct machine_room *r, const struct guest_options *o,
               struct err *e)
{
    for (int left = BOOT_TRIES - 1;; left--) {
        int rc = boot_once(out, r, o, e);
        if (left == 0 || (rc != -ERR_STEP && rc != -ERR_TIMEOUT))
            return rc;
        log_event(LOG_WARN, "bake", "a guest did not boot, trying again: %s", e->text);
        err_clear(e);
    }
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

/* A snapshot fits only the machine it was made with: checked before anything is loaded. */
static int check_machine(const struct template *t, const struct machine_room *r, struct err *e)
{
    char kernel[DIGEST_TEXT_MAX];
    digest_print(&r->kernel.digest, kernel);
    const char *accel = r->accel == VM_ACCEL_KVM ? "kvm" : "tcg";
    const struct {
        const char *what;
        const char *recorded;
        const char *here;
    } fields[] = {
        {"VMM", t->vmm, r->vmm}, {"accelerator", t->accel, accel}, {"kernel", t->kernel, kernel}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (strcmp(fields[i].recorded, fields[i].here) == 0)
            continue;
        err_set(e, ERR_UNSUPPORTED, "template %s was made with %s %s, here is %s", t->alias,
                fields[i].what, fields[i].recorded, fields[i].here);
        return err_hint(e, "bake the task again on this machine");
    }
    return 0;
}

static int load_guest(struct guest *g, const struct guest_options *o, const struct template *t,
                      struct err *e)
{
    AUTO_FREE char *state_path = mem_printf("%s/state", g->dir);
    if (!state_path)
        return err_nomem(e, "guest");
    int rc = export_file(g, &t->memory, g->memory_path, t->memory_mb << 20, e);
    if (rc < 0)
        return err_in(e, "memory");
    rc = export_file(g, &t->state, state_path, t->state_size, e);
    if (rc < 0)
        return err_in(e, "device state");
    struct vm_options options = make_vm_options(g, o);
    return vm_restore(&g->vm, &options, state_path, e);
}

int guest_restore(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                  const struct template *t, struct err *e)
{
    AUTO_GUEST struct guest *g = NULL;
    int rc = check_machine(t, r, e);
    if (rc == 0)
        rc = guest_new(&g, r, o, e);
    if (rc == 0)
        rc = load_guest(g, o, t, e);
    if (rc == 0)
        rc = agent_connect(&g->agent, g->vm, RESTORE_TIMEOUT_MS, r->cancel, e);
    if (rc == 0)
        rc = guest_set_clock(g, e);
    if (rc == 0)
        rc = agent_reseed(g->agent, e);
    if (rc == 0)
        rc = agent_thaw(g->agent, e);
    if (rc < 0)
        return rc;
    *out = MOVE(g);
    return 0;
}
