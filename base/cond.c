/* SPDX-License-Identifier: MIT */
/* Condition variables: see cond.h. */
#include "base/cond.h"

#include <errno.h>
#include <time.h>

int cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attributes;
    int sys = pthread_condattr_init(&attributes);

    if (sys != 0)
        return sys;
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    sys = pthread_cond_init(c, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return sys;
}

bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t until_ms)
{
    struct timespec until = {.tv_sec = (time_t)(until_ms / 1000),
                             .tv_nsec = (long)(until_ms % 1000) * 1000000};

    return pthread_cond_timedwait(c, lock, &until) != ETIMEDOUT;
}
