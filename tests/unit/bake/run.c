/* SPDX-License-Identifier: MIT */
/* What is said of a run as a whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <string.h>

#include "bake/bake.h"

static void a_run_that_was_limited(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum bake_outcome outcomes[3];
        enum err_class classes[3];
        bool limited;
    } rows[] = {
        {"nothing failed", {OUTCOME_READY, OUTCOME_UNCHANGED, OUTCOME_READY}, {0}, false},
        {"one, of the limit",
         {OUTCOME_READY, OUTCOME_FAILED, OUTCOME_READY},
         {ERR_NONE, ERR_RATE, ERR_NONE},
         true},
        {"all, of the limit",
         {OUTCOME_FAILED, OUTCOME_FAILED, OUTCOME_FAILED},
         {ERR_RATE, ERR_RATE, ERR_RATE},
         true},
        {"one of something else",
         {OUTCOME_FAILED, OUTCOME_FAILED, OUTCOME_READY},
         {ERR_RATE, ERR_STEP, ERR_NONE},
         false},
        {"a ceiling is no rate",
         {OUTCOME_FAILED, OUTCOME_READY, OUTCOME_READY},
         {ERR_LIMIT, ERR_NONE, ERR_NONE},
         false},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct bake_task_result results[3];
        memset(results, 0, sizeof(results));
        for (size_t n = 0; n < ARRAY_LEN(results); n++) {
            results[n].outcome = rows[i].outcomes[n];
            results[n].err.class = rows[i].classes[n];
        }
        const struct bake_report report = {.results = results, .count = ARRAY_LEN(results)};
        if (bake_is_rate_limited(&report) != rows[i].limited)
            fail_msg("%s", rows[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_that_was_limited)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
