/* SPDX-License-Identifier: MIT */
/*
 * A golden replay of many tasks: tasks are chosen, their templates found in the catalog, and trials
 * go through the scheduler's one lane, that of VMs, with the limits that a bake has.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/common/blame.h"
#include "bake/golden.h"
#include "bake/golden/internal.h"
#include "bake/guest/guest.h"
#include "bake/guest/machine_room.h"
#include "bake/remote.h"
#include "bake/run/run.h"
#include "bake/run/schedule.h"
#include "bake/template.h"
#include "base/clock.h"
#include "base/mem.h"

/* A template of the catalog. */
struct known_template {
    char *alias;
    char *task;
};

struct replay {
    const struct golden_options *options;
    struct store *store;
    struct machine_room room;
    struct bake_limits limits;
    struct recipe *recipe; /* NULL: any */
    struct task_set *set;
    struct known_template *templates; /* sorted by task; not filled with a recipe */
    size_t template_count;
    struct golden_report *report;
    struct golden_task *tasks; /* one per result */
    pthread_mutex_t finished_lock;
};

/* ---- Names ---- */

static const char *const outcome_names[] = {
    [GOLDEN_PASSED] = "passed",
    [GOLDEN_FAILED] = "failed",
    [GOLDEN_ERROR] = "error",
    [GOLDEN_CANCELLED] = "cancelled",
};

const char *golden_outcome_name(enum golden_outcome outcome)
{
    return outcome_names[outcome];
}

static const char *const source_names[] = {
    [GOLDEN_NO_REWARD] = "none",
    [GOLDEN_REWARD_JSON] = "reward.json",
    [GOLDEN_REWARD_TEXT] = "reward.txt",
    [GOLDEN_STATUS] = "exit status",
};

const char *golden_source_name(enum golden_source source)
{
    return source_names[source];
}

bool golden_is_bad(const struct golden_result *r)
{
    return r->outcome == GOLDEN_ERROR || (r->outcome == GOLDEN_FAILED && !r->known_to_fail);
}

/* ---- JSON ---- */

static struct json *script_json(const struct golden_script *s)
{
    struct json *j = json_new_object();
    json_set(j, "wall_ms", json_new_integer(s->wall_ms));
    json_set(j, "limit_ms", json_new_integer(s->limit_ms));
    json_set(j, s->end.exited ? "status" : "signal", json_new_integer(s->end.status));
    json_set(j, "timed_out", json_new_bool(s->end.timed_out));
    return j;
}

struct json *golden_result_json(const struct golden_result *r)
{
    struct json *j = json_new_object();
    json_set(j, "event", json_new_string("trial_finished"));
    json_set(j, "task", json_bytes(r->task, strlen(r->task)));
    if (r->alias)
        json_set(j, "alias", json_new_string(r->alias));
    json_set(j, "outcome", json_new_string(golden_outcome_name(r->outcome)));
    json_set(j, "known_to_fail", json_new_bool(r->known_to_fail));
    json_set(j, "reward_from", json_new_string(golden_source_name(r->source)));
    if (r->source != GOLDEN_NO_REWARD)
        json_set(j, "reward", json_new_number(r->reward));
    json_set(j, "restore_ms", json_new_integer(r->restore_ms));
    if (r->solve.ran)
        json_set(j, "solve", script_json(&r->solve));
    if (r->test.ran)
        json_set(j, "test", script_json(&r->test));
    if (r->output)
        json_set(j, "output", json_bytes(r->output, strlen(r->output)));
    if (r->err.class != ERR_NONE) {
        json_set(j, "error_class", json_new_string(err_class_name(r->err.class)));
        json_set(j, "error", json_bytes(r->err.text, strlen(r->err.text)));
        json_set(j, "hint", json_new_string(r->err.hint));
    }
    return j;
}

/* ---- Choosing ---- */

static int open_inputs(struct replay *p, struct err *e)
{
    const struct golden_options *o = p->options;
    int rc = task_set_open(&p->set, o->tasks.tasks_dir, e);
    if (rc < 0)
        return blame_input(e, "--tasks-dir is the directory that holds the tasks' directories");
    if (p->set->count == 0) {
        err_set(e, ERR_INPUT, "no tasks in %s", p->set->source);
        return err_hint(e, "a task is a directory that holds a task.toml");
    }
    rc = o->recipe_path ? recipe_load(&p->recipe, o->recipe_path, e) : 0;
    return rc < 0 ? blame_input(
                        e, "--recipe is the path of a recipe file or the name of a shipped one")
                  : 0;
}

static int compare_templates(const void *a, const void *b)
{
    const struct known_template *left = a;
    const struct known_template *right = b;
    int order = strcmp(left->task, right->task);
    return order != 0 ? order : strcmp(left->alias, right->alias);
}

