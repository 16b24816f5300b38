/* SPDX-License-Identifier: MIT */
/*
 * A template tried out as its users will: a sandbox is started from the alias and a command run in
 * it. Commands go to envd in the sandbox, which speaks the Connect protocol
 * (connectrpc.com/docs/protocol, "Streaming RPCs"): process.Process/Start answers with a stream of
 * envelopes, each a byte of flags, four of length and a JSON message, the last one marked. AgentENV
 * forwards to it from the API's own address by two headers; E2B Cloud has a host name for each
 * sandbox and port.
 */
#include "registry/e2b_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

enum {
    SANDBOX_SECONDS = 300, /* what is forgotten goes away by itself */
    EXEC_TIMEOUT_MS = 60 * 1000,
    EXEC_SLACK_MS = 10 * 1000,
    PING_SECONDS = 10, /* envd then says something at least so often */
    ENVELOPE_LEN = 5,
    FLAG_COMPRESSED = 1,
    FLAG_END = 2,
    TAIL_LEN = 1000,
    DOMAIN_MAX_LEN = 200,
    PATH_LEN = 256
};

#define ENVD_PORT "49983"

struct sandbox {
    char *id;
    char *token;  /* for envd; never printed; NULL: none is needed */
    char *domain; /* NULL: none */
};

static void sandbox_fini(struct sandbox *s)
{
    free(s->id);
    free(s->domain);
    secret_free(s->token);
}
#define AUTO_SANDBOX CLEANUP(sandbox_fini)

/* ---- Life ---------------------------------------------------------------------------------- */

/* As the SDKs ask for one, but that time shall kill it: AgentENV would pause it, for ever. */
static struct json *create_body(const char *alias)
{
    struct json *body = json_new_object();
    if (!body)
        return NULL;
    json_set(body, "templateID", json_new_string(alias));
    json_set(body, "timeout", json_new_integer(SANDBOX_SECONDS));
    json_set(body, "secure", json_new_bool(true));
    json_set(body, "allow_internet_access", json_new_bool(true));
    json_set(body, "autoPause", json_new_bool(false));
    json_set(body, "metadata", json_new_object());
    json_set(body, "envVars", json_new_object());
    return body;
}

static const char *text_of(const struct json *object, const char *key)
{
    const struct json *member = json_member(object, key);
    return member ? json_as_string(member) : NULL;
}

static int create(struct e2b *c, const char *alias, struct sandbox *out, struct err *e)
{
    static const char doing[] = "starting a sandbox";
    static const char letters[] = E2B_ID_LETTERS ".";
    AUTO_JSON struct json *body = create_body(alias);
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    struct e2b_call call = {.method = "POST", .path = "/sandboxes", .doing = doing, .body = body};
    int rc = body ? e2b_send(c, &call, &reply, e) : err_nomem(e, "request");
    if (rc < 0)
        return rc;
    if (!e2b_is_ok(&reply))
        return e2b_refused(c, &reply, doing, e);
    rc = e2b_take_id(&out->id, c, reply.json, "sandboxID", doing, e);
    if (rc < 0)
        return rc;
    const char *token = text_of(reply.json, "envdAccessToken");
    const char *domain = text_of(reply.json, "domain");
    if (token && (strlen(token) > LIMIT_TOKEN || strpbrk(token, "\r\n")))
        return e2b_malformed(c, doing, "envdAccessToken", e);
    if (domain && (strlen(domain) > DOMAIN_MAX_LEN || domain[strspn(domain, letters)] != '\0'))
        return e2b_malformed(c, doing, "domain", e);
    out->token = token ? mem_strdup(token) : NULL;
    out->domain = domain && *domain ? mem_strdup(domain) : NULL;
    return (token && !out->token) || (domain && *domain && !out->domain) ? err_nomem(e, "sandbox")
                                                                         : 0;
}

static int destroy(struct e2b *c, const struct sandbox *s, struct err *e)
{
    static const char doing[] = "killing the sandbox";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    snprintf(path, sizeof(path), "/sandboxes/%s", s->id);
    struct e2b_call call = {.method = "DELETE", .path = path, .doing = doing, .finishing = true};
    int rc = e2b_send(c, &call, &reply, e);
    if (rc < 0 || e2b_is_ok(&reply) || reply.code == 404)
        return rc;
    return e2b_refused(c, &reply, doing, e);
}

/* ---- A command ----------------------------------------------------------------------------- */

/* The end of what a command printed. */
struct tail {
    char text[TAIL_LEN + 1];
    size_t len;
};

static void tail_add(struct tail *t, const uint8_t *data, size_t len)
{
    if (len > TAIL_LEN) {
        data += len - TAIL_LEN;
        len = TAIL_LEN;
    }
    size_t kept = t->len + len > TAIL_LEN ? TAIL_LEN - len : t->len;
    memmove(t->text, t->text + t->len - kept, kept);
    memcpy(t->text + kept, data, len);
    t->len = kept + len;
    t->text[t->len] = '\0';
}

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Adds what base64 text stands for; what is none ends it. */
static void tail_add_base64(struct tail *t, const char *text)
{
    uint32_t bits = 0;
    unsigned count = 0;
    for (int digit; (digit = digit_of(*text)) >= 0; text++) {
        bits = bits << 6 | (uint32_t)digit;
        count += 6;
        if (count < 8)
            continue;
        count -= 8;
        uint8_t byte = (uint8_t)(bits >> count);
        tail_add(t, &byte, 1);
    }
}

