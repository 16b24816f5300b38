/* SPDX-License-Identifier: MIT */
/* tb2-bake report [RUN]: reports of a run of the past, from its journal. */
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/options.h"
#include "cli/report.h"

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

static const struct option_row rows[] = {
    {"html", "FILE", "for people: times, bytes, failures with their output", take_html},
    {"junit", "FILE", "JUnit XML, a test case a task", take_junit},
    {"markdown", "FILE", "what happened and what failed, for summaries of CI systems",
     take_markdown},
    {"metrics", "FILE", "Prometheus text format", take_metrics},
    {NULL, NULL, NULL, NULL},
};

/* Names begin with the time, so that the newest is the last. */
static int newest_run(char **name, int runs, struct err *e)
{
    int fd = -1;
    int rc = file_open(&fd, runs, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *listing = fdopendir(fd);
    if (!listing) {
        file_close(&fd);
        return err_sys(e, "listing the runs");
    }
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(listing))) {
        size_t len = strlen(entry->d_name);
        if (len < 7 || strcmp(entry->d_name + len - 6, ".jsonl") != 0 ||
            (*name && strcmp(*name, entry->d_name) > 0))
            continue;
        free(*name);
        *name = mem_strdup(entry->d_name);
        rc = *name ? 0 : err_nomem(e, "runs");
    }
    closedir(listing);
    return rc < 0 || *name ? rc : err_set(e, ERR_NOTFOUND, "there is no run in this store");
}

/* RUN is a path, or a name in the store with or without ".jsonl"; none: the newest. */
static int read_run(struct report *r, const struct global_options *g, const char *run,
                    struct err *e)
{
    if (run && strchr(run, '/'))
        return report_read(r, AT_FDCWD, run, e);
    AUTO_STORE struct store *s = NULL;
    AUTO_FD int runs = -1;
    AUTO_FREE char *name = NULL;
    int rc = open_existing_store(&s, g, e);
    if (rc == 0)
        rc = file_open(&runs, store_dir(s), "runs", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == -ERR_NOTFOUND && s)
        return err_set(e, ERR_NOTFOUND, "no bake ran in the store %s yet", g->store_path);
    if (rc == 0 && run) {
        size_t len = strlen(run);
        bool whole = len > 6 && strcmp(run + len - 6, ".jsonl") == 0;
        name = mem_printf("%s%s", run, whole ? "" : ".jsonl");
        rc = name ? 0 : err_nomem(e, "report");
    } else if (rc == 0) {
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

static int run(struct global_options *g, int argc, char **argv)
{
    struct report_files files = {0};
    struct err e = ERR_INIT;
    struct parsing p = {.command = &command_report, .globals = g};
    int rc = options_parse(&p, &files, argc, argv, &e);
    if (rc == 0 && p.status >= 0)
        return p.status;
    if (rc == 0 && optind + 1 < argc)
        return usage_error(&command_report, "'%s' is not expected here", argv[optind + 1]);
    if (rc == 0)
        rc = report(&files, g, argv[optind], &e);
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
