/* SPDX-License-Identifier: MIT */
/* Pulls against a scripted registry: resume, wrong bytes, statuses, redirects, stalls. */
#include "world.h"

/* ---- Resume ----------------------------------------------------------------------------- */

enum second { HONEST, IGNORES_RANGE, OTHER_TOTAL, OTHER_OFFSET, NO_RANGE_HEADER, REFUSES_RANGE };

struct resume {
    struct world *world;
    enum fake_end first_end;
    enum second second;
    unsigned requests;
    unsigned ranged;
};

static void resume_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct resume *s = ctx;
    size_t from = fake_range(request);

    reply_blob(reply, request, s->world->bytes);
    s->ranged += from > 0;
    if (++s->requests == 1) {
        reply->end = s->first_end;
        reply->cut_after = CUT;
        return;
    }
    if (from == 0)
        return;
    switch (s->second) {
    case HONEST:
        break;
    case IGNORES_RANGE:
        reply->status = 200;
        reply->headers[0] = '\0';
        reply->body = s->world->bytes;
        reply->body_len = BLOB_SIZE;
        break;
    case OTHER_TOTAL:
        reply->headers[0] = '\0';
        fake_add_header(reply, "Content-Range: bytes %zu-%d/%d", from, BLOB_SIZE - 1,
                        BLOB_SIZE + 7);
        break;
    case OTHER_OFFSET:
        reply->headers[0] = '\0';
        fake_add_header(reply, "Content-Range: bytes %zu-%d/%d", from + 1, BLOB_SIZE - 1,
                        BLOB_SIZE);
        break;
    case NO_RANGE_HEADER:
        reply->headers[0] = '\0';
        break;
    case REFUSES_RANGE:
        reply_text(reply, 416, "no");
        reply->headers[0] = '\0';
        break;
    }
}

static void test_resume(void **state UNUSED)
{
    static const struct {
        enum fake_end first_end;
        enum second second;
        unsigned requests;
        unsigned ranged;
        bool all_again; /* the first part came twice */
    } cases[] = {
        {FAKE_CLOSE, HONEST, 2, 1, false},     {FAKE_RESET, HONEST, 2, 1, false},
        {FAKE_STALL, HONEST, 2, 1, false},     {FAKE_CLOSE, IGNORES_RANGE, 2, 1, true},
        {FAKE_CLOSE, OTHER_TOTAL, 3, 1, true}, {FAKE_CLOSE, REFUSES_RANGE, 3, 1, true},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct resume s = {&w, cases[i].first_end, cases[i].second, 0, 0};
        struct err e = ERR_INIT;

        world_start(&w, resume_handler, &s, NULL);
        if (s.first_end == FAKE_STALL)
            world_client(&w, NULL, 300);
        if (world_pull(&w, &e) < 0)
            fail_msg("case %zu: %s", i, e.text);
        world_check_file(&w);
        assert_int_equal(s.requests, cases[i].requests);
        assert_int_equal(s.ranged, cases[i].ranged);
        struct registry_stats stats = registry_stats(w.client);
        assert_int_equal(stats.blob_gets, cases[i].requests);
        assert_int_equal(stats.blob_bytes, BLOB_SIZE + (cases[i].all_again ? CUT : 0));
        world_stop(&w);
    }
}

/* An answer from another place is never taken; asked twice, then the whole is fetched. */
static void test_wrong_offset(void **state UNUSED)
{
    static const enum second cases[] = {OTHER_OFFSET, NO_RANGE_HEADER};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct resume s = {&w, FAKE_CLOSE, cases[i], 0, 0};
        struct err e = ERR_INIT;

        world_start(&w, resume_handler, &s, NULL);
        w.client->options.tries = 4;
        assert_int_equal(world_pull(&w, &e), 0);
        world_check_file(&w);
        assert_int_equal(s.ranged, 2);
        assert_int_equal(s.requests, 4);
        world_stop(&w);
    }
}

/* ---- What is in the file before --------------------------------------------------------- */

struct plain {
    struct world *world;
    unsigned requests;
    size_t last_range;
};

static void plain_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct plain *s = ctx;

    s->requests++;
    s->last_range = fake_range(request);
    reply_blob(reply, request, s->world->bytes);
}

