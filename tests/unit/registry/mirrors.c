/* SPDX-License-Identifier: MIT */
/* Mirrors that work: who is asked for what, in which order, with which names and logins. */
#include "world.h"

#define MANIFEST_TEXT "{\"schemaVersion\":2}"

enum { LOG_MAX = 4096 };

/* A registry in front (the mirror) and the one behind it. */
struct pair {
    struct world world; /* its server is the mirror */
    struct fake_http *origin;
    char origin_host[32];
    struct oci_ref ref;       /* at the origin */
    char mirror_log[LOG_MAX]; /* "METHOD path\n" */
    char origin_log[LOG_MAX];
    int mirror_status; /* of everything; 0: it answers well */
    bool mirror_wants_login;
    bool mirror_saw_login;
    bool mirror_stalls;
    bool lacks_blobs;
};

static void note(char *log, const struct fake_request *request)
{
    size_t len = strlen(log);

    snprintf(log + len, LOG_MAX - len, "%s %s\n", request->method, request->path);
}

static void answer(const struct pair *p, const struct fake_request *request,
                   struct fake_reply *reply)
{
    struct digest digest;
    char text[DIGEST_TEXT_MAX];

    if (strstr(request->path, "/blobs/")) {
        reply_blob(reply, request, p->world.bytes);
        return;
    }
    digest_bytes(&digest, MANIFEST_TEXT, strlen(MANIFEST_TEXT));
    reply_text(reply, 200, MANIFEST_TEXT);
    fake_add_header(reply, "Docker-Content-Digest: %s", digest_print(&digest, text));
    fake_add_header(reply, "RateLimit-Limit: 100;w=21600");
    fake_add_header(reply, "RateLimit-Remaining: 76;w=21600");
}

static void mirror_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct pair *p = ctx;
    char value[256];

    note(p->mirror_log, request);
    p->mirror_saw_login |= fake_header(request, "Authorization", value, sizeof(value));
    answer(p, request, reply);
    if (p->mirror_wants_login) {
        reply_text(reply, 401, "{}");
        fake_add_header(reply, "WWW-Authenticate: Basic realm=\"mirror\"");
    }
    if (p->mirror_status > 0)
        reply_text(reply, p->mirror_status, "{}");
    if (p->lacks_blobs && strstr(request->path, "/blobs/"))
        reply_text(reply, 404, "{}");
    if (p->mirror_stalls) {
        fake_add_header(reply, "Content-Length: %zu", reply->body_len);
        reply->body_len = 0;
        reply->end = FAKE_HEADERS; /* never gets to the end of its headers ... */
    }
}

static void origin_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct pair *p = ctx;

    note(p->origin_log, request);
    answer(p, request, reply);
}

static void pair_client(struct pair *p, struct registry_host *rule, const char *config_path)
{
    static const struct registry_tuning quick = {
        .retry_wait_ms = 1, .gate_wait_ms = 1, .gate_max_wait_ms = 1000, .helper_timeout_ms = 1000};
    struct world *w = &p->world;
    static struct registry_network network;
    struct err e = ERR_INIT;

    network = (struct registry_network){.hosts = rule, .host_count = 1};
    struct registry_options options = {.network = &network,
                                       .config_path =
                                           config_path ? config_path : "/nonexistent/config.json",
                                       .tries = TRIES,
                                       .cancel = &w->cancel};
    registry_free(w->client);
    w->client = NULL;
    assert_int_equal(registry_new_tuned(&w->client, &options, &quick, &e), 0);
    p->mirror_log[0] = p->origin_log[0] = '\0';
    assert_int_equal(ftruncate(w->fd, 0), 0);
}

static void pair_start(struct pair *p)
{
    struct err e = ERR_INIT;

    *p = (struct pair){0};
    world_start(&p->world, mirror_handler, p, NULL);
    p->origin = fake_http_start(origin_handler, p);
    snprintf(p->origin_host, sizeof(p->origin_host), "127.0.0.1:%u", fake_http_port(p->origin));
    AUTO_FREE char *name = mem_printf("%s/team/app:v1", p->origin_host);
    assert_int_equal(oci_ref_parse(&p->ref, name, &e), 0);
}

static void pair_stop(struct pair *p)
{
    oci_ref_fini(&p->ref);
    fake_http_stop(p->origin);
    world_stop(&p->world);
}

static int pull(struct pair *p, struct err *e)
{
    assert_int_equal(ftruncate(p->world.fd, 0), 0);
    return registry_blob(p->world.client, &p->ref, &p->world.blob, p->world.fd, NULL, e);
}

