/* SPDX-License-Identifier: MIT */
/* tb2-bake server ls|rm|diff: what the template server has, against what a set of tasks needs. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bake_arguments.h"

enum { ALIAS_DIGITS = 10 };

struct arguments {
    struct bake_arguments bake;
    bool prune;
    bool yes;
};

static int take_prune(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->prune = true;
    return 0;
}

static int take_yes(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->yes = true;
    return 0;
}

static int take_recipe_from(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->bake.bake.recipe_from = value;
    return 0;
}

static const struct option_row rows[] = {
    {NULL, NULL, "diff: which templates of a set the server lacks, and which it has too many.",
     NULL},
    {"tasks-dir", "DIR", "directories that hold a task.toml, at any depth", take_tasks_dir},
    SELECTION_OPTION_ROWS,
    {"recipe", "FILE", "recipe, or the name of a shipped one", take_recipe},
    {"recipe-from", "CMD", "ask CMD for recipes and aliases, as for a bake", take_recipe_from},
    {"prune", NULL, "list what would be removed: stale, failed, orphaned", take_prune},
    {"yes", NULL, "with --prune: remove it", take_yes},
    IMAGE_OPTION_ROWS,
    {NULL, NULL, NULL, NULL},
};

/* ---- ls, rm ---- */

static int list_json(const struct e2b_entry *entries, size_t count, struct err *e)
{
    AUTO_JSON struct json *list = json_new_array();
    for (size_t i = 0; i < count; i++) {
        struct json *j = json_new_object();
        json_set(j, "alias", json_new_string(entries[i].alias));
        json_set(j, "template_id", json_new_string(entries[i].template_id));
        json_set(j, "status", json_new_string(entries[i].status));
        json_set(j, "cpus", json_new_integer((int64_t)entries[i].cpus));
        json_set(j, "memory_mb", json_new_integer((int64_t)entries[i].memory_mb));
        json_set(j, "disk_mb", json_new_integer((int64_t)entries[i].disk_mb));
        if (entries[i].created)
            json_set(j, "created", json_new_string(entries[i].created));
        json_append(list, j);
    }
    return print_json(list, e);
}

static void list_text(const struct e2b_entry *entries, size_t count)
{
    int width = 5;
    for (size_t i = 0; i < count; i++)
        width = (int)strlen(entries[i].alias) > width ? (int)strlen(entries[i].alias) : width;
    printf("%-*s  %-8s  %4s  %9s  %9s  %s\n", width, "ALIAS", "STATUS", "CPUS", "MEMORY MB",
           "DISK MB", "ID");
    for (size_t i = 0; i < count; i++)
        printf("%-*s  %-8s  %4llu  %9llu  %9llu  %s\n", width, entries[i].alias, entries[i].status,
               (unsigned long long)entries[i].cpus, (unsigned long long)entries[i].memory_mb,
               (unsigned long long)entries[i].disk_mb, entries[i].template_id);
}

static int run_list(struct e2b *server, const struct global_options *g, struct err *e)
{
    struct e2b_entry *entries = NULL;
    size_t count = 0;
    int rc = e2b_list(server, &entries, &count, e);
    if (rc == 0 && g->json)
        rc = list_json(entries, count, e);
    else if (rc == 0)
        list_text(entries, count);
    e2b_entries_free(entries, count);
    return rc < 0 ? report_error(e) : EXIT_ALL_READY;
}

static int run_remove(struct e2b *server, char **aliases, int count)
{
    int status = EXIT_ALL_READY;
    for (int i = 0; i < count; i++) {
        struct err e = ERR_INIT;
        if (e2b_remove(server, aliases[i], &e) == 0) {
            printf("removed %s\n", aliases[i]);
            continue;
        }
        int failed = report_error(&e);
        status = e.class == ERR_CANCELLED ? failed : EXIT_SOME_FAILED;
        if (e.class == ERR_CANCELLED)
            break;
    }
    return status;
}

/* ---- diff ---- */

enum state {
    STATE_READY,
    STATE_MISSING,
    STATE_BUILDING,
    STATE_STALE,
    STATE_FAILED,
    STATE_ORPHANED
};

static const char *const state_names[] = {
    [STATE_READY] = "ready", [STATE_MISSING] = "missing", [STATE_BUILDING] = "building",
    [STATE_STALE] = "stale", [STATE_FAILED] = "failed",   [STATE_ORPHANED] = "orphaned",
};

struct line {
    const char *alias;
    const char *task; /* NULL: none of the set */
    const char *why;
    enum state state;
    bool remove; /* --prune would */
};

struct diff {
    struct bake_report report;
    struct e2b_entry *entries;
    size_t entry_count;
    struct line *lines;
    size_t count;
};