static void test_existing_part(void **state UNUSED)
{
    static const struct {
        size_t len;
        bool right;
        unsigned requests;
        size_t range; /* of the last request */
    } cases[] = {
        {0, true, 1, 0},
        {CUT, true, 1, CUT},
        {CUT, false, 2, 0}, /* found out at the end */
        {BLOB_SIZE, true, 0, 0},
        {BLOB_SIZE, false, 1, 0},
        {BLOB_SIZE + 1, true, 1, 0},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct plain s = {.world = &w};
        struct err e = ERR_INIT;

        world_start(&w, plain_handler, &s, NULL);
        size_t len = cases[i].len < BLOB_SIZE ? cases[i].len : BLOB_SIZE;
        assert_int_equal(file_pwrite_full(w.fd, cases[i].right ? w.bytes : w.wrong, len, 0, &e), 0);
        assert_int_equal(ftruncate(w.fd, (off_t)cases[i].len), 0);
        if (world_pull(&w, &e) < 0)
            fail_msg("case %zu: %s", i, e.text);
        world_check_file(&w);
        assert_int_equal(s.requests, cases[i].requests);
        assert_int_equal(s.last_range, cases[i].range);
        world_stop(&w);
    }
}

static void test_empty_blob(void **state UNUSED)
{
    struct world w;
    struct plain s = {.world = &w};
    struct err e = ERR_INIT;

    world_start(&w, plain_handler, &s, NULL);
    w.blob.size = 0;
    digest_bytes(&w.blob.digest, "", 0);
    assert_int_equal(world_pull(&w, &e), 0);
    assert_int_equal(s.requests, 0);
    assert_int_equal(world_file_size(&w), 0);
    world_stop(&w);
}

/* ---- Bytes that are not the blob's ------------------------------------------------------ */

enum fault { WRONG_BYTES, TOO_LONG, SHORT_BODY, WRONG_ONCE };

struct wrong {
    struct world *world;
    enum fault fault;
    unsigned requests;
};

static void wrong_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct wrong *s = ctx;

    s->requests++;
    reply_blob(reply, request, s->world->bytes);
    if (s->fault == WRONG_BYTES || (s->fault == WRONG_ONCE && s->requests == 1))
        reply_blob(reply, request, s->world->wrong);
    if (s->fault == SHORT_BODY) {
        fake_add_header(reply, "Content-Length: %d", 100);
        reply->body_len = 100;
        fake_add_header(reply, "Connection: close");
        reply->end = FAKE_CLOSE;
        reply->cut_after = 100;
    }
}

static void test_wrong_bytes(void **state UNUSED)
{
    static const struct {
        enum fault fault;
        int rc;
        unsigned requests;
        uint64_t left; /* in the file */
    } cases[] = {
        {WRONG_BYTES, -ERR_DIGEST, 2, 0},
        {TOO_LONG, -ERR_DIGEST, 2, 0},
        {SHORT_BODY, -ERR_NET, TRIES, TRIES * 100},
        {WRONG_ONCE, 0, 2, BLOB_SIZE},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct wrong s = {&w, cases[i].fault, 0};
        struct err e = ERR_INIT;
        char text[DIGEST_TEXT_MAX];

        world_start(&w, wrong_handler, &s, NULL);
        if (s.fault == TOO_LONG)
            w.blob.size = BLOB_SIZE - 1;
        int rc = world_pull(&w, &e);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d %s", i, rc, e.text);
        assert_int_equal(s.requests, cases[i].requests);
        assert_int_equal(world_file_size(&w), cases[i].left);
        if (rc < 0)
            assert_non_null(strstr(e.text, digest_print(&w.blob.digest, text)));
        world_stop(&w);
    }
}

/* A blob named by sha512 is checked with sha512. */
static void test_sha512(void **state UNUSED)
{
    for (int good = 0; good < 2; good++) {
        struct world w;
        struct plain s = {.world = &w};
        struct err e = ERR_INIT;
        AUTO_HASHER struct hasher *hasher = NULL;

        world_start(&w, plain_handler, &s, NULL);
        assert_int_equal(hasher_new(&hasher, DIGEST_SHA512, &e), 0);
        hasher_add(hasher, good ? w.bytes : w.wrong, BLOB_SIZE);
        hasher_finish(hasher, &w.blob.digest);
        assert_int_equal(world_pull(&w, &e), good ? 0 : -ERR_DIGEST);
        world_stop(&w);
    }
}

