/* SPDX-License-Identifier: MIT */
/* What a stopped guest leaves, as maps in the store: its memory and its device state. */
#include <fcntl.h>
#include <unistd.h>

#include "bake/common/slots.h"
#include "bake/guest/internal.h"
#include "bake/guest/memory_share.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

int guest_take_file(struct guest *g, const char *path, struct block_map **out, uint64_t *size,
                    struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = file_size(AT_FDCWD, path, size, e);
    if (rc == 0)
        rc = store_put_file(g->room->store, fd, machine_cores(), out, e);
    if (rc == 0 && unlinkat(AT_FDCWD, path, 0) < 0)
        rc = err_sys(e, "removing %s", path);
    return rc;
}

static void tell(const struct memory_shares *s)
{
    log_event(LOG_DEBUG, "bake",
              "memory: %llu blocks as in the boot image, %llu of boot image or disk, %llu twice, "
              "%llu of its own; %llu extents",
              (unsigned long long)s->same, (unsigned long long)s->peers,
              (unsigned long long)s->twice, (unsigned long long)s->own,
              (unsigned long long)s->extents);
}

/* Blocks of the disk that can be in the page cache are those that were read or written. */
int guest_take_memory(struct guest *g, const struct block_map *disk, struct block_map **out,
                      struct err *e)
{
    AUTO_FREE uint32_t *read = NULL;
    AUTO_BLOCK_MAP struct block_map *written = NULL;
    AUTO_BLOCK_MAP struct block_map *zeros = NULL;
    AUTO_FD int fd = -1;
    size_t read_count = 0;
    struct memory_shares shares;
    int rc = bdev_map_trace(g->leaf, &read, &read_count, e);
    if (rc == 0)
        rc = block_map_delta(&written, &zeros, g->booted, disk, e);
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, g->memory_path, O_RDONLY, 0, e);
    if (rc < 0)
        return rc;
    struct memory_parts parts = {.fd = fd,
                                 .boot = g->boot_memory,
                                 .cache = g->room->cache,
                                 .workers = machine_cores(),
                                 .cancel = g->room->cancel};
    if (g->boot_memory)
        parts.peers[parts.peer_count++] = (struct memory_peer){.map = g->boot_memory};
    if (read_count > 0)
        parts.peers[parts.peer_count++] =
            (struct memory_peer){.map = g->booted, .extents = read, .extent_count = read_count};
    parts.peers[parts.peer_count++] = (struct memory_peer){.map = written};
    rc = memory_put(out, g->room->store, &parts, &shares, e);
    if (rc < 0)
        return rc;
    tell(&shares);
    return unlinkat(AT_FDCWD, g->memory_path, 0) < 0 ? err_sys(e, "removing %s", g->memory_path)
                                                     : 0;
}
