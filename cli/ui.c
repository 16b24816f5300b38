/* SPDX-License-Identifier: MIT */
/*
 * What people see while a bake runs. On a terminal: finished tasks scroll by, below them a block of
 * one line per running task and a line of totals, redrawn a few times a second by a thread of its
 * own, so that a stage which says nothing for a minute still shows its time. Elsewhere: a line an
 * event.
 */
#include "cli/ui.h"

#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/event_writer.h"

enum {
    REDRAW_MS = 200,
    ROWS_MAX = 64,
    OUTPUT_SHOWN_MAX = 256,
    TASK_SHOWN_MAX = 256,
    NAME_WIDTH = 32,
    NAME_WIDTH_MIN = 8,
    RATE_SAMPLES = 25, /* five seconds */
    SUMMARY_LINES = 3, /* of the lines below the tasks, at most */
    SUMMARY_MAX = 128,
};

struct row {
    const struct bake_task_result *result; /* only to be looked into within its own events */
    char task[TASK_SHOWN_MAX];             /* harmless on a terminal */
    enum bake_stage stage;
    int64_t stage_start_ms;
    uint64_t done;
    uint64_t total;
    int64_t busy_ms;               /* of the stages before this one, from the pull on */
    char output[OUTPUT_SHOWN_MAX]; /* last line that the task's steps printed */
};

struct ui {
    enum ui_mode mode;
    struct event_writer *writer; /* with UI_JSON */
    bool verbose;
    FILE *out; /* stderr; buffered with UI_LIVE, so that a frame is one write */
    pthread_mutex_t lock;
    pthread_cond_t stop_cond;
    pthread_t drawer;
    bool drawing; /* the thread runs */
    bool stop;
    struct row rows[ROWS_MAX];
    size_t row_count;
    size_t drawn_widths[ROWS_MAX +
                        SUMMARY_LINES]; /* columns of each line of the block, as it was drawn */
    size_t drawn_lines;
    size_t tasks;
    size_t finished;
    size_t failed;
    void *known;         /* tsearch tree of tasks that are looked up and not at their end */
    size_t looked_up;    /* tasks whose image is known, or that are at their end */
    size_t unestimated;  /* of these, running ones of which no run tells how long they take */
    int64_t estimate_ms; /* of those that are looked up and not at their end */
    unsigned jobs;
    uint64_t pulled;
    uint64_t pulled_then[RATE_SAMPLES]; /* a ring, one a redraw: what was pulled by then */
    size_t samples;
    struct bake_traffic traffic;
    int64_t limited_until_ms; /* by our clock */
    bool colors;
    int64_t start_ms;
};

#define RED "\x1b[1;31m"
#define PLAIN "\x1b[0m"

/* https://no-color.org */
static bool wants_colors(void)
{
    const char *no_color = getenv("NO_COLOR");
    return !no_color || !*no_color;
}

/* ---- The live block ---- */

static size_t terminal_size(int fd, size_t *columns)
{
    struct winsize w = {0};
    if (ioctl(fd, TIOCGWINSZ, &w) < 0 || w.ws_col == 0) {
        *columns = 80;
        return 24;
    }
    *columns = w.ws_col;
    return w.ws_row;
}

/* A terminal that became narrower has wrapped the lines of the block. */
static void erase_block(struct ui *u)
{
    if (u->drawn_lines == 0)
        return;
    size_t columns;
    terminal_size(STDERR_FILENO, &columns);
    size_t rows = 0;
    for (size_t i = 0; i < u->drawn_lines; i++)
        rows += u->drawn_widths[i] > columns ? (u->drawn_widths[i] + columns - 1) / columns : 1;
    fprintf(u->out, "\x1b[%zuA\r\x1b[J", rows);
    u->drawn_lines = 0;
}