/* ---- Statuses --------------------------------------------------------------------------- */

struct statuses {
    int status;
    const char *headers;
    const char *body;
    unsigned failures; /* then it works; 0: never */
    unsigned requests;
};

#define MANIFEST_TEXT "{\"schemaVersion\":2}"

static void status_handler(void *ctx, const struct fake_request *request UNUSED,
                           struct fake_reply *reply)
{
    struct statuses *s = ctx;

    if (++s->requests > s->failures && s->failures > 0) {
        reply_text(reply, 200, MANIFEST_TEXT);
        fake_add_header(reply, "Content-Type: application/json; charset=utf-8");
        return;
    }
    reply_text(reply, s->status, s->body ? s->body : "");
    if (s->headers)
        fake_add_header(reply, "%s", s->headers);
}

static void test_statuses(void **state UNUSED)
{
    static const struct {
        struct statuses script;
        int rc;
        unsigned requests;
        const char *message;
        const char *hint;
    } cases[] = {
        {{.status = 404}, -ERR_NOTFOUND, 1, "/team/app:v1: not found in the registry", "tag"},
        {{.status = 403, .body = "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"hunter2\"}]}"},
         -ERR_DENIED,
         1,
         "(DENIED)",
         "docker login 127.0.0.1"},
        {{.status = 401}, -ERR_DENIED, 1, "denied", "docker login 127.0.0.1"},
        {{.status = 401, .headers = "WWW-Authenticate: Negotiate"},
         -ERR_UNSUPPORTED,
         1,
         "Basic and Bearer",
         NULL},
        {{.status = 401, .headers = "WWW-Authenticate: Basic realm=\"x\""},
         -ERR_DENIED,
         1,
         "denied",
         "docker login"},
        {{.status = 400}, -ERR_UNSUPPORTED, 1, "status 400", NULL},
        {{.status = 304}, -ERR_UNSUPPORTED, 1, "status 304", NULL},
        {{.status = 500}, -ERR_NET, TRIES, "status 500", "fault of its own"},
        {{.status = 500, .failures = 2}, 0, 3, NULL, NULL},
        {{.status = 503, .headers = "Retry-After: 0", .failures = 1}, 0, 2, NULL, NULL},
        {{.status = 503, .headers = "Retry-After: 9999"}, -ERR_NET, 1, "status 503", NULL},
        {{.status = 408, .failures = 1}, 0, 2, NULL, NULL},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct statuses s = cases[i].script;
        struct oci_descriptor d = {0};
        AUTO_BUF struct buf body;
        struct err e = ERR_INIT;

        world_start(&w, status_handler, &s, NULL);
        int rc = registry_manifest(w.client, &w.ref, &d, &body, &e);
        if (rc != cases[i].rc || s.requests != cases[i].requests)
            fail_msg("case %zu: %d, %u requests, %s", i, rc, s.requests, e.text);
        if (rc == 0) {
            assert_string_equal(buf_text(&body), MANIFEST_TEXT);
            assert_string_equal(d.media_type, "application/json");
            oci_descriptor_fini(&d);
        } else {
            if (!strstr(e.text, cases[i].message) ||
                (cases[i].hint && !strstr(e.hint, cases[i].hint)))
                fail_msg("case %zu: %s [%s]", i, e.text, e.hint);
            assert_null(strstr(e.text, "hunter2"));
        }
        world_stop(&w);
    }
}

/* ---- Manifests -------------------------------------------------------------------------- */

struct manifest {
    const char *digest_header;
    const char *text;
    size_t text_len;
    unsigned requests;
    bool accept_ok;
};

static void manifest_handler(void *ctx, const struct fake_request *request,
                             struct fake_reply *reply)
{
    struct manifest *s = ctx;
    char accept[1024];

    s->requests++;
    s->accept_ok = fake_header(request, "Accept", accept, sizeof(accept)) &&
                   strstr(accept, "image.index") && strstr(accept, "manifest.list");
    reply->status = 200;
    reply->body = s->text;
    reply->body_len = s->text_len;
    if (s->digest_header)
        fake_add_header(reply, "Docker-Content-Digest: %s", s->digest_header);
}

