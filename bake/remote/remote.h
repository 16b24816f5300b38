/* SPDX-License-Identifier: MIT */
/*
 * A remote store, for the folders whose units it has: image/remote_layers.c and template/remote_template.c say
 * what a unit consists of, taken over or published; what is here is the same for all.
 */
#ifndef TB2_BAKE_REMOTE_REMOTE_H
#define TB2_BAKE_REMOTE_REMOTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "blockdev/blockdev.h"

struct remote_known;

/* ---- Units -------------------------------------------------------------------------------- */

enum remote_kind { REMOTE_LAYER, REMOTE_TEMPLATE, REMOTE_ALIAS };

enum { REMOTE_FILES_MAX = 8, REMOTE_PATH_MAX = 240, REMOTE_NAME_MAX = 208 };

/* What a unit is published with. Files are the store's, in the order in which they may appear: the
 * last one is what others look for. */
struct remote_unit {
    enum remote_kind kind;
    char name[REMOTE_NAME_MAX]; /* hex of diff_id or key; an alias */
    char files[REMOTE_FILES_MAX][REMOTE_PATH_MAX];
    size_t file_count;
    struct digest *chunks; /* sorted, each once */
    size_t chunk_count;
    const struct digest *needs; /* layers (diff_ids) that hold some of the chunks; may be none */
    size_t need_count;
};
void remote_unit_fini(struct remote_unit *u);
int remote_unit_add_file(struct remote_unit *u, struct err *e, const char *fmt, ...)
    PRINTF_LIKE(3, 4) MUST_USE;
/* Adds the map's file, and its chunks; remote_unit_sort puts these in order. */
int remote_unit_add_map(struct remote_unit *u, struct store *s, const struct digest *map,
                        struct err *e) MUST_USE;
void remote_unit_sort(struct remote_unit *u);

/* ---- Back ends ---------------------------------------------------------------------------- */

/* Thread-safe, all but open and close. `self` is the back end's. */
struct remote_ops {
    int (*has)(void *self, enum remote_kind kind, const char *name, bool *there, struct err *e);
    /* Makes the unit's files readable; ERR_NOTFOUND when it is surely not there. */
    int (*find)(void *self, enum remote_kind kind, const char *name, struct err *e);
    /* Appends a file of a unit that was found; ERR_NOTFOUND. */
    int (*file)(void *self, const char *path, struct buf *out, struct err *e);
    /* See struct chunk_source. */
    int (*chunk)(void *self, const struct digest *d, int64_t deadline_ms, struct buf *stored,
                 struct err *e);
    int (*publish)(void *self, const struct remote_unit *u, struct err *e);
    uint64_t (*requests)(void *self);
    void (*close)(void *self);
};

/* ---- Claims (claims.c) ---- */

enum remote_answer {
    REMOTE_TAKEN, /* it is in the store now */
    REMOTE_MINE,  /* do it, then publish or drop it */
    REMOTE_BUSY,  /* someone else does */
};

struct remote_claims;
/* *mine: this process has the claim now, or had it already. Never waits for the other owner. */
int remote_claims_try(struct remote_claims *c, enum remote_kind kind, const char *name, bool *mine,
                      struct err *e) MUST_USE;
bool remote_claims_held(struct remote_claims *c, enum remote_kind kind, const char *name);
void remote_claims_drop(struct remote_claims *c, enum remote_kind kind, const char *name);

/* ---- The remote store (remote.c) ---- */

struct remote {
    struct store *store;
    const struct cancel *cancel;
    char *name;
    bool writable;
    const struct remote_ops *ops;
    void *self;
    struct chunk_source source;
    struct remote_known *known;
    struct remote_claims *claims;
    atomic_uint_least64_t layers_taken, templates_taken, layers_sent, templates_sent;
    atomic_uint_least64_t chunks_sent, chunk_bytes_sent, chunks_fetched, chunk_bytes_fetched;
};

const char *remote_kind_name(enum remote_kind kind); /* "layer", ... */

/* Files of the remote store brought into the local one. `wanted` (may be NULL) is the sha256 that the
 * bytes must have. */
int remote_fetch_file(struct remote *r, const char *path, const struct digest *wanted,
                      struct buf *out, struct err *e) MUST_USE;
int remote_keep_file(struct remote *r, const char *path, const struct buf *bytes,
                     struct err *e) MUST_USE;
/* Brings a block map, verified and decoded, unless the store has it. */
int remote_take_map(struct remote *r, const struct digest *map, struct block_map **out,
                    struct err *e) MUST_USE;

/* Judges what taking a unit over came to (remote_take_layer, remote_take_template): one that is not
 * there, or is damaged over there, is made here, so that neither is an error. */
int remote_taken(int rc, bool *taken, struct err *e) MUST_USE;
int remote_publish(struct remote *r, const struct remote_unit *u, struct err *e) MUST_USE;

/* Sleeps between two looks at what someone else does; *round counts them. */
int remote_wait(struct remote *r, unsigned *round, struct err *e) MUST_USE;

#endif
