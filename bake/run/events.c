/* SPDX-License-Identifier: MIT */
/*
 * Events: to the caller's sink and, all but progress, to the run's journal, one JSON object a line
 * (docs/formats/journal.md). The journal is a record of what happened; resuming does not depend on
 * it, since what is done is found again in the store.
 */

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/bake.h"
#include "bake/run/events.h"
#include "bake/run/run.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

static const char *const stage_names[STAGE_COUNT] = {
    [STAGE_PLAN] = "plan",     [STAGE_RESOLVE] = "resolve",   [STAGE_PULL] = "pull",
    [STAGE_INGEST] = "ingest", [STAGE_ASSEMBLE] = "assemble", [STAGE_BOOT] = "boot",
    [STAGE_STEPS] = "steps",   [STAGE_READY] = "ready",       [STAGE_SNAPSHOT] = "snapshot",
    [STAGE_PROVE] = "prove",   [STAGE_REGISTER] = "register",
};

static const char *const outcome_names[] = {
    [OUTCOME_PENDING] = "pending",     [OUTCOME_READY] = "ready",
    [OUTCOME_UNCHANGED] = "unchanged", [OUTCOME_FAILED] = "failed",
    [OUTCOME_CANCELLED] = "cancelled",
};

static const char *const event_names[] = {
    [EVENT_RUN_STARTED] = "run_started",   [EVENT_STAGE_STARTED] = "stage_started",
    [EVENT_PROGRESS] = "progress",         [EVENT_OUTPUT] = "output",
    [EVENT_TRAFFIC] = "traffic",           [EVENT_TASK_WAITING] = "task_waiting",
    [EVENT_TASK_RETRIED] = "task_retried", [EVENT_TASK_FINISHED] = "task_finished",
    [EVENT_RUN_FINISHED] = "run_finished", [EVENT_STEP] = "step",
};

const char *bake_stage_name(enum bake_stage stage)
{
    return (unsigned)stage < STAGE_COUNT ? stage_names[stage] : "unknown";
}

const char *bake_outcome_name(enum bake_outcome outcome)
{
    return (unsigned)outcome < ARRAY_LEN(outcome_names) ? outcome_names[outcome] : "unknown";
}

static void describe_result(struct json *j, const struct bake_task_result *r)
{
    json_set(j, "outcome", json_new_string(bake_outcome_name(r->outcome)));
    if (r->alias)
        json_set(j, "alias", json_new_string(r->alias));
    if (r->image)
        json_set(j, "image", json_new_string(r->image));
    if (r->manifest[0])
        json_set(j, "manifest", json_new_string(r->manifest));
    if (r->why)
        json_set(j, "why", json_new_string(r->why));
    if (r->base_disk[0])
        json_set(j, "base_disk", json_new_string(r->base_disk));
    if (r->disk[0])
        json_set(j, "disk", json_new_string(r->disk));
    if (r->pushed)
        json_set(j, "pushed", json_new_string(r->pushed));
    if (r->console)
        json_set(j, "console", json_new_string(r->console));
    struct json *stages = json_new_object();
    for (int i = 0; i < STAGE_COUNT; i++) {
        if (r->stage_ms[i] > 0)
            json_set(stages, stage_names[i], json_new_integer(r->stage_ms[i]));
    }
    json_set(j, "stage_ms", stages);
    json_set(j, "pulled_size", json_new_integer((int64_t)r->pulled_size));
    if (r->steps_cached + r->steps_run > 0) {
        json_set(j, "steps_cached", json_new_integer((int64_t)r->steps_cached));
        json_set(j, "steps_run", json_new_integer((int64_t)r->steps_run));
    }
    if (r->outcome != OUTCOME_FAILED && r->outcome != OUTCOME_CANCELLED)
        return;
    json_set(j, "error_class", json_new_string(err_class_name(r->err.class)));
    json_set(j, "error", json_new_string(r->err.text));
    if (r->err.hint[0])
        json_set(j, "hint", json_new_string(r->err.hint));
    json_set(j, "retryable", json_new_bool(err_retryable(&r->err)));
}

