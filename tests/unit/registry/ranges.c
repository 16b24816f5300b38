/* SPDX-License-Identifier: MIT */
/* A blob over several connections: what is asked for, and what a kill leaves. */
#include "world.h"

enum { SEGMENT = 65536, SEGMENTS = (BLOB_SIZE + SEGMENT - 1) / SEGMENT, STATES_MAX = 64 };

struct parts {
    struct world world;
    /* Guards what follows: a request that was given up may still reach the handler later. */
    pthread_mutex_t lock;
    bool keep; /* the states below */
    unsigned requests;
    unsigned ranged;
    uint64_t asked;              /* bytes of all ranges */
    size_t cut_after;            /* of each answer; 0: none is cut */
    unsigned good;               /* answers after which all are errors; 0: none */
    uint8_t *states[STATES_MAX]; /* the file at each request: what a kill would leave */
    size_t sizes[STATES_MAX];
    size_t state_count;
};

static void keep_state(struct parts *s)
{
    struct err e = ERR_INIT;

    if (!s->keep || s->state_count == STATES_MAX)
        return;
    size_t size = (size_t)world_file_size(&s->world);
    s->states[s->state_count] = mem_zalloc(size);
    assert_int_equal(file_pread_full(s->world.fd, s->states[s->state_count], size, 0, &e), 0);
    s->sizes[s->state_count++] = size;
}

static void answer_parts(struct parts *s, const struct fake_request *request,
                         struct fake_reply *reply)
{
    char value[64];
    size_t from = fake_range(request);
    size_t end = fake_range_end(request, BLOB_SIZE);

    keep_state(s);
    s->requests++;
    if (s->good > 0 && s->requests > s->good) {
        reply_text(reply, 500, "{}");
        return;
    }
    reply->status = 200;
    if (fake_header(request, "Range", value, sizeof(value))) {
        s->ranged++;
        s->asked += end - from;
        reply->status = 206;
        fake_add_header(reply, "Content-Range: bytes %zu-%zu/%d", from, end - 1, BLOB_SIZE);
    }
    reply->body = s->world.bytes + from;
    reply->body_len = end - from;
    if (s->cut_after > 0) {
        reply->end = FAKE_CLOSE;
        reply->cut_after = s->cut_after;
    }
}

static void parts_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct parts *s = ctx;

    (void)pthread_mutex_lock(&s->lock);
    answer_parts(s, request, reply);
    (void)pthread_mutex_unlock(&s->lock);
}

static void set_good(struct parts *s, unsigned good)
{
    (void)pthread_mutex_lock(&s->lock);
    s->good = good;
    (void)pthread_mutex_unlock(&s->lock);
}

static void parts_client(struct parts *s)
{
    static const struct registry_tuning quick = {.retry_wait_ms = 1,
                                                 .gate_wait_ms = 5,
                                                 .gate_max_wait_ms = 2000,
                                                 .helper_timeout_ms = 1000,
                                                 .ranges_min = BLOB_SIZE / 2,
                                                 .segment_len = SEGMENT};
    struct world *w = &s->world;
    struct registry_options options = {
        .config_path = "/nonexistent/config.json", .tries = TRIES, .cancel = &w->cancel};
    struct err e = ERR_INIT;

    registry_free(w->client);
    w->client = NULL;
    assert_int_equal(registry_new_tuned(&w->client, &options, &quick, &e), 0);
    (void)pthread_mutex_lock(&s->lock);
    s->requests = s->ranged = 0;
    s->asked = 0;
    (void)pthread_mutex_unlock(&s->lock);
}

static void parts_start(struct parts *s)
{
    *s = (struct parts){.lock = PTHREAD_MUTEX_INITIALIZER};
    world_start(&s->world, parts_handler, s, NULL);
    parts_client(s);
}

static void parts_stop(struct parts *s)
{
    for (size_t i = 0; i < s->state_count; i++)
        free(s->states[i]);
    world_stop(&s->world);
}

static void count_arrived(void *ctx, uint64_t bytes)
{
    *(uint64_t *)ctx += bytes;
}

static void test_in_parts(void **state UNUSED)
{
    struct parts s;
    struct err e = ERR_INIT;
    uint64_t arrived = 0;
    struct registry_progress progress = {count_arrived, &arrived};

    parts_start(&s);
    struct world *w = &s.world;
    assert_int_equal(registry_blob(w->client, &w->ref, &w->blob, w->fd, &progress, &e), 0);
    world_check_file(w);
    assert_int_equal(s.ranged, SEGMENTS);
    assert_int_equal(s.requests, SEGMENTS);
    assert_int_equal(s.asked, BLOB_SIZE);
    assert_int_equal(arrived, BLOB_SIZE);
    assert_int_equal(registry_stats(w->client).blob_bytes, BLOB_SIZE);
    assert_int_equal(w->client->spare_connections, 12);
    parts_stop(&s);
}

