/* SPDX-License-Identifier: MIT */
/* Tokens: reply shapes, tokens that die during a pull, refusals, identity tokens; and rate
 * limits. */
#include "world.h"

/* ---- A registry that wants tokens ------------------------------------------------------- */

struct tokens {
    struct world *world;
    const char *reply;     /* of the token server; NULL: the current token */
    const char *wanted;    /* Authorization of a pull; NULL: the current token */
    unsigned uses;         /* that a token is good for; 0: for ever */
    bool deny;             /* no token is ever good */
    unsigned limit_tokens; /* token requests that get a 429 first */

    unsigned generation;
    unsigned left;
    bool cut; /* the first blob has been cut */
    unsigned token_requests;
    unsigned pulls;
    char token_method[8];
    char token_authorization[256];
    char token_path[512];
    char token_body[512];
    char text[128];
};

static void reply_token(struct tokens *s, const struct fake_request *request,
                        struct fake_reply *reply)
{
    s->token_requests++;
    if (s->limit_tokens > 0) {
        s->limit_tokens--;
        reply_text(reply, 429, "");
        fake_add_header(reply, "Retry-After: 0");
        return;
    }
    s->generation++;
    s->left = s->uses;
    snprintf(s->token_method, sizeof(s->token_method), "%s", request->method);
    snprintf(s->token_path, sizeof(s->token_path), "%s", request->path);
    snprintf(s->token_body, sizeof(s->token_body), "%s", request->body);
    if (!fake_header(request, "Authorization", s->token_authorization,
                     sizeof(s->token_authorization)))
        s->token_authorization[0] = '\0';
    snprintf(s->text, sizeof(s->text), "{\"token\":\"t%u\",\"expires_in\":300}", s->generation);
    reply_text(reply, 200, s->reply ? s->reply : s->text);
}

static bool is_authorized(struct tokens *s, const struct fake_request *request)
{
    char value[256];
    char current[32];

    snprintf(current, sizeof(current), "Bearer t%u", s->generation);
    if (s->deny || !fake_header(request, "Authorization", value, sizeof(value)) ||
        strcmp(value, s->wanted ? s->wanted : current) != 0)
        return false;
    if (s->uses == 0)
        return true;
    if (s->left == 0)
        return false;
    s->left--;
    return true;
}

static void token_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct tokens *s = ctx;

    if (strncmp(request->path, "/token", strlen("/token")) == 0) {
        reply_token(s, request, reply);
        return;
    }
    s->pulls++;
    if (!is_authorized(s, request)) {
        reply_text(reply, 401, "{\"errors\":[{\"code\":\"UNAUTHORIZED\"}]}");
        fake_add_header(reply,
                        "WWW-Authenticate: Bearer realm=\"http://%s/token?x=1\",service=\"a b\","
                        "scope=\"repository:team/app:pull\",error=\"invalid_token\"",
                        s->world->host);
        return;
    }
    reply_blob(reply, request, s->world->bytes);
    if (!s->cut) {
        s->cut = true;
        reply->end = FAKE_RESET;
        reply->cut_after = CUT;
    }
}

