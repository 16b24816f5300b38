/* SPDX-License-Identifier: MIT */
/* --stage-timeout: how long a task may be in a stage. */
#include "cli/bake_arguments.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char stage_timeout_help[] =
    "how long a task may be in a stage, as pull=30m,register=3h; none: for ever\n"
    "(default: resolve 30m, pull 2h, ingest 2h, assemble 30m, boot 20m, snapshot\n"
    "30m, prove 20m, register 3h; steps and ready are limited by the recipe)";

static int find_stage(enum bake_stage *out, const char *name, struct err *e)
{
    for (int i = STAGE_RESOLVE; i < STAGE_COUNT; i++) {
        if (strcmp(name, bake_stage_name((enum bake_stage)i)) == 0) {
            *out = (enum bake_stage)i;
            return 0;
        }
    }
    err_set(e, ERR_INPUT, "--stage-timeout: there is no stage '%s'", name);
    return err_hint(e, "stages are resolve, pull, ingest, assemble, boot, steps, ready, snapshot, "
                       "prove and register");
}

static int take_limit(struct bake_arguments *a, char *text, struct err *e)
{
    enum bake_stage stage;
    int64_t ms = STAGE_UNLIMITED;
    char *value = strchr(text, '=');
    if (!value) {
        err_set(e, ERR_INPUT, "--stage-timeout is STAGE=TIME, not '%s'", text);
        return err_hint(e, "for example pull=30m; none instead of a time: no limit");
    }
    *value++ = 0;
    int rc = find_stage(&stage, text, e);
    if (rc == 0 && strcmp(value, "none") != 0)
        rc = parse_duration(&ms, value, e);
    if (rc == 0 && ms == 0)
        rc = err_set(e, ERR_INPUT, "--stage-timeout %s: a stage needs some time", text);
    if (rc == 0)
        a->bake.stage_limits_ms[stage] = ms;
    return rc;
}

int take_stage_timeout(void *arguments, const char *value, struct err *e)
{
    AUTO_FREE char *copy = mem_strdup(value);
    if (!copy)
        return err_nomem(e, "time limits");
    int rc = 0;
    for (char *at = copy; rc == 0 && at;) {
        char *end = strchr(at, ',');
        if (end)
            *end++ = 0;
        rc = take_limit(arguments, at, e);
        at = end;
    }
    return rc;
}
