/* SPDX-License-Identifier: MIT */
/* The ready check as a record keeps it. */
#ifndef TB2_BAKE_TEMPLATE_READY_H
#define TB2_BAKE_TEMPLATE_READY_H

#include "base/err.h"
#include "base/json.h"
#include "manifests/manifest.h"

int ready_decode(struct recipe_ready *out, const struct json *document, struct err *e) MUST_USE;
struct json *ready_encode(const struct recipe_ready *r);
void ready_fini(struct recipe_ready *r);

#endif