/* Prints text cut to the terminal's width, so that a line never wraps. */
static void draw_line(struct ui *u, const char *text, size_t columns)
{
    size_t width;
    size_t len = text_fit(text, columns > 0 ? columns - 1 : 0, &width);
    fprintf(u->out, "%.*s\n", (int)len, text);
    u->drawn_widths[u->drawn_lines++] = width;
}

/* Columns for names where `rest` are needed behind them. */
static int name_width(size_t columns, size_t rest)
{
    if (columns >= NAME_WIDTH + rest)
        return NAME_WIDTH;
    return columns > rest + NAME_WIDTH_MIN ? (int)(columns - rest) : NAME_WIDTH_MIN;
}

/* The stages from resolve on, a character each: "[====>-----]". */
enum { BAR_WIDTH = STAGE_COUNT - STAGE_RESOLVE + 2 };
static void draw_bar(char bar[BAR_WIDTH + 1], enum bake_stage stage)
{
    for (int i = STAGE_RESOLVE; i < STAGE_COUNT; i++)
        bar[1 + i - STAGE_RESOLVE] = i < (int)stage ? '=' : i == (int)stage ? '>' : '-';
    bar[0] = '[';
    bar[BAR_WIDTH - 1] = ']';
    bar[BAR_WIDTH] = 0;
}

static void draw_row(struct ui *u, const struct row *r, int64_t now_ms, size_t columns)
{
    char time[SIZE_TEXT_MAX];
    char done[SIZE_TEXT_MAX];
    char total[SIZE_TEXT_MAX];
    char detail[OUTPUT_SHOWN_MAX] = "";
    if (r->stage == STAGE_PULL && r->total > 0)
        snprintf(detail, sizeof(detail), "%s of %s", print_size(r->done, done),
                 print_size(r->total, total));
    else if (r->stage == STAGE_STEPS)
        snprintf(detail, sizeof(detail), "%s", r->output);
    enum { REST = 2 + 1 + BAR_WIDTH + 1 + 9 + 1 + 8 + 1 };
    int width = name_width(columns, REST) - 2; /* further right than a finished task */
    char bar[BAR_WIDTH + 1];
    draw_bar(bar, r->stage);
    char line[OUTPUT_SHOWN_MAX + 128];
    snprintf(line, sizeof(line), "  %-*.*s %s %-9s %8s  %s", width, width, r->task, bar,
             bake_stage_name(r->stage), print_duration(now_ms - r->stage_start_ms, time), detail);
    draw_line(u, line, columns);
}

/* "12 MB/s" while something is pulled. */
static void describe_rate(struct ui *u, char *text, size_t len)
{
    char size[SIZE_TEXT_MAX];
    size_t span = u->samples < RATE_SAMPLES ? u->samples : RATE_SAMPLES;
    uint64_t then = span == RATE_SAMPLES ? u->pulled_then[u->samples % RATE_SAMPLES] : 0;
    u->pulled_then[u->samples++ % RATE_SAMPLES] = u->pulled;
    uint64_t rate = span > 0 ? (u->pulled - then) * 1000 / (span * REDRAW_MS) : 0;
    text[0] = 0;
    if (rate > 0)
        snprintf(text, len, "%s/s", print_size(rate, size));
}

/* "about 4 m 10 s left" once each task is looked up and earlier runs tell how long it takes. */
static void describe_rest(const struct ui *u, int64_t now_ms, char *text, size_t len)
{
    int64_t left = u->estimate_ms;
    for (size_t i = 0; i < u->row_count; i++) {
        const struct row *r = &u->rows[i];
        if (r->stage >= STAGE_PULL)
            left -= r->busy_ms + now_ms - r->stage_start_ms;
    }
    char time[SIZE_TEXT_MAX];
    text[0] = 0;
    if (u->looked_up == u->tasks && u->unestimated == 0 && left > 0 && u->jobs > 0)
        snprintf(text, len, "about %s left",
                 print_duration((left / u->jobs + 999) / 1000 * 1000, time));
}

