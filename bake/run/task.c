/* SPDX-License-Identifier: MIT */
/*
 * One task through its lanes: resolve (requests), disk (transfers, processors), VM, server. What is
 * done is found again by key: the template's record for the whole, layer files and maps for the
 * parts, so nothing here has to know how far an earlier run got, and a task keeps next to nothing
 * while it waits for its next lane.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bake/bake.h"
#include "bake/common/once.h"
#include "bake/common/slots.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/image/pins.h"
#include "bake/image/remote_layers.h"
#include "bake/remote/remote.h"
#include "bake/run/events.h"
#include "bake/run/history.h"
#include "bake/run/run.h"
#include "bake/run/schedule.h"
#include "bake/template.h"
#include "bake/template/copy.h"
#include "bake/template/record.h"
#include "bake/template/remote_template.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    TRIES_MAX = 3,              /* of a lane's work, the first included */
    RETRY_MS = 5000,            /* before the second try; twice as long before the third */
    RETRY_WAIT_MAX_MS = 600000, /* a far end that wants more patience has it from the next run */
    BYTES_PER_MS = 20000,       /* of a pull, to guess how long one takes */
    PUT_OFF_MS = 2000,          /* between two looks at what another baker does */
};

static void task_progress(void *ctx, uint64_t bytes)
{
    struct baking *b = ctx;
    b->result->pulled_size += bytes;
    baking_progress(b, b->result->pulled_size, b->transfer_total);
}

/* ---- Resolve ---- */

/* The key, and whether a template with it is there and complete enough to be used. */
static int look_up(struct baking *b, struct err *e)
{
    struct key_inputs in = {
        .task = b->task, .image = b->image, .recipe = b->recipe_json, .room = &b->run->machines};
    bool found = false;
    int rc = template_key(&b->key, &in, e);
    if (rc == 0 && !b->run->options->force)
        rc = template_find_key(b->run->store, &b->key, &found, &b->record, e);
    if (rc < 0 || !found)
        return rc;
    struct err why = ERR_INIT;
    if (template_load_record(&b->template, b->run->store, &b->record, &why) < 0) {
        log_event(LOG_WARN, "bake", "task %s: baking again: %s", b->result->task, why.text);
        return 0;
    }
    b->unchanged = true;
    return 0;
}

/* As look_up, in the remote store too: taken over from there it is as good as baked before, and if
 * nobody has it, nobody else will bake it now. */
static int look_around(struct baking *b, struct err *e)
{
    struct run *run = b->run;
    bool busy = false;
    int rc = look_up(b, e);
    if (rc < 0 || b->unchanged || !run->remote || run->options->force)
        return rc;
    rc = remote_template_begin(run->remote, &b->key, &busy, e);
    if (rc == 0)
        rc = look_up(b, e);
    if (rc == 0 && busy && !b->unchanged && !b->put_off)
        baking_output(b, "another baker is at it: put off");
    b->put_off = busy && !b->unchanged;
    return rc;
}

static uint64_t layers_size(const struct image *i)
{
    uint64_t size = 0;
    for (size_t n = 0; n < i->manifest.layer_count; n++) {
        if (mem_add_u64(size, i->manifest.layers[n].size, &size))
            return UINT64_MAX >> 1;
    }
    return size;
}

/* Bytes of the layers that are not in the store. */
static uint64_t missing_size(const struct baking *b)
{
    uint64_t size = 0;
    for (size_t i = 0; i < b->image->manifest.layer_count; i++) {
        if (!layer_has(b->run->store, &b->image->config.diff_ids[i]) &&
            mem_add_u64(size, b->image->manifest.layers[i].size, &size))
            return UINT64_MAX >> 1;
    }
    return size;
}

/* For a task that is to be baked: why, how much is to be pulled, how long it may take. */
static int estimate(struct baking *b, struct err *e)
{
    struct bake_task_result *r = b->result;
    const struct history *h = b->run->history;
    const struct past_task *past = history_find(h, r->task);
    r->missing_size = missing_size(b);
    r->estimate_ms = history_ms(past, STAGE_PULL);
    if (r->estimate_ms == 0)
        r->estimate_ms = h->typical_ms;
    char *why = NULL;
    int rc = task_why(b, &why, e);
    if (rc == 0)
        r->why = why;
    return rc;
}

