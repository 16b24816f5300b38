/* SPDX-License-Identifier: MIT */
/* The chunk cache and the device over it, against a real store: damaged and short chunks, a cache
 * smaller than a chunk, many readers of one chunk. */
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum { CHUNKS = 6, DISK_SIZE = 8 * CHUNK_SIZE_MAX };

struct disk {
    struct block_map *map;
    struct digest chunks[CHUNKS];
    uint8_t *bytes; /* what it must read as */
};

/* Chunks of several sizes with gaps between them; one lies in two places. */
static void disk_make(struct disk *k, struct store *s)
{
    struct err e = ERR_INIT;
    k->bytes = mem_zalloc(DISK_SIZE);
    assert_non_null(k->bytes);
    assert_ok(block_map_new(&k->map, DISK_SIZE, &e));
    for (size_t i = 0; i < CHUNKS; i++) {
        size_t len = i == 0 ? CHUNK_SIZE_MAX : (i * 7 + 1) * BLOCK_SIZE;
        uint64_t off = i * CHUNK_SIZE_MAX;
        fixture_fill(k->bytes + off, len, i);
        struct map_extent extent = {.off = off, .size = (uint32_t)len};
        assert_ok(store_put_chunk(s, k->bytes + off, len, &extent.chunk, &e));
        k->chunks[i] = extent.chunk;
        assert_ok(block_map_add(k->map, &extent, &e));
    }
    struct map_extent again = {.off = 7 * CHUNK_SIZE_MAX,
                               .size = 2 * BLOCK_SIZE,
                               .chunk_off = 3 * BLOCK_SIZE,
                               .chunk = k->chunks[1]};
    memcpy(k->bytes + again.off, k->bytes + CHUNK_SIZE_MAX + again.chunk_off, again.size);
    assert_ok(block_map_add(k->map, &again, &e));
    assert_ok(block_map_finish(k->map, &e));
}

static void disk_drop(struct disk *k)
{
    block_map_free(k->map);
    free(k->bytes);
}

static void compare(struct bdev *d, const struct disk *k, size_t len, uint64_t off)
{
    AUTO_FREE uint8_t *data = mem_zalloc(len);
    assert_non_null(data);
    memset(data, 0xee, len);
    assert_int_equal(bdev_read(d, data, len, off), 0);
    assert_memory_equal(data, k->bytes + off, len);
}

/* What is lent is what is read; false when nothing is. */
static bool lent_equals(struct bdev *d, const struct disk *k, size_t len, uint64_t off)
{
    struct bdev_loan loan;
    int rc = bdev_lend(d, &loan, len, off);
    if (rc < 0) {
        assert_int_equal(rc, -EAGAIN);
        assert_int_equal(loan.part_count, 0);
        return false;
    }
    size_t done = 0;
    for (size_t i = 0; i < loan.part_count; i++) {
        assert_memory_equal(loan.parts[i].iov_base, k->bytes + off + done, loan.parts[i].iov_len);
        done += loan.parts[i].iov_len;
    }
    assert_int_equal(done, len);
    bdev_loan_end(&loan);
    bdev_loan_end(&loan);
    return true;
}

/* From a map, and through an upper that has changed a block of it. */
static void what_is_in_memory_is_lent(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct disk k;
    disk_make(&k, f->store);
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *cow = NULL;
    struct bdev *d = NULL;
    assert_ok(chunk_cache_new(&c, f->store, 64 << 20, &e));
    assert_ok(bdev_open_map(&d, k.map, c, &e));
    assert_ok(bdev_open_cow(&cow, d, store_tmp_dir(f->store), 0, &e));
    assert_false(lent_equals(cow, &k, 4096, 0)); /* not in memory yet */
    assert_int_equal(chunk_cache_stats(c).loads, 0);
    compare(cow, &k, DISK_SIZE, 0);
    const struct {
        size_t len;
        uint64_t off;
        bool lent;
    } rows[] = {
        {4096, 0, true},
        {1, 12345, true},
        {CHUNK_SIZE_MAX, CHUNK_SIZE_MAX - 4096, true}, /* two chunks and a gap */
        {64 << 10, DISK_SIZE - (64 << 10), true},      /* all gap */
        {DISK_SIZE, 0, false},                         /* too many parts */
        {0, 0, false},
        {4096, DISK_SIZE - 4095, false}, /* beyond the end */
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        print_message("%zu at %llu\n", rows[i].len, (unsigned long long)rows[i].off);
        assert_int_equal(lent_equals(d, &k, rows[i].len, rows[i].off), rows[i].lent);
        assert_int_equal(lent_equals(cow, &k, rows[i].len, rows[i].off), rows[i].lent);
    }
    memset(k.bytes + 8192, 7, 4096);
    assert_int_equal(bdev_write(cow, k.bytes + 8192, 4096, 8192), 0);
    assert_true(lent_equals(cow, &k, 8192, 0));
    assert_false(lent_equals(cow, &k, 16384, 0));
    assert_false(lent_equals(cow, &k, 4096, 8192));
    disk_drop(&k);
}