/* What registries grant, once they say so or have refused us. */
static void describe_traffic(const struct ui *u, int64_t now_ms, char *text, size_t len)
{
    const struct bake_traffic *t = &u->traffic;
    char time[SIZE_TEXT_MAX];
    int64_t left = u->limited_until_ms - now_ms;
    text[0] = 0;
    if (t->limited_ms > 0)
        snprintf(text, len, "rate limit: the registry is asked again in %s",
                 print_duration(left > 0 ? (left + 999) / 1000 * 1000 : 0, time));
    else if (t->has_quota && t->quota_limit > 0)
        snprintf(text, len, "%llu of %llu pulls left", (unsigned long long)t->quota_remaining,
                 (unsigned long long)t->quota_limit);
    else if (t->has_quota)
        snprintf(text, len, "%llu pulls left", (unsigned long long)t->quota_remaining);
}

/* The parts that are not empty, parted by commas, on as many lines as the terminal's width asks for. */
static void draw_summary(struct ui *u, char parts[][SUMMARY_MAX], size_t count, size_t columns)
{
    char line[SUMMARY_MAX * 5] = "";
    size_t lines = 1;
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(line);
        if (!parts[i][0])
            continue;
        if (len > 0 && len + strlen(parts[i]) + 2 >= columns && lines < SUMMARY_LINES) {
            draw_line(u, line, columns);
            lines++;
            len = 0;
        }
        snprintf(line + len, sizeof(line) - len, "%s%s", len > 0 ? ", " : "", parts[i]);
    }
    draw_line(u, line, columns);
}

static void draw_block(struct ui *u)
{
    size_t columns;
    size_t lines = terminal_size(STDERR_FILENO, &columns);
    int64_t now_ms = clock_ms();
    size_t shown = u->row_count;
    enum { BELOW = SUMMARY_LINES + 1 };
    if (shown + BELOW > lines)
        shown = lines > BELOW ? lines - BELOW : 0;
    for (size_t i = 0; i < shown; i++)
        draw_row(u, &u->rows[i], now_ms, columns);
    char time[SIZE_TEXT_MAX];
    char parts[5][SUMMARY_MAX];
    if (u->tasks == 0)
        snprintf(parts[0], SUMMARY_MAX, "preparing");
    else
        snprintf(parts[0], SUMMARY_MAX, "%zu of %zu done, %zu failed, %zu running", u->finished,
                 u->tasks, u->failed, u->row_count);
    snprintf(parts[1], SUMMARY_MAX, "%s", print_duration(now_ms - u->start_ms, time));
    describe_rest(u, now_ms, parts[2], SUMMARY_MAX);
    describe_rate(u, parts[3], SUMMARY_MAX);
    describe_traffic(u, now_ms, parts[4], SUMMARY_MAX);
    draw_summary(u, parts, ARRAY_LEN(parts), columns);
    fflush(u->out);
}

static void *draw_thread(void *self)
{
    struct ui *u = self;
    pthread_mutex_lock(&u->lock);
    while (!u->stop) {
        erase_block(u);
        draw_block(u);
        (void)cond_wait_until(&u->stop_cond, &u->lock, clock_ms() + REDRAW_MS);
    }
    erase_block(u);
    fflush(u->out);
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
    return NULL;
}

/* NULL when there are too many to be shown. */
static struct row *add_row(struct ui *u, const struct bake_task_result *result)
{
    struct row *found = find_row(u, result);
    if (found || u->row_count == ROWS_MAX)
        return found;
    struct row *r = &u->rows[u->row_count++];
    *r = (struct row){.result = result};
    text_harmless(r->task, sizeof(r->task), result->task);
    return r;
}

static void drop_row(struct ui *u, const struct bake_task_result *result)
{
    struct row *r = find_row(u, result);
    if (!r)
        return;
    size_t at = (size_t)(r - u->rows);
    memmove(r, r + 1, (u->row_count - at - 1) * sizeof(*r));
    u->row_count--;
}

