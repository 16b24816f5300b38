/* SPDX-License-Identifier: MIT */
/* Private to cli: what moved since an earlier run (docs/formats/journal.md). */
#ifndef TB2_CLI_REPORT_SINCE_H
#define TB2_CLI_REPORT_SINCE_H

#include "base/json.h"
#include "cli/report.h"

/* Names of a store's runs, without ".jsonl", sorted: they begin with the time, the newest is the last. */
struct run_names {
    char **all;
    size_t count, capacity;
};
/* Adds those of the directory `runs`; to be finished whatever the result. */
int run_names_read(struct run_names *out, int runs, struct err *e) MUST_USE;
void run_names_fini(struct run_names *names);

/*
 * Compares what the journals in the directory `runs` say of each task that ran after `when` (a time ago,
 * a date, or the name of a run) with what they said then. *out, for json_free, has `since`, `runs` and
 * `moved`: an array of task, changes, was, now. ERR_INPUT for a `when` that is none.
 */
int report_since(struct json **out, int runs, const char *when, struct err *e) MUST_USE;

/* The same to stdout, for people. */
void report_since_print(const struct json *report);

#endif
