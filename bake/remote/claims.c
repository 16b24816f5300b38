/* SPDX-License-Identifier: MIT */
/*
 * Claims: objects that say who works on what.
 *
 * A claim is made by a write that succeeds only if nothing is there, and renewed by writes that
 * succeed only if nobody else has written since. Nobody compares clocks: who waits for a claim
 * watches whether it changes, by a clock of its own, and when it has not for as long as its owner
 * promised to renew it, replaces it, which works for one of those who try. An owner that was taken
 * for dead notices at its next renewal; what it does meanwhile is done twice, and does no harm.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bake/remote/internal.h"
#include "bake/remote/remote.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "registry/object.h"

enum {
    DEFAULT_LEASE_MS = 60 * 1000,
    LEASE_MIN_MS = 1000,
    LEASE_MAX_MS = 600 * 1000,
    BEATS_PER_LEASE = 4,
    OWNER_LEN = 16,
    CLAIM_PATH_MAX = 16 + REMOTE_NAME_MAX,
    CLAIM_SIZE_MAX = 4096,
    ATTEMPTS = 3,
};

struct claim {
    char path[CLAIM_PATH_MAX];
    struct object_version version;
    uint64_t beat;
    uint64_t round;  /* of the renewals, in which it was last renewed */
    int64_t seen_ms; /* of someone else's: since when it has been like this */
    bool held;       /* ours; else someone else's, as it was last seen */
    bool busy;       /* a thread is writing it */
    struct claim *next;
};

struct remote_claims {
    struct object_store *objects;
    int64_t lease_ms;
    char owner[2 * OWNER_LEN + 1];
    pthread_mutex_t lock; /* guards all below; not held while the far end is asked */
    pthread_cond_t changed;
    struct claim *list;
    pthread_t renewer;
    bool renewing; /* the thread is there */
    bool stop;
    atomic_uint_least64_t lost;
};

/* ---- Documents ---- */

static int encode(struct buf *out, const struct remote_claims *c, uint64_t beat, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    AUTO_FREE char *text = NULL;
    json_set(j, "owner", json_new_string(c->owner));
    json_set(j, "beat", json_new_integer((int64_t)beat));
    json_set(j, "lease_ms", json_new_integer(c->lease_ms));
    int rc = json_print(j, 0, &text, e);
    return rc < 0 ? rc : buf_add_text(out, text, e);
}

/* Who holds a claim, and how long it lasts unrenewed. What cannot be read lasts as long as ours. */
static bool decode(const struct buf *bytes, const struct remote_claims *c, int64_t *lease_ms)
{
    AUTO_JSON struct json *j = NULL;
    struct err ignored = ERR_INIT;
    const char *owner = NULL;
    uint64_t lease = 0;
    *lease_ms = c->lease_ms;
    if (json_parse(&j, bytes->data, bytes->len, "claim", &ignored) < 0 ||
        json_get_string(j, "owner", &owner, &ignored) < 0 ||
        json_get_u64(j, "lease_ms", &lease, &ignored) < 0)
        return false;
    lease = lease < LEASE_MIN_MS ? LEASE_MIN_MS : lease > LEASE_MAX_MS ? LEASE_MAX_MS : lease;
    *lease_ms = (int64_t)lease;
    return strcmp(owner, c->owner) == 0;
}

/* ---- The list (all with the lock held) ---- */

static struct claim *find(struct remote_claims *c, const char *path)
{
    struct claim *at = c->list;
    while (at && strcmp(at->path, path) != 0)
        at = at->next;
    return at;
}

static struct claim *find_or_add(struct remote_claims *c, const char *path)
{
    struct claim *at = find(c, path);
    if (at)
        return at;
    at = mem_zalloc(sizeof(*at));
    if (!at)
        return NULL;
    snprintf(at->path, sizeof(at->path), "%s", path);
    at->next = c->list;
    c->list = at;
    return at;
}

/* ---- Renewal ---- */

/* An answer that was lost makes our own write look like someone else's: what is there tells. */
static bool is_ours(struct remote_claims *c, const char *path, struct object_version *version)
{
    AUTO_BUF struct buf there;
    struct err ignored = ERR_INIT;
    int64_t lease_ms;
    buf_init(&there, CLAIM_SIZE_MAX);
    return object_get(c->objects, path, 0, &there, version, &ignored) == 0 &&
           decode(&there, c, &lease_ms);
}

