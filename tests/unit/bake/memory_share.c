/* SPDX-License-Identifier: MIT */
/* Memory in the store: what it shares, and that it is what it was. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bake/guest/memory_share.h"
#include "base/file.h"
#include "base/mem.h"

enum { BLOCKS = 1024, SIZE = BLOCKS * BLOCK_SIZE };

struct room {
    struct world w;
    struct chunk_cache *cache;
    uint8_t *memory; /* SIZE bytes, zeros at first */
};

static void room_open(struct room *r)
{
    struct err e = ERR_INIT;
    world_open(&r->w);
    assert_ok(chunk_cache_new(&r->cache, r->w.store, 16 << 20, &e));
    r->memory = mem_zalloc(SIZE);
    assert_non_null(r->memory);
}

static void room_close(struct room *r)
{
    free(r->memory);
    chunk_cache_free(r->cache);
    world_close(&r->w);
}

/* Block `at` of `bytes` becomes the one that the seed gives. */
static void fill(uint8_t *bytes, size_t at, uint64_t seed)
{
    uint64_t random = seed;
    for (size_t i = 0; i < BLOCK_SIZE; i += sizeof(random)) {
        uint64_t word = next_number(&random);
        memcpy(bytes + at * BLOCK_SIZE + i, &word, sizeof(word));
    }
}

/* Blocks [at, at + count) get the seeds `seed`, `seed` + 1, ... */
static void fill_run(uint8_t *bytes, size_t at, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        fill(bytes, at + i, seed + i);
}

static int open_file(const uint8_t *bytes)
{
    struct err e = ERR_INIT;
    int fd = memfd_create("memory", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SIZE), 0);
    static const uint8_t zeros[BLOCK_SIZE];
    for (size_t i = 0; i < BLOCKS; i++) { /* zeros stay holes */
        if (memcmp(bytes + i * BLOCK_SIZE, zeros, BLOCK_SIZE) != 0)
            assert_ok(file_pwrite_full(fd, bytes + i * BLOCK_SIZE, BLOCK_SIZE, i * BLOCK_SIZE, &e));
    }
    return fd;
}

/* A map of bytes as they are. */
static struct block_map *store_bytes(struct room *r, const uint8_t *bytes)
{
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    AUTO_FD int fd = open_file(bytes);
    assert_ok(store_put_file(r->w.store, fd, 1, &m, &e));
    return m;
}

/* The memory as a map, which must give it back. */
static struct block_map *put(struct room *r, struct memory_parts parts,
                             struct memory_shares *shares)
{
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    AUTO_FD int fd = open_file(r->memory);
    AUTO_FD int back = memfd_create("back", MFD_CLOEXEC);
    parts.fd = fd;
    parts.cache = r->cache;
    parts.workers = parts.workers ? parts.workers : 2;
    assert_ok(memory_put(&m, r->w.store, &parts, shares, &e));
    AUTO_FREE uint8_t *bytes = mem_zalloc(SIZE);
    assert_ok(store_export_map(r->w.store, m, back, 1, NULL, &e));
    assert_ok(file_pread_full(back, bytes, SIZE, 0, &e));
    assert_memory_equal(bytes, r->memory, SIZE);
    return m;
}

static uint64_t chunks_put(const struct room *r)
{
    return store_stats(r->w.store).chunks_new;
}

/* Each kind of block once; the figures and the number of chunks say what became of it. */
static void what_is_shared(void **state)
{
    (void)state;
    struct room r;
    struct memory_shares s;
    room_open(&r);
    AUTO_FREE uint8_t *boot = mem_zalloc(SIZE);
    AUTO_FREE uint8_t *disk = mem_zalloc(SIZE);
    fill_run(boot, 0, 300, 1000);
    fill_run(disk, 0, 200, 5000);
    AUTO_BLOCK_MAP struct block_map *boot_map = store_bytes(&r, boot);
    AUTO_BLOCK_MAP struct block_map *disk_map = store_bytes(&r, disk);

    memcpy(r.memory, boot, 300 * BLOCK_SIZE);          /* as it was, but: */
    memset(r.memory + 10 * BLOCK_SIZE, 0, BLOCK_SIZE); /* freed */
    fill(r.memory, 20, 77);                            /* new */
    fill_run(r.memory, 400, 8, 1100);                  /* moved */
    memcpy(r.memory + 500 * BLOCK_SIZE, disk + 50 * BLOCK_SIZE, 9 * BLOCK_SIZE); /* of the disk */
    memcpy(r.memory + 600 * BLOCK_SIZE, disk, BLOCK_SIZE);                       /* not worth it */
    fill(r.memory, 700, 77);                                                     /* twice */
    const struct memory_parts parts = {
        .boot = boot_map, .peers = {{.map = boot_map}, {.map = disk_map}}, .peer_count = 2};
    uint64_t before = chunks_put(&r);
    AUTO_BLOCK_MAP struct block_map *m = put(&r, parts, &s);
    assert_int_equal(s.same, 298);
    assert_int_equal(s.peers, 8 + 9);
    assert_int_equal(s.twice, 1);
    assert_int_equal(s.own, 2);
    assert_int_equal(s.extents, block_map_count(m));
    assert_int_equal(chunks_put(&r) - before, 1);

    /* Only extents that were named count: of 512 KiB each, blocks 0 to 127 and 128 to 255. */
    const uint32_t second[] = {1, 99};
    struct memory_parts named = parts;
    named.peers[1] = (struct memory_peer){.map = disk_map, .extents = second, .extent_count = 2};
    block_map_free(put(&r, named, &s));
    assert_int_equal(s.peers, 8);
    assert_int_equal(s.own, 2 + 9);
    room_close(&r);
}

