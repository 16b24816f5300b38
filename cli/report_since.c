/* SPDX-License-Identifier: MIT */
/*
 * What moved since an earlier run: for each task that ran since, what its last run before and its
 * last run since say of it. A run that failed early does not know the image or the disk: then those of
 * the run before it count, on either side.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/report_since.h"

enum { RUNS_MAX = 4096, NAME_SHOWN_MAX = 256 };

/* A task's end in one run. */
struct past_end {
    char *task;
    struct json *end;
    size_t run; /* in the order of time */
    bool since;
};

struct past {
    struct run_names runs;
    size_t since_count; /* runs that are since then */
    struct past_end *ends;
    size_t count, capacity;
};

static void past_fini(struct past *p)
{
    run_names_fini(&p->runs);
    for (size_t i = 0; i < p->count; i++) {
        free(p->ends[i].task);
        json_free(p->ends[i].end);
    }
    free(p->ends);
}

/* ---- Which runs ---- */

/* Names of runs begin with their time, so they are compared as texts. */
static int find_limit(char **out, const char *when, struct err *e)
{
    struct err ignored = ERR_INIT;
    int64_t ms = 0;
    bool date = strlen(when) >= 10 && when[4] == '-' && when[7] == '-';
    if (!date && parse_duration(&ms, when, &ignored) < 0) {
        err_set(e, ERR_INPUT,
                "--since is a time ago (12h, 7d), a date (2026-01-31) or a run, not '%s'", when);
        return err_hint(e, "the runs are the files in runs/ of the store");
    }
    char then[CLOCK_TEXT_MAX];
    clock_print((clock_wall_ns() / 1000000 - ms) / 1000, then);
    *out = mem_strdup(date ? when : then);
    if (!*out)
        return err_nomem(e, "report");
    size_t len = strlen(*out);
    if (len > 6 && strcmp(*out + len - 6, ".jsonl") == 0)
        (*out)[len - 6] = 0;
    return 0;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_run(struct run_names *names, const char *file, struct err *e)
{
    size_t len = strlen(file);
    if (len < 7 || strcmp(file + len - 6, ".jsonl") != 0)
        return 0;
    int rc = mem_grow(&names->all, &names->capacity, names->count + 1, sizeof(*names->all), e);
    char *name = rc == 0 ? mem_strndup(file, len - 6) : NULL;
    if (!name)
        return err_nomem(e, "runs");
    names->all[names->count++] = name;
    return 0;
}

int run_names_read(struct run_names *out, int runs, struct err *e)
{
    int fd = -1;
    int rc = file_open(&fd, runs, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *listing = fdopendir(fd);
    if (!listing) {
        file_close(&fd);
        return err_sys(e, "listing the runs");
    }
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(listing)))
        rc = add_run(out, entry->d_name, e);
    closedir(listing);
    if (out->count > 1)
        qsort(out->all, out->count, sizeof(*out->all), compare_texts);
    return rc;
}

void run_names_fini(struct run_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->all[i]);
    free(names->all);
}

/* ---- Reading ---- */

static int keep_ends(struct past *p, const struct report *r, size_t run, bool since, struct err *e)
{
    int rc = mem_grow(&p->ends, &p->capacity, p->count + r->count, sizeof(*p->ends), e);
    for (size_t i = 0; rc == 0 && i < r->count; i++) {
        const struct report_task *t = &r->tasks[i];
        if (!t->end || !t->outcome || strcmp(t->outcome, "cancelled") == 0)
            continue;
        struct past_end *end = &p->ends[p->count];
        *end = (struct past_end){mem_strdup(t->name), json_clone(t->end), run, since};
        p->count++;
        rc = end->task && end->end ? 0 : err_nomem(e, "report");
    }
    return rc;
}

static int read_runs(struct past *p, int runs, const char *limit, struct err *e)
{
    int rc = 0;
    size_t first = p->runs.count > RUNS_MAX ? p->runs.count - RUNS_MAX : 0;
    for (size_t i = first; rc == 0 && i < p->runs.count; i++) {
        CLEANUP(report_fini) struct report r = {0};
        bool since = strcmp(p->runs.all[i], limit) > 0;
        AUTO_FREE char *name = mem_printf("%s.jsonl", p->runs.all[i]);
        rc = name ? report_read(&r, runs, name, e) : err_nomem(e, "report");
        if (rc == 0)
            rc = keep_ends(p, &r, i, since, e);
        p->since_count += since;
    }
    return rc;
}

static int by_task_and_run(const void *a, const void *b)
{
    const struct past_end *left = a;
    const struct past_end *right = b;
    int order = strcmp(left->task, right->task);
    return order != 0 ? order : left->run < right->run ? -1 : left->run > right->run;
}

/* ---- Comparing ---- */

/* What is known of a task on one side; texts are borrowed. */
struct side {
    bool known, failed;
    const char *manifest, *disk, *why, *error, *stage, *image;
};

static void take_text(const char **out, const struct json *end, const char *key)
{
    const struct json *member = json_member(end, key);
    if (member && json_kind(member) == JSON_KIND_STRING)
        *out = json_as_string(member);
}

static void take_side(struct side *s, const struct json *end)
{
    const char *outcome = "";
    take_text(&outcome, end, "outcome");
    s->known = true;
    s->failed = strcmp(outcome, bake_outcome_name(OUTCOME_FAILED)) == 0;
    s->error = NULL;
    take_text(&s->manifest, end, "manifest");
    take_text(&s->disk, end, "disk");
    take_text(&s->image, end, "image");
    take_text(&s->stage, end, "stage");
    take_text(&s->error, end, "error");
    if (strcmp(outcome, bake_outcome_name(OUTCOME_READY)) == 0)
        take_text(&s->why, end, "why");
}

