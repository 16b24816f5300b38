/* SPDX-License-Identifier: MIT */
/*
 * One call to the template server. Refusals come in four shapes: JSON {code, message}; the same
 * with status 500 around a code that says better what happened; plain text from before the handler;
 * and an empty 401. All become one error here; e2b.c decides by code alone.
 */
#include "registry/e2b_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

enum {
    CALL_TIMEOUT_MS = 60 * 1000,
    CLEANUP_TIMEOUT_MS = 10 * 1000,
    CALL_TRIES = 5,
    LIMITED_WAIT_MS = 5 * 1000, /* where a server that is full does not say how long; doubles */
    LIMITED_WAIT_MAX_MS = 10 * 1000,
    DETAIL_MAX_LEN = 500,
    ID_MAX_LEN = 128
};

void e2b_reply_fini(struct e2b_reply *r)
{
    json_free(r->json);
    free(r->detail);
    free(r->next_token);
    *r = (struct e2b_reply){.retry_after_ms = -1};
}

int64_t e2b_now_ms(const struct e2b *c)
{
    const struct e2b_clock *clock = c->options.clock;
    return clock ? clock->now_ms(clock->ctx) : clock_ms();
}

int e2b_sleep_ms(const struct e2b *c, int64_t ms, bool finishing, struct err *e)
{
    const struct e2b_clock *clock = c->options.clock;
    if (clock)
        return clock->sleep_ms(clock->ctx, ms, e);
    return cancel_sleep_ms(finishing ? NULL : c->options.cancel, (long)ms, e);
}

static bool has_words(const char *text, const char *words)
{
    size_t len = strlen(words);
    for (; *text; text++) {
        if (strncasecmp(text, words, len) == 0)
            return true;
    }
    return false;
}

static bool has_any(const char *text, const char *const *words)
{
    for (; text && *words; words++) {
        if (has_words(text, *words))
            return true;
    }
    return false;
}

bool e2b_is_full(const char *text)
{
    static const char *const words[] = {"too many",
                                        "rate limit",
                                        "throttl",
                                        "capacity",
                                        "overloaded",
                                        "resource exhausted",
                                        "no available",
                                        "nodes available",
                                        "resources available",
                                        "try again later",
                                        NULL};
    return has_any(text, words);
}

bool e2b_is_taken(const struct e2b_reply *r)
{
    static const char *const words[] = {"already", "bound",     "taken",  "exists",
                                        "in use",  "duplicate", "unique", NULL};
    return r->code == 409 || has_any(r->detail, words);
}

bool e2b_is_about_names(const char *text)
{
    static const char *const words[] = {"name", "alias", "unknown", "additional", NULL};
    return has_any(text, words);
}

bool e2b_is_ok(const struct e2b_reply *r)
{
    return r->code >= 200 && r->code < 300;
}

char *e2b_clean(const char *text, size_t max_len, bool lines)
{
    size_t len = strnlen(text, max_len);
    /* Never cut inside a UTF-8 sequence. */
    while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80)
        len--;
    while (len > 0 && (unsigned char)text[len - 1] <= ' ')
        len--;
    char *clean = mem_strndup(text, len);
    if (!clean)
        return NULL;
    return lines ? text_make_harmless(clean) : text_make_line(clean);
}

static int64_t inner_code(const struct json *j)
{
    const struct json *code = j && json_kind(j) == JSON_KIND_OBJECT ? json_member(j, "code") : NULL;
    return code ? json_as_integer(code) : 0;
}

/* Turns the transport's answer into ours. A body that should be JSON and is not counts as text. */
static void read_reply(struct e2b_reply *out, const struct http_response *response,
                       const struct buf *body)
{
    struct err ignored = ERR_INIT;
    const struct json *message = NULL;
    out->code = response->status;
    out->retry_after_ms = response->retry_after_ms;
    if (response->next_token)
        out->next_token = mem_strdup(response->next_token);
    bool json = response->content_type && strcmp(response->content_type, "application/json") == 0;
    if (json && body->len > 0 &&
        json_parse(&out->json, body->data, body->len, "answer", &ignored) < 0)
        out->json = NULL;
    int64_t code = inner_code(out->json);
    if (response->status == 500 && code >= 400 && code < 500)
        out->code = (int)code;
    if (e2b_is_ok(out))
        return;
    if (out->json && json_kind(out->json) == JSON_KIND_OBJECT)
        message = json_member(out->json, "message");
    const char *text = message ? json_as_string(message) : NULL;
    out->detail = e2b_clean(text ? text : buf_text(body), DETAIL_MAX_LEN, false);
    if (out->detail && out->detail[0] == '\0')
        free(MOVE(out->detail));
}

static int send_once(struct e2b *c, const struct e2b_call *call, const char *body,
                     struct e2b_reply *out, struct err *e)
{
    AUTO_FREE char *url = mem_printf("%s%s", c->api_url, call->path);
    if (!url)
        return err_nomem(e, "URL");
    const char *headers[] = {c->key_header, "Accept: application/json",
                             body ? "Content-Type: application/json" : NULL, NULL};
    AUTO_BUF struct buf reply;
    buf_init(&reply, LIMIT_API_REPLY);
    struct http_request request = {.method = call->method,
                                   .url = url,
                                   .headers = headers,
                                   .body = body,
                                   .body_len = body ? strlen(body) : 0,
                                   .reply = &reply,
                                   .no_redirects = true,
                                   .total_timeout_ms =
                                       call->cleanup ? CLEANUP_TIMEOUT_MS : CALL_TIMEOUT_MS};
    AUTO_HTTP_RESPONSE struct http_response response;
    http_response_init(&response);
    struct http *http = call->cleanup || call->finishing ? c->cleanup_http : c->http;
    int rc = http_perform(http, &request, &response, e);
    if (rc == 0)
        read_reply(out, &response, &reply);
    return rc;
}

