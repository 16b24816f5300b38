/* SPDX-License-Identifier: MIT */
/* A store with a remote source: chunks that are missing or damaged come from there, verified. */
#include "fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum { PLAIN = 5 * BLOCK_SIZE };

/* A source over another store's directory, with faults. */
struct far {
    struct store *store;
    int down;      /* so many calls fail first; -1: all */
    bool wrong;    /* another chunk's bytes */
    bool torn;     /* half of the bytes */
    bool lacks_it; /* not there */
    atomic_size_t calls;
    atomic_bool *gate; /* open once true; NULL: open */
};

static int far_fetch(void *ctx, const struct digest *d, int64_t deadline_ms, struct buf *stored,
                     struct err *e)
{
    struct far *far = ctx;
    far->calls++;
    assert_true(deadline_ms > clock_ms());
    while (far->gate && !*far->gate)
        sched_yield();
    if (far->lacks_it)
        return err_set(e, ERR_NOTFOUND, "not there");
    if (far->down != 0) {
        if (far->down > 0)
            far->down--;
        /* What came before the line broke must not be taken for the beginning of the next try. */
        assert_int_equal(buf_add_text(stored, "half", e), 0);
        return err_set(e, ERR_NET, "connection refused");
    }
    struct digest other;
    uint8_t data[BLOCK_SIZE] = {1};
    if (far->wrong) {
        assert_int_equal(store_put_chunk(far->store, data, sizeof(data), &other, e), 0);
        d = &other;
    }
    char path[CHUNK_PATH_MAX];
    int rc = file_read(store_dir(far->store), store_chunk_path(d, path), stored, e);
    if (rc == 0 && far->torn)
        stored->len /= 2;
    return rc;
}

struct setting {
    struct fixture *here, *there;
    struct far far;
    struct chunk_source source;
    uint8_t plain[PLAIN];
    struct digest chunk; /* of `plain`; only the far store has it */
};

static void begin(struct setting *t, struct fixture *here)
{
    struct err e = ERR_INIT;
    void *there = NULL;
    memset(t, 0, sizeof(*t));
    assert_int_equal(fixture_setup(&there), 0);
    t->here = here;
    t->there = there;
    t->far.store = t->there->store;
    t->source = (struct chunk_source){.fetch = far_fetch, .ctx = &t->far};
    fixture_fill(t->plain, PLAIN, 7);
    assert_ok(store_put_chunk(t->there->store, t->plain, PLAIN, &t->chunk, &e));
    store_set_source(here->store, &t->source);
}

static void end(struct setting *t)
{
    void *there = t->there;
    assert_int_equal(fixture_teardown(&there), 0);
}

static void expect_bytes(struct setting *t)
{
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    size_t len = 0;
    assert_ok(store_get_chunk(t->here->store, &t->chunk, data, &len, &e));
    assert_int_equal(len, PLAIN);
    assert_memory_equal(data, t->plain, PLAIN);
}

/* The error's class and its text, which names the chunk; nothing was kept. */
static void expect_failure(struct setting *t, enum err_class class)
{
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    size_t len;
    char text[DIGEST_TEXT_MAX];
    assert_int_equal(store_get_chunk(t->here->store, &t->chunk, data, &len, &e), -(int)class);
    assert_non_null(strstr(e.text, digest_print(&t->chunk, text)));
    assert_false(store_has_chunk(t->here->store, &t->chunk));
}

static void missing_chunks_are_fetched_once(void **state)
{
    struct setting t;
    begin(&t, *state);
    assert_false(store_has_chunk(t.here->store, &t.chunk));
    expect_bytes(&t);
    assert_true(store_has_chunk(t.here->store, &t.chunk));
    expect_bytes(&t);
    assert_int_equal(t.far.calls, 1);
    end(&t);
}