static void test_reply_shapes(void **state UNUSED)
{
    static const struct {
        const char *reply;
        const char *wanted;
        int rc;
    } cases[] = {
        {"{\"token\":\"a\"}", "Bearer a", 0},
        {"{\"access_token\":\"b\"}", "Bearer b", 0},
        {"{\"token\":\"a\",\"access_token\":\"b\"}", "Bearer a", 0},
        {"{\"token\":\"\",\"access_token\":\"b\"}", "Bearer b", 0},
        {"{\"token\":\"a\",\"expires_in\":300,\"issued_at\":\"2001-01-01T00:00:00Z\","
         "\"refresh_token\":\"r\"}",
         "Bearer a", 0},
        {"{\"token\":\"a\",\"expires_in\":null}", "Bearer a", 0},
        {"{\"token\":\"a\",\"expires_in\":0}", "Bearer a", 0},
        {"{\"token\":\"a\",\"expires_in\":\"3600\"}", "Bearer a", 0},
        {"{\"token\":\"a\",\"expires_in\":299.5}", "Bearer a", 0},
        {"{}", "", -ERR_CORRUPT},
        {"{\"token\":7}", "", -ERR_CORRUPT},
        {"{\"token\":\"a\\r\\nX-Evil: 1\"}", "", -ERR_CORRUPT},
        {"hunter2", "", -ERR_CORRUPT},
        {"", "", -ERR_CORRUPT},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct tokens s = {
            .world = &w, .reply = cases[i].reply, .wanted = cases[i].wanted, .cut = true};
        struct err e = ERR_INIT;

        world_start(&w, token_handler, &s, NULL);
        int rc = world_pull(&w, &e);
        if (rc != cases[i].rc)
            fail_msg("%s: %d %s", cases[i].reply, rc, e.text);
        assert_int_equal(s.token_requests, 1);
        assert_int_equal(s.pulls, rc == 0 ? 2 : 1);
        assert_string_equal(s.token_path,
                            "/token?x=1&service=a%20b&scope=repository%3Ateam%2Fapp%3Apull");
        assert_null(strstr(e.text, "hunter2"));
        /* once more: no new token, no 401 */
        if (rc == 0) {
            assert_int_equal(ftruncate(w.fd, 0), 0);
            assert_int_equal(world_pull(&w, &e), 0);
            assert_int_equal(s.token_requests, 1);
            assert_int_equal(s.pulls, 3);
        }
        world_stop(&w);
    }
}

static void *pull_thread(void *ctx)
{
    struct world *w = ctx;
    struct world mine = *w;
    static _Thread_local struct err e;
    struct stat status;

    err_clear(&e);
    mine.fd = memfd_create("blob", MFD_CLOEXEC);
    int rc = world_pull(&mine, &e);
    if (rc < 0)
        fprintf(stderr, "%s\n", e.text);
    if (rc == 0 && (fstat(mine.fd, &status) < 0 || status.st_size != BLOB_SIZE))
        rc = -ERR_CORRUPT;
    close(mine.fd);
    return rc == 0 ? ctx : NULL;
}

/* Eight threads, tokens that die after a few requests, one blob cut in the middle. */
static void test_token_dies(void **state UNUSED)
{
    enum { THREADS = 8 };
    struct world w;
    struct tokens s = {.world = &w, .uses = 4};
    pthread_t threads[THREADS];
    void *result;

    world_start(&w, token_handler, &s, NULL);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pull_thread, &w), 0);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
    }
    /* nine answers with bytes, four to a token */
    assert_int_equal(s.token_requests, 3);
    /* the cut blob went on where it was cut */
    assert_int_equal(registry_stats(w.client).blob_bytes, (uint64_t)THREADS * BLOB_SIZE);
    world_stop(&w);
}

/* One thread: each token serves twice, then is renewed once. */
static void test_token_renewed(void **state UNUSED)
{
    struct world w;
    struct tokens s = {.world = &w, .uses = 2, .cut = true};
    struct err e = ERR_INIT;

    world_start(&w, token_handler, &s, NULL);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(ftruncate(w.fd, 0), 0);
        assert_int_equal(world_pull(&w, &e), 0);
    }
    assert_int_equal(s.token_requests, 3);
    world_stop(&w);
}

static void test_denied(void **state UNUSED)
{
    struct world w;
    struct tokens s = {.world = &w, .deny = true};
    struct err e = ERR_INIT;

    world_start(&w, token_handler, &s, NULL);
    assert_int_equal(world_pull(&w, &e), -ERR_DENIED);
    assert_int_equal(s.token_requests, 1);
    assert_int_equal(s.pulls, 2);
    assert_non_null(strstr(e.hint, "docker login"));
    world_stop(&w);
}