static bool is_good(const struct bake_task_result *r)
{
    return r->outcome == OUTCOME_READY || r->outcome == OUTCOME_UNCHANGED;
}

static bool was_begun(const struct bake_task_result *r)
{
    return r->outcome != OUTCOME_CANCELLED || r->stage != STAGE_PLAN;
}

/* What the last column says: the alias of a template, or where a task ended without one. */
static const char *last_column(const struct bake_task_result *r, char *text, size_t len)
{
    if (is_good(r))
        return r->alias ? r->alias : "";
    if (was_begun(r))
        snprintf(text, len, "(in %s)", bake_stage_name(r->stage));
    else
        snprintf(text, len, "(not begun)");
    return text;
}

static int64_t busy_ms(const struct bake_task_result *r)
{
    int64_t sum = 0;
    for (int i = 0; i < STAGE_COUNT; i++)
        sum += r->stage_ms[i];
    return sum;
}

static void print_finished(const struct ui *u, const struct bake_task_result *r)
{
    char name[TASK_SHOWN_MAX];
    char time[SIZE_TEXT_MAX];
    char last[SIZE_TEXT_MAX];
    text_harmless(name, sizeof(name), r->task);
    bool red = u->colors && r->outcome == OUTCOME_FAILED;
    size_t columns = SIZE_MAX;
    enum { REST = 1 + 9 + 1 + 8 + 2 + 13 }; /* 13: where a task failed */
    if (u->mode == UI_LIVE)
        terminal_size(STDERR_FILENO, &columns);
    int width = name_width(columns, REST);
    const char *end = last_column(r, last, sizeof(last));
    bool fits = columns >= (size_t)width + REST - 13 + strlen(end);
    fprintf(u->out, "%-*s %s%-9s%s %8s  %s\n", width, name, red ? RED : "",
            bake_outcome_name(r->outcome), red ? PLAIN : "", print_duration(busy_ms(r), time),
            fits || !is_good(r) ? end : ""); /* the table has the alias, too */
    if (r->outcome == OUTCOME_FAILED)
        show_error(u->out, "  ", &r->err);
}

static int compare_pointers(const void *a, const void *b)
{
    return a < b ? -1 : a > b;
}

/* From the end of its look-up on, a task says why it is baked, and how long it may take. */
static void note_looked_up(struct ui *u, const struct bake_task_result *r)
{
    if (!r->why || tfind(r, &u->known, compare_pointers) ||
        !tsearch(r, &u->known, compare_pointers))
        return;
    u->looked_up++;
    u->estimate_ms += r->estimate_ms;
    u->unestimated += r->estimate_ms == 0;
}

static void forget_estimate(struct ui *u, const struct bake_task_result *r)
{
    if (!tfind(r, &u->known, compare_pointers)) {
        u->looked_up++;
        return;
    }
    tdelete(r, &u->known, compare_pointers);
    u->estimate_ms -= r->estimate_ms;
    u->unestimated -= r->estimate_ms == 0;
}

static void note_finished(struct ui *u, const struct bake_task_result *r)
{
    u->finished++;
    forget_estimate(u, r);
    if (r->outcome == OUTCOME_FAILED)
        u->failed++;
    if (was_begun(r))
        print_finished(u, r);
    drop_row(u, r);
}

static void note_stage(struct ui *u, const struct bake_task_result *result)
{
    struct row *r = add_row(u, result);
    note_looked_up(u, result);
    if (r) {
        r->busy_ms = 0;
        for (int i = STAGE_PULL; i < STAGE_COUNT; i++)
            r->busy_ms += result->stage_ms[i];
        r->done = 0;
        r->total = 0;
        r->stage = result->stage;
        r->stage_start_ms = clock_ms();
        r->output[0] = 0;
    }
    if (u->mode != UI_PLAIN)
        return;
    char name[TASK_SHOWN_MAX];
    text_harmless(name, sizeof(name), result->task);
    fprintf(u->out, "%s: %s\n", name, bake_stage_name(result->stage));
}

