/* SPDX-License-Identifier: MIT */
/* Chunks in and out, damage, left-overs of dead processes, format versions, whole files. */
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* In place of libc's: what is synced, and when, is what some tests look at. */
static struct {
    unsigned calls;
    bool fails;
    void (*during)(struct fixture *f); /* runs once, within the next call */
    struct fixture *fixture;
} syncs;

int syncfs(int fd)
{
    (void)fd;
    syncs.calls++;
    void (*during)(struct fixture *) = syncs.during;
    syncs.during = NULL;
    if (during)
        during(syncs.fixture);
    errno = EIO;
    return syncs.fails ? -1 : 0;
}

static void chunk_path(const struct digest *d, char path[128])
{
    char hex[DIGEST_TEXT_MAX];
    digest_hex(d, hex);
    snprintf(path, 128, "chunks/%.2s/%s", hex, hex);
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    static const size_t sizes[] = {BLOCK_SIZE, 2 * BLOCK_SIZE, CHUNK_SIZE_MAX};
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    AUTO_FREE uint8_t *back = mem_zalloc(CHUNK_SIZE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct digest d, again, plain;
        size_t len = 0;
        uint64_t stored = 0;
        fixture_fill(data, sizes[i], i);
        assert_ok(store_put_chunk(f->store, data, sizes[i], &d, &e));
        assert_ok(store_put_chunk(f->store, data, sizes[i], &again, &e));
        digest_bytes(&plain, data, sizes[i]);
        assert_true(digest_equal(&d, &plain) && digest_equal(&d, &again));
        assert_ok(store_get_chunk(f->store, &d, back, &len, &e));
        assert_int_equal(len, sizes[i]);
        assert_memory_equal(back, data, len);
        assert_ok(store_chunk_stored_size(f->store, &d, &stored, &e));
        assert_true(stored > 0 && store_has_chunk(f->store, &d));
    }
    struct store_stats stats = store_stats(f->store);
    assert_int_equal(stats.chunks_put, 6);
    assert_int_equal(stats.chunks_new, 3);
    assert_true(stats.chunk_bytes_new > CHUNK_SIZE_MAX);
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct digest d = {.algorithm = DIGEST_SHA256};
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX + BLOCK_SIZE);
    size_t len;
    uint64_t stored;
    assert_class(store_put_chunk(f->store, data, 0, &d, &e), ERR_INPUT);
    assert_class(store_put_chunk(f->store, data, 100, &d, &e), ERR_INPUT);
    assert_class(store_put_chunk(f->store, data, CHUNK_SIZE_MAX + BLOCK_SIZE, &d, &e), ERR_INPUT);
    assert_class(store_get_chunk(f->store, &d, data, &len, &e), ERR_NOTFOUND);
    assert_class(store_chunk_stored_size(f->store, &d, &stored, &e), ERR_NOTFOUND);
}

