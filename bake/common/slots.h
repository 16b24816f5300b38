/* SPDX-License-Identifier: MIT */
/* Places: how much of a kind of work goes on at once. Thread-safe. */
#ifndef TB2_BAKE_COMMON_SLOTS_H
#define TB2_BAKE_COMMON_SLOTS_H

#include <pthread.h>
#include <stddef.h>

#include "base/cancel.h"
#include "base/err.h"

/* A number of places, of which each is taken for as long as some work goes on. */
struct slots {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    unsigned count;
    unsigned used;
};
void slots_init(struct slots *s, unsigned count);
void slots_fini(struct slots *s);
/* NULL: there are places enough. */
int slots_enter(struct slots *s, const struct cancel *c, struct err *e) MUST_USE;
void slots_leave(struct slots *s);

/* Processors of this machine, at least 1: how many threads work on one layer or one file. */
size_t machine_cores(void);

#endif
