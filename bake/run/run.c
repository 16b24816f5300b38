/* SPDX-License-Identifier: MIT */
/*
 * A run: its tasks are chosen, then go through the scheduler's lanes until each is done or the run
 * is cancelled. One task's failure is that task's alone. Results depend on nothing but the tasks:
 * they share layers, tags and places through image_room and the lanes.
 */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "bake/bake.h"
#include "bake/common/blame.h"
#include "bake/common/run_lock.h"
#include "bake/common/slots.h"
#include "bake/guest/boot_image.h"
#include "bake/guest/machine_room.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/image/pins.h"
#include "bake/kernel.h"
#include "bake/push.h"
#include "bake/recipe/files.h"
#include "bake/recipe/secrets.h"
#include "bake/remote.h"
#include "bake/run/events.h"
#include "bake/run/history.h"
#include "bake/run/provider.h"
#include "bake/run/run.h"
#include "bake/run/schedule.h"
#include "bake/step/cache.h"
#include "bake/vm/tap.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    GUEST_MEMORY_DEFAULT_MB = 2048,
    JOBS_MAX = 64,
    NETWORK_DEFAULT = 16,
    SERVER_DEFAULT = 4,
    RETRIES_MIN = 4 /* of the whole run; more with many tasks */
};

static uint64_t machine_memory_mb(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_size = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_size > 0 ? (uint64_t)pages * (uint64_t)page_size >> 20 : 1024;
}

/* Half as many again as cores: of a machine's time about a third goes by in waiting, for the disk
 * and for what it started to become ready. */
unsigned bake_default_jobs(void)
{
    uint64_t by_memory = machine_memory_mb() * 3 / 4 / GUEST_MEMORY_DEFAULT_MB;
    uint64_t jobs = ((uint64_t)machine_cores() * 3 + 1) / 2;
    if (jobs > by_memory)
        jobs = by_memory;
    return jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : (unsigned)jobs;
}

static unsigned settle(unsigned wanted, unsigned fallback)
{
    unsigned value = wanted > 0 ? wanted : fallback;
    return value > JOBS_MAX ? JOBS_MAX : value;
}

struct bake_limits bake_settle_limits(const struct bake_limits *l)
{
    return (struct bake_limits){
        .cpu = settle(l->cpu, (unsigned)machine_cores()),
        .vm = settle(l->vm, bake_default_jobs()),
        .network = settle(l->network, NETWORK_DEFAULT),
        .server = settle(l->server, SERVER_DEFAULT),
        .memory_mb = l->memory_mb > 0 ? l->memory_mb : machine_memory_mb() * 3 / 4,
    };
}

/* ---- Opening and closing ---- */

static int open_server(struct run *run, struct err *e)
{
    const struct bake_options *o = run->options;
    if (!o->e2b_api_url || run->plan_only)
        return 0;
    if (o->images.offline) {
        log_event(LOG_WARN, "bake", "offline: nothing is registered at the template server");
        return 0;
    }
    struct e2b_options server = {.api_url = o->e2b_api_url,
                                 .api_key = o->e2b_api_key,
                                 .sandbox_url = o->e2b_sandbox_url,
                                 .cancel = &run->cancel};
    if (o->stage_limits_ms[STAGE_REGISTER] > 0)
        server.build_timeout_ms = o->stage_limits_ms[STAGE_REGISTER];
    return e2b_new(&run->server, &server, e);
}

static int open_remote(struct run *run, struct err *e)
{
    const struct bake_options *o = run->options;
    if (!o->remote_url || o->images.offline || run->plan_only)
        return 0;
    struct remote_options remote = {.url = o->remote_url,
                                    .docker_config = o->images.docker_config,
                                    .plain_http_hosts = o->images.plain_http_hosts,
                                    .lease_ms = o->remote_lease_ms,
                                    .cancel = &run->cancel};
    int rc = remote_open(&run->remote, run->store, &remote, e);
    run->images.remote = run->remote;
    return rc;
}

static int load_recipe(struct run *run, struct err *e)
{
    int rc = recipe_load(&run->recipe, run->options->recipe_path, e);
    if (rc < 0)
        return blame_input(e, "--recipe is the path of a recipe file or the name of a shipped one");
    rc = recipe_read_files(run->recipe, run->options->cancel, e);
    if (rc == 0)
        rc = secrets_open(&run->secrets, run->options->secrets, run->options->secret_count, e);
    if (rc == 0 && !run->plan_only)
        rc = secrets_check(run->secrets, run->recipe, e);
    if (rc < 0)
        return rc;
    return 0;
}

