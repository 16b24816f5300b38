/* SPDX-License-Identifier: MIT */
/* --stage-timeout: what is taken, and that its help tells the limits that hold without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bake_arguments.h"

/* The help as one line. */
static char *help_text(void)
{
    char *text = mem_strdup(stage_timeout_help);
    assert_non_null(text);
    for (char *at = text; *at; at++)
        *at = *at == '\n' ? ' ' : *at;
    return text;
}

static void help_tells_the_defaults(void **state)
{
    (void)state;
    AUTO_FREE char *help = help_text();
    for (int i = STAGE_RESOLVE; i < STAGE_COUNT; i++) {
        enum bake_stage stage = (enum bake_stage)i;
        int64_t minutes = bake_stage_limit_ms(stage) / 60000;
        char wanted[64];
        if (bake_stage_limit_ms(stage) == STAGE_UNLIMITED)
            snprintf(wanted, sizeof(wanted), "%s", bake_stage_name(stage));
        else if (minutes % 60 == 0)
            snprintf(wanted, sizeof(wanted), "%s %dh", bake_stage_name(stage), (int)minutes / 60);
        else
            snprintf(wanted, sizeof(wanted), "%s %dm", bake_stage_name(stage), (int)minutes);
        if (!strstr(help, wanted))
            fail_msg("no '%s' in: %s", wanted, help);
    }
}

static void times_and_stages(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int result;
        enum bake_stage stage;
        int64_t ms;
    } rows[] = {
        {"pull=90s", 0, STAGE_PULL, 90000},
        {"boot=5", 0, STAGE_BOOT, 5000},
        {"register=2d", 0, STAGE_REGISTER, (int64_t)2 * 86400000},
        {"resolve=1m,prove=none", 0, STAGE_PROVE, STAGE_UNLIMITED},
        {"prove=none,prove=1h", 0, STAGE_PROVE, 3600000},
        {"plan=1s", -ERR_INPUT, STAGE_PLAN, 0},
        {"Pull=1s", -ERR_INPUT, STAGE_PULL, 0},
        {"pull", -ERR_INPUT, STAGE_PULL, 0},
        {"pull=", -ERR_INPUT, STAGE_PULL, 0},
        {"pull=0", -ERR_INPUT, STAGE_PULL, 0},
        {"pull=-1s", -ERR_INPUT, STAGE_PULL, 0},
        {"pull=1s,", -ERR_INPUT, STAGE_BOOT, 0},
        {"", -ERR_INPUT, STAGE_PULL, 0},
        {"pull=99999999999999999999s", -ERR_INPUT, STAGE_PULL, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct bake_arguments a = {0};
        struct err e = ERR_INIT;
        int rc = take_stage_timeout(&a, rows[i].value, &e);
        if (rc != rows[i].result || a.bake.stage_limits_ms[rows[i].stage] != rows[i].ms)
            fail_msg("'%s': %d, %lld: %s", rows[i].value, rc,
                     (long long)a.bake.stage_limits_ms[rows[i].stage], e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_tells_the_defaults),
        cmocka_unit_test(times_and_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