/* What stands in a chunk's place, and the class that reading it gives. */
static void test_damage(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    enum damage { FLIP, CUT, EMPTY, OTHER, JUNK, DIRECTORY };
    static const struct {
        enum damage damage;
        enum err_class class;
    } cases[] = {
        {FLIP, ERR_DIGEST},  {CUT, ERR_CORRUPT},  {EMPTY, ERR_CORRUPT},
        {OTHER, ERR_DIGEST}, {JUNK, ERR_CORRUPT}, {DIRECTORY, ERR_CORRUPT},
    };
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    struct digest other;
    char other_path[128];
    fixture_fill(data, BLOCK_SIZE, 99);
    assert_ok(store_put_chunk(f->store, data, BLOCK_SIZE, &other, &e));
    chunk_path(&other, other_path);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct digest d;
        char path[128];
        size_t len;
        fixture_fill(data, 2 * BLOCK_SIZE, i);
        assert_ok(store_put_chunk(f->store, data, 2 * BLOCK_SIZE, &d, &e));
        chunk_path(&d, path);
        int dir = store_dir(f->store), fd = openat(dir, path, O_RDWR | O_CLOEXEC);
        uint8_t byte;
        assert_true(fd >= 0);
        switch (cases[i].damage) {
        case FLIP:
            assert_int_equal(pread(fd, &byte, 1, 5000), 1);
            byte ^= 1;
            assert_int_equal(pwrite(fd, &byte, 1, 5000), 1);
            break;
        case CUT:
            assert_int_equal(ftruncate(fd, 5000), 0);
            break;
        case EMPTY:
            assert_int_equal(ftruncate(fd, 0), 0);
            break;
        case OTHER:
            assert_int_equal(unlinkat(dir, path, 0), 0);
            assert_int_equal(linkat(dir, other_path, dir, path, 0), 0);
            break;
        case JUNK:
            memset(data, 'x', BLOCK_SIZE);
            assert_int_equal(pwrite(fd, data, BLOCK_SIZE, 0), BLOCK_SIZE);
            break;
        case DIRECTORY:
            assert_int_equal(unlinkat(dir, path, 0), 0);
            assert_int_equal(mkdirat(dir, path, 0700), 0);
            break;
        }
        close(fd);
        assert_class(store_get_chunk(f->store, &d, data, &len, &e), cases[i].class);
        assert_false(store_has_chunk(f->store, &d)); /* so that putting it again repairs it */
        if (cases[i].damage == DIRECTORY)
            continue;
        fixture_fill(data, 2 * BLOCK_SIZE, i);
        assert_ok(store_put_chunk(f->store, data, 2 * BLOCK_SIZE, &d, &e));
        assert_ok(store_get_chunk(f->store, &d, data, &len, &e));
    }
}

/* Putting what is there already looks at it only when told to. */
static void test_distrust(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint8_t data[BLOCK_SIZE] = {2};
    AUTO_FREE uint8_t *back = mem_zalloc(CHUNK_SIZE_MAX);
    struct digest d;
    char path[128];
    size_t len;
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &d, &e));
    chunk_path(&d, path);
    AUTO_FD int fd = openat(store_dir(f->store), path, O_RDWR | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, 10), 0);
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &d, &e));
    assert_ok(store_check_chunk(f->store, &d, &e));
    store_distrust(f->store);
    assert_class(store_check_chunk(f->store, &d, &e), ERR_CORRUPT);
    assert_class(store_check_chunk(f->store, &d, &e), ERR_NOTFOUND);
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &d, &e));
    assert_ok(store_check_chunk(f->store, &d, &e));
    assert_ok(store_get_chunk(f->store, &d, back, &len, &e));
}

/* A chunk without bytes counts as missing, so putting it again repairs it. */
static void test_empty_is_replaced(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint8_t data[BLOCK_SIZE] = {1};
    AUTO_FREE uint8_t *back = mem_zalloc(CHUNK_SIZE_MAX);
    struct digest d;
    char path[128];
    size_t len;
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &d, &e));
    chunk_path(&d, path);
    int fd = openat(store_dir(f->store), path, O_RDWR | O_TRUNC | O_CLOEXEC);
    close(fd);
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &d, &e));
    assert_ok(store_get_chunk(f->store, &d, back, &len, &e));
}

static size_t tmp_count(struct fixture *f)
{
    struct stat st;
    assert_int_equal(fstatat(store_dir(f->store), "tmp", &st, 0), 0);
    return st.st_nlink - 2;
}

/* Kills a child that has the store open and a temporary and a chunk in it; `torn` makes it look
 * as if the machine had died as well and had left the chunk damaged. */
