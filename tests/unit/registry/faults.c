/* SPDX-License-Identifier: MIT */
/*
 * Registries that fail. Each row is a fault that a server has for ever; a pull of a blob (over one
 * connection and over several), of a manifest and of a tag's digest must end, well or with a clear
 * error, and never leave bytes that are not the blob's. Then the same server is a mirror in front of
 * a healthy registry: everything must come right, whatever the fault.
 */
#include "world.h"

enum { SEGMENT = 65536, ANY = 1 };

#define MANIFEST_TEXT "{\"schemaVersion\":2}"
#define OTHER_TEXT "{\"schemaVersion\":3}"

struct faults {
    struct world world; /* its server has the fault */
    struct fake_http *healthy;
    char manifest_digest[DIGEST_TEXT_MAX];
    unsigned requests;
    unsigned healthy_requests;
};

typedef void answer_fault(struct faults *f, const struct fake_request *request,
                          struct fake_reply *reply);

/* ---- A registry without faults ---------------------------------------------------------- */

static void answer_range(struct fake_reply *reply, const struct fake_request *request,
                         const uint8_t *bytes)
{
    char value[64];
    size_t from = fake_range(request);
    size_t end = fake_range_end(request, BLOB_SIZE);
    bool ranged = fake_header(request, "Range", value, sizeof(value));

    reply->status = ranged ? 206 : 200;
    if (ranged)
        fake_add_header(reply, "Content-Range: bytes %zu-%zu/%d", from, end - 1, BLOB_SIZE);
    reply->body = bytes + from;
    reply->body_len = end - from;
}

static void answer_well(struct faults *f, const struct fake_request *request,
                        struct fake_reply *reply)
{
    if (strstr(request->path, "/blobs/")) {
        answer_range(reply, request, f->world.bytes);
        return;
    }
    reply_text(reply, 200, MANIFEST_TEXT);
    fake_add_header(reply, "Docker-Content-Digest: %s", f->manifest_digest);
}

static void healthy_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct faults *f = ctx;

    f->healthy_requests++;
    answer_well(f, request, reply);
}

/* ---- Faults ----------------------------------------------------------------------------- */

static bool is_blob(const struct fake_request *request)
{
    return strstr(request->path, "/blobs/") != NULL;
}

static void reset_at_once(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                          struct fake_reply *reply)
{
    reply_text(reply, 200, "x");
    reply->end = FAKE_RESET;
}

static void reset_early(struct faults *f, const struct fake_request *request,
                        struct fake_reply *reply)
{
    answer_well(f, request, reply);
    reply->end = FAKE_RESET;
    reply->cut_after = 10;
}

static void truncated(struct faults *f, const struct fake_request *request,
                      struct fake_reply *reply)
{
    answer_well(f, request, reply);
    reply->end = FAKE_CLOSE;
    reply->cut_after = reply->body_len / 2;
}

static void wrong_bytes(struct faults *f, const struct fake_request *request,
                        struct fake_reply *reply)
{
    answer_well(f, request, reply);
    if (is_blob(request))
        reply->body = f->world.wrong + fake_range(request);
    else
        reply->body = OTHER_TEXT;
}

static void too_long(struct faults *f, const struct fake_request *request, struct fake_reply *reply)
{
    static const char page[32768] = "{";

    answer_well(f, request, reply);
    if (!is_blob(request)) {
        reply->body = page;
        reply->body_len = sizeof(page);
    }
    reply->end = FAKE_ENDLESS;
}

static void slow_body(struct faults *f, const struct fake_request *request,
                      struct fake_reply *reply)
{
    answer_well(f, request, reply);
    fake_add_header(reply, "Content-Length: %zu", reply->body_len);
    reply->end = FAKE_DRIP;
}

static void silent(struct faults *f, const struct fake_request *request, struct fake_reply *reply)
{
    answer_well(f, request, reply);
    fake_add_header(reply, "Content-Length: %zu", reply->body_len);
    reply->body_len = 0;
    reply->end = FAKE_STALL;
}

static void no_challenge(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                         struct fake_reply *reply)
{
    reply_text(reply, 401, "{}");
}

