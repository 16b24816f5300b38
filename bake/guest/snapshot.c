/* SPDX-License-Identifier: MIT */
/*
 * A guest as it is, in the store. The order matters: the agent syncs and freezes the disk while the guest
 * still runs, the channel is closed, and only then the machine is stopped, so that neither unwritten data
 * nor a half-open connection is in the snapshot.
 */
#include <stdlib.h>

#include "bake/channel.h"
#include "bake/common/document.h"
#include "bake/guest/guest.h"
#include "bake/guest/internal.h"
#include "bake/vm.h"
#include "base/file.h"
#include "base/mem.h"

/* Maps of what a snapshot consists of; their chunks are in the store. */
struct snapshot {
    struct block_map *disk;
    struct block_map *memory;
    struct block_map *state;
    uint64_t state_size;
};

static void snapshot_fini(struct snapshot *s)
{
    block_map_free(s->disk);
    block_map_free(s->memory);
    block_map_free(s->state);
}
#define AUTO_SNAPSHOT CLEANUP(snapshot_fini)

int guest_seal(struct guest *g, const struct block_map *base, struct block_map **out, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *upper = NULL;
    AUTO_BLOCK_MAP struct block_map *zeros = NULL;
    AUTO_BDEV struct bdev *last = NULL;
    int rc = guest_disk_settle(g, e);
    if (rc == 0)
        rc = bdev_open_map(&last, base, g->room->cache, e);
    if (rc == 0)
        rc = bdev_cow_seal(g->disk, last, g->room->store, &upper, &zeros, e);
    return rc < 0 ? rc : block_map_overlay(out, base, upper, zeros, e);
}

/* Stores the maps, after which the snapshot is durable. */
static int put_maps(struct store *store, const struct snapshot *s, struct json *document,
                    struct err *e)
{
    const struct {
        const char *name;
        const struct block_map *map;
    } maps[] = {{"disk", s->disk}, {"memory", s->memory}, {"state", s->state}};
    for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
        struct digest digest;
        int rc = store_put_map(store, maps[i].map, &digest, e);
        if (rc < 0)
            return err_in(e, "storing the map of the %s", maps[i].name);
        json_set(document, maps[i].name, json_digest(&digest));
    }
    json_set(document, "state_size", json_new_integer((int64_t)s->state_size));
    return 0;
}

static int freeze_guest(struct guest *g, struct err *e)
{
    int rc = agent_sync(g->agent, true, e);
    if (rc == 0)
        rc = agent_freeze(g->agent, e);
    agent_free(MOVE(g->agent));
    return rc;
}

/* All chunks come first, then the maps: so there is one sync, and by then the memory file is gone, whose
 * pages would be written by it. */
int guest_snapshot(struct guest *g, const struct block_map *base, const struct secret_set *secrets,
                   struct json *document, struct err *e)
{
    AUTO_FREE char *state_path = mem_printf("%s/state", g->dir);
    if (!state_path)
        return err_nomem(e, "snapshot");
    AUTO_SNAPSHOT struct snapshot s = {0};
    int rc = freeze_guest(g, e);
    if (rc == 0)
        rc = vm_snapshot(g->vm, state_path, e);
    if (rc < 0)
        return rc;
    vm_free(MOVE(g->vm)); /* the disk and the memory file are quiet from here on */
    rc = guest_search_all(g, state_path, secrets, e);
    if (rc < 0)
        return rc;
    rc = guest_seal(g, base, &s.disk, e);
    if (rc < 0)
        return err_in(e, "storing what changed of the disk");
    rc = guest_take_memory(g, s.disk, &s.memory, e);
    if (rc < 0)
        return err_in(e, "storing the guest's memory");
    rc = guest_take_file(g, state_path, &s.state, &s.state_size, e);
    if (rc < 0)
        return err_in(e, "storing the device state");
    return put_maps(g->room->store, &s, document, e);
}
