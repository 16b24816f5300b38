/* SPDX-License-Identifier: MIT */
/*
 * convert STORE DISK zstd|lz4 KIB: makes one OverlayBD layer of a whole disk (a map of the store), which
 * is the plain conversion that shares nothing, and reads it back, in order and at random. One line of
 * JSON: bytes, processor seconds of the conversion, MB/s and microseconds a read. For
 * tests/bench/convert.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "blockdev/overlaybd.h"

enum { READ_LEN = 1 << 20, RANDOM_READS = 4000 };

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int read_all(struct bdev *d, uint8_t *data, uint64_t *bytes)
{
    for (uint64_t at = 0, run = 0; at < d->size; at += run) {
        if (bdev_content(d, d->size - at, at, &run) == BDEV_ZEROS)
            continue;
        run = run < READ_LEN ? run : READ_LEN;
        if (bdev_read(d, data, (size_t)run, at) < 0)
            return -1;
        *bytes += run;
    }
    return 0;
}

static int read_random(struct bdev *d, const struct block_map *m, uint8_t *data)
{
    uint32_t state = 1;
    for (int i = 0; i < RANDOM_READS; i++) {
        state = state * 1664525 + 1013904223;
        const struct map_extent *x = block_map_extent(m, (state >> 8) % block_map_count(m));
        if (bdev_read(d, data, BLOCK_SIZE, x->off) < 0)
            return -1;
    }
    return 0;
}

static int measure(struct store *s, const struct block_map *m, int fd, char **argv, struct err *e)
{
    AUTO_FREE uint8_t *data = mem_zalloc(READ_LEN);
    AUTO_OVERLAYBD_LAYER struct overlaybd_layer *layer = NULL;
    AUTO_BDEV struct bdev *disk = NULL;
    struct source from = {0};
    struct overlaybd_blob blob;
    struct overlaybd_write_options o = {.data = m,
                                        .compression = strcmp(argv[3], "lz4") == 0 ? OVERLAYBD_LZ4
                                                                                   : OVERLAYBD_ZSTD,
                                        .block_size = (uint32_t)strtoul(argv[4], NULL, 10) << 10,
                                        .workers = 2};
    uint64_t bytes = 0;
    double start = cpu_seconds();
    int rc = data ? overlaybd_write(fd, s, &o, &blob, e) : err_nomem(e, "bench");
    double converted = cpu_seconds() - start;
    if (rc == 0)
        rc = source_from_fd(&from, fd, e);
    if (rc == 0)
        rc = overlaybd_open(&layer, &from, e);
    if (rc == 0)
        rc = bdev_open_overlaybd(&disk, &layer, 1, e);
    if (rc < 0)
        return rc;
    start = cpu_seconds();
    if (read_all(disk, data, &bytes) < 0)
        return err_set(e, ERR_CORRUPT, "the layer cannot be read");
    double in_order = cpu_seconds() - start;
    start = cpu_seconds();
    if (read_random(disk, m, data) < 0)
        return err_set(e, ERR_CORRUPT, "the layer cannot be read");
    double at_random = cpu_seconds() - start;
    printf("{\"size\":%" PRIu64 ",\"plain\":%" PRIu64 ",\"cpu\":%.3f,\"read_mb_s\":%.0f,"
           "\"random_us\":%.1f}\n",
           blob.size, bytes, converted, (double)bytes / 1e6 / in_order,
           at_random * 1e6 / RANDOM_READS);
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    struct digest d;
    int fd = memfd_create("layer", MFD_CLOEXEC);
    if (argc != 5) {
        fputs("convert STORE DISK zstd|lz4 KIB\n", stderr);
        return 2;
    }
    int rc = fd < 0 ? err_sys(&e, "a file in memory") : store_open(&s, argv[1], &e);
    if (rc == 0)
        rc = digest_parse(&d, argv[2], &e);
    if (rc == 0)
        rc = store_get_map(s, &d, &m, &e);
    if (rc == 0)
        rc = measure(s, m, fd, argv, &e);
    if (rc < 0)
        fprintf(stderr, "%s\n", e.text);
    return rc < 0;
}
