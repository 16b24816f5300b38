/* SPDX-License-Identifier: MIT */
/*
 * What is done with a build on the template server, one call at a time, and waiting for its end. The
 * order of it all is e2b.c's.
 */
#include "registry/e2b_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    POLL_GROWTH = 5,        /* the delay grows up to this many times the first */
    OUTAGE_MS = 120 * 1000, /* so long a server may not answer before a build is given up */
    LOG_PAGE = 100,
    LOG_PAGES_MAX = 1000,
    PATH_LEN = 512, /* two ids and what stands around them */
    LINE_MAX_LEN = 1000,
    STEP_MAX_LEN = 200,
    MESSAGE_MAX_LEN = 1200
};

void e2b_build_fini(struct e2b_build *b)
{
    free(b->template_id);
    free(b->build_id);
    *b = (struct e2b_build){.age_ms = -1};
}

void e2b_say(const struct e2b_session *s, const char *line)
{
    if (s->log)
        s->log(s->log_ctx, line);
}

static enum e2b_build_state parse_state(const char *text)
{
    if (strcmp(text, "ready") == 0 || strcmp(text, "uploaded") == 0)
        return BUILD_READY;
    if (strcmp(text, "error") == 0)
        return BUILD_FAILED;
    return strcmp(text, "waiting") == 0 ? BUILD_WAITING : BUILD_RUNNING;
}

static int get(const struct e2b_session *s, const char *doing, const char *path,
               struct e2b_reply *out, struct err *e)
{
    struct e2b_call call = {
        .method = "GET", .path = path, .doing = doing, .finishing = s->finishing};
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

bool e2b_one_build(const struct e2b_build *b)
{
    return b->template_id && b->build_id && strcmp(b->template_id, b->build_id) == 0;
}

/* ---- Looking an alias up ------------------------------------------------------------------- */

/* How much a build counts: a ready one most, then one under way, then a failed one. */
static int rank_of(const struct json *build)
{
    const struct json *status =
        json_kind(build) == JSON_KIND_OBJECT ? json_member(build, "status") : NULL;
    const char *text = status ? json_as_string(status) : NULL;
    if (!text)
        return 0;
    enum e2b_build_state state = parse_state(text);
    return state == BUILD_READY ? 3 : state == BUILD_FAILED ? 1 : 2;
}

/* The build that counts most, of equal ones the youngest. NULL when there is none. */
static const struct json *pick_build(const struct json *builds)
{
    const struct json *best = NULL;
    const char *best_created = "";
    int best_rank = 0;
    for (size_t i = 0; i < json_length(builds); i++) {
        const struct json *build = json_element(builds, i);
        int rank = rank_of(build);
        const struct json *created = rank > 0 ? json_member(build, "createdAt") : NULL;
        const char *text = created ? json_as_string(created) : NULL;
        if (rank < best_rank || rank == 0)
            continue;
        if (rank > best_rank || (text && strcmp(text, best_created) > 0)) {
            best = build;
            best_rank = rank;
            best_created = text ? text : "";
        }
    }
    return best;
}

static int read_template(const struct e2b_session *s, const struct json *template,
                         struct e2b_build *out, const char *doing, struct err *e)
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
    out->others = json_length(builds) - 1;
    return e2b_take_id(&out->build_id, s->client, build, "buildID", doing, e);
}

/* Fills *out with what stands behind its template_id. */
static int look_at_template(const struct e2b_session *s, struct e2b_build *out, struct err *e)
{
    static const char doing[] = "looking at the template";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply template = {.retry_after_ms = -1};
    snprintf(path, sizeof(path), "/templates/%s", out->template_id);
    int rc = get(s, doing, path, &template, e);
    if (rc < 0)
        return rc;
    if (template.code == 404) { /* deleted meanwhile */
        e2b_build_fini(out);
        return 0;
    }
    if (!e2b_is_ok(&template))
        return e2b_refused(s->client, &template, doing, e);
    return read_template(s, template.json, out, doing, e);
}

int e2b_look_up(const struct e2b_session *s, struct e2b_build *out, struct err *e)
{
    static const char doing[] = "looking the alias up";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply alias = {.retry_after_ms = -1};
    e2b_build_fini(out);
    snprintf(path, sizeof(path), "/templates/aliases/%s", s->wanted->alias);
    int rc = get(s, doing, path, &alias, e);
    if (rc < 0 || alias.code == 404)
        return rc;
    if (alias.code == 403) {
        err_set(e, ERR_DENIED, "%s: alias %s belongs to another team", s->client->name,
                s->wanted->alias);
        return err_hint(e, "use that team's E2B_API_KEY");
    }
    if (!e2b_is_ok(&alias))
        return e2b_refused(s->client, &alias, doing, e);
    rc = e2b_take_id(&out->template_id, s->client, alias.json, "templateID", doing, e);
    return rc < 0 ? rc : look_at_template(s, out, e);
}

