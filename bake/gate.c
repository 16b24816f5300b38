/* SPDX-License-Identifier: MIT */
/*
 * Room for VMs: slots and memory, both counted under one mutex. A VM that asks for more memory than
 * there is altogether is let in alone: its memory is a file, so it is slow then, not wrong.
 */
#include "bake/pipeline.h"

#include <time.h>

void vm_gate_init(struct vm_gate *g, unsigned slots, uint64_t memory_mb)
{
    *g = (struct vm_gate){.slots = slots > 0 ? slots : 1, .memory_mb = memory_mb};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->freed, NULL);
}

void vm_gate_fini(struct vm_gate *g)
{
    pthread_cond_destroy(&g->freed);
    pthread_mutex_destroy(&g->lock);
}

static bool fits(const struct vm_gate *g, uint64_t memory_mb)
{
    if (g->used_slots == 0)
        return true;
    return g->used_slots < g->slots && g->used_memory_mb + memory_mb <= g->memory_mb;
}

int vm_gate_enter(struct vm_gate *g, uint64_t memory_mb, const struct cancel *c, struct err *e)
{
    pthread_mutex_lock(&g->lock);
    int rc = cancel_check(c, e);
    while (rc == 0 && !fits(g, memory_mb)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1; /* a cancel request does not signal the condition */
        pthread_cond_timedwait(&g->freed, &g->lock, &until);
        rc = cancel_check(c, e);
    }
    if (rc == 0) {
        g->used_slots++;
        g->used_memory_mb += memory_mb;
        g->entered++;
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

void vm_gate_leave(struct vm_gate *g, uint64_t memory_mb)
{
    pthread_mutex_lock(&g->lock);
    g->used_slots--;
    g->used_memory_mb -= memory_mb;
    pthread_cond_broadcast(&g->freed);
    pthread_mutex_unlock(&g->lock);
}
