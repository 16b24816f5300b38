/* SPDX-License-Identifier: MIT */
/* Templates on a template server, tried out in sandboxes. */
#ifndef TB2_BAKE_SMOKE_H
#define TB2_BAKE_SMOKE_H

#include "bake/template.h"
#include "manifests/manifest.h"
#include "registry/registry.h"

struct smoke_item {
    const char *alias;
    char *command; /* shell text that must succeed; for free() */
    struct e2b_smoke_result result;
    struct err err; /* class ERR_NONE: it works */
};

/* Tries all out, `jobs` at a time; what came of it is in the items. */
void smoke_all(struct e2b *server, struct smoke_item *items, size_t count, unsigned jobs);

/* Shell text that succeeds when a ready check passes, for bash; "true" where there is none. For
 * free(); NULL when memory is short. */
char *smoke_command(const struct recipe_ready *ready);
/* The same of a template's own check. */
int smoke_template_command(char **out, const struct template *t, struct err *e) MUST_USE;

/* "resolve", "create", "exec", "destroy". */
const char *smoke_stage_name(enum e2b_smoke_stage stage);

#endif
