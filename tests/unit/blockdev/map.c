/* SPDX-License-Identifier: MIT */
/* Block maps: building, looking up, combining, and their bytes. */
#include "fixture.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { B = BLOCK_SIZE };

/* Blocks, one character each: '.' is a gap, a letter names a chunk. Each extent starts in its
 * chunk at the block number it has on the disk, modulo 100, so that neighbours of one letter
 * join. */
static struct block_map *map_of(const char *picture)
{
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    assert_ok(block_map_new(&m, strlen(picture) * B, &e));
    for (size_t i = strlen(picture); i-- > 0;) { /* backwards: any order will do */
        if (picture[i] == '.')
            continue;
        struct map_extent x = {.off = i * B, .size = B, .chunk_off = (uint32_t)(i % 100 * B)};
        digest_bytes(&x.chunk, &picture[i], 1);
        assert_ok(block_map_add(m, &x, &e));
    }
    assert_ok(block_map_finish(m, &e));
    return m;
}

static void assert_same(const struct block_map *m, const char *picture)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *wanted = map_of(picture);
    AUTO_BUF struct buf a, b;
    buf_init(&a, LIMIT_BLOCK_MAP);
    buf_init(&b, LIMIT_BLOCK_MAP);
    assert_ok(block_map_encode(m, &a, &e));
    assert_ok(block_map_encode(wanted, &b, &e));
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
        fail_msg("map is not %s", picture);
}

