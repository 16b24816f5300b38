/* SPDX-License-Identifier: MIT */
/* One bake at a time in a store. */
#ifndef TB2_BAKE_COMMON_RUN_LOCK_H
#define TB2_BAKE_COMMON_RUN_LOCK_H

#include "base/err.h"

struct store;

/*
 * One run per store at a time: what two would do twice is done once. *fd holds the lock until it is
 * closed. Not the lock of store_open: others list and restore templates while a run goes on.
 * ERR_BUSY with a hint when another run holds it.
 */
int run_lock(int *fd, struct store *s, struct err *e) MUST_USE;

#endif
