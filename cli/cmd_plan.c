/* SPDX-License-Identifier: MIT */
/* tb2-bake plan: what a bake with the same options would do, and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bake_arguments.h"
#include "cli/ui.h"

struct totals {
    size_t pending;
    size_t unchanged;
    size_t failed;
    size_t unknown; /* pending ones of which no run tells how long they take */
    uint64_t missing_size;
    int64_t estimate_ms;
};

static struct totals add_up(const struct bake_report *r)
{
    struct totals t = {0};
    for (size_t i = 0; i < r->count; i++) {
        const struct bake_task_result *task = &r->results[i];
        t.pending += task->outcome == OUTCOME_PENDING;
        t.unchanged += task->outcome == OUTCOME_UNCHANGED;
        t.failed += task->outcome == OUTCOME_FAILED;
        if (task->outcome != OUTCOME_PENDING)
            continue;
        t.unknown += task->estimate_ms == 0;
        t.missing_size += task->missing_size;
        t.estimate_ms += task->estimate_ms;
    }
    return t;
}

static const char *action_name(const struct bake_task_result *r)
{
    return r->outcome == OUTCOME_PENDING ? "bake" : bake_outcome_name(r->outcome);
}

/* ---- For people ---- */

/* What is new, and from which step on the recipe is run. */
static void print_why(const struct bake_task_result *r)
{
    fputs(r->why ? r->why : "-", stdout);
    if (r->steps_kept == 1)
        printf("; step 1 of %zu from the cache", r->steps);
    else if (r->steps_kept > 1)
        printf("; steps 1-%zu of %zu from the cache", r->steps_kept, r->steps);
    putchar('\n');
}

static void print_row(const struct bake_task_result *r, int width)
{
    char name[256];
    char pull[SIZE_TEXT_MAX] = "-";
    char time[SIZE_TEXT_MAX] = "-";
    text_harmless(name, sizeof(name), r->task);
    if (r->outcome == OUTCOME_PENDING) {
        print_size(r->missing_size, pull);
        if (r->estimate_ms > 0)
            print_duration(r->estimate_ms, time);
    }
    printf("%-*s  %-9s  %8s  %8s  ", width, name, action_name(r), pull, time);
    print_why(r);
}

static void print_table(const struct bake_report *r, bool changed)
{
    int width = 4;
    for (size_t i = 0; i < r->count; i++) {
        int len = (int)strlen(r->results[i].task);
        width = len > width ? len : width;
    }
    printf("%-*s  %-9s  %8s  %8s  %s\n", width, "TASK", "ACTION", "PULL", "TIME", "WHY");
    for (size_t i = 0; i < r->count; i++) {
        if (!changed || r->results[i].outcome != OUTCOME_UNCHANGED)
            print_row(&r->results[i], width);
    }
    ui_failures(r);
    ui_moves(r);
    struct totals t = add_up(r);
    char pull[SIZE_TEXT_MAX];
    char time[SIZE_TEXT_MAX];
    printf("\n%zu to bake, %zu unchanged, %zu failed; up to %s to pull", t.pending, t.unchanged,
           t.failed, print_size(t.missing_size, pull));
    if (t.pending > t.unknown)
        printf(", about %s with %u machines at once",
               print_duration(t.estimate_ms / (int64_t)r->vm_jobs, time), r->vm_jobs);
    if (t.unknown > 0)
        printf(t.unknown < t.pending ? " (%zu of unknown time)" : "; %zu of unknown time",
               t.unknown);
    putchar('\n');
}

/* ---- For machines ---- */