/* A token is granted, serves one request, and no other ever does. */
static void denied_midway(struct faults *f, const struct fake_request *request,
                          struct fake_reply *reply)
{
    char value[64];

    if (strncmp(request->path, "/token", 6) == 0) {
        reply_text(reply, 200, "{\"token\":\"t\"}");
        return;
    }
    if (fake_header(request, "Authorization", value, sizeof(value)) && f->requests <= 3) {
        truncated(f, request, reply);
        return;
    }
    reply_text(reply, 401, "{}");
    fake_add_header(reply, "WWW-Authenticate: Bearer realm=\"http://%s/token\"", f->world.host);
}

static void no_token_server(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                            struct fake_reply *reply)
{
    reply_text(reply, 401, "{}");
    fake_add_header(reply, "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:1/token\"");
}

static void limited(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                    struct fake_reply *reply)
{
    reply_text(reply, 429, "{\"errors\":[{\"code\":\"TOOMANYREQUESTS\"}]}");
}

static void limited_seconds(struct faults *f, const struct fake_request *request,
                            struct fake_reply *reply)
{
    limited(f, request, reply);
    fake_add_header(reply, "Retry-After: 3600");
}

static void limited_date(struct faults *f, const struct fake_request *request,
                         struct fake_reply *reply)
{
    limited(f, request, reply);
    fake_add_header(reply, "Retry-After: Fri, 31 Dec 2199 23:59:59 GMT");
}

static void limited_past(struct faults *f, const struct fake_request *request,
                         struct fake_reply *reply)
{
    limited(f, request, reply);
    fake_add_header(reply, "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT");
}

/* Some say it in the body alone; a HEAD has none. */
static void limited_in_the_body(struct faults *f, const struct fake_request *request,
                                struct fake_reply *reply)
{
    limited(f, request, reply);
    reply->status = strcmp(request->method, "HEAD") == 0 ? 429 : 403;
}

static void storm(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                  struct fake_reply *reply)
{
    reply_text(reply, 500, "<html>");
}

static void endless_error(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                          struct fake_reply *reply)
{
    static const char page[32768] = "<html>";

    reply->status = 502;
    reply->body = page;
    reply->body_len = sizeof(page);
    reply->end = FAKE_ENDLESS;
}

static void redirect_loop(struct faults *f UNUSED, const struct fake_request *request,
                          struct fake_reply *reply)
{
    reply_text(reply, 307, "again");
    fake_add_header(reply, "Location: %s", request->path);
}

static void redirect_nowhere(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                             struct fake_reply *reply)
{
    reply_text(reply, 302, "away");
    fake_add_header(reply, "Location: http://127.0.0.1:1/gone");
}

static void redirect_to_a_file(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                               struct fake_reply *reply)
{
    reply_text(reply, 302, "away");
    fake_add_header(reply, "Location: file:///etc/passwd");
}

static void range_ignored(struct faults *f, const struct fake_request *request,
                          struct fake_reply *reply)
{
    answer_well(f, request, reply);
    if (is_blob(request)) {
        reply->status = 200;
        reply->headers[0] = '\0';
        reply->body = f->world.bytes;
        reply->body_len = BLOB_SIZE;
    }
}

/* Each answer begins at 0 and breaks off: there is never more than there was. */
static void range_ignored_and_cut(struct faults *f, const struct fake_request *request,
                                  struct fake_reply *reply)
{
    range_ignored(f, request, reply);
    reply->end = FAKE_CLOSE;
    reply->cut_after = is_blob(request) ? CUT : 5;
}

static void other_range(struct faults *f, const struct fake_request *request,
                        struct fake_reply *reply, size_t first, size_t total)
{
    answer_well(f, request, reply);
    if (reply->status != 206)
        return;
    reply->headers[0] = '\0';
    if (total > 0)
        fake_add_header(reply, "Content-Range: bytes %zu-%zu/%zu", first,
                        first + reply->body_len - 1, total);
}

static void range_shifted(struct faults *f, const struct fake_request *request,
                          struct fake_reply *reply)
{
    other_range(f, request, reply, fake_range(request) + 1, BLOB_SIZE + 1);
}