static void reads_equal_the_map(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct disk k;
    disk_make(&k, f->store);
    /* Nothing stays; one chunk stays; all stays. */
    static const uint64_t capacities[] = {0, 1, BLOCK_SIZE, CHUNK_SIZE_MAX, 64 << 20};
    for (size_t i = 0; i < ARRAY_LEN(capacities); i++) {
        AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
        AUTO_BDEV struct bdev *d = NULL;
        assert_ok(chunk_cache_new(&c, f->store, capacities[i], &e));
        assert_ok(bdev_open_map(&d, k.map, c, &e));
        assert_int_equal(d->size, DISK_SIZE);
        compare(d, &k, DISK_SIZE, 0);
        compare(d, &k, DISK_SIZE - 12345, 777);
        for (uint64_t off = 0; off < DISK_SIZE; off += 99991)
            compare(d, &k, off + 5000 < DISK_SIZE ? 5000 : (size_t)(DISK_SIZE - off), off);
        assert_true(chunk_cache_stats(c).bytes <= capacities[i]);
    }
    disk_drop(&k);
}

static void knows_its_gaps(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct disk k;
    disk_make(&k, f->store);
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    assert_ok(chunk_cache_new(&c, f->store, 0, &e));
    assert_ok(bdev_open_map(&d, k.map, c, &e));
    uint64_t run;
    /* The first chunk is full, so it runs on into the second. */
    assert_int_equal(bdev_content(d, DISK_SIZE, 0, &run), BDEV_DATA);
    assert_int_equal(run, CHUNK_SIZE_MAX + 8 * BLOCK_SIZE);
    assert_int_equal(bdev_content(d, DISK_SIZE - run - 1, run + 1, &run), BDEV_ZEROS);
    assert_int_equal(run, CHUNK_SIZE_MAX - 8 * BLOCK_SIZE - 1);
    assert_int_equal(bdev_content(d, 10, CHUNK_SIZE_MAX, &run), BDEV_DATA);
    assert_int_equal(run, 10);
    assert_int_equal(bdev_content(d, 4096, DISK_SIZE - 4096, &run), BDEV_ZEROS);
    assert_int_equal(run, 4096);
    assert_int_equal(chunk_cache_stats(c).loads, 0);
    disk_drop(&k);
}

static void evicts_the_oldest(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct disk k;
    disk_make(&k, f->store);
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    /* Chunks 1 (8 blocks) and 2 (15) fit, with 3 (22) one has to go. */
    assert_ok(chunk_cache_new(&c, f->store, 40 * BLOCK_SIZE, &e));
    static const size_t order[] = {1, 2, 1, 3, 1, 2};
    static const unsigned loads[] = {1, 2, 2, 3, 3, 4};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        struct cached_chunk *chunk;
        assert_ok(chunk_cache_get(c, &k.chunks[order[i]], &chunk, &e));
        chunk_cache_put(c, chunk);
        assert_int_equal(chunk_cache_stats(c).loads, loads[i]);
    }
    assert_int_equal(chunk_cache_stats(c).evictions, 2);

    /* What is held is not evicted, whatever the capacity. */
    struct cached_chunk *held[CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++)
        assert_ok(chunk_cache_get(c, &k.chunks[i], &held[i], &e));
    for (size_t i = 0; i < CHUNKS; i++) {
        size_t len;
        const uint8_t *bytes = cached_chunk_bytes(held[i], &len);
        assert_memory_equal(bytes, k.bytes + i * CHUNK_SIZE_MAX, len);
        chunk_cache_put(c, held[i]);
    }
    assert_true(chunk_cache_stats(c).bytes <= 40 * BLOCK_SIZE);
    disk_drop(&k);
}

struct reader {
    struct bdev *device;
    const struct disk *disk;
    pthread_barrier_t *start;
};

static void *read_all(void *arg)
{
    const struct reader *r = arg;
    uint8_t *data = mem_zalloc(DISK_SIZE);
    pthread_barrier_wait(r->start);
    bool good = data && bdev_read(r->device, data, DISK_SIZE, 0) == 0 &&
                memcmp(data, r->disk->bytes, DISK_SIZE) == 0;
    free(data);
    return good ? arg : NULL;
}

