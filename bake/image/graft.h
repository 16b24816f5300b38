/* SPDX-License-Identifier: MIT */
/* Grafts: directories, tarballs and images, laid over the layers of an image when its disk is assembled. */
#ifndef TB2_BAKE_IMAGE_GRAFT_H
#define TB2_BAKE_IMAGE_GRAFT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/digest.h"
#include "base/err.h"

struct image;
struct image_room;
struct oci_layer;
struct oci_tree;
struct pins;
struct recipe;
struct recipe_files;

/* Finds out what grafts of images stand for, for their digests (has_content): before
 * recipe_canonical. */
int graft_resolve(struct recipe *r, struct image_room *room, struct pins *pins,
                  struct err *e) MUST_USE;
/* Steps from the first on whose grafts are laid when the disk is assembled, without a guest. `native`: the
 * image is. */
size_t graft_head(const struct recipe *r, bool native);
/* The layers that the graft of a step becomes, in order, for free(): made unless the store has them.
 * Several tasks make them once. */
int graft_make(struct digest **ids, size_t *count, struct image_room *room,
               const struct recipe_files *f, struct err *e) MUST_USE;
/* Bytes of the graft's own path in the paths of its layers' entries. */
size_t graft_path_len(const struct recipe_files *f);
/* Sets image->grafts: names of layers, of which not one need be there. */
int graft_name(struct image *i, struct image_room *room, const struct recipe *r,
               struct err *e) MUST_USE;
/* The same, and makes the layers. */
int graft_prepare(struct image *i, struct image_room *room, const struct recipe *r,
                  struct err *e) MUST_USE;
/* Takes out of a graft's layer the directories that are there in `below` by way of a link. ERR_INPUT
 * where a file would replace a directory, or the other way round. */
int graft_fit(struct oci_layer *graft, const struct oci_tree *below, struct err *e) MUST_USE;

#endif