static bool differ(const char *a, const char *b)
{
    return a && b && strcmp(a, b) != 0;
}

static void set_text(struct json *j, const char *key, const char *text)
{
    if (text)
        json_set(j, key, json_new_string(text));
}

static struct json *describe_side(const struct side *s)
{
    struct json *j = json_new_object();
    json_set(j, "failed", json_new_bool(s->failed));
    set_text(j, "image", s->image);
    set_text(j, "manifest", s->manifest);
    set_text(j, "disk", s->disk);
    set_text(j, "why", s->why);
    set_text(j, "stage", s->failed ? s->stage : NULL);
    set_text(j, "error", s->error);
    return j;
}

/* Adds a task of which something is different. */
static void compare_sides(struct json *moved, const char *task, const struct side *was,
                          const struct side *now)
{
    struct json *changes = json_new_array();
    if (!was->known)
        json_append(changes, json_new_string("new"));
    if (now->failed)
        json_append(changes,
                    json_new_string(was->known && was->failed ? "still failing" : "failing"));
    else if (was->failed)
        json_append(changes, json_new_string("mended"));
    if (differ(was->manifest, now->manifest))
        json_append(changes, json_new_string("image"));
    if (differ(was->disk, now->disk))
        json_append(changes, json_new_string("template"));
    if (json_length(changes) == 0) {
        json_free(changes);
        return;
    }
    struct json *j = json_new_object();
    json_set(j, "task", json_new_string(task));
    json_set(j, "changes", changes);
    if (was->known)
        json_set(j, "was", describe_side(was));
    json_set(j, "now", describe_side(now));
    json_append(moved, j);
}

static struct json *compare_all(const struct past *p)
{
    struct json *moved = json_new_array();
    for (size_t i = 0; i < p->count;) {
        struct side sides[2] = {{0}, {0}}; /* before, since */
        const char *task = p->ends[i].task;
        for (; i < p->count && strcmp(p->ends[i].task, task) == 0; i++) {
            if (p->ends[i].since && !sides[1].known) {
                sides[1] = sides[0];
                sides[1].why = NULL;
            }
            take_side(&sides[p->ends[i].since], p->ends[i].end);
        }
        if (sides[1].known)
            compare_sides(moved, task, &sides[0], &sides[1]);
    }
    return moved;
}

int report_since(struct json **out, int runs, const char *when, struct err *e)
{
    CLEANUP(past_fini) struct past p = {0};
    AUTO_FREE char *limit = NULL;
    int rc = find_limit(&limit, when, e);
    if (rc == 0)
        rc = run_names_read(&p.runs, runs, e);
    if (rc == 0)
        rc = read_runs(&p, runs, limit, e);
    if (rc < 0)
        return rc;
    if (p.count > 1)
        qsort(p.ends, p.count, sizeof(*p.ends), by_task_and_run);
    struct json *j = json_new_object();
    if (!j)
        return err_nomem(e, "report");
    json_set(j, "since", json_new_string(limit));
    json_set(j, "runs", json_new_integer((int64_t)p.since_count));
    json_set(j, "moved", compare_all(&p));
    *out = j;
    return 0;
}

/* ---- For people ---- */

static void print_text(const char *before, const char *text)
{
    char shown[NAME_SHOWN_MAX];
    size_t line = strcspn(text, "\n");
    AUTO_FREE char *first = mem_strndup(text, line);
    text_harmless(shown, sizeof(shown), first ? first : "");
    printf("%s%s", before, shown);
}

static void print_change(const struct json *task, const char *change)
{
    const struct json *now = json_member(task, "now");
    const struct json *was = json_member(task, "was");
    const char *from = NULL;
    const char *to = NULL;
    bool image = strcmp(change, "image") == 0;
    print_text("  ", json_as_string(json_member(task, "task")));
    if (strstr(change, "failing"))
        take_text(&to, now, "error");
    else if (strcmp(change, "template") == 0)
        take_text(&to, now, "why");
    if (image) {
        take_text(&from, was, "manifest");
        take_text(&to, now, "manifest");
        printf("\n    was %s\n    is  %s\n", from, to);
        return;
    }
    if (to)
        print_text(": ", to);
    putchar('\n');
}

static bool has_change(const struct json *task, const char *change)
{
    const struct json *changes = json_member(task, "changes");
    for (size_t i = 0; i < json_length(changes); i++) {
        if (strcmp(json_as_string(json_element(changes, i)), change) == 0)
            return true;
    }
    return false;
}

void report_since_print(const struct json *report)
{
    static const struct {
        const char *change, *title;
    } groups[] = {{"failing", "fail, and did not then"},    {"still failing", "still fail"},
                  {"mended", "are ready, and failed then"}, {"new", "are new"},
                  {"image", "have an image that moved"},    {"template", "have another template"}};
    const struct json *moved = json_member(report, "moved");
    size_t runs = (size_t)json_as_integer(json_member(report, "runs"));
    printf("%zu %s since %s\n", runs, runs == 1 ? "run" : "runs",
           json_as_string(json_member(report, "since")));
    if (json_length(moved) == 0)
        puts("nothing moved");
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
        size_t count = 0;
        for (size_t i = 0; i < json_length(moved); i++)
            count += has_change(json_element(moved, i), groups[g].change);
        if (count > 0)
            printf("\n%zu %s:\n", count, groups[g].title);
        for (size_t i = 0; count > 0 && i < json_length(moved); i++) {
            if (has_change(json_element(moved, i), groups[g].change))
                print_change(json_element(moved, i), groups[g].change);
        }
    }
}
