/* SPDX-License-Identifier: MIT */
/* Which files a store holds, for what looks after it (gc.c, fsck.c, du.c). */
#ifndef TB2_BAKE_UPKEEP_CENSUS_H
#define TB2_BAKE_UPKEEP_CENSUS_H

#include "bake/template.h"
#include "bake/upkeep.h"
#include "base/digest.h"
#include "blockdev/blockdev.h"

/* One object of the store, as its directory entry tells. */
struct census_file {
    struct digest digest; /* its name; zeros in the catalog and in runs/ */
    char *name;           /* file name in the catalog and in runs/, else NULL */
    uint64_t size;        /* bytes */
    int64_t used_ns;      /* modification time: when it was last used */
    bool regular;
    uint32_t flags; /* the user's; 0 at first */
};

struct census_list {
    struct census_file *files; /* sorted by digest, or by name where there is one */
    size_t count;
    size_t capacity;
};

struct census {
    struct census_list lists[UPKEEP_STORE_KINDS];
};

/* Lists the kinds whose bits (1 << kind) are set. What has no object's name is passed over, and so
 * is what vanishes meanwhile. */
int census_take(struct census *c, struct store *s, unsigned kinds, struct err *e) MUST_USE;
void census_fini(struct census *c); /* a zeroed one is fine */

/* NULL when there is none. */
struct census_file *census_find(const struct census *c, enum upkeep_kind kind,
                                const struct digest *d);
struct census_file *census_find_name(const struct census *c, enum upkeep_kind kind,
                                     const char *name);

/* Its path in the store. */
enum { CENSUS_PATH_MAX = 16 + 256 };
const char *census_path(enum upkeep_kind kind, const struct census_file *f,
                        char path[CENSUS_PATH_MAX]);

/* ---- What objects name; none of these marks anything as used ---- */

/* A catalog entry, checked: one encoding, its own check where it has one. Free task with free(). */
struct catalog_entry {
    struct digest key;
    struct digest record;
    char *task;
};
int catalog_peek(struct catalog_entry *out, struct store *s, const char *file_name,
                 struct err *e) MUST_USE;
/* The record that a key stands for, checked. */
int key_peek(struct digest *record, struct store *s, const struct digest *key,
             struct err *e) MUST_USE;

/* A conversion's record (docs/formats/store.md, "Pushed layers"), checked. */
int pushed_peek(struct json **out, struct store *s, const struct digest *key,
                struct err *e) MUST_USE;

/* A template's maps. */
enum { TEMPLATE_DISK, TEMPLATE_BASE_DISK, TEMPLATE_MEMORY, TEMPLATE_STATE, TEMPLATE_MAPS };
void template_maps(const struct template *t, struct digest maps[TEMPLATE_MAPS]);

/* Calls `layer` for each layer of an image whose manifest and config the store holds. Without them
 * there is nothing to call it for. */
int image_peek_layers(struct store *s, const struct digest *manifest,
                      void (*document)(void *ctx, const struct digest *blob),
                      void (*layer)(void *ctx, const struct digest *diff_id), void *ctx,
                      struct err *e) MUST_USE;

#endif
