/* SPDX-License-Identifier: MIT */
/* Recipes, looked at without baking. */
#ifndef TB2_BAKE_RECIPE_H
#define TB2_BAKE_RECIPE_H

#include "base/cancel.h"
#include "base/err.h"
#include "base/json.h"

/* Reads a recipe, the files that it lays and what is in the tarballs among them; *canonical, for json_free, is
 * all of it that can change a template. Nothing of an image that it grafts is looked at. */
int recipe_inspect(struct json **canonical, const char *path, const struct cancel *c,
                   struct err *e) MUST_USE;

#endif