static void test_build(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = map_of("aab..aaacb");
    assert_int_equal(block_map_count(m), 5);
    assert_int_equal(block_map_virtual_size(m), 10 * B);
    assert_int_equal(block_map_extent(m, 2)->size, 3 * B);
    static const struct {
        uint64_t off;
        size_t index;
    } finds[] = {{0, 0}, {2 * B - 1, 0}, {2 * B, 1}, {3 * B, 2}, {5 * B, 2}, {10 * B, 5}};
    for (size_t i = 0; i < ARRAY_LEN(finds); i++)
        assert_int_equal(block_map_find(m, finds[i].off), finds[i].index);

    static const struct map_extent bad[] = {
        {.off = 1, .size = B},         {.off = 0, .size = 0},
        {.off = 0, .size = B + 1},     {.off = 10 * B, .size = B},
        {.off = 9 * B, .size = 2 * B}, {.off = UINT64_MAX - B + 1, .size = B},
        {.size = CHUNK_SIZE_MAX + B},  {.size = B, .chunk_off = CHUNK_SIZE_MAX},
        {.size = B, .chunk_off = 5},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_class(block_map_add(m, &bad[i], &e), ERR_CORRUPT);
    struct map_extent overlapping = {.off = B, .size = B};
    assert_ok(block_map_add(m, &overlapping, &e));
    assert_class(block_map_finish(m, &e), ERR_CORRUPT);
    struct block_map *none;
    assert_class(block_map_new(&none, 5, &e), ERR_INPUT);
}

static void test_overlay(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    static const struct {
        const char *lower, *upper, *zeros, *result;
    } cases[] = {
        {"aaaa", "....", NULL, "aaaa"},
        {"aaaa", ".b..", NULL, "abaa"},
        {"aaaa", "bbbb", NULL, "bbbb"},
        {"....", "b..b", NULL, "b..b"},
        {"aaaa", "....", "zzzz", "...."},
        {"aaaaaaaa", ".b...b..", "z.zz...z", ".b..abaz"},
        {"aab.ccc.", "....dd..", ".z......", "a.b.ddc."},
        {"aaa", ".b.", ".z.", "aba"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_BLOCK_MAP struct block_map *lower = map_of(cases[i].lower);
        AUTO_BLOCK_MAP struct block_map *upper = map_of(cases[i].upper);
        AUTO_BLOCK_MAP struct block_map *zeros = cases[i].zeros ? map_of(cases[i].zeros) : NULL;
        AUTO_BLOCK_MAP struct block_map *out = NULL;
        assert_ok(block_map_overlay(&out, lower, upper, zeros, &e));
        char wanted[16];
        snprintf(wanted, sizeof(wanted), "%s", cases[i].result);
        for (char *at = wanted; *at; at++)
            *at = *at == 'z' ? '.' : *at;
        assert_same(out, wanted);
    }
    AUTO_BLOCK_MAP struct block_map *small = map_of("a"), *large = map_of("aa"), *out = NULL;
    assert_class(block_map_overlay(&out, small, large, NULL, &e), ERR_CORRUPT);
}

static void test_delta(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    static const struct {
        const char *lower, *target, *data, *zeros;
    } cases[] = {
        {"aaaa", "aaaa", "....", "...."},         {"aaaa", "....", "....", "aaaa"},
        {"....", "aaaa", "aaaa", "...."},         {"aab..a", "aa.c.a", "...c..", "..b..."},
        {"aaaa", "abba", ".bb.", "...."},         {"abab", "baba", "baba", "...."},
        {".aa..b", "cccccc", "cccccc", "......"}, {"aaaaaa", ".aa..a", "......", "a..aa."},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_BLOCK_MAP struct block_map *lower = map_of(cases[i].lower);
        AUTO_BLOCK_MAP struct block_map *target = map_of(cases[i].target);
        AUTO_BLOCK_MAP struct block_map *data = NULL, *zeros = NULL, *again = NULL;
        assert_ok(block_map_delta(&data, &zeros, lower, target, &e));
        assert_same(data, cases[i].data);
        assert_same(zeros, cases[i].zeros);
        assert_ok(block_map_overlay(&again, lower, data, zeros, &e));
        assert_same(again, cases[i].target);
    }
    AUTO_BLOCK_MAP struct block_map *small = map_of("a"), *large = map_of("aa.");
    AUTO_BLOCK_MAP struct block_map *data = NULL, *zeros = NULL;
    assert_ok(block_map_delta(&data, &zeros, small, large, &e));
    assert_same(data, ".a.");
    assert_same(zeros, "...");
    assert_class(block_map_delta(&data, &zeros, large, small, &e), ERR_CORRUPT);
}

static void test_copy_range(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *in = map_of("aab.cc");
    AUTO_BLOCK_MAP struct block_map *out = map_of("........");
    assert_ok(block_map_copy_range(out, in, B, 4 * B, 3 * B, &e));
    assert_ok(block_map_finish(out, &e));
    assert_int_equal(block_map_count(out), 3);
    assert_int_equal(block_map_extent(out, 0)->off, 3 * B);
    assert_int_equal(block_map_extent(out, 0)->chunk_off, B);
    assert_int_equal(block_map_extent(out, 2)->off, 6 * B);
    assert_int_equal(block_map_extent(out, 2)->size, B);
    assert_class(block_map_copy_range(out, in, 0, 7 * B, 0, &e), ERR_CORRUPT);
    assert_class(block_map_copy_range(out, in, 0, 6 * B, 3 * B, &e), ERR_CORRUPT);
    assert_class(block_map_copy_range(out, in, 1, B, 0, &e), ERR_CORRUPT);
}

static void test_codec(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    static const char *const pictures[] = {"", ".", "a", "aab..aaacb", "abababab"};
    for (size_t i = 0; i < ARRAY_LEN(pictures); i++) {
        AUTO_BLOCK_MAP struct block_map *m = map_of(pictures[i]), *back = NULL;
        AUTO_BUF struct buf bytes;
        buf_init(&bytes, LIMIT_BLOCK_MAP);
        assert_ok(block_map_encode(m, &bytes, &e));
        assert_ok(block_map_decode(&back, bytes.data, bytes.len, &e));
        assert_same(back, pictures[i]);
        for (size_t len = 0; len < bytes.len; len++) /* cut anywhere */
            assert_class(block_map_decode(&back, bytes.data, len, &e), ERR_CORRUPT);
    }
}

/* The bytes of docs/formats/block-map.md, and one change at a time that makes them another
 * encoding or none. */
static void test_reject(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = map_of("aab.");
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    assert_ok(block_map_encode(m, &bytes, &e));
    assert_int_equal(bytes.len, 8 + 8 + 4 + 4 + 2 * 32 + 2 * 20);
    assert_memory_equal(bytes.data, "TB2MAP01", 8);
    enum { CHUNKS = 24, EXTENTS = CHUNKS + 64, SECOND = EXTENTS + 20 };
    static const struct {
        size_t at;
        uint8_t value;
        enum err_class class;
    } cases[] = {
        {0, 'X', ERR_CORRUPT},           /* magic */
        {7, '2', ERR_UNSUPPORTED},       /* version */
        {8, 1, ERR_CORRUPT},             /* size of the disk */
        {9, 0x10, ERR_CORRUPT},          /* too small a disk */
        {15, 0xff, ERR_CORRUPT},         /* too large a disk */
        {16, 3, ERR_CORRUPT},            /* chunk count */
        {20, 1, ERR_CORRUPT},            /* extent count */
        {23, 0xff, ERR_CORRUPT},         /* extent count */
        {EXTENTS + 16, 1, ERR_CORRUPT},  /* chunks not numbered by first use */
        {SECOND + 16, 0, ERR_CORRUPT},   /* a chunk without an extent */
        {SECOND + 16, 2, ERR_CORRUPT},   /* no such chunk */
        {SECOND + 1, 0, ERR_CORRUPT},    /* out of order */
        {SECOND + 1, 0x10, ERR_CORRUPT}, /* overlap */
        {SECOND + 12, 1, ERR_CORRUPT},   /* alignment */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE uint8_t *copy = mem_dup(bytes.data, bytes.len);
        copy[cases[i].at] = cases[i].value;
        AUTO_BLOCK_MAP struct block_map *back = NULL;
        err_clear(&e);
        if (block_map_decode(&back, copy, bytes.len, &e) != -(int)cases[i].class)
            fail_msg("case %zu: %s", i, e.text);
    }
    AUTO_FREE uint8_t *twice = mem_dup(bytes.data, bytes.len);
    memcpy(twice + CHUNKS + 32, twice + CHUNKS, 32);
    AUTO_BLOCK_MAP struct block_map *back = NULL;
    assert_class(block_map_decode(&back, twice, bytes.len, &e), ERR_CORRUPT);
}

static void test_store(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = map_of("aab..aaacb"), *back = NULL;
    struct digest d, again;
    assert_ok(store_put_map(f->store, m, &d, &e));
    assert_ok(store_put_map(f->store, m, &again, &e));
    assert_true(digest_equal(&d, &again));
    assert_ok(store_get_map(f->store, &d, &back, &e));
    assert_same(back, "aab..aaacb");
    d.bytes[0] ^= 1;
    struct block_map *none = NULL;
    assert_class(store_get_map(f->store, &d, &none, &e), ERR_NOTFOUND);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build),
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_copy_range),
        cmocka_unit_test(test_codec),
        cmocka_unit_test(test_reject),
        cmocka_unit_test_setup_teardown(test_store, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
