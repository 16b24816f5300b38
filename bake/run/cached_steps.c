/* SPDX-License-Identifier: MIT */
/*
 * A recipe's steps in a guest, each from where the last ended up on the disk and nowhere else: what a
 * step leaves running is ended before the next, as an image build does, whether or not results are
 * kept. So a guest that boots from a kept disk and one that has run the steps are the same to the next
 * step, and the disk after a step is all of its result.
 *
 * Sealing: programs ended, disk frozen (which writes everything, and leaves the journal empty), what
 * changed since the last seal stored, thawed. The map that comes of it is the disk that the steps
 * after it are sealed against.
 */
#include <stdlib.h>

#include "bake/bake.h"
#include "bake/channel.h"
#include "bake/common/document.h"
#include "bake/guest/guest.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/run/events.h"
#include "bake/run/warming.h"
#include "bake/step/cache.h"
#include "bake/step/context.h"
#include "bake/step/steps.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* What changes the disk has a result; the others change what follows. */
static bool has_result(const struct warming *w, size_t i)
{
    const struct recipe_step *step = &w->run.recipe->steps[i];
    if (i < w->head) /* a graft here is part of the assembled disk */
        return false;
    return step->kind == RECIPE_RUN || step->kind == RECIPE_COPY || step->kind == RECIPE_GRAFT;
}

const struct block_map *warming_disk(const struct warming *w)
{
    return w->sealed ? w->sealed : w->boot;
}

static void tell_step(struct warming *w, size_t index, bool cached)
{
    struct baking *b = w->b;
    b->result->steps_cached += cached;
    b->result->steps_run += !cached;
    run_event(b->run, &(struct bake_event){.kind = EVENT_STEP,
                                           .result = b->result,
                                           .done = index + 1,
                                           .total = w->run.recipe->step_count,
                                           .cached = cached});
}

void warming_fini(struct warming *w)
{
    if (w->claimed)
        step_release(&w->b->run->step_claims, &w->claim);
    step_run_fini(&w->run);
    guest_context_fini(&w->context);
    block_map_free(w->cached);
    block_map_free(w->sealed);
    json_free(w->keys);
    *w = (struct warming){0};
}

/* ---- What is there already ---- */

/* The key of step `i`, for a context as it is before it. A directory that a work directory step makes
 * is part of what the steps after it see. */
static int key_of(struct warming *w, size_t i, struct digest *key, struct err *e)
{
    const struct recipe_step *step = &w->run.recipe->steps[i];
    if (!has_result(w, i) && step->kind != RECIPE_WORKDIR)
        return 0;
    return step_key_next(key, w->run.recipe, step, &w->context, e);
}

static int reset_context(struct warming *w, struct err *e)
{
    guest_context_fini(&w->context);
    return w->initial(&w->context, w->b, e);
}

/* All keys, and the last step whose result is there: *found (SIZE_MAX: none) with its disk. */
static int find_last(struct warming *w, struct digest *keys, size_t *found, struct err *e)
{
    const struct recipe *r = w->run.recipe;
    struct digest key = w->key;
    int rc = reset_context(w, e);
    for (size_t i = 0; rc == 0 && i < r->step_count; i++) {
        rc = key_of(w, i, &key, e);
        keys[i] = key;
        if (rc == 0)
            rc = guest_skip_step(&w->run, i, e);
    }
    *found = SIZE_MAX;
    block_map_free(MOVE(w->cached));
    for (size_t i = r->step_count; rc == 0 && !w->cached && i-- > 0;) {
        if (has_result(w, i))
            rc = step_find(&w->cached, w->b->run->store, &keys[i], w->base, e);
        if (w->cached)
            *found = i;
    }
    return rc;
}

/* The first step from `from` on that has a result; SIZE_MAX: none. */
static size_t next_result(const struct warming *w, size_t from)
{
    const size_t count = w->run.recipe->step_count;
    while (from < count && !has_result(w, from))
        from++;
    return from < count ? from : SIZE_MAX;
}

/* Steps that another task of this run is running now are waited for, each once: if that fails, this
 * task sees for itself why. */
static int look(struct warming *w, struct digest *keys, size_t *found, struct err *e)
{
    struct step_claims *claims = &w->b->run->step_claims;
    size_t waited = SIZE_MAX;
    for (;;) {
        int rc = find_last(w, keys, found, e);
        size_t next = next_result(w, *found == SIZE_MAX ? 0 : *found + 1);
        if (rc < 0 || next == SIZE_MAX || next == waited)
            return rc;
        rc = step_claim(claims, &keys[next], &w->claimed, e);
        w->claim = keys[next];
        if (rc < 0 || w->claimed)
            return rc;
        waited = next;
        rc = step_wait(claims, &keys[next], w->b->run->options->cancel, e);
        if (rc < 0)
            return rc;
    }
}

/* After the look: the context as of the first step that is to be run. */
static int take_up(struct warming *w, const struct digest *keys, size_t found, struct err *e)
{
    int rc = reset_context(w, e);
    w->next = found == SIZE_MAX ? 0 : found + 1;
    for (size_t i = 0; rc == 0 && i < w->next; i++) {
        rc = guest_skip_step(&w->run, i, e);
        if (has_result(w, i)) {
            json_append(w->keys, json_digest(&keys[i]));
            tell_step(w, i, true);
        }
    }
    if (w->next > 0)
        w->key = keys[found];
    if (w->cached)
        w->boot = w->cached;
    return rc;
}

