/* SPDX-License-Identifier: MIT */
/* Kept copies: how they get into the store. */
#ifndef TB2_BAKE_TEMPLATE_KEPT_H
#define TB2_BAKE_TEMPLATE_KEPT_H

#include "bake/template.h"
#include "base/err.h"
#include "base/json.h"

struct block_map;
struct guest;
struct secret_set;
struct store;

struct kept_reason {
    const char *name;                 /* of the copy; one that has it is replaced */
    const char *text;                 /* for people: why it is there */
    const struct secret_set *secrets; /* that must not be in it; NULL: none */
};
/* As guest_snapshot; then the copy is in the store, with a document made from this one. */
int kept_snapshot(struct guest *g, const struct block_map *base, const struct json *document,
                  const struct kept_reason *why, struct err *e) MUST_USE;
int kept_put(struct store *s, const char *name, const struct json *document,
             struct err *e) MUST_USE;

/* A kept copy by its file name. */
int kept_peek_file(struct template **out, struct store *s, const char *file_name,
                   struct err *e) MUST_USE;

#endif
