/* SPDX-License-Identifier: MIT */
/*
 * The guest's clock after a boot or a restore. The host's time is taken anew for each attempt, after
 * the agent has answered; on a busy host the request itself may take long, and the guest is then late
 * by as much. So the clock is read back: what it says lies between the host's times before and after,
 * and the worse of the two differences bounds the error.
 */

#include "base/clock.h"
#include "bake/channel.h"
#include "bake/guest/internal.h"

enum { TRIES = 20 };
#define GOOD_NS INT64_C(200000000)   /* no further attempt */
#define WORST_NS INT64_C(1000000000) /* after all attempts: not good enough */

static int measure(struct guest *g, int64_t *error_ns, struct err *e)
{
    int64_t guest_ns = 0;
    int64_t before_ns = clock_wall_ns();
    int rc = agent_clock(g->agent, &guest_ns, e);
    int64_t after_ns = clock_wall_ns();
    int64_t early_ns = after_ns - guest_ns;
    int64_t late_ns = guest_ns - before_ns;
    *error_ns = early_ns > late_ns ? early_ns : late_ns;
    return rc;
}

int guest_set_clock(struct guest *g, struct err *e)
{
    for (int left = TRIES - 1;; left--) {
        int64_t error_ns = 0;
        int rc = agent_set_clock(g->agent, NULL, e);
        if (rc == 0)
            rc = measure(g, &error_ns, e);
        if (rc < 0)
            return rc;
        g->clock_error_ns = error_ns;
        if (error_ns <= GOOD_NS || (left == 0 && error_ns <= WORST_NS))
            return 0;
        if (left == 0) {
            err_set(e, ERR_TIMEOUT,
                    "the guest's clock may be off by %lld ms after it was set %d times",
                    (long long)(error_ns / 1000000), TRIES);
            return err_hint(e, "this machine is too busy: bake fewer tasks at once (--vm-jobs)");
        }
    }
}
