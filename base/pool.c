/* SPDX-License-Identifier: MIT */
/*
 * Worker pool: a ring of slots in submission order. Workers take the oldest waiting slot; the
 * submitting thread retires finished slots from the front, so results come in order whatever the
 * workers' pace. One mutex, held only to move slots; no lock is held across a callback.
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

enum slot_state { SLOT_FREE, SLOT_WAITING, SLOT_RUNNING, SLOT_FINISHED };

struct slot {
    enum slot_state state;
    void *item;
    int result;
    struct err err;
};

struct pool {
    struct pool_ops ops;
    void *ctx;
    size_t workers; /* threads; 0 in the serial twin */
    pthread_t *threads;
    struct slot *slots;
    size_t slot_count;
    size_t front; /* oldest slot in use */
    size_t used;  /* slots in use */
    size_t taken; /* of these, handed to workers */
    bool stop;
    bool failed;
    struct err err; /* the first error, once failed */
    pthread_mutex_t lock;
    pthread_cond_t work_ready;
    pthread_cond_t slot_finished;
};

static void *worker(void *self)
{
    struct pool *p = self;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->taken == p->used)
            pthread_cond_wait(&p->work_ready, &p->lock);
        if (p->taken == p->used)
            break; /* stopped and nothing left */
        struct slot *s = &p->slots[(p->front + p->taken) % p->slot_count];
        p->taken++;
        s->state = SLOT_RUNNING;
        bool skip = p->failed;
        pthread_mutex_unlock(&p->lock);
        err_clear(&s->err);
        s->result = skip ? 0 : p->ops.work(p->ctx, s->item, &s->err);
        pthread_mutex_lock(&p->lock);
        s->state = SLOT_FINISHED;
        pthread_cond_signal(&p->slot_finished);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

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
        p->taken--;
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
    if (p->workers == 0) {
        struct err own = ERR_INIT;
        deliver(p, item, p->ops.work(p->ctx, item, &own), &own);
        return pool_result(p, e);
    }
    retire(p, p->slot_count - 1);
    pthread_mutex_lock(&p->lock);
    struct slot *s = &p->slots[(p->front + p->used) % p->slot_count];
    s->state = SLOT_WAITING;
    s->item = item;
    p->used++;
    pthread_cond_signal(&p->work_ready);
    pthread_mutex_unlock(&p->lock);
    return pool_result(p, e);
}

int pool_finish(struct pool *p, struct err *e)
{
    retire(p, 0);
    return pool_result(p, e);
}

static int start_threads(struct pool *p, size_t workers, struct err *e)
{
    p->slot_count = 2 * workers;
    p->slots = mem_array(p->slot_count, sizeof(*p->slots));
    p->threads = mem_array(workers, sizeof(*p->threads));
    if (!p->slots || !p->threads)
        return err_nomem(e, "worker pool");
    for (; p->workers < workers; p->workers++) {
        int sys = pthread_create(&p->threads[p->workers], NULL, worker, p);
        if (sys != 0)
            return err_sysno(e, sys, "starting a worker thread");
    }
    return 0;
}

int pool_new(struct pool **out, const struct pool_ops *ops, void *ctx, size_t workers,
             struct err *e)
{
    struct pool *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "worker pool");
    p->ops = *ops;
    p->ctx = ctx;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work_ready, NULL);
    pthread_cond_init(&p->slot_finished, NULL);
    int rc = workers > 1 ? start_threads(p, workers, e) : 0;
    if (rc < 0) {
        pool_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->failed = true; /* what still waits is not worked on */
    p->stop = true;
    pthread_cond_broadcast(&p->work_ready);
    pthread_mutex_unlock(&p->lock);
    retire(p, 0);
    for (size_t i = 0; i < p->workers; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->slot_finished);
    pthread_cond_destroy(&p->work_ready);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p->slots);
    free(p);
}
