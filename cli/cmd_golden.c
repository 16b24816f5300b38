/* SPDX-License-Identifier: MIT */
/* tb2-bake golden: tasks' own solutions and tests, run in copies of their templates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <getopt.h>

#include "bake/golden.h"
#include "base/mem.h"
#include "cli/bake_arguments.h"

struct golden_arguments {
    struct bake_arguments tasks; /* first: its options are taken from there */
    struct golden_options golden;
    struct text_list known;
    struct text_list env;
    char *output_dir;
};

/* ---- What options take ---- */

static int take_expect(void *arguments, const char *value, struct err *e)
{
    struct golden_arguments *a = arguments;
    int rc = bake_arguments_read(&a->tasks, &a->known, value, e);
    return rc < 0 ? err_in(e, "--expect") : 0;
}

static int take_output(void *arguments, const char *value, struct err *e UNUSED)
{
    struct golden_arguments *a = arguments;
    a->golden.output_dir = value;
    return 0;
}

static int take_env(void *arguments, const char *value, struct err *e)
{
    struct golden_arguments *a = arguments;
    bool whole = strchr(value, '=') != NULL;
    const char *host = whole ? NULL : getenv(value);
    if (!*value || *value == '=')
        return err_set(e, ERR_INPUT, "--env is NAME or NAME=VALUE, not '%s'", value);
    if (!whole && !host) {
        err_set(e, ERR_INPUT, "--env %s: there is no such variable here", value);
        return err_hint(e, "set it, or say --env %s=VALUE", value);
    }
    char *pair = whole ? mem_strdup(value) : mem_printf("%s=%s", value, host);
    return pair ? bake_arguments_keep(&a->tasks, &a->env, pair, e) : err_nomem(e, "variable");
}

static int take_multiplier(void *arguments, const char *value, struct err *e)
{
    enum { MULTIPLIER_MAX = 1000 };
    struct golden_arguments *a = arguments;
    char *end = NULL;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || number < 1 || number > MULTIPLIER_MAX)
        return err_set(e, ERR_INPUT,
                       "--timeout-multiplier is a whole number from 1 to %d, not '%s'",
                       MULTIPLIER_MAX, value);
    a->golden.timeout_multiplier = (unsigned)number;
    return 0;
}

static const struct option_row golden_option_rows[] = {
    {"tasks-dir", "DIR", "directories that hold a task.toml, at any depth", take_tasks_dir},
    {NULL, NULL, "Which of them, beside those named as arguments:", NULL},
    SELECTION_OPTION_ROWS,
    {NULL, NULL, "How:", NULL},
    {"recipe", "FILE", "templates that this recipe makes (default: the only ones of the tasks)",
     take_recipe},
    {"remote", "URL", "remote store that gives what the store lacks (default: $TB2_BAKE_REMOTE)",
     take_remote},
    {"expect", "FILE", "tasks known to fail, a line each; their failure is none of the run's",
     take_expect},
    {"env", "NAME[=VALUE]", "what ${NAME} in a task.toml is; by itself: as it is set here",
     take_env},
    {"timeout-multiplier", "N", "more time than task.toml says, on a slow machine",
     take_multiplier},
    {"output", "DIR", "where the output goes, DIR/TASK (default: golden/ in the cache)",
     take_output},
    {"vm-jobs", "N", "machines at once", take_vm_jobs},
    {"vm-memory", "MB", "memory of all machines together (default: 3/4 of this one's)",
     take_memory},
    {NULL, NULL, NULL, NULL},
};

/* ---- What people see ---- */

static const char *word(const struct golden_result *r)
{
    switch (r->outcome) {
    case GOLDEN_PASSED:
        return "passed";
    case GOLDEN_FAILED:
        return r->known_to_fail ? "failed, known" : "FAILED";
    case GOLDEN_ERROR:
        return "ERROR";
    case GOLDEN_CANCELLED:
        break;
    }
    return "cancelled";
}

static void print_line(struct json *taken)
{
    AUTO_JSON struct json *j = taken;
    struct err e = ERR_INIT;
    AUTO_FREE char *text = NULL;
    if (!j || json_print(j, 0, &text, &e) < 0)
        return; /* memory is short */
    puts(text);
    fflush(stdout);
}