static struct digest die_in_store(struct fixture *f, bool torn)
{
    struct err e = ERR_INIT;
    uint8_t data[2 * BLOCK_SIZE];
    fixture_fill(data, sizeof(data), torn);
    struct digest d;
    pid_t pid = fork();
    if (pid == 0) {
        struct store *s;
        struct file_tmp t;
        if (store_open(&s, f->path, &e) < 0 || file_tmp_open(&t, store_tmp_dir(s), &e) < 0 ||
            store_put_chunk(s, data, sizeof(data), &d, &e) < 0)
            _exit(1);
        char path[128];
        chunk_path(&d, path);
        if (torn) {
            int fd = openat(store_dir(s), path, O_RDWR | O_CLOEXEC);
            int boot = openat(store_tmp_dir(s), "boot", O_RDWR | O_CLOEXEC);
            if (ftruncate(fd, 100) < 0 || pwrite(boot, "other", 5, 0) != 5)
                _exit(1);
        }
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    digest_bytes(&d, data, sizeof(data));
    return d;
}

static void test_dead_processes(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    assert_int_equal(tmp_count(f), 1);
    struct digest whole = die_in_store(f, false);
    assert_int_equal(tmp_count(f), 2);
    struct digest torn = die_in_store(f, true);
    assert_int_equal(tmp_count(f), 2); /* the second child removed what the first left */
    assert_true(store_has_chunk(f->store, &torn));

    struct store *second;
    assert_ok(store_open(&second, f->path, &e));
    assert_int_equal(tmp_count(f), 2); /* ours lives, though it has the same process id */
    assert_true(store_has_chunk(second, &whole));
    assert_false(store_has_chunk(second, &torn));
    store_close(second);
    assert_int_equal(tmp_count(f), 1);
}

/* A map of one block's chunk, which is offered to the store. */
static struct block_map *offer_map(struct fixture *f, uint8_t byte)
{
    struct err e = ERR_INIT;
    uint8_t data[BLOCK_SIZE] = {byte};
    struct map_extent x = {.off = 0, .size = BLOCK_SIZE};
    struct block_map *m = NULL;
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &x.chunk, &e));
    assert_ok(block_map_new(&m, BLOCK_SIZE, &e));
    assert_ok(block_map_add(m, &x, &e));
    assert_ok(block_map_finish(m, &e));
    return m;
}

/* Offers a chunk and stores a map of it; how often that synced. */
static unsigned put_map(struct fixture *f, uint8_t byte)
{
    struct err e = ERR_INIT;
    struct digest d;
    unsigned before = syncs.calls;
    AUTO_BLOCK_MAP struct block_map *m = offer_map(f, byte);
    assert_ok(store_put_map(f->store, m, &d, &e));
    return syncs.calls - before;
}

static struct block_map *other_map;

/* Another thread's map, stored while a sync that does not cover its chunk for sure is under way. */
static void put_other_map(struct fixture *f)
{
    struct err e = ERR_INIT;
    struct digest d;
    unsigned before = syncs.calls;
    assert_ok(store_put_map(f->store, other_map, &d, &e));
    assert_int_equal(syncs.calls, before + 1);
}

static void test_maps_follow_their_chunks(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct digest d;
    AUTO_BLOCK_MAP struct block_map *m = offer_map(f, 1);
    syncs.fails = true;
    assert_class(store_put_map(f->store, m, &d, &e), ERR_SYS);
    syncs.fails = false;
    unsigned before = syncs.calls;
    assert_ok(store_put_map(f->store, m, &d, &e));
    assert_int_equal(syncs.calls, before + 1);
    assert_ok(store_put_map(f->store, m, &d, &e)); /* nothing was offered since */
    assert_int_equal(syncs.calls, before + 1);
    assert_int_equal(put_map(f, 1), 1); /* a chunk that is there may be another process's */

    other_map = offer_map(f, 2);
    syncs.fixture = f;
    syncs.during = put_other_map;
    assert_int_equal(put_map(f, 3), 2);
    assert_null(syncs.during);
    block_map_free(MOVE(other_map));
}

/* A process's directory says where to look after a power cut: it stays until that is not needed. */
static void test_syncs_before_it_forgets(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct store *s;
    struct digest d;
    uint8_t data[BLOCK_SIZE] = {1};
    unsigned before = syncs.calls;
    assert_ok(store_open(&s, f->path, &e));
    store_close(s);
    assert_int_equal(syncs.calls, before); /* it wrote nothing */
    assert_ok(store_open(&s, f->path, &e));
    assert_ok(store_put_chunk(s, data, sizeof(data), &d, &e));
    syncs.fails = true;
    store_close(s);
    assert_int_equal(tmp_count(f), 2);
    assert_class(store_open(&s, f->path, &e), ERR_SYS);
    assert_int_equal(tmp_count(f), 2);
    syncs.fails = false;
    before = syncs.calls;
    assert_ok(store_open(&s, f->path, &e));
    assert_int_equal(syncs.calls, before + 1);
    assert_int_equal(tmp_count(f), 2); /* its own instead */
    assert_ok(store_put_chunk(s, data, sizeof(data), &d, &e));
    store_close(s);
    assert_int_equal(syncs.calls, before + 2);
    assert_int_equal(tmp_count(f), 1);
}