static void range_of_another_total(struct faults *f, const struct fake_request *request,
                                   struct fake_reply *reply)
{
    other_range(f, request, reply, fake_range(request), BLOB_SIZE + 7);
}

static void range_unsaid(struct faults *f, const struct fake_request *request,
                         struct fake_reply *reply)
{
    other_range(f, request, reply, 0, 0);
}

/* Says what was asked for, and sends what lies elsewhere. */
static void range_lies(struct faults *f, const struct fake_request *request,
                       struct fake_reply *reply)
{
    answer_well(f, request, reply);
    if (reply->status == 206)
        reply->body = f->world.bytes;
}

static void head_lies(struct faults *f, const struct fake_request *request,
                      struct fake_reply *reply)
{
    char text[DIGEST_TEXT_MAX];

    answer_well(f, request, reply);
    if (strcmp(request->method, "HEAD") == 0) {
        reply->headers[0] = '\0';
        fake_add_header(reply, "Docker-Content-Digest: %s",
                        digest_print(&f->world.blob.digest, text));
    }
}

static void no_digest(struct faults *f, const struct fake_request *request,
                      struct fake_reply *reply)
{
    answer_well(f, request, reply);
    if (!is_blob(request))
        reply->headers[0] = '\0';
}

static void huge_header(struct faults *f, const struct fake_request *request,
                        struct fake_reply *reply)
{
    answer_well(f, request, reply);
    reply->end = FAKE_HEADERS;
}

static void compressed(struct faults *f, const struct fake_request *request,
                       struct fake_reply *reply)
{
    wrong_bytes(f, request, reply); /* what gzip would make of it */
    fake_add_header(reply, "Content-Encoding: gzip");
}

/* Storage that labels what it was given: the bytes are right as they are. */
static void labelled(struct faults *f, const struct fake_request *request, struct fake_reply *reply)
{
    answer_well(f, request, reply);
    fake_add_header(reply, "Content-Encoding: gzip");
}

static void not_found(struct faults *f UNUSED, const struct fake_request *request UNUSED,
                      struct fake_reply *reply)
{
    reply_text(reply, 404, "{\"errors\":[{\"code\":\"NAME_UNKNOWN\"}]}");
}

static const struct row {
    const char *name;
    answer_fault *answer; /* NULL: the port is closed */
    int blob;             /* results: of a blob, of a manifest, of a HEAD */
    int manifest;
    int head;
    const char *words; /* in the blob's error */
} rows[] = {
    {"connect refused", NULL, -ERR_NET, -ERR_NET, -ERR_NET, "refused"},
    {"reset at once", reset_at_once, -ERR_NET, -ERR_NET, ANY, "connection"},
    {"reset after ten bytes", reset_early, -ERR_NET, -ERR_NET, ANY, "connection"},
    {"truncated body", truncated, -ERR_NET, -ERR_NET, 0, "cut off"},
    {"wrong bytes", wrong_bytes, -ERR_DIGEST, -ERR_DIGEST, 0, "have the digest"},
    {"endless body", too_long, -ERR_DIGEST, -ERR_LIMIT, 0, "sends more"},
    {"slow body", slow_body, -ERR_NET, -ERR_NET, 0, "have arrived in"},
    {"silence", silent, -ERR_NET, -ERR_NET, 0, "nothing has arrived"},
    {"401 without a challenge", no_challenge, -ERR_DENIED, -ERR_DENIED, -ERR_DENIED, "denied"},
    {"401 in mid-pull", denied_midway, -ERR_DENIED, -ERR_DENIED, 0, "denied"},
    {"no token server", no_token_server, -ERR_NET, -ERR_NET, -ERR_NET, "token server"},
    {"429", limited, -ERR_RATE, -ERR_RATE, -ERR_RATE, "rate limit"},
    {"429 with seconds", limited_seconds, -ERR_RATE, -ERR_RATE, -ERR_RATE, "rate limit"},
    {"429 with a date", limited_date, -ERR_RATE, -ERR_RATE, -ERR_RATE, "rate limit"},
    {"429 with a date that is past", limited_past, -ERR_RATE, -ERR_RATE, -ERR_RATE, "rate limit"},
    {"429 in the body", limited_in_the_body, -ERR_RATE, -ERR_RATE, -ERR_RATE, "rate limit"},
    {"500 storm", storm, -ERR_NET, -ERR_NET, -ERR_NET, "status 500"},
    {"endless error page", endless_error, -ERR_NET, -ERR_NET, -ERR_NET, "status 502"},
    {"redirect loop", redirect_loop, -ERR_UNSUPPORTED, -ERR_UNSUPPORTED, -ERR_UNSUPPORTED,
     "redirects"},
    {"redirect to a closed port", redirect_nowhere, -ERR_NET, -ERR_NET, -ERR_NET, "refused"},
    {"redirect to a file", redirect_to_a_file, -ERR_UNSUPPORTED, -ERR_UNSUPPORTED, -ERR_UNSUPPORTED,
     "redirect"},
    {"range ignored", range_ignored, 0, 0, 0, ""},
    {"range ignored, body cut", range_ignored_and_cut, -ERR_NET, -ERR_NET, 0, "cut off"},
    {"range shifted", range_shifted, 0, 0, 0, ""},
    {"range of another total", range_of_another_total, 0, 0, 0, ""},
    {"range unsaid", range_unsaid, 0, 0, 0, ""},
    {"range lies", range_lies, 0, 0, 0, ""},
    {"HEAD lies", head_lies, 0, 0, 0, ""},
    {"no Docker-Content-Digest", no_digest, 0, 0, -ERR_UNSUPPORTED, ""},
    {"huge header", huge_header, -ERR_LIMIT, -ERR_LIMIT, -ERR_LIMIT, "header"},
    {"gzip encoding", compressed, -ERR_DIGEST, -ERR_DIGEST, 0, "Content-Encoding"},
    {"gzip label", labelled, 0, 0, 0, ""},
    {"not found", not_found, -ERR_NOTFOUND, -ERR_NOTFOUND, -ERR_NOTFOUND, "not found"},
};

