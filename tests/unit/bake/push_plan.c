/* SPDX-License-Identifier: MIT */
/* Layers of disks: what is in which one, and that the stack is the disk again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "bake/push/internal.h"
#include "base/mem.h"

enum { MIB = 1 << 20 };

struct part {
    uint64_t off; /* blocks */
    uint32_t size;
    uint32_t chunk_off;
    uint8_t chunk; /* its digest's first byte; 0: the list ends */
};

static struct block_map *map_of(uint64_t size, const struct part *parts, uint64_t base)
{
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    assert_int_equal(block_map_new(&m, size, &e), 0);
    for (; parts->chunk; parts++) {
        struct map_extent x = {.off = base + parts->off * BLOCK_SIZE,
                               .size = parts->size * BLOCK_SIZE,
                               .chunk_off = parts->chunk_off * BLOCK_SIZE};
        x.chunk.algorithm = DIGEST_SHA256;
        x.chunk.bytes[0] = parts->chunk;
        assert_int_equal(block_map_add(m, &x, &e), 0);
    }
    assert_int_equal(block_map_finish(m, &e), 0);
    return m;
}

static bool same(const struct block_map *a, const struct block_map *b)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf x;
    AUTO_BUF struct buf y;
    buf_init(&x, LIMIT_BLOCK_MAP);
    buf_init(&y, LIMIT_BLOCK_MAP);
    assert_int_equal(block_map_encode(a, &x, &e), 0);
    assert_int_equal(block_map_encode(b, &y, &e), 0);
    return x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
}

/* The layers one over the other. */
static struct block_map *stacked(const struct push_plan *p, uint64_t size)
{
    static const struct part nothing[] = {{0}};
    struct err e = ERR_INIT;
    struct block_map *disk = map_of(size, nothing, 0);
    for (size_t i = 0; i < p->count; i++) {
        AUTO_BLOCK_MAP struct block_map *data = map_of(size, nothing, 0);
        struct block_map *next = NULL;
        assert_int_equal(block_map_copy_range(data, p->layers[i].data, 0,
                                              block_map_virtual_size(p->layers[i].data), 0, &e),
                         0);
        assert_int_equal(block_map_finish(data, &e), 0);
        assert_int_equal(block_map_overlay(&next, disk, data, p->layers[i].zeros, &e), 0);
        block_map_free(disk);
        disk = next;
    }
    return disk;
}

#define REGION MIB
static const struct part first[] = {{0, 10, 0, 1}, {128, 20, 0, 2}, {0}};
static const struct part second[] = {{0, 5, 3, 3}, {0}};
static const struct part third[] = {{0, 128, 0, 4}, {0}};

static const struct row {
    const char *name;
    uint64_t base;          /* where the regions are on the disk */
    struct part regions[4]; /* what of them is on it, from `base` on */
    struct part rest[3];    /* beside that, from 0 on */
    size_t layers;
    uint64_t zeros; /* blocks that the last layer hides */
} rows[] = {
    {"all of it",
     EXT4_DATA_START,
     {{0, 10, 0, 1}, {128, 20, 0, 2}, {256, 5, 3, 3}, {0}},
     {{0, 9, 0, 9}, {0}},
     3,
     0},
    {"the second half of a piece",
     EXT4_DATA_START,
     {{5, 5, 5, 1}, {0}},
     {{0, 9, 0, 9}, {0}},
     2,
     25},
    {"a layer that is not used", EXT4_DATA_START, {{256, 5, 3, 3}, {0}}, {{0, 9, 0, 9}, {0}}, 2, 0},
    {"metadata needed more room",
     EXT4_DATA_START * 4,
     {{0, 10, 0, 1}, {0}},
     {{0, 9, 0, 9}, {0}},
     2,
     20},
    {"another part of the same chunk",
     EXT4_DATA_START,
     {{0, 5, 2, 1}, {0}},
     {{0, 9, 0, 9}, {0}},
     1,
     0},
    {"nothing of the image", EXT4_DATA_START, {{0}}, {{0, 9, 0, 9}, {7000, 1, 0, 8}, {0}}, 1, 0},
};