/* ---- Polling ------------------------------------------------------------------------------- */

/* The lines of a build's log, as far as they were seen. */
struct log_state {
    uint64_t offset; /* lines of all pages so far */
    char *first;     /* the first line of all, to know a server that begins again */
    char *tail[E2B_TAIL_LINES];
    size_t count; /* lines that went through the tail */
};

static void log_state_fini(struct log_state *l)
{
    free(l->first);
    for (size_t i = 0; i < E2B_TAIL_LINES; i++)
        free(l->tail[i]);
}
#define AUTO_LOG_STATE CLEANUP(log_state_fini)

static char *entry_line(const struct json *entry)
{
    const struct json *message =
        json_kind(entry) == JSON_KIND_OBJECT ? json_member(entry, "message") : NULL;
    const char *text = message ? json_as_string(message) : NULL;
    return text ? e2b_clean(text, LINE_MAX_LEN, false) : NULL;
}

/* Time and message of an entry, which tell it from others; NULL when memory is short. */
static char *entry_mark(const struct json *entry)
{
    const struct json *time =
        json_kind(entry) == JSON_KIND_OBJECT ? json_member(entry, "timestamp") : NULL;
    const char *text = time ? json_as_string(time) : NULL;
    AUTO_FREE char *line = entry_line(entry);
    return mem_printf("%.64s %s", text ? text : "", line ? line : "");
}

/*
 * Passes this page's log lines on; how many there were. A server that does not look at the offset
 * sends the first line again: then what is known is skipped.
 */
static size_t pass_logs(const struct e2b_session *s, const struct json *status, struct log_state *l)
{
    const struct json *entries = json_member(status, "logEntries");
    size_t count = entries ? json_length(entries) : 0;
    size_t known = 0;
    AUTO_FREE char *mark = count > 0 ? entry_mark(json_element(entries, 0)) : NULL;
    if (mark && l->first && l->offset > 0 && strcmp(mark, l->first) == 0)
        known = l->offset < count ? (size_t)l->offset : count;
    if (!l->first)
        l->first = MOVE(mark);
    for (size_t i = known; i < count; i++) {
        char *line = entry_line(json_element(entries, i));
        if (!line)
            continue;
        e2b_say(s, line);
        char **slot = &l->tail[l->count++ % E2B_TAIL_LINES];
        free(*slot);
        *slot = line;
    }
    l->offset += count - known;
    return count - known;
}

/* Puts the last lines of the log below an error's text, where the server gave no reason. */
static int add_tail(const struct log_state *l, struct err *e)
{
    struct err whole = *e;
    size_t lines = l->count < E2B_TAIL_LINES ? l->count : E2B_TAIL_LINES;
    for (size_t i = l->count - lines; i < l->count; i++) {
        size_t len = strlen(whole.text);
        snprintf(whole.text + len, sizeof(whole.text) - len, "\n%s", l->tail[i % E2B_TAIL_LINES]);
    }
    *e = whole;
    return -(int)e->class;
}

/* The server's reason as ERR_STEP. Its step is text: a number, a name, or the command. */
static int build_failed(const struct e2b_session *s, const struct json *status, struct e2b_build *b,
                        struct err *e)
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
    b->full = !step_text && e2b_is_full(message_text);
    return err_set(e, b->full ? ERR_RATE : ERR_STEP, "%s: the build failed%s%s: %s",
                   s->client->name, step_text ? " at step " : "", step_text ? step_text : "",
                   message_text ? message_text : "the server gives no reason");
}

static int ask_status(const struct e2b_session *s, const struct e2b_build *b, uint64_t offset,
                      struct e2b_reply *reply, const char **state, struct err *e)
{
    static const char doing[] = "asking for the build's status";
    char path[PATH_LEN];
    snprintf(path, sizeof(path), "/templates/%s/builds/%s/status?logsOffset=%llu&limit=%d",
             b->template_id, b->build_id, (unsigned long long)offset, LOG_PAGE);
    int rc = get(s, doing, path, reply, e);
    if (rc < 0)
        return rc;
    if (!e2b_is_ok(reply))
        return e2b_refused(s->client, reply, doing, e);
    if (!reply->json || json_kind(reply->json) != JSON_KIND_OBJECT ||
        json_get_string(reply->json, "status", state, e) < 0)
        return e2b_malformed(s->client, doing, "status", e);
    return 0;
}

