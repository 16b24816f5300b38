/* SPDX-License-Identifier: MIT */
/*
 * A request to stop, shared by everything that one run does. Setting it is async-signal-safe;
 * long waits poll it (or wait on its descriptor) and return ERR_CANCELLED.
 */
#ifndef TB2_BASE_CANCEL_H
#define TB2_BASE_CANCEL_H

#include <stdbool.h>

#include "base/err.h"

struct cancel {
    int fd; /* eventfd; readable once cancelled, and stays so */
};

int cancel_init(struct cancel *c, struct err *e) MUST_USE;
void cancel_fini(struct cancel *c);

/* Asks to stop. Async-signal-safe, thread-safe, idempotent. */
void cancel_set(struct cancel *c);

/* NULL is never cancelled. */
bool cancel_is_set(const struct cancel *c);

/* 0, or ERR_CANCELLED. */
int cancel_check(const struct cancel *c, struct err *e) MUST_USE;

/* Sleeps up to `ms`, less when cancelled: then ERR_CANCELLED. */
int cancel_sleep_ms(const struct cancel *c, long ms, struct err *e) MUST_USE;

#endif