static int resolve(struct baking *b, struct err *e)
{
    baking_stage(b, STAGE_RESOLVE);
    int rc = image_resolve(&b->image, &b->run->images, b->task->image, e);
    if (rc == 0)
        digest_print(&b->image->manifest.digest, b->result->manifest);
    if (rc == 0 &&
        pins_note(b->run->pins, b->task->image, &b->image->root, layers_size(b->image), e) < 0)
        rc = err_in(e, "image %s", b->task->image);
    if (rc == 0)
        rc = look_around(b, e);
    if (rc == 0 && !b->unchanged)
        rc = estimate(b, e);
    if (rc == 0 && !b->unchanged && b->run->plan_only)
        rc = warm_plan(b, e);
    return rc;
}

/* Tags are written down as soon as the last one is known. */
static void note_resolved(struct baking *b)
{
    struct run *run = b->run;
    struct err e = ERR_INIT;
    if (b->resolved)
        return;
    b->resolved = true;
    if (atomic_fetch_sub(&run->unresolved, 1) == 1 && !run->plan_only &&
        pins_save(run->pins, false, &e) < 0)
        log_event(LOG_WARN, "bake", "%s", e.text);
}

/* ---- Disk ---- */

/* The image again: what is known of it by now is in the store. */
static int image_again(struct baking *b, struct err *e)
{
    return b->image ? 0 : image_resolve(&b->image, &b->run->images, b->task->image, e);
}

/* Pulls and ingests what is ours to do; *waiting: other bakers are at the rest. */
static int fetch_layers(struct baking *b, bool *waiting, struct err *e)
{
    struct image_room *room = &b->run->images;
    int rc = remote_image_begin(room->remote, b->image, waiting, e);
    if (rc == 0) {
        baking_stage(b, STAGE_PULL);
        rc = image_pull(b->image, room, &(struct registry_progress){task_progress, b}, e);
    }
    if (rc == 0) {
        baking_stage(b, STAGE_INGEST);
        rc = image_ingest(b->image, room, e);
    }
    return remote_image_end(room->remote, b->image, rc, e);
}

static int make_disk(struct baking *b, struct err *e)
{
    struct image_room *room = &b->run->images;
    int rc = image_again(b, e);
    if (rc == 0)
        rc = image_drop_damaged(b->image, room, e);
    if (rc < 0)
        return rc;
    b->transfer_total = missing_size(b);
    unsigned round = 0;
    bool waiting = true;
    while (rc == 0 && waiting) {
        rc = fetch_layers(b, &waiting, e);
        if (rc == 0 && waiting)
            rc = remote_wait(room->remote, &round, e);
    }
    if (rc < 0)
        return rc;
    rc = graft_prepare(b->image, room, b->recipe, e);
    if (rc < 0)
        return rc;
    baking_stage(b, STAGE_ASSEMBLE);
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    rc = slots_enter(&b->run->cpu, room->cancel, e);
    if (rc < 0)
        return rc;
    rc = image_assemble(b->image, room, b->task->storage_mb << 20, &disk, &b->base, e);
    slots_leave(&b->run->cpu);
    if (rc == 0)
        digest_print(&b->base, b->result->base_disk);
    return rc;
}

/* ---- VM ---- */

/* Boot to proof, holding one place for VMs throughout: the proof's VM starts when the first one is
 * gone. */
