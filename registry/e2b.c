/* SPDX-License-Identifier: MIT */
/*
 * Registering a template with a server that speaks the E2B API.
 *
 * An alias is claimed by the first call (POST /v3/templates), long before anything is built, and
 * stays claimed when the build fails: that an alias exists proves nothing. So the build behind it
 * is looked at first; a dead one is removed, one that is under way is waited for, since it may be
 * another baker's; and whoever claims an alias and then fails gives it back.
 *
 * Two families of servers exist. AgentENV has one build per template, both with the same id, and
 * refuses to build an alias again until it is deleted. E2B Cloud adds a build to the template, and
 * deleting would take good builds along. Equal ids tell the first from the second.
 */
#include "registry/e2b_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    POLL_FIRST_MS = 1000,
    POLL_GROWTH = 5, /* the delay grows up to this many times the first */
    BUILD_TIMEOUT_MS = 1800 * 1000,
    WAITING_GRACE_MS = 30 * 1000, /* between claim and start lie two calls */
    ROUNDS_MAX = 4,
    LOG_PAGE = 100,
    PATH_LEN = 512, /* two ids and what stands around them */
    LINE_MAX_LEN = 1000,
    STEP_MAX_LEN = 200,
    MESSAGE_MAX_LEN = 1200
};

enum build_state { BUILD_ABSENT, BUILD_WAITING, BUILD_RUNNING, BUILD_READY, BUILD_FAILED };

/* What stands behind an alias, or what we have made. */
struct build {
    enum build_state state;
    char *template_id;
    char *build_id;
    int64_t age_ms; /* -1: unknown */
    bool late;      /* polling ended because its time was over */
};

static void build_fini(struct build *b)
{
    free(b->template_id);
    free(b->build_id);
    *b = (struct build){.age_ms = -1};
}
#define AUTO_BUILD CLEANUP(build_fini)

struct session {
    struct e2b *client;
    const struct e2b_template *wanted;
    e2b_log *log;
    void *log_ctx;
};

/* ---- Life ---------------------------------------------------------------------------------- */

static int check_options(const struct e2b_options *o, struct err *e)
{
    static const char letters[] = E2B_ID_LETTERS ".~";
    if (!o->api_url ||
        (strncmp(o->api_url, "http://", 7) != 0 && strncmp(o->api_url, "https://", 8) != 0)) {
        err_set(e, ERR_INPUT, "the template server's address must start with http:// or https://");
        return err_hint(e, "set E2B_API_URL, for example to http://127.0.0.1:8000");
    }
    size_t len = o->api_key ? strlen(o->api_key) : 0;
    if (len == 0 || strspn(o->api_key, letters) != len) {
        err_set(e, ERR_INPUT, "the template server's API key is %s",
                len == 0 ? "missing" : "not made of letters, digits and '-._~'");
        return err_hint(e, "set E2B_API_KEY");
    }
    return 0;
}

static int make_clients(struct e2b *c, struct err *e)
{
    struct http_options options = {.plain_http_anywhere = true, .cancel = c->options.cancel};
    int rc = http_new(&c->http, &options, e);
    options.cancel = NULL;
    return rc < 0 ? rc : http_new(&c->cleanup_http, &options, e);
}

int e2b_new(struct e2b **out, const struct e2b_options *options, struct err *e)
{
    int rc = check_options(options, e);
    if (rc < 0)
        return rc;
    AUTO_E2B struct e2b *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "template server");
    c->options = *options;
    c->options.api_key = NULL;
    c->options.api_url = NULL;
    if (c->options.poll_interval_ms <= 0)
        c->options.poll_interval_ms = POLL_FIRST_MS;
    if (c->options.build_timeout_ms <= 0)
        c->options.build_timeout_ms = BUILD_TIMEOUT_MS;
    size_t len = strlen(options->api_url);
    while (len > 0 && options->api_url[len - 1] == '/')
        len--;
    c->api_url = mem_strndup(options->api_url, len);
    c->key_header = mem_printf("X-API-Key: %s", options->api_key);
    if (!c->api_url || !c->key_header)
        return err_nomem(e, "template server");
    rc = make_clients(c, e);
    if (rc < 0)
        return rc;
    *out = MOVE(c);
    return 0;
}

