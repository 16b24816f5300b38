/* SPDX-License-Identifier: MIT */
/* A run's journal as what reports need of it. A journal may be cut short by a kill or a full disk. */
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/report.h"

enum { JOURNAL_SIZE_MAX = 512 << 20 };

bool report_task_failed(const struct report_task *t)
{
    return t->outcome && strcmp(t->outcome, bake_outcome_name(OUTCOME_FAILED)) == 0;
}

static const char *text_of(const struct json *j, const char *key)
{
    const struct json *member = json_member(j, key);
    return member && json_kind(member) == JSON_KIND_STRING ? json_as_string(member) : NULL;
}

static uint64_t number_of(const struct json *j, const char *key)
{
    struct err ignored = ERR_INIT;
    uint64_t value = 0;
    return json_get_u64_opt(j, key, 0, &value, &ignored) == 0 ? value : 0;
}

/* Milliseconds of the epoch; -1: none. "2026-01-02T03:04:05Z" or with milliseconds, ".678Z". */
static int64_t time_of(const struct json *j)
{
    enum { SECONDS_LEN = 19 };
    const char *text = text_of(j, "time");
    char seconds[SECONDS_LEN + 2];
    if (!text || strlen(text) < SECONDS_LEN + 1)
        return -1;
    memcpy(seconds, text, SECONDS_LEN);
    memcpy(seconds + SECONDS_LEN, "Z", 2);
    int64_t value = clock_parse(seconds);
    long milliseconds = text[SECONDS_LEN] == '.' ? strtol(text + SECONDS_LEN + 1, NULL, 10) : 0;
    return value < 0 || milliseconds < 0 || milliseconds > 999 ? -1 : value * 1000 + milliseconds;
}

static bool find_stage(enum bake_stage *out, const char *name)
{
    for (int i = 0; name && i < STAGE_COUNT; i++) {
        if (strcmp(name, bake_stage_name((enum bake_stage)i)) == 0) {
            *out = (enum bake_stage)i;
            return true;
        }
    }
    return false;
}

/* ---- Tasks ---- */

/* Nodes of the tree; `name` comes first, so that a name alone can be looked for. */
struct name_node {
    const char *name;
    size_t index;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct name_node *)a)->name, ((const struct name_node *)b)->name);
}

static int add_task(struct report *r, const char *name, struct report_task **out, struct err *e)
{
    int rc = mem_grow(&r->tasks, &r->capacity, r->count + 1, sizeof(*r->tasks), e);
    if (rc < 0)
        return rc;
    struct name_node *node = mem_zalloc(sizeof(*node));
    char *copy = mem_strdup(name);
    if (!node || !copy) {
        free(node);
        free(copy);
        return err_nomem(e, "report");
    }
    *node = (struct name_node){copy, r->count};
    struct report_task *t = &r->tasks[r->count++];
    *t = (struct report_task){.name = copy, .open_ms = -1};
    *out = t;
    if (!tsearch(node, &r->by_name, compare_names)) {
        free(node);
        return err_nomem(e, "report");
    }
    return 0;
}

static int find_task(struct report *r, const struct json *event, struct report_task **out,
                     struct err *e)
{
    const struct name_node wanted = {.name = text_of(event, "task")};
    *out = NULL;
    if (!wanted.name)
        return 0;
    struct name_node **found = tfind(&wanted, &r->by_name, compare_names);
    if (!found)
        return add_task(r, wanted.name, out, e);
    *out = &r->tasks[(*found)->index];
    return 0;
}

static void close_span(struct report_task *t, int64_t now_ms)
{
    if (t->open_ms >= 0 && t->span_count > 0) {
        struct report_span *span = &t->spans[t->span_count - 1];
        span->ms = now_ms > span->start_ms ? now_ms - span->start_ms : 0;
    }
    t->open_ms = -1;
}

static int open_span(struct report_task *t, int64_t now_ms, struct err *e)
{
    close_span(t, now_ms);
    int rc = mem_grow(&t->spans, &t->span_capacity, t->span_count + 1, sizeof(*t->spans), e);
    if (rc == 0) {
        t->spans[t->span_count++] = (struct report_span){.stage = t->stage, .start_ms = now_ms};
        t->open_ms = now_ms;
    }
    return rc;
}

/* Between two events a task may have waited for a place; its stages' own times are without that. */
static void trim_spans(struct report_task *t)
{
    int64_t left[STAGE_COUNT];
    memcpy(left, t->stage_ms, sizeof(left));
    for (size_t i = 0; i < t->span_count; i++) {
        struct report_span *span = &t->spans[i];
        if (span->ms > left[span->stage])
            span->ms = left[span->stage];
        left[span->stage] -= span->ms;
    }
}