/* ---- Names ------------------------------------------------------------------------------ */

static void test_names(void **state UNUSED)
{
    static const struct {
        const char *name;   /* of the rule; %s is the registry's host */
        const char *suffix; /* of the mirror's URL */
        const char *path;   /* that the mirror is asked for; NULL: it is not asked */
    } rows[] = {
        {"%s", "", "/v2/team/app/manifests/v1"},
        {"%s", "/", "/v2/team/app/manifests/v1"},
        {"%s", "/hub", "/v2/hub/team/app/manifests/v1"},
        {"%s", "/a/b/", "/v2/a/b/team/app/manifests/v1"},
        {"%s", "/api/docker/hub/v2", "/api/docker/hub/v2/team/app/manifests/v1"},
        {"%s", "/v2/hub", "/v2/hub/team/app/manifests/v1"},
        {"%s/team", "", "/v2/app/manifests/v1"},
        {"%s/team", "/copy", "/v2/copy/app/manifests/v1"},
        {"%s/other", "", NULL},
        {"%s/tea", "", NULL},
        {"*", "/all", "/v2/all/team/app/manifests/v1"},
        {"other.example", "", NULL},
        {"*.example", "", NULL},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct pair p;
        struct digest digest;
        struct err e = ERR_INIT;

        pair_start(&p);
        AUTO_FREE char *name = strchr(rows[i].name, '%')
                                   ? mem_printf("%s%s", p.origin_host, rows[i].name + 2)
                                   : mem_strdup(rows[i].name);
        AUTO_FREE char *url = mem_printf("http://%s%s", p.world.host, rows[i].suffix);
        struct registry_mirror mirror = {.url = url};
        struct registry_host rule = {.name = name, .mirrors = &mirror, .mirror_count = 1};
        pair_client(&p, &rule, NULL);
        if (registry_head(p.world.client, &p.ref, &digest, &e) < 0)
            fail_msg("row %zu: %s", i, e.text);
        AUTO_FREE char *line =
            rows[i].path ? mem_printf("HEAD %s\n", rows[i].path) : mem_strdup("");
        assert_string_equal(p.mirror_log, line);
        if (rows[i].path)
            assert_string_equal(p.origin_log, "");
        else
            assert_string_equal(p.origin_log, "HEAD /v2/team/app/manifests/v1\n");
        assert_int_equal(registry_stats(p.world.client).mirrored, rows[i].path ? 1 : 0);
        pair_stop(&p);
    }
}

static void test_addresses(void **state UNUSED)
{
    static const struct {
        const char *url;
        bool good;
    } rows[] = {
        {"https://cache.corp", true},
        {"http://10.0.0.1:5000/hub", true},
        {"cache.corp", false},
        {"ftp://cache.corp", false},
        {"https://", false},
        {"https:///hub", false},
        {"https://me:pw@cache.corp", false},
        {"https://cache.corp/?x=1", false},
        {"https://cache.corp/a b", false},
        {"", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        if ((registry_mirror_check(rows[i].url, &e) == 0) != rows[i].good)
            fail_msg("%s", rows[i].url);
    }
}

/* ---- Who is asked ----------------------------------------------------------------------- */

/* One rule for the pair: its mirror, told more of by `mirror`. */
static struct registry_host rule_for(struct pair *p, struct registry_mirror *mirror)
{
    mirror->url = mem_printf("http://%s", p->world.host);
    return (struct registry_host){.name = p->origin_host, .mirrors = mirror, .mirror_count = 1};
}

static void test_mirror_serves_all(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {0};
    struct err e = ERR_INIT;

    pair_start(&p);
    struct registry_host rule = rule_for(&p, &mirror);
    pair_client(&p, &rule, NULL);
    assert_int_equal(pull(&p, &e), 0);
    world_check_file(&p.world);
    assert_string_equal(p.origin_log, "");
    free(mirror.url);
    pair_stop(&p);
}

static void test_digests_only(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {.digests_only = true};
    struct digest digest;
    struct err e = ERR_INIT;

    pair_start(&p);
    struct registry_host rule = rule_for(&p, &mirror);
    pair_client(&p, &rule, NULL);
    assert_true(registry_has_digest_mirror(p.world.client, &p.ref));
    assert_int_equal(registry_head(p.world.client, &p.ref, &digest, &e), 0);
    assert_string_equal(p.mirror_log, "");
    assert_int_equal(pull(&p, &e), 0);
    assert_non_null(strstr(p.mirror_log, "/blobs/"));
    assert_null(strstr(p.origin_log, "/blobs/"));
    free(mirror.url);
    pair_stop(&p);
}

/* Without the registry behind it, what the mirror lacks is lacking; nobody else is spoken to. */
static void test_mirrors_only(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {0};
    struct err e = ERR_INIT;

    pair_start(&p);
    struct registry_host rule = rule_for(&p, &mirror);
    rule.mirrors_only = true;
    pair_client(&p, &rule, NULL);
    assert_false(registry_has_digest_mirror(p.world.client, &p.ref));
    p.lacks_blobs = true;
    assert_int_equal(pull(&p, &e), -ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "mirror 127.0.0.1"));
    p.lacks_blobs = false;
    p.mirror_status = 503;
    assert_int_equal(pull(&p, &e), -ERR_NET);
    assert_string_equal(p.origin_log, "");

    rule.mirror_count = 0;
    pair_client(&p, &rule, NULL);
    assert_int_equal(pull(&p, &e), -ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "is not to be asked"));
    assert_string_equal(p.origin_log, "");
    free(mirror.url);
    pair_stop(&p);
}