void e2b_free(struct e2b *c)
{
    if (!c)
        return;
    http_free(c->http);
    http_free(c->cleanup_http);
    secret_free(c->key_header);
    free(c->api_url);
    free(c);
}

void e2b_result_fini(struct e2b_result *r)
{
    free(r->template_id);
    free(r->build_id);
    *r = (struct e2b_result){.built = false};
}

/* ---- Small pieces -------------------------------------------------------------------------- */

static void say(const struct session *s, const char *line)
{
    if (s->log)
        s->log(s->log_ctx, line);
}

static enum build_state parse_state(const char *text)
{
    if (strcmp(text, "ready") == 0)
        return BUILD_READY;
    if (strcmp(text, "error") == 0)
        return BUILD_FAILED;
    return strcmp(text, "waiting") == 0 ? BUILD_WAITING : BUILD_RUNNING;
}

static int get(const struct session *s, const char *doing, const char *path, struct e2b_reply *out,
               struct err *e)
{
    struct e2b_call call = {.method = "GET", .path = path, .doing = doing};
    return e2b_send(s->client, &call, out, e);
}

/* Age by the server's RFC 3339 time, whose fraction is dropped; -1 when it cannot be told. */
static int64_t age_ms(const char *created)
{
    enum { SECONDS_LEN = 19 };
    char text[SECONDS_LEN + 2];
    size_t len = created ? strlen(created) : 0;
    bool utc =
        len > SECONDS_LEN && (created[len - 1] == 'Z' || strcmp(created + len - 6, "+00:00") == 0);
    if (!utc)
        return -1;
    memcpy(text, created, SECONDS_LEN);
    memcpy(text + SECONDS_LEN, "Z", 2);
    int64_t seconds = clock_parse(text);
    if (seconds < 0)
        return -1;
    int64_t age = clock_wall_ns() / 1000000 - seconds * 1000;
    return age > 0 ? age : 0;
}

static bool one_build_per_template(const struct build *b)
{
    return b->template_id && b->build_id && strcmp(b->template_id, b->build_id) == 0;
}

/* ---- Looking an alias up ------------------------------------------------------------------- */

/* The build that counts: a ready one, else the youngest. NULL when there is none. */
static const struct json *pick_build(const struct json *builds)
{
    const struct json *best = NULL;
    const char *best_created = "";
    for (size_t i = 0; i < json_length(builds); i++) {
        const struct json *build = json_element(builds, i);
        if (json_kind(build) != JSON_KIND_OBJECT)
            continue;
        const struct json *status = json_member(build, "status");
        const struct json *created = json_member(build, "createdAt");
        const char *status_text = status ? json_as_string(status) : NULL;
        const char *created_text = created ? json_as_string(created) : NULL;
        if (status_text && strcmp(status_text, "ready") == 0)
            return build;
        if (!best || (created_text && strcmp(created_text, best_created) > 0)) {
            best = build;
            best_created = created_text ? created_text : "";
        }
    }
    return best;
}

static int read_template(const struct session *s, const struct json *template, struct build *out,
                         const char *doing, struct err *e)
{
    struct json *builds;
    const char *status;
    const char *created;
    if (!template || json_kind(template) != JSON_KIND_OBJECT ||
        json_get_array(template, "builds", &builds, e) < 0)
        return e2b_malformed(s->client, doing, "builds", e);
    const struct json *build = pick_build(builds);
    if (!build) {
        out->state = BUILD_FAILED; /* claimed, with nothing behind it */
        return 0;
    }
    if (json_get_string(build, "status", &status, e) < 0 ||
        json_get_string_opt(build, "createdAt", &created, e) < 0)
        return e2b_malformed(s->client, doing, "status", e);
    out->state = parse_state(status);
    out->age_ms = age_ms(created);
    return e2b_take_id(&out->build_id, s->client, build, "buildID", doing, e);
}