static struct digest name_of(struct room *r, const struct block_map *m)
{
    struct err e = ERR_INIT;
    struct digest d;
    assert_ok(store_put_map(r->w.store, m, &d, &e));
    return d;
}

static void the_same_from_any_number_of_workers(void **state)
{
    (void)state;
    struct room r;
    struct digest first = {0};
    room_open(&r);
    AUTO_FREE uint8_t *boot = mem_zalloc(SIZE);
    fill_run(boot, 0, 500, 1000);
    AUTO_BLOCK_MAP struct block_map *boot_map = store_bytes(&r, boot);
    uint64_t random = 7;
    for (size_t i = 0; i < BLOCKS; i++)
        fill(r.memory, i,
             next_number(&random) % 3 == 0 ? 1000 + i : 1000 + next_number(&random) % 900);
    for (size_t workers = 1; workers <= 4; workers++) {
        const struct memory_parts parts = {
            .boot = boot_map, .peers = {{.map = boot_map}}, .peer_count = 1, .workers = workers};
        AUTO_BLOCK_MAP struct block_map *m = put(&r, parts, NULL);
        struct digest d = name_of(&r, m);
        if (workers == 1)
            first = d;
        assert_true(digest_equal(&d, &first));
    }
    room_close(&r);
}

/* Blocks in between, and another address, leave nearly all chunks as they are. */
static void chunks_begin_where_contents_say(void **state)
{
    (void)state;
    struct room r;
    room_open(&r);
    fill_run(r.memory, 0, 800, 1000);
    block_map_free(put(&r, (struct memory_parts){0}, NULL));
    uint64_t first = chunks_put(&r);
    memmove(r.memory + 110 * BLOCK_SIZE, r.memory + 100 * BLOCK_SIZE, 700 * BLOCK_SIZE);
    fill_run(r.memory, 100, 10, 9000);
    block_map_free(put(&r, (struct memory_parts){0}, NULL));
    assert_in_range(first, 10, 60);
    assert_in_range(chunks_put(&r) - first, 1, 3);
    room_close(&r);
}

/* One block all over the memory and the peer: each is offered to a few, the rest are each other's. */
static void one_block_everywhere(void **state)
{
    (void)state;
    struct room r;
    struct memory_shares s;
    room_open(&r);
    AUTO_FREE uint8_t *disk = mem_zalloc(SIZE);
    for (size_t i = 0; i < BLOCKS; i++)
        fill(disk, i, 5);
    AUTO_BLOCK_MAP struct block_map *disk_map = store_bytes(&r, disk);
    memcpy(r.memory, disk, SIZE);
    const struct memory_parts parts = {.peers = {{.map = disk_map}}, .peer_count = 1};
    block_map_free(put(&r, parts, &s));
    assert_int_equal(s.peers + s.twice + s.own, BLOCKS);
    assert_in_range(s.own, 0, 1);
    block_map_free(put(&r, (struct memory_parts){0}, &s));
    assert_int_equal(s.twice, BLOCKS - 1);
    assert_int_equal(s.own, 1);
    room_close(&r);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct room r;
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    AUTO_BLOCK_MAP struct block_map *small = NULL;
    room_open(&r);
    AUTO_FD int fd = open_file(r.memory);
    assert_ok(block_map_new(&small, SIZE / 2, &e));
    struct memory_parts parts = {.fd = fd, .boot = small, .cache = r.cache, .workers = 1};
    assert_int_equal(memory_put(&m, r.w.store, &parts, NULL, &e), -ERR_CORRUPT);
    err_clear(&e);
    assert_int_equal(ftruncate(fd, SIZE / 2 - 1), 0);
    assert_int_equal(memory_put(&m, r.w.store, &parts, NULL, &e), -ERR_CORRUPT);
    assert_null(m);
    room_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_shared),
        cmocka_unit_test(the_same_from_any_number_of_workers),
        cmocka_unit_test(chunks_begin_where_contents_say),
        cmocka_unit_test(one_block_everywhere),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