/* Which task each alias of the catalog is of. A damaged neighbour is nobody's. */
static int read_catalog(struct replay *p, struct err *e)
{
    char **aliases = NULL;
    size_t count = 0;
    int rc = template_list(&aliases, &count, p->store, e);
    p->templates = rc == 0 ? mem_array(count + 1, sizeof(*p->templates)) : NULL;
    if (rc == 0 && !p->templates)
        rc = err_nomem(e, "catalog");
    for (size_t i = 0; rc == 0 && i < count; i++) {
        AUTO_TEMPLATE struct template *t = NULL;
        struct err ignored = ERR_INIT;
        if (template_load(&t, p->store, aliases[i], &ignored) < 0)
            continue;
        struct known_template *k = &p->templates[p->template_count++];
        k->alias = mem_strdup(t->alias);
        k->task = mem_strdup(t->task);
        if (!k->alias || !k->task)
            rc = err_nomem(e, "catalog");
    }
    for (size_t i = 0; i < count; i++)
        free(aliases[i]);
    free(aliases);
    if (rc == 0 && p->template_count > 1)
        qsort(p->templates, p->template_count, sizeof(*p->templates), compare_templates);
    return rc;
}

/* The alias of the one template that the catalog has of the task. */
static int alias_of_catalog(struct replay *p, const char *task, char **out, struct err *e)
{
    size_t low = 0;
    size_t high = p->template_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(p->templates[middle].task, task) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const struct known_template *found = &p->templates[low];
    size_t left = p->template_count - low;
    if (left == 0 || strcmp(found->task, task) != 0) {
        err_set(e, ERR_NOTFOUND, "the catalog of %s has no template of it", store_path(p->store));
        return err_hint(e, "bake it first");
    }
    if (left > 1 && strcmp(found[1].task, task) == 0) {
        err_set(e, ERR_INPUT, "the catalog has several templates of it: %s, %s%s", found->alias,
                found[1].alias, left > 2 && strcmp(found[2].task, task) == 0 ? ", ..." : "");
        return err_hint(e, "say which with --recipe");
    }
    *out = mem_strdup(found->alias);
    return *out ? 0 : err_nomem(e, "task");
}

static int find_template(struct replay *p, struct golden_task *t, struct golden_result *r,
                         struct err *e)
{
    AUTO_TASK struct task *task = NULL;
    int rc = task_load(&task, t->directory, e);
    if (rc == 0)
        rc = p->recipe ? recipe_alias(&r->alias, p->recipe, task, e)
                       : alias_of_catalog(p, task->name, &r->alias, e);
    if (rc == 0)
        rc = template_load(&t->template, p->store, r->alias, e);
    struct remote *remote = p->options->remote;
    if (rc == 0 && remote)
        remote_use_template(remote, t->template);
    if (rc != -ERR_NOTFOUND || !remote || !r->alias)
        return rc;
    err_clear(e);
    rc = remote_pull_template(remote, r->alias, e);
    return rc < 0 ? rc : template_load(&t->template, p->store, r->alias, e);
}

/* What keeps a task from being tried is in its result alone. */
static int add_task(struct replay *p, const struct task_entry *entry, bool known, struct err *e)
{
    const struct golden_options *o = p->options;
    struct golden_result *r = &p->report->results[p->report->count];
    struct golden_task *t = &p->tasks[p->report->count];
    *r = (struct golden_result){.task = mem_strdup(entry->name),
                                .output = mem_printf("%s/%s", o->output_dir, entry->name),
                                .outcome = GOLDEN_CANCELLED,
                                .known_to_fail = known,
                                .err = ERR_INIT};
    *t = (struct golden_task){.options = o, .room = &p->room, .directory = entry->directory};
    p->report->count++;
    if (!r->task || !r->output)
        return err_nomem(e, "task list");
    int rc = find_template(p, t, r, &r->err);
    if (rc == 0)
        rc = task_trial_load(&t->trial, entry->directory, &r->err);
    if (rc == 0)
        rc = golden_check_variables(o, &t->trial->solve, "solve.sh", &r->err);
    if (rc == 0)
        rc = golden_check_variables(o, &t->trial->test, "test.sh", &r->err);
    if (rc < 0)
        r->outcome = GOLDEN_ERROR;
    return 0;
}

static int choose_tasks(struct replay *p, struct err *e)
{
    const struct golden_options *o = p->options;
    const struct task_selection wanted = bake_task_selection(&o->tasks);
    const struct task_selection known = {.names = o->known, .name_count = o->known_count};
    size_t count = p->set->count;
    AUTO_FREE bool *marks = mem_array(count, sizeof(*marks));
    AUTO_FREE bool *fails = mem_array(count, sizeof(*fails));
    p->report->results = mem_array(count, sizeof(*p->report->results));
    p->tasks = mem_array(count, sizeof(*p->tasks));
    if (!marks || !fails || !p->report->results || !p->tasks)
        return err_nomem(e, "task list");
    int rc = task_select(p->set, &wanted, marks, e);
    if (rc == 0 && o->known_count > 0) {
        rc = task_select(p->set, &known, fails, e);
        if (rc < 0)
            err_in(e, "tasks known to fail");
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (marks[i])
            rc = add_task(p, &p->set->entries[i], fails[i], e);
    }
    return rc;
}

