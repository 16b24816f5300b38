/* SPDX-License-Identifier: MIT */
/*
 * Rate gates.
 *
 * A gate counts generations: each time it closes or opens, a new one starts. Requests that were
 * under way when it closed report 429 too, but for an old generation, so they do not make the wait
 * longer. A cap on requests is the same gate: each request moves the time of the next one. Waiting is
 * on a condition in short slices, since a condition cannot also wait for the
 * cancel descriptor; nobody waits but when a host limits us.
 */
#include "registry/internal.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/mem.h"

enum { SLICE_MS = 200, MAX_BACK_OFF_MS = 300000 };

struct gate {
    char *host;
    bool closed;
    bool probing;
    int64_t open_ms; /* when the next probe may go */
    unsigned generation;
    unsigned strikes; /* 429s since an answer came through */
    int64_t next_ms;  /* when the next request may go */
    bool has_quota;
    uint64_t remaining, limit;
    struct gate *next;
};

struct gates {
    struct gate_options options;
    pthread_mutex_t lock; /* guards all below; never held across I/O */
    pthread_cond_t changed;
    struct gate *list; /* gates live as long as their list */
};

int gates_new(struct gates **out, const struct gate_options *options, struct err *e)
{
    struct gates *g = mem_zalloc(sizeof(*g));

    if (!g)
        return err_nomem(e, "rate gates");
    g->options = *options;
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)cond_init(&g->changed);
    *out = g;
    return 0;
}

