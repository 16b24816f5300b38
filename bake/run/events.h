/* SPDX-License-Identifier: MIT */
/* What is told of a run while it goes on, and how long its stages may take. */
#ifndef TB2_BAKE_RUN_EVENTS_H
#define TB2_BAKE_RUN_EVENTS_H

#include <stdint.h>

#include "bake/bake.h"
#include "base/err.h"

struct baking;
struct run;

/* Events: stage changes, progress, output; also written to the journal. */
void baking_stage(struct baking *b, enum bake_stage stage);
void baking_progress(struct baking *b, uint64_t done, uint64_t total);
void baking_output(void *baking, const char *line);
void baking_finish(struct baking *b);
void baking_wait(struct baking *b);
void baking_retried(struct baking *b, const struct err *why);
void run_event(struct run *run, const struct bake_event *event);

/* Names the file for the console log of the task's machines, beside the run's journal. */
void baking_name_console(struct baking *b);

/* Events about what registries grant, while the run goes on and someone listens. */
struct traffic_watch;
int traffic_watch_start(struct traffic_watch **out, struct run *run, struct err *e) MUST_USE;
void traffic_watch_stop(struct traffic_watch *w);

/* Opens the run's journal; *path is its name in the store, free with free(). */
int journal_open(struct run *run, char **path, struct err *e) MUST_USE;

/* The calling thread's time for the stage that the task has begun. */
void stage_limit_begin(const struct baking *b);
/* It works on no task's stage any more. */
void stage_limit_end(const struct run *run);
/* Where the time was up, says so, and which option allows more. */
void stage_limit_explain(const struct baking *b, struct err *e);

#endif