static void layers(void **state)
{
    (void)state;
    const uint64_t size = EXT4_DATA_START * 6;
    struct block_map *regions[] = {map_of(REGION, first, 0), map_of(REGION, second, 0),
                                   map_of(REGION, third, 0)};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *r = &rows[i];
        struct err e = ERR_INIT;
        struct push_plan p = {0};
        AUTO_BLOCK_MAP struct block_map *data = map_of(size, r->regions, r->base);
        AUTO_BLOCK_MAP struct block_map *rest = map_of(size, r->rest, 0);
        AUTO_BLOCK_MAP struct block_map *disk = NULL;
        assert_int_equal(block_map_overlay(&disk, rest, data, NULL, &e), 0);
        assert_int_equal(push_plan_make(&p, disk, regions, ARRAY_LEN(regions), &e), 0);
        AUTO_BLOCK_MAP struct block_map *again = stacked(&p, size);
        const struct push_layer *last = &p.layers[p.count - 1];
        uint64_t zeros = 0;
        for (size_t n = 0; last->zeros && n < block_map_count(last->zeros); n++)
            zeros += block_map_extent(last->zeros, n)->size / BLOCK_SIZE;
        if (p.count != r->layers || zeros != r->zeros || !same(disk, again))
            fail_msg("%s: %zu layers, %llu blocks of zeros, %s disk", r->name, p.count,
                     (unsigned long long)zeros, same(disk, again) ? "the" : "another");
        push_plan_fini(&p);
    }
    for (size_t i = 0; i < ARRAY_LEN(regions); i++)
        block_map_free(regions[i]);
}

/* A layer's map is the same whatever is above, and whatever of it a disk uses. */
static void lower_layers_are_shared(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct block_map *regions[] = {map_of(REGION, first, 0), map_of(REGION, second, 0)};
    struct push_plan plans[2] = {{0}};
    for (size_t i = 0; i < 2; i++) {
        AUTO_BLOCK_MAP struct block_map *disk =
            map_of(EXT4_DATA_START * (2 + i), rows[i].regions, EXT4_DATA_START);
        assert_int_equal(push_plan_make(&plans[i], disk, regions, 2 - i, &e), 0);
    }
    assert_true(same(plans[0].layers[0].data, plans[1].layers[0].data));
    for (size_t i = 0; i < 2; i++) {
        push_plan_fini(&plans[i]);
        block_map_free(regions[i]);
    }
}

static void more_regions_than_layers(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    static struct block_map *regions[COUNT];
    struct err e = ERR_INIT;
    struct push_plan p = {0};
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    struct part part[] = {{0, 1, 0, 1}, {0}};
    assert_int_equal(block_map_new(&disk, EXT4_DATA_START * 2, &e), 0);
    for (size_t i = 0; i < COUNT; i++) {
        part[0].chunk = (uint8_t)(1 + i % 200);
        regions[i] = map_of(CHUNK_SIZE_MAX, part, 0);
        assert_int_equal(block_map_copy_range(disk, regions[i], 0, CHUNK_SIZE_MAX,
                                              EXT4_DATA_START + i * CHUNK_SIZE_MAX, &e),
                         0);
    }
    assert_int_equal(block_map_finish(disk, &e), 0);
    assert_int_equal(push_plan_make(&p, disk, regions, COUNT, &e), 0);
    assert_int_equal(p.count, OVERLAYBD_LAYERS_MAX);
    AUTO_BLOCK_MAP struct block_map *again = stacked(&p, EXT4_DATA_START * 2);
    assert_true(same(disk, again));
    push_plan_fini(&p);
    for (size_t i = 0; i < COUNT; i++)
        block_map_free(regions[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),
        cmocka_unit_test(lower_layers_are_shared),
        cmocka_unit_test(more_regions_than_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
