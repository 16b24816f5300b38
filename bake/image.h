/* SPDX-License-Identifier: MIT */
/* Images: where they may come from, and what they say and hold. */
#ifndef TB2_BAKE_IMAGE_H
#define TB2_BAKE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/cancel.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "oci/oci.h"

struct store;

/* ---- Registries ---------------------------------------------------------------------------- */

struct registry_network; /* registry/registry.h, which has the fini too */

/* Reads registries.yaml (docs/registries.md), a registries.conf if the name ends so, or a directory
 * of hosts.toml files. ERR_INPUT with file, line and column. */
int registries_load(struct registry_network *out, const char *path, struct err *e) MUST_USE;
/* The same from text, which is no directory's. */
int registries_parse(struct registry_network *out, const char *path, const void *text, size_t len,
                     struct err *e) MUST_USE;

/* ---- Images -------------------------------------------------------------------------------- */

/* Where images may come from; all zero is fine. Pointers are borrowed as long as the options are. */
struct image_options {
    const char *docker_config;              /* see registry_options.config_path */
    const struct registry_network *network; /* NULL: nothing known */
    const char *const *plain_http_hosts;
    bool offline;         /* make no request: images in files, and what the store has */
    const char *platform; /* "os/architecture[/variant]"; NULL: this machine's */
};

/* For looking at an image without making anything of it. */
struct image_look {
    struct image_options images;
    const struct cancel *cancel;
};

/*
 * What an image says of itself; only its documents are fetched. *out, for json_free, has: reference
 * (in full), digest, config_digest, os, architecture, size (bytes of all layers as they are pulled),
 * layers (bottom first: digest, media_type, size, diff_id, ingested, and of the step that made it
 * created_by and comment), and as the config has them, if it has: variant, created, author, config,
 * history.
 */
int image_inspect(struct json **out, struct store *s, const char *reference,
                  const struct image_look *look, struct err *e) MUST_USE;

/* The merged tree as text (docs/formats/tree.md). Blobs of layers that the store lacks are pulled;
 * what they become is not stored. ERR_BUSY when that is needed while a bake works in the store. */
int image_tree(struct store *s, const char *reference, const struct image_look *look,
               const struct sink *out, struct err *e) MUST_USE;

/* Receives the differences of two trees, content included, in order; none: they are the same. As
 * image_tree otherwise. */
typedef int image_difference_sink(void *ctx, const struct oci_difference *d, struct err *e);
int image_diff(struct store *s, const char *const references[2], const struct image_look *look,
               image_difference_sink *sink, void *ctx, struct err *e) MUST_USE;

/* ---- Tags held to digests ---- */

/* What an image stands for, in a lock file. */
struct bake_pins {
    const char *lock_path; /* NULL: no lock file */
    bool frozen;           /* an image that is not in it is an error; it is not written */
    bool update;           /* ask the registries anew: for all, or for these tasks */
    const char *const *update_names;
    size_t update_name_count;
    const char *since_path; /* a lock file to compare with; NULL: that of lock_path as it was */
};

/* An image that stands for something else than it did. */
struct image_move {
    char *image;
    char was[DIGEST_TEXT_MAX]; /* "": it is new */
    char now[DIGEST_TEXT_MAX];
};

#endif