/* A task without a row is not seen at work; its end is. */
static void note_row(struct ui *u, struct row *r, const struct bake_event *event)
{
    if (event->kind == EVENT_PROGRESS) {
        u->pulled += event->done > r->done ? event->done - r->done : 0;
        r->done = event->done;
        r->total = event->total;
        return;
    }
    text_harmless(r->output, sizeof(r->output), event->text);
    if (u->verbose && u->mode == UI_PLAIN)
        fprintf(u->out, "%s: | %s\n", r->task, r->output);
}

static void note_step(struct ui *u, const struct bake_event *event)
{
    char name[TASK_SHOWN_MAX];
    if (u->mode != UI_PLAIN || !event->cached)
        return;
    text_harmless(name, sizeof(name), event->result->task);
    fprintf(u->out, "%s: step %llu of %llu is there\n", name, (unsigned long long)event->done,
            (unsigned long long)event->total);
}

static void take_event(struct ui *u, const struct bake_event *event)
{
    struct row *r = NULL;
    switch (event->kind) {
    case EVENT_RUN_STARTED:
        u->tasks = event->count;
        break;
    case EVENT_STAGE_STARTED:
        note_stage(u, event->result);
        break;
    case EVENT_STEP:
        note_step(u, event);
        break;
    case EVENT_PROGRESS:
    case EVENT_OUTPUT:
        r = find_row(u, event->result);
        if (r)
            note_row(u, r, event);
        break;
    case EVENT_TASK_WAITING:
        note_looked_up(u, event->result);
        drop_row(u, event->result);
        break;
    case EVENT_TRAFFIC:
        u->traffic = *event->traffic;
        u->limited_until_ms = clock_ms() + u->traffic.limited_ms;
        break;
    case EVENT_TASK_RETRIED: {
        char name[TASK_SHOWN_MAX];
        char text[OUTPUT_SHOWN_MAX];
        text_harmless(name, sizeof(name), event->result->task);
        text_harmless(text, sizeof(text), event->text);
        fprintf(u->out, "%s: %s, to be tried again: %s\n", name,
                bake_stage_name(event->result->stage), text);
        break;
    }
    case EVENT_TASK_FINISHED:
        note_finished(u, event->result);
        break;
    case EVENT_RUN_FINISHED:
        break;
    }
}

static void put_event_json(struct ui *u, const struct bake_event *event)
{
    if (event->kind == EVENT_TASK_WAITING || event->kind == EVENT_TRAFFIC)
        return;
    struct err ignored = ERR_INIT;
    AUTO_JSON struct json *j = bake_event_json(event);
    char *text = NULL;
    if (json_print(j, 0, &text, &ignored) == 0)
        event_writer_put(u->writer, text,
                         event->kind == EVENT_PROGRESS || event->kind == EVENT_OUTPUT);
}

void ui_event(void *ui, const struct bake_event *event)
{
    struct ui *u = ui;
    if (u->mode == UI_JSON) {
        put_event_json(u, event);
        return;
    }
    pthread_mutex_lock(&u->lock);
    if (event->kind == EVENT_TASK_FINISHED || event->kind == EVENT_TASK_RETRIED)
        erase_block(u);
    take_event(u, event);
    fflush(u->out);
    pthread_mutex_unlock(&u->lock);
}

static void log_line(void *ctx, enum log_level level, const char *module, const char *message)
{
    struct ui *u = ctx;
    pthread_mutex_lock(&u->lock);
    erase_block(u);
    print_log(u->out, level, module, message);
    fflush(u->out);
    pthread_mutex_unlock(&u->lock);
}