/* ---- Trials ---- */

static void tell(struct replay *p, const struct golden_result *r)
{
    if (!p->options->finished)
        return;
    pthread_mutex_lock(&p->finished_lock);
    p->options->finished(p->options->ctx, r);
    pthread_mutex_unlock(&p->finished_lock);
}

static struct schedule_next first_lane(void *ctx, size_t i)
{
    struct replay *p = ctx;
    const struct golden_task *t = &p->tasks[i];
    const struct golden_result *r = &p->report->results[i];
    if (r->outcome == GOLDEN_ERROR) {
        tell(p, r);
        return (struct schedule_next){.finished = true};
    }
    /* How long a task takes is not known; its limits say what its author thought. */
    return (struct schedule_next){
        .ahead_ms = (int64_t)(t->trial->solve.timeout_ms + t->trial->test.timeout_ms),
        .memory_mb = t->template->memory_mb};
}

static struct schedule_next work(void *ctx, size_t i)
{
    struct replay *p = ctx;
    struct golden_result *r = &p->report->results[i];
    struct err e = ERR_INIT;
    if (golden_try(&p->tasks[i], r, &e) < 0) {
        r->outcome = e.class == ERR_CANCELLED ? GOLDEN_CANCELLED : GOLDEN_ERROR;
        r->err = e;
    }
    tell(p, r);
    return (struct schedule_next){.finished = true};
}

/* The outcome of one that never began is GOLDEN_CANCELLED. */
static void drop(void *ctx, size_t i)
{
    struct replay *p = ctx;
    struct golden_result *r = &p->report->results[i];
    err_set(&r->err, ERR_CANCELLED, "not begun: the run was told to stop");
    tell(p, r);
}

static uint64_t room_mb(void *ctx)
{
    const struct replay *p = ctx;
    return guest_memory_is_copied(&p->room) ? bake_free_mb(p->store) : UINT64_MAX;
}

static int run_trials(struct replay *p, struct err *e)
{
    const struct schedule_lane lane = {
        .workers = p->limits.vm, .memory_mb = p->limits.memory_mb, .room = room_mb};
    const struct schedule_options options = {
        .ops = {.work = work, .drop = drop},
        .ctx = p,
        .lanes = &lane,
        .lane_count = 1,
        .drain = p->options->drain,
        .stop = p->options->cancel,
    };
    return schedule_run(&options, p->report->count, first_lane, e);
}

/* ---- The run ---- */

static void replay_close(struct replay *p)
{
    machine_room_close(&p->room);
    recipe_free(p->recipe);
    for (size_t i = 0; p->tasks && i < p->report->count; i++) {
        task_trial_free(p->tasks[i].trial);
        template_free(p->tasks[i].template);
    }
    free(p->tasks);
    task_set_free(p->set);
    for (size_t i = 0; i < p->template_count; i++) {
        free(p->templates[i].alias);
        free(p->templates[i].task);
    }
    free(p->templates);
    pthread_mutex_destroy(&p->finished_lock);
}

static bool wants_machines(const struct golden_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        if (r->results[i].outcome != GOLDEN_ERROR)
            return true;
    }
    return false;
}

static int open_room(struct replay *p, struct err *e)
{
    const struct golden_options *o = p->options;
    struct machine_wants wants = {
        .cache_dir = o->cache_dir, .driver = o->vmm, .accel = o->accel, .cancel = o->cancel};
    for (size_t i = 0; !wants.made_by && i < p->report->count; i++)
        wants.made_by = p->tasks[i].template ? p->tasks[i].template->vmm : NULL;
    return machine_room_open(&p->room, p->store, &wants, e);
}

int golden_run(struct golden_report *out, struct store *s, const struct golden_options *o,
               struct err *e)
{
    int64_t start_ms = clock_ms();
    *out = (struct golden_report){0};
    struct replay p = {
        .options = o, .store = s, .report = out, .limits = bake_settle_limits(&o->limits)};
    pthread_mutex_init(&p.finished_lock, NULL);
    int rc = open_inputs(&p, e);
    if (rc == 0 && !p.recipe)
        rc = read_catalog(&p, e);
    if (rc == 0)
        rc = choose_tasks(&p, e);
    if (rc == 0 && wants_machines(out))
        rc = open_room(&p, e);
    if (rc == 0)
        rc = run_trials(&p, e);
    replay_close(&p);
    out->wall_ms = clock_ms() - start_ms;
    if (rc < 0)
        golden_report_fini(out);
    return rc;
}

void golden_report_fini(struct golden_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        free(r->results[i].task);
        free(r->results[i].alias);
        free(r->results[i].output);
    }
    free(r->results);
    *r = (struct golden_report){0};
}
