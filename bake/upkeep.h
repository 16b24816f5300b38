/* SPDX-License-Identifier: MIT */
/*
 * Looking after a store: sweeping what nothing needs, checking what is there, telling what takes the
 * room. All three work beside running bakes.
 */
#ifndef TB2_BAKE_UPKEEP_H
#define TB2_BAKE_UPKEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/image.h"
#include "base/cancel.h"
#include "base/err.h"
#include "blockdev/blockdev.h"

/* What a store holds. */
enum upkeep_kind {
    UPKEEP_CHUNK,
    UPKEEP_MAP,
    UPKEEP_LAYER,
    UPKEEP_RECORD,
    UPKEEP_KEY,
    UPKEEP_ALIAS,
    UPKEEP_BLOB,
    UPKEEP_PARTIAL, /* a blob on its way */
    UPKEEP_STEP,    /* what a step of a recipe made */
    UPKEEP_PUSHED,  /* what an OverlayBD layer became, for the next push */
    UPKEEP_JOURNAL,
    UPKEEP_TAG,     /* what a tag stood for */
    UPKEEP_CONSOLE, /* what a task's machines said, beside the journal */
    UPKEEP_KEPT,    /* a kept copy */
    UPKEEP_BOOT,    /* a boot image */
    UPKEEP_STORE_KINDS,
    UPKEEP_CACHE = UPKEEP_STORE_KINDS, /* of the cache directory */
    UPKEEP_KIND_COUNT
};

/* "chunk", "block map", ... */
const char *upkeep_kind_name(enum upkeep_kind kind);

struct upkeep_count {
    uint64_t count;
    uint64_t size; /* bytes */
};

/* ---- gc ---- */

struct gc_options {
    bool dry_run;          /* only tell */
    int64_t grace_ms;      /* what was used since then stays */
    uint64_t max_size;     /* of the whole store, bytes; 0: no cap */
    const char *cache_dir; /* NULL: leave it alone */
    const struct cancel *cancel;
    /* Told of each file that is (or would be) removed; may be NULL. */
    void (*removed)(void *ctx, enum upkeep_kind kind, const char *path, uint64_t size);
    void *ctx;
};

struct gc_report {
    struct upkeep_count removed[UPKEEP_KIND_COUNT];
    struct upkeep_count kept[UPKEEP_KIND_COUNT];
    uint64_t kept_size; /* all of them */
};

/*
 * Removes what neither the catalog needs nor anyone has used within the grace time or may be using
 * now (docs/decisions/0013-garbage-collection.md). With a cap, layers and results of steps, which no
 * template needs, go as well, the longest unused first, until the rest fits; if it does not, what is needed
 * stays, and the report tells. ERR_CORRUPT or ERR_DIGEST when what the catalog names is damaged:
 * then nothing is removed, since what else is needed cannot be told.
 */
int store_gc(struct gc_report *out, struct store *s, const struct gc_options *o,
             struct err *e) MUST_USE;

/* ---- fsck ---- */

enum fsck_state {
    FSCK_BAD,     /* found, not touched */
    FSCK_MENDED,  /* whole again */
    FSCK_REMOVED, /* gone; no template of the catalog needs it */
    FSCK_LOST,    /* gone, and templates need it */
};

struct fsck_problem {
    enum upkeep_kind kind;
    char *path;      /* of the object */
    char *reason;    /* what is wrong with it */
    char **affected; /* aliases, layers and records that cannot do without it, or are not whole */
    size_t affected_count;
    enum fsck_state state;
    const char *advice; /* what to do, static; NULL: nothing */
};

struct fsck_options {
    bool repair;
    struct image_options images; /* for those that are fetched again */
    const struct cancel *cancel;
};

struct fsck_report {
    struct upkeep_count checked[UPKEEP_STORE_KINDS];
    struct fsck_problem *problems;
    size_t count;
    size_t left; /* problems that are bad or lost */
};

/*
 * Reads every object, on all processors, and checks it against its name and against what refers to
 * it. With `repair` bad objects are removed, and made or fetched again where that is possible: from
 * the store's source, from the registry that the image came from, from other objects. Success means
 * that everything was looked at; the caller frees the report.
 */
int store_fsck(struct fsck_report *out, struct store *s, const struct fsck_options *o,
               struct err *e) MUST_USE;
void fsck_report_fini(struct fsck_report *r);

/* ---- du ---- */

/* Bytes as stored. A chunk counts for the first of these that refers to it. */
enum du_kind {
    DU_LAYERS,    /* chunks of layers */
    DU_DISKS,     /* of disks, beside those: file system metadata, what steps wrote */
    DU_BOOTS,     /* of boot images: memory and device state that guests begin with */
    DU_MEMORY,    /* of guests' memory and device state, beside those */
    DU_STEPS,     /* of results of steps, beside those */
    DU_LOOSE,     /* chunks that nothing refers to */
    DU_INDEXES,   /* layer indexes */
    DU_MAPS,      /* block maps */
    DU_DOCUMENTS, /* records, keys, catalog */
    DU_BLOBS,     /* manifests, configs, blobs on their way */
    DU_JOURNALS,
    DU_DEVICES, /* files of attached devices: what was written to them; as the disk counts it */
    DU_KIND_COUNT
};
const char *du_kind_name(enum du_kind kind);

struct du_report {
    struct upkeep_count kinds[DU_KIND_COUNT];
    uint64_t total;
};

int store_du(struct du_report *out, struct store *s, struct err *e) MUST_USE;

#endif
