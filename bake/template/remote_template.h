/* SPDX-License-Identifier: MIT */
/*
 * Templates in a remote store. In all of these `r` may be NULL: no remote store, nothing to do. One that fails is
 * logged, and done without.
 */
#ifndef TB2_BAKE_TEMPLATE_REMOTE_TEMPLATE_H
#define TB2_BAKE_TEMPLATE_REMOTE_TEMPLATE_H

#include <stdbool.h>

#include "base/digest.h"
#include "base/err.h"

struct image;
struct remote;
struct template;

/* The template with this key: taken over (then the store has it), or claimed, or *busy: someone else
 * makes it. */
int remote_template_begin(struct remote *r, const struct digest *key, bool *busy,
                          struct err *e) MUST_USE;
/* Publishes a template unless the remote store has it, and its catalog entry; gives the claim back.
 * `image` may be NULL. */
void remote_template_publish(struct remote *r, const struct template *t, const struct image *image);
void remote_template_drop(struct remote *r, const struct digest *key);

/* For remote_taken. */
int remote_take_template(struct remote *r, const struct digest *key, struct err *e) MUST_USE;

#endif