static int warm_and_prove(struct baking *b, struct err *e)
{
    struct run *run = b->run;
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    AUTO_JSON struct json *document = NULL;
    int rc = image_again(b, e);
    if (rc == 0)
        rc = graft_prepare(b->image, &run->images, b->recipe, e);
    if (rc == 0)
        rc = store_get_map(run->store, &b->base, &disk, e);
    if (rc < 0)
        return rc;
    atomic_fetch_add(&run->vm_tasks, 1);
    rc = warm_task(b, disk, &b->base, &b->key, &document, e);
    if (rc < 0)
        return rc;
    baking_stage(b, STAGE_PROVE);
    AUTO_TEMPLATE struct template *t = NULL;
    struct proof proof;
    rc = template_from_document(&t, document, e);
    if (rc == 0)
        rc = prove_template(t, &run->machines, document, &proof, e);
    return rc < 0 ? rc : template_put(run->store, &b->key, document, &b->record, e);
}

/* Tasks that differ in nothing but their names have one template; the first of them makes it. */
static int make_template(struct baking *b, struct err *e)
{
    char digest[DIGEST_TEXT_MAX];
    AUTO_FREE char *key = mem_printf("template %s", digest_print(&b->key, digest));
    if (!key)
        return err_nomem(e, digest);
    bool mine = false;
    int rc = once_begin(b->run->images.once, key, &mine, &b->record, e);
    if (rc < 0 || !mine)
        return rc;
    rc = warm_and_prove(b, e);
    if (rc < 0) {
        stage_limit_explain(b, e); /* to those who wait for it, too */
        stage_limit_end(b->run);
    }
    once_end(b->run->images.once, key, rc, &b->record, e);
    return rc;
}

/* ---- Register ---- */

static int register_task(struct baking *b, struct err *e)
{
    baking_stage(b, STAGE_REGISTER);
    /* What the server builds from, what is told to the remote store. */
    int rc = b->run->server || b->run->remote ? image_again(b, e) : 0;
    if (rc == 0 && !b->template)
        rc = template_load_record(&b->template, b->run->store, &b->record, e);
    if (rc == 0) /* tasks that have all in common but their names share a record */
        rc = template_rename(b->template, b->result->alias, b->task->name, e);
    if (rc < 0)
        return rc;
    digest_print(&b->template->base_disk, b->result->base_disk);
    digest_print(&b->template->disk, b->result->disk);
    rc = register_template(b, b->template, e);
    remote_template_publish(b->run->remote, b->template, b->image);
    return rc;
}

/* ---- Lanes ---- */

static void let_go(struct baking *b)
{
    template_free(MOVE(b->template));
    image_free(MOVE(b->image));
}

static struct schedule_next finish(struct baking *b, enum bake_outcome outcome)
{
    struct bake_task_result *r = b->result;
    r->outcome = outcome;
    if (outcome == OUTCOME_FAILED || outcome == OUTCOME_CANCELLED) {
        err_in(&r->err, "task %s: %s", r->task, bake_stage_name(r->stage));
        if (b->key.algorithm)
            remote_template_drop(b->run->remote, &b->key);
    }
    baking_finish(b);
    let_go(b);
    return (struct schedule_next){.finished = true};
}

/* How much work is ahead of the task, in any unit that is the same for all: from earlier runs, else
 * what a task takes on the whole, and what its image's size adds. */
static int64_t ahead_ms(const struct baking *b, enum lane lane)
{
    static const enum bake_stage from[LANE_COUNT] = {[LANE_RESOLVE] = STAGE_PULL,
                                                     [LANE_DISK] = STAGE_PULL,
                                                     [LANE_VM] = STAGE_BOOT,
                                                     [LANE_SERVER] = STAGE_REGISTER};
    const struct past_task *past = history_find(b->run->history, b->result->task);
    if (past && past->baked)
        return history_ms(past, from[lane]);
    int64_t ms = b->result->estimate_ms;
    if (lane <= LANE_DISK)
        ms += (int64_t)(b->result->missing_size / BYTES_PER_MS);
    return ms;
}

static struct schedule_next go_on(struct baking *b, enum lane lane, int64_t delay_ms)
{
    if (lane != b->lane)
        b->attempts = 0;
    b->lane = lane;
    let_go(b);
    return (struct schedule_next){.lane = lane,
                                  .ahead_ms = ahead_ms(b, lane),
                                  .memory_mb = lane == LANE_VM ? b->task->memory_mb : 0,
                                  .delay_ms = delay_ms};
}