/* ---- Pulls ------------------------------------------------------------------------------ */

struct handler_ctx {
    struct faults *f;
    const struct row *row;
};

static void faulty_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct handler_ctx *h = ctx;

    h->f->requests++;
    h->row->answer(h->f, request, reply);
}

static void client(struct world *w, const struct registry_network *network, bool ranges,
                   int64_t stall_ms)
{
    struct registry_tuning quick = {.retry_wait_ms = 1,
                                    .gate_wait_ms = 1,
                                    .gate_max_wait_ms = 2000,
                                    .helper_timeout_ms = 1000,
                                    .ranges_min = ranges ? BLOB_SIZE / 2 : 0,
                                    .segment_len = SEGMENT};
    struct registry_options options = {.network = network,
                                       .config_path = "/nonexistent/config.json",
                                       .stall_timeout_ms = stall_ms,
                                       .tries = TRIES,
                                       .cancel = &w->cancel};
    struct err e = ERR_INIT;

    registry_free(w->client);
    w->client = NULL;
    assert_int_equal(registry_new_tuned(&w->client, &options, &quick, &e), 0);
    assert_int_equal(ftruncate(w->fd, 0), 0);
}

/* Whatever the file holds is the blob's, as far as it claims. */
static void check_no_wrong_bytes(const struct row *row, const struct world *w)
{
    struct err e = ERR_INIT;
    uint64_t size = world_file_size(w);
    AUTO_FREE uint8_t *data = mem_zalloc(BLOB_SIZE);

    if (size > BLOB_SIZE) /* has a trailer, which says what is there */
        return;
    assert_int_equal(file_pread_full(w->fd, data, (size_t)size, 0, &e), 0);
    if (memcmp(data, w->bytes, (size_t)size) != 0)
        fail_msg("%s: wrong bytes among %llu", row->name, (unsigned long long)size);
}

static void expect(const struct row *row, const char *what, int rc, int wanted, const struct err *e)
{
    if (rc != wanted && wanted != ANY)
        fail_msg("%s, %s: %d, not %d: %s", row->name, what, rc, wanted, e->text);
}

