/* SPDX-License-Identifier: MIT */
/* Private to cli: what people see while a bake runs. */
#ifndef TB2_CLI_UI_H
#define TB2_CLI_UI_H

#include <stdbool.h>

#include "bake/bake.h"

enum ui_mode {
    UI_LIVE,  /* a terminal: a block of lines that is redrawn */
    UI_PLAIN, /* one line an event, to stderr */
    UI_JSON,  /* one JSON object an event, to stdout */
};

struct ui;
int ui_new(struct ui **out, enum ui_mode mode, bool verbose, struct err *e) MUST_USE;
/* How many machines work at once, for the guess of how long it still takes. */
void ui_set_jobs(struct ui *u, unsigned jobs);
/* Removes the live block; log messages go to stderr again. */
void ui_free(struct ui *u);
/* A bake_event_sink whose ctx is the ui. */
void ui_event(void *ui, const struct bake_event *event);
/* The table at the end, to stdout (with UI_JSON nothing: events said it all). With `changed`, tasks that
 * are up to date are left out. */
void ui_report(const struct bake_report *r, enum ui_mode mode, bool changed);
/* Its parts: what failed and why; which images moved. */
void ui_failures(const struct bake_report *r);
void ui_moves(const struct bake_report *r);

#endif