/* Mirrors that cannot even be spoken to. */
static void test_unreachable(void **state UNUSED)
{
    static const struct {
        const char *url;
        const char *words;
    } rows[] = {
        {"http://127.0.0.1:1", "connection refused"},
        /* a label of 64 letters is refused by the resolver itself */
        {"https://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.invalid",
         "does not resolve"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct pair p;
        struct err e = ERR_INIT;

        pair_start(&p);
        AUTO_FREE char *url = mem_strdup(rows[i].url);
        struct registry_mirror mirror = {.url = url};
        struct registry_host rule = {.name = p.origin_host, .mirrors = &mirror, .mirror_count = 1};
        pair_client(&p, &rule, NULL);
        if (pull(&p, &e) < 0)
            fail_msg("row %zu: %s", i, e.text);
        world_check_file(&p.world);
        fake_http_stop(p.origin);
        p.origin = NULL;
        assert_int_equal(pull(&p, &e), -ERR_NET);
        if (!strstr(e.text, rows[i].words))
            fail_msg("row %zu: %s", i, e.text);
        pair_stop(&p);
    }
}

/* After three failures in a row it is left alone. */
static void test_set_aside(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {0};
    struct err e = ERR_INIT;
    unsigned asked = 0;

    pair_start(&p);
    struct registry_host rule = rule_for(&p, &mirror);
    pair_client(&p, &rule, NULL);
    p.mirror_status = 503;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(pull(&p, &e), 0);
        world_check_file(&p.world);
    }
    for (const char *at = p.mirror_log; (at = strchr(at, '\n')); at++)
        asked++;
    assert_int_equal(asked, 3);
    free(mirror.url);
    pair_stop(&p);
}

/* What all of them said is in the message; the registry's own word decides the class. */
static void test_message(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {0};
    struct digest digest;
    struct err e = ERR_INIT;

    pair_start(&p);
    struct registry_host rule = rule_for(&p, &mirror);
    pair_client(&p, &rule, NULL);
    p.mirror_status = 403;
    fake_http_stop(p.origin);
    p.origin = NULL;
    assert_int_equal(registry_head(p.world.client, &p.ref, &digest, &e), -ERR_NET);
    AUTO_FREE char *wanted =
        mem_printf("registry %s: connection refused (before that: mirror %s: access denied, status "
                   "403)",
                   p.origin_host, p.world.host);
    assert_string_equal(e.text, wanted);
    assert_true(strlen(e.hint) > 0);
    free(mirror.url);
    pair_stop(&p);
}

/* A login for the registry is none for its mirror. */
static void test_logins_stay(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {0};
    struct err e = ERR_INIT;
    char path[] = "/tmp/tb2-mirror-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    pair_start(&p);
    AUTO_FREE char *text =
        mem_printf("{\"auths\":{\"%s\":{\"auth\":\"bWU6cHc=\"}}}", p.origin_host);
    assert_int_equal(file_write_full(fd, text, strlen(text), &e), 0);
    close(fd);
    struct registry_host rule = rule_for(&p, &mirror);
    pair_client(&p, &rule, path);
    p.mirror_wants_login = true;
    assert_int_equal(pull(&p, &e), 0);
    world_check_file(&p.world);
    assert_false(p.mirror_saw_login);
    unlink(path);
    free(mirror.url);
    pair_stop(&p);
}