/* What is left of the log when the build has ended: pages are short. */
static void drain_logs(const struct e2b_session *s, const struct e2b_build *b, struct log_state *l)
{
    for (unsigned page = 0; page < LOG_PAGES_MAX; page++) {
        struct err ignored = ERR_INIT;
        AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
        const char *state;
        if (ask_status(s, b, l->offset, &reply, &state, &ignored) < 0 ||
            pass_logs(s, reply.json, l) == 0)
            return;
    }
}

static int poll_once(const struct e2b_session *s, struct e2b_build *b, struct log_state *l,
                     struct err *e)
{
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    const char *text;
    int rc = ask_status(s, b, l->offset, &reply, &text, e);
    if (rc < 0)
        return rc;
    enum e2b_build_state state = parse_state(text);
    bool news = state != b->state;
    bool last = state == BUILD_READY || state == BUILD_FAILED;
    if (news && !last)
        e2b_say(s, state == BUILD_RUNNING ? "building" : "waiting");
    if (pass_logs(s, reply.json, l) > 0 && last)
        drain_logs(s, b, l);
    if (news && last)
        e2b_say(s, state == BUILD_READY ? "ready" : "failed");
    b->state = state;
    if (state != BUILD_FAILED)
        return 0;
    rc = build_failed(s, reply.json, b, e);
    return b->full ? rc : add_tail(l, e);
}

static int not_in_time(const struct e2b_session *s, struct e2b_build *b, int64_t budget_ms,
                       const struct log_state *l, struct err *e)
{
    b->late = true;
    err_set(e, ERR_TIMEOUT, "%s: the build is not ready after %lld s", s->client->name,
            (long long)(budget_ms / 1000));
    (void)add_tail(l, e);
    return err_hint(e, "look at the server: it has no way to say what it is waiting for");
}

int e2b_poll(const struct e2b_session *s, struct e2b_build *b, int64_t budget_ms,
             bool while_waiting, struct err *e)
{
    const struct e2b *c = s->client;
    int64_t deadline_ms = e2b_now_ms(c) + budget_ms;
    int64_t delay_ms = c->options.poll_interval_ms;
    int64_t longest_ms = delay_ms * POLL_GROWTH;
    int64_t answered_ms = e2b_now_ms(c);
    AUTO_LOG_STATE struct log_state l = {0};
    for (;;) {
        int rc = poll_once(s, b, &l, e);
        /* The build goes on while the server, or what stands in front of it, does not answer. */
        bool outage = rc < 0 && (e->class == ERR_NET || e->class == ERR_TIMEOUT) &&
                      e2b_now_ms(c) - answered_ms < OUTAGE_MS;
        if (outage)
            err_clear(e);
        else if (rc < 0 || b->state == BUILD_READY || (while_waiting && b->state != BUILD_WAITING))
            return rc;
        else
            answered_ms = e2b_now_ms(c);
        if (e2b_now_ms(c) + delay_ms > deadline_ms)
            return not_in_time(s, b, c->options.build_timeout_ms, &l, e);
        rc = e2b_sleep_ms(c, delay_ms, s->finishing, e);
        if (rc < 0)
            return rc;
        delay_ms += delay_ms / 2 + 1;
        delay_ms = delay_ms < longest_ms ? delay_ms : longest_ms;
    }
}

/* ---- Changing things ----------------------------------------------------------------------- */

int e2b_delete(const struct e2b_session *s, const char *template_id, bool cleanup, struct err *e)
{
    static const char doing[] = "deleting the template";
    char path[PATH_LEN];
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    snprintf(path, sizeof(path), "/templates/%s", template_id);
    struct e2b_call call = {.method = "DELETE",
                            .path = path,
                            .doing = doing,
                            .cleanup = cleanup,
                            .finishing = s->finishing};
    int rc = e2b_send(s->client, &call, &reply, e);
    if (rc < 0 || e2b_is_ok(&reply) || reply.code == 404)
        return rc;
    return e2b_refused(s->client, &reply, doing, e);
}