int ui_new(struct ui **out, enum ui_mode mode, bool verbose, struct err *e)
{
    struct ui *u = mem_zalloc(sizeof(*u));
    if (!u)
        return err_nomem(e, "progress view");
    u->mode = mode;
    u->out = stderr;
    if (mode == UI_LIVE) {
        int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        FILE *own = fd >= 0 ? fdopen(fd, "w") : NULL;
        if (own)
            u->out = own;
        else if (fd >= 0)
            close(fd);
    }
    u->colors = mode == UI_LIVE && wants_colors();
    u->verbose = verbose;
    u->start_ms = clock_ms();
    int rc = mode == UI_JSON ? event_writer_new(&u->writer, stdout, e) : 0;
    if (rc < 0) {
        free(u);
        return rc;
    }
    pthread_mutex_init(&u->lock, NULL);
    (void)cond_init(&u->stop_cond);
    log_set_sink(log_line, u, verbose ? LOG_DEBUG : LOG_INFO);
    if (mode == UI_LIVE)
        u->drawing = pthread_create(&u->drawer, NULL, draw_thread, u) == 0;
    *out = u;
    return 0;
}

static void keep_result(void *result UNUSED)
{
}

void ui_set_jobs(struct ui *u, unsigned jobs)
{
    pthread_mutex_lock(&u->lock);
    u->jobs = jobs;
    pthread_mutex_unlock(&u->lock);
}

void ui_free(struct ui *u)
{
    if (!u)
        return;
    log_to_stderr(u->verbose);
    event_writer_free(u->writer);
    if (u->drawing) {
        pthread_mutex_lock(&u->lock);
        u->stop = true;
        pthread_cond_signal(&u->stop_cond);
        pthread_mutex_unlock(&u->lock);
        pthread_join(u->drawer, NULL);
    }
    if (u->out != stderr)
        fclose(u->out);
    if (u->known)
        tdestroy(u->known, keep_result); /* of a run that was given up */
    pthread_cond_destroy(&u->stop_cond);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* ---- The table at the end ---- */

/* How long the stages took together; "-" when none of them began. */
static const char *print_stages(const struct bake_task_result *r, enum bake_stage from,
                                enum bake_stage to, char text[SIZE_TEXT_MAX])
{
    int64_t sum = 0;
    for (int i = (int)from; i <= (int)to; i++)
        sum += r->stage_ms[i];
    if (sum == 0 && (r->outcome == OUTCOME_UNCHANGED || r->stage < from))
        return "-";
    return print_duration(sum, text);
}

/* Widths of the table; a terminal too narrow for all columns gets those without which it says nothing. */
struct table {
    int task_width;
    bool all_columns;
    bool aliases;
    bool colors;
};

enum { TABLE_STAGES_WIDTH = 4 * 10, TABLE_REST_WIDTH = 2 + 9 + 2 + 8 + 2 };

static struct table lay_out(const struct bake_report *r)
{
    struct table t = {.task_width = 4, .all_columns = true, .aliases = true};
    size_t alias_width = 5;
    for (size_t i = 0; i < r->count; i++) {
        int len = (int)strlen(r->results[i].task);
        t.task_width = len > t.task_width ? len : t.task_width;
        size_t alias = r->results[i].alias ? strlen(r->results[i].alias) : 0;
        alias_width = alias > alias_width ? alias : alias_width;
    }
    size_t columns;
    terminal_size(STDOUT_FILENO, &columns);
    if (isatty(STDOUT_FILENO)) {
        size_t least = (size_t)t.task_width + TABLE_REST_WIDTH + alias_width;
        t.all_columns = columns >= least + TABLE_STAGES_WIDTH;
        t.aliases = columns >= least;
        t.colors = wants_colors();
    }
    return t;
}

static void print_task(const struct bake_task_result *r, const struct table *t)
{
    char columns[6][SIZE_TEXT_MAX];
    char name[TASK_SHOWN_MAX];
    text_harmless(name, sizeof(name), r->task);
    bool red = t->colors && r->outcome == OUTCOME_FAILED;
    printf("%-*s  %s%-9s%s  ", t->task_width, name, red ? RED : "", bake_outcome_name(r->outcome),
           red ? PLAIN : "");
    if (t->all_columns)
        printf("%8s  %8s  %8s  %8s  ", print_stages(r, STAGE_RESOLVE, STAGE_PULL, columns[0]),
               print_stages(r, STAGE_INGEST, STAGE_ASSEMBLE, columns[1]),
               print_stages(r, STAGE_BOOT, STAGE_READY, columns[2]),
               print_stages(r, STAGE_SNAPSHOT, STAGE_PROVE, columns[3]));
    printf("%8s  %s\n", print_stages(r, STAGE_PLAN, STAGE_REGISTER, columns[4]),
           t->aliases || !is_good(r) ? last_column(r, columns[5], sizeof(columns[5])) : "");
}

void ui_failures(const struct bake_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct bake_task_result *result = &r->results[i];
        if (result->outcome != OUTCOME_FAILED)
            continue;
        putchar('\n');
        show_error(stdout, "", &result->err);
        if (result->console)
            printf("  console log: %s in the store\n", result->console);
    }
}

