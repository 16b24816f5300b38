/* SPDX-License-Identifier: MIT */
/*
 * What earlier runs tell: their journals' task_finished lines, the newest run first. Only those
 * lines are parsed; a line that makes no sense (a kill, a full disk) is skipped.
 */

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/bake.h"
#include "bake/run/history.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

enum {
    JOURNALS_READ_MAX = 64,
    JOURNAL_SIZE_MAX = 256 << 20,
    HISTORY_SIZE_MAX = 512 << 20,
    TASKS_READ_MAX = 50000 /* results; enough of the newest runs */
};

struct past_run {
    char *name;
    int64_t time_ns;
    uint64_t size;
};

static int newest_first(const void *a, const void *b)
{
    const struct past_run *left = a;
    const struct past_run *right = b;
    if (left->time_ns != right->time_ns)
        return left->time_ns > right->time_ns ? -1 : 1;
    return strcmp(right->name, left->name);
}

struct run_list {
    struct past_run *runs;
    size_t count;
    size_t capacity;
};

static void run_list_fini(struct run_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->runs[i].name);
    free(l->runs);
}

static int add_run(struct run_list *l, int dir, const char *name, struct err *e)
{
    struct stat st;
    size_t len = strlen(name);
    if (len < 7 || strcmp(name + len - 6, ".jsonl") != 0 || fstatat(dir, name, &st, 0) < 0 ||
        !S_ISREG(st.st_mode))
        return 0;
    int rc = mem_grow(&l->runs, &l->capacity, l->count + 1, sizeof(*l->runs), e);
    char *copy = rc == 0 ? mem_strdup(name) : NULL;
    if (!copy)
        return err_nomem(e, "history");
    l->runs[l->count++] = (struct past_run){
        copy, (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec, (uint64_t)st.st_size};
    return 0;
}

static int list_runs(struct run_list *l, int dir, struct err *e)
{
    int fd = dup(dir);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    if (!listing) {
        file_close(&fd);
        return err_sys(e, "listing the journals");
    }
    rewinddir(listing);
    int rc = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(listing)))
        rc = add_run(l, dir, entry->d_name, e);
    closedir(listing);
    if (l->count > 1)
        qsort(l->runs, l->count, sizeof(*l->runs), newest_first);
    return rc;
}

/* ---- Lines ---- */

static void read_stages(struct past_task *t, const struct json *line)
{
    struct err ignored = ERR_INIT;
    struct json *stages = NULL;
    if (json_get_object_opt(line, "stage_ms", &stages, &ignored) < 0 || !stages)
        return;
    for (int i = 0; i < STAGE_COUNT; i++) {
        int64_t ms = json_as_integer(json_member(stages, bake_stage_name((enum bake_stage)i)));
        t->stage_ms[i] = ms > 0 && ms < INT32_MAX ? ms : 0;
    }
}

static int read_line(struct history *h, unsigned age, const char *text, size_t len, struct err *e)
{
    AUTO_JSON struct json *line = NULL;
    struct err ignored = ERR_INIT;
    const char *event = NULL;
    const char *task = NULL;
    const char *outcome = NULL;
    if (json_parse(&line, text, len, "journal", &ignored) < 0 ||
        json_get_string(line, "event", &event, &ignored) < 0 ||
        strcmp(event, "task_finished") != 0 || json_get_string(line, "task", &task, &ignored) < 0 ||
        json_get_string(line, "outcome", &outcome, &ignored) < 0)
        return 0;
    int rc = mem_grow(&h->tasks, &h->capacity, h->count + 1, sizeof(*h->tasks), e);
    char *copy = rc == 0 ? mem_strdup(task) : NULL;
    if (!copy)
        return err_nomem(e, "history");
    struct past_task *t = &h->tasks[h->count++];
    *t = (struct past_task){.task = copy, .age = age};
    t->baked = strcmp(outcome, bake_outcome_name(OUTCOME_READY)) == 0;
    t->failed = strcmp(outcome, bake_outcome_name(OUTCOME_FAILED)) == 0 ||
                strcmp(outcome, bake_outcome_name(OUTCOME_CANCELLED)) == 0;
    read_stages(t, line);
    return 0;
}

