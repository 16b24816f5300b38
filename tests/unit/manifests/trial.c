/* SPDX-License-Identifier: MIT */
/* What task.toml says of running a task's solution and tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "manifests/manifest.h"

static int parse(struct task_trial **out, const char *text, struct err *e)
{
    *out = NULL;
    err_clear(e);
    int rc = task_trial_parse(out, "task.toml", text, strlen(text), e);
    assert_true((rc == 0) == (*out != NULL));
    return rc;
}

static void limits_and_users(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t solve_ms, test_ms;
        const char *solve_user, *test_user;
    } rows[] = {
        {"", 600000, 600000, NULL, NULL},
        {"[agent]\n[verifier]\n", 600000, 600000, NULL, NULL},
        {"[agent]\ntimeout_sec = 900.0\n[verifier]\ntimeout_sec = 1800", 900000, 1800000, NULL,
         NULL},
        {"[verifier]\ntimeout_sec = 0.0001", 600000, 1, NULL, NULL},
        {"[agent]\nuser = 'agent'\n[verifier]\nuser = 1000", 600000, 600000, "agent", "1000"},
        {"[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ntimeout_sec = 7", 600000,
         600000, NULL, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TASK_TRIAL struct task_trial *t = NULL;
        assert_int_equal(parse(&t, rows[i].text, &e), 0);
        assert_int_equal(t->solve.timeout_ms, rows[i].solve_ms);
        assert_int_equal(t->test.timeout_ms, rows[i].test_ms);
        const char *users[2][2] = {{t->solve.user, rows[i].solve_user},
                                   {t->test.user, rows[i].test_user}};
        for (size_t n = 0; n < 2; n++)
            assert_true(users[n][1] ? users[n][0] && strcmp(users[n][0], users[n][1]) == 0
                                    : !users[n][0]);
    }
}

static void variables(void **state)
{
    (void)state;
    static const char text[] = "[solution.env]\nA = 'plain'\nB = '${HOST}'\nC = '${HOST:-fall}'\n"
                               "D = 'x${HOST}'\nE = '${HOST:-}'\nF = '${}'\nG = '${A:+b}'\n"
                               "[verifier.env]\nV = '1'\n[environment.env]\nX = '${KEY}'\n";
    static const struct {
        const char *name, *value, *host;
    } rows[] = {
        {"A", "plain", NULL}, {"B", NULL, "HOST"}, {"C", "fall", "HOST"},  {"D", "x${HOST}", NULL},
        {"E", "", "HOST"},    {"F", "${}", NULL},  {"G", "${A:+b}", NULL},
    };
    struct err e = ERR_INIT;
    AUTO_TASK_TRIAL struct task_trial *t = NULL;
    assert_int_equal(parse(&t, text, &e), 0);
    assert_int_equal(t->solve.env_count, ARRAY_LEN(rows));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct trial_variable *v = &t->solve.env[i];
        assert_string_equal(v->name, rows[i].name);
        assert_true(rows[i].value ? v->value && strcmp(v->value, rows[i].value) == 0 : !v->value);
        assert_true(rows[i].host ? v->host && strcmp(v->host, rows[i].host) == 0 : !v->host);
    }
    assert_int_equal(t->test.env_count, 1);
    assert_int_equal(t->env_count, 1);
    assert_string_equal(t->env[0].host, "KEY");
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum err_class class;
        const char *words;
    } rows[] = {
        {"agent = 1", ERR_INPUT, "task.toml:1:9: agent must be a table"},
        {"[verifier]\ntimeout_sec = 0", ERR_INPUT, "task.toml:2:15: timeout_sec"},
        {"[verifier]\ntimeout_sec = -1", ERR_INPUT, "above 0"},
        {"[verifier]\ntimeout_sec = nan", ERR_INPUT, "above 0"},
        {"[verifier]\ntimeout_sec = inf", ERR_INPUT, "above 0"},
        {"[verifier]\ntimeout_sec = '9'", ERR_INPUT, "above 0"},
        {"[agent]\nuser = -1", ERR_INPUT, "user"},
        {"[agent]\nuser = \"a\\u0000b\"", ERR_INPUT, "NUL"},
        {"[solution]\nenv = 1", ERR_INPUT, "env must be a table"},
        {"[solution.env]\nA = 1", ERR_INPUT, "task.toml:2:5"},
        {"[solution.env]\n'A=B' = '1'", ERR_INPUT, "cannot name a variable"},
        {"[[steps]]\nname = 'one'", ERR_UNSUPPORTED, "[[steps]]"},
        {"[verifier]\nenvironment_mode = 'separate'", ERR_UNSUPPORTED, "a machine of their own"},
        {"[[verifier.collect]]\ncommand = 'x'", ERR_UNSUPPORTED, "verifier.collect"},
        {"[verifier", ERR_INPUT, "task.toml:1:"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TASK_TRIAL struct task_trial *t = NULL;
        assert_int_equal(parse(&t, rows[i].text, &e), -(int)rows[i].class);
        assert_non_null(strstr(e.text, rows[i].words));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_and_users),
        cmocka_unit_test(variables),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