static void damaged_chunks_are_healed(void **state)
{
    struct setting t;
    begin(&t, *state);
    expect_bytes(&t);
    struct err e = ERR_INIT;
    char path[CHUNK_PATH_MAX];
    uint64_t size;
    store_chunk_path(&t.chunk, path);
    assert_ok(file_size(store_dir(t.here->store), path, &size, &e));
    for (uint64_t bit = 0; bit < size * 8; bit += 8 * 97 + 1) {
        AUTO_FD int fd = -1;
        uint8_t byte;
        assert_ok(file_open(&fd, store_dir(t.here->store), path, O_RDWR, 0, &e));
        assert_ok(file_pread_full(fd, &byte, 1, bit / 8, &e));
        byte ^= (uint8_t)(1 << bit % 8);
        assert_ok(file_pwrite_full(fd, &byte, 1, bit / 8, &e));
        expect_bytes(&t);
    }
    assert_true(t.far.calls > 10);
    end(&t);
}

static void faults_of_the_source(void **state)
{
    static const struct {
        const char *name;
        struct far far;
        enum err_class class;
        size_t calls; /* 0: more than one */
    } rows[] = {
        {"lacks it", {.lacks_it = true}, ERR_NOTFOUND, 1},
        {"another chunk's bytes", {.wrong = true}, ERR_DIGEST, 1},
        {"half of the bytes", {.torn = true}, ERR_CORRUPT, 1},
        {"down", {.down = -1}, ERR_NET, 0},
        {"down for a moment", {.down = 1}, ERR_NONE, 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct setting t;
        begin(&t, *state);
        print_message("%s\n", rows[i].name);
        struct store *far_store = t.far.store;
        t.far = rows[i].far;
        t.far.store = far_store;
        store_set_source_limit(t.here->store, rows[i].far.down < 0 ? 200 : 60 * 1000);
        if (rows[i].class == ERR_NONE)
            expect_bytes(&t);
        else
            expect_failure(&t, rows[i].class);
        if (rows[i].calls > 0)
            assert_int_equal(t.far.calls, rows[i].calls);
        else
            assert_true(t.far.calls > 1);
        /* It is remembered by nobody: the source is well again, and so is the chunk. */
        if (rows[i].class != ERR_NONE) {
            t.far = (struct far){.store = far_store};
            store_set_source_limit(t.here->store, 60 * 1000);
            expect_bytes(&t);
        }
        struct err e = ERR_INIT;
        char path[CHUNK_PATH_MAX];
        assert_ok(file_remove_tree(store_dir(t.here->store), store_chunk_path(&t.chunk, path), &e));
        end(&t);
    }
}

static void what_cannot_be_kept_is_served(void **state)
{
    struct setting t;
    begin(&t, *state);
    struct err e = ERR_INIT;
    char path[CHUNK_PATH_MAX], directory[sizeof("chunks/ab")];
    snprintf(directory, sizeof(directory), "%s", store_chunk_path(&t.chunk, path));
    assert_ok(file_remove_tree(store_dir(t.here->store), directory, &e));
    expect_bytes(&t);
    expect_bytes(&t);
    assert_int_equal(t.far.calls, 2);
    end(&t);
}

/* ---- Several at once ---- */

static void *read_one(void *arg)
{
    struct setting *t = arg;
    expect_bytes(t);
    return NULL;
}

static void many_readers_cause_one_fetch(void **state)
{
    enum { READERS = 8 };
    struct setting t;
    begin(&t, *state);
    atomic_bool gate = false;
    t.far.gate = &gate;
    pthread_t readers[READERS];
    for (size_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_one, &t), 0);
    while (t.far.calls == 0 || store_fetches(t.here->store)->readers < READERS)
        sched_yield();
    gate = true;
    for (size_t i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    assert_int_equal(t.far.calls, 1);
    end(&t);
}

/* A disk of several chunks, of which some are read: the trace has these, in order; prefetched
 * elsewhere, reading them again fetches nothing more. */
static void a_trace_is_prefetched(void **state)
{
    enum { CHUNKS = 20 };
    static const uint8_t order[] = {7, 3, 11, 3, 0, 7};
    static const uint8_t distinct[] = {7, 3, 11, 0};
    struct err e = ERR_INIT;
    struct setting t;
    begin(&t, *state);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(block_map_new(&m, CHUNKS * PLAIN, &e));
    for (size_t i = 0; i < CHUNKS; i++) {
        struct map_extent extent = {.off = i * PLAIN, .size = PLAIN};
        fixture_fill(t.plain, PLAIN, 100 + i);
        assert_ok(store_put_chunk(t.there->store, t.plain, PLAIN, &extent.chunk, &e));
        assert_ok(block_map_add(m, &extent, &e));
    }
    assert_ok(block_map_finish(m, &e));
    AUTO_CHUNK_CACHE struct chunk_cache *there = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_FREE uint32_t *trace = NULL;
    size_t count = 0;
    uint8_t byte;
    assert_ok(chunk_cache_new(&there, t.there->store, 1 << 20, &e));
    assert_ok(bdev_open_map(&d, m, there, &e));
    for (size_t i = 0; i < sizeof(order); i++)
        assert_int_equal(bdev_read(d, &byte, 1, (uint64_t)order[i] * PLAIN + 17), 0);
    assert_ok(bdev_map_trace(d, &trace, &count, &e));
    assert_int_equal(count, sizeof(distinct));
    struct digest chunks[sizeof(distinct)];
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(trace[i], distinct[i]);
        chunks[i] = block_map_extent(m, trace[i])->chunk;
    }

    const struct prefetch_options options = {.workers = 3, .urgent = 2};
    struct prefetch *p = NULL;
    assert_ok(prefetch_start(&p, t.here->store, chunks, count, &options, &e));
    struct prefetch_stats stats = prefetch_wait(p);
    prefetch_stop(p);
    assert_int_equal(stats.fetched, sizeof(distinct));
    assert_int_equal(stats.failed, 0);
    assert_int_equal(t.far.calls, sizeof(distinct));
    AUTO_CHUNK_CACHE struct chunk_cache *here = NULL;
    AUTO_BDEV struct bdev *same = NULL;
    assert_ok(chunk_cache_new(&here, t.here->store, 1 << 20, &e));
    assert_ok(bdev_open_map(&same, m, here, &e));
    for (size_t i = 0; i < sizeof(order); i++)
        assert_int_equal(bdev_read(same, &byte, 1, (uint64_t)order[i] * PLAIN + 17), 0);
    assert_int_equal(t.far.calls, sizeof(distinct));

    t.far.lacks_it = true;
    assert_ok(prefetch_start(&p, t.here->store, &block_map_extent(m, 1)->chunk, 1, &options, &e));
    stats = prefetch_wait(p);
    prefetch_stop(p);
    assert_int_equal(stats.failed, 1);
    end(&t);
}