static void diff_fini(struct diff *d)
{
    bake_report_fini(&d->report);
    e2b_entries_free(d->entries, d->entry_count);
    free(d->lines);
}

static const struct e2b_entry *find_entry(const struct diff *d, const char *alias)
{
    for (size_t i = 0; i < d->entry_count; i++) {
        if (strcmp(d->entries[i].alias, alias) == 0)
            return &d->entries[i];
    }
    return NULL;
}

static enum state state_of(const char *status)
{
    if (strcmp(status, "ready") == 0 || strcmp(status, "uploaded") == 0)
        return STATE_READY;
    return strcmp(status, "error") == 0 ? STATE_FAILED : STATE_BUILDING;
}

/* Length of "tb2-<slug>" in an alias by the rule; 0: it is another's. What a replacement is called
 * until it takes over counts too. */
static size_t stem_len(const char *alias)
{
    if (strncmp(alias, "tb2-", 4) != 0)
        return 0;
    const char *next = strstr(alias, "-next");
    size_t len =
        next && (next[5] == '\0' || next[5] == '-') ? (size_t)(next - alias) : strlen(alias);
    if (len < 4 + 1 + ALIAS_DIGITS)
        return 0;
    const char *digits = alias + len - ALIAS_DIGITS;
    bool hex = digits[-1] == '-' && strspn(digits, "0123456789abcdef") >= ALIAS_DIGITS;
    return hex ? len - ALIAS_DIGITS - 1 : 0;
}

/* A task of the set, and what the server has for it. An image that moved under its tag keeps the
 * alias: then this store's last template of the task is of other inputs. */
static struct line line_of_task(const struct diff *d, const struct bake_task_result *r)
{
    const struct e2b_entry *entry = r->alias ? find_entry(d, r->alias) : NULL;
    struct line line = {.alias = r->alias ? r->alias : "-",
                        .task = r->task,
                        .state = entry ? state_of(entry->status) : STATE_MISSING};
    bool moved = r->outcome == OUTCOME_PENDING && r->why && strcmp(r->why, "new") != 0;
    if (line.state == STATE_READY && moved) {
        line.state = STATE_STALE;
        line.why = r->why;
    }
    if (r->outcome == OUTCOME_FAILED)
        line.why = r->err.text;
    line.remove = line.state == STATE_FAILED;
    return line;
}

/* Something on the server that no task of the set has for alias; false: it is none of ours. */
static bool line_of_entry(const struct diff *d, const struct e2b_entry *entry, struct line *out)
{
    size_t stem = stem_len(entry->alias);
    if (stem == 0)
        return false;
    *out = (struct line){.alias = entry->alias, .state = STATE_ORPHANED, .remove = true};
    for (size_t i = 0; i < d->report.count; i++) {
        const struct bake_task_result *r = &d->report.results[i];
        if (!r->alias)
            continue;
        if (strcmp(r->alias, entry->alias) == 0)
            return false;
        if (stem_len(r->alias) == stem && strncmp(r->alias, entry->alias, stem) == 0) {
            out->task = r->task;
            out->state = STATE_STALE;
        }
    }
    return true;
}

/* `whole`: all tasks were asked for; else nothing can be said of templates of other tasks. */
static int compare(struct diff *d, bool whole, struct err *e)
{
    d->lines = mem_array(d->report.count + d->entry_count + 1, sizeof(*d->lines));
    if (!d->lines)
        return err_nomem(e, "comparison");
    for (size_t i = 0; i < d->report.count; i++)
        d->lines[d->count++] = line_of_task(d, &d->report.results[i]);
    for (size_t i = 0; i < d->entry_count; i++) {
        struct line line;
        if (line_of_entry(d, &d->entries[i], &line) && (whole || line.task))
            d->lines[d->count++] = line;
    }
    return 0;
}

static int diff_json(const struct diff *d, struct err *e)
{
    AUTO_JSON struct json *list = json_new_array();
    for (size_t i = 0; i < d->count; i++) {
        const struct line *line = &d->lines[i];
        struct json *j = json_new_object();
        json_set(j, "alias", json_new_string(line->alias));
        json_set(j, "state", json_new_string(state_names[line->state]));
        if (line->task)
            json_set(j, "task", json_new_string(line->task));
        if (line->why)
            json_set(j, "why", json_new_string(line->why));
        json_set(j, "prune", json_new_bool(line->remove));
        json_append(list, j);
    }
    return print_json(list, e);
}

static void diff_text(const struct diff *d)
{
    int width = 5;
    for (size_t i = 0; i < d->count; i++)
        width = (int)strlen(d->lines[i].alias) > width ? (int)strlen(d->lines[i].alias) : width;
    printf("%-8s  %-*s  %s\n", "STATE", width, "ALIAS", "TASK");
    for (size_t i = 0; i < d->count; i++) {
        const struct line *line = &d->lines[i];
        printf("%-8s  %-*s  %s%s%s\n", state_names[line->state], width, line->alias,
               line->task ? line->task : "-", line->why ? ": " : "", line->why ? line->why : "");
    }
}