/* A registry that answers 401 and does not say what it wants gets the login as Basic. */
static void bare_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct pair *p = ctx;
    char value[256];

    if (fake_header(request, "Authorization", value, sizeof(value)) &&
        strcmp(value, "Basic bWU6cHc=") == 0)
        answer(p, request, reply);
    else
        reply_text(reply, 401, "");
}

static void test_bare_401(void **state UNUSED)
{
    struct pair p;
    struct err e = ERR_INIT;
    char path[] = "/tmp/tb2-mirror-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    pair_start(&p);
    struct fake_http *bare = fake_http_start(bare_handler, &p);
    AUTO_FREE char *name = mem_printf("127.0.0.1:%u/team/app:v1", fake_http_port(bare));
    AUTO_FREE char *text =
        mem_printf("{\"auths\":{\"127.0.0.1:%u\":{\"auth\":\"bWU6cHc=\"}}}", fake_http_port(bare));
    struct registry_host rule = {.name = p.origin_host};
    assert_int_equal(file_write_full(fd, text, strlen(text), &e), 0);
    close(fd);
    oci_ref_fini(&p.ref);
    assert_int_equal(oci_ref_parse(&p.ref, name, &e), 0);
    pair_client(&p, &rule, path);
    assert_int_equal(pull(&p, &e), 0);
    world_check_file(&p.world);
    pair_client(&p, &rule, NULL);
    assert_int_equal(pull(&p, &e), -ERR_DENIED);
    unlink(path);
    fake_http_stop(bare);
    pair_stop(&p);
}

/* Each mirror has its own time: one that does not answer costs that, not the usual 30 s. */
static void test_mirror_time(void **state UNUSED)
{
    struct pair p;
    struct registry_mirror mirror = {.timeout_ms = 100};
    struct err e = ERR_INIT;

    pair_start(&p);
    struct registry_host rule = rule_for(&p, &mirror);
    pair_client(&p, &rule, NULL);
    p.mirror_stalls = true;
    assert_int_equal(pull(&p, &e), 0);
    world_check_file(&p.world);
    free(mirror.url);
    pair_stop(&p);
}

/* ---- Limits ----------------------------------------------------------------------------- */

static void test_quota(void **state UNUSED)
{
    struct pair p;
    struct registry_host rule = {.name = mem_strdup("*")};
    struct digest digest;
    struct err e = ERR_INIT;

    pair_start(&p);
    pair_client(&p, &rule, NULL);
    assert_false(registry_stats(p.world.client).has_quota);
    assert_int_equal(registry_head(p.world.client, &p.ref, &digest, &e), 0);
    struct registry_stats stats = registry_stats(p.world.client);
    assert_true(stats.has_quota);
    assert_int_equal(stats.quota_remaining, 76);
    assert_int_equal(stats.quota_limit, 100);
    free(rule.name);
    pair_stop(&p);
}

/* A cap spaces the requests to one host, and to that one alone. */
static void test_spacing(void **state UNUSED)
{
    struct gate_options options = {.tries = 3, .spacing_ms = 40};
    struct gates *gates = NULL;
    struct gate_pass pass;
    struct err e = ERR_INIT;
    int64_t start = clock_ms();

    assert_int_equal(gates_new(&gates, &options, &e), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(gate_enter(gates, "h", GATE_PATIENT | GATE_COUNTED, &pass, &e), 0);
        gate_leave(gates, &pass, GATE_PASSED, -1);
    }
    assert_true(clock_ms() - start >= 3 * options.spacing_ms);
    gates_free(gates);
}

/* Where others can be asked, nobody waits for a closed gate. */
static void test_impatience(void **state UNUSED)
{
    struct gate_options options = {.first_wait_ms = 60000, .max_wait_ms = 600000, .tries = 3};
    struct gates *gates = NULL;
    struct gate_pass pass;
    struct err e = ERR_INIT;

    assert_int_equal(gates_new(&gates, &options, &e), 0);
    assert_int_equal(gate_enter(gates, "h", 0, &pass, &e), 0);
    gate_leave(gates, &pass, GATE_LIMITED, -1);
    assert_int_equal(gate_enter(gates, "h", 0, &pass, &e), -ERR_RATE);
    assert_int_equal(gate_enter(gates, "other", 0, &pass, &e), 0);
    gate_leave(gates, &pass, GATE_PASSED, -1);
    gates_free(gates);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_mirror_serves_all),
        cmocka_unit_test(test_digests_only),
        cmocka_unit_test(test_mirrors_only),
        cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_set_aside),
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_logins_stay),
        cmocka_unit_test(test_bare_401),
        cmocka_unit_test(test_mirror_time),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_spacing),
        cmocka_unit_test(test_impatience),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