void gates_free(struct gates *g)
{
    if (!g)
        return;
    while (g->list) {
        struct gate *gate = g->list;
        g->list = gate->next;
        free(gate->host);
        free(gate);
    }
    (void)pthread_cond_destroy(&g->changed);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

/* NULL when memory is short. */
static struct gate *gate_of(struct gates *g, const char *host)
{
    for (struct gate *gate = g->list; gate; gate = gate->next) {
        if (strcmp(gate->host, host) == 0)
            return gate;
    }
    struct gate *gate = mem_zalloc(sizeof(*gate));
    if (!gate)
        return NULL;
    gate->host = mem_strdup(host);
    if (!gate->host) {
        free(gate);
        return NULL;
    }
    gate->next = g->list;
    g->list = gate;
    return gate;
}

static int limited(const struct gate *gate, int64_t now_ms, struct err *e)
{
    int64_t left_ms = gate->open_ms > now_ms ? gate->open_ms - now_ms : 0;

    err_set(e, ERR_RATE, "rate limit reached (status 429, %u in a row)", gate->strikes);
    e->retry_after_ms = (long)left_ms;
    return err_hint(e,
                    "run again in %lld s or later: what is done stays done; a login (docker login) "
                    "may have a higher limit",
                    (long long)((left_ms + 999) / 1000));
}

/* Waits for a change, at most until `until_ms`, and not longer than a slice. */
static void wait_slice(struct gates *g, int64_t now_ms, int64_t until_ms)
{
    int64_t end_ms = until_ms < now_ms + SLICE_MS ? until_ms : now_ms + SLICE_MS;

    (void)cond_wait_until(&g->changed, &g->lock, end_ms);
}

/* Called and left with the lock held: waits until the gate is open, or a probe may go. */
static int pass_gate(struct gates *g, struct gate *gate, bool patient, struct err *e)
{
    while (gate->closed) {
        int64_t now = clock_ms();

        if (cancel_check(g->options.cancel, e) < 0)
            return -(int)e->class;
        if (!patient && (gate->probing || now < gate->open_ms))
            return limited(gate, now, e);
        if (gate->probing) {
            wait_slice(g, now, INT64_MAX);
            continue;
        }
        if (now >= gate->open_ms)
            return 0;
        if (gate->strikes >= g->options.tries || gate->open_ms - now > g->options.max_wait_ms)
            return limited(gate, now, e);
        wait_slice(g, now, gate->open_ms);
    }
    return 0;
}

/* Called and left with the lock held. */
static int enter(struct gates *g, struct gate *gate, unsigned flags, struct gate_pass *out,
                 struct err *e)
{
    for (;;) {
        if (pass_gate(g, gate, (flags & GATE_PATIENT) != 0, e) < 0)
            return -(int)e->class;
        int64_t now = clock_ms();
        if (now >= gate->next_ms || !(flags & GATE_COUNTED))
            break;
        if (cancel_check(g->options.cancel, e) < 0)
            return -(int)e->class;
        wait_slice(g, now, gate->next_ms);
    }
    if (flags & GATE_COUNTED)
        gate->next_ms = clock_ms() + g->options.spacing_ms;
    *out = (struct gate_pass){gate, gate->generation, gate->closed};
    gate->probing = gate->closed;
    return 0;
}

int gate_enter(struct gates *g, const char *host, unsigned flags, struct gate_pass *out,
               struct err *e)
{
    (void)pthread_mutex_lock(&g->lock);
    struct gate *gate = gate_of(g, host);
    int rc = gate ? enter(g, gate, flags, out, e) : err_nomem(e, "rate gate");
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

void gate_note_quota(struct gates *g, const struct gate_pass *pass, uint64_t remaining,
                     uint64_t limit)
{
    (void)pthread_mutex_lock(&g->lock);
    pass->gate->has_quota = true;
    pass->gate->remaining = remaining;
    pass->gate->limit = limit;
    (void)pthread_mutex_unlock(&g->lock);
}

int64_t gates_limited_ms(struct gates *g)
{
    int64_t now_ms = clock_ms();
    int64_t most_ms = 0;

    (void)pthread_mutex_lock(&g->lock);
    for (const struct gate *gate = g->list; gate; gate = gate->next) {
        int64_t left_ms = gate->open_ms > now_ms ? gate->open_ms - now_ms : 1;
        if (gate->closed && left_ms > most_ms)
            most_ms = left_ms;
    }
    (void)pthread_mutex_unlock(&g->lock);
    return most_ms;
}

bool gates_quota(struct gates *g, uint64_t *remaining, uint64_t *limit)
{
    bool found = false;

    (void)pthread_mutex_lock(&g->lock);
    for (const struct gate *gate = g->list; gate; gate = gate->next) {
        if (!gate->has_quota || (found && gate->remaining >= *remaining))
            continue;
        found = true;
        *remaining = gate->remaining;
        *limit = gate->limit;
    }
    (void)pthread_mutex_unlock(&g->lock);
    return found;
}

static int64_t back_off(const struct gates *g, unsigned strikes)
{
    int64_t wait = g->options.first_wait_ms;

    while (--strikes > 0 && wait < MAX_BACK_OFF_MS)
        wait *= 2;
    return wait < MAX_BACK_OFF_MS ? wait : MAX_BACK_OFF_MS;
}

static void close_gate(struct gates *g, const struct gate_pass *pass, int64_t retry_after_ms)
{
    struct gate *gate = pass->gate;
    int64_t now = clock_ms();

    if (pass->generation == gate->generation) {
        gate->closed = true;
        gate->generation++;
        gate->strikes++;
        gate->open_ms = now + (retry_after_ms >= 0 ? retry_after_ms : back_off(g, gate->strikes));
    } else if (gate->closed && retry_after_ms >= 0 && now + retry_after_ms > gate->open_ms) {
        gate->open_ms = now + retry_after_ms;
    }
}

void gate_leave(struct gates *g, const struct gate_pass *pass, enum gate_answer answer,
                int64_t retry_after_ms)
{
    struct gate *gate = pass->gate;

    (void)pthread_mutex_lock(&g->lock);
    if (answer == GATE_LIMITED)
        close_gate(g, pass, retry_after_ms);
    if (answer == GATE_PASSED && pass->probe) {
        gate->closed = false;
        gate->generation++;
        gate->strikes = 0;
    }
    if (pass->probe)
        gate->probing = false;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
}