static void finished(void *ctx, const struct golden_result *r)
{
    const struct global_options *g = ctx;
    char solve[SIZE_TEXT_MAX];
    char test[SIZE_TEXT_MAX];
    char name[256];
    if (g->json) {
        print_line(golden_result_json(r));
        return;
    }
    text_harmless(name, sizeof(name), r->task);
    fprintf(stderr, "%s: %s (solve.sh %s, test.sh %s)\n", name, word(r),
            print_duration(r->solve.wall_ms, solve), print_duration(r->test.wall_ms, test));
}

static void print_row(const struct golden_result *r, int width)
{
    char name[256];
    char reward[32] = "-";
    char restore[SIZE_TEXT_MAX] = "-";
    char solve[SIZE_TEXT_MAX] = "-";
    char test[SIZE_TEXT_MAX] = "-";
    text_harmless(name, sizeof(name), r->task);
    if (r->source != GOLDEN_NO_REWARD)
        snprintf(reward, sizeof(reward), "%.4g", r->reward);
    if (r->restore_ms > 0)
        print_duration(r->restore_ms, restore);
    if (r->solve.ran)
        print_duration(r->solve.wall_ms, solve);
    if (r->test.ran)
        print_duration(r->test.wall_ms, test);
    printf("%-*s  %-13s  %6s  %9s  %9s  %9s\n", width, name, word(r), reward, restore, solve, test);
}

struct tally {
    size_t passed, failed, known, errors, cancelled, cured;
};

static struct tally count_results(const struct golden_report *r)
{
    struct tally t = {0};
    for (size_t i = 0; i < r->count; i++) {
        const struct golden_result *one = &r->results[i];
        t.passed += one->outcome == GOLDEN_PASSED;
        t.failed += one->outcome == GOLDEN_FAILED && !one->known_to_fail;
        t.known += one->outcome == GOLDEN_FAILED && one->known_to_fail;
        t.errors += one->outcome == GOLDEN_ERROR;
        t.cancelled += one->outcome == GOLDEN_CANCELLED;
        t.cured += one->outcome == GOLDEN_PASSED && one->known_to_fail;
    }
    return t;
}

static void explain(const struct golden_result *r)
{
    char name[256];
    text_harmless(name, sizeof(name), r->task);
    printf("\n%s: %s\n", name, word(r));
    show_error(stdout, "  ", &r->err);
    if (r->output && (r->solve.ran || r->test.ran))
        printf("    its output: %s\n", r->output);
}

static void print_report(const struct golden_report *r)
{
    int width = (int)strlen("TASK");
    char wall[SIZE_TEXT_MAX];
    for (size_t i = 0; i < r->count; i++) {
        int len = (int)strnlen(r->results[i].task, 60);
        width = len > width ? len : width;
    }
    printf("%-*s  %-13s  %6s  %9s  %9s  %9s\n", width, "TASK", "RESULT", "REWARD", "RESTORE",
           "SOLVE", "TEST");
    for (size_t i = 0; i < r->count; i++)
        print_row(&r->results[i], width);
    for (size_t i = 0; i < r->count; i++) {
        if (golden_is_bad(&r->results[i]))
            explain(&r->results[i]);
    }
    struct tally t = count_results(r);
    printf("\n%zu tasks: %zu passed, %zu failed, %zu known to fail, %zu errors", r->count, t.passed,
           t.failed, t.known, t.errors);
    if (t.cancelled > 0)
        printf(", %zu cancelled", t.cancelled);
    printf("; %s\n", print_duration(r->wall_ms, wall));
    for (size_t i = 0; t.cured > 0 && i < r->count; i++) {
        const struct golden_result *one = &r->results[i];
        char name[256];
        text_harmless(name, sizeof(name), one->task);
        if (one->outcome == GOLDEN_PASSED && one->known_to_fail)
            printf("%s is known to fail, and passes\n", name);
    }
}

