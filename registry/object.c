/* SPDX-License-Identifier: MIT */
/*
 * Object stores: one request at a time, signed for S3, tried again where that helps.
 *
 * Waits between tries are random up to a bound that doubles, so that many bakers whom one busy
 * server turned away do not come back all at once.
 */
#include "registry/object.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "registry/internal.h"
#include "registry/object_internal.h"

enum {
    DEFAULT_TRIES = 6,
    RETRY_WAIT_MS = 200,
    RETRY_WAIT_MAX_MS = 20000,
    RETRY_AFTER_MAX_MS = 120000,
    FINISHING_MS = 3000, /* who has been told to stop is not kept long */
    CODE_MAX = 48,
    HEADERS_MAX = 6
};

struct object_store {
    struct object_options options;
    struct object_place place;
    struct http *http;
    struct http *finishing_http; /* not cancelled */
    _Atomic uint64_t gets, heads, puts, deletes, retries, bytes_in, bytes_out;
};

/* ---- Life ------------------------------------------------------------------------------- */

int object_store_open(struct object_store **out, const char *url, const struct object_options *o,
                      struct err *e)
{
    AUTO_OBJECT_STORE struct object_store *s = mem_zalloc(sizeof(*s));
    struct http_options http = {.plain_http_hosts = o->plain_http_hosts, .cancel = o->cancel};

    if (!s)
        return err_nomem(e, "remote store");
    s->options = *o;
    if (s->options.tries == 0)
        s->options.tries = DEFAULT_TRIES;
    if (s->options.retry_wait_ms <= 0)
        s->options.retry_wait_ms = RETRY_WAIT_MS;
    if (object_place_parse(&s->place, url, e) < 0 || http_new(&s->http, &http, e) < 0)
        return err_in(e, "remote store");
    http.cancel = NULL;
    if (http_new(&s->finishing_http, &http, e) < 0)
        return err_in(e, "remote store");
    *out = MOVE(s);
    return 0;
}

void object_store_free(struct object_store *s)
{
    if (!s)
        return;
    http_free(s->http);
    http_free(s->finishing_http);
    object_place_fini(&s->place);
    free(s);
}

const char *object_store_name(const struct object_store *s)
{
    return s->place.name;
}

bool object_store_is_writable(const struct object_store *s)
{
    return s->place.s3;
}

struct object_stats object_stats(const struct object_store *s)
{
    return (struct object_stats){.gets = s->gets,
                                 .heads = s->heads,
                                 .puts = s->puts,
                                 .deletes = s->deletes,
                                 .retries = s->retries,
                                 .bytes_in = s->bytes_in,
                                 .bytes_out = s->bytes_out};
}

/* ---- What an answer means --------------------------------------------------------------- */

/* The text of <Code> in an S3 error document; "" when there is none that looks like one. */
static void error_code(const struct buf *reply, char out[CODE_MAX])
{
    const char *at = reply ? strstr(buf_text(reply), "<Code>") : NULL;
    size_t len = 0;

    out[0] = '\0';
    if (!at)
        return;
    at += strlen("<Code>");
    while (len < CODE_MAX - 1 && isalnum((unsigned char)at[len]))
        len++;
    if (at[len] != '<')
        return;
    memcpy(out, at, len);
    out[len] = '\0';
}

static int clock_error(struct err *e)
{
    char now[CLOCK_TEXT_MAX];

    err_set(e, ERR_DENIED, "its clock and this machine's differ too much (here it is %s)",
            clock_print(clock_wall_ns() / 1000000000, now));
    return err_hint(e, "set this machine's clock: signatures hold for a quarter of an hour");
}

static int denied_error(const struct object_store *s, const struct http_response *r,
                        const char *code, struct err *e)
{
    http_status_error(e, r, *code ? code : NULL);
    if (!s->place.s3)
        return err_hint(e, "the server does not let everyone read this directory");
    return err_hint(e,
                    "check the keys (AWS_ACCESS_KEY_ID, AWS_PROFILE) and what they may do there");
}

/* 0 for 2xx. `reply` is the answer's body, which is an error document then. */
static int judge(const struct object_store *s, const struct http_response *r,
                 const struct buf *reply, struct err *e)
{
    char code[CODE_MAX];

    if (r->status / 100 == 2)
        return 0;
    error_code(reply, code);
    if (strcmp(code, "RequestTimeTooSkewed") == 0)
        return clock_error(e);
    if (strcmp(code, "NoSuchBucket") == 0) {
        err_set(e, ERR_INPUT, "there is no such bucket");
        return err_hint(e, "make the bucket first, or check its name and the endpoint");
    }
    if (r->status == 412)
        return err_set(e, ERR_BUSY, "someone else has written it");
    if (r->status == 409 || r->status == 429) {
        http_status_error(e, r, *code ? code : NULL);
        e->class = ERR_NET;
        return -ERR_NET;
    }
    if (r->status == 401 || r->status == 403)
        return denied_error(s, r, code, e);
    http_status_error(e, r, *code ? code : NULL);
    if (r->status / 100 == 3 || strcmp(code, "AuthorizationHeaderMalformed") == 0) {
        e->class = ERR_INPUT;
        return err_hint(e, "the bucket may be in another region: set AWS_REGION, or ?region= or "
                           "?endpoint= in the URL");
    }
    return -(int)e->class;
}