/* A prefix of an earlier run is kept; what is small comes over one connection. */
static void test_prefix(void **state UNUSED)
{
    struct parts s;
    struct err e = ERR_INIT;

    parts_start(&s);
    assert_int_equal(file_pwrite_full(s.world.fd, s.world.bytes, CUT, 0, &e), 0);
    assert_int_equal(world_pull(&s.world, &e), 0);
    world_check_file(&s.world);
    assert_int_equal(s.asked, BLOB_SIZE - CUT);
    assert_int_equal(s.ranged, SEGMENTS - CUT / SEGMENT);
    parts_client(&s);
    assert_int_equal(ftruncate(s.world.fd, BLOB_SIZE - CUT), 0);
    assert_int_equal(world_pull(&s.world, &e), 0);
    world_check_file(&s.world);
    assert_int_equal(s.ranged, 1);
    parts_stop(&s);
}

/* Bytes that came before a failure are not asked for again, by this client or the next. */
static void test_resume(void **state UNUSED)
{
    struct parts s;
    struct err e = ERR_INIT;

    parts_start(&s);
    set_good(&s, 3);
    assert_int_equal(world_pull(&s.world, &e), -ERR_NET);
    assert_true(world_file_size(&s.world) > BLOB_SIZE);
    uint64_t came = registry_stats(s.world.client).blob_bytes;
    assert_true(came >= 3 * SEGMENT - SEGMENT);
    parts_client(&s);
    set_good(&s, 0);
    assert_int_equal(world_pull(&s.world, &e), 0);
    world_check_file(&s.world);
    assert_int_equal(registry_stats(s.world.client).blob_bytes, BLOB_SIZE - came);
    parts_stop(&s);
}

/* Whenever the program dies, the next run ends with the right bytes. Part of a segment that had not
 * been noted comes again; nothing that was noted does. */
static void test_kill(void **state UNUSED)
{
    struct parts s;
    struct err e = ERR_INIT;
    size_t with_parts = 0;

    parts_start(&s);
    s.keep = true;
    s.cut_after = SEGMENT / 3 * 2;
    assert_int_equal(world_pull(&s.world, &e), 0);
    size_t count = s.state_count;
    assert_true(count > SEGMENTS);
    for (size_t i = 0; i < count; i++) {
        s.cut_after = 0;
        s.keep = false;
        with_parts += s.sizes[i] > BLOB_SIZE;
        assert_int_equal(ftruncate(s.world.fd, 0), 0);
        assert_int_equal(file_pwrite_full(s.world.fd, s.states[i], s.sizes[i], 0, &e), 0);
        parts_client(&s);
        if (world_pull(&s.world, &e) < 0)
            fail_msg("state %zu: %s", i, e.text);
        world_check_file(&s.world);
    }
    assert_true(with_parts >= count - 1);
    parts_stop(&s);
}

/* A map of parts that is not one, or says what is not so: found out by the digest at the latest. */
static void test_bad_trailers(void **state UNUSED)
{
    static const struct {
        const char *name;
        size_t at; /* of the trailer, where a byte is changed */
        uint8_t byte;
    } rows[] = {
        {"no magic", 0, 'X'},
        {"another size", 8, 1},
        {"another segment length", 18, 9},
        {"no segment length", 18, 0},
        {"another count", 24, 99},
        {"more than a segment", 31, 0xff},
        {"not so", 30, 1},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct parts s;
        struct err e = ERR_INIT;

        parts_start(&s);
        set_good(&s, 2);
        assert_int_equal(world_pull(&s.world, &e), -ERR_NET);
        uint64_t at = BLOB_SIZE + rows[i].at;
        assert_int_equal(file_pwrite_full(s.world.fd, &rows[i].byte, 1, at, &e), 0);
        if (i + 1 == ARRAY_LEN(rows)) /* the first segment is said to be whole, and is not */
            assert_int_equal(file_pwrite_full(s.world.fd, s.world.wrong, SEGMENT, 0, &e), 0);
        set_good(&s, 0);
        parts_client(&s);
        if (world_pull(&s.world, &e) < 0)
            fail_msg("%s: %s", rows[i].name, e.text);
        world_check_file(&s.world);
        parts_stop(&s);
    }
}

/* Each allocation fails once: a clean ERR_NOMEM, or it did not matter. */
static void test_out_of_memory(void **state UNUSED)
{
    for (unsigned nth = 1; nth <= 120; nth++) {
        struct parts s;
        struct err e = ERR_INIT;

        parts_start(&s);
        mem_fail_nth(nth);
        int rc = world_pull(&s.world, &e);
        mem_fail_nth(0);
        if (rc == 0)
            world_check_file(&s.world);
        else if (rc != -ERR_NOMEM)
            fail_msg("allocation %u: %d %s", nth, rc, e.text);
        parts_stop(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_parts),     cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_resume),       cmocka_unit_test(test_kill),
        cmocka_unit_test(test_bad_trailers), cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
