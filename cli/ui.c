/* SPDX-License-Identifier: MIT */
/*
 * What people see while a bake runs. On a terminal: finished tasks scroll by, below them a block of
 * one line per running task and a line of totals, redrawn a few times a second by a thread of its own,
 * so that a stage which says nothing for a minute still shows its time. Elsewhere: a line an event.
 */
#include "cli/ui.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cmd.h"

enum { REDRAW_MS = 200, ROWS_MAX = 64, OUTPUT_SHOWN_MAX = 256, TASK_SHOWN_MAX = 256 };

struct row {
    const struct bake_task_result *result;
    char name[TASK_SHOWN_MAX]; /* the task's, harmless */
    int64_t stage_start_ms;
    int64_t task_start_ms;
    uint64_t done;
    uint64_t total;
    char output[OUTPUT_SHOWN_MAX]; /* last line that the task's steps printed */
};

struct ui {
    enum ui_mode mode;
    bool verbose;
    pthread_mutex_t lock;
    pthread_cond_t stop_cond;
    pthread_t drawer;
    bool drawing; /* the thread runs */
    bool stop;
    struct row rows[ROWS_MAX];
    size_t row_count;
    size_t drawn_lines;
    size_t tasks;
    size_t finished;
    size_t failed;
    int64_t start_ms;
};

/* One line of it. Text from a guest goes to a terminal: control characters could drive it. */
static void copy_harmless(char *to, size_t to_len, const char *text)
{
    snprintf(to, to_len, "%s", text);
    for (char *at = text_make_harmless(to); (at = strpbrk(at, "\n\t"));)
        *at = ' ';
}

/* ---- The live block ---- */

static void erase_block(struct ui *u)
{
    if (u->drawn_lines > 0)
        fprintf(stderr, "\x1b[%zuA\r\x1b[J", u->drawn_lines);
    u->drawn_lines = 0;
}

static size_t terminal_size(size_t *columns)
{
    struct winsize w = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0) {
        *columns = 80;
        return 24;
    }
    *columns = w.ws_col;
    return w.ws_row;
}

/* Prints text cut to the terminal's width, so that a line never wraps. */
static void draw_line(struct ui *u, const char *text, size_t columns)
{
    size_t len = strlen(text);
    if (len >= columns)
        len = columns > 0 ? columns - 1 : 0;
    fprintf(stderr, "%.*s\n", (int)len, text);
    u->drawn_lines++;
}

static void draw_row(struct ui *u, const struct row *r, int64_t now_ms, size_t columns)
{
    char time[SIZE_TEXT_MAX];
    char done[SIZE_TEXT_MAX];
    char total[SIZE_TEXT_MAX];
    char detail[OUTPUT_SHOWN_MAX] = "";
    if (r->result->stage == STAGE_PULL && r->total > 0)
        snprintf(detail, sizeof(detail), "%s of %s", print_size(r->done, done),
                 print_size(r->total, total));
    else if (r->result->stage == STAGE_STEPS)
        snprintf(detail, sizeof(detail), "%s", r->output);
    char line[OUTPUT_SHOWN_MAX + 128];
    snprintf(line, sizeof(line), "  %-32.32s %-9s %8s  %s", r->name,
             bake_stage_name(r->result->stage), print_duration(now_ms - r->stage_start_ms, time),
             detail);
    draw_line(u, line, columns);
}

static void draw_block(struct ui *u)
{
    size_t columns;
    size_t lines = terminal_size(&columns);
    int64_t now_ms = clock_ms();
    size_t shown = u->row_count;
    if (shown + 2 > lines)
        shown = lines > 2 ? lines - 2 : 0;
    for (size_t i = 0; i < shown; i++)
        draw_row(u, &u->rows[i], now_ms, columns);
    char time[SIZE_TEXT_MAX];
    char line[160];
    snprintf(line, sizeof(line), "%zu of %zu done, %zu failed, %zu running, %s", u->finished,
             u->tasks, u->failed, u->row_count, print_duration(now_ms - u->start_ms, time));
    draw_line(u, line, columns);
    fflush(stderr);
}