static struct json *describe_task(const struct bake_task_result *r)
{
    struct json *j = json_new_object();
    json_set(j, "task", json_new_string(r->task));
    json_set(j, "action", json_new_string(action_name(r)));
    const struct {
        const char *key;
        const char *text;
    } texts[] = {
        {"alias", r->alias}, {"image", r->image}, {"manifest", r->manifest}, {"why", r->why}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].text && texts[i].text[0])
            json_set(j, texts[i].key, json_new_string(texts[i].text));
    }
    if (r->outcome == OUTCOME_PENDING) {
        json_set(j, "missing_size", json_new_integer((int64_t)r->missing_size));
        json_set(j, "estimate_ms", json_new_integer(r->estimate_ms));
        json_set(j, "steps", json_new_integer((int64_t)r->steps));
        json_set(j, "steps_kept", json_new_integer((int64_t)r->steps_kept));
    }
    if (r->outcome == OUTCOME_FAILED) {
        json_set(j, "error_class", json_new_string(err_class_name(r->err.class)));
        json_set(j, "error", json_new_string(r->err.text));
        if (r->err.hint[0])
            json_set(j, "hint", json_new_string(r->err.hint));
    }
    return j;
}

static int print_document(const struct bake_report *r, bool changed, struct err *e)
{
    struct totals t = add_up(r);
    AUTO_JSON struct json *j = json_new_object();
    struct json *tasks = json_new_array();
    for (size_t i = 0; i < r->count; i++) {
        if (!changed || r->results[i].outcome != OUTCOME_UNCHANGED)
            json_append(tasks, describe_task(&r->results[i]));
    }
    json_set(j, "tasks", tasks);
    json_set(j, "moved", bake_moves_json(r));
    json_set(j, "bake", json_new_integer((int64_t)t.pending));
    json_set(j, "unchanged", json_new_integer((int64_t)t.unchanged));
    json_set(j, "failed", json_new_integer((int64_t)t.failed));
    json_set(j, "missing_size", json_new_integer((int64_t)t.missing_size));
    json_set(j, "estimate_ms", json_new_integer(t.estimate_ms / (int64_t)r->vm_jobs));
    return print_json(j, e);
}

/* ---- The command ---- */

static int plan(struct bake_arguments *a, struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    struct bake_report report = {0};
    int rc = image_arguments_open(&a->images, g, &e);
    a->bake.images = a->images.options;
    a->bake.cache_dir = g->cache_dir;
    a->bake.accel = g->accel;
    a->bake.vmm = g->vmm;
    a->bake.cpu_template = g->cpu_template;
    a->bake.cancel = g->cancel;
    if (rc == 0)
        rc = open_store(&s, g, &e);
    if (rc == 0)
        rc = bake_plan(&report, s, &a->bake, &e);
    if (rc == 0 && g->json)
        rc = print_document(&report, a->changed, &e);
    if (rc < 0) {
        bake_report_fini(&report);
        return report_error(&e);
    }
    if (!g->json && report.count == 0)
        puts("nothing to do: no task is selected");
    else if (!g->json)
        print_table(&report, a->changed);
    struct totals t = add_up(&report);
    int status = EXIT_ALL_READY;
    if (cancel_is_set(g->cancel))
        status = EXIT_INTERRUPTED;
    else if (t.failed > 0)
        status = bake_is_rate_limited(&report) ? EXIT_RATE_LIMITED : EXIT_SOME_FAILED;
    else if (t.pending == 0 && a->detailed_status)
        status = EXIT_NOTHING;
    bake_report_fini(&report);
    return status;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct bake_arguments a = {0};
    int status = bake_arguments_parse(&a, &command_plan, g, argc, argv);
    if (status < 0 && report_files_any(&a.reports))
        status = usage_error(&command_plan, "reports are of bakes: a plan has none");
    else if (status < 0)
        status = plan(&a, g);
    bake_arguments_fini(&a);
    return status;
}

const struct command command_plan = {
    .name = "plan",
    .arguments = "--tasks-dir DIR (--all | --tasks NAME,...) [options]",
    .summary = "Show what a bake with the same options would do, and why.",
    .options = bake_option_rows,
    .notes =
        "Pulls nothing but manifests and configs. WHY names what is new since the task's last\n"
        "template, and which steps need not be run, since their results are kept; PULL counts\n"
        "layers that the store lacks, for each task that has them; TIME is from earlier runs.\n"
        "Exit status: 0, or 5 with --detailed-status where there is nothing to bake; the others "
        "are\n"
        "those of a bake.",
    .run = run,
};
