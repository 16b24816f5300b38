/* SPDX-License-Identifier: MIT */
/*
 * A request to stop, shared by everything that one run does. Setting it is async-signal-safe;
 * long waits poll it (or wait on its descriptor) and return ERR_CANCELLED.
 */
#ifndef TB2_BASE_CANCEL_H
#define TB2_BASE_CANCEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct cancel {
    int fd; /* eventfd; readable once cancelled, and stays so. -1: never cancelled */
    struct cancel_limits *limits; /* of threads; NULL: none has one */
};

int cancel_init(struct cancel *c, struct err *e) MUST_USE;
void cancel_fini(struct cancel *c);

/* Asks to stop. Async-signal-safe, thread-safe, idempotent. */
void cancel_set(struct cancel *c);

/* NULL is never cancelled. True also when the calling thread's time is up. */
bool cancel_is_set(const struct cancel *c);

/* 0, or ERR_CANCELLED; ERR_TIMEOUT when the calling thread's time is up. */
int cancel_check(const struct cancel *c, struct err *e) MUST_USE;

/* Sleeps up to `ms`, less when cancelled or out of time: then as cancel_check. */
int cancel_sleep_ms(const struct cancel *c, long ms, struct err *e) MUST_USE;

/* For poll: the descriptor to wait for beside others (-1: none), and how long at most, of `ms`
 * milliseconds (at least 0; at most a minute): cancel_check comes after. */
int cancel_fd(const struct cancel *c);
int cancel_wait_ms(const struct cancel *c, int64_t ms);

/* ---- Time limits ----------------------------------------------------------------------------
 *
 * Many threads share one request to stop, and everything that they wait for watches it. A thread
 * may have a time limit of its own beside it: what it waits for then ends with ERR_TIMEOUT, with
 * no limit to be handed through every call. Threads that work for another one share its limit.
 */

struct cancel_limit;

/* *c is the same request as `of` (NULL: one that never comes), which outlives it, with limits. */
int cancel_limited_init(struct cancel *c, const struct cancel *of, struct err *e) MUST_USE;
/* When no thread uses it any more. */
void cancel_limited_fini(struct cancel *c);

/* From now on the calling thread has `ms` milliseconds; 0: any time. ERR_NOMEM. */
int cancel_limit_set(const struct cancel *c, int64_t ms, struct err *e) MUST_USE;
bool cancel_limit_passed(const struct cancel *c);

/* The calling thread's limit, as it is and will be set; NULL: it has none. */
struct cancel_limit *cancel_limit_get(const struct cancel *c);
/* The calling thread works for the one whose limit this is. */
void cancel_limit_share(const struct cancel *c, struct cancel_limit *limit);

#endif
