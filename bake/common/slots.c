/* SPDX-License-Identifier: MIT */
/* Places: a counter under a mutex. */

#include <pthread.h>
#include <unistd.h>

#include "bake/common/slots.h"
#include "base/clock.h"
#include "base/cond.h"

enum { LOOK_MS = 1000 }; /* a cancel request does not signal the condition */

void slots_init(struct slots *s, unsigned count)
{
    *s = (struct slots){.count = count > 0 ? count : 1};
    pthread_mutex_init(&s->lock, NULL);
    (void)cond_init(&s->freed);
}

void slots_fini(struct slots *s)
{
    pthread_cond_destroy(&s->freed);
    pthread_mutex_destroy(&s->lock);
}

int slots_enter(struct slots *s, const struct cancel *c, struct err *e)
{
    if (!s)
        return cancel_check(c, e);
    pthread_mutex_lock(&s->lock);
    int rc = cancel_check(c, e);
    while (rc == 0 && s->used == s->count) {
        (void)cond_wait_until(&s->freed, &s->lock, clock_ms() + LOOK_MS);
        rc = cancel_check(c, e);
    }
    if (rc == 0)
        s->used++;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void slots_leave(struct slots *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->used--;
    pthread_cond_signal(&s->freed);
    pthread_mutex_unlock(&s->lock);
}

size_t machine_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 1 ? (size_t)cores : 1;
}
