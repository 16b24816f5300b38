/* SPDX-License-Identifier: MIT */
/* Work that several tasks want and one does. Thread-safe. */
#ifndef TB2_BAKE_COMMON_ONCE_H
#define TB2_BAKE_COMMON_ONCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"

/* A failure that may pass (err_retryable) is only remembered for this long: then the next caller
 * tries again. */
enum { ONCE_FAILURE_MS = 4000 };

struct once;
int once_new(struct once **out, struct err *e) MUST_USE;
void once_free(struct once *o);
void once_set_failure_ms(struct once *o, int64_t ms); /* instead of ONCE_FAILURE_MS */
/*
 * The first caller for `key` gets *mine = true, does the work and calls once_end. The others wait
 * for that and get *mine = false with its value, or its error.
 */
int once_begin(struct once *o, const char *key, bool *mine, struct digest *value,
               struct err *e) MUST_USE;
/* `rc` and `e` are the work's result; `value` may be NULL. */
void once_end(struct once *o, const char *key, int rc, const struct digest *value,
              const struct err *e);

#endif
