/* SPDX-License-Identifier: MIT */
/* Layer regions: where files come to lie, what becomes a hole, and that workers change nothing. */
#include "fixture.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { B = BLOCK_SIZE, C = CHUNK_SIZE_MAX, PARTS_MAX = 4, EXTENTS_MAX = 4, FEED = 100000 };

/* A file: its size, where it has data (the rest is hole), and the extents that must come of it. */
struct file_case {
    const char *name;
    uint64_t size;
    struct {
        uint64_t off, len;
    } data[PARTS_MAX];
    bool zeros; /* the data is zeros */
    struct region_extent extents[EXTENTS_MAX];
};

#define GIB ((uint64_t)1 << 30)

/* Addresses behind the first small files, and behind the large file whose pieces are not whole. */
enum { L = CUT_FILE_SIZE, LARGE = 4 * B, REST = LARGE + L + B + 2 * C + B };

/* In this order, one behind the other; the small files are one pack. */
static const struct file_case cases[] = {
    {.name = "empty", .size = 0},
    {.name = "one byte", .size = 1, .data = {{0, 1}}, .extents = {{0, 1, 0}}},
    {.name = "a block", .size = B, .data = {{0, B}}, .extents = {{0, B, B}}},
    {.name = "over a block", .size = B + 1, .data = {{0, B + 1}}, .extents = {{0, B + 1, 2 * B}}},
    {.name = "small zeros", .size = 3 * B, .data = {{0, 3 * B}}, .zeros = true},
    {.name = "small hole", .size = 3 * B},
    {.name = "smallest large",
     .size = CUT_FILE_SIZE,
     .data = {{0, CUT_FILE_SIZE}},
     .extents = {{0, CUT_FILE_SIZE, LARGE}}},
    {.name = "still the first pack", .size = 5, .data = {{0, 5}}, .extents = {{0, 5, LARGE + L}}},
    {.name = "large, not whole pieces",
     .size = 2 * C + 5,
     .data = {{0, 2 * C + 5}},
     .extents = {{0, 2 * C + 5, LARGE + L + B}}},
    {.name = "large zeros", .size = 3 * C, .data = {{0, 3 * C}}, .zeros = true},
    {.name = "a hole in the middle",
     .size = 3 * C,
     .data = {{0, C}, {2 * C, C}},
     .extents = {{0, C, REST}, {2 * C, C, REST + C}}},
    {.name = "sparse",
     .size = 12 * GIB,
     .data = {{6 * GIB + 5, 4}},
     .extents = {{6 * GIB, C, REST + 2 * C}}},
    {.name = "data at the very end",
     .size = GIB + 7,
     .data = {{GIB + 6, 1}},
     .extents = {{GIB, 7, REST + 3 * C}}},
};

static void feed(struct region_writer *w, const struct file_case *f, uint64_t seed)
{
    struct err e = ERR_INIT;
    for (size_t i = 0; i < PARTS_MAX && f->data[i].len > 0; i++) {
        AUTO_FREE uint8_t *data = mem_zalloc((size_t)f->data[i].len);
        if (!f->zeros)
            fixture_fill(data, (size_t)f->data[i].len, seed + i);
        for (uint64_t at = 0; at < f->data[i].len; at += FEED) {
            uint64_t left = f->data[i].len - at;
            size_t len = left < FEED ? (size_t)left : FEED;
            assert_ok(region_file_data(w, f->data[i].off + at, data + at, len, &e));
        }
    }
}

static void check_data(int fd, const struct file_case *f, uint64_t seed)
{
    struct err e = ERR_INIT;
    for (size_t i = 0; i < EXTENTS_MAX && f->extents[i].len > 0; i++) {
        const struct region_extent *x = &f->extents[i];
        for (size_t k = 0; k < PARTS_MAX && f->data[k].len > 0; k++) {
            if (f->data[k].off < x->file_off || f->data[k].off >= x->file_off + x->len)
                continue;
            size_t len = (size_t)f->data[k].len;
            AUTO_FREE uint8_t *data = mem_zalloc(len);
            AUTO_FREE uint8_t *back = mem_zalloc(len);
            fixture_fill(data, len, seed + k);
            assert_ok(
                file_pread_full(fd, back, len, x->region_off + (f->data[k].off - x->file_off), &e));
            assert_memory_equal(back, data, len);
        }
    }
}

static struct digest lay_out(struct fixture *f, size_t workers)
{
    struct err e = ERR_INIT;
    AUTO_REGION_WRITER struct region_writer *w = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(region_writer_new(&w, f->store, workers, &e));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE struct region_extent *extents = NULL;
        size_t count;
        assert_ok(region_file_begin(w, cases[i].size, &e));
        feed(w, &cases[i], i * 10);
        assert_ok(region_file_end(w, &extents, &count, &e));
        for (size_t k = 0; k < count; k++) {
            const struct region_extent *wanted = &cases[i].extents[k];
            if (extents[k].file_off != wanted->file_off || extents[k].len != wanted->len ||
                extents[k].region_off != wanted->region_off)
                fail_msg("%s: extent %zu is %llu+%llu at %llu", cases[i].name, k,
                         (unsigned long long)extents[k].file_off,
                         (unsigned long long)extents[k].len,
                         (unsigned long long)extents[k].region_off);
        }
        if (count < EXTENTS_MAX && cases[i].extents[count].len > 0)
            fail_msg("%s: extent %zu is missing", cases[i].name, count);
    }
    assert_ok(region_writer_finish(w, &m, &e));
    assert_int_equal(block_map_virtual_size(m), 6 * C);
    AUTO_FD int fd = fixture_file(f);
    assert_ok(store_export_map(f->store, m, fd, 2, NULL, &e));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_data(fd, &cases[i], i * 10);
    struct digest d;
    assert_ok(store_put_map(f->store, m, &d, &e));
    return d;
}