static void test_token_server_limits(void **state UNUSED)
{
    struct world w;
    struct tokens s = {.world = &w, .limit_tokens = 2, .cut = true};
    struct err e = ERR_INIT;

    world_start(&w, token_handler, &s, NULL);
    if (world_pull(&w, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(s.token_requests, 3);
    world_stop(&w);
}

/* With a login: Basic at the token server, or the identity token in a form. */
static void test_login(void **state UNUSED)
{
    static const struct {
        const char *entry;
        const char *method;
        const char *authorization;
        const char *body; /* part of it */
    } cases[] = {
        {"\"username\":\"me\",\"password\":\"p:w\"", "GET", "Basic bWU6cDp3", ""},
        {"\"identitytoken\":\"id&tok\"", "POST", "", "refresh_token=id%26tok"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[] = "/tmp/tb2-token-XXXXXX";
        struct world w;
        struct tokens s = {.world = &w, .cut = true};
        struct err e = ERR_INIT;
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        world_start(&w, token_handler, &s, path);
        AUTO_FREE char *text = mem_printf("{\"auths\":{\"%s\":{%s}}}", w.host, cases[i].entry);
        assert_int_equal(file_write_full(fd, text, strlen(text), &e), 0);
        if (world_pull(&w, &e) < 0)
            fail_msg("%s", e.text);
        assert_string_equal(s.token_method, cases[i].method);
        assert_string_equal(s.token_authorization, cases[i].authorization);
        assert_non_null(strstr(s.token_body, cases[i].body));
        close(fd);
        unlink(path);
        world_stop(&w);
    }
}

/* ---- Rate limits ------------------------------------------------------------------------ */

struct limits {
    struct world *world;
    unsigned free;    /* requests that pass at first */
    unsigned limited; /* 429s after that */
    const char *retry_after;
    unsigned requests;
};

static void limit_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct limits *s = ctx;

    if (++s->requests > s->free && s->limited > 0) {
        s->limited--;
        reply_text(reply, 429, "{\"errors\":[{\"code\":\"TOOMANYREQUESTS\"}]}");
        if (s->retry_after)
            fake_add_header(reply, "Retry-After: %s", s->retry_after);
        return;
    }
    reply_blob(reply, request, s->world->bytes);
}

static void test_rate_limit(void **state UNUSED)
{
    static const struct {
        unsigned limited;
        const char *retry_after;
        int rc;
        unsigned requests;
    } cases[] = {
        {2, NULL, 0, 3},
        {2, "0", 0, 3},
        {1, "1", 0, 2},
        {1000, NULL, -ERR_RATE, TRIES},
        {1000, "0", -ERR_RATE, TRIES},
        {1, "3600", -ERR_RATE, 1},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct limits s = {
            .world = &w, .limited = cases[i].limited, .retry_after = cases[i].retry_after};
        struct err e = ERR_INIT;

        world_start(&w, limit_handler, &s, NULL);
        int64_t start = clock_ms();
        int rc = world_pull(&w, &e);
        if (rc != cases[i].rc || s.requests != cases[i].requests)
            fail_msg("case %zu: %d, %u requests, %s", i, rc, s.requests, e.text);
        if (cases[i].retry_after && strcmp(cases[i].retry_after, "1") == 0)
            assert_true(clock_ms() - start >= 1000);
        if (rc < 0) {
            assert_non_null(strstr(e.text, "rate limit"));
            assert_true(strlen(e.hint) > 0);
        }
        world_stop(&w);
    }
}

/* A limited host stops nobody who talks to another one. */
static void test_other_host(void **state UNUSED)
{
    struct world w;
    struct world other;
    struct limits s = {.world = &w, .limited = 1, .retry_after = "3600"};
    struct limits t = {.world = &other};
    struct err e = ERR_INIT;

    world_start(&w, limit_handler, &s, NULL);
    world_start(&other, limit_handler, &t, NULL);
    assert_int_equal(world_pull(&w, &e), -ERR_RATE);
    assert_int_equal(world_pull(&w, &e), -ERR_RATE); /* without a request */
    assert_int_equal(s.requests, 1);
    assert_int_equal(registry_blob(w.client, &other.ref, &other.blob, other.fd, NULL, &e), 0);
    world_check_file(&other);
    world_stop(&other);
    world_stop(&w);
}

/* The gate by itself: one probe at a time, late 429s of old requests count once. */
static void test_gate(void **state UNUSED)
{
    struct gate_options options = {.first_wait_ms = 1, .max_wait_ms = 1000, .tries = 3};
    struct gates *gates = NULL;
    struct gate_pass a;
    struct gate_pass b;
    struct gate_pass probe;
    struct err e = ERR_INIT;

    assert_int_equal(gates_new(&gates, &options, &e), 0);
    assert_int_equal(gate_enter(gates, "h", GATE_PATIENT, &a, &e), 0);
    assert_int_equal(gate_enter(gates, "h", GATE_PATIENT, &b, &e), 0);
    assert_false(a.probe || b.probe);
    assert_int_equal(gates_limited_ms(gates), 0);
    gate_leave(gates, &a, GATE_LIMITED, -1);
    assert_int_equal(gates_limited_ms(gates), 1); /* closed, though the wait is over at once */
    gate_leave(gates, &b, GATE_LIMITED, -1);      /* the same closing */
    assert_int_equal(gate_enter(gates, "h", GATE_PATIENT, &probe, &e), 0);
    assert_true(probe.probe);
    gate_leave(gates, &probe, GATE_LIMITED, 0); /* the second strike, not the third */
    assert_int_equal(gate_enter(gates, "h", GATE_PATIENT, &probe, &e), 0);
    gate_leave(gates, &probe, GATE_UNKNOWN, -1); /* says nothing: the next one probes */
    assert_int_equal(gate_enter(gates, "h", GATE_PATIENT, &probe, &e), 0);
    assert_true(probe.probe);
    gate_leave(gates, &probe, GATE_PASSED, -1);
    assert_int_equal(gate_enter(gates, "h", GATE_PATIENT, &a, &e), 0);
    assert_false(a.probe);
    assert_int_equal(gates_limited_ms(gates), 0);
    gate_leave(gates, &a, GATE_LIMITED, 600000);
    assert_in_range(gates_limited_ms(gates), 500000, 600000);
    gates_free(gates);
}

/* Many threads against a limit: all get there, and no request is wasted on a closed gate. */
static void test_herd(void **state UNUSED)
{
    enum { THREADS = 8 };
    struct world w;
    struct limits s = {.world = &w, .free = 2, .limited = TRIES - 1};
    pthread_t threads[THREADS];
    void *result;

    world_start(&w, limit_handler, &s, NULL);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pull_thread, &w), 0);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
    }
    assert_int_equal(s.requests, THREADS + TRIES - 1);
    world_stop(&w);
}

