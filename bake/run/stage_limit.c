/* SPDX-License-Identifier: MIT */
/*
 * How long a task may be in a stage. Whatever a stage waits for has a limit of its own (a stalled
 * connection, a boot, a step); these are for the whole, for what goes on and on without ever
 * standing still, so they are long. A thread of a lane works on one task's stage at a time: the limit
 * is that thread's (base/cancel.h), and ends what it waits for wherever that is.
 */

#include <stdio.h>
#include <string.h>

#include "bake/bake.h"
#include "bake/run/events.h"
#include "bake/run/run.h"

enum { MINUTE_MS = 60 * 1000, HOUR_MS = 60 * MINUTE_MS };

int64_t bake_stage_limit_ms(enum bake_stage stage)
{
    static const int64_t limits[STAGE_COUNT] = {
        [STAGE_RESOLVE] = 30 * MINUTE_MS, [STAGE_PULL] = 2 * HOUR_MS,
        [STAGE_INGEST] = 2 * HOUR_MS,     [STAGE_ASSEMBLE] = 30 * MINUTE_MS,
        [STAGE_BOOT] = 20 * MINUTE_MS,    [STAGE_STEPS] = STAGE_UNLIMITED,
        [STAGE_READY] = STAGE_UNLIMITED,  [STAGE_SNAPSHOT] = 30 * MINUTE_MS,
        [STAGE_PROVE] = 20 * MINUTE_MS,   [STAGE_REGISTER] = 3 * HOUR_MS,
        [STAGE_PLAN] = STAGE_UNLIMITED,
    };
    return limits[stage];
}

static int64_t limit_of(const struct baking *b, enum bake_stage stage)
{
    int64_t ms = b->run->options->stage_limits_ms[stage];
    return ms != 0 ? ms : bake_stage_limit_ms(stage);
}

void stage_limit_begin(const struct baking *b)
{
    int64_t ms = limit_of(b, b->result->stage);
    struct err ignored = ERR_INIT; /* short of memory: the run goes on without a limit */
    (void)!cancel_limit_set(&b->run->cancel, ms > 0 ? ms : 0, &ignored);
}

void stage_limit_end(const struct run *run)
{
    struct err ignored = ERR_INIT;
    (void)!cancel_limit_set(&run->cancel, 0, &ignored);
}

/* "90 s", "1500 ms" */
static void print_limit(char *text, size_t len, int64_t ms)
{
    if (ms % 1000 == 0)
        snprintf(text, len, "%lld s", (long long)ms / 1000);
    else
        snprintf(text, len, "%lld ms", (long long)ms);
}

void stage_limit_explain(const struct baking *b, struct err *e)
{
    if (e->class != ERR_TIMEOUT || !cancel_limit_passed(&b->run->cancel))
        return;
    char limit[32];
    print_limit(limit, sizeof(limit), limit_of(b, b->result->stage));
    err_in(e, "the stage has not come to its end within %s", limit);
    err_hint(e, "--stage-timeout %s=TIME allows more", bake_stage_name(b->result->stage));
}