struct json *bake_moves_json(const struct bake_report *r)
{
    struct json *moves = json_new_array();
    for (size_t i = 0; i < r->move_count; i++) {
        struct json *move = json_new_object();
        json_set(move, "image", json_new_string(r->moves[i].image));
        if (r->moves[i].was[0])
            json_set(move, "was", json_new_string(r->moves[i].was));
        json_set(move, "now", json_new_string(r->moves[i].now));
        json_append(moves, move);
    }
    return moves;
}

static void describe_report(struct json *j, const struct bake_report *r)
{
    if (r->move_count > 0)
        json_set(j, "moved", bake_moves_json(r));
    struct json *outcomes = json_new_object();
    for (enum bake_outcome o = OUTCOME_READY; o <= OUTCOME_CANCELLED; o++) {
        int64_t count = 0;
        for (size_t i = 0; i < r->count; i++)
            count += r->results[i].outcome == o;
        json_set(outcomes, bake_outcome_name(o), json_new_integer(count));
    }
    json_set(j, "outcomes", outcomes);
    json_set(j, "wall_ms", json_new_integer(r->wall_ms));
    json_set(j, "manifest_heads", json_new_integer((int64_t)r->manifest_heads));
    json_set(j, "manifest_gets", json_new_integer((int64_t)r->manifest_gets));
    json_set(j, "blob_gets", json_new_integer((int64_t)r->blob_gets));
    json_set(j, "blob_bytes", json_new_integer((int64_t)r->blob_bytes));
    json_set(j, "mirrored", json_new_integer((int64_t)r->mirrored));
    json_set(j, "rate_waits", json_new_integer((int64_t)r->rate_waits));
    if (r->has_quota)
        json_set(j, "quota_remaining", json_new_integer((int64_t)r->quota_remaining));
    if (r->has_quota && r->quota_limit > 0)
        json_set(j, "quota_limit", json_new_integer((int64_t)r->quota_limit));
    json_set(j, "vm_tasks", json_new_integer((int64_t)r->vm_tasks));
    json_set(j, "layers_ingested", json_new_integer((int64_t)r->layers_ingested));
    if (r->remote)
        json_set(j, "remote", json_clone(r->remote));
    json_set(j, "chunks_put", json_new_integer((int64_t)r->store.chunks_put));
    json_set(j, "chunks_new", json_new_integer((int64_t)r->store.chunks_new));
    json_set(j, "stored_size", json_new_integer((int64_t)r->store.chunk_bytes_new));
}

/* With milliseconds: reports draw time lines from it. */
static struct json *event_time(void)
{
    char seconds[CLOCK_TEXT_MAX];
    char text[CLOCK_TEXT_MAX + 4];
    int64_t now_ms = clock_wall_ns() / 1000000;
    clock_print(now_ms / 1000, seconds);
    snprintf(text, sizeof(text), "%.*s.%03dZ", (int)strcspn(seconds, "Z"), seconds,
             (int)(now_ms % 1000));
    return json_new_string(text);
}

struct json *bake_event_json(const struct bake_event *event)
{
    struct json *j = json_new_object();
    json_set(j, "event", json_new_string(event_names[event->kind]));
    json_set(j, "time", event_time());
    if (event->result) {
        json_set(j, "task", json_new_string(event->result->task));
        json_set(j, "stage", json_new_string(bake_stage_name(event->result->stage)));
    } else {
        json_set(j, "tasks", json_new_integer((int64_t)event->count));
    }
    if (event->kind == EVENT_TASK_FINISHED)
        describe_result(j, event->result);
    if (event->report)
        describe_report(j, event->report);
    if (event->kind == EVENT_PROGRESS) {
        json_set(j, "done", json_new_integer((int64_t)event->done));
        json_set(j, "total", json_new_integer((int64_t)event->total));
    }
    if (event->kind == EVENT_STEP) {
        json_set(j, "step", json_new_integer((int64_t)event->done));
        json_set(j, "steps", json_new_integer((int64_t)event->total));
        json_set(j, "cached", json_new_bool(event->cached));
    }
    if (event->text)
        json_set(j, "text", json_new_string(event->text));
    return j;
}

