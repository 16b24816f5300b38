/* SPDX-License-Identifier: MIT */
/* What the journals of earlier runs in a store tell about tasks. */
#ifndef TB2_BAKE_RUN_HISTORY_H
#define TB2_BAKE_RUN_HISTORY_H

#include "bake/bake.h"

struct past_task {
    char *task;
    unsigned age; /* of the newest run that names it: 0 the last run, 1 the one before, ... */
    bool failed;  /* it failed, or was cancelled, in that run */
    bool baked;   /* some run baked it; the times are of the newest that did */
    int64_t stage_ms[STAGE_COUNT];
};

struct history {
    struct past_task *tasks; /* sorted by name */
    size_t count;
    size_t capacity;
    int64_t typical_ms; /* middle one of the times of all tasks, from the pull on; 0: not known */
};

/* Reads the newest journals, as many as are of use. A store without any gives an empty history. */
int history_load(struct history **out, struct store *s, struct err *e) MUST_USE;
void history_free(struct history *h);
DEFINE_AUTO(history, history_free)
#define AUTO_HISTORY CLEANUP(history_free_auto_)

/* NULL when no run names the task. */
const struct past_task *history_find(const struct history *h, const char *task);
/* How long the stages from `from` on took; 0: not known. */
int64_t history_ms(const struct past_task *t, enum bake_stage from);

#endif
