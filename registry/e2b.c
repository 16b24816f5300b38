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
 *
 * Replacing a template that works, on the first kind of server: a new one is made under a name of
 * its own, and may fail there without harm. Only then comes the part in which the alias has no
 * template: delete, create, a build from the new one, which is a copy and no build to speak of.
 */
#include "registry/e2b_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    POLL_FIRST_MS = 1000,
    BUILD_TIMEOUT_MS = 1800 * 1000,
    WAITING_GRACE_MS = 30 * 1000, /* between claim and start lie two calls */
    FULL_WAIT_MS = 15 * 1000,     /* before a build that found no room is begun again */
    ROUNDS_QUICK = 3,             /* that follow at once */
    ROUNDS_MAX = 6,               /* within the time of a build any number; but see: */
    ROUNDS_LIMIT = 200,
    REVISION_DIGITS = 8,
    NAME_MAX_LEN = 128
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

static char *without_slashes(const char *url)
{
    size_t len = strlen(url);
    while (len > 0 && url[len - 1] == '/')
        len--;
    return mem_strndup(url, len);
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
    c->options.sandbox_url = NULL;
    if (c->options.poll_interval_ms <= 0)
        c->options.poll_interval_ms = POLL_FIRST_MS;
    if (c->options.build_timeout_ms <= 0)
        c->options.build_timeout_ms = BUILD_TIMEOUT_MS;
    c->api_url = without_slashes(options->api_url);
    AUTO_FREE char *printable = http_printable_url(options->api_url);
    c->name = printable ? without_slashes(printable) : NULL;
    bool own = options->sandbox_url && *options->sandbox_url;
    c->sandbox_url = own ? without_slashes(options->sandbox_url) : NULL;
    c->key_header = mem_printf("X-API-Key: %s", options->api_key);
    if (!c->api_url || !c->name || !c->key_header || (own && !c->sandbox_url))
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
    free(c->name);
    free(c->sandbox_url);
    free(c);
}

void e2b_result_fini(struct e2b_result *r)
{
    free(r->template_id);
    free(r->build_id);
    *r = (struct e2b_result){.built = false};
}

/* ---- Waiting for others -------------------------------------------------------------------- */

/*
 * A build under way that is not ours: waits for it as long as a build of its age deserves. What can
 * be told about it afterwards is in b->state; only trouble with the server is an error.
 */
static int wait_for_other(const struct e2b_session *s, struct e2b_build *b, struct err *e)
{
    int64_t age = b->age_ms > 0 ? b->age_ms : 0;
    int rc = 0;
    e2b_say(s, "waiting for a build of this alias that is under way");
    if (b->state == BUILD_WAITING)
        rc = e2b_poll(s, b, WAITING_GRACE_MS - age, true, e);
    if (rc == 0 && b->state == BUILD_RUNNING)
        rc = e2b_poll(s, b, s->client->options.build_timeout_ms - age, false, e);
    if (rc < 0 && (b->late || b->state == BUILD_FAILED || e->class == ERR_NOTFOUND)) {
        b->state = BUILD_FAILED;
        err_clear(e);
        return 0;
    }
    return rc;
}

/* The build behind the session's alias, once it is none that is under way. */
static int find(const struct e2b_session *s, struct e2b_build *found, struct err *e)
{
    int rc = e2b_look_up(s, found, e);
    if (rc == 0 && (found->state == BUILD_WAITING || found->state == BUILD_RUNNING))
        rc = wait_for_other(s, found, e);
    return rc;
}

/* ---- Making -------------------------------------------------------------------------------- */

static int verify(const struct e2b_session *s, struct err *e)
{
    const struct e2b_template *t = s->wanted;
    return t->verify ? t->verify(t->verify_ctx, t->alias, e) : 0;
}

/*
 * A template that has other builds than ours has other users: it stays. *lost when one of them may
 * become the alias's in our stead; a server that drops a build for a newer one fails ours.
 */