static int command_body(struct buf *out, const char *command, struct err *e)
{
    AUTO_JSON struct json *body = json_new_object();
    struct json *process = json_new_object();
    struct json *args = json_new_array();
    AUTO_FREE char *text = NULL;
    json_append(args, json_new_string("-l"));
    json_append(args, json_new_string("-c"));
    json_append(args, json_new_string(command));
    json_set(process, "cmd", json_new_string("/bin/bash"));
    json_set(process, "args", args);
    json_set(process, "envs", json_new_object());
    json_set(body, "process", process);
    json_set(body, "stdin", json_new_bool(false));
    int rc = json_print(body, 0, &text, e);
    if (rc < 0)
        return rc;
    size_t len = strlen(text);
    const uint8_t head[ENVELOPE_LEN] = {0, (uint8_t)(len >> 24), (uint8_t)(len >> 16),
                                        (uint8_t)(len >> 8), (uint8_t)len};
    rc = buf_add(out, head, sizeof(head), e);
    return rc < 0 ? rc : buf_add(out, text, len, e);
}

/* What came of a command. */
struct outcome {
    bool ended;
    int64_t status;
    struct tail output;
};

static int read_message(struct outcome *out, const struct json *message, bool last,
                        const char *where, struct err *e)
{
    bool is_object = json_kind(message) == JSON_KIND_OBJECT;
    const struct json *error = is_object && last ? json_member(message, "error") : NULL;
    if (error && json_kind(error) == JSON_KIND_OBJECT) {
        const char *text = text_of(error, "message");
        AUTO_FREE char *clean = text ? e2b_clean(text, TAIL_LEN, false) : NULL;
        return err_set(e, ERR_NET, "%s: running a command: %s", where, clean ? clean : "error");
    }
    const struct json *event = is_object ? json_member(message, "event") : NULL;
    if (!event || json_kind(event) != JSON_KIND_OBJECT)
        return 0; /* newer ones say more */
    const struct json *data = json_member(event, "data");
    const struct json *end = json_member(event, "end");
    if (data && json_kind(data) == JSON_KIND_OBJECT) {
        const char *text = text_of(data, "stdout");
        const char *errors = text_of(data, "stderr");
        if (text)
            tail_add_base64(&out->output, text);
        if (errors)
            tail_add_base64(&out->output, errors);
    }
    if (end && json_kind(end) == JSON_KIND_OBJECT) {
        const struct json *status = json_member(end, "exitCode");
        if (!status)
            status = json_member(end, "exit_code");
        out->ended = true;
        out->status = status ? json_as_integer(status) : 0;
    }
    return 0;
}

static int read_stream(struct outcome *out, const struct buf *stream, const char *where,
                       struct err *e)
{
    const uint8_t *at = (const uint8_t *)stream->data;
    size_t left = stream->len;
    int rc = 0;
    while (rc == 0 && left >= ENVELOPE_LEN) {
        size_t len = (size_t)at[1] << 24 | (size_t)at[2] << 16 | (size_t)at[3] << 8 | at[4];
        unsigned flags = at[0];
        if (flags & FLAG_COMPRESSED || len > left - ENVELOPE_LEN)
            return err_set(e, ERR_CORRUPT, "%s: running a command: no Connect stream", where);
        AUTO_JSON struct json *message = NULL;
        if (len > 0)
            rc = json_parse(&message, at + ENVELOPE_LEN, len, where, e);
        if (rc == 0 && message)
            rc = read_message(out, message, flags & FLAG_END, where, e);
        at += ENVELOPE_LEN + len;
        left -= ENVELOPE_LEN + len;
    }
    if (rc == 0 && !out->ended)
        rc = err_set(e, ERR_NET, "%s: the command's end was not told", where);
    return rc;
}

static char *envd_url(const struct e2b *c, const struct sandbox *s, bool same_address)
{
    if (c->sandbox_url)
        return mem_strdup(c->sandbox_url);
    if (same_address || !s->domain)
        return mem_strdup(c->api_url);
    return mem_printf("https://" ENVD_PORT "-%s.%s", s->id, s->domain);
}