/* `keys` holds one per step; NULL: memory is short. */
static int begin_keys(struct warming *w, struct digest *keys, const struct digest *base_disk,
                      struct err *e)
{
    return keys ? step_key_begin(&w->key, &w->b->run->machines, &w->options, base_disk, e)
                : err_nomem(e, "steps");
}

/* The disk before the first step, for who asks which steps have results. */
static int keep_base(struct warming *w, struct err *e)
{
    struct digest key;
    int rc = image_disk_key(&key, w->b->image, w->b->task->storage_mb << 20, e);
    if (rc == 0)
        rc = step_put(w->b->run->store, &key, w->base, e);
    if (rc == 0)
        json_append(w->keys, json_digest(&key));
    return rc;
}

int warming_begin(struct warming *w, const struct digest *base_disk, struct err *e)
{
    const struct bake_options *o = w->b->run->options;
    const size_t count = w->run.recipe->step_count;
    size_t found = SIZE_MAX;
    w->boot = w->base;
    w->keys = json_new_array();
    if (o->no_step_cache || count == 0)
        return reset_context(w, e);
    AUTO_FREE struct digest *keys = mem_array(count, sizeof(*keys));
    int rc = begin_keys(w, keys, base_disk, e);
    if (rc == 0)
        rc = keep_base(w, e);
    if (rc == 0 && o->force)
        return reset_context(w, e);
    if (rc == 0)
        rc = look(w, keys, &found, e);
    return rc < 0 ? rc : take_up(w, keys, found, e);
}

int warming_look(struct warming *w, const struct digest *base_disk, size_t *count, struct err *e)
{
    size_t found = SIZE_MAX;
    AUTO_FREE struct digest *keys = mem_array(w->run.recipe->step_count, sizeof(*keys));
    int rc = begin_keys(w, keys, base_disk, e);
    if (rc == 0)
        rc = find_last(w, keys, &found, e);
    *count = found == SIZE_MAX ? 0 : found + 1;
    return rc;
}

/* ---- What is run ---- */

/* With the guest frozen. */
static int keep_result(struct warming *w, struct guest *g, struct err *e)
{
    struct block_map *disk = NULL;
    int rc = guest_seal(g, warming_disk(w), &disk, e);
    if (rc < 0)
        return rc;
    block_map_free(w->sealed);
    w->sealed = disk;
    rc = step_put(g->room->store, &w->key, disk, e);
    if (rc == 0)
        json_append(w->keys, json_digest(&w->key));
    return rc;
}

/* The next step is claimed before this one is let go. */
static int claim_step(struct warming *w, struct err *e)
{
    struct step_claims *claims = &w->b->run->step_claims;
    bool mine = false;
    if (w->claimed && digest_equal(&w->claim, &w->key))
        return 0;
    int rc = step_claim(claims, &w->key, &mine, e);
    if (w->claimed)
        step_release(claims, &w->claim);
    w->claim = w->key;
    w->claimed = mine;
    return rc;
}

/* What leaves packages half installed is not kept: a guest that begins with them would take them for the
 * image's own. */
static int seal_step(struct warming *w, struct guest *g, struct err *e)
{
    int64_t start_ms = clock_ms();
    struct agent_packages packages = {0};
    int rc = agent_packages(g->agent, &packages, e);
    if (rc == 0 && !packages_are_whole(&g->packages, &packages))
        return 0;
    if (rc == 0)
        rc = agent_freeze(g->agent, e);
    if (rc == 0)
        rc = keep_result(w, g, e);
    if (rc == 0)
        rc = agent_thaw(g->agent, e);
    if (rc == 0)
        log_event(LOG_DEBUG, "bake", "sealed in %lld ms", (long long)(clock_ms() - start_ms));
    return rc < 0 ? err_in(e, "keeping the result") : 0;
}

static int run_one(struct warming *w, struct guest *g, size_t i, struct err *e)
{
    const bool result = has_result(w, i);
    const bool keep = !w->b->run->options->no_step_cache;
    int rc = keep ? key_of(w, i, &w->key, e) : 0;
    if (rc == 0 && keep && result)
        rc = claim_step(w, e);
    if (rc == 0)
        rc = i < w->head ? guest_skip_step(&w->run, i, e) : guest_run_step(g, &w->run, i, e);
    if (rc < 0 || !result)
        return rc;
    rc = agent_end_all(g->agent, e);
    if (rc == 0 && keep)
        rc = seal_step(w, g, e);
    if (rc < 0)
        return err_in(e, "step %zu of %zu", i + 1, w->run.recipe->step_count);
    tell_step(w, i, false);
    return 0;
}

int warming_run(struct warming *w, struct guest *g, struct err *e)
{
    /* On a disk that steps were at, it is as they left it. */
    int rc = w->boot == w->base ? agent_make_dirs(g->agent, w->context.workdir, 0755, e) : 0;
    for (; rc == 0 && w->next < w->run.recipe->step_count; w->next++)
        rc = run_one(w, g, w->next, e);
    if (w->claimed)
        step_release(&w->b->run->step_claims, &w->claim);
    w->claimed = false;
    return rc;
}