#define EMPTY_DIGEST "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define BRACES_DIGEST "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

static void test_manifest(void **state UNUSED)
{
    static const struct {
        const char *header;
        const char *wanted; /* digest in the reference */
        int rc;
        int head_rc;
        unsigned requests;
    } cases[] = {
        {BRACES_DIGEST, NULL, 0, 0, 1},
        {NULL, NULL, 0, -ERR_UNSUPPORTED, 1},
        {NULL, BRACES_DIGEST, 0, -ERR_UNSUPPORTED, 1},
        {EMPTY_DIGEST, NULL, -ERR_DIGEST, 0, 2},
        {NULL, EMPTY_DIGEST, -ERR_DIGEST, -ERR_UNSUPPORTED, 2},
        {"md5:00", NULL, -ERR_UNSUPPORTED, -ERR_UNSUPPORTED, 1},
        {"sha256:zz", NULL, -ERR_CORRUPT, -ERR_CORRUPT, 1},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct manifest s = {.digest_header = cases[i].header, .text = "{}", .text_len = 2};
        struct oci_descriptor d = {0};
        struct digest digest;
        AUTO_BUF struct buf body;
        struct err e = ERR_INIT;
        char text[DIGEST_TEXT_MAX];

        world_start(&w, manifest_handler, &s, NULL);
        if (cases[i].wanted) {
            assert_int_equal(digest_parse(&w.ref.digest, cases[i].wanted, &e), 0);
            w.ref.has_digest = true;
        }
        int rc = registry_manifest(w.client, &w.ref, &d, &body, &e);
        if (rc != cases[i].rc || s.requests != cases[i].requests)
            fail_msg("case %zu: %d, %u requests, %s", i, rc, s.requests, e.text);
        assert_true(s.accept_ok);
        if (rc == 0) {
            assert_string_equal(digest_print(&d.digest, text), BRACES_DIGEST);
            assert_int_equal(d.size, 2);
            oci_descriptor_fini(&d);
        }
        assert_int_equal(registry_head(w.client, &w.ref, &digest, &e), cases[i].head_rc);
        struct registry_stats stats = registry_stats(w.client);
        assert_int_equal(stats.manifest_heads, 1);
        assert_int_equal(stats.manifest_gets, cases[i].requests);
        world_stop(&w);
    }
}

static void test_huge_manifest(void **state UNUSED)
{
    struct world w;
    size_t len = LIMIT_MANIFEST + 1;
    AUTO_FREE char *text = mem_zalloc(len);
    struct manifest s = {.text = text, .text_len = len};
    struct oci_descriptor d;
    AUTO_BUF struct buf body;
    struct err e = ERR_INIT;

    world_start(&w, manifest_handler, &s, NULL);
    assert_int_equal(registry_manifest(w.client, &w.ref, &d, &body, &e), -ERR_LIMIT);
    assert_int_equal(s.requests, 1);
    world_stop(&w);
}

/* ---- Redirects -------------------------------------------------------------------------- */

struct redirect {
    struct world *world;
    struct fake_http *storage;
    bool same_host;
    unsigned hops; /* to go before the blob comes */
    unsigned storage_requests;
    bool leaked;     /* Authorization reached the other host */
    bool authorized; /* Authorization reached the blob on the same host */
    size_t range;
};

static void storage_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct redirect *s = ctx;
    char value[256];

    s->storage_requests++;
    if (fake_header(request, "Authorization", value, sizeof(value))) {
        s->leaked = true;
        reply_text(reply, 400, "no Authorization here");
        return;
    }
    s->range = fake_range(request);
    reply_blob(reply, request, s->world->bytes);
}

static void redirect_handler(void *ctx, const struct fake_request *request,
                             struct fake_reply *reply)
{
    struct redirect *s = ctx;
    char value[256];

    if (!fake_header(request, "Authorization", value, sizeof(value))) {
        reply_text(reply, 401, "");
        fake_add_header(reply, "WWW-Authenticate: Basic realm=\"x\"");
    } else if (s->hops > 0) {
        s->hops--;
        reply_text(reply, 307, "elsewhere");
        if (s->same_host)
            fake_add_header(reply, "Location: /other?sig=1");
        else
            fake_add_header(reply, "Location: http://127.0.0.1:%u/data?sig=hunter2",
                            fake_http_port(s->storage));
    } else {
        s->authorized = true;
        reply_blob(reply, request, s->world->bytes);
    }
}

