/* SPDX-License-Identifier: MIT */
/* tb2-bake report [RUN]: reports of a run of the past, from its journal. */
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/report_since.h"

struct arguments {
    struct report_files files; /* first: its options are taken as they are */
    const char *since;
};

static int take_html(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct report_files *)arguments)->html = value;
    return 0;
}

static int take_junit(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct report_files *)arguments)->junit = value;
    return 0;
}

static int take_markdown(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct report_files *)arguments)->markdown = value;
    return 0;
}

static int take_metrics(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct report_files *)arguments)->metrics = value;
    return 0;
}

static int take_since(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->since = value;
    return 0;
}

static const struct option_row rows[] = {
    {"html", "FILE", "for people: times, bytes, failures with their output", take_html},
    {"junit", "FILE", "JUnit XML, a test case a task", take_junit},
    {"markdown", "FILE", "what happened and what failed, for summaries of CI systems",
     take_markdown},
    {"metrics", "FILE", "Prometheus text format", take_metrics},
    {"since", "WHEN",
     "what moved instead: tasks that fail or are mended, images, templates;\n"
     "a time ago (12h, 7d), a date (2026-01-31) or a run",
     take_since},
    {NULL, NULL, NULL, NULL},
};

static int newest_run(char **name, int runs, struct err *e)
{
    CLEANUP(run_names_fini) struct run_names names = {0};
    int rc = run_names_read(&names, runs, e);
    if (rc == 0 && names.count == 0)
        return err_set(e, ERR_NOTFOUND, "there is no run in this store");
    if (rc == 0)
        *name = mem_printf("%s.jsonl", names.all[names.count - 1]);
    return rc < 0 || *name ? rc : err_nomem(e, "runs");
}

static int open_runs(int *runs, const struct global_options *g, struct err *e)
{
    AUTO_STORE struct store *s = NULL;
    int rc = open_existing_store(&s, g, e);
    if (rc == 0)
        rc = file_open(runs, store_dir(s), "runs", O_RDONLY | O_DIRECTORY, 0, e);
    return rc == -ERR_NOTFOUND && s
               ? err_set(e, ERR_NOTFOUND, "no bake ran in the store %s yet", g->store_path)
               : rc;
}

/* RUN is a path, or a name in the store with or without ".jsonl"; none: the newest. */
static int read_run(struct report *r, const struct global_options *g, const char *run,
                    struct err *e)
{
    if (run && strchr(run, '/'))
        return report_read(r, AT_FDCWD, run, e);
    AUTO_FD int runs = -1;
    AUTO_FREE char *name = NULL;
    int rc = open_runs(&runs, g, e);
    if (rc < 0)
        return rc;
    if (run) {
        size_t len = strlen(run);
        bool whole = len > 6 && strcmp(run + len - 6, ".jsonl") == 0;
        name = mem_printf("%s%s", run, whole ? "" : ".jsonl");
        rc = name ? 0 : err_nomem(e, "report");
    } else {
        rc = newest_run(&name, runs, e);
    }
    if (rc == 0)
        rc = report_read(r, runs, name, e);
    return rc == -ERR_NOTFOUND ? err_hint(e, "the runs are the files in %s/runs", g->store_path)
                               : rc;
}

static int print_document(const struct report *r, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    struct json *outcomes = json_new_object();
    struct json *failed = json_new_array();
    json_set(j, "run", json_new_string(r->run));
    json_set(j, "tasks", json_new_integer((int64_t)r->count));
    for (enum bake_outcome o = OUTCOME_PENDING; o <= OUTCOME_CANCELLED; o++)
        json_set(outcomes, bake_outcome_name(o), json_new_integer((int64_t)r->outcomes[o]));
    json_set(j, "outcomes", outcomes);
    for (size_t i = 0; i < r->outcomes[OUTCOME_FAILED]; i++)
        json_append(failed, json_clone(r->tasks[r->order[i]].end));
    json_set(j, "failed", failed);
    json_set(j, "wall_ms", json_new_integer(r->wall_ms));
    json_set(j, "complete", json_new_bool(r->complete));
    return print_json(j, e);
}

static int report(const struct report_files *files, const struct global_options *g, const char *run,
                  struct err *e)
{
    CLEANUP(report_fini) struct report r = {0};
    int rc = read_run(&r, g, run, e);
    if (rc == 0 && report_files_any(files))
        rc = report_files_write(files, &r, e);
    if (rc == 0 && g->json)
        return print_document(&r, e);
    if (rc < 0 || report_files_any(files))
        return rc;
    AUTO_BUF struct buf text;
    buf_init(&text, 64 << 20);
    rc = report_markdown(&text, &r, e);
    if (rc == 0)
        fputs(buf_text(&text), stdout);
    return rc;
}

static int what_moved(const struct global_options *g, const char *since, struct err *e)
{
    AUTO_FD int runs = -1;
    AUTO_JSON struct json *j = NULL;
    int rc = open_runs(&runs, g, e);
    if (rc == 0)
        rc = report_since(&j, runs, since, e);
    if (rc == 0 && g->json)
        return print_json(j, e);
    if (rc == 0)
        report_since_print(j);
    return rc;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    struct err e = ERR_INIT;
    struct parsing p = {.command = &command_report, .globals = g};
    int rc = options_parse(&p, &a, argc, argv, &e);
    if (rc == 0 && p.status >= 0)
        return p.status;
    if (rc == 0 && optind + 1 < argc)
        return usage_error(&command_report, "'%s' is not expected here", argv[optind + 1]);
    if (rc == 0 && a.since && (argv[optind] || report_files_any(&a.files)))
        return usage_error(&command_report, "--since stands alone");
    if (rc == 0)
        rc = a.since ? what_moved(g, a.since, &e) : report(&a.files, g, argv[optind], &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

const struct command command_report = {
    .name = "report",
    .arguments = "[RUN] [options]",
    .summary = "Tell what happened in the last bake, or in an earlier one.",
    .options = rows,
    .notes = "RUN is the name of a journal in the store's runs/, or the path of one. Without a "
             "FILE the\n"
             "Markdown goes to stdout.",
    .run = run,
};
