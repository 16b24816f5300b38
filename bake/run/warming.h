/* SPDX-License-Identifier: MIT */
/* Private to bake/run: a task on its way from an assembled disk to a ready guest (make_template.c, cached_steps.c). One
 * thread, that of the task. */
#ifndef TB2_BAKE_RUN_WARMING_H
#define TB2_BAKE_RUN_WARMING_H

#include "bake/guest/guest.h"
#include "bake/run/run.h"
#include "bake/step/context.h"
#include "bake/step/steps.h"

struct warming {
    struct baking *b;
    const struct block_map *base; /* as assembled; borrowed */
    /* What the guest is to be booted from: base, or what the cache had; borrowed. */
    const struct block_map *boot;
    struct block_map *cached; /* what `boot` is, unless it is base */
    struct block_map *sealed; /* the disk as of the last seal; NULL: as booted */
    struct guest_options options;
    struct guest_context context; /* for step `next` */
    struct step_run run;
    size_t head;         /* steps before it are laid with the disk, or touch none */
    size_t next;         /* first step that has not been run */
    struct digest key;   /* of what the steps before it made */
    struct digest claim; /* of the step under way, while `claimed` */
    bool claimed;
    struct json *keys; /* of the results that this template is made of, in order */
    /* The context before the first step. */
    int (*initial)(struct guest_context *c, const struct baking *b, struct err *e);
};

/* b, base, head, options, initial and of run recipe, tap and context are set, the rest is zero. Finds what is
 * there, and waits for what other tasks are making; w->options.disk is not set by this. */
int warming_begin(struct warming *w, const struct digest *base_disk, struct err *e) MUST_USE;
/* Instead: *count is the number of first steps that warming_begin would take from the cache. */
int warming_look(struct warming *w, const struct digest *base_disk, size_t *count,
                 struct err *e) MUST_USE;
/* The steps that are left, in a guest that was booted from w->boot. */
int warming_run(struct warming *w, struct guest *g, struct err *e) MUST_USE;
/* The disk as of the last seal; borrowed until the next. */
const struct block_map *warming_disk(const struct warming *w);
void warming_fini(struct warming *w); /* after the guest is gone */
#define AUTO_WARMING CLEANUP(warming_fini)

#endif
