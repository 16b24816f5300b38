/* SPDX-License-Identifier: MIT */
/* Files of the host that steps of a recipe lay. */
#ifndef TB2_BAKE_RECIPE_FILES_H
#define TB2_BAKE_RECIPE_FILES_H

#include "bake/host_tree.h"
#include "manifests/manifest.h"

/* Lists what a copy step, or a graft of a directory, lays. */
int recipe_files_open(struct host_tree **out, const struct recipe_files *f, const struct cancel *c,
                      struct err *e) MUST_USE;

#endif