static void print_summary(const struct golden_report *r)
{
    struct tally t = count_results(r);
    struct json *j = json_new_object();
    json_set(j, "event", json_new_string("replay_finished"));
    json_set(j, "tasks", json_new_integer((int64_t)r->count));
    json_set(j, "passed", json_new_integer((int64_t)t.passed));
    json_set(j, "failed", json_new_integer((int64_t)t.failed));
    json_set(j, "known_failures", json_new_integer((int64_t)t.known));
    json_set(j, "errors", json_new_integer((int64_t)t.errors));
    json_set(j, "cancelled", json_new_integer((int64_t)t.cancelled));
    json_set(j, "wall_ms", json_new_integer(r->wall_ms));
    print_line(j);
}

/* ---- The command ---- */

static int replay(struct golden_arguments *a, struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_REMOTE struct remote *remote = NULL;
    struct golden_report report = {0};
    int rc = open_remote(&remote, &s, g, a->tasks.bake.remote_url, &e);
    if (rc == 0 && !s)
        rc = open_existing_store(&s, g, &e);
    if (rc < 0)
        return report_error(&e);
    drain_first();
    struct golden_options *o = &a->golden;
    o->cache_dir = g->cache_dir;
    o->accel = g->accel;
    o->vmm = g->vmm;
    o->tasks = a->tasks.bake.tasks;
    o->remote = remote;
    o->limits = a->tasks.bake.limits;
    o->known = a->known.items;
    o->known_count = a->known.count;
    o->env = a->env.items;
    o->env_count = a->env.count;
    o->finished = finished;
    o->ctx = g;
    o->drain = g->drain;
    o->cancel = g->cancel;
    rc = golden_run(&report, s, o, &e);
    if (rc < 0)
        return report_error(&e);
    if (g->json)
        print_summary(&report);
    else
        print_report(&report);
    struct tally t = count_results(&report);
    golden_report_fini(&report);
    if (t.cancelled > 0)
        return EXIT_INTERRUPTED;
    return t.failed + t.errors > 0 ? EXIT_SOME_FAILED : EXIT_ALL_READY;
}

/* After the options. */
static int settle(struct golden_arguments *a, const struct global_options *g, int argc, char **argv,
                  struct err *e)
{
    int rc = 0;
    for (; rc == 0 && optind < argc; optind++)
        rc = take_tasks(a, argv[optind], e);
    if (rc < 0)
        return rc;
    if (!a->tasks.bake.tasks.tasks_dir) {
        err_set(e, ERR_INPUT, "--tasks-dir is missing");
        return err_hint(e, "'tb2-bake golden --help' has the options");
    }
    rc = bake_arguments_select(&a->tasks, e);
    if (rc == 0 && a->tasks.recipe) {
        rc = bake_arguments_find_recipe(&a->tasks, e);
        a->golden.recipe_path = a->tasks.bake.recipe_path;
    }
    if (rc == 0 && !a->golden.output_dir) {
        a->output_dir = mem_printf("%s/golden", g->cache_dir);
        a->golden.output_dir = a->output_dir;
        rc = a->output_dir ? 0 : err_nomem(e, "output");
    }
    return rc;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct golden_arguments a = {0};
    struct err e = ERR_INIT;
    int status = options_read(&command_golden, g, &a, argc, argv);
    if (status < 0 && settle(&a, g, argc, argv, &e) < 0)
        status = report_error(&e);
    if (status < 0)
        status = replay(&a, g);
    free(a.known.items);
    free(a.env.items);
    free(a.output_dir);
    bake_arguments_fini(&a.tasks);
    return status;
}

const struct command command_golden = {
    .name = "golden",
    .arguments = "--tasks-dir DIR (--all | TASK...) [options]",
    .summary = "Run tasks' own solutions and tests in copies of their templates.",
    .options = golden_option_rows,
    .notes =
        "A copy of the template is restored, solution/solve.sh run in it, then tests/test.sh, as "
        "the\n"
        "harness does; the copy is thrown away. A task passes when its reward is 1 or more: the\n"
        "number in /logs/verifier/reward.txt (or `reward` in reward.json), or where neither was\n"
        "written, exit status 0. Nothing of solution/ and tests/ is ever part of a template.\n\n"
        "Exit status: 0 all passed or are known to fail, 1 a task failed or could not be tried,\n"
        "2 wrong usage or input, 3 nothing was begun, 130 cancelled.",
    .run = run,
};
