/* SPDX-License-Identifier: MIT */
/* tb2-bake --tasks-dir DIR (--all | --tasks a,b,c): bakes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bake_arguments.h"
#include "cli/ui.h"

static bool did_nothing(const struct bake_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        if (r->results[i].outcome != OUTCOME_UNCHANGED)
            return false;
    }
    return true;
}

static int report_status(const struct bake_arguments *a, const struct bake_report *r)
{
    int status = EXIT_ALL_READY;
    for (size_t i = 0; i < r->count; i++) {
        if (r->results[i].outcome == OUTCOME_CANCELLED)
            return EXIT_INTERRUPTED;
        if (r->results[i].outcome == OUTCOME_FAILED)
            status = EXIT_SOME_FAILED;
    }
    if (status == EXIT_SOME_FAILED && bake_is_rate_limited(r))
        return EXIT_RATE_LIMITED;
    return status == EXIT_ALL_READY && a->detailed_status && did_nothing(r) ? EXIT_NOTHING : status;
}

static enum ui_mode find_mode(const struct global_options *g)
{
    const char *term = getenv("TERM");
    bool live = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    return g->json ? UI_JSON : live ? UI_LIVE : UI_PLAIN;
}

/* The run's own status counts before that of its reports. */
static int write_reports(const struct bake_arguments *a, const struct store *s,
                         const struct bake_report *done, const struct err *why, int status)
{
    if (!report_files_any(&a->reports))
        return status;
    struct err e = ERR_INIT;
    CLEANUP(report_fini) struct report r = {0};
    int rc = done->journal ? report_read(&r, store_dir(s), done->journal, &e)
                           : report_without_run(&r, why, &e);
    if (rc == 0) {
        r.status = status;
        rc = report_files_write(&a->reports, &r, &e);
    }
    if (rc == 0)
        return status;
    int own = report_error(&e);
    return status == EXIT_ALL_READY || status == EXIT_NOTHING ? own : status;
}

static int bake(struct bake_arguments *a, struct global_options *g)
{
    enum ui_mode mode = find_mode(g);
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    struct ui *ui = NULL;
    struct bake_report report = {0};
    int rc = image_arguments_open(&a->images, g, &e);
    if (rc == 0)
        rc = open_store(&s, g, &e);
    if (rc == 0)
        rc = ui_new(&ui, mode, g->verbose, &e);
    if (rc < 0)
        return write_reports(a, s, &report, &e, report_error(&e));
    ui_set_jobs(ui, a->bake.limits.vm > 0 ? a->bake.limits.vm : bake_default_jobs());
    drain_first();
    a->bake.images = a->images.options;
    a->bake.cache_dir = g->cache_dir;
    a->bake.accel = g->accel;
    a->bake.vmm = g->vmm;
    a->bake.cpu_template = g->cpu_template;
    a->bake.cancel = g->cancel;
    a->bake.drain = g->drain;
    a->bake.events = ui_event;
    a->bake.events_ctx = ui;
    rc = bake_run(&report, s, &a->bake, &e);
    ui_free(ui);
    if (rc < 0)
        return write_reports(a, s, &report, &e, report_error(&e));
    ui_report(&report, mode, a->changed);
    int status = write_reports(a, s, &report, NULL, report_status(a, &report));
    bake_report_fini(&report);
    return status;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct bake_arguments a = {0};
    int status = bake_arguments_parse(&a, &command_bake, g, argc, argv);
    if (status < 0)
        status = bake(&a, g);
    bake_arguments_fini(&a);
    return status;
}

const struct command command_bake = {
    .name = "bake",
    .arguments = "--tasks-dir DIR (--all | --tasks NAME,...) [options]",
    .summary = "Bake tasks into warm templates.",
    .options = bake_option_rows,
    .notes =
        "With E2B_API_URL set (and E2B_API_KEY, or E2B_API_KEY_FILE), templates are registered\n"
        "with that server too.\n\n"
        "The first Ctrl-C lets what runs come to its end and begins nothing new, the second one\n"
        "stops; either way the same command goes on from there.\n\n"
        "The table's times: PULL resolve and pull, DISK ingest and assemble, WARM boot, steps and\n"
        "ready check, SNAPSHOT snapshot and proof. Exit status: 0 all ready, 1 a task failed,\n"
        "2 wrong usage or input, 3 nothing was begun, 4 the store is in use, 5 nothing to do "
        "(with\n"
        "--detailed-status), 6 failed for nothing but rate limits, 130 cancelled.",
    .run = run,
};
