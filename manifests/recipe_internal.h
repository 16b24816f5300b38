/* SPDX-License-Identifier: MIT */
/* Shared by the files that decode recipes: tables of keys, one per kind of mapping. */
#ifndef TB2_MANIFESTS_RECIPE_INTERNAL_H
#define TB2_MANIFESTS_RECIPE_INTERNAL_H

#include "manifests/internal.h"

struct decoder {
    const char *path;
    struct recipe *recipe;
    struct recipe_step *step; /* the one being read */
};

struct key {
    const char *name;
    int (*read)(struct decoder *d, const struct node *value, struct err *e);
};

/* Reads each key of the mapping by the table's function; what the table does not name is an error
 * that lists what it does. */
int recipe_read_mapping(struct decoder *d, const struct node *node, const char *what,
                        const struct key *keys, size_t count, struct err *e) MUST_USE;

/* An account's name or number, perhaps with :group; `key` stands in errors. */
int recipe_read_account(char **out, const struct decoder *d, const char *key,
                        const struct node *value, struct err *e) MUST_USE;

/* recipe_steps.c */
int recipe_read_steps(struct decoder *d, const struct node *value, struct err *e) MUST_USE;
void recipe_step_fini(struct recipe_step *step);

/* recipe_files.c: the values of `copy` and `graft` in d->step. */
int recipe_read_copy(struct decoder *d, const struct node *value, struct err *e) MUST_USE;
int recipe_read_graft(struct decoder *d, const struct node *value, struct err *e) MUST_USE;
void recipe_files_free(struct recipe_files *f);

#endif
