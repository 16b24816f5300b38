/* SPDX-License-Identifier: MIT */
/*
 * Which tasks of a set: names, globs, what is left out, and a share of the rest. Shares depend on
 * the tasks' names and costs alone, so that each machine works its own out and they fit together.
 */
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "manifests/internal.h"

/* Changes of one letter that turn one name into the other. */
static size_t name_distance(const char *a, const char *b)
{
    size_t row[NAME_MAX + 1];
    size_t len = strnlen(b, NAME_MAX);
    for (size_t j = 0; j <= len; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0]++;
        for (size_t j = 0; j < len; j++) {
            size_t best = diagonal + (a[i] != b[j]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            diagonal = row[j + 1];
            row[j + 1] = diagonal + 1 < best ? diagonal + 1 : best;
        }
    }
    return row[len];
}

static int no_such_task(const struct task_set *set, const char *name, struct err *e)
{
    const char *fault = glob_fault(name);
    if (fault)
        return err_set(e, ERR_INPUT, "the pattern '%s' matches nothing: %s", name, fault);
    if (strpbrk(name, "*?[")) {
        err_set(e, ERR_INPUT, "no task of %s matches '%s'", set->source, name);
        return err_hint(e, "* stands for any letters, ? for one, [ab] for one of these");
    }
    err_set(e, ERR_INPUT, "task '%s' is not in %s", name, set->source);
    const char *nearest = NULL;
    size_t least = strlen(name) < 8 ? strlen(name) / 2 : 4; /* further away is no typing mistake */
    for (size_t i = 0; i < set->count; i++) {
        size_t distance = name_distance(name, set->entries[i].name);
        if (distance < least) {
            least = distance;
            nearest = set->entries[i].name;
        }
    }
    if (nearest)
        return err_hint(e, "is it '%s'?", nearest);
    return err_hint(e, set->directory
                           ? "a task is a directory that holds a task.toml; check the spelling"
                           : "check the spelling");
}

/* ---- Names ---- */

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct task_entry *)entry)->name);
}

static const char *last_part(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* A pattern without a slash is for the last part of a name too. */
static bool matches(const char *pattern, const char *name)
{
    if (fnmatch(pattern, name, 0) == 0)
        return true;
    return !strchr(pattern, '/') && fnmatch(pattern, last_part(name), 0) == 0;
}

/* Marks what a pattern names with `mark`; returns how many. */
static size_t mark_matches(const struct task_set *set, const char *pattern, bool *marks, bool mark)
{
    const struct task_entry *exact = NULL;
    if (set->count > 0) /* also the name that looks like a pattern */
        exact = bsearch(pattern, set->entries, set->count, sizeof(*set->entries), compare_name);
    if (exact) {
        marks[exact - set->entries] = mark;
        return 1;
    }
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (!matches(pattern, set->entries[i].name))
            continue;
        marks[i] = mark;
        count++;
    }
    return count;
}

static int mark_names(const struct task_set *set, const struct task_selection *s, bool *marks,
                      struct err *e)
{
    for (size_t i = 0; i < set->count; i++)
        marks[i] = s->name_count == 0;
    for (size_t i = 0; i < s->name_count; i++) {
        if (mark_matches(set, s->names[i], marks, true) == 0)
            return no_such_task(set, s->names[i], e);
    }
    for (size_t i = 0; i < s->exclude_count; i++) {
        if (mark_matches(set, s->excludes[i], marks, false) > 0)
            continue;
        if (glob_fault(s->excludes[i]))
            return no_such_task(set, s->excludes[i], e);
        log_event(LOG_WARN, "manifests", "--exclude %s: no such task", s->excludes[i]);
    }
    return 0;
}

/* ---- Shares ---- */

struct share_item {
    size_t entry;
    uint64_t cost;
};

/* The dearest first; equal ones in the order of their names. */
static int compare_items(const void *a, const void *b)
{
    const struct share_item *left = a;
    const struct share_item *right = b;
    if (left->cost != right->cost)
        return left->cost > right->cost ? -1 : 1;
    return left->entry < right->entry ? -1 : 1;
}

/* What is not known costs as much as the middle one of those that are. */
static void guess_costs(struct share_item *items, size_t count)
{
    size_t known = 0;
    while (known < count && items[known].cost > 0)
        known++;
    uint64_t middle = known > 0 ? items[known / 2].cost : 1;
    for (size_t i = known; i < count; i++)
        items[i].cost = middle;
}

/* Each item goes to the share with the least so far. */
static int take_share(const struct task_selection *s, struct share_item *items, size_t count,
                      bool *marks, struct err *e)
{
    AUTO_FREE uint64_t *loads = mem_array(s->shard_count, sizeof(*loads));
    if (!loads)
        return err_nomem(e, "shares");
    qsort(items, count, sizeof(*items), compare_items);
    guess_costs(items, count);
    qsort(items, count, sizeof(*items), compare_items);
    for (size_t i = 0; i < count; i++) {
        unsigned least = 0;
        for (unsigned n = 1; n < s->shard_count; n++) {
            if (loads[n] < loads[least])
                least = n;
        }
        loads[least] += items[i].cost;
        marks[items[i].entry] = least + 1 == s->shard;
    }
    return 0;
}

int task_select(const struct task_set *set, const struct task_selection *s, bool *marks,
                struct err *e)
{
    int rc = mark_names(set, s, marks, e);
    if (rc < 0 || s->shard_count < 2)
        return rc;
    AUTO_FREE struct share_item *items = mem_array(set->count + 1, sizeof(*items));
    if (!items)
        return err_nomem(e, "shares");
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (marks[i])
            items[count++] = (struct share_item){i, s->cost ? s->cost(s->ctx, i) : 0};
    }
    return take_share(s, items, count, marks, e);
}
