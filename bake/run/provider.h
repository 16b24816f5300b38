/* SPDX-License-Identifier: MIT */
/* Recipe providers: a program that says what each task is built from. */
#ifndef TB2_BAKE_RUN_PROVIDER_H
#define TB2_BAKE_RUN_PROVIDER_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/cancel.h"
#include "base/err.h"

struct baking;
struct task_set;

struct provider_options {
    const char *command; /* for sh; with {}, once for each task, else once for all */
    const struct task_set *set;
    const bool *marks; /* entries of the set that are selected */
    const struct cancel *cancel;
};
struct provider;
int provider_open(struct provider **out, const struct provider_options *o, struct err *e) MUST_USE;
void provider_free(struct provider *p);
DEFINE_AUTO(provider, provider_free)
#define AUTO_PROVIDER CLEANUP(provider_free_auto_)
/* Gives a task, which was read, the image, user, size, recipe and alias that it is told. */
int provider_apply(const struct provider *p, struct baking *b, struct err *e) MUST_USE;
/* Says so where a provider's alias is another than the rule's. */
void provider_compare_alias(const struct baking *b, const char *ours);

#endif
