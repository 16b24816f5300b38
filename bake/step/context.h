/* SPDX-License-Identifier: MIT */
/* What a program in a guest runs with. */
#ifndef TB2_BAKE_STEP_CONTEXT_H
#define TB2_BAKE_STEP_CONTEXT_H

#include <stddef.h>

#include "base/err.h"

/* Environment, work directory and user, as steps change them. */
struct guest_context {
    char **env; /* NULL-terminated, sorted by name */
    size_t env_count;
    size_t env_capacity;
    char *workdir;
    char *user;
};
/* Sets or replaces a variable. */
int guest_context_set(struct guest_context *c, const char *name, const char *value,
                      struct err *e) MUST_USE;
int guest_context_set_pair(struct guest_context *c, const char *pair, struct err *e) MUST_USE;
void guest_context_fini(struct guest_context *c);

#endif
