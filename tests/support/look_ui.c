/* SPDX-License-Identifier: MIT */
/*
 * What a terminal shows of a bake, of a run that is made up: `look_ui live` draws the view of a moment in
 * the middle until it is killed, `look_ui end` prints the table. For pictures (look.py).
 */
#include <stdio.h>
#include <string.h>

#include "base/attr.h"
#include "base/clock.h"
#include "cli/ui.h"

enum { TASKS = 8, STEP_MS = 100, BYTES_A_STEP = 1200000 };

struct shown {
    const char *name;
    enum bake_outcome outcome;
    enum bake_stage stage;
    const char *output;
    enum err_class class;
    const char *error;
    const char *hint;
};

static const struct shown tasks[TASKS] = {
    {"hello-world", OUTCOME_UNCHANGED, STAGE_RESOLVE, NULL, ERR_NONE, NULL, NULL},
    {"build-pmars", OUTCOME_READY, STAGE_REGISTER, NULL, ERR_NONE, NULL, NULL},
    {"fix-git", OUTCOME_FAILED, STAGE_STEPS, NULL, ERR_STEP,
     "task fix-git: steps: step 2 of 5 (line 7: apt-get install -y tmux): exit status 100; its "
     "last "
     "output:\nE: Failed to fetch http://deb.debian.org/debian/pool/main/t/tmux_3.3a-3_amd64.deb  "
     "404  Not Found\nE: Unable to fetch some archives, maybe run apt-get update?",
     "put 'apt-get update' into the step, or bake from an image whose package lists are newer"},
    {"qemu-startup", OUTCOME_FAILED, STAGE_PULL, NULL, ERR_DENIED,
     "task qemu-startup: pull: image registry.example.com/tasks/qemu-startup:1: the registry "
     "refused "
     "anonymous access (status 401)",
     "log in: docker login registry.example.com"},
    {"sqlite-with-gcov", OUTCOME_PENDING, STAGE_STEPS,
     "Get:14 http://deb.debian.org/debian bookworm/main amd64 gcc-12 amd64 12.2.0-14 [19.3 MB]",
     ERR_NONE, NULL, NULL},
    {"make-doom-for-mips", OUTCOME_PENDING, STAGE_BOOT, NULL, ERR_NONE, NULL, NULL},
    {"openssl-selfsigned-cert", OUTCOME_PENDING, STAGE_PULL, NULL, ERR_NONE, NULL, NULL},
    {"configure-git-webserver-with-a-long-name", OUTCOME_PENDING, STAGE_PROVE, NULL, ERR_NONE, NULL,
     NULL},
};

static void fill(struct bake_task_result *r, const struct shown *s, char alias[64])
{
    snprintf(alias, 64, "tb2-%.40s-0123456789", s->name);
    *r = (struct bake_task_result){.task = s->name,
                                   .alias = alias,
                                   .outcome = s->outcome,
                                   .stage = s->stage,
                                   .err = ERR_INIT,
                                   .why = s->outcome == OUTCOME_UNCHANGED ? NULL : "image",
                                   .estimate_ms = 95000};
    for (int i = STAGE_RESOLVE; i <= (int)s->stage; i++)
        r->stage_ms[i] = 700 * (i + (int)strlen(s->name) % 5);
    if (s->error) {
        err_set(&r->err, s->class, "%s", s->error);
        err_hint(&r->err, "%s", s->hint);
    }
}

static void tell(struct ui *ui, enum bake_event_kind kind, const struct bake_task_result *r,
                 const char *text)
{
    ui_event(ui, &(struct bake_event){.kind = kind, .result = r, .text = text});
}

static void begin(struct ui *ui, const struct bake_task_result *results)
{
    ui_set_jobs(ui, 3);
    ui_event(ui, &(struct bake_event){.kind = EVENT_RUN_STARTED, .count = TASKS});
    for (size_t i = 0; i < TASKS; i++) {
        tell(ui, EVENT_STAGE_STARTED, &results[i], NULL);
        if (tasks[i].output)
            tell(ui, EVENT_OUTPUT, &results[i], tasks[i].output);
        if (results[i].outcome != OUTCOME_PENDING)
            tell(ui, EVENT_TASK_FINISHED, &results[i], NULL);
    }
}

/* Until it is killed. */
static int live(const struct bake_task_result *results)
{
    struct ui *ui = NULL;
    struct err e = ERR_INIT;
    if (ui_new(&ui, UI_LIVE, false, &e) < 0)
        return 1;
    begin(ui, results);
    for (uint64_t done = 0;; done += BYTES_A_STEP) {
        struct bake_traffic traffic = {.has_quota = true,
                                       .quota_remaining = 63,
                                       .quota_limit = 100,
                                       .limited_ms = done >= 40 * BYTES_A_STEP ? 42000 : 0};
        for (size_t i = 0; i < TASKS; i++) {
            if (results[i].outcome == OUTCOME_PENDING && results[i].stage == STAGE_PULL)
                ui_event(ui, &(struct bake_event){.kind = EVENT_PROGRESS,
                                                  .result = &results[i],
                                                  .done = done % 214000000,
                                                  .total = 214000000});
        }
        if (done % (40 * BYTES_A_STEP) == 0)
            ui_event(ui, &(struct bake_event){.kind = EVENT_TRAFFIC, .traffic = &traffic});
        clock_sleep_ms(STEP_MS);
    }
}

/* The table: what was at work has become ready, but one that was cancelled. */
static int end(struct bake_task_result *results)
{
    for (size_t i = 0; i < TASKS; i++) {
        if (results[i].outcome == OUTCOME_PENDING)
            results[i].outcome = i + 1 == TASKS ? OUTCOME_CANCELLED : OUTCOME_READY;
    }
    const struct bake_report report = {.results = results,
                                       .count = TASKS,
                                       .wall_ms = 94000,
                                       .blob_gets = 31,
                                       .blob_bytes = 702000000,
                                       .rate_waits = 2,
                                       .has_quota = true,
                                       .quota_remaining = 63,
                                       .quota_limit = 100,
                                       .store = {.chunk_bytes_new = 288000000}};
    ui_report(&report, UI_LIVE, false);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bake_task_result results[TASKS];
    static char aliases[TASKS][64];
    for (size_t i = 0; i < TASKS; i++)
        fill(&results[i], &tasks[i], aliases[i]);
    return argc > 1 && strcmp(argv[1], "end") == 0 ? end(results) : live(results);
}
