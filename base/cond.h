/* SPDX-License-Identifier: MIT */
/* Condition variables that wait by the clock of clock_ms. Thread-safe. */
#ifndef TB2_BASE_COND_H
#define TB2_BASE_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* For cond_wait_until; ends with pthread_cond_destroy. 0, or an errno value. */
int cond_init(pthread_cond_t *c);

/* Waits for a signal, at most until clock_ms() is `until_ms`; false once that time has come. As with
 * any condition, true does not mean that what is waited for is so. */
bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t until_ms);

#endif