/* ---- Requests --------------------------------------------------------------------------- */

struct call {
    const char *method;
    const char *name;
    const struct buf *body;      /* NULL: none */
    struct buf *reply;           /* takes the object; may be NULL */
    const char *condition;       /* a header line; NULL: none */
    int64_t deadline_ms;         /* 0: none */
    bool finishing;              /* once, also when cancelled */
    struct object_version *seen; /* may be NULL */
};

/* Headers of one request; lines are owned. */
struct lines {
    char *line[HEADERS_MAX];
    size_t count;
    char *authorization;
};

static void lines_fini(struct lines *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->line[i]);
    free(l->authorization);
}

/* Takes `line` over; NULL: memory is short. */
static int lines_add(struct lines *l, char *line, struct err *e)
{
    if (!line)
        return err_nomem(e, "request");
    l->line[l->count++] = line;
    return 0;
}

static int add_signature(const struct object_store *s, const struct call *c, const char *path,
                         struct lines *l, struct err *e)
{
    const struct s3_login *login = &s->place.login;
    struct s3_request r = {.method = c->method,
                           .host = s->place.host,
                           .path = path,
                           .now_seconds = clock_wall_ns() / 1000000000};
    char date[S3_DATE_MAX];
    char hex[DIGEST_TEXT_MAX];

    s3_date(date, r.now_seconds);
    digest_bytes(&r.payload, c->body ? c->body->data : NULL, c->body ? c->body->len : 0);
    if (lines_add(l, mem_printf("x-amz-date: %s", date), e) < 0 ||
        lines_add(l, mem_printf("x-amz-content-sha256: %s", digest_hex(&r.payload, hex)), e) < 0 ||
        (login->token && lines_add(l, mem_printf("x-amz-security-token: %s", login->token), e) < 0))
        return -(int)e->class;
    return s3_sign(&l->authorization, login, &r, e);
}

static int add_headers(const struct object_store *s, const struct call *c, struct lines *l,
                       struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/%s", s->place.path, c->name);

    if (!path)
        return err_nomem(e, "request");
    if (c->condition && lines_add(l, mem_strdup(c->condition), e) < 0)
        return -(int)e->class;
    if (c->body && lines_add(l, mem_strdup("Content-Type: application/octet-stream"), e) < 0)
        return -(int)e->class;
    return s->place.s3 ? add_signature(s, c, path, l, e) : 0;
}

static void count(struct object_store *s, const struct call *c)
{
    switch (c->method[0]) {
    case 'G':
        s->gets++;
        break;
    case 'H':
        s->heads++;
        break;
    case 'P':
        s->puts++;
        break;
    default:
        s->deletes++;
    }
}

static int64_t time_left(const struct call *c, struct err *e)
{
    if (c->deadline_ms == 0)
        return 0;
    int64_t left = c->deadline_ms - clock_ms();
    return left > 0 ? left : err_set(e, ERR_TIMEOUT, "no time left to ask for it");
}

static int perform(struct object_store *s, const struct call *c, const struct lines *l,
                   struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    AUTO_BUF struct buf document;
    AUTO_FREE char *url = mem_printf("%s/%s", s->place.base, c->name);
    int64_t left = time_left(c, e);
    size_t before = c->reply ? c->reply->len : 0;

    http_response_init(&answer);
    buf_init(&document, LIMIT_TOKEN);
    if (left < 0)
        return (int)left;
    if (!url)
        return err_nomem(e, "request");
    struct http_request request = {.method = c->method,
                                   .url = url,
                                   .headers = (const char *const *)l->line,
                                   .authorization = l->authorization,
                                   .body = c->body ? c->body->data : NULL,
                                   .body_len = c->body ? c->body->len : 0,
                                   .reply = c->reply ? c->reply : &document,
                                   .no_redirects = s->place.s3,
                                   .total_timeout_ms = left};
    int rc = http_perform(c->finishing ? s->finishing_http : s->http, &request, &answer, e);
    if (rc == 0) {
        count(s, c);
        rc = judge(s, &answer, request.reply, e);
    }
    if (rc < 0) {
        if (c->reply)
            c->reply->len = before;
        return rc;
    }
    if (c->seen && answer.etag && strlen(answer.etag) < OBJECT_VERSION_MAX)
        memcpy(c->seen->text, answer.etag, strlen(answer.etag) + 1);
    s->bytes_in += c->reply ? c->reply->len - before : 0;
    s->bytes_out += c->body ? c->body->len : 0;
    return 0;
}

