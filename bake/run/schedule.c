/* SPDX-License-Identifier: MIT */
/*
 * Lanes and their threads. Each lane has a heap of waiting items and a list of delayed ones, all
 * under one mutex that is never held across work. A thread of its own watches the two cancel
 * requests, which no condition can wait for.
 */

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "bake/run/schedule.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/file.h"
#include "base/io.h"
#include "base/log.h"
#include "base/mem.h"

/* How often the item that is next and does not fit may be passed. */
enum { PASSED_MAX = 8 };

struct waiting {
    size_t item;
    int64_t ahead_ms;
    int64_t not_before_ms;
    uint64_t memory_mb;
    unsigned passed;
};

struct lane {
    struct schedule_lane limits;
    struct waiting *heap; /* the most ahead first */
    size_t count;
    size_t capacity;
    struct waiting *delayed;
    size_t delayed_count;
    size_t delayed_capacity;
    unsigned running;
    uint64_t running_mb;
    pthread_cond_t ready;
};

struct schedule {
    const struct schedule_options *options;
    struct lane lanes[SCHEDULE_LANES_MAX];
    size_t left; /* items that are neither finished nor dropped */
    bool draining;
    bool stopping;
    pthread_mutex_t lock;
    int wake_fd; /* ends the watching thread */
};

struct worker {
    struct schedule *schedule;
    unsigned lane;
};

/* ---- Heap ---- */

static bool before(const struct waiting *a, const struct waiting *b)
{
    return a->ahead_ms != b->ahead_ms ? a->ahead_ms > b->ahead_ms : a->item < b->item;
}

static void heap_up(struct waiting *heap, size_t at)
{
    while (at > 0 && before(&heap[at], &heap[(at - 1) / 2])) {
        struct waiting up = heap[at];
        heap[at] = heap[(at - 1) / 2];
        heap[(at - 1) / 2] = up;
        at = (at - 1) / 2;
    }
}

static void heap_down(struct waiting *heap, size_t count, size_t at)
{
    for (;;) {
        size_t best = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++) {
            if (before(&heap[child], &heap[best]))
                best = child;
        }
        if (best == at)
            return;
        struct waiting down = heap[at];
        heap[at] = heap[best];
        heap[best] = down;
        at = best;
    }
}

static struct waiting heap_take(struct lane *l, size_t at)
{
    struct waiting taken = l->heap[at];
    l->heap[at] = l->heap[--l->count];
    if (at < l->count) {
        heap_up(l->heap, at);
        heap_down(l->heap, l->count, at);
    }
    return taken;
}

/* ---- Lanes; all with the lock held ---- */

static void wake_all(struct schedule *s)
{
    for (unsigned i = 0; i < s->options->lane_count; i++)
        pthread_cond_broadcast(&s->lanes[i].ready);
}

/* Room for every item was made in every lane at the start, so this cannot fail. */
static void enqueue(struct schedule *s, const struct schedule_next *next, size_t item)
{
    struct lane *l = &s->lanes[next->lane];
    struct waiting w = {.item = item, .ahead_ms = next->ahead_ms, .memory_mb = next->memory_mb};
    if (next->delay_ms > 0) {
        w.not_before_ms = clock_ms() + next->delay_ms;
        l->delayed[l->delayed_count++] = w;
    } else {
        l->heap[l->count++] = w;
        heap_up(l->heap, l->count - 1);
    }
    pthread_cond_signal(&l->ready);
}

/* Moves what has waited long enough. Returns when the next one is due; -1: none. */
static int64_t release_delayed(struct lane *l)
{
    int64_t now_ms = clock_ms();
    int64_t due_ms = -1;
    for (size_t i = 0; i < l->delayed_count;) {
        struct waiting w = l->delayed[i];
        if (w.not_before_ms <= now_ms) {
            l->delayed[i] = l->delayed[--l->delayed_count];
            l->heap[l->count++] = w;
            heap_up(l->heap, l->count - 1);
            continue;
        }
        if (due_ms < 0 || w.not_before_ms < due_ms)
            due_ms = w.not_before_ms;
        i++;
    }
    return due_ms;
}