static void test_layout(void **state)
{
    struct digest serial = lay_out(*state, 1), parallel = lay_out(*state, 4);
    assert_true(digest_equal(&serial, &parallel));
}

/* Files that fill packs: a file that does not fit starts the next one. */
static void test_packs(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    enum { SIZE = 15 * B - 1, BLOCKS = 15 * B, FILES = 20, IN_A_PACK = C / BLOCKS };
    AUTO_REGION_WRITER struct region_writer *w = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    uint8_t data[SIZE];
    assert_ok(region_writer_new(&w, f->store, 2, &e));
    for (uint64_t i = 0; i < FILES; i++) {
        AUTO_FREE struct region_extent *extents = NULL;
        size_t count;
        fixture_fill(data, SIZE, i);
        assert_ok(region_file_begin(w, SIZE, &e));
        assert_ok(region_file_data(w, 0, data, SIZE, &e));
        assert_ok(region_file_end(w, &extents, &count, &e));
        assert_int_equal(count, 1);
        assert_int_equal(extents[0].region_off, i * BLOCKS);
    }
    assert_ok(region_writer_finish(w, &m, &e));
    assert_int_equal(block_map_count(m), 3);
    assert_int_equal(block_map_extent(m, 0)->size, IN_A_PACK * BLOCKS);
    assert_int_equal(block_map_virtual_size(m), 3 * C);
}

static void add_file(struct region_writer *w, size_t size, uint64_t seed)
{
    struct err e = ERR_INIT;
    AUTO_FREE struct region_extent *extents = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(size);
    size_t count;
    fixture_fill(data, size, seed);
    assert_ok(region_file_begin(w, size, &e));
    assert_ok(region_file_data(w, 0, data, size, &e));
    assert_ok(region_file_end(w, &extents, &count, &e));
    assert_int_equal(count, 1);
}

/* Many small files; one of `extra` bytes stands before the one numbered `at`. */
static uint64_t new_chunks(struct fixture *f, uint64_t at, size_t extra)
{
    struct err e = ERR_INIT;
    enum { FILES = 400 };
    uint64_t before = store_stats(f->store).chunks_new;
    AUTO_REGION_WRITER struct region_writer *w = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(region_writer_new(&w, f->store, 2, &e));
    for (uint64_t i = 0; i < FILES; i++) {
        if (i == at)
            add_file(w, extra, FILES);
        add_file(w, 1 + i * 97 % 30000, i);
    }
    assert_ok(region_writer_finish(w, &m, &e));
    return store_stats(f->store).chunks_new - before;
}

/* Packs end at files, so what comes before changes few of them; large files change none. */
static void test_packs_share(void **state)
{
    assert_true(new_chunks(*state, 400, 0) > 15);
    assert_true(new_chunks(*state, 0, 3) <= 2);
    assert_true(new_chunks(*state, 150, 3 * B) <= 2);
    assert_int_equal(new_chunks(*state, 150, CUT_FILE_SIZE), 1);
    assert_int_equal(new_chunks(*state, 150, CUT_FILE_SIZE), 0);
}

/* The same large file is the same chunks, whatever came before it. */
static void test_large_files_share(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    enum { SIZE = C + 70000 };
    AUTO_FREE uint8_t *data = mem_zalloc(SIZE);
    fixture_fill(data, SIZE, 1);
    uint64_t chunks_new = 0;
    for (size_t before = 0; before < 3; before++) {
        AUTO_REGION_WRITER struct region_writer *w = NULL;
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        AUTO_FREE struct region_extent *extents = NULL, *small = NULL;
        size_t count;
        assert_ok(region_writer_new(&w, f->store, 1, &e));
        assert_ok(region_file_begin(w, before, &e));
        assert_ok(region_file_data(w, 0, "\0\0", before, &e));
        assert_ok(region_file_end(w, &small, &count, &e));
        assert_ok(region_file_begin(w, SIZE, &e));
        assert_ok(region_file_data(w, 0, data, SIZE, &e));
        assert_ok(region_file_end(w, &extents, &count, &e));
        assert_ok(region_writer_finish(w, &m, &e));
        if (before > 0)
            assert_int_equal(store_stats(f->store).chunks_new, chunks_new);
        chunks_new = store_stats(f->store).chunks_new;
    }
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_REGION_WRITER struct region_writer *w = NULL;
    struct region_extent *extents;
    size_t count;
    struct block_map *m;
    assert_ok(region_writer_new(&w, f->store, 1, &e));
    assert_class(region_file_end(w, &extents, &count, &e), ERR_INPUT);
    assert_class(region_file_data(w, 0, "x", 1, &e), ERR_CORRUPT);
    assert_class(region_file_begin(w, UINT64_MAX, &e), ERR_LIMIT);
    assert_ok(region_file_begin(w, 10, &e));
    assert_class(region_file_begin(w, 10, &e), ERR_INPUT);
    assert_class(region_file_data(w, 0, "12345678901", 11, &e), ERR_CORRUPT);
    assert_class(region_file_data(w, UINT64_MAX, "1", 1, &e), ERR_CORRUPT);
    assert_ok(region_file_data(w, 4, "12", 2, &e));
    assert_class(region_file_data(w, 5, "1", 1, &e), ERR_CORRUPT);
    assert_class(region_writer_finish(w, &m, &e), ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
        CASE(test_layout),  CASE(test_packs), CASE(test_packs_share), CASE(test_large_files_share),
        CASE(test_refused),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