static int try_once(struct object_store *s, const struct call *c, struct err *e)
{
    struct lines l = {0};

    if (c->seen)
        c->seen->text[0] = '\0';
    int rc = add_headers(s, c, &l, e);
    if (rc == 0)
        rc = perform(s, c, &l, e);
    lines_fini(&l);
    return rc;
}

/* A random wait of at most first * 2^(used - 1). */
static long wait_ms(const struct object_store *s, unsigned used)
{
    int64_t most = s->options.retry_wait_ms;
    uint32_t random = 0;

    for (unsigned i = 1; i < used && most < RETRY_WAIT_MAX_MS; i++)
        most *= 2;
    most = most < RETRY_WAIT_MAX_MS ? most : RETRY_WAIT_MAX_MS;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        random = UINT32_MAX / 2;
    return (long)(most / 2 + (int64_t)((uint64_t)random % (uint64_t)(most / 2 + 1)));
}

static int call(struct object_store *s, const struct call *c, struct err *e)
{
    if (!object_name_is_legal(c->name))
        return err_set(e, ERR_INPUT, "'%.64s' is no name of an object", c->name);
    for (unsigned used = 1; try_once(s, c, e) < 0; used++) {
        if (e->class != ERR_NET || used >= s->options.tries || c->finishing ||
            e->retry_after_ms > RETRY_AFTER_MAX_MS)
            return err_in(e, "%s: %s", s->place.name, c->name);
        long wait = e->retry_after_ms > 0 ? e->retry_after_ms : wait_ms(s, used);
        if (c->deadline_ms > 0 && clock_ms() + wait >= c->deadline_ms)
            return err_in(e, "%s: %s", s->place.name, c->name);
        if (cancel_sleep_ms(s->options.cancel, wait, e) < 0)
            return -(int)e->class;
        err_clear(e);
        s->retries++;
    }
    return 0;
}

/* ---- Operations ------------------------------------------------------------------------- */

int object_get(struct object_store *s, const char *name, int64_t deadline_ms, struct buf *out,
               struct object_version *version, struct err *e)
{
    struct call c = {
        .method = "GET", .name = name, .reply = out, .deadline_ms = deadline_ms, .seen = version};

    return call(s, &c, e);
}

int object_has(struct object_store *s, const char *name, bool *found, struct err *e)
{
    struct call c = {.method = "HEAD", .name = name};

    *found = call(s, &c, e) == 0;
    if (*found || e->class != ERR_NOTFOUND)
        return *found ? 0 : -(int)e->class;
    err_clear(e);
    return 0;
}

static int check_writable(const struct object_store *s, struct err *e)
{
    return s->place.s3 ? 0
                       : err_set(e, ERR_UNSUPPORTED,
                                 "%s: a directory behind a web server is only read", s->place.name);
}

int object_put(struct object_store *s, const char *name, const struct buf *data,
               enum object_condition condition, struct object_version *version, struct err *e)
{
    char line[OBJECT_VERSION_MAX + 16];
    struct call c = {.method = "PUT", .name = name, .body = data, .seen = version};

    if (check_writable(s, e) < 0)
        return -(int)e->class;
    if (condition == OBJECT_ABSENT)
        c.condition = "If-None-Match: *";
    if (condition == OBJECT_SAME) {
        snprintf(line, sizeof(line), "If-Match: %s", version->text);
        c.condition = line;
    }
    int rc = call(s, &c, e);
    /* What was to be replaced is gone: no longer the same. */
    if (rc == -ERR_NOTFOUND && condition == OBJECT_SAME)
        return err_set(e, ERR_BUSY, "%s: %s: someone has removed it", s->place.name, name);
    return rc;
}

static int delete (struct object_store *s, struct call *c, struct err *e)
{
    int rc = call(s, c, e);
    if (rc == -ERR_UNSUPPORTED && c->condition) {
        err_clear(e);
        c->condition = NULL;
        rc = call(s, c, e);
    }
    return rc;
}

int object_delete(struct object_store *s, const char *name, const struct object_version *version,
                  struct err *e)
{
    char line[OBJECT_VERSION_MAX + 16];
    struct call c = {.method = "DELETE", .name = name};

    if (check_writable(s, e) < 0)
        return -(int)e->class;
    if (version && version->text[0]) {
        snprintf(line, sizeof(line), "If-Match: %s", version->text);
        c.condition = line;
    }
    int rc = delete (s, &c, e);
    if (rc < 0 && cancel_is_set(s->options.cancel)) {
        err_clear(e);
        c.finishing = true;
        c.deadline_ms = clock_ms() + FINISHING_MS;
        rc = delete (s, &c, e);
    }
    if (rc == -ERR_NOTFOUND) {
        err_clear(e);
        return 0;
    }
    return rc;
}
