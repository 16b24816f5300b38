/* SPDX-License-Identifier: MIT */
/* The step cache: disks as they were after steps (docs/decisions/0026-step-cache.md). */
#ifndef TB2_BAKE_STEP_CACHE_H
#define TB2_BAKE_STEP_CACHE_H

#include <pthread.h>
#include <stdbool.h>

#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"

struct block_map;
struct guest_context;
struct guest_options;
struct machine_room;
struct recipe;
struct recipe_step;
struct store;

/* ---- Results in the store (cache.c) ---- */

/* Keys of results, each of what comes before it: of an assembled disk in a machine, then of one step
 * after another, with the context that it runs in. */
int step_key_begin(struct digest *key, const struct machine_room *r, const struct guest_options *o,
                   const struct digest *base_disk, struct err *e) MUST_USE;
int step_key_next(struct digest *key, const struct recipe *r, const struct recipe_step *step,
                  const struct guest_context *c, struct err *e) MUST_USE;

/* The disk as it was after the step with this key, if the store has all that it changed of `base`;
 * else *out is NULL. */
int step_find(struct block_map **out, struct store *s, const struct digest *key,
              const struct block_map *base, struct err *e) MUST_USE;
/* Keeps it; not durably. */
int step_put(struct store *s, const struct digest *key, const struct block_map *disk,
             struct err *e) MUST_USE;
void step_forget(struct store *s, const struct digest *key);

/* The disk that a step's result is, checked. Does not mark it as used. */
int step_peek(struct digest *disk, struct store *s, const struct digest *key,
              struct err *e) MUST_USE;

/* ---- Steps under way (claims.c) ---- */

/* Steps that tasks of this process are running. Thread-safe. */
struct step_claim;
struct step_claims {
    pthread_mutex_t lock;
    pthread_cond_t released;
    struct step_claim *first;
};
void step_claims_init(struct step_claims *c);
void step_claims_fini(struct step_claims *c);
/* *mine: nobody was running it, and now the caller is, until step_release. */
int step_claim(struct step_claims *c, const struct digest *key, bool *mine, struct err *e) MUST_USE;
void step_release(struct step_claims *c, const struct digest *key);
/* Returns when nobody is running it. */
int step_wait(struct step_claims *c, const struct digest *key, const struct cancel *cancel,
              struct err *e) MUST_USE;

#endif
