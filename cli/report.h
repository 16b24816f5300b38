/* SPDX-License-Identifier: MIT */
/*
 * Private to cli: reports of a run, made from its journal (docs/formats/journal.md) alone, so that
 * the run itself and `report` afterwards say the same. What tasks, images and guests say of
 * themselves is hostile; each form escapes it.
 */
#ifndef TB2_CLI_REPORT_H
#define TB2_CLI_REPORT_H

#include "bake/bake.h"
#include "base/buf.h"

/* A stretch of a task's time in one stage; milliseconds since the run began. */
struct report_span {
    enum bake_stage stage;
    int64_t start_ms;
    int64_t ms;
};

enum { REPORT_OUTPUT_LINES = 40 };

struct report_task {
    char *name;
    struct json *end;    /* its task_finished event; NULL: the run ended before it did */
    const char *outcome; /* these are borrowed from `end`, NULL where it says nothing */
    const char *alias, *image, *why;
    const char *error, *error_class, *hint;
    enum bake_stage stage; /* the last one */
    int64_t stage_ms[STAGE_COUNT];
    int64_t busy_ms; /* their sum */
    uint64_t pulled;
    struct report_span *spans;
    size_t span_count, span_capacity;
    int64_t open_ms;     /* while reading: start of the open span; -1: none */
    uint64_t steps;      /* of its recipe; 0: nothing was told of them */
    uint64_t steps_kept; /* the first of these were not run, since their results were kept */
    int64_t kept_ms;     /* when that was seen */
    unsigned retries;
    char *output[REPORT_OUTPUT_LINES]; /* a ring: the last lines that its steps printed */
    size_t output_count;               /* of all lines */
};

struct report {
    char *run;                 /* name of the journal */
    struct report_task *tasks; /* in the order in which the journal names them first */
    size_t count, capacity;
    void *by_name; /* tsearch tree of names */
    size_t *order; /* indexes: failed, then cancelled and unfinished, then by name */
    size_t outcomes[OUTCOME_CANCELLED + 1]; /* OUTCOME_PENDING: the run ended before them */
    int64_t start_ms;                       /* of the epoch */
    int64_t wall_ms;
    bool complete; /* the run told its end; else these are zero */
    uint64_t blob_gets, blob_bytes, manifest_heads, manifest_gets, rate_waits, mirrored;
    uint64_t stored, chunks_put, chunks_new, layers_ingested, vm_tasks;
    int status;  /* exit status; -1: not known */
    char *error; /* why no task was begun; NULL: the run has a journal */
    char *hint;
};

/* Reads the journal at `path` below `dir`. Lines that make no sense are left out. */
int report_read(struct report *out, int dir, const char *path, struct err *e) MUST_USE;
/* The report of a run that failed as a whole, or (`why` NULL) had nothing to do. */
int report_without_run(struct report *out, const struct err *why, struct err *e) MUST_USE;
void report_fini(struct report *r);

bool report_task_failed(const struct report_task *t);
/* "2 of 5 tasks failed", "all 5 tasks are ready", ... */
const char *report_headline(const struct report *r, char *text, size_t len);

/* One form into a buffer. */
typedef int report_form(struct buf *out, const struct report *r, struct err *e);
int report_html(struct buf *out, const struct report *r, struct err *e) MUST_USE;
int report_junit(struct buf *out, const struct report *r, struct err *e) MUST_USE;
int report_markdown(struct buf *out, const struct report *r, struct err *e) MUST_USE;
int report_metrics(struct buf *out, const struct report *r, struct err *e) MUST_USE;

/* Text as it may stand in HTML and XML, quotes included; what XML cannot hold becomes U+FFFD. */
int report_escape(struct buf *out, const char *text, struct err *e) MUST_USE;

/* ---- Files ---- */

/* Which forms are wanted, and where; paths are borrowed. */
struct report_files {
    const char *html, *junit, *markdown, *metrics;
};

bool report_files_any(const struct report_files *f);
/* ERR_INPUT when one of them could not be written: to be asked before a run of hours. */
int report_files_check(const struct report_files *f, struct err *e) MUST_USE;
/* Writes those that are wanted, each at once. Tries all; the first error counts. */
int report_files_write(const struct report_files *f, const struct report *r,
                       struct err *e) MUST_USE;

#endif