static void *draw_thread(void *self)
{
    struct ui *u = self;
    pthread_mutex_lock(&u->lock);
    while (!u->stop) {
        erase_block(u);
        draw_block(u);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += REDRAW_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&u->stop_cond, &u->lock, &until);
    }
    erase_block(u);
    fflush(stderr);
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* ---- Events ---- */

static struct row *find_row(struct ui *u, const struct bake_task_result *result)
{
    for (size_t i = 0; i < u->row_count; i++) {
        if (u->rows[i].result == result)
            return &u->rows[i];
    }
    if (u->row_count == ROWS_MAX)
        return NULL;
    struct row *r = &u->rows[u->row_count++];
    *r = (struct row){.result = result, .task_start_ms = clock_ms()};
    copy_harmless(r->name, sizeof(r->name), result->task);
    return r;
}

static void drop_row(struct ui *u, struct row *r)
{
    size_t at = (size_t)(r - u->rows);
    memmove(r, r + 1, (u->row_count - at - 1) * sizeof(*r));
    u->row_count--;
}

static void print_finished(const struct row *r)
{
    const struct bake_task_result *result = r->result;
    char time[SIZE_TEXT_MAX];
    print_duration(clock_ms() - r->task_start_ms, time);
    fprintf(stderr, "%-32s %-9s %8s  %s\n", r->name, bake_outcome_name(result->outcome), time,
            result->alias ? result->alias : "");
    if (result->outcome != OUTCOME_FAILED)
        return;
    struct err shown = result->err;
    fprintf(stderr, "  %s\n", text_make_harmless(shown.text));
    if (shown.hint[0])
        fprintf(stderr, "  %s\n", text_make_harmless(shown.hint));
}

static void note_finished(struct ui *u, struct row *r)
{
    u->finished++;
    if (r->result->outcome == OUTCOME_FAILED)
        u->failed++;
    print_finished(r);
    drop_row(u, r);
}

static void take_event(struct ui *u, const struct bake_event *event)
{
    if (event->kind == EVENT_RUN_STARTED) {
        u->tasks = event->count;
        return;
    }
    struct row *r = event->result ? find_row(u, event->result) : NULL;
    if (!r)
        return;
    switch (event->kind) {
    case EVENT_STAGE_STARTED:
        r->stage_start_ms = clock_ms();
        r->output[0] = 0;
        if (u->mode == UI_PLAIN)
            fprintf(stderr, "%s: %s\n", r->name, bake_stage_name(r->result->stage));
        break;
    case EVENT_PROGRESS:
        r->done = event->done;
        r->total = event->total;
        break;
    case EVENT_OUTPUT:
        copy_harmless(r->output, sizeof(r->output), event->text);
        if (u->verbose && u->mode == UI_PLAIN)
            fprintf(stderr, "%s: | %s\n", r->name, r->output);
        break;
    case EVENT_TASK_FINISHED:
        note_finished(u, r);
        break;
    case EVENT_RUN_STARTED:
    case EVENT_RUN_FINISHED:
        break;
    }
}

static void print_event_json(const struct bake_event *event)
{
    struct err ignored = ERR_INIT;
    AUTO_JSON struct json *j = bake_event_json(event);
    AUTO_FREE char *text = NULL;
    if (json_print(j, 0, &text, &ignored) == 0)
        puts(text);
    fflush(stdout);
}

void ui_event(void *ui, const struct bake_event *event)
{
    struct ui *u = ui;
    if (u->mode == UI_JSON) {
        print_event_json(event);
        return;
    }
    pthread_mutex_lock(&u->lock);
    if (event->kind == EVENT_TASK_FINISHED)
        erase_block(u);
    take_event(u, event);
    pthread_mutex_unlock(&u->lock);
}

static void log_line(void *ctx, enum log_level level, const char *module, const char *message)
{
    static const char *const names[] = {"error", "warning", "note", "debug"};
    struct ui *u = ctx;
    pthread_mutex_lock(&u->lock);
    erase_block(u);
    char shown[ERR_TEXT_MAX];
    snprintf(shown, sizeof(shown), "%s", message);
    fprintf(stderr, "%s: %s: %s\n", names[level], module, text_make_harmless(shown));
    pthread_mutex_unlock(&u->lock);
}

