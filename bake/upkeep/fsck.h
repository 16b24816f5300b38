/* SPDX-License-Identifier: MIT */
/* Private to bake/upkeep: what checking a store (fsck.c) and mending it (fsck_repair.c) share. */
#ifndef TB2_BAKE_UPKEEP_FSCK_H
#define TB2_BAKE_UPKEEP_FSCK_H

#include "bake/upkeep/census.h"

#define FSCK_KEPT "kept copy " /* and its name: such an owner */

/* A template's record, or a layer: what people know a map by. */
struct fsck_owner {
    char *name;           /* alias, or "record HEX", or "layer DIGEST", ... */
    struct digest record; /* of a template */
    bool is_template;
    bool damaged; /* a problem affects it */
};

/* That an owner has a map. */
struct fsck_use {
    struct digest map;
    size_t owner;
};

struct fsck {
    struct store *store;
    const struct fsck_options *options;
    struct fsck_report *report;
    struct census census; /* flags: number of the problem with the file, from 1 */
    struct fsck_owner *owners;
    size_t owner_count, owner_capacity;
    struct fsck_use *uses; /* sorted by map */
    size_t use_count, use_capacity;
    struct digest *names; /* of the problems: what is bad */
    size_t name_capacity;
    size_t problem_capacity;
};

/* Adds a problem with `f`; `why` says what is wrong. *number is its number, from 1. */
int fsck_add(struct fsck *k, enum upkeep_kind kind, struct census_file *f, const char *why,
             struct err *e) MUST_USE;
/* Notes that problem `number` affects this owner. */
int fsck_affects(struct fsck *k, uint32_t number, size_t owner, struct err *e) MUST_USE;

/* Mends what can be mended; sets the state and the advice of each problem. */
int fsck_repair(struct fsck *k, struct err *e) MUST_USE;

#endif