/* ---- Journal ---- */

void baking_name_console(struct baking *b)
{
    static const char suffix[] = ".jsonl";
    const char *journal = b->run->journal;
    size_t len = journal ? strlen(journal) : 0;
    if (len < sizeof(suffix) || b->result->console || !b->result->alias)
        return;
    b->result->console =
        mem_printf("%.*s.%s.log", (int)(len - (sizeof(suffix) - 1)), journal, b->result->alias);
}

int journal_open(struct run *run, char **path, struct err *e)
{
    char now[CLOCK_TEXT_MAX];
    clock_print(clock_wall_ns() / 1000000000, now);
    int rc = file_make_dirs(store_dir(run->store), "runs", e);
    if (rc < 0)
        return rc;
    char *name = mem_printf("runs/%s-%ld.jsonl", now, (long)getpid());
    if (!name)
        return err_nomem(e, "journal");
    rc = file_open(&run->journal_fd, store_dir(run->store), name, O_WRONLY | O_CREAT | O_APPEND,
                   0666, e);
    if (rc < 0) {
        free(name);
        return err_in(e, "opening the run's journal");
    }
    *path = name;
    return 0;
}

/* One write per line, so that a kill leaves whole lines. A full disk must not stop the run. */
static void journal_write(struct run *run, const struct bake_event *event)
{
    struct err ignored = ERR_INIT;
    AUTO_JSON struct json *j = bake_event_json(event);
    AUTO_FREE char *text = NULL;
    if (json_print(j, 0, &text, &ignored) < 0)
        return;
    size_t len = strlen(text);
    text[len] = '\n'; /* in place of the terminator */
    if (file_write_full(run->journal_fd, text, len + 1, &ignored) < 0)
        log_event(LOG_WARN, "bake", "journal: %s", ignored.text);
}

void run_event(struct run *run, const struct bake_event *event)
{
    pthread_mutex_lock(&run->event_lock);
    bool passing = event->kind == EVENT_PROGRESS || event->kind == EVENT_TASK_WAITING ||
                   event->kind == EVENT_TRAFFIC;
    if (!passing && run->journal_fd >= 0)
        journal_write(run, event);
    if (run->options->events)
        run->options->events(run->options->events_ctx, event);
    pthread_mutex_unlock(&run->event_lock);
}

/* ---- A task's events ---- */

static void close_stage(struct baking *b)
{
    int64_t now_ms = clock_ms();
    if (b->stage_start_ms > 0)
        b->result->stage_ms[b->result->stage] += now_ms - b->stage_start_ms;
    b->stage_start_ms = now_ms;
}

void baking_stage(struct baking *b, enum bake_stage stage)
{
    close_stage(b);
    b->result->stage = stage;
    stage_limit_begin(b);
    run_event(b->run, &(struct bake_event){.kind = EVENT_STAGE_STARTED, .result = b->result});
}

void baking_progress(struct baking *b, uint64_t done, uint64_t total)
{
    run_event(b->run,
              &(struct bake_event){
                  .kind = EVENT_PROGRESS, .result = b->result, .done = done, .total = total});
}

void baking_output(void *baking, const char *line)
{
    struct baking *b = baking;
    run_event(b->run,
              &(struct bake_event){.kind = EVENT_OUTPUT, .result = b->result, .text = line});
}

void baking_finish(struct baking *b)
{
    close_stage(b);
    run_event(b->run, &(struct bake_event){.kind = EVENT_TASK_FINISHED, .result = b->result});
}

void baking_wait(struct baking *b)
{
    close_stage(b);
    b->stage_start_ms = 0;
    run_event(b->run, &(struct bake_event){.kind = EVENT_TASK_WAITING, .result = b->result});
}

void baking_retried(struct baking *b, const struct err *why)
{
    run_event(b->run, &(struct bake_event){
                          .kind = EVENT_TASK_RETRIED, .result = b->result, .text = why->text});
    baking_wait(b);
}
