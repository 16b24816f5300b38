/* SPDX-License-Identifier: MIT */
/*
 * Worker pool: items in, handled by a fixed number of threads, each result handed back in the
 * order of submission. With 1 worker everything runs in the caller (the serial twin), so that
 * parallel output can be held to serial output.
 */
#ifndef TB2_BASE_POOL_H
#define TB2_BASE_POOL_H

#include <stddef.h>

#include "base/err.h"

struct pool;

/* Threads that several pools share: however many pools there are, at most so many items are worked on
 * at once, first come, first served. */
struct crew;

int crew_new(struct crew **out, size_t workers, struct err *e) MUST_USE;
/* Ends the threads; no pool may be left on them. */
void crew_free(struct crew *c);
DEFINE_AUTO(crew, crew_free)
#define AUTO_CREW CLEANUP(crew_free_auto_)
size_t crew_size(const struct crew *c);

/*
 * `work` runs on any thread; `done` runs on the thread that calls pool_submit or pool_finish, in
 * submission order. Both take the item; the first error of either stops the pool: later items go
 * to `drop` only (NULL: nothing to release), which releases an item.
 */
struct pool_ops {
    int (*work)(void *ctx, void *item, struct err *e);
    int (*done)(void *ctx, void *item, struct err *e);
    void (*drop)(void *ctx, void *item);
};

/* One thread makes all calls. `workers` >= 1; at most 2 * workers items are in flight, pool_submit
 * waits beyond that. */
int pool_new(struct pool **out, const struct pool_ops *ops, void *ctx, size_t workers,
             struct err *e) MUST_USE;

/* The same on the threads of a crew (borrowed for the pool's life), with at most `depth` items in
 * flight; there is no serial twin. */
int pool_new_on(struct pool **out, const struct pool_ops *ops, void *ctx, struct crew *crew,
                size_t depth, struct err *e) MUST_USE;

/* Takes `item` over, also on failure. Returns the pool's first error, if it has one. */
int pool_submit(struct pool *p, void *item, struct err *e) MUST_USE;

/* Waits until all is done; the pool can be used again after success. */
int pool_finish(struct pool *p, struct err *e) MUST_USE;

/* Drops what is left, ends the threads. */
void pool_free(struct pool *p);
DEFINE_AUTO(pool, pool_free)
#define AUTO_POOL CLEANUP(pool_free_auto_)

#endif