static int renew(struct remote_claims *c, struct claim *claim, struct err *e)
{
    AUTO_BUF struct buf body;
    buf_init(&body, CLAIM_SIZE_MAX);
    int rc = encode(&body, c, claim->beat + 1, e);
    struct object_version version = claim->version;
    if (rc == 0)
        rc = object_put(c->objects, claim->path, &body, OBJECT_SAME, &version, e);
    if (rc == -ERR_BUSY && is_ours(c, claim->path, &version)) {
        err_clear(e);
        rc = 0;
    }
    if (rc == 0) {
        claim->version = version;
        claim->beat++;
    }
    return rc;
}

/* One that is due; NULL when none is. */
static struct claim *due(struct remote_claims *c, uint64_t round)
{
    struct claim *at = c->list;
    while (at && (!at->held || at->busy || at->round == round))
        at = at->next;
    return at;
}

static void renew_all(struct remote_claims *c, uint64_t round)
{
    struct claim *claim;
    while (!c->stop && (claim = due(c, round))) {
        struct err e = ERR_INIT;
        claim->busy = true;
        claim->round = round;
        pthread_mutex_unlock(&c->lock);
        int rc = renew(c, claim, &e);
        pthread_mutex_lock(&c->lock);
        claim->busy = false;
        pthread_cond_broadcast(&c->changed);
        if (rc == -ERR_BUSY) {
            claim->held = false;
            atomic_fetch_add(&c->lost, 1);
            log_event(LOG_WARN, "bake", "%s: someone else does it too: %s", claim->path, e.text);
        } else if (rc < 0) {
            log_event(LOG_INFO, "bake", "%s: not renewed this time: %s", claim->path, e.text);
        }
    }
}

