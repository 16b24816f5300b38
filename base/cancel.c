/* SPDX-License-Identifier: MIT */
/*
 * A cancel request is an eventfd that is never read: once written it stays readable. Limits are
 * deadlines under a key of thread-specific data that belongs to the request, so that two runs in one
 * process have nothing in common.
 */
#include "base/cancel.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { WAIT_MAX_MS = 60000 };

struct cancel_limit {
    _Atomic int64_t deadline_ms; /* 0: none */
    struct cancel_limit *next;
};

struct cancel_limits {
    pthread_key_t key; /* a thread's struct cancel_limit */
    pthread_mutex_t lock;
    struct cancel_limit *first; /* all of them */
};

int cancel_init(struct cancel *c, struct err *e)
{
    *c = (struct cancel){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (c->fd < 0)
        return err_sys(e, "making a cancel event");
    return 0;
}

void cancel_fini(struct cancel *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

void cancel_set(struct cancel *c)
{
    int saved = errno; /* may run in a signal handler */
    uint64_t one = 1;
    ssize_t written = write(c->fd, &one, sizeof(one));
    (void)written; /* EAGAIN: set already, 2^64 - 2 times over */
    errno = saved;
}

static bool is_requested(const struct cancel *c)
{
    struct pollfd p = {.fd = cancel_fd(c), .events = POLLIN};
    return p.fd >= 0 && poll(&p, 1, 0) == 1;
}

bool cancel_is_set(const struct cancel *c)
{
    return is_requested(c) || cancel_limit_passed(c);
}

int cancel_check(const struct cancel *c, struct err *e)
{
    if (is_requested(c))
        return err_set(e, ERR_CANCELLED, "cancelled");
    return cancel_limit_passed(c) ? err_set(e, ERR_TIMEOUT, "out of time") : 0;
}

int cancel_sleep_ms(const struct cancel *c, long ms, struct err *e)
{
    int64_t end = clock_ms() + ms;
    for (int64_t left = ms; left > 0; left = end - clock_ms()) {
        struct pollfd p = {.fd = cancel_fd(c), .events = POLLIN};
        int n = poll(&p, 1, cancel_wait_ms(c, left));
        if (n == 1 || cancel_limit_passed(c))
            break;
    }
    return cancel_check(c, e);
}

int cancel_fd(const struct cancel *c)
{
    return c ? c->fd : -1;
}

/* ---- Time limits ---- */

struct cancel_limit *cancel_limit_get(const struct cancel *c)
{
    return c && c->limits ? pthread_getspecific(c->limits->key) : NULL;
}

static int64_t deadline_of(const struct cancel *c)
{
    struct cancel_limit *limit = cancel_limit_get(c);
    return limit ? atomic_load(&limit->deadline_ms) : 0;
}

bool cancel_limit_passed(const struct cancel *c)
{
    int64_t deadline_ms = deadline_of(c);
    return deadline_ms > 0 && clock_ms() >= deadline_ms;
}

int cancel_wait_ms(const struct cancel *c, int64_t ms)
{
    int64_t deadline_ms = deadline_of(c);
    int64_t left = deadline_ms > 0 ? deadline_ms - clock_ms() : ms;
    if (ms < left)
        left = ms;
    return left < 0 ? 0 : left > WAIT_MAX_MS ? WAIT_MAX_MS : (int)left;
}

int cancel_limited_init(struct cancel *c, const struct cancel *of, struct err *e)
{
    *c = (struct cancel){.fd = cancel_fd(of)};
    struct cancel_limits *limits = mem_zalloc(sizeof(*limits));
    if (!limits)
        return err_nomem(e, "time limits");
    int sys = pthread_key_create(&limits->key, NULL);
    if (sys != 0) {
        free(limits);
        return err_sysno(e, sys, "time limits");
    }
    pthread_mutex_init(&limits->lock, NULL);
    c->limits = limits;
    return 0;
}

void cancel_limited_fini(struct cancel *c)
{
    struct cancel_limits *limits = c->limits;
    c->limits = NULL;
    if (!limits)
        return;
    while (limits->first) {
        struct cancel_limit *limit = limits->first;
        limits->first = limit->next;
        free(limit);
    }
    pthread_key_delete(limits->key);
    pthread_mutex_destroy(&limits->lock);
    free(limits);
}

int cancel_limit_set(const struct cancel *c, int64_t ms, struct err *e)
{
    struct cancel_limit *limit = cancel_limit_get(c);
    if (!c || !c->limits || (!limit && ms == 0))
        return 0;
    if (!limit) {
        limit = mem_zalloc(sizeof(*limit));
        if (!limit || pthread_setspecific(c->limits->key, limit) != 0) {
            free(limit);
            return err_nomem(e, "time limit");
        }
        pthread_mutex_lock(&c->limits->lock);
        limit->next = c->limits->first;
        c->limits->first = limit;
        pthread_mutex_unlock(&c->limits->lock);
    }
    atomic_store(&limit->deadline_ms, ms > 0 ? clock_ms() + ms : 0);
    return 0;
}

void cancel_limit_share(const struct cancel *c, struct cancel_limit *limit)
{
    if (c && c->limits)
        (void)pthread_setspecific(c->limits->key, limit);
}