/* What grafts of images stand for is known: so the recipe is, as far as keys go. */
static int settle_recipe(struct run *run, struct err *e)
{
    int rc = graft_resolve(run->recipe, &run->images, run->pins, e);
    if (rc < 0)
        return rc;
    run->recipe_json = recipe_canonical(run->recipe);
    return run->recipe_json ? 0 : err_nomem(e, "recipe");
}

static void run_init(struct run *run, struct store *s, const struct bake_options *o, bool plan_only)
{
    *run = (struct run){.options = o, .store = s, .journal_fd = -1, .plan_only = plan_only};
    run->cancel = (struct cancel){.fd = cancel_fd(o->cancel)};
    run->limits = bake_settle_limits(&o->limits);
    if (o->tap) /* one machine at a time can have it */
        run->limits.vm = 1;
    pthread_mutex_init(&run->event_lock, NULL);
    pthread_mutex_init(&run->past_lock, NULL);
    slots_init(&run->network, run->limits.network);
    slots_init(&run->cpu, run->limits.cpu);
    step_claims_init(&run->step_claims);
}

static int open_machines(struct run *run, struct err *e)
{
    const struct bake_options *o = run->options;
    struct machine_wants wants = {.cache_dir = o->cache_dir,
                                  .driver = o->vmm,
                                  .accel = o->accel,
                                  .cpu_template = o->cpu_template,
                                  .cancel = &run->cancel};
    for (size_t i = 0; i < run->count; i++) {
        const struct baking *b = &run->bakings[i];
        wants.user_network =
            wants.user_network || (b->task && b->recipe && b->task->allow_internet &&
                                   b->recipe->network == RECIPE_NETWORK_USER);
    }
    int rc = o->tap && !run->plan_only ? tap_open(&run->tap, o->tap, e) : 0;
    if (rc == 0)
        rc = machine_room_open(&run->machines, run->store, &wants, e);
    if (o->tap)
        run->machines.tap = &run->tap;
    return rc;
}

/* Kernel and VMM are part of every task's key; what is missing is missing for all of them. */
static int run_open(struct run *run, struct bake_report *out, struct err *e)
{
    const struct bake_options *o = run->options;
    int rc = cancel_limited_init(&run->cancel, o->cancel, e);
    if (rc == 0)
        rc = load_recipe(run, e);
    if (rc == 0)
        rc = history_load(&run->history, run->store, e);
    if (rc == 0)
        rc = pins_open(&run->pins, &o->pins, e);
    if (rc == 0)
        rc = image_room_open(&run->images, run->store, &o->images, &run->cancel, e);
    run->images.pins = run->pins;
    run->images.network = &run->network;
    if (rc == 0)
        rc = settle_recipe(run, e);
    if (rc == 0)
        rc = open_remote(run, e);
    if (rc == 0)
        rc = open_server(run, e);
    if (rc == 0 && o->push_to && !run->plan_only)
        rc = push_open(&run->push, run->store,
                       &(struct push_options){.format = o->push_format,
                                              .compression = o->push_compression,
                                              .in_run = true,
                                              .images = o->images,
                                              .cancel = &run->cancel},
                       e);
    if (rc == 0)
        rc = run_choose_tasks(run, out, e);
    if (rc == 0 && out->count > 0 && o->images.offline)
        rc = guest_kernel_check(o->cache_dir, e);
    if (rc == 0 && out->count > 0)
        rc = open_machines(run, e);
    if (rc == 0 && out->count > 0 && !o->no_boot_image)
        rc = machine_room_use_boot_images(&run->machines, e);
    out->vm_jobs = run->limits.vm;
    return rc;
}

static void run_close(struct run *run)
{
    machine_room_close(&run->machines);
    image_room_close(&run->images);
    remote_close(run->remote);
    push_close(run->push);
    e2b_free(run->server);
    for (size_t i = 0; i < run->count; i++) {
        struct baking *b = &run->bakings[i];
        task_free(b->task);
        recipe_free(b->own_recipe);
        json_free(b->own_recipe_json);
        free(b->given_alias);
    }
    free(run->bakings);
    provider_free(run->provider);
    task_set_free(run->set);
    pins_free(run->pins);
    history_free(run->history);
    json_free(run->past);
    json_free(run->recipe_json);
    recipe_free(run->recipe);
    secrets_free(run->secrets);
    slots_fini(&run->network);
    slots_fini(&run->cpu);
    step_claims_fini(&run->step_claims);
    pthread_mutex_destroy(&run->event_lock);
    pthread_mutex_destroy(&run->past_lock);
    file_close(&run->journal_fd);
    cancel_limited_fini(&run->cancel);
}

/* ---- Tasks ---- */

