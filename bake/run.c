/* SPDX-License-Identifier: MIT */
/*
 * A run: tasks handed to `jobs` threads in the order of their names, until none is left or the run
 * is cancelled. One task's failure is that task's alone. Results depend on nothing but the tasks:
 * the threads share layers, tags and VM places through image_room and vm_gate.
 */
#include "bake/pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { GUEST_MEMORY_DEFAULT_MB = 2048, JOBS_MAX = 64 };

static uint64_t machine_memory_mb(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_size = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_size > 0 ? (uint64_t)pages * (uint64_t)page_size >> 20 : 1024;
}

unsigned bake_default_jobs(void)
{
    uint64_t by_memory = machine_memory_mb() * 3 / 4 / GUEST_MEMORY_DEFAULT_MB;
    uint64_t jobs = machine_cores();
    if (jobs > by_memory)
        jobs = by_memory;
    return jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : (unsigned)jobs;
}

/* What a person named and is not there, or is something else, is a mistake in the input. */
static int blame_input(struct err *e, const char *hint)
{
    if (e->class == ERR_NOTFOUND || e->sys == ENOTDIR || e->sys == EISDIR) {
        e->class = ERR_INPUT;
        err_hint(e, "%s", hint);
    }
    return -(int)e->class;
}

/* ---- Opening and closing ---- */

static int open_server(struct run *run, struct err *e)
{
    const struct bake_options *o = run->options;
    if (!o->e2b_api_url)
        return 0;
    if (o->images.offline) {
        log_event(LOG_WARN, "bake", "offline: nothing is registered at %s", o->e2b_api_url);
        return 0;
    }
    struct e2b_options server = {
        .api_url = o->e2b_api_url, .api_key = o->e2b_api_key, .cancel = o->cancel};
    return e2b_new(&run->server, &server, e);
}

static int open_remote(struct run *run, struct err *e)
{
    const struct bake_options *o = run->options;
    if (!o->remote_url || o->images.offline)
        return 0;
    struct remote_options remote = {.url = o->remote_url,
                                    .docker_config = o->images.docker_config,
                                    .plain_http_hosts = o->images.plain_http_hosts,
                                    .lease_ms = o->remote_lease_ms,
                                    .cancel = o->cancel};
    int rc = remote_open(&run->remote, run->store, &remote, e);
    run->images.remote = run->remote;
    return rc;
}

static int run_open(struct run *run, struct store *s, const struct bake_options *o, struct err *e)
{
    *run = (struct run){.options = o, .store = s, .journal_fd = -1};
    pthread_mutex_init(&run->event_lock, NULL);
    vm_gate_init(&run->gate, o->jobs ? o->jobs : bake_default_jobs(), machine_memory_mb() * 3 / 4);
    int rc = recipe_load(&run->recipe, o->recipe_path, e);
    if (rc < 0)
        return blame_input(e, "--recipe is the path of a recipe file or the name of a shipped one");
    run->recipe_json = recipe_canonical(run->recipe);
    if (!run->recipe_json)
        return err_nomem(e, "recipe");
    rc = image_room_open(&run->images, s, &o->images, o->cancel, e);
    if (rc == 0)
        rc = open_remote(run, e);
    if (rc == 0)
        rc = open_server(run, e);
    return rc;
}

static void run_close(struct run *run)
{
    machine_room_close(&run->machines);
    image_room_close(&run->images);
    remote_close(run->remote);
    e2b_free(run->server);
    json_free(run->recipe_json);
    recipe_free(run->recipe);
    vm_gate_fini(&run->gate);
    pthread_mutex_destroy(&run->event_lock);
    file_close(&run->journal_fd);
}

/* ---- Tasks ---- */

