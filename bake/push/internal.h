/* SPDX-License-Identifier: MIT */
/* Private to bake/push. */
#ifndef TB2_BAKE_PUSH_INTERNAL_H
#define TB2_BAKE_PUSH_INTERNAL_H

#include "bake/image/image.h"
#include "bake/push.h"

struct push {
    struct store *store;
    struct push_options options;
    struct image_room room;
};

/* Where one push goes. */
struct push_target {
    struct push *push;
    struct oci_ref ref; /* with a tag */
};

/* A blob that is made once, noted under what it depends on, and sent. */
struct push_blob {
    struct digest key;
    /* Writes it into an empty file and fills in digest, diff_id and size. */
    int (*make)(struct push_blob *b, const struct push_target *t, int fd, struct err *e);
    void *ctx;
    /* From here on set by push_blob_send. */
    struct digest digest, diff_id;
    uint64_t size;
    bool converted; /* made now */
    enum registry_push_result result;
};
/* Makes the blob, unless that was done before, and sees to it that the repository has it
 * (layer.c); thread-safe for different blobs. */
int push_blob_send(const struct push_target *t, struct push_blob *b, struct err *e) MUST_USE;

/* Counts a layer that was sent. */
void push_count(struct push_report *out, const struct push_blob *b);

/* One OverlayBD layer. */
struct push_layer {
    struct block_map *data;
    struct block_map *zeros; /* NULL: none */
    struct push_blob blob;
};
enum overlaybd_compression push_overlaybd_compression(const struct push_options *o);

struct push_plan {
    struct push_layer *layers; /* bottom first */
    size_t count;
};

/*
 * Layers of a disk (plan.c): one for each region that the disk takes something from, and one
 * with all the rest. `regions` are those of an image's layers, bottom first, as the store has them;
 * where they are on the disk is found out. None: all is in one layer.
 */
int push_plan_make(struct push_plan *out, const struct block_map *disk,
                   struct block_map *const *regions, size_t region_count, struct err *e) MUST_USE;
void push_plan_fini(struct push_plan *p);

/* push_blob_send of what the layer is converted to. */
int push_layer_send(const struct push_target *t, struct push_layer *l, struct err *e) MUST_USE;

/* What the documents of a native image say beside its layers (document.c). */
struct push_facts {
    const struct json *image_config; /* the image's; NULL: nothing known */
    const struct template *template; /* NULL: an image's own disk */
};
/* Puts config and manifest of a native image under the target's tag; *digest is the manifest's. */
int push_documents(const struct push_target *t, const struct push_plan *p,
                   const struct push_facts *facts, struct digest *digest, struct err *e) MUST_USE;
/* Sends a small blob. */
int push_bytes(const struct push_target *t, const void *bytes, size_t len, struct digest *digest,
               struct err *e) MUST_USE;

/* The same for a plain image with one more layer, which is given to the image's own. `base` is the image;
 * of a native one nothing but the settings is taken. */
int push_plain_documents(const struct push_target *t, const struct image *base,
                         const struct push_blob *top, const struct push_facts *facts,
                         struct digest *digest, struct err *e) MUST_USE;

/* Sees to it that the repository has a layer of the image as it is, and counts it in `out`
 * (copy.c). */
int push_copy_layer(const struct push_target *t, struct image *i, const struct oci_descriptor *d,
                    struct push_report *out, struct err *e) MUST_USE;

/* Pushes a template's disk as its image's layers and one of what changed (plain.c). */
int push_plain(const struct push_target *t, const struct template *template,
               struct push_report *out, struct err *e) MUST_USE;

/* Pulls, ingests and assembles (push.c). */
int push_assemble(struct push *p, struct image *i, uint64_t free_size, struct block_map **out,
                  struct err *e) MUST_USE;

/* Copies an image as it is (copy.c). */
int push_copy(const struct push_target *t, struct image *i, struct push_report *out,
              struct err *e) MUST_USE;

#endif
