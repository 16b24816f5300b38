/* SPDX-License-Identifier: MIT */
/*
 * Private to bake/remote.
 *
 *              remote.c  claims.c      the remote store; who does what
 *                |
 *     tree.c  oci.c                    files and chunks: objects, or artifacts of a registry
 */
#ifndef TB2_BAKE_REMOTE_INTERNAL_H
#define TB2_BAKE_REMOTE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/remote/remote.h"
#include "base/attr.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"

struct object_store;
struct remote_options;

/* ---- Back ends ---- */

int remote_tree_open(struct remote *r, const struct remote_options *o, struct err *e) MUST_USE;
int remote_oci_open(struct remote *r, const struct remote_options *o, struct err *e) MUST_USE;

/* ---- Chunks that are known to be there (known.c, table.c) ---- */

/* A set of digests, each with where it lies; thread-safe. */
struct remote_place {
    struct digest chunk;
    uint32_t pack; /* number that the back end knows; 0 in a tree */
    uint32_t len;
    uint64_t off;
};
struct remote_known;
int remote_known_new(struct remote_known **out, struct err *e) MUST_USE;
void remote_known_free(struct remote_known *k);
bool remote_known_find(struct remote_known *k, const struct digest *d, struct remote_place *out);
/* The first place that is added for a chunk stays. */
int remote_known_add(struct remote_known *k, const struct remote_place *place,
                     struct err *e) MUST_USE;

/* Where the chunks of a unit are, as an artifact says it (docs/formats/remote-store.md). */
struct remote_table {
    struct remote_place *places;
    size_t count, capacity;
};
#define REMOTE_TABLE_MAX ((size_t)256 << 20)
void remote_table_fini(struct remote_table *t);
#define AUTO_REMOTE_TABLE CLEANUP(remote_table_fini)
int remote_table_encode(const struct remote_table *t, struct buf *out, struct err *e) MUST_USE;
/* The bytes may come from anywhere: ERR_CORRUPT. Lengths are those of stored chunks; packs are not
 * looked at. */
int remote_table_decode(struct remote_table *out, const void *bytes, size_t len,
                        struct err *e) MUST_USE;

/* ---- Claims (claims.c) ---- */

/* NULL stands for a back end without claims: everyone may do everything. */
struct remote_claims;
/* `objects` is borrowed. */
int remote_claims_new(struct remote_claims **out, struct object_store *objects, int64_t lease_ms,
                      struct err *e) MUST_USE;
void remote_claims_free(struct remote_claims *c);
uint64_t remote_claims_lost(const struct remote_claims *c);

#endif