/* ---- Out of memory ---------------------------------------------------------------------- */

/* Each allocation of a pull with login and token fails once: a clean ERR_NOMEM, or it did not
 * matter; nothing leaks (sanitizer build). */
static void test_out_of_memory(void **state UNUSED)
{
    enum { ALLOCATIONS = 150 };
    char path[] = "/tmp/tb2-token-XXXXXX";
    int fd = mkstemp(path);
    unsigned failures = 0;

    assert_true(fd >= 0);
    for (unsigned nth = 1; nth <= ALLOCATIONS; nth++) {
        struct world w;
        struct tokens s = {.world = &w, .cut = true};
        struct err e = ERR_INIT;

        world_start(&w, token_handler, &s, path);
        AUTO_FREE char *text =
            mem_printf("{\"auths\":{\"%s\":{\"username\":\"me\",\"password\":\"pw\"}}}", w.host);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(file_pwrite_full(fd, text, strlen(text), 0, &e), 0);
        mem_fail_nth(nth);
        int rc = world_pull(&w, &e);
        mem_fail_nth(0);
        if (rc == 0)
            world_check_file(&w);
        else if (rc != -ERR_NOMEM)
            fail_msg("allocation %u: %d %s", nth, rc, e.text);
        failures += rc < 0;
        world_stop(&w);
    }
    assert_true(failures > 20 && failures < ALLOCATIONS);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reply_shapes),
        cmocka_unit_test(test_token_dies),
        cmocka_unit_test(test_token_renewed),
        cmocka_unit_test(test_denied),
        cmocka_unit_test(test_token_server_limits),
        cmocka_unit_test(test_login),
        cmocka_unit_test(test_rate_limit),
        cmocka_unit_test(test_other_host),
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_herd),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