/* A refusal that time will lift. Another team's alias or a wrong key is none, whatever its words. */
static bool is_limited(const struct e2b_reply *r)
{
    if (r->code == 429)
        return true;
    return r->code >= 400 && r->code != 401 && r->code != 403 && r->code != 404 &&
           e2b_is_full(r->detail);
}

/*
 * Waits until a server that was full may be asked again; false when that is later than a build may
 * take. Builds of other threads wait as well.
 */
static bool wait_limited(struct e2b *c, const struct e2b_call *call, const struct e2b_reply *r,
                         unsigned times, int64_t deadline_ms, struct err *e)
{
    int64_t wait = r->retry_after_ms;
    if (wait < 0) {
        wait = LIMITED_WAIT_MS << (times < 1 ? times : 1);
        wait = wait < LIMITED_WAIT_MAX_MS ? wait : LIMITED_WAIT_MAX_MS;
    }
    /* "Retry-After: 0" does not mean as fast as we can. */
    if (wait < c->options.poll_interval_ms)
        wait = c->options.poll_interval_ms;
    int64_t until = e2b_now_ms(c) + wait;
    if (until > deadline_ms)
        return false;
    if (call->build)
        atomic_store(&c->open_ms, until);
    return e2b_sleep_ms(c, wait, call->finishing, e) == 0;
}

/* While another thread has been told to wait. What it is told is about builds, not about looking. */
static int wait_open(struct e2b *c, const struct e2b_call *call, struct err *e)
{
    int64_t wait = call->build ? atomic_load(&c->open_ms) - e2b_now_ms(c) : 0;
    return wait > 0 ? e2b_sleep_ms(c, wait, call->finishing, e) : 0;
}

int e2b_send(struct e2b *c, const struct e2b_call *call, struct e2b_reply *out, struct err *e)
{
    AUTO_FREE char *body = NULL;
    if (call->body && json_print(call->body, 0, &body, e) < 0)
        return -(int)e->class;
    bool repeatable = strcmp(call->method, "POST") != 0;
    int64_t deadline_ms = e2b_now_ms(c) + c->options.build_timeout_ms;
    struct retry retry = {.tries = repeatable && !call->cleanup ? CALL_TRIES : 1,
                          .first_wait_ms = c->options.poll_interval_ms,
                          .cancel = call->finishing ? NULL : c->options.cancel};
    for (unsigned limits = 0;;) {
        e2b_reply_fini(out);
        int rc = wait_open(c, call, e);
        if (rc < 0)
            return rc;
        rc = send_once(c, call, body, out, e);
        bool limited = rc == 0 && !call->cleanup && is_limited(out);
        if (limited && wait_limited(c, call, out, limits++, deadline_ms, e))
            continue;
        if (rc == 0 && e->class == ERR_CANCELLED)
            return -ERR_CANCELLED;
        if (limited)
            out->code = 429;
        bool broken = rc == 0 && (out->code == 408 || out->code >= 500);
        if (rc == 0 && !(broken && repeatable))
            return 0;
        if (broken)
            rc = e2b_refused(c, out, call->doing, e);
        else
            rc = err_in(e, "%s: %s", c->name, call->doing);
        if (!retry_again(&retry, e))
            return e->class == ERR_CANCELLED ? -ERR_CANCELLED : rc;
    }
}

int e2b_refused(const struct e2b *c, const struct e2b_reply *r, const char *doing, struct err *e)
{
    struct http_response response;
    http_response_init(&response);
    response.status = r->code;
    response.retry_after_ms = r->retry_after_ms;
    http_status_error(e, &response, r->detail);
    if (r->code == 401)
        err_hint(e, "set E2B_API_KEY to a key that this server knows");
    return err_in(e, "%s: %s", c->name, doing);
}

int e2b_malformed(const struct e2b *c, const char *doing, const char *why, struct err *e)
{
    err_set(e, ERR_CORRUPT, "%s: %s: the answer is not what the E2B API says: %s", c->api_url,
            doing, why);
    return err_hint(e, "check that E2B_API_URL is the address of a template server");
}

int e2b_take_id(char **out, const struct e2b *c, const struct json *object, const char *key,
                const char *doing, struct err *e)
{
    bool is_object = object && json_kind(object) == JSON_KIND_OBJECT;
    const struct json *member = is_object ? json_member(object, key) : NULL;
    const char *id = member ? json_as_string(member) : NULL;
    size_t len = id ? strlen(id) : 0;
    if (len == 0 || len > ID_MAX_LEN || strspn(id, E2B_ID_LETTERS) != len)
        return e2b_malformed(c, doing, key, e);
    char *copy = mem_strdup(id);
    if (!copy)
        return err_nomem(e, "id");
    *out = copy;
    return 0;
}