/* Fills *out with what stands behind its template_id. */
static int look_at_template(const struct session *s, struct build *out, struct err *e)
{
    static const char doing[] = "looking at the template";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply template = {.retry_after_ms = -1};
    snprintf(path, sizeof(path), "/templates/%s", out->template_id);
    int rc = get(s, doing, path, &template, e);
    if (rc < 0)
        return rc;
    if (template.code == 404) { /* deleted meanwhile */
        build_fini(out);
        return 0;
    }
    if (!e2b_is_ok(&template))
        return e2b_refused(s->client, &template, doing, e);
    return read_template(s, template.json, out, doing, e);
}

static int look_up(const struct session *s, struct build *out, struct err *e)
{
    static const char doing[] = "looking the alias up";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply alias = {.retry_after_ms = -1};
    build_fini(out);
    snprintf(path, sizeof(path), "/templates/aliases/%s", s->wanted->alias);
    int rc = get(s, doing, path, &alias, e);
    if (rc < 0 || alias.code == 404)
        return rc;
    if (alias.code == 403) {
        err_set(e, ERR_DENIED, "%s: alias %s belongs to another team", s->client->api_url,
                s->wanted->alias);
        return err_hint(e, "use that team's E2B_API_KEY");
    }
    if (!e2b_is_ok(&alias))
        return e2b_refused(s->client, &alias, doing, e);
    rc = e2b_take_id(&out->template_id, s->client, alias.json, "templateID", doing, e);
    return rc < 0 ? rc : look_at_template(s, out, e);
}

/* ---- Polling ------------------------------------------------------------------------------- */

/* Passes this page's log lines on; *offset counts those of all pages. */
static void pass_logs(const struct session *s, const struct json *status, uint64_t *offset)
{
    const struct json *entries = json_member(status, "logEntries");
    size_t count = entries ? json_length(entries) : 0;
    for (size_t i = 0; i < count; i++) {
        const struct json *entry = json_element(entries, i);
        const struct json *message =
            json_kind(entry) == JSON_KIND_OBJECT ? json_member(entry, "message") : NULL;
        const char *text = message ? json_as_string(message) : NULL;
        AUTO_FREE char *line = text ? e2b_clean(text, LINE_MAX_LEN, false) : NULL;
        if (line)
            say(s, line);
    }
    *offset += count;
}

/* The server's reason as ERR_STEP. Its step is text: a number, a name, or the command. */
static int build_failed(const struct session *s, const struct json *status, struct err *e)
{
    const struct json *reason = json_member(status, "reason");
    bool known = reason && json_kind(reason) == JSON_KIND_OBJECT;
    const struct json *step = known ? json_member(reason, "step") : NULL;
    const struct json *message = known ? json_member(reason, "message") : NULL;
    AUTO_FREE char *step_text = NULL;
    AUTO_FREE char *message_text = NULL;
    if (step && json_kind(step) == JSON_KIND_INTEGER)
        step_text = mem_printf("%lld", (long long)json_as_integer(step));
    else if (step && json_as_string(step))
        step_text = e2b_clean(json_as_string(step), STEP_MAX_LEN, false);
    if (message && json_as_string(message))
        message_text = e2b_clean(json_as_string(message), MESSAGE_MAX_LEN, true);
    return err_set(e, ERR_STEP, "%s: the build failed%s%s: %s", s->client->api_url,
                   step_text ? " at step " : "", step_text ? step_text : "",
                   message_text ? message_text : "the server gives no reason");
}

static int poll_once(const struct session *s, struct build *b, uint64_t *offset, struct err *e)
{
    static const char doing[] = "asking for the build's status";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    const char *text;
    snprintf(path, sizeof(path), "/templates/%s/builds/%s/status?logsOffset=%llu&limit=%d",
             b->template_id, b->build_id, (unsigned long long)*offset, LOG_PAGE);
    int rc = get(s, doing, path, &reply, e);
    if (rc < 0)
        return rc;
    if (!e2b_is_ok(&reply))
        return e2b_refused(s->client, &reply, doing, e);
    if (!reply.json || json_kind(reply.json) != JSON_KIND_OBJECT ||
        json_get_string(reply.json, "status", &text, e) < 0)
        return e2b_malformed(s->client, doing, "status", e);
    enum build_state state = parse_state(text);
    bool news = state != b->state;
    bool last = state == BUILD_READY || state == BUILD_FAILED;
    if (news && !last)
        say(s, state == BUILD_RUNNING ? "building" : "waiting");
    pass_logs(s, reply.json, offset);
    if (news && last)
        say(s, state == BUILD_READY ? "ready" : "failed");
    b->state = state;
    return state == BUILD_FAILED ? build_failed(s, reply.json, e) : 0;
}