uint64_t bake_free_mb(const struct store *s)
{
    struct statvfs v;
    if (fstatvfs(store_dir(s), &v) < 0)
        return UINT64_MAX;
    return (uint64_t)v.f_bavail * (uint64_t)v.f_frsize >> 20;
}

static uint64_t free_disk_mb(void *ctx)
{
    const struct run *run = ctx;
    return bake_free_mb(run->store);
}

/* More threads make disks than work at once: they wait for layers that another one is making. */
static int run_tasks(struct run *run, struct err *e)
{
    const struct bake_limits *l = &run->limits;
    const struct schedule_lane lanes[LANE_COUNT] = {
        [LANE_RESOLVE] = {.workers = l->network},
        [LANE_DISK] = {.workers = l->network + l->cpu},
        [LANE_VM] = {.workers = l->vm, .memory_mb = l->memory_mb, .room = free_disk_mb},
        [LANE_SERVER] = {.workers = l->server, .goes_on = true},
    };
    const struct schedule_options options = {
        .ops = {.work = task_work, .drop = task_drop},
        .ctx = run,
        .lanes = lanes,
        .lane_count = LANE_COUNT,
        .drain = run->options->drain,
        .stop = run->options->cancel,
    };
    atomic_store(&run->unresolved, run->count);
    atomic_store(&run->retries_left, RETRIES_MIN + (int)(run->count / 10));
    return schedule_run(&options, run->count, task_first, e);
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

static int fill_report(struct bake_report *out, struct run *run, int64_t start_ms, struct err *e)
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
    out->vm_tasks = atomic_load(&run->vm_tasks);
    out->layers_ingested = atomic_load(&run->images.ingested);
    if (run->remote)
        out->remote = describe_remote(run->remote);
    out->store = store_stats(run->store);
    return pins_moves(run->pins, &out->moves, &out->move_count, e);
}

/* Images that no task has any more leave the lock file when all tasks were asked for. */
static int save_pins(struct run *run, const struct bake_report *r, struct err *e)
{
    bool all =
        run->whole_set && run->options->pins.update && run->options->pins.update_name_count == 0;
    for (size_t i = 0; i < r->count; i++)
        all &= r->results[i].manifest[0] != 0;
    return run->plan_only && !run->options->pins.update ? 0 : pins_save(run->pins, all, e);
}

static int finish_run(struct run *run, struct bake_report *out, int64_t start_ms, struct err *e)
{
    struct traffic_watch *watch = NULL;
    int rc = traffic_watch_start(&watch, run, e);
    if (rc == 0)
        rc = run_tasks(run, e);
    traffic_watch_stop(watch);
    if (rc == 0)
        rc = fill_report(out, run, start_ms, e);
    return rc < 0 ? rc : save_pins(run, out, e);
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
    run_init(&run, s, o, false);
    rc = run_open(&run, out, e);
    if (rc == 0 && out->count > 0)
        rc = journal_open(&run, &out->journal, e);
    run.journal = out->journal;
    if (rc == 0) {
        run_event(&run, &(struct bake_event){.kind = EVENT_RUN_STARTED, .count = out->count});
        rc = finish_run(&run, out, start_ms, e);
    }
    if (rc == 0)
        run_event(&run, &(struct bake_event){
                            .kind = EVENT_RUN_FINISHED, .count = out->count, .report = out});
    run_close(&run);
    if (rc < 0)
        bake_report_fini(out);
    return rc;
}

int bake_plan(struct bake_report *out, struct store *s, const struct bake_options *o, struct err *e)
{
    int64_t start_ms = clock_ms();
    *out = (struct bake_report){0};
    struct run run;
    run_init(&run, s, o, true);
    int rc = run_open(&run, out, e);
    if (rc == 0)
        rc = finish_run(&run, out, start_ms, e);
    run_close(&run);
    if (rc < 0)
        bake_report_fini(out);
    return rc;
}

bool bake_is_rate_limited(const struct bake_report *r)
{
    bool limited = false;
    for (size_t i = 0; i < r->count; i++) {
        const struct bake_task_result *result = &r->results[i];
        if (result->outcome != OUTCOME_FAILED)
            continue;
        if (result->err.class != ERR_RATE)
            return false;
        limited = true;
    }
    return limited;
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
        free_text(r->results[i].image);
        free_text(r->results[i].why);
        free_text(r->results[i].pushed);
        free_text(r->results[i].console);
    }
    free(r->results);
    for (size_t i = 0; i < r->move_count; i++)
        free(r->moves[i].image);
    free(r->moves);
    free(r->journal);
    json_free(r->remote);
    *r = (struct bake_report){0};
}
