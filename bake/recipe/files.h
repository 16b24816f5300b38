/* SPDX-License-Identifier: MIT */
/* Files of the host that steps of a recipe lay. */
#ifndef TB2_BAKE_RECIPE_FILES_H
#define TB2_BAKE_RECIPE_FILES_H

#include "bake/recipe/host_tree.h"
#include "base/io.h"
#include "manifests/manifest.h"
#include "oci/oci.h"

/* Lists what a copy step, or a graft of a directory, lays; errors as those of host_tree_open. `f` and `c` are
 * borrowed for the life of *out, which the caller frees. */
int recipe_files_open(struct host_tree **out, const struct recipe_files *f, const struct cancel *c,
                      struct err *e) MUST_USE;

/* Reads what copy steps and grafts of directories and tarballs lay, for their digests (has_content): before
 * recipe_canonical. ERR_INPUT with the step's line. */
int recipe_read_files(struct recipe *r, const struct cancel *c, struct err *e) MUST_USE;

/* Opens a graft's tarball, for source_close; *d is what oci_layer_read is to be told of it, for
 * oci_descriptor_fini whatever the result. */
int recipe_tarball_open(struct source *out, struct oci_descriptor *d, const struct recipe_files *f,
                        struct err *e) MUST_USE;

#endif