/*
 * Polls until the build is ready (0), failed (ERR_STEP) or `budget_ms` is over (ERR_TIMEOUT). With
 * `while_waiting` it returns 0 as soon as the build has left the waiting state.
 */
static int poll_build(const struct session *s, struct build *b, int64_t budget_ms,
                      bool while_waiting, struct err *e)
{
    int64_t deadline_ms = clock_ms() + budget_ms;
    int64_t delay_ms = s->client->options.poll_interval_ms;
    int64_t longest_ms = delay_ms * POLL_GROWTH;
    uint64_t offset = 0;
    for (;;) {
        int rc = poll_once(s, b, &offset, e);
        if (rc < 0 || b->state == BUILD_READY || (while_waiting && b->state != BUILD_WAITING))
            return rc;
        if (clock_ms() + delay_ms > deadline_ms) {
            b->late = true;
            err_set(e, ERR_TIMEOUT, "%s: the build is not ready after %lld s", s->client->api_url,
                    (long long)(s->client->options.build_timeout_ms / 1000));
            return err_hint(e, "look at the server: it has no way to say what it is waiting for");
        }
        rc = cancel_sleep_ms(s->client->options.cancel, (long)delay_ms, e);
        if (rc < 0)
            return rc;
        delay_ms += delay_ms / 2 + 1;
        delay_ms = delay_ms < longest_ms ? delay_ms : longest_ms;
    }
}

/*
 * A build under way that is not ours: waits for it as long as a build of its age deserves. What can
 * be told about it afterwards is in b->state; only trouble with the server is an error.
 */
static int wait_for_other(const struct session *s, struct build *b, struct err *e)
{
    int64_t age = b->age_ms > 0 ? b->age_ms : 0;
    int rc = 0;
    say(s, "waiting for a build of this alias that is under way");
    if (b->state == BUILD_WAITING)
        rc = poll_build(s, b, WAITING_GRACE_MS - age, true, e);
    if (rc == 0 && b->state == BUILD_RUNNING)
        rc = poll_build(s, b, s->client->options.build_timeout_ms - age, false, e);
    if (rc < 0 && (b->late || b->state == BUILD_FAILED || e->class == ERR_NOTFOUND)) {
        b->state = BUILD_FAILED;
        err_clear(e);
        return 0;
    }
    return rc;
}

/* ---- Changing things ----------------------------------------------------------------------- */

static int delete_template(const struct session *s, const char *template_id, bool cleanup,
                           struct err *e)
{
    static const char doing[] = "deleting the template";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    snprintf(path, sizeof(path), "/templates/%s", template_id);
    struct e2b_call call = {.method = "DELETE", .path = path, .doing = doing, .cleanup = cleanup};
    int rc = e2b_send(s->client, &call, &reply, e);
    if (rc < 0 || e2b_is_ok(&reply) || reply.code == 404)
        return rc;
    return e2b_refused(s->client, &reply, doing, e);
}

/* Takes our claim back after a failure, which stays the error. */
static void discard(const struct session *s, const struct build *b, struct err *e)
{
    struct err other = ERR_INIT;
    if (delete_template(s, b->template_id, true, &other) == 0)
        return;
    log_event(LOG_WARN, "registry", "%s", other.text);
    err_hint(e, "template %s on the server still has the alias %s: delete it there", b->template_id,
             s->wanted->alias);
}

