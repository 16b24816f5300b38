/* SPDX-License-Identifier: MIT */
/* Disks compared and written as files. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/disk.h"
#include "bake/upkeep.h"
#include "base/file.h"
#include "base/mem.h"

enum { PIECE = 2 * BLOCK_SIZE }; /* a chunk of put_map */

struct ranges {
    uint64_t at[8][2];
    size_t count;
};

static void add_range(void *ctx, uint64_t off, uint64_t size)
{
    struct ranges *r = ctx;
    if (r->count < ARRAY_LEN(r->at)) {
        r->at[r->count][0] = off;
        r->at[r->count][1] = size;
    }
    r->count++;
}

static void differences(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t a[4], b[4]; /* seeds of the chunks, 0: none further */
        uint64_t ranges[2][2];
    } rows[] = {
        {"the same", {1, 2, 3}, {1, 2, 3}, {{0}}},
        {"one in the middle", {1, 2, 3}, {1, 9, 3}, {{PIECE, PIECE}}},
        {"two neighbours are one range", {1, 2, 3}, {8, 9, 3}, {{0, 2 * PIECE}}},
        {"two ranges", {1, 2, 3}, {8, 2, 9}, {{0, PIECE}, {2 * PIECE, PIECE}}},
        {"one is longer", {1, 2}, {1, 2, 3, 4}, {{2 * PIECE, 2 * PIECE}}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        struct err e = ERR_INIT;
        struct digest maps[2];
        size_t counts[2] = {0};
        world_open(&w);
        for (size_t n = 0; n < 4; n++) {
            counts[0] += rows[i].a[n] != 0;
            counts[1] += rows[i].b[n] != 0;
        }
        assert_ok(put_map(w.store, &maps[0], rows[i].a, counts[0], &e));
        assert_ok(put_map(w.store, &maps[1], rows[i].b, counts[1], &e));
        struct ranges r = {.count = 0};
        struct disk_difference d;
        struct disk_compare_options o = {.range = add_range, .ctx = &r};
        assert_ok(disk_compare(&d, w.store, maps, &o, &e));
        size_t wanted = 0;
        uint64_t bytes = 0;
        for (size_t n = 0; n < 2; n++) {
            wanted += rows[i].ranges[n][1] > 0;
            bytes += rows[i].ranges[n][1];
        }
        if (r.count != wanted || memcmp(r.at, rows[i].ranges, wanted * sizeof(r.at[0])) != 0)
            fail_msg("%s: %zu ranges", rows[i].name, r.count);
        assert_int_equal(d.different, bytes);
        assert_int_equal(d.ranges, wanted);
        assert_int_equal(d.only_stored[0] > 0, i > 0 && i < 4);
        assert_int_equal(d.only_stored[1] > 0, i > 0);
        assert_true(d.shared_stored > 0);
        world_close(&w);
    }
}

/* Contents count, not the chunks they come from. */
static void equal_bytes_of_other_chunks(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    struct digest maps[2];
    world_open(&w);
    uint8_t data[PIECE];
    memset(data, 'x', sizeof(data));
    for (size_t i = 0; i < 2; i++) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        size_t step = i == 0 ? PIECE : BLOCK_SIZE;
        assert_ok(block_map_new(&m, PIECE, &e));
        for (uint64_t off = 0; off < PIECE; off += step) {
            struct map_extent x = {.off = off, .size = (uint32_t)step};
            assert_ok(store_put_chunk(w.store, data, step, &x.chunk, &e));
            assert_ok(block_map_add(m, &x, &e));
        }
        assert_ok(block_map_finish(m, &e));
        assert_ok(store_put_map(w.store, m, &maps[i], &e));
    }
    struct disk_difference d;
    assert_ok(disk_compare(&d, w.store, maps, &(struct disk_compare_options){0}, &e));
    assert_int_equal(d.different, 0);
    world_close(&w);
}

/* A terabyte of nothing with 8 KiB in it takes what these take, here and in a file. */
static void sparse_costs_nothing(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    struct digest map;
    struct du_report before;
    struct du_report after;
    world_open(&w);
    assert_ok(store_du(&before, w.store, &e));
    struct map_extent x = {.off = (uint64_t)1 << 39, .size = PIECE, .chunk = put_chunk(w.store, 1)};
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(block_map_new(&m, (uint64_t)1 << 40, &e));
    assert_ok(block_map_add(m, &x, &e));
    assert_ok(block_map_finish(m, &e));
    assert_ok(store_put_map(w.store, m, &map, &e));
    assert_ok(store_du(&after, w.store, &e));
    assert_in_range(after.total - before.total, 1, PIECE + 256);
    AUTO_FREE char *path = mem_printf("%s/runs/disk.raw", w.path);
    assert_ok(disk_export(w.store, &map, path, NULL, &e));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, (off_t)1 << 40);
    assert_in_range((uint64_t)st.st_blocks * 512, PIECE, 1 << 20);
    assert_int_equal(disk_export(w.store, &map, path, NULL, &e), -ERR_SYS); /* it is there */
    world_close(&w);
}

/* What is missing is told before anything is written. */
static void a_full_disk_tells_how_much(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    assert_ok(file_open(&fd, AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY, 0, &e));
    assert_ok(file_need_room(fd, 1, &e));
    assert_int_equal(file_need_room(fd, (uint64_t)1 << 60, &e), -ERR_SYS);
    assert_non_null(strstr(e.text, "1152921504606847 kB needed, "));
    assert_non_null(strstr(e.text, " kB available: No space left"));
    assert_true(e.hint[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences),
        cmocka_unit_test(equal_bytes_of_other_chunks),
        cmocka_unit_test(sparse_costs_nothing),
        cmocka_unit_test(a_full_disk_tells_how_much),
    };
    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