static void test_format(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    static const struct {
        const char *text;
        enum err_class class;
    } cases[] = {{"tb2-bake store 2\n", ERR_UNSUPPORTED}, {"", ERR_CORRUPT}, {"x", ERR_CORRUPT}};
    struct store *s;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_ok(file_put(store_tmp_dir(f->store), store_dir(f->store), "format", cases[i].text,
                           strlen(cases[i].text), &e));
        assert_class(store_open(&s, f->path, &e), cases[i].class);
    }
    assert_int_equal(unlinkat(store_dir(f->store), "format", 0), 0);
    assert_ok(store_open(&s, f->path, &e)); /* an interrupted first opening */
    store_close(s);
    assert_int_equal(unlinkat(store_dir(f->store), "format", 0), 0);
    assert_int_equal(mkdirat(store_dir(f->store), "photos", 0700), 0);
    assert_class(store_open(&s, f->path, &e), ERR_INPUT);
    assert_false(file_exists(store_dir(f->store), "format"));
}

/* A file goes in and comes out the same, with one worker as with four. */
static void test_files(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    enum { SIZE = 5 * CHUNK_SIZE_MAX + 3 * BLOCK_SIZE + 77 };
    AUTO_FREE uint8_t *data = mem_zalloc(SIZE);
    AUTO_FREE uint8_t *back = mem_zalloc(SIZE);
    fixture_fill(data, 3 * CHUNK_SIZE_MAX, 7);
    memset(data + BLOCK_SIZE, 0, BLOCK_SIZE);         /* a hole within a piece */
    memset(data + CHUNK_SIZE_MAX, 0, CHUNK_SIZE_MAX); /* a piece of zeros */
    fixture_fill(data + SIZE - 5000, 5000, 8);
    AUTO_FD int fd = fixture_file(f);
    assert_ok(file_pwrite_full(fd, data, SIZE, 0, &e));
    struct digest digests[2];
    for (size_t i = 0; i < 2; i++) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        assert_ok(store_put_file(f->store, fd, i == 0 ? 1 : 4, &m, &e));
        assert_ok(store_put_map(f->store, m, &digests[i], &e));
        assert_int_equal(block_map_virtual_size(m), SIZE - 77 + BLOCK_SIZE);
        uint64_t mapped = 0;
        for (size_t k = 0; k < block_map_count(m); k++)
            mapped += block_map_extent(m, k)->size;
        assert_int_equal(mapped, 2 * CHUNK_SIZE_MAX - BLOCK_SIZE + 3 * BLOCK_SIZE);
        AUTO_FD int out = fixture_file(f);
        assert_ok(store_export_map(f->store, m, out, i == 0 ? 1 : 4, NULL, &e));
        assert_ok(file_pread_full(out, back, SIZE, 0, &e));
        assert_memory_equal(back, data, SIZE);
    }
    assert_true(digest_equal(&digests[0], &digests[1]));
}

static void test_export_damaged(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint8_t data[BLOCK_SIZE] = {1};
    struct map_extent x = {.off = 0, .size = 2 * BLOCK_SIZE};
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_FD int fd = fixture_file(f);
    assert_ok(store_put_chunk(f->store, data, sizeof(data), &x.chunk, &e));
    assert_ok(block_map_new(&m, 2 * BLOCK_SIZE, &e));
    assert_ok(block_map_add(m, &x, &e));
    assert_ok(block_map_finish(m, &e));
    assert_class(store_export_map(f->store, m, fd, 2, NULL, &e), ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
        CASE(test_round_trip),
        CASE(test_refused),
        CASE(test_damage),
        CASE(test_distrust),
        CASE(test_empty_is_replaced),
        CASE(test_dead_processes),
        CASE(test_maps_follow_their_chunks),
        CASE(test_syncs_before_it_forgets),
        CASE(test_format),
        CASE(test_files),
        CASE(test_export_damaged),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