static void take_end(struct report_task *t, struct json *event)
{
    json_free(t->end);
    t->end = event;
    t->outcome = text_of(event, "outcome");
    t->alias = text_of(event, "alias");
    t->image = text_of(event, "image");
    t->why = text_of(event, "why");
    t->error = text_of(event, "error");
    t->error_class = text_of(event, "error_class");
    t->hint = text_of(event, "hint");
    t->pulled = number_of(event, "pulled_size");
    const struct json *stages = json_member(event, "stage_ms");
    t->busy_ms = 0;
    for (int i = 0; i < STAGE_COUNT; i++) {
        int64_t ms =
            stages ? json_as_integer(json_member(stages, bake_stage_name((enum bake_stage)i))) : 0;
        t->stage_ms[i] = ms > 0 && ms < INT32_MAX ? ms : 0;
        t->busy_ms += t->stage_ms[i];
    }
    trim_spans(t);
}

static int add_output(struct report_task *t, const struct json *event, struct err *e)
{
    const char *text = text_of(event, "text");
    char *copy = mem_strdup(text ? text : "");
    if (!copy)
        return err_nomem(e, "report");
    char **slot = &t->output[t->output_count++ % REPORT_OUTPUT_LINES];
    free(*slot);
    *slot = copy;
    return 0;
}

/* Those that are run come after those that are not. */
static void take_step(struct report_task *t, const struct json *event, int64_t now_ms)
{
    struct err ignored = ERR_INIT;
    bool cached = false;
    t->steps = number_of(event, "steps");
    if (json_get_bool_opt(event, "cached", false, &cached, &ignored) < 0 || !cached)
        return;
    t->steps_kept = number_of(event, "step");
    t->kept_ms = now_ms;
}

/* ---- Events ---- */

static void take_run_end(struct report *r, const struct json *event)
{
    r->complete = true;
    r->wall_ms = (int64_t)(number_of(event, "wall_ms") & INT32_MAX);
    r->blob_gets = number_of(event, "blob_gets");
    r->blob_bytes = number_of(event, "blob_bytes");
    r->manifest_heads = number_of(event, "manifest_heads");
    r->manifest_gets = number_of(event, "manifest_gets");
    r->rate_waits = number_of(event, "rate_waits");
    r->mirrored = number_of(event, "mirrored");
    r->stored = number_of(event, "stored_size");
    r->chunks_put = number_of(event, "chunks_put");
    r->chunks_new = number_of(event, "chunks_new");
    r->layers_ingested = number_of(event, "layers_ingested");
    r->vm_tasks = number_of(event, "vm_tasks");
}

/* Takes *event over where it is kept: it is then NULL. */
static int take_task_event(struct report *r, struct json **event, const char *kind, int64_t now_ms,
                           struct err *e)
{
    struct report_task *t = NULL;
    int rc = find_task(r, *event, &t, e);
    if (rc < 0 || !t || !find_stage(&t->stage, text_of(*event, "stage")))
        return rc;
    if (strcmp(kind, "stage_started") == 0)
        return open_span(t, now_ms, e);
    if (strcmp(kind, "output") == 0)
        return add_output(t, *event, e);
    if (strcmp(kind, "step") == 0) {
        take_step(t, *event, now_ms);
        return 0;
    }
    close_span(t, now_ms);
    t->retries += strcmp(kind, "task_retried") == 0;
    if (strcmp(kind, "task_finished") == 0)
        take_end(t, MOVE(*event));
    return 0;
}

static int take_line(struct report *r, const char *text, size_t len, struct err *e)
{
    AUTO_JSON struct json *event = NULL;
    struct err ignored = ERR_INIT;
    if (len == 0 || json_parse(&event, text, len, "journal", &ignored) < 0)
        return 0;
    const char *kind = text_of(event, "event");
    int64_t time_ms = time_of(event);
    if (!kind || time_ms < 0)
        return 0;
    if (r->start_ms == 0)
        r->start_ms = time_ms;
    int64_t now_ms = time_ms > r->start_ms ? time_ms - r->start_ms : 0; /* clocks are set back */
    if (!r->complete && now_ms > r->wall_ms)
        r->wall_ms = now_ms;
    if (strcmp(kind, "run_finished") == 0)
        take_run_end(r, event);
    else
        return take_task_event(r, &event, kind, now_ms, e);
    return 0;
}