static char *write_config(const char *host)
{
    char *path = mem_strdup("/tmp/tb2-fetch-XXXXXX");
    AUTO_FREE char *text =
        mem_printf("{\"auths\":{\"%s\":{\"username\":\"me\",\"password\":\"pw\"}}}", host);
    int fd = mkstemp(path);
    struct err e = ERR_INIT;

    assert_true(fd >= 0);
    assert_int_equal(file_write_full(fd, text, strlen(text), &e), 0);
    close(fd);
    return path;
}

static void test_redirects(void **state UNUSED)
{
    static const struct {
        bool same_host;
        unsigned hops;
        int rc;
    } cases[] = {{false, 1, 0}, {true, 1, 0}, {true, 5, 0}, {true, 6, -ERR_UNSUPPORTED}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct redirect s = {.world = &w, .same_host = cases[i].same_host, .hops = cases[i].hops};
        struct err e = ERR_INIT;

        world_start(&w, redirect_handler, &s, NULL);
        s.storage = fake_http_start(storage_handler, &s);
        AUTO_FREE char *config = write_config(w.host);
        /* the port is known only now */
        world_client(&w, config, 0);

        assert_int_equal(file_pwrite_full(w.fd, w.bytes, CUT, 0, &e), 0);
        int rc = world_pull(&w, &e);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d %s", i, rc, e.text);
        assert_false(s.leaked);
        assert_int_equal(s.storage_requests, cases[i].same_host ? 0 : 1);
        if (rc == 0)
            world_check_file(&w);
        if (!cases[i].same_host)
            assert_int_equal(s.range, CUT);
        else if (rc == 0)
            assert_true(s.authorized);
        unlink(config);
        fake_http_stop(s.storage);
        world_stop(&w);
    }
}

struct denying {
    struct world *world;
    struct fake_http *storage;
    const char *scheme;
    unsigned storage_requests;
    bool leaked;
};

/* Asks for a login that it has no business with. */
static void denying_storage(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct denying *s = ctx;
    char value[256];

    s->storage_requests++;
    s->leaked = s->leaked || fake_header(request, "Authorization", value, sizeof(value));
    reply_text(reply, 401, "");
    fake_add_header(reply, "WWW-Authenticate: %s realm=\"http://127.0.0.1:%u/token\"", s->scheme,
                    fake_http_port(s->storage));
}

static void denying_registry(void *ctx, const struct fake_request *request UNUSED,
                             struct fake_reply *reply)
{
    struct denying *s = ctx;

    reply_text(reply, 307, "elsewhere");
    fake_add_header(reply, "Location: http://127.0.0.1:%u/data?sig=hunter2",
                    fake_http_port(s->storage));
}

/* A challenge from where a redirect led gets neither a token request nor a login. */
static void test_challenge_of_another_host(void **state UNUSED)
{
    static const char *const schemes[] = {"Bearer", "Basic"};

    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        struct world w;
        struct denying s = {.world = &w, .scheme = schemes[i]};
        struct err e = ERR_INIT;

        world_start(&w, denying_registry, &s, NULL);
        s.storage = fake_http_start(denying_storage, &s);
        AUTO_FREE char *config = write_config(w.host);
        world_client(&w, config, 0);
        assert_int_equal(world_pull(&w, &e), -ERR_DENIED);
        assert_int_equal(s.storage_requests, 1);
        assert_false(s.leaked);
        AUTO_FREE char *host = mem_printf("registry %s: redirected to 127.0.0.1:%u: access denied",
                                          w.host, fake_http_port(s.storage));
        assert_non_null(strstr(e.text, host));
        assert_null(strstr(e.text, "hunter2"));
        assert_null(strstr(e.hint, "docker login"));
        fake_http_stop(s.storage);
        unlink(config);
        world_stop(&w);
    }
}

/* ---- Reaching the registry -------------------------------------------------------------- */