static bool has_name(char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

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

static int no_such_task(const struct bake_options *o, const char *name, char *const *names,
                        size_t count, struct err *e)
{
    err_set(e, ERR_INPUT, "task '%s' is not in %s", name, o->tasks_dir);
    const char *nearest = NULL;
    size_t least = strlen(name) < 8 ? strlen(name) / 2 : 4; /* further away is no typing mistake */
    for (size_t i = 0; i < count; i++) {
        size_t distance = name_distance(name, names[i]);
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    if (nearest)
        return err_hint(e, "is it '%s'?", nearest);
    return err_hint(e, "a task is a directory that holds a task.toml; check the spelling");
}

static int add_result(struct bake_report *out, const char *name, struct err *e)
{
    char *copy = mem_strdup(name);
    if (!copy)
        return err_nomem(e, "task list");
    out->results[out->count++] = (struct bake_task_result){.task = copy, .err = ERR_INIT};
    return 0;
}

/* The tasks wanted, in the order of their names, each once. */
static int select_tasks(struct bake_report *out, const struct bake_options *o, char *const *names,
                        size_t count, struct err *e)
{
    for (size_t i = 0; o->names && i < o->name_count; i++) {
        if (has_name(names, count, o->names[i]))
            continue;
        return no_such_task(o, o->names[i], names, count, e);
    }
    out->results = mem_array(count, sizeof(*out->results));
    if (!out->results)
        return err_nomem(e, "task list");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bool wanted = !o->names;
        for (size_t n = 0; !wanted && n < o->name_count; n++)
            wanted = strcmp(o->names[n], names[i]) == 0;
        if (wanted)
            rc = add_result(out, names[i], e);
    }
    return rc;
}

static int list_tasks(struct bake_report *out, const struct bake_options *o, struct err *e)
{
    char **names = NULL;
    size_t count = 0;
    int rc = task_list(&names, &count, o->tasks_dir, e);
    if (rc < 0)
        return blame_input(e, "--tasks-dir is the directory that holds the tasks' directories");
    rc = select_tasks(out, o, names, count, e);
    if (rc == 0 && out->count == 0) {
        err_set(e, ERR_INPUT, "no tasks in %s", o->tasks_dir);
        rc = err_hint(e, "a task is a directory that holds a task.toml");
    }
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    return rc;
}

struct work {
    struct run *run;
    struct bake_report *report;
    atomic_size_t next;
};

static void *work_thread(void *self)
{
    struct work *w = self;
    for (;;) {
        size_t n = atomic_fetch_add(&w->next, 1);
        if (n >= w->report->count)
            return NULL;
        if (w->report->results[n].outcome != OUTCOME_PENDING)
            continue; /* done in the first round */
        bake_task(w->run, &w->report->results[n]);
    }
}

/* Runs the tasks on up to `jobs` threads, of which the caller is one. */
static void run_tasks(struct run *run, struct bake_report *report)
{
    struct work w = {.run = run, .report = report};
    size_t jobs = run->gate.slots;
    if (jobs > report->count)
        jobs = report->count;
    pthread_t threads[JOBS_MAX];
    size_t started = 0;
    while (started + 1 < jobs && started < JOBS_MAX &&
           pthread_create(&threads[started], NULL, work_thread, &w) == 0)
        started++;
    work_thread(&w);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static struct json *describe_remote(const struct remote *remote)
{
    struct remote_stats s = remote_stats(remote);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"layers_taken", s.layers_taken},
                   {"templates_taken", s.templates_taken},
                   {"layers_sent", s.layers_sent},
                   {"templates_sent", s.templates_sent},
                   {"chunks_sent", s.chunks_sent},
                   {"chunk_bytes_sent", s.chunk_bytes_sent},
                   {"chunks_fetched", s.chunks_fetched},
                   {"chunk_bytes_fetched", s.chunk_bytes_fetched},
                   {"requests", s.requests},
                   {"claims_lost", s.claims_lost}};
    struct json *j = json_new_object();
    json_set(j, "name", json_new_string(remote_name(remote)));
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        json_set(j, numbers[i].name, json_new_integer((int64_t)numbers[i].value));
    return j;
}

static void fill_report(struct bake_report *out, struct run *run, int64_t start_ms)
{
    out->wall_ms = clock_ms() - start_ms;
    struct registry_stats stats = {0};
    if (run->images.registry)
        stats = registry_stats(run->images.registry);
    out->manifest_heads = stats.manifest_heads;
    out->manifest_gets = stats.manifest_gets;
    out->blob_gets = stats.blob_gets;
    out->blob_bytes = stats.blob_bytes;
    out->mirrored = stats.mirrored;
    out->rate_waits = stats.rate_waits;
    out->has_quota = stats.has_quota;
    out->quota_remaining = stats.quota_remaining;
    out->quota_limit = stats.quota_limit;
    out->vm_tasks = run->gate.entered;
    out->layers_ingested = atomic_load(&run->images.ingested);
    if (run->remote)
        out->remote = describe_remote(run->remote);
    out->store = store_stats(run->store);
}

int run_lock(int *fd, struct store *s, struct err *e)
{
    int rc = file_lock(fd, store_dir(s), "run.lock", true, false, e);
    if (rc == -ERR_BUSY) {
        err_set(e, ERR_BUSY, "another bake is using the store %s", store_path(s));
        return err_hint(e, "wait for it to end, or use another store (--store)");
    }
    return rc;
}

int bake_run(struct bake_report *out, struct store *s, const struct bake_options *o, struct err *e)
{
    int64_t start_ms = clock_ms();
    *out = (struct bake_report){0};
    AUTO_FD int lock = -1;
    int rc = run_lock(&lock, s, e);
    if (rc < 0)
        return rc;
    if (o->force)
        store_distrust(s);
    if (o->compression_level)
        store_set_compression_level(s, o->compression_level);
    struct run run;
    rc = run_open(&run, s, o, e);
    if (rc == 0)
        rc = list_tasks(out, o, e);
    /* Kernel and VMM are part of every task's key; what is missing is missing for all of them. */
    if (rc == 0 && o->images.offline)
        rc = guest_kernel_check(o->cache_dir, e);
    if (rc == 0)
        rc = machine_room_open(&run.machines, s, o->cache_dir, o->accel, o->cancel, e);
    if (rc == 0)
        rc = journal_open(&run, &out->journal, e);
    if (rc == 0) {
        run_event(&run, &(struct bake_event){.kind = EVENT_RUN_STARTED, .count = out->count});
        run_tasks(&run, out);
        run.patient = true; /* what other bakers were at is left; that is waited for */
        if (run.remote)
            run_tasks(&run, out);
        fill_report(out, &run, start_ms);
        run_event(&run, &(struct bake_event){
                            .kind = EVENT_RUN_FINISHED, .count = out->count, .report = out});
    }
    run_close(&run);
    if (rc < 0)
        bake_report_fini(out);
    return rc;
}

static void free_text(const char *text)
{
    char *held;
    memcpy(&held, &text, sizeof(held));
    free(held);
}

void bake_report_fini(struct bake_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        free_text(r->results[i].task);
        free_text(r->results[i].alias);
    }
    free(r->results);
    free(r->journal);
    json_free(r->remote);
    *r = (struct bake_report){0};
}