static int read_journal(struct history *h, int dir, const struct past_run *run, unsigned age,
                        struct err *e)
{
    /* Of older runs, only what took how long is of use. */
    const char *mark = age == 0 ? "\"task_finished\"" : "\"outcome\":\"ready\"";
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, JOURNAL_SIZE_MAX);
    int rc = file_read(dir, run->name, &bytes, e);
    if (rc < 0)
        return rc == -ERR_NOMEM ? rc : 0;
    const char *at = buf_text(&bytes);
    const char *end = at + bytes.len;
    while (rc == 0 && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = newline ? (size_t)(newline - at) : (size_t)(end - at);
        if (memmem(at, len, mark, strlen(mark)))
            rc = read_line(h, age, at, len, e);
        at += len + 1;
    }
    return rc;
}

/* ---- History ---- */

static int by_task_and_age(const void *a, const void *b)
{
    const struct past_task *left = a;
    const struct past_task *right = b;
    int order = strcmp(left->task, right->task);
    return order != 0 ? order : left->age < right->age ? -1 : left->age > right->age;
}

/* Keeps of each task what the newest run says, and the times of the newest run that baked it. */
static void merge_tasks(struct history *h)
{
    if (h->count > 1)
        qsort(h->tasks, h->count, sizeof(*h->tasks), by_task_and_age);
    size_t kept = 0;
    for (size_t i = 0; i < h->count; i++) {
        struct past_task *last = kept > 0 ? &h->tasks[kept - 1] : NULL;
        if (!last || strcmp(last->task, h->tasks[i].task) != 0) {
            h->tasks[kept++] = h->tasks[i];
            continue;
        }
        if (!last->baked && h->tasks[i].baked) {
            last->baked = true;
            memcpy(last->stage_ms, h->tasks[i].stage_ms, sizeof(last->stage_ms));
        }
        free(h->tasks[i].task);
    }
    h->count = kept;
}

static int compare_times(const void *a, const void *b)
{
    const int64_t *left = a;
    const int64_t *right = b;
    return *left < *right ? -1 : *left > *right;
}

static int find_typical(struct history *h, struct err *e)
{
    AUTO_FREE int64_t *times = mem_array(h->count + 1, sizeof(*times));
    if (!times)
        return err_nomem(e, "history");
    size_t count = 0;
    for (size_t i = 0; i < h->count; i++) {
        if (h->tasks[i].baked)
            times[count++] = history_ms(&h->tasks[i], STAGE_PULL);
    }
    if (count > 1)
        qsort(times, count, sizeof(*times), compare_times);
    h->typical_ms = count > 0 ? times[count / 2] : 0;
    return 0;
}

int history_load(struct history **out, struct store *s, struct err *e)
{
    AUTO_HISTORY struct history *h = mem_zalloc(sizeof(*h));
    if (!h)
        return err_nomem(e, "history");
    AUTO_FD int dir = -1;
    CLEANUP(run_list_fini) struct run_list list = {0};
    int rc = file_open(&dir, store_dir(s), "runs", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == -ERR_NOTFOUND)
        err_clear(e);
    else if (rc == 0)
        rc = list_runs(&list, dir, e);
    if (rc < 0 && rc != -ERR_NOTFOUND)
        return rc;
    uint64_t size = 0;
    for (size_t i = 0; i < list.count && i < JOURNALS_READ_MAX && h->count < TASKS_READ_MAX; i++) {
        size += list.runs[i].size;
        if (size > HISTORY_SIZE_MAX)
            break;
        rc = read_journal(h, dir, &list.runs[i], (unsigned)i, e);
        if (rc < 0)
            return rc;
    }
    merge_tasks(h);
    rc = find_typical(h, e);
    if (rc == 0)
        *out = MOVE(h);
    return rc;
}

void history_free(struct history *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->count; i++)
        free(h->tasks[i].task);
    free(h->tasks);
    free(h);
}

static int compare_task(const void *name, const void *task)
{
    return strcmp(name, ((const struct past_task *)task)->task);
}

const struct past_task *history_find(const struct history *h, const char *task)
{
    return h->count > 0 ? bsearch(task, h->tasks, h->count, sizeof(*h->tasks), compare_task) : NULL;
}

int64_t history_ms(const struct past_task *t, enum bake_stage from)
{
    int64_t sum = 0;
    for (int i = (int)from; t && t->baked && i < STAGE_COUNT; i++)
        sum += t->stage_ms[i];
    return sum;
}