static void test_refused(void **state UNUSED)
{
    struct world w;
    struct plain s = {.world = &w};
    struct err e = ERR_INIT;
    struct digest digest;

    world_start(&w, plain_handler, &s, NULL);
    fake_http_stop(w.server);
    w.server = NULL;
    assert_int_equal(registry_head(w.client, &w.ref, &digest, &e), -ERR_NET);
    AUTO_FREE char *message = mem_printf("registry %s: connection refused", w.host);
    assert_string_equal(e.text, message);
    assert_true(strlen(e.hint) > 0);
    assert_int_equal(registry_stats(w.client).retries, TRIES - 1);
    world_stop(&w);
}

/* A label of 64 letters is refused by the resolver itself, without a question to the network. */
static void test_no_such_host(void **state UNUSED)
{
    struct world w;
    struct plain s = {.world = &w};
    struct oci_ref ref;
    struct digest digest;
    struct err e = ERR_INIT;

    world_start(&w, plain_handler, &s, NULL);
    assert_int_equal(
        oci_ref_parse(&ref,
                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                      ".invalid/x",
                      &e),
        0);
    assert_int_equal(registry_head(w.client, &ref, &digest, &e), -ERR_NET);
    assert_non_null(strstr(e.text, "does not resolve"));
    assert_int_equal(registry_stats(w.client).retries, TRIES - 1);
    oci_ref_fini(&ref);
    world_stop(&w);
}

static void test_plain_http_is_refused(void **state UNUSED)
{
    AUTO_HTTP struct http *http = NULL;
    struct http_options options = {0};
    struct http_request request = {.method = "GET", .url = "http://reg.invalid/v2/"};
    struct http_response response;
    struct err e = ERR_INIT;

    assert_int_equal(http_new(&http, &options, &e), 0);
    assert_int_equal(http_perform(http, &request, &response, &e), -ERR_INPUT);
    assert_non_null(strstr(e.text, "plain HTTP"));
    request.url = "ftp://127.0.0.1/";
    assert_int_equal(http_perform(http, &request, &response, &e), -ERR_INPUT);
    request.url = "no url";
    assert_int_equal(http_perform(http, &request, &response, &e), -ERR_INPUT);
}

struct stalled {
    struct world *world;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    bool has_arrived;
};

static void stall_handler(void *ctx, const struct fake_request *request UNUSED,
                          struct fake_reply *reply)
{
    struct stalled *s = ctx;

    reply->status = 200;
    fake_add_header(reply, "Content-Length: %d", BLOB_SIZE);
    reply->end = FAKE_STALL;
    (void)pthread_mutex_lock(&s->lock);
    s->has_arrived = true;
    (void)pthread_cond_signal(&s->arrived);
    (void)pthread_mutex_unlock(&s->lock);
}

static void *cancel_when_arrived(void *ctx)
{
    struct stalled *s = ctx;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->has_arrived)
        (void)pthread_cond_wait(&s->arrived, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
    cancel_set(&s->world->cancel);
    return NULL;
}

static void test_cancel(void **state UNUSED)
{
    struct world w;
    struct stalled s = {
        .world = &w, .lock = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER};
    struct err e = ERR_INIT;
    pthread_t thread;

    world_start(&w, stall_handler, &s, NULL);
    assert_int_equal(pthread_create(&thread, NULL, cancel_when_arrived, &s), 0);
    assert_int_equal(world_pull(&w, &e), -ERR_CANCELLED);
    (void)pthread_join(thread, NULL);
    world_stop(&w);
}

static void test_stall(void **state UNUSED)
{
    struct world w;
    struct stalled s = {
        .world = &w, .lock = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER};
    struct err e = ERR_INIT;

    world_start(&w, stall_handler, &s, NULL);
    world_client(&w, NULL, 100);
    assert_int_equal(world_pull(&w, &e), -ERR_NET);
    assert_non_null(strstr(e.text, "nothing has arrived for 100 ms"));
    world_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_wrong_offset),
        cmocka_unit_test(test_existing_part),
        cmocka_unit_test(test_empty_blob),
        cmocka_unit_test(test_wrong_bytes),
        cmocka_unit_test(test_sha512),
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_huge_manifest),
        cmocka_unit_test(test_redirects),
        cmocka_unit_test(test_challenge_of_another_host),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_such_host),
        cmocka_unit_test(test_plain_http_is_refused),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stall),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
