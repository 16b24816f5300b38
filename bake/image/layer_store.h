/* SPDX-License-Identifier: MIT */
/* Layers as the store keeps them (docs/formats/store.md): an index, and a region of chunks. */
#ifndef TB2_BAKE_IMAGE_LAYER_STORE_H
#define TB2_BAKE_IMAGE_LAYER_STORE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "oci/oci.h"

struct block_map;
struct ingest_gate;
struct store;

bool layer_has(struct store *s, const struct digest *diff_id);
/* Forgets the layer if its file is damaged or chunks of it are missing, so that it is made again.
 * `elsewhere`: a remote store has the layer, and with it chunks that are missing here. */
void layer_drop_damaged(struct store *s, const struct digest *diff_id, bool elsewhere);
/* A blob that is to become a layer of the store. */
struct layer_blob {
    const struct source *source;
    const struct oci_descriptor *descriptor;
    const struct digest *diff_id; /* NULL: not known */
};
/* What a layer's file holds. */
struct layer_made {
    struct oci_layer *layer;
    struct digest region; /* name of its region's map, which is in the store */
};
void layer_made_fini(struct layer_made *m);
/* Where file data go while a layer is read: `ctx` is a region writer. */
extern const struct oci_data_ops layer_region_ops;
/* As layer_ingest, but it gets no name. */
int layer_read_blob(struct layer_made *out, struct store *s, const struct layer_blob *blob,
                    struct ingest_gate *g, const struct cancel *c, struct err *e) MUST_USE;
/* Gives it one, with the promises of layer_ingest. */
int layer_put(struct store *s, const struct digest *diff_id, const struct layer_made *made,
              struct err *e) MUST_USE;
/* Waits for a place in the gate first. A layer is not made durable: one that a power cut damages is
 * made again, and the map of a disk that needs it syncs it (docs/decisions/0012-ingest.md). */
int layer_ingest(struct store *s, const struct layer_blob *blob, struct ingest_gate *g,
                 const struct cancel *c, struct err *e) MUST_USE;
/* A layer's file, decoded; *region is the name of its region's map. The bytes may come from anywhere:
 * ERR_CORRUPT. */
int layer_decode_file(const struct buf *file, struct digest *region, struct oci_layer **layer,
                      struct err *e) MUST_USE;
/* Name of the region's map of a layer that the store has. */
int layer_region(struct store *s, const struct digest *diff_id, struct digest *region,
                 struct err *e) MUST_USE;
int layer_load(struct store *s, const struct digest *diff_id, struct oci_layer **layer,
               struct block_map **region, struct err *e) MUST_USE;
/* Checks the file of a layer, without marking it as used; *region is its region's map. */
int layer_inspect(struct store *s, const char *path, struct digest *region, struct err *e) MUST_USE;

#endif