static void read_by_many(struct fixture *f, const struct disk *k, uint64_t capacity,
                         struct chunk_cache_stats *stats)
{
    enum { READERS = 8 };
    struct err e = ERR_INIT;
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    assert_ok(chunk_cache_new(&c, f->store, capacity, &e));
    assert_ok(bdev_open_map(&d, k->map, c, &e));
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, READERS);
    struct reader r = {d, k, &start};
    pthread_t threads[READERS];
    for (size_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, &r), 0);
    for (size_t i = 0; i < READERS; i++) {
        void *good;
        pthread_join(threads[i], &good);
        assert_non_null(good);
    }
    pthread_barrier_destroy(&start);
    *stats = chunk_cache_stats(c);
}

static void loads_once_for_many_readers(void **state)
{
    struct fixture *f = *state;
    struct disk k;
    disk_make(&k, f->store);
    struct chunk_cache_stats stats;
    read_by_many(f, &k, 64 << 20, &stats);
    assert_int_equal(stats.loads, CHUNKS);
    read_by_many(f, &k, CHUNK_SIZE_MAX, &stats);
    read_by_many(f, &k, 0, &stats);
    assert_int_equal(stats.bytes, 0);
    disk_drop(&k);
}

/* ---- Damage ---- */

static void chunk_path(const struct fixture *f, const struct digest *d, char *path, size_t room)
{
    char hex[DIGEST_TEXT_MAX];
    digest_hex(d, hex);
    snprintf(path, room, "%s/chunks/%.2s/%s", f->path, hex, hex);
}

struct lines {
    const char *wanted;
    int count;
};

static void count_lines(void *ctx, enum log_level level, const char *module, const char *message)
{
    (void)level;
    (void)module;
    struct lines *lines = ctx;
    lines->count += strstr(message, lines->wanted) != NULL;
}

/* A chunk of few stored bytes, each bit of them flipped in turn: never other bytes. */
static void every_flipped_bit_is_eio(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint8_t plain[BLOCK_SIZE], data[BLOCK_SIZE];
    for (size_t i = 0; i < sizeof(plain); i++)
        plain[i] = (uint8_t)(i / 64);
    struct map_extent extent = {.off = 0, .size = BLOCK_SIZE};
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_BUF struct buf whole;
    char path[256];
    buf_init(&whole, CHUNK_SIZE_MAX);
    assert_ok(store_put_chunk(f->store, plain, sizeof(plain), &extent.chunk, &e));
    assert_ok(block_map_new(&m, BLOCK_SIZE, &e));
    assert_ok(block_map_add(m, &extent, &e));
    assert_ok(block_map_finish(m, &e));
    assert_ok(chunk_cache_new(&c, f->store, 0, &e));
    assert_ok(bdev_open_map(&d, m, c, &e));
    chunk_path(f, &extent.chunk, path, sizeof(path));
    assert_ok(file_read(AT_FDCWD, path, &whole, &e));
    for (size_t bit = 0; bit < whole.len * 8; bit++) {
        AUTO_FD int fd = -1;
        whole.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_ok(file_open(&fd, AT_FDCWD, path, O_CREAT | O_TRUNC | O_WRONLY, 0600, &e));
        assert_ok(file_write_full(fd, whole.data, whole.len, &e));
        whole.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        int rc = bdev_read(d, data, sizeof(data), 0);
        /* Some bits of a frame mean nothing: its bytes are then right, or it is refused. */
        if (rc == 0)
            assert_memory_equal(data, plain, sizeof(plain));
        else
            assert_int_equal(rc, -EIO);
    }
}

static void damage_is_eio_until_mended(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct disk k;
    disk_make(&k, f->store);
    char path[256], aside[256], text[DIGEST_TEXT_MAX];
    chunk_path(f, &k.chunks[2], path, sizeof(path));
    snprintf(aside, sizeof(aside), "%s/aside", f->path);
    assert_int_equal(rename(path, aside), 0);

    struct lines lines = {.wanted = digest_print(&k.chunks[2], text)};
    log_set_sink(count_lines, &lines, LOG_DEBUG);
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    assert_ok(chunk_cache_new(&c, f->store, 64 << 20, &e));
    assert_ok(bdev_open_map(&d, k.map, c, &e));
    uint8_t data[BLOCK_SIZE];
    uint64_t off = 2 * CHUNK_SIZE_MAX;
    assert_int_equal(bdev_read(d, data, sizeof(data), off), -EIO); /* missing */

    AUTO_BUF struct buf whole;
    buf_init(&whole, CHUNK_SIZE_MAX * 2);
    assert_ok(file_read(AT_FDCWD, aside, &whole, &e));
    /* A flipped bit; a cut. What stands behind the frame is for fsck to look at. */
    for (size_t at = 0; at < whole.len - whole.len / 5; at += whole.len / 5) {
        AUTO_FD int fd = -1;
        assert_ok(file_open(&fd, AT_FDCWD, path, O_CREAT | O_TRUNC | O_WRONLY, 0600, &e));
        whole.data[at] ^= 4;
        assert_ok(file_write_full(fd, whole.data, whole.len, &e));
        whole.data[at] ^= 4;
        assert_int_equal(bdev_read(d, data, sizeof(data), off), -EIO);
        assert_int_equal(ftruncate(fd, (off_t)at), 0);
        assert_int_equal(bdev_read(d, data, sizeof(data), off), -EIO);
    }
    assert_int_equal(lines.count, 1);
    compare(d, &k, 2 * CHUNK_SIZE_MAX, 0); /* the others are as ever */

    assert_int_equal(rename(aside, path), 0);
    compare(d, &k, DISK_SIZE, 0);
    log_set_sink(NULL, NULL, LOG_ERROR);
    disk_drop(&k);
}