static bool has_other_builds(const struct e2b_session *s, const struct e2b_build *b, bool *lost)
{
    struct err ignored = ERR_INIT;
    AUTO_E2B_BUILD struct e2b_build now = {.age_ms = -1};
    struct e2b_session looking = *s;
    looking.finishing = true;
    if (e2b_one_build(b) || e2b_look_up(&looking, &now, &ignored) < 0 || now.others == 0)
        return false;
    *lost = now.state != BUILD_FAILED && strcmp(now.build_id, b->build_id) != 0;
    return true;
}

/* After a failure: the claim is given back, or left to those who share it. */
static int give_back(const struct e2b_session *s, const struct e2b_build *b, bool *lost,
                     struct err *e)
{
    if (has_other_builds(s, b, lost)) {
        *lost = *lost && e->class != ERR_CANCELLED;
        if (*lost)
            err_clear(e);
        return *lost ? 0 : -(int)e->class;
    }
    e2b_discard(s, b, e);
    return -(int)e->class;
}

/*
 * Creates and builds, from the image or `from_template`; `fresh`: nothing had the alias, so a failed
 * template is ours to delete. *lost, with nothing left behind: someone else has it, or there was no
 * room.
 */
static int make(const struct e2b_session *s, bool fresh, const char *from_template,
                struct e2b_build *b, bool *lost, struct err *e)
{
    struct e2b *c = s->client;
    int rc = e2b_create(s, b, fresh, lost, e);
    if (rc == 0 && !*lost)
        rc = e2b_start(s, b, from_template, e);
    if (rc == 0 && !*lost)
        rc = e2b_poll(s, b, c->options.build_timeout_ms, false, e);
    if (rc < 0 && e->class == ERR_NOTFOUND && b->template_id) {
        /* It had failed, and another baker has seen that first. */
        err_clear(e);
        rc = 0;
        *lost = true;
    }
    bool ready = rc == 0 && !*lost;
    if (ready)
        rc = verify(s, e);
    /* Trouble on the way to a sandbox says nothing about the template. */
    bool ours = fresh || e2b_one_build(b);
    if (rc < 0 && b->template_id && ours && !(ready && err_retryable(e)) &&
        !(ready && e->class == ERR_CANCELLED))
        rc = give_back(s, b, lost, e);
    if (rc < 0 && b->full && e->class == ERR_RATE) {
        e2b_say(s, "the server has no room: waiting");
        err_clear(e);
        rc = e2b_sleep_ms(c, FULL_WAIT_MS, s->finishing, e);
        *lost = rc == 0;
    }
    return rc;
}

static void give(struct e2b_result *out, struct e2b_build *b, bool built)
{
    *out = (struct e2b_result){
        .template_id = MOVE(b->template_id), .build_id = MOVE(b->build_id), .built = built};
}

/* ---- Replacing ----------------------------------------------------------------------------- */

/* Name of the replacement of an alias; NULL when it would be too long, or memory is short. */
static char *next_name(const struct e2b_template *t)
{
    const char *revision = t->revision ? t->revision : "";
    char *name =
        mem_printf("%s-next%s%.*s", t->alias, *revision ? "-" : "", REVISION_DIGITS, revision);
    if (name && strlen(name) > NAME_MAX_LEN)
        free(MOVE(name));
    return name;
}

/* Makes the replacement, or takes one that another baker has just made of the same inputs. */
static int make_next(const struct e2b_session *s, struct e2b_build *out, struct err *e)
{
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        bool lost = false;
        int rc = find(s, out, e);
        bool young = out->age_ms >= 0 && out->age_ms < s->client->options.build_timeout_ms;
        if (rc < 0)
            return rc;
        if (out->state == BUILD_READY && young && s->wanted->revision)
            return verify(s, e);
        if (out->template_id)
            rc = e2b_delete(s, out->template_id, false, e);
        if (rc == 0)
            rc = make(s, true, NULL, out, &lost, e);
        if (rc < 0 || !lost)
            return rc;
    }
    return err_set(e, ERR_BUSY, "%s: alias %s is taken by others again and again", s->client->name,
                   s->wanted->alias);
}