/* What failed may be tried again a little later, while other tasks go on: requests only, a few
 * times, and not so often in the whole run that an outage is made worse. Steps may have had
 * effects: from the boot on nothing is repeated. */
static bool try_again(struct baking *b, int64_t *delay_ms)
{
    const struct err *why = &b->result->err;
    if (b->lane == LANE_VM || b->run->plan_only || !err_retryable(why) ||
        ++b->attempts >= TRIES_MAX || cancel_is_set(b->run->options->drain))
        return false;
    *delay_ms = (int64_t)RETRY_MS << (b->attempts - 1);
    if (why->retry_after_ms > *delay_ms)
        *delay_ms = why->retry_after_ms;
    return *delay_ms <= RETRY_WAIT_MAX_MS && atomic_fetch_sub(&b->run->retries_left, 1) > 0;
}

static struct schedule_next fail(struct baking *b)
{
    struct err *e = &b->result->err;
    stage_limit_explain(b, e);
    if (e->class == ERR_CANCELLED)
        return finish(b, OUTCOME_CANCELLED);
    int64_t delay_ms = 0;
    if (!try_again(b, &delay_ms))
        return finish(b, OUTCOME_FAILED);
    baking_retried(b, e);
    err_clear(e);
    b->result->pulled_size = 0;
    return go_on(b, b->lane, delay_ms);
}

struct schedule_next task_first(void *ctx, size_t index)
{
    struct run *run = ctx;
    struct baking *b = &run->bakings[index];
    if (b->result->err.class != ERR_NONE) {
        atomic_fetch_sub(&run->unresolved, 1);
        return finish(b, OUTCOME_FAILED);
    }
    return go_on(b, LANE_RESOLVE, 0);
}

/* Registering in the local catalog takes no time: it needs no place of its own. */
static struct schedule_next go_register(struct baking *b)
{
    struct run *run = b->run;
    if (run->server && b->lane != LANE_SERVER) {
        baking_wait(b);
        return go_on(b, LANE_SERVER, 0);
    }
    if (register_task(b, &b->result->err) < 0)
        return fail(b);
    return finish(b, b->unchanged ? OUTCOME_UNCHANGED : OUTCOME_READY);
}

static struct schedule_next work_resolve(struct baking *b)
{
    int rc = resolve(b, &b->result->err);
    if (rc < 0 && err_retryable(&b->result->err)) {
        struct schedule_next next = fail(b);
        if (next.finished)
            note_resolved(b);
        return next;
    }
    note_resolved(b);
    if (rc < 0)
        return fail(b);
    if (b->run->plan_only)
        return finish(b, b->unchanged ? OUTCOME_UNCHANGED : OUTCOME_PENDING);
    if (b->unchanged)
        return go_register(b);
    baking_wait(b);
    return b->put_off ? go_on(b, LANE_RESOLVE, PUT_OFF_MS) : go_on(b, LANE_DISK, 0);
}

static struct schedule_next work(struct run *run, struct baking *b)
{
    if (cancel_check(&run->cancel, &b->result->err) < 0)
        return fail(b);
    switch (b->lane) {
    case LANE_RESOLVE:
        return work_resolve(b);
    case LANE_DISK:
        if (make_disk(b, &b->result->err) < 0)
            return fail(b);
        baking_wait(b);
        return go_on(b, LANE_VM, 0);
    case LANE_VM:
        return make_template(b, &b->result->err) < 0 ? fail(b) : go_register(b);
    case LANE_SERVER:
    case LANE_COUNT:
        break;
    }
    return go_register(b);
}

struct schedule_next task_work(void *ctx, size_t index)
{
    struct run *run = ctx;
    struct schedule_next next = work(run, &run->bakings[index]);
    stage_limit_end(run);
    return next;
}

void task_drop(void *ctx, size_t index)
{
    struct run *run = ctx;
    struct baking *b = &run->bakings[index];
    err_set(&b->result->err, ERR_CANCELLED, "cancelled");
    finish(b, OUTCOME_CANCELLED);
}