static void chunk_shorter_than_its_map(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint8_t block[BLOCK_SIZE];
    fixture_fill(block, sizeof(block), 1);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    struct map_extent extent = {.size = 2 * BLOCK_SIZE};
    assert_ok(store_put_chunk(f->store, block, sizeof(block), &extent.chunk, &e));
    assert_ok(block_map_new(&m, DISK_SIZE, &e));
    assert_ok(block_map_add(m, &extent, &e));
    assert_ok(block_map_finish(m, &e));
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    assert_ok(chunk_cache_new(&c, f->store, 64 << 20, &e));
    assert_ok(bdev_open_map(&d, m, c, &e));
    uint8_t data[2 * BLOCK_SIZE];
    assert_int_equal(bdev_read(d, data, sizeof(data), 0), -EIO);
    assert_int_equal(bdev_read(d, data, 1, BLOCK_SIZE), -EIO);
    assert_int_equal(bdev_read(d, data, BLOCK_SIZE, 0), 0);
    assert_memory_equal(data, block, BLOCK_SIZE);
}

static void memory_short(void **state)
{
    struct fixture *f = *state;
    struct disk k;
    disk_make(&k, f->store);
    int rc = -1;
    for (unsigned long nth = 1; rc != 0; nth++) {
        struct err e = ERR_INIT;
        AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
        AUTO_BDEV struct bdev *d = NULL;
        uint8_t byte;
        mem_fail_nth(nth);
        rc = chunk_cache_new(&c, f->store, CHUNK_SIZE_MAX, &e);
        if (rc == 0)
            rc = bdev_open_map(&d, k.map, c, &e);
        if (rc < 0)
            assert_int_equal(e.class, ERR_NOMEM);
        if (rc == 0) {
            rc = bdev_read(d, &byte, 1, 2 * CHUNK_SIZE_MAX);
            assert_true(rc == 0 || rc == -ENOMEM);
        }
        mem_fail_nth(0);
        if (rc == -ENOMEM) /* not remembered */
            assert_int_equal(bdev_read(d, &byte, 1, 2 * CHUNK_SIZE_MAX), 0);
    }
    disk_drop(&k);
}

/* What will be read is loaded before it is, up to a limit. */
static void chunks_are_loaded_ahead(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct disk k;
    disk_make(&k, f->store);
    const struct {
        uint64_t limit;
        uint64_t loads;
    } rows[] = {{UINT64_MAX, CHUNKS}, {1, 1}, {0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
        AUTO_BDEV struct bdev *d = NULL;
        struct prefetch *p = NULL;
        assert_ok(chunk_cache_new(&c, f->store, 64 << 20, &e));
        const struct prefetch_options options = {
            .workers = 1, .urgent = CHUNKS, .cache = c, .cache_bytes = rows[i].limit};
        assert_ok(prefetch_start(&p, f->store, k.chunks, CHUNKS, &options, &e));
        assert_int_equal(prefetch_wait(p).failed, 0);
        prefetch_stop(p);
        assert_int_equal(chunk_cache_stats(c).loads, rows[i].loads);
        assert_ok(bdev_open_map(&d, k.map, c, &e));
        compare(d, &k, DISK_SIZE, 0);
        assert_int_equal(chunk_cache_stats(c).loads, CHUNKS);
    }
    disk_drop(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chunks_are_loaded_ahead, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(what_is_in_memory_is_lent, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(reads_equal_the_map, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(knows_its_gaps, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(evicts_the_oldest, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(loads_once_for_many_readers, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_eio, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(damage_is_eio_until_mended, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(chunk_shorter_than_its_map, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(memory_short, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
