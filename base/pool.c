/* SPDX-License-Identifier: MIT */
/*
 * Worker pool: a ring of slots in submission order. The threads of a crew take slots in the order in
 * which they were submitted, by whichever pool; the submitting thread retires finished slots from
 * the front of its own ring, so results come in order whatever the workers' pace. Locks are held
 * only to move slots, never across a callback, and never two at a time.
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

enum slot_state { SLOT_FREE, SLOT_WAITING, SLOT_FINISHED };

struct slot {
    struct pool *pool;
    struct slot *next; /* in the crew's queue */
    enum slot_state state;
    void *item;
    int result;
    struct err err;
};

struct crew {
    pthread_t *threads;
    size_t workers;
    struct slot *first; /* waiting, oldest first */
    struct slot *last;
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t work_ready;
};

struct pool {
    struct pool_ops ops;
    void *ctx;
    struct crew *crew; /* NULL in the serial twin */
    struct crew *own;  /* the same, if it is the pool's to free */
    struct slot *slots;
    size_t slot_count;
    size_t front; /* oldest slot in use */
    size_t used;  /* slots in use */
    bool failed;
    struct err err; /* the first error, once failed */
    pthread_mutex_t lock;
    pthread_cond_t slot_finished;
};

/* ---- Crew ---- */

static void work_on(struct slot *s)
{
    struct pool *p = s->pool;
    pthread_mutex_lock(&p->lock);
    bool skip = p->failed;
    pthread_mutex_unlock(&p->lock);
    err_clear(&s->err);
    s->result = skip ? 0 : p->ops.work(p->ctx, s->item, &s->err);
    pthread_mutex_lock(&p->lock);
    s->state = SLOT_FINISHED;
    pthread_cond_signal(&p->slot_finished);
    pthread_mutex_unlock(&p->lock);
}

static void *worker(void *self)
{
    struct crew *c = self;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->stop && !c->first)
            pthread_cond_wait(&c->work_ready, &c->lock);
        struct slot *s = c->first;
        if (!s)
            break; /* stopped and nothing left */
        c->first = s->next;
        if (!c->first)
            c->last = NULL;
        pthread_mutex_unlock(&c->lock);
        work_on(s);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void crew_add(struct crew *c, struct slot *s)
{
    s->next = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->last)
        c->last->next = s;
    else
        c->first = s;
    c->last = s;
    pthread_cond_signal(&c->work_ready);
    pthread_mutex_unlock(&c->lock);
}

int crew_new(struct crew **out, size_t workers, struct err *e)
{
    AUTO_CREW struct crew *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "worker threads");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work_ready, NULL);
    c->threads = mem_array(workers, sizeof(*c->threads));
    if (!c->threads)
        return err_nomem(e, "worker threads");
    for (; c->workers < workers; c->workers++) {
        int sys = pthread_create(&c->threads[c->workers], NULL, worker, c);
        if (sys != 0)
            return err_sysno(e, sys, "starting a worker thread");
    }
    *out = MOVE(c);
    return 0;
}

void crew_free(struct crew *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->work_ready);
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < c->workers; i++)
        pthread_join(c->threads[i], NULL);
    pthread_cond_destroy(&c->work_ready);
    pthread_mutex_destroy(&c->lock);
    free(c->threads);
    free(c);
}

size_t crew_size(const struct crew *c)
{
    return c->workers;
}

/* ---- Pool ---- */

static void drop_item(struct pool *p, void *item)
{
    if (p->ops.drop)
        p->ops.drop(p->ctx, item);
}

static void note_failure(struct pool *p, const struct err *e)
{
    if (p->failed)
        return;
    p->failed = true;
    p->err = *e;
}

/* Delivers one finished item. Called without the lock by the submitting thread. */
static void deliver(struct pool *p, void *item, int result, struct err *e)
{
    if (result == 0 && !p->failed)
        result = p->ops.done(p->ctx, item, e);
    else
        drop_item(p, item);
    if (result < 0) {
        pthread_mutex_lock(&p->lock);
        note_failure(p, e);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Retires slots from the front until at most `keep` are in use, waiting for them as needed. */
static void retire(struct pool *p, size_t keep)
{
    pthread_mutex_lock(&p->lock);
    while (p->used > 0) {
        struct slot *s = &p->slots[p->front];
        if (s->state != SLOT_FINISHED) {
            if (p->used <= keep)
                break;
            pthread_cond_wait(&p->slot_finished, &p->lock);
            continue;
        }
        struct slot done = *s;
        s->state = SLOT_FREE;
        p->front = (p->front + 1) % p->slot_count;
        p->used--;
        pthread_mutex_unlock(&p->lock);
        deliver(p, done.item, done.result, &done.err);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

static int pool_result(struct pool *p, struct err *e)
{
    if (!p->failed)
        return 0;
    *e = p->err;
    return -(int)e->class;
}

int pool_submit(struct pool *p, void *item, struct err *e)
{
    if (p->failed) {
        drop_item(p, item);
        return pool_result(p, e);
    }
    if (!p->crew) {
        struct err own = ERR_INIT;
        deliver(p, item, p->ops.work(p->ctx, item, &own), &own);
        return pool_result(p, e);
    }
    retire(p, p->slot_count - 1);
    struct slot *s = &p->slots[(p->front + p->used) % p->slot_count];
    s->pool = p;
    s->state = SLOT_WAITING;
    s->item = item;
    p->used++;
    crew_add(p->crew, s);
    return pool_result(p, e);
}

int pool_finish(struct pool *p, struct err *e)
{
    retire(p, 0);
    return pool_result(p, e);
}

/* Without a crew: the serial twin. */
static int pool_make(struct pool **out, const struct pool_ops *ops, void *ctx, struct crew *crew,
                     size_t depth, struct err *e)
{
    struct pool *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "worker pool");
    p->ops = *ops;
    p->ctx = ctx;
    p->crew = crew;
    p->slot_count = depth;
    p->slots = mem_array(depth, sizeof(*p->slots));
    if (!p->slots) {
        free(p);
        return err_nomem(e, "worker pool");
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->slot_finished, NULL);
    *out = p;
    return 0;
}

int pool_new_on(struct pool **out, const struct pool_ops *ops, void *ctx, struct crew *crew,
                size_t depth, struct err *e)
{
    return pool_make(out, ops, ctx, crew, depth, e);
}

int pool_new(struct pool **out, const struct pool_ops *ops, void *ctx, size_t workers,
             struct err *e)
{
    AUTO_CREW struct crew *own = NULL;
    int rc = workers > 1 ? crew_new(&own, workers, e) : 0;
    if (rc == 0)
        rc = pool_make(out, ops, ctx, own, 2 * workers, e);
    if (rc == 0)
        (*out)->own = MOVE(own);
    return rc;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->failed = true; /* what still waits is not worked on */
    pthread_mutex_unlock(&p->lock);
    retire(p, 0);
    crew_free(p->own);
    pthread_cond_destroy(&p->slot_finished);
    pthread_mutex_destroy(&p->lock);
    free(p->slots);
    free(p);
}