static bool fits(const struct schedule *s, const struct lane *l, const struct waiting *w)
{
    if (l->running == 0)
        return true;
    if (l->limits.memory_mb > 0 && l->running_mb + w->memory_mb > l->limits.memory_mb)
        return false;
    return !l->limits.room || l->running_mb + w->memory_mb <= l->limits.room(s->options->ctx);
}

/* Place in the heap of the item to begin now; `count` when none may. */
static size_t choose(const struct schedule *s, struct lane *l)
{
    if (l->count == 0 || fits(s, l, &l->heap[0]))
        return 0;
    if (l->heap[0].passed >= PASSED_MAX)
        return l->count;
    size_t best = l->count;
    for (size_t i = 1; i < l->count; i++) {
        if (l->heap[i].memory_mb >= l->heap[0].memory_mb || !fits(s, l, &l->heap[i]))
            continue;
        if (best == l->count || before(&l->heap[i], &l->heap[best]))
            best = i;
    }
    if (best < l->count)
        l->heap[0].passed++;
    return best;
}

static bool is_closed(const struct schedule *s, const struct lane *l)
{
    return s->stopping || (s->draining && !l->limits.goes_on);
}

/* Waits for something to do. False when nothing will come. */
static bool wait_for_item(struct schedule *s, struct lane *l, struct waiting *out)
{
    while (s->left > 0) {
        int64_t due_ms = release_delayed(l);
        if (is_closed(s, l) && l->delayed_count > 0) {
            *out = l->delayed[--l->delayed_count];
            return true;
        }
        size_t at = is_closed(s, l) ? 0 : choose(s, l);
        if (at < l->count) {
            *out = heap_take(l, at);
            return true;
        }
        if (due_ms < 0) {
            pthread_cond_wait(&l->ready, &s->lock);
            continue;
        }
        (void)cond_wait_until(&l->ready, &s->lock, due_ms);
    }
    return false;
}

/* ---- Threads ---- */

static void finish_item(struct schedule *s)
{
    if (--s->left == 0)
        wake_all(s);
}

static void work_on(struct schedule *s, struct lane *l, const struct waiting *w)
{
    l->running++;
    l->running_mb += w->memory_mb;
    pthread_mutex_unlock(&s->lock);
    struct schedule_next next = s->options->ops.work(s->options->ctx, w->item);
    pthread_mutex_lock(&s->lock);
    l->running--;
    l->running_mb -= w->memory_mb;
    if (w->memory_mb > 0)
        pthread_cond_broadcast(&l->ready); /* what did not fit may fit now */
    assert(next.finished || next.lane < s->options->lane_count);
    if (next.finished)
        finish_item(s);
    else
        enqueue(s, &next, w->item);
}

static void drop(struct schedule *s, size_t item)
{
    pthread_mutex_unlock(&s->lock);
    s->options->ops.drop(s->options->ctx, item);
    pthread_mutex_lock(&s->lock);
    finish_item(s);
}