static void *renewer(void *self)
{
    struct remote_claims *c = self;
    uint64_t round = 0;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        int64_t until = clock_ms() + c->lease_ms / BEATS_PER_LEASE;
        while (!c->stop && clock_ms() < until)
            (void)cond_wait_until(&c->changed, &c->lock, until);
        renew_all(c, ++round);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- Life ---- */

static int make_owner(struct remote_claims *c, struct err *e)
{
    uint8_t bytes[OWNER_LEN];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return err_sys(e, "getting a random number");
    for (size_t i = 0; i < OWNER_LEN; i++)
        snprintf(c->owner + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

int remote_claims_new(struct remote_claims **out, struct object_store *objects, int64_t lease_ms,
                      struct err *e)
{
    struct remote_claims *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "claims");
    c->objects = objects;
    c->lease_ms = lease_ms <= 0             ? DEFAULT_LEASE_MS
                  : lease_ms < LEASE_MIN_MS ? LEASE_MIN_MS
                  : lease_ms > LEASE_MAX_MS ? LEASE_MAX_MS
                                            : lease_ms;
    pthread_mutex_init(&c->lock, NULL);
    (void)cond_init(&c->changed);
    int rc = make_owner(c, e);
    int sys = rc == 0 ? pthread_create(&c->renewer, NULL, renewer, c) : 0;
    if (sys != 0)
        rc = err_sysno(e, sys, "starting a thread for claims");
    c->renewing = rc == 0;
    if (rc < 0) {
        remote_claims_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* False when the far end does not answer. */
static bool give_back(struct remote_claims *c, struct claim *claim)
{
    struct err e = ERR_INIT;
    int rc = object_delete(c->objects, claim->path, &claim->version, &e);
    if (rc < 0)
        log_event(LOG_INFO, "bake", "%s: not given back, it runs out by itself: %s", claim->path,
                  e.text);
    return rc != -ERR_NET && rc != -ERR_TIMEOUT;
}

void remote_claims_free(struct remote_claims *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (c->renewing)
        pthread_join(c->renewer, NULL);
    bool answers = true;
    while (c->list) {
        struct claim *claim = c->list;
        c->list = claim->next;
        if (claim->held && answers)
            answers = give_back(c, claim);
        free(claim);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

uint64_t remote_claims_lost(const struct remote_claims *c)
{
    return c ? atomic_load(&c->lost) : 0;
}

/* ---- Claiming ---- */

static void claim_path(char path[CLAIM_PATH_MAX], enum remote_kind kind, const char *name)
{
    snprintf(path, CLAIM_PATH_MAX, "claims/%s-%s", remote_kind_name(kind), name);
}

bool remote_claims_held(struct remote_claims *c, enum remote_kind kind, const char *name)
{
    char path[CLAIM_PATH_MAX];
    if (!c)
        return false;
    claim_path(path, kind, name);
    pthread_mutex_lock(&c->lock);
    const struct claim *claim = find(c, path);
    bool held = claim && claim->held;
    pthread_mutex_unlock(&c->lock);
    return held;
}

static int hold(struct remote_claims *c, const char *path, const struct object_version *version,
                struct err *e)
{
    pthread_mutex_lock(&c->lock);
    struct claim *claim = find_or_add(c, path);
    if (claim && !claim->held) {
        claim->held = true;
        claim->version = *version;
        claim->beat = 0;
    }
    pthread_mutex_unlock(&c->lock);
    return claim ? 0 : err_nomem(e, "claim");
}

/* Notes how someone else's claim looks; true when it has looked so for longer than it may. */
static bool is_stale(struct remote_claims *c, const char *path,
                     const struct object_version *version, int64_t lease_ms)
{
    pthread_mutex_lock(&c->lock);
    struct claim *claim = find_or_add(c, path);
    bool stale = false;
    if (claim && !claim->held) {
        int64_t now = clock_ms();
        if (strcmp(claim->version.text, version->text) != 0 || claim->seen_ms == 0) {
            claim->version = *version;
            claim->seen_ms = now;
        }
        stale = now - claim->seen_ms > lease_ms;
    }
    pthread_mutex_unlock(&c->lock);
    return stale;
}

/* Someone's claim is there: ours after all, or dead, or to be waited for. */
static int judge(struct remote_claims *c, const char *path, bool *mine, struct err *e)
{
    AUTO_BUF struct buf body;
    AUTO_BUF struct buf ours;
    struct object_version version = {0};
    int64_t lease_ms;
    buf_init(&body, CLAIM_SIZE_MAX);
    buf_init(&ours, CLAIM_SIZE_MAX);
    int rc = object_get(c->objects, path, 0, &body, &version, e);
    if (rc < 0)
        return rc;
    if (decode(&body, c, &lease_ms)) {
        *mine = true;
        return hold(c, path, &version, e);
    }
    if (!is_stale(c, path, &version, lease_ms))
        return 0;
    rc = encode(&ours, c, 0, e);
    if (rc == 0)
        rc = object_put(c->objects, path, &ours, OBJECT_SAME, &version, e);
    if (rc == -ERR_BUSY) {
        err_clear(e);
        return 0;
    }
    if (rc < 0)
        return rc;
    log_event(LOG_INFO, "bake", "%s: its owner is gone, taken over", path);
    *mine = true;
    return hold(c, path, &version, e);
}

static int claim_once(struct remote_claims *c, const char *path, bool *mine, struct err *e)
{
    AUTO_BUF struct buf body;
    struct object_version version = {0};
    buf_init(&body, CLAIM_SIZE_MAX);
    int rc = encode(&body, c, 0, e);
    if (rc == 0)
        rc = object_put(c->objects, path, &body, OBJECT_ABSENT, &version, e);
    if (rc == 0) {
        *mine = true;
        return hold(c, path, &version, e);
    }
    if (rc != -ERR_BUSY)
        return rc;
    err_clear(e);
    return judge(c, path, mine, e);
}

int remote_claims_try(struct remote_claims *c, enum remote_kind kind, const char *name, bool *mine,
                      struct err *e)
{
    char path[CLAIM_PATH_MAX];
    claim_path(path, kind, name);
    *mine = !c || remote_claims_held(c, kind, name);
    int rc = 0;
    for (int n = 0; !*mine && n < ATTEMPTS; n++) {
        rc = claim_once(c, path, mine, e);
        if (rc != -ERR_NOTFOUND) /* else it was given back between two requests */
            return rc;
        err_clear(e);
    }
    return 0;
}

void remote_claims_drop(struct remote_claims *c, enum remote_kind kind, const char *name)
{
    char path[CLAIM_PATH_MAX];
    if (!c)
        return;
    claim_path(path, kind, name);
    pthread_mutex_lock(&c->lock);
    struct claim *claim = find(c, path);
    while (claim && claim->busy)
        pthread_cond_wait(&c->changed, &c->lock);
    bool held = claim && claim->held;
    struct claim copy = {0};
    if (held) {
        copy = *claim;
        claim->held = false;
        claim->seen_ms = 0;
    }
    pthread_mutex_unlock(&c->lock);
    if (held)
        (void)give_back(c, &copy);
}