/* What is urgent is left to its reader, the rest is tried until the source is back; wrong bytes are asked
 * for once. */
static void prefetches_that_fail(void **state)
{
    static const struct {
        const char *name;
        struct far far;
        size_t urgent, calls, fetched;
    } rows[] = {
        {"urgent, down for a moment", {.down = 1}, 1, 1, 0},
        {"down for a moment", {.down = 1}, 0, 2, 1},
        {"wrong bytes", {.wrong = true}, 0, 1, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct setting t;
        char path[CHUNK_PATH_MAX];
        print_message("%s\n", rows[i].name);
        begin(&t, *state);
        struct store *far_store = t.far.store;
        t.far = rows[i].far;
        t.far.store = far_store;
        struct prefetch *p = NULL;
        const struct prefetch_options options = {.workers = 1, .urgent = rows[i].urgent};
        assert_ok(prefetch_start(&p, t.here->store, &t.chunk, 1, &options, &e));
        struct prefetch_stats stats = prefetch_wait(p);
        prefetch_stop(p);
        assert_int_equal(stats.fetched, rows[i].fetched);
        assert_int_equal(stats.failed, 1 - rows[i].fetched);
        assert_int_equal(t.far.calls, rows[i].calls);
        assert_ok(file_remove_tree(store_dir(t.here->store), store_chunk_path(&t.chunk, path), &e));
        end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(missing_chunks_are_fetched_once, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(damaged_chunks_are_healed, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(faults_of_the_source, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(many_readers_cause_one_fetch, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(a_trace_is_prefetched, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(prefetches_that_fail, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_kept_is_served, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