/*
 * The part that must not be left half done. Where the server would not build from the replacement,
 * it builds from the image after all.
 */
static int take_over(struct e2b_session *s, const struct e2b_build *old, const char *next,
                     struct e2b_build *made, bool *lost, struct err *e)
{
    bool single = e2b_one_build(old);
    struct err why = ERR_INIT;
    s->finishing = true;
    int rc = single ? e2b_delete(s, old->template_id, false, e) : 0;
    if (rc == 0)
        rc = make(s, single, single ? next : NULL, made, lost, &why);
    if (rc < 0 && why.class != ERR_NONE && single) {
        log_event(LOG_WARN, "registry", "%s; building %s from its image", why.text,
                  s->wanted->alias);
        err_clear(&why);
        rc = make(s, true, NULL, made, lost, &why);
    }
    s->finishing = false;
    if (rc < 0 && why.class != ERR_NONE)
        *e = why;
    return rc;
}

/* A working template gives way to a new one, which has proved itself before. */
static int replace(const struct e2b_session *s, const struct e2b_build *old, struct e2b_build *made,
                   bool *lost, struct err *e)
{
    AUTO_FREE char *name = next_name(s->wanted);
    if (!name) {
        int rc = e2b_one_build(old) ? e2b_delete(s, old->template_id, false, e) : 0;
        return rc < 0 ? rc : make(s, e2b_one_build(old), NULL, made, lost, e);
    }
    struct e2b_template next = *s->wanted;
    struct e2b_session staged = *s;
    AUTO_E2B_BUILD struct e2b_build ahead = {.age_ms = -1};
    next.alias = name;
    staged.wanted = &next;
    e2b_say(s, "building the new template beside the old one");
    int rc = make_next(&staged, &ahead, e);
    if (rc < 0 || !ahead.template_id)
        return rc < 0 && !err_retryable(e)
                   ? err_in(e, "the template of %s stays as it is: %s", s->wanted->alias, name)
                   : rc;
    struct e2b_session whole = *s;
    struct e2b_template proved = *s->wanted;
    proved.verify = NULL;
    whole.wanted = &proved;
    rc = take_over(&whole, old, name, made, lost, e);
    struct err other = ERR_INIT;
    if (e2b_delete(&staged, ahead.template_id, true, &other) < 0)
        log_event(LOG_WARN, "registry", "%s; %s is left over", other.text, name);
    return rc;
}

/* ---- What killed runs left ----------------------------------------------------------------- */

/* The replacement of an alias, under its own name. */
struct staged {
    struct e2b_template wanted;
    struct e2b_session session;
    struct e2b_build build;
    char *name;
};

static void staged_fini(struct staged *t)
{
    e2b_build_fini(&t->build);
    free(t->name);
}

/* Whether there is one of the same inputs. Trouble on the way is a no: it is for another run. */
static bool find_staged(const struct e2b_session *s, struct staged *out)
{
    struct err ignored = ERR_INIT;
    *out = (struct staged){.wanted = *s->wanted, .session = *s, .build = {.age_ms = -1}};
    out->name = s->wanted->revision ? next_name(s->wanted) : NULL;
    out->wanted.alias = out->name;
    out->session.wanted = &out->wanted;
    return out->name && e2b_look_up(&out->session, &out->build, &ignored) == 0 &&
           out->build.template_id;
}

static void remove_staged(const struct staged *t)
{
    struct err e = ERR_INIT;
    e2b_say(&t->session, "removing what a killed run left over");
    if (e2b_delete(&t->session, t->build.template_id, true, &e) < 0)
        log_event(LOG_WARN, "registry", "%s; %s is left over", e.text, t->name);
}

/* Nothing has the alias: a run may have been killed when the old template was gone and the new one not
 * yet in its place. *made then has what came of that; nothing where the server would not have it. */