static void *worker_thread(void *self)
{
    struct worker *w = self;
    struct schedule *s = w->schedule;
    struct lane *l = &s->lanes[w->lane];
    struct waiting next;
    pthread_mutex_lock(&s->lock);
    while (wait_for_item(s, l, &next)) {
        if (is_closed(s, l))
            drop(s, next.item);
        else
            work_on(s, l, &next);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *watch_thread(void *self)
{
    struct schedule *s = self;
    const struct schedule_options *o = s->options;
    struct pollfd fds[] = {{.fd = s->wake_fd, .events = POLLIN},
                           {.fd = o->drain ? o->drain->fd : -1, .events = POLLIN},
                           {.fd = o->stop ? o->stop->fd : -1, .events = POLLIN}};
    while (poll(fds, 3, -1) < 0 || !(fds[0].revents & POLLIN)) {
        pthread_mutex_lock(&s->lock);
        for (int i = 1; i < 3; i++) {
            if (!(fds[i].revents & POLLIN))
                continue;
            fds[i].fd = -1; /* stays readable */
            if (!s->draining && i == 1)
                log_event(
                    LOG_WARN, "bake",
                    "what runs comes to its end, nothing new begins; once more stops at once");
            s->draining = true;
            s->stopping |= i == 2;
        }
        wake_all(s);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

/* ---- A run ---- */

static int schedule_init(struct schedule *s, const struct schedule_options *o, size_t count,
                         struct err *e)
{
    *s = (struct schedule){.options = o, .left = count, .wake_fd = -1};
    pthread_mutex_init(&s->lock, NULL);
    int rc = 0;
    for (unsigned i = 0; i < o->lane_count; i++) {
        struct lane *l = &s->lanes[i];
        l->limits = o->lanes[i];
        (void)cond_init(&l->ready);
        if (rc == 0)
            rc = mem_grow(&l->heap, &l->capacity, count, sizeof(*l->heap), e);
        if (rc == 0)
            rc = mem_grow(&l->delayed, &l->delayed_capacity, count, sizeof(*l->delayed), e);
    }
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return rc == 0 && s->wake_fd < 0 ? err_sys(e, "making an event") : rc;
}

static void schedule_fini(struct schedule *s)
{
    for (unsigned i = 0; i < s->options->lane_count; i++) {
        free(s->lanes[i].heap);
        free(s->lanes[i].delayed);
        pthread_cond_destroy(&s->lanes[i].ready);
    }
    file_close(&s->wake_fd);
    pthread_mutex_destroy(&s->lock);
}

/* At least one thread for each lane, so that every item gets somewhere: else there is none. */
static int start_workers(struct schedule *s, struct worker *workers, pthread_t *threads,
                         size_t *started, struct err *e)
{
    for (unsigned round = 0; round < SCHEDULE_WORKERS_MAX; round++) {
        for (unsigned i = 0; i < s->options->lane_count; i++) {
            unsigned wanted = s->lanes[i].limits.workers;
            if (round >= (wanted > 0 ? wanted : 1) || (round > 0 && round >= s->left) ||
                *started == SCHEDULE_WORKERS_MAX)
                continue;
            workers[*started] = (struct worker){s, i};
            int sys = pthread_create(&threads[*started], NULL, worker_thread, &workers[*started]);
            if (sys != 0 && round > 0)
                return 0; /* fewer have to do */
            if (sys != 0)
                return err_sysno(e, sys, "starting a thread");
            ++*started;
        }
    }
    return 0;
}

static int run_threads(struct schedule *s, struct err *e)
{
    pthread_t watcher;
    pthread_t threads[SCHEDULE_WORKERS_MAX];
    AUTO_FREE struct worker *workers = mem_array(SCHEDULE_WORKERS_MAX, sizeof(*workers));
    if (!workers)
        return err_nomem(e, "scheduler");
    int sys = pthread_create(&watcher, NULL, watch_thread, s);
    if (sys != 0)
        return err_sysno(e, sys, "starting a thread");
    size_t started = 0;
    pthread_mutex_lock(&s->lock); /* nobody begins before all lanes have someone */
    int rc = start_workers(s, workers, threads, &started, e);
    if (rc < 0)
        s->left = 0;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    uint64_t one = 1;
    struct err ignored = ERR_INIT;
    (void)!file_write_full(s->wake_fd, &one, sizeof(one), &ignored);
    pthread_join(watcher, NULL);
    return rc;
}

int schedule_run(const struct schedule_options *o, size_t count,
                 struct schedule_next (*first)(void *ctx, size_t item), struct err *e)
{
    assert(o->lane_count <= SCHEDULE_LANES_MAX);
    struct schedule s;
    int rc = schedule_init(&s, o, count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct schedule_next next = first(o->ctx, i);
        if (next.finished)
            s.left--;
        else
            enqueue(&s, &next, i);
    }
    if (rc == 0 && s.left > 0)
        rc = run_threads(&s, e);
    schedule_fini(&s);
    return rc;
}