/* ---- The whole ---- */

struct ordered {
    const struct report_task *task;
    int rank;
    size_t index;
};

static int compare_ordered(const void *a, const void *b)
{
    const struct ordered *left = a;
    const struct ordered *right = b;
    return left->rank != right->rank ? left->rank - right->rank
                                     : strcmp(left->task->name, right->task->name);
}

static int count_and_order(struct report *r, struct err *e)
{
    AUTO_FREE struct ordered *list = mem_array(r->count + 1, sizeof(*list));
    r->order = mem_array(r->count + 1, sizeof(*r->order));
    if (!list || !r->order)
        return err_nomem(e, "report");
    for (size_t i = 0; i < r->count; i++) {
        const struct report_task *t = &r->tasks[i];
        enum bake_outcome outcome = OUTCOME_PENDING;
        for (enum bake_outcome o = OUTCOME_READY; o <= OUTCOME_CANCELLED; o++) {
            if (t->outcome && strcmp(t->outcome, bake_outcome_name(o)) == 0)
                outcome = o;
        }
        r->outcomes[outcome]++;
        static const int ranks[] = {[OUTCOME_FAILED] = 0,
                                    [OUTCOME_CANCELLED] = 1,
                                    [OUTCOME_PENDING] = 1,
                                    [OUTCOME_READY] = 2,
                                    [OUTCOME_UNCHANGED] = 2};
        list[i] = (struct ordered){t, ranks[outcome], i};
    }
    if (r->count > 1)
        qsort(list, r->count, sizeof(*list), compare_ordered);
    for (size_t i = 0; i < r->count; i++)
        r->order[i] = list[i].index;
    return 0;
}

static int read_lines(struct report *r, const struct buf *bytes, struct err *e)
{
    const char *at = buf_text(bytes);
    const char *end = at + bytes->len;
    int rc = 0;
    while (rc == 0 && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = newline ? (size_t)(newline - at) : (size_t)(end - at);
        rc = take_line(r, at, len, e);
        at += len + (newline != NULL);
    }
    return rc;
}

int report_read(struct report *out, int dir, const char *path, struct err *e)
{
    *out = (struct report){.status = -1};
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, JOURNAL_SIZE_MAX);
    const char *name = strrchr(path, '/');
    out->run = mem_strdup(name ? name + 1 : path);
    int rc = out->run ? file_read(dir, path, &bytes, e) : err_nomem(e, "report");
    if (rc == 0)
        rc = read_lines(out, &bytes, e);
    if (rc == 0)
        rc = count_and_order(out, e);
    if (rc < 0) {
        report_fini(out);
        return err_in(e, "report");
    }
    return 0;
}

int report_without_run(struct report *out, const struct err *why, struct err *e)
{
    *out = (struct report){.status = -1, .complete = true, .start_ms = clock_wall_ns() / 1000000};
    out->run = mem_strdup("no journal");
    out->order = mem_array(1, sizeof(*out->order));
    if (why) {
        out->error = mem_strdup(why->text);
        out->hint = mem_strdup(why->hint);
    }
    if (out->run && out->order && (!why || (out->error && out->hint)))
        return 0;
    report_fini(out);
    return err_nomem(e, "report");
}

void report_fini(struct report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct report_task *t = &r->tasks[i];
        free(t->name);
        free(t->spans);
        json_free(t->end);
        for (size_t n = 0; n < REPORT_OUTPUT_LINES; n++)
            free(t->output[n]);
    }
    if (r->by_name)
        tdestroy(r->by_name, free);
    free(r->tasks);
    free(r->order);
    free(r->run);
    free(r->error);
    free(r->hint);
    *r = (struct report){0};
}

const char *report_headline(const struct report *r, char *text, size_t len)
{
    size_t failed = r->outcomes[OUTCOME_FAILED];
    size_t open = r->outcomes[OUTCOME_CANCELLED] + r->outcomes[OUTCOME_PENDING];
    if (r->error)
        snprintf(text, len, "No task was begun");
    else if (r->count == 0)
        snprintf(text, len, "Nothing to do: no task was selected");
    else if (failed > 0)
        snprintf(text, len, "%zu of %zu %s failed", failed, r->count,
                 r->count == 1 ? "task" : "tasks");
    else if (open > 0)
        snprintf(text, len, "Ended early: %zu of %zu tasks are not baked", open, r->count);
    else if (r->count == 1)
        snprintf(text, len, "The task is ready");
    else
        snprintf(text, len, "All %zu tasks are ready", r->count);
    return text;
}