/* Claims the alias. If it seemed free (`lost` is not NULL), *lost says that someone was faster. */
static int create(const struct session *s, struct build *out, bool *lost, struct err *e)
{
    static const char doing[] = "creating the template";
    AUTO_JSON struct json *body = e2b_create_body(s->wanted);
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    struct e2b_call call = {
        .method = "POST", .path = "/v3/templates", .doing = doing, .body = body};
    build_fini(out);
    if (!body)
        return err_nomem(e, "request");
    int rc = e2b_send(s->client, &call, &reply, e);
    if (rc < 0)
        return rc;
    if (lost && (reply.code == 400 || reply.code == 409)) {
        /* Bad request or lost race? The alias tells, whatever the words are. */
        AUTO_BUILD struct build now = {.age_ms = -1};
        rc = look_up(s, &now, e);
        *lost = rc == 0 && now.template_id;
        if (rc < 0 || *lost)
            return rc;
    }
    if (!e2b_is_ok(&reply))
        return e2b_refused(s->client, &reply, doing, e);
    rc = e2b_take_id(&out->template_id, s->client, reply.json, "templateID", doing, e);
    if (rc == 0)
        rc = e2b_take_id(&out->build_id, s->client, reply.json, "buildID", doing, e);
    return rc;
}

static int start(const struct session *s, const struct build *b, struct err *e)
{
    static const char doing[] = "starting the build";
    char path[PATH_LEN];
    AUTO_JSON struct json *body = e2b_build_body(s->wanted);
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    if (!body)
        return err_nomem(e, "request");
    snprintf(path, sizeof(path), "/v2/templates/%s/builds/%s", b->template_id, b->build_id);
    struct e2b_call call = {.method = "POST", .path = path, .doing = doing, .body = body};
    int rc = e2b_send(s->client, &call, &reply, e);
    if (rc < 0 || e2b_is_ok(&reply))
        return rc;
    return e2b_refused(s->client, &reply, doing, e);
}

/* Creates and builds; `fresh`: nothing had the alias, so a failed template is ours to delete. */
static int make(const struct session *s, bool fresh, struct build *b, bool *lost, struct err *e)
{
    int rc = create(s, b, fresh ? lost : NULL, e);
    if (rc == 0 && !*lost)
        rc = start(s, b, e);
    if (rc == 0 && !*lost)
        rc = poll_build(s, b, s->client->options.build_timeout_ms, false, e);
    if (rc < 0 && b->template_id && (fresh || one_build_per_template(b)))
        discard(s, b, e);
    return rc;
}

/* ---- The sequence -------------------------------------------------------------------------- */

static void give(struct e2b_result *out, struct build *b, bool built)
{
    *out = (struct e2b_result){
        .template_id = MOVE(b->template_id), .build_id = MOVE(b->build_id), .built = built};
}

/* One round: *done when *out is filled, otherwise the alias was lost to someone else. */
static int register_round(const struct session *s, bool force, struct e2b_result *out, bool *done,
                          struct err *e)
{
    AUTO_BUILD struct build found = {.age_ms = -1};
    AUTO_BUILD struct build made = {.age_ms = -1};
    bool lost = false;
    int rc = look_up(s, &found, e);
    if (rc == 0 && (found.state == BUILD_WAITING || found.state == BUILD_RUNNING))
        rc = wait_for_other(s, &found, e);
    else if (rc == 0 && found.state == BUILD_READY && force)
        found.state = BUILD_FAILED;
    if (rc < 0)
        return rc;
    if (found.state == BUILD_READY) {
        give(out, &found, false);
        *done = true;
        return 0;
    }
    bool fresh = !found.template_id;
    if (one_build_per_template(&found)) {
        rc = delete_template(s, found.template_id, false, e);
        fresh = true;
    }
    if (rc == 0)
        rc = make(s, fresh, &made, &lost, e);
    if (rc == 0 && !lost) {
        give(out, &made, true);
        *done = true;
    }
    return rc;
}

int e2b_register(struct e2b *c, const struct e2b_template *t, e2b_log *log, void *ctx,
                 struct e2b_result *out, struct err *e)
{
    struct session s = {.client = c, .wanted = t, .log = log, .log_ctx = ctx};
    int rc = e2b_check_template(t, e);
    bool done = false;
    for (unsigned round = 0; rc == 0 && !done && round < ROUNDS_MAX; round++)
        rc = register_round(&s, t->force && round == 0, out, &done, e);
    if (rc == 0 && !done)
        return err_set(e, ERR_BUSY, "%s: alias %s is taken by others again and again", c->api_url,
                       t->alias);
    return rc;
}