void ui_moves(const struct bake_report *r)
{
    for (size_t i = 0; i < r->move_count; i++) {
        const struct image_move *m = &r->moves[i];
        char image[TASK_SHOWN_MAX];
        text_harmless(image, sizeof(image), m->image);
        printf("%s%s: %s\n", i == 0 ? "\nimages that moved:\n  " : "  ", image,
               m->was[0] ? "was" : "new");
        if (m->was[0])
            printf("    %s, is\n", m->was);
        printf("    %s\n", m->now);
    }
}

/* What people should know about the registries; nothing as a rule. */
static void print_traffic(const struct bake_report *r)
{
    if (r->mirrored > 0)
        printf("%llu tags, manifests and blobs came from mirrors\n",
               (unsigned long long)r->mirrored);
    if (r->rate_waits > 0)
        printf("a registry limited the rate of requests %llu times\n",
               (unsigned long long)r->rate_waits);
    if (r->has_quota && r->quota_limit > 0)
        printf("the registry grants %llu more pulls of %llu for now\n",
               (unsigned long long)r->quota_remaining, (unsigned long long)r->quota_limit);
    else if (r->has_quota)
        printf("the registry grants %llu more pulls for now\n",
               (unsigned long long)r->quota_remaining);
}

void ui_report(const struct bake_report *r, enum ui_mode mode, bool changed)
{
    if (mode == UI_JSON)
        return;
    if (r->count == 0) {
        puts("nothing to do: no task is selected");
        return;
    }
    size_t counts[OUTCOME_CANCELLED + 1] = {0};
    for (size_t i = 0; i < r->count; i++)
        counts[r->results[i].outcome]++;
    const struct table t = lay_out(r);
    printf("%-*s  %-9s  ", t.task_width, "TASK", "OUTCOME");
    if (t.all_columns)
        printf("%8s  %8s  %8s  %8s  ", "PULL", "DISK", "WARM", "SNAPSHOT");
    printf("%8s  %s\n", "TOTAL", t.aliases ? "ALIAS" : "");
    for (size_t i = 0; i < r->count; i++) {
        if (!changed || r->results[i].outcome != OUTCOME_UNCHANGED)
            print_task(&r->results[i], &t);
    }
    ui_failures(r);
    ui_moves(r);
    char time[SIZE_TEXT_MAX];
    char pulled[SIZE_TEXT_MAX];
    char stored[SIZE_TEXT_MAX];
    printf("\n%zu ready, %zu unchanged, %zu failed, %zu cancelled in %s; %llu blobs (%s) pulled, "
           "%s stored\n",
           counts[OUTCOME_READY], counts[OUTCOME_UNCHANGED], counts[OUTCOME_FAILED],
           counts[OUTCOME_CANCELLED], print_duration(r->wall_ms, time),
           (unsigned long long)r->blob_gets, print_size(r->blob_bytes, pulled),
           print_size(r->store.chunk_bytes_new, stored));
    print_traffic(r);
}