int ui_new(struct ui **out, enum ui_mode mode, bool verbose, struct err *e)
{
    struct ui *u = mem_zalloc(sizeof(*u));
    if (!u)
        return err_nomem(e, "progress view");
    u->mode = mode;
    u->verbose = verbose;
    u->start_ms = clock_ms();
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->stop_cond, NULL);
    log_set_sink(log_line, u, verbose ? LOG_DEBUG : LOG_INFO);
    if (mode == UI_LIVE)
        u->drawing = pthread_create(&u->drawer, NULL, draw_thread, u) == 0;
    *out = u;
    return 0;
}

void ui_free(struct ui *u)
{
    if (!u)
        return;
    log_set_sink(NULL, NULL, LOG_ERROR);
    if (u->drawing) {
        pthread_mutex_lock(&u->lock);
        u->stop = true;
        pthread_cond_signal(&u->stop_cond);
        pthread_mutex_unlock(&u->lock);
        pthread_join(u->drawer, NULL);
    }
    pthread_cond_destroy(&u->stop_cond);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* ---- The table at the end ---- */

static int64_t sum_stages(const struct bake_task_result *r, enum bake_stage from,
                          enum bake_stage to)
{
    int64_t sum = 0;
    for (int i = (int)from; i <= (int)to; i++)
        sum += r->stage_ms[i];
    return sum;
}

static void print_task(const struct bake_task_result *r, int task_width)
{
    char columns[5][SIZE_TEXT_MAX];
    char name[TASK_SHOWN_MAX];
    copy_harmless(name, sizeof(name), r->task);
    print_duration(sum_stages(r, STAGE_RESOLVE, STAGE_PULL), columns[0]);
    print_duration(sum_stages(r, STAGE_INGEST, STAGE_ASSEMBLE), columns[1]);
    print_duration(sum_stages(r, STAGE_BOOT, STAGE_READY), columns[2]);
    print_duration(sum_stages(r, STAGE_SNAPSHOT, STAGE_PROVE), columns[3]);
    print_duration(sum_stages(r, STAGE_PLAN, STAGE_REGISTER), columns[4]);
    bool good = r->outcome == OUTCOME_READY || r->outcome == OUTCOME_UNCHANGED;
    printf("%-*s  %-9s  %8s  %8s  %8s  %8s  %8s  %s\n", task_width, name,
           bake_outcome_name(r->outcome), columns[0], columns[1], columns[2], columns[3],
           columns[4], good && r->alias ? r->alias : bake_stage_name(r->stage));
}

static void print_failures(const struct bake_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct bake_task_result *result = &r->results[i];
        if (result->outcome != OUTCOME_FAILED)
            continue;
        struct err shown = result->err;
        printf("\n%s\n", text_make_harmless(shown.text));
        if (shown.hint[0])
            printf("  %s\n", text_make_harmless(shown.hint));
    }
}

void ui_report(const struct bake_report *r, enum ui_mode mode)
{
    if (mode == UI_JSON)
        return;
    int task_width = 4;
    size_t counts[OUTCOME_CANCELLED + 1] = {0};
    for (size_t i = 0; i < r->count; i++) {
        int len = (int)strlen(r->results[i].task);
        task_width = len > task_width ? len : task_width;
        counts[r->results[i].outcome]++;
    }
    printf("%-*s  %-9s  %8s  %8s  %8s  %8s  %8s  %s\n", task_width, "TASK", "OUTCOME", "PULL",
           "DISK", "WARM", "SNAPSHOT", "TOTAL", "ALIAS");
    for (size_t i = 0; i < r->count; i++)
        print_task(&r->results[i], task_width);
    print_failures(r);
    char time[SIZE_TEXT_MAX];
    char pulled[SIZE_TEXT_MAX];
    char stored[SIZE_TEXT_MAX];
    printf("\n%zu ready, %zu unchanged, %zu failed, %zu cancelled in %s; %llu blobs (%s) pulled, "
           "%s stored\n",
           counts[OUTCOME_READY], counts[OUTCOME_UNCHANGED], counts[OUTCOME_FAILED],
           counts[OUTCOME_CANCELLED], print_duration(r->wall_ms, time),
           (unsigned long long)r->blob_gets, print_size(r->blob_bytes, pulled),
           print_size(r->store.chunk_bytes_new, stored));
}
