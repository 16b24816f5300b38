/* SPDX-License-Identifier: MIT */
/*
 * The scheduler of a run.
 *
 * Items (tasks) go from lane to lane until they are done. A lane is a kind of work with a limit of
 * its own: requests, disks, VMs, server slots. Its threads take the waiting item with the most work
 * ahead of it (ties: the lower number first), so that what takes longest is begun early. A lane may
 * have a budget of memory: the item that is next and does not fit is passed by smaller ones a few
 * times, then the lane waits until it does; one that is bigger than the whole budget runs alone.
 *
 * What work does is the caller's; with stages that do nothing real the same code runs in a test.
 */
#ifndef TB2_BAKE_RUN_SCHEDULE_H
#define TB2_BAKE_RUN_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"

enum { SCHEDULE_LANES_MAX = 8, SCHEDULE_WORKERS_MAX = 256 };

/* What comes next for an item. */
struct schedule_next {
    bool finished;
    unsigned lane;      /* unless finished */
    int64_t ahead_ms;   /* work ahead of it, estimated */
    uint64_t memory_mb; /* that it takes in that lane */
    int64_t delay_ms;   /* not before so much time has passed */
};

struct schedule_lane {
    unsigned workers;            /* items at once */
    uint64_t memory_mb;          /* of all of them together; 0: not counted */
    bool goes_on;                /* also after a request to drain: what ends here is nearly done */
    uint64_t (*room)(void *ctx); /* MB of disk free now, which an item's memory must fit into beside
                                    what others may still take; NULL: not looked at */
};

/* Called from the lanes' threads, for one item from one thread at a time. */
struct schedule_ops {
    /* Does the item's work of its lane. */
    struct schedule_next (*work)(void *ctx, size_t item);
    /* The item will not be worked on any more: the run was told to stop. */
    void (*drop)(void *ctx, size_t item);
};

struct schedule_options {
    struct schedule_ops ops;
    void *ctx;
    const struct schedule_lane *lanes;
    unsigned lane_count;
    const struct cancel *drain; /* begin nothing new but in lanes that go on; NULL: never */
    const struct cancel
        *stop; /* begin nothing at all; the work itself must watch it; NULL: never */
};

/*
 * Takes `count` items, each first where first(ctx, item) says, until all are finished or dropped.
 * ERR_NOMEM, ERR_SYS when it could not begin; then no item was touched.
 */
int schedule_run(const struct schedule_options *o, size_t count,
                 struct schedule_next (*first)(void *ctx, size_t item), struct err *e) MUST_USE;

#endif
