/* SPDX-License-Identifier: MIT */
/*
 * The layers of an image in a remote store. In all of these `r` may be NULL: no remote store, nothing to do. One
 * that fails is logged, and done without.
 */
#ifndef TB2_BAKE_IMAGE_REMOTE_LAYERS_H
#define TB2_BAKE_IMAGE_REMOTE_LAYERS_H

#include <stdbool.h>

#include "base/digest.h"
#include "base/err.h"

struct image;
struct remote;

/* Takes over the image's layers that the remote store has, claims those that nobody has; *waiting:
 * some are left to someone else (image->shares), and to be asked for again. */
int remote_image_begin(struct remote *r, struct image *i, bool *waiting, struct err *e) MUST_USE;
/* Publishes what was claimed and is in the store now, gives the claims back. `result` (with its error
 * in `e`) is that of the work in between; it is returned. */
int remote_image_end(struct remote *r, const struct image *i, int result, struct err *e) MUST_USE;
bool remote_has_layer(struct remote *r, const struct digest *diff_id);

/* For remote_taken. */
int remote_take_layer(struct remote *r, const struct digest *diff_id, struct err *e) MUST_USE;

#endif
