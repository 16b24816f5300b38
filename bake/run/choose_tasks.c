/* SPDX-License-Identifier: MIT */
/*
 * The tasks of a run: the set is found, a part of it selected, each task read and given its alias.
 * All of that comes before any work, so that a mistake in the command line or two tasks that would
 * overwrite each other end the run before it begins. A task that cannot be read fails by itself.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/bake.h"
#include "bake/common/blame.h"
#include "bake/image/pins.h"
#include "bake/run/history.h"
#include "bake/run/provider.h"
#include "bake/run/run.h"
#include "base/clock.h"
#include "base/mem.h"

/* What a person named and is not there, or is something else, is a mistake in the input. */
static int open_set(struct run *run, struct err *e)
{
    const struct bake_selection *s = &run->options->tasks;
    int rc;
    if (s->task_list)
        rc = task_set_load(&run->set, s->task_list, e);
    else if (s->images)
        rc = task_set_load_images(&run->set, s->images, e);
    else
        rc = task_set_open(&run->set, s->tasks_dir, e);
    if (rc < 0)
        return blame_input(
            e, s->task_list ? "--task-list is the path of a list of tasks"
               : s->images  ? "--images is the path of a list of images"
                            : "--tasks-dir is the directory that holds the tasks' directories");
    if (run->set->count > 0)
        return 0;
    err_set(e, ERR_INPUT, "no tasks in %s", run->set->source);
    return err_hint(e, run->set->directory ? "a task is a directory that holds a task.toml"
                                           : "docs/formats/task-list.md says what one looks like");
}

/* Reads a task of a directory; that of a list is there. */
static int read_task(struct task_entry *entry, struct err *e)
{
    return entry->task ? 0 : task_load(&entry->task, entry->directory, e);
}

/* Sizes count with --frozen alone: else a share that is baked first would add to the lock file, and
 * the next one would be cut differently. */
static uint64_t entry_cost(void *ctx, size_t index)
{
    struct run *run = ctx;
    struct task_entry *entry = &run->set->entries[index];
    struct err ignored = ERR_INIT;
    return read_task(entry, &ignored) == 0 ? pins_size(run->pins, entry->task->image) : 0;
}

struct task_selection bake_task_selection(const struct bake_selection *s)
{
    return (struct task_selection){.names = s->names,
                                   .name_count = s->name_count,
                                   .excludes = s->excludes,
                                   .exclude_count = s->exclude_count,
                                   .shard = s->shard,
                                   .shard_count = s->shard_count};
}

/* marks[i]: entry i is part of the run. */
static int select_entries(struct run *run, bool *marks, struct err *e)
{
    const struct bake_selection *s = &run->options->tasks;
    struct task_selection wanted = bake_task_selection(s);
    wanted.cost = run->options->pins.frozen ? entry_cost : NULL;
    wanted.ctx = run;
    int rc = task_select(run->set, &wanted, marks, e);
    run->whole_set = true;
    for (size_t i = 0; rc == 0 && i < run->set->count; i++) {
        const struct past_task *past =
            s->only_failed ? history_find(run->history, run->set->entries[i].name) : NULL;
        if (s->only_failed && marks[i])
            marks[i] = past && past->age == 0 && past->failed;
        run->whole_set &= marks[i];
    }
    return rc;
}

/* ---- Reading ---- */

static int find_alias(struct baking *b, struct err *e)
{
    char *alias = NULL;
    int rc = recipe_alias(&alias, b->recipe, b->task, e);
    if (rc < 0)
        return rc;
    provider_compare_alias(b, alias);
    if (b->given_alias) {
        free(alias);
        alias = MOVE(b->given_alias);
    }
    b->result->alias = alias;
    return 0;
}