void e2b_discard(const struct e2b_session *s, const struct e2b_build *b, struct err *e)
{
    struct err other = ERR_INIT;
    if (e2b_delete(s, b->template_id, true, &other) == 0)
        return;
    log_event(LOG_WARN, "registry", "%s", other.text);
    err_hint(e, "template %s on the server still has the alias %s: delete it there", b->template_id,
             s->wanted->alias);
}

/* One try with one spelling of the name. */
static int create_once(const struct e2b_session *s, enum e2b_name_field field, const char *doing,
                       struct e2b_reply *reply, struct err *e)
{
    AUTO_JSON struct json *body = e2b_create_body(s->wanted, field);
    struct e2b_call call = {.method = "POST",
                            .path = "/v3/templates",
                            .doing = doing,
                            .body = body,
                            .finishing = s->finishing,
                            .build = true};
    return body ? e2b_send(s->client, &call, reply, e) : err_nomem(e, "request");
}

/* A request that is refused as such, not for what is there already. */
static bool is_bad_request(const struct e2b_reply *r)
{
    return r->code == 400 || r->code == 422;
}

/* A refusal may mean a lost race, whatever its status and its words are: the alias tells. Or the
 * words, when the winner has given up since. */
static int find_winner(const struct e2b_session *s, const struct e2b_reply *refusal, bool *lost,
                       struct err *e)
{
    AUTO_E2B_BUILD struct e2b_build now = {.age_ms = -1};
    int rc = e2b_look_up(s, &now, e);
    *lost = rc == 0 && (now.template_id || e2b_is_taken(refusal));
    return rc;
}

/*
 * Older servers call the name "alias", and of them some refuse what they do not know. What a server
 * wants is found out once, by asking: a request that is refused, and after which the alias is free,
 * has created nothing.
 */
static int try_other_name(const struct e2b_session *s, const char *doing, struct e2b_reply *reply,
                          struct err *e)
{
    AUTO_E2B_REPLY struct e2b_reply other = {.retry_after_ms = -1};
    int rc = create_once(s, E2B_NAME_ALIAS, doing, &other, e);
    if (rc < 0 || !e2b_is_ok(&other))
        return rc; /* the first refusal is the one that counts */
    atomic_store(&s->client->name_field, E2B_NAME_ALIAS);
    e2b_reply_fini(reply);
    *reply = other;
    other = (struct e2b_reply){.retry_after_ms = -1};
    return 0;
}

int e2b_create(const struct e2b_session *s, struct e2b_build *out, bool fresh, bool *lost,
               struct err *e)
{
    static const char doing[] = "creating the template";
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    atomic_int *known = &s->client->name_field;
    bool first = atomic_load(known) == E2B_NAME_UNKNOWN;
    e2b_build_fini(out);
    *lost = false;
    int rc = create_once(s, atomic_load(known) == E2B_NAME_ALIAS ? E2B_NAME_ALIAS : E2B_NAME_NAME,
                         doing, &reply, e);
    if (rc < 0)
        return rc;
    if (fresh && (is_bad_request(&reply) || reply.code == 409 || reply.code >= 500)) {
        rc = find_winner(s, &reply, lost, e);
        if (rc < 0 || *lost)
            return rc;
    }
    if (first && e2b_is_ok(&reply))
        atomic_store(known, E2B_NAME_NAME);
    else if (first && is_bad_request(&reply) && e2b_is_about_names(reply.detail))
        rc = try_other_name(s, doing, &reply, e);
    if (rc < 0)
        return rc;
    if (!e2b_is_ok(&reply))
        return e2b_refused(s->client, &reply, doing, e);
    rc = e2b_take_id(&out->template_id, s->client, reply.json, "templateID", doing, e);
    if (rc == 0)
        rc = e2b_take_id(&out->build_id, s->client, reply.json, "buildID", doing, e);
    return rc;
}

int e2b_start(const struct e2b_session *s, const struct e2b_build *b, const char *from_template,
              struct err *e)
{
    static const char doing[] = "starting the build";
    char path[PATH_LEN];
    AUTO_JSON struct json *body = e2b_build_body(s->wanted, from_template);
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    if (!body)
        return err_nomem(e, "request");
    snprintf(path, sizeof(path), "/v2/templates/%s/builds/%s", b->template_id, b->build_id);
    struct e2b_call call = {.method = "POST",
                            .path = path,
                            .doing = doing,
                            .body = body,
                            .finishing = s->finishing,
                            .build = true};
    int rc = e2b_send(s->client, &call, &reply, e);
    if (rc < 0 || e2b_is_ok(&reply))
        return rc;
    return e2b_refused(s->client, &reply, doing, e);
}
