/* SPDX-License-Identifier: MIT */
/*
 * serve_disk STORE FILE (SOCKET | ublk) CACHE_MIB: chunks FILE into STORE and serves it, under a
 * copy-on-write upper, until standard input ends. Prints "ready" (for ublk: and the disk's path) when
 * it can be used, and what the cache did at the end. The other side of nbd.sh and ublk.sh.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "blockdev/blockdev.h"

static int serve(char **argv, struct err *e)
{
    AUTO_STORE struct store *s = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_NBD_SERVER struct nbd_server *n = NULL;
    AUTO_FD int fd = -1;
    struct bdev *leaf;
    struct ublk_server *u = NULL;
    bool ublk = strcmp(argv[3], "ublk") == 0;
    int rc = store_open(&s, argv[1], e);
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, argv[2], O_RDONLY, 0, e);
    if (rc == 0)
        rc = store_put_file(s, fd, 2, &m, e);
    if (rc == 0)
        rc = chunk_cache_new(&c, s, strtoull(argv[4], NULL, 10) << 20, e);
    if (rc == 0)
        rc = bdev_open_map(&leaf, m, c, e);
    if (rc == 0)
        rc = bdev_open_cow(&d, leaf, store_tmp_dir(s), 0, e);
    if (rc == 0)
        rc = ublk ? ublk_start(&u, d, &(struct ublk_options){.cookie = 1, .recover = -1}, e)
                  : nbd_server_start(&n, d, argv[3], e);
    if (rc < 0)
        return rc;
    char path[32];
    printf("ready %s\n", ublk ? ublk_path(u, path) : argv[3]);
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    rc = ublk_stop(u, e);
    struct chunk_cache_stats stats = chunk_cache_stats(c);
    fprintf(stderr, "cache: %" PRIu64 " hits, %" PRIu64 " loads, %" PRIu64 " evictions\n",
            stats.hits, stats.loads, stats.evictions);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    if (argc != 5) {
        fprintf(stderr, "usage: serve_disk STORE FILE (SOCKET | ublk) CACHE_MIB\n");
        return 2;
    }
    if (serve(argv, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    return 0;
}