static int perform(struct e2b *c, const struct sandbox *s, const char *base,
                   const struct e2b_smoke *smoke, struct outcome *out, struct err *e)
{
    int64_t timeout_ms = smoke->timeout_ms > 0 ? smoke->timeout_ms : EXEC_TIMEOUT_MS;
    AUTO_BUF struct buf body;
    buf_init(&body, LIMIT_API_REPLY);
    int rc = command_body(&body, smoke->command, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *url = mem_printf("%s/process.Process/Start", base);
    AUTO_FREE char *id = mem_printf("E2b-Sandbox-Id: %s", s->id);
    AUTO_FREE char *time = mem_printf("Connect-Timeout-Ms: %lld", (long long)timeout_ms);
    AUTO_FREE char *ping = mem_printf("Keepalive-Ping-Interval: %d", PING_SECONDS);
    char *token = s->token ? mem_printf("X-Access-Token: %s", s->token) : NULL;
    AUTO_BUF struct buf reply;
    AUTO_HTTP_RESPONSE struct http_response response;
    buf_init(&reply, LIMIT_API_REPLY);
    http_response_init(&response);
    const char *headers[] = {"Content-Type: application/connect+json",
                             "Connect-Protocol-Version: 1",
                             "E2b-Sandbox-Port: " ENVD_PORT,
                             id,
                             time,
                             ping,
                             token,
                             NULL};
    struct http_request request = {.method = "POST",
                                   .url = url,
                                   .headers = headers,
                                   .body = body.data,
                                   .body_len = body.len,
                                   .reply = &reply,
                                   .no_redirects = true,
                                   .total_timeout_ms = timeout_ms + EXEC_SLACK_MS};
    rc = url && id && time && ping && (token || !s->token)
             ? http_perform(c->http, &request, &response, e)
             : err_nomem(e, "request");
    secret_free(token);
    if (rc < 0)
        return err_in(e, "%s: running a command", base);
    if (response.status != 200) {
        AUTO_FREE char *detail = e2b_clean(buf_text(&reply), TAIL_LEN / 2, false);
        http_status_error(e, &response, detail && *detail ? detail : NULL);
        return err_in(e, "%s: running a command", base);
    }
    return read_stream(out, &reply, base, e);
}

static int execute(struct e2b *c, const struct sandbox *s, bool same_address,
                   const struct e2b_smoke *smoke, int64_t *exit_status, struct err *e)
{
    AUTO_FREE char *base = envd_url(c, s, same_address);
    struct outcome outcome = {.ended = false};
    int rc = base ? perform(c, s, base, smoke, &outcome, e) : err_nomem(e, "request");
    if (rc < 0)
        return rc;
    *exit_status = outcome.status;
    if (outcome.status == 0)
        return 0;
    AUTO_FREE char *text = e2b_clean(outcome.output.text, TAIL_LEN, true);
    return err_set(e, ERR_STEP, "in a sandbox of %s the command ended with status %lld%s%s",
                   smoke->alias, (long long)outcome.status, text && *text ? "\n" : "",
                   text ? text : "");
}

/* ---- The sequence -------------------------------------------------------------------------- */

static void enter(struct e2b *c, struct e2b_smoke_result *out, enum e2b_smoke_stage stage,
                  int64_t *since_ms)
{
    int64_t now = e2b_now_ms(c);
    out->stage_ms[out->stage] += now - *since_ms;
    out->stage = stage;
    *since_ms = now;
}

static int not_ready(const struct e2b *c, const char *alias, const struct e2b_build *b,
                     struct err *e)
{
    if (b->state == BUILD_ABSENT)
        return err_set(e, ERR_NOTFOUND, "%s: no template %s", c->name, alias);
    return err_set(e, ERR_NOTFOUND, "%s: template %s %s", c->name, alias,
                   b->state == BUILD_FAILED ? "has a failed build" : "is still being built");
}

int e2b_smoke(struct e2b *c, const struct e2b_smoke *s, struct e2b_smoke_result *out, struct err *e)
{
    struct e2b_template named = {.alias = s->alias};
    struct e2b_session session = {.client = c, .wanted = &named};
    AUTO_E2B_BUILD struct e2b_build found = {.age_ms = -1};
    AUTO_SANDBOX struct sandbox sandbox = {.id = NULL};
    int64_t since_ms = e2b_now_ms(c);
    *out = (struct e2b_smoke_result){.stage = E2B_SMOKE_RESOLVE, .exit_status = -1};
    int rc = e2b_check_alias(s->alias, e);
    if (rc == 0)
        rc = e2b_look_up(&session, &found, e);
    if (rc == 0 && found.state != BUILD_READY)
        rc = not_ready(c, s->alias, &found, e);
    if (rc == 0) {
        enter(c, out, E2B_SMOKE_CREATE, &since_ms);
        rc = create(c, s->alias, &sandbox, e);
    }
    if (rc == 0) {
        enter(c, out, E2B_SMOKE_EXEC, &since_ms);
        rc = execute(c, &sandbox, e2b_one_build(&found), s, &out->exit_status, e);
    }
    if (sandbox.id) {
        struct err other = ERR_INIT;
        enum e2b_smoke_stage reached = out->stage;
        enter(c, out, E2B_SMOKE_DESTROY, &since_ms);
        int gone = destroy(c, &sandbox, &other);
        if (rc == 0 && gone < 0) {
            *e = other;
            rc = gone;
        }
        enter(c, out, rc < 0 && gone == 0 ? reached : E2B_SMOKE_DESTROY, &since_ms);
    } else {
        enter(c, out, out->stage, &since_ms);
    }
    return rc;
}