/* An error of the task alone stays in its result. */
static int add_task(struct run *run, struct bake_report *out, struct task_entry *entry,
                    struct err *e)
{
    struct bake_task_result *r = &out->results[out->count];
    struct baking *b = &run->bakings[out->count];
    *r = (struct bake_task_result){.task = mem_strdup(entry->name), .err = ERR_INIT};
    *b = (struct baking){
        .run = run, .result = r, .recipe = run->recipe, .recipe_json = run->recipe_json};
    if (!r->task)
        return err_nomem(e, "task list");
    out->count++;
    int64_t start_ms = clock_ms();
    int rc = read_task(entry, &r->err);
    b->task = MOVE(entry->task);
    if (rc == 0 && run->provider)
        rc = provider_apply(run->provider, b, &r->err);
    if (rc == 0)
        rc = find_alias(b, &r->err);
    if (rc == 0) {
        r->image = mem_strdup(b->task->image);
        rc = r->image ? 0 : err_nomem(&r->err, "task");
    }
    r->stage_ms[STAGE_PLAN] = clock_ms() - start_ms;
    return 0;
}

static int compare_aliases(const void *a, const void *b)
{
    const struct bake_task_result *left = *(const struct bake_task_result *const *)a;
    const struct bake_task_result *right = *(const struct bake_task_result *const *)b;
    int order = strcmp(left->alias, right->alias);
    return order != 0 ? order : strcmp(left->task, right->task);
}

/* Aliases are names in the catalog and on servers: one task would take the other's. */
static int check_aliases(const struct bake_report *out, struct err *e)
{
    AUTO_FREE const struct bake_task_result **sorted = mem_array(out->count + 1, sizeof(*sorted));
    if (!sorted)
        return err_nomem(e, "task list");
    size_t count = 0;
    for (size_t i = 0; i < out->count; i++) {
        if (out->results[i].alias)
            sorted[count++] = &out->results[i];
    }
    if (count > 1)
        qsort(sorted, count, sizeof(*sorted), compare_aliases);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1]->alias, sorted[i]->alias) != 0)
            continue;
        err_set(e, ERR_INPUT, "tasks %s and %s have the same alias, %s", sorted[i - 1]->task,
                sorted[i]->task, sorted[i]->alias);
        return err_hint(e, "rename one of them, or leave one out (--exclude)");
    }
    return 0;
}

/* ---- What is asked for anew ---- */

static int refresh_pins(struct run *run, struct err *e)
{
    const struct bake_pins *o = &run->options->pins;
    if (!o->update)
        return 0;
    AUTO_FREE bool *marks = mem_array(run->set->count + 1, sizeof(*marks));
    if (!marks)
        return err_nomem(e, "lock file");
    struct task_selection wanted = {.names = o->update_names, .name_count = o->update_name_count};
    int rc = task_select(run->set, &wanted, marks, e);
    size_t at = 0; /* results are in the order of the set */
    for (size_t i = 0; rc == 0 && i < run->set->count && at < run->count; i++) {
        const struct baking *b = &run->bakings[at];
        if (strcmp(b->result->task, run->set->entries[i].name) != 0)
            continue;
        if (marks[i] && b->task)
            rc = pins_refresh(run->pins, b->task->image, e);
        at++;
    }
    return rc;
}

int run_choose_tasks(struct run *run, struct bake_report *out, struct err *e)
{
    int rc = open_set(run, e);
    if (rc < 0)
        return rc;
    AUTO_FREE bool *marks = mem_array(run->set->count, sizeof(*marks));
    if (!marks)
        return err_nomem(e, "task list");
    rc = select_entries(run, marks, e);
    if (rc < 0)
        return rc;
    size_t count = 0;
    for (size_t i = 0; i < run->set->count; i++)
        count += marks[i];
    if (run->options->recipe_from && count > 0) {
        const struct provider_options asked = {.command = run->options->recipe_from,
                                               .set = run->set,
                                               .marks = marks,
                                               .cancel = &run->cancel};
        rc = provider_open(&run->provider, &asked, e);
        if (rc < 0)
            return rc;
    }
    out->results = mem_array(count + 1, sizeof(*out->results));
    run->bakings = mem_array(count + 1, sizeof(*run->bakings));
    if (!out->results || !run->bakings)
        return err_nomem(e, "task list");
    for (size_t i = 0; rc == 0 && i < run->set->count; i++) {
        if (marks[i])
            rc = add_task(run, out, &run->set->entries[i], e);
        run->count = out->count;
    }
    if (rc == 0)
        rc = check_aliases(out, e);
    return rc < 0 ? rc : refresh_pins(run, e);
}