static int finish_swap(const struct e2b_session *s, struct e2b_build *made, bool *lost,
                       struct err *e)
{
    struct staged t;
    int rc = 0;
    if (find_staged(s, &t) && t.build.state == BUILD_READY && e2b_one_build(&t.build)) {
        e2b_say(s, "finishing what a killed run began");
        rc = make(s, true, t.name, made, lost, e);
        bool refused = rc < 0 && !err_retryable(e) && e->class != ERR_CANCELLED;
        if (refused) {
            log_event(LOG_WARN, "registry", "%s; building %s from its image", e->text,
                      s->wanted->alias);
            err_clear(e);
            e2b_build_fini(made);
            rc = 0;
        }
        if (rc == 0 && !*lost)
            remove_staged(&t);
    }
    staged_fini(&t);
    return rc;
}

/* The alias has its template. A replacement that is older was taken over, or is given up after the time
 * of a build; a younger one may be another baker's, who is about to take it over. */
static void drop_leftover(const struct e2b_session *s, const struct e2b_build *found)
{
    struct staged t;
    bool there = find_staged(s, &t);
    bool taken = found->age_ms >= 0 && t.build.age_ms > found->age_ms;
    bool stale = t.build.age_ms >= s->client->options.build_timeout_ms;
    if (there && e2b_one_build(&t.build) && (taken || stale || t.build.state == BUILD_FAILED))
        remove_staged(&t);
    staged_fini(&t);
}

/* ---- The sequence -------------------------------------------------------------------------- */

/* One round: *done when *out is filled, otherwise the alias was lost to someone else. */
static int register_round(const struct e2b_session *s, bool force, struct e2b_result *out,
                          bool *done, struct err *e)
{
    AUTO_E2B_BUILD struct e2b_build found = {.age_ms = -1};
    AUTO_E2B_BUILD struct e2b_build made = {.age_ms = -1};
    bool lost = false;
    enum e2b_build_state before = BUILD_ABSENT;
    int rc = e2b_look_up(s, &found, e);
    before = found.state;
    if (rc == 0 && (before == BUILD_WAITING || before == BUILD_RUNNING))
        rc = wait_for_other(s, &found, e);
    if (rc < 0)
        return rc;
    bool old = before == BUILD_READY && force;
    if (found.state == BUILD_READY && !old) {
        drop_leftover(s, &found);
        give(out, &found, false);
        *done = true;
        return verify(s, e);
    }
    if (old && (e2b_one_build(&found) || s->wanted->verify)) {
        rc = replace(s, &found, &made, &lost, e);
    } else {
        bool fresh = !found.template_id;
        if (e2b_one_build(&found)) {
            rc = e2b_delete(s, found.template_id, false, e);
            fresh = true;
        }
        if (rc == 0 && !found.template_id)
            rc = finish_swap(s, &made, &lost, e);
        if (rc == 0 && !lost && !made.template_id)
            rc = make(s, fresh, NULL, &made, &lost, e);
    }
    if (rc == 0 && !lost) {
        give(out, &made, true);
        *done = true;
    }
    return rc;
}

int e2b_register(struct e2b *c, const struct e2b_template *t, e2b_log *log, void *ctx,
                 struct e2b_result *out, struct err *e)
{
    struct e2b_session s = {.client = c, .wanted = t, .log = log, .log_ctx = ctx};
    int64_t deadline_ms = e2b_now_ms(c) + c->options.build_timeout_ms;
    bool done = false;
    *out = (struct e2b_result){.built = false};
    int rc = e2b_check_template(t, e);
    for (unsigned round = 0; rc == 0 && !done; round++) {
        bool late = round >= ROUNDS_MAX && e2b_now_ms(c) > deadline_ms;
        if (late || round >= ROUNDS_LIMIT)
            return err_set(e, ERR_BUSY, "%s: alias %s is taken by others again and again", c->name,
                           t->alias);
        if (round >= ROUNDS_QUICK)
            rc = e2b_sleep_ms(c, c->options.poll_interval_ms, false, e);
        if (rc == 0)
            rc = register_round(&s, t->force && round == 0, out, &done, e);
    }
    if (rc < 0)
        e2b_result_fini(out);
    return rc;
}
