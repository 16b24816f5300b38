/* SPDX-License-Identifier: MIT */
/* Documents of the store: JSON that names others by their digests, and is named by its own. */
#ifndef TB2_BAKE_COMMON_DOCUMENT_H
#define TB2_BAKE_COMMON_DOCUMENT_H

#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"

/* Bumped when the same inputs would give other bytes: part of every key. */
enum { FORMAT_VERSION = 2 };

/* A digest as a JSON string; NULL when memory is short. */
struct json *json_digest(const struct digest *d);
/* The digest of a document's canonical text. */
int json_hash(struct digest *out, const struct json *j, struct err *e) MUST_USE;
/* The digest that a required member holds. */
int json_get_digest(const struct json *j, const char *key, struct digest *out,
                    struct err *e) MUST_USE;

/* Adds the member `check` to a catalog entry: the digest of its canonical text without it. */
int catalog_seal(struct json *entry, struct err *e) MUST_USE;

#endif
