/* SPDX-License-Identifier: MIT */
/*
 * What all layers that are ingested at one time share: the threads that hash and compress chunks, and
 * a bound on how many layers are read at once, one of them at most with a wide window. Memory follows
 * from these, whatever the number of tasks and the size of layers.
 */

#include <pthread.h>

#include "bake/image/ingest_gate.h"
#include "base/mem.h"
#include "base/pool.h"

/* A layer has three threads of its own (stream.c) and some 20 MiB; more than so many at once keep no
 * core busy that would be idle otherwise. */
enum { LAYERS_AT_ONCE = 4 };

struct ingest_gate {
    struct crew *crew;
    pthread_mutex_t lock;
    pthread_cond_t freed;
    size_t places;
    bool wide; /* someone inside has a wide window */
};

int ingest_gate_new(struct ingest_gate **out, size_t workers, struct err *e)
{
    struct ingest_gate *g = mem_zalloc(sizeof(*g));
    if (!g)
        return err_nomem(e, "ingest");
    g->places = workers < LAYERS_AT_ONCE ? workers : LAYERS_AT_ONCE;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->freed, NULL);
    int rc = crew_new(&g->crew, workers, e);
    if (rc < 0) {
        ingest_gate_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

void ingest_gate_free(struct ingest_gate *g)
{
    if (!g)
        return;
    crew_free(g->crew);
    pthread_cond_destroy(&g->freed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

struct crew *ingest_gate_crew(struct ingest_gate *g)
{
    return g->crew;
}

/* Whoever has a place waits for nobody who needs one, and ends soon after a cancellation. */
void ingest_gate_enter(struct ingest_gate *g, bool wide)
{
    pthread_mutex_lock(&g->lock);
    while (g->places == 0 || (wide && g->wide))
        pthread_cond_wait(&g->freed, &g->lock);
    g->places--;
    g->wide |= wide;
    pthread_mutex_unlock(&g->lock);
}

void ingest_gate_leave(struct ingest_gate *g, bool wide)
{
    pthread_mutex_lock(&g->lock);
    g->places++;
    if (wide)
        g->wide = false;
    pthread_cond_broadcast(&g->freed); /* who was woken alone might wait for the wide place */
    pthread_mutex_unlock(&g->lock);
}