static int prune(const struct arguments *a, struct e2b *server, const struct diff *d,
                 const struct global_options *g)
{
    int status = EXIT_ALL_READY;
    for (size_t i = 0; i < d->count; i++) {
        const struct line *line = &d->lines[i];
        struct err e = ERR_INIT;
        if (!line->remove)
            continue;
        if (a->yes && e2b_remove(server, line->alias, &e) < 0) {
            report_error(&e);
            status = EXIT_SOME_FAILED;
            continue;
        }
        if (!g->json)
            printf("%s %s\n", a->yes ? "removed" : "would remove", line->alias);
    }
    return status;
}

/* 0: the server has what the set needs. */
static int diff_status(const struct diff *d)
{
    for (size_t i = 0; i < d->count; i++) {
        if (d->lines[i].state != STATE_READY)
            return EXIT_SOME_FAILED;
    }
    return EXIT_ALL_READY;
}

static int run_diff(struct arguments *a, struct e2b *server, struct global_options *g)
{
    struct err e = ERR_INIT;
    struct diff d = {.count = 0};
    struct bake_arguments *b = &a->bake;
    AUTO_STORE struct store *s = NULL;
    int rc = bake_arguments_select(b, &e);
    if (rc == 0)
        rc = bake_arguments_find_recipe(b, &e);
    if (rc == 0)
        rc = image_arguments_open(&b->images, g, &e);
    b->bake.images = b->images.options;
    b->bake.cache_dir = g->cache_dir;
    b->bake.accel = g->accel;
    b->bake.vmm = g->vmm;
    b->bake.cancel = g->cancel;
    if (rc == 0)
        rc = open_store(&s, g, &e);
    if (rc == 0)
        rc = bake_plan(&d.report, s, &b->bake, &e);
    if (rc == 0)
        rc = e2b_list(server, &d.entries, &d.entry_count, &e);
    bool whole = b->all && b->excludes.count == 0 && b->bake.tasks.shard_count == 0;
    if (rc == 0)
        rc = compare(&d, whole, &e);
    if (rc == 0 && g->json)
        rc = diff_json(&d, &e);
    else if (rc == 0)
        diff_text(&d);
    int status = rc < 0 ? report_error(&e) : diff_status(&d);
    if (rc == 0 && a->prune)
        status = prune(a, server, &d, g);
    diff_fini(&d);
    return status;
}

/* ---- The command ---- */

static int run_words(struct arguments *a, struct global_options *g, int argc, char **argv)
{
    struct err e = ERR_INIT;
    AUTO_E2B struct e2b *server = NULL;
    const char *word = optind < argc ? argv[optind++] : "";
    bool ls = strcmp(word, "ls") == 0;
    bool rm = strcmp(word, "rm") == 0;
    bool diff = strcmp(word, "diff") == 0;
    if (!ls && !rm && !diff)
        return usage_error(&command_server,
                           *word ? "'%s' is none of ls, rm, diff" : "ls, rm or diff?%s", word);
    if (rm && optind == argc)
        return usage_error(&command_server, "which templates? Their aliases are missing");
    if (!rm && optind < argc)
        return usage_error(&command_server, "'%s' is not expected here", argv[optind]);
    if (a->yes && !a->prune)
        return usage_error(&command_server, "--yes goes with --prune");
    if (server_access_open(&server, g, &e) < 0)
        return report_error(&e);
    if (ls)
        return run_list(server, g, &e);
    return rm ? run_remove(server, argv + optind, argc - optind) : run_diff(a, server, g);
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {.prune = false};
    int status = options_read(&command_server, g, &a, argc, argv);
    if (status < 0)
        status = run_words(&a, g, argc, argv);
    bake_arguments_fini(&a.bake);
    return status;
}

const struct command command_server = {
    .name = "server",
    .arguments = "ls | rm ALIAS... | diff --tasks-dir DIR (--all | --tasks NAME,...) [options]",
    .summary = "List, remove and compare the templates of the template server.",
    .options = rows,
    .notes =
        "STATE: missing; building; failed; stale, where the recipe or the image has moved on "
        "since;\n"
        "orphaned, where no task of the set has the name (only with --all). Templates whose names\n"
        "are not of the form tb2-TASK-DIGEST are never listed by diff nor removed by --prune.\n"
        "The server is that of E2B_API_URL or E2B_DOMAIN. Exit status of diff: 0 all is there and\n"
        "nothing more, 1 it is not.",
    .run = run,
};