static void pull_blob(const struct row *row, struct world *w, const struct oci_ref *ref,
                      const char *what, int wanted)
{
    struct err e = ERR_INIT;
    int rc = registry_blob(w->client, ref, &w->blob, w->fd, NULL, &e);

    expect(row, what, rc, wanted, &e);
    if (rc == 0)
        world_check_file(w);
    else if (!strstr(e.text, row->words))
        fail_msg("%s, %s: no '%s' in: %s", row->name, what, row->words, e.text);
    check_no_wrong_bytes(row, w);
}

static void pull_manifest(const struct row *row, struct world *w, const struct oci_ref *ref,
                          int wanted)
{
    struct oci_descriptor d = {0};
    AUTO_BUF struct buf body;
    struct err e = ERR_INIT;
    int rc = registry_manifest(w->client, ref, &d, &body, &e);

    expect(row, "manifest", rc, wanted, &e);
    if (rc == 0)
        assert_string_equal(buf_text(&body), MANIFEST_TEXT);
    oci_descriptor_fini(&d);
}

static void pull_head(const struct row *row, struct world *w, const struct oci_ref *ref, int wanted)
{
    struct digest digest;
    struct err e = ERR_INIT;

    expect(row, "HEAD", registry_head(w->client, ref, &digest, &e), wanted, &e);
}

static void start(struct faults *f, struct handler_ctx *h, const struct row *row)
{
    struct digest digest;

    *f = (struct faults){0};
    *h = (struct handler_ctx){f, row};
    digest_bytes(&digest, MANIFEST_TEXT, strlen(MANIFEST_TEXT));
    (void)digest_print(&digest, f->manifest_digest);
    world_start(&f->world, faulty_handler, h, NULL);
    if (!row->answer) {
        fake_http_stop(f->world.server);
        f->world.server = NULL;
    }
}

/* Short where it is what ends the fault, and nowhere else: it must not decide by itself. */
static int64_t stall_ms(const struct row *row)
{
    return row->answer == slow_body || row->answer == silent ? 200 : 0;
}

static void test_alone(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *row = &rows[i];
        struct handler_ctx h;
        struct faults f;
        struct world *w = &f.world;

        start(&f, &h, row);
        client(w, NULL, false, stall_ms(row));
        pull_blob(row, w, &w->ref, "blob", row->blob);
        client(w, NULL, true, stall_ms(row));
        f.requests = 0;
        /* of a range that is right, what follows is not read */
        pull_blob(row, w, &w->ref, "blob in parts", row->answer == too_long ? 0 : row->blob);
        client(w, NULL, false, stall_ms(row));
        f.requests = 0;
        pull_manifest(row, w, &w->ref, row->manifest);
        client(w, NULL, false, stall_ms(row));
        f.requests = 0;
        pull_head(row, w, &w->ref, row->head);
        assert_true(f.requests <= 12);
        world_stop(w);
    }
}

static void test_as_a_mirror(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *row = &rows[i];
        struct handler_ctx h;
        struct faults f;
        struct world *w = &f.world;
        struct oci_ref ref;
        struct err e = ERR_INIT;

        start(&f, &h, row);
        f.healthy = fake_http_start(healthy_handler, &f);
        AUTO_FREE char *host = mem_printf("127.0.0.1:%u", fake_http_port(f.healthy));
        AUTO_FREE char *name = mem_printf("%s/team/app:v1", host);
        AUTO_FREE char *url = mem_printf("http://%s", w->host);
        struct registry_mirror mirror = {.url = url};
        struct registry_host rule = {.name = host, .mirrors = &mirror, .mirror_count = 1};
        struct registry_network network = {.hosts = &rule, .host_count = 1};
        assert_int_equal(oci_ref_parse(&ref, name, &e), 0);

        client(w, &network, false, stall_ms(row));
        pull_blob(row, w, &ref, "mirrored blob", 0);
        client(w, &network, true, stall_ms(row));
        f.requests = 0;
        pull_blob(row, w, &ref, "mirrored blob in parts", 0);
        f.requests = 0;
        pull_manifest(row, w, &ref, 0);
        f.requests = 0;
        pull_head(row, w, &ref, 0);
        oci_ref_fini(&ref);
        fake_http_stop(f.healthy);
        world_stop(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_as_a_mirror),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
