/* SPDX-License-Identifier: MIT */
/* Images on their way to disks: resolved, pulled, ingested, assembled. */
#ifndef TB2_BAKE_IMAGE_IMAGE_H
#define TB2_BAKE_IMAGE_IMAGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/image.h"
#include "base/attr.h"
#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "oci/oci.h"
#include "registry/registry.h"

struct block_map;
struct ingest_gate;
struct once;
struct pins;
struct remote;
struct slots;
struct store;

/* What an image's layer is to bakers who share a remote store. */
enum layer_share {
    SHARE_NONE,
    SHARE_PUBLISH,   /* ours to send, once the store has it */
    SHARE_ELSEWHERE, /* someone else makes it: not to be pulled or ingested now */
};
struct image_source;

struct image {
    char *text; /* the reference as written */
    struct oci_ref ref;
    const struct image_source *source;
    struct oci_layout *layout; /* of images in files */
    struct digest root;        /* what the reference stands for: an index or a manifest */
    struct buf root_document;  /* its bytes, when the source has them before they are asked for */
    struct oci_manifest manifest;
    struct oci_config config;
    enum layer_share *shares; /* one per layer; NULL: nothing is shared */
    struct oci_descriptor at; /* of the manifest */
    /* A native image: its layers are here, bottom first, and none is in manifest and config. */
    bool native;
    struct oci_descriptor *native_layers;
    size_t native_count;
    struct image_work *work; /* layers on their way into the store, between pull and ingest */
    /* Layers of a recipe's grafts, bottom first; the first graft_count of them are laid over it when it
     * is assembled. */
    struct digest *grafts;
    size_t graft_count, graft_total;
};

/* Archives that are open, by their paths. */
struct open_archive;
struct image_archives {
    bool ready;
    pthread_mutex_t lock;
    struct open_archive *first;
};
void image_archives_init(struct image_archives *a);
void image_archives_fini(struct image_archives *a); /* a zeroed one is fine */

/* Where images come from: shared by the tasks of a run. */
struct image_room {
    struct store *store;
    struct registry *registry; /* NULL when offline */
    struct once *once;
    struct remote *remote;  /* borrowed; NULL: none */
    atomic_size_t ingested; /* layers */
    struct pins *pins;      /* NULL: none */
    struct slots *network;  /* transfers at once; NULL: any number */
    struct ingest_gate *ingest;
    struct image_archives archives;
    bool offline;
    struct oci_platform platform; /* that is wanted */
    char platform_text[OCI_PLATFORM_MAX];
    const struct cancel *cancel;
};

int image_room_open(struct image_room *r, struct store *s, const struct image_options *o,
                    const struct cancel *c, struct err *e) MUST_USE;
void image_room_close(struct image_room *r); /* a zeroed one is fine */

enum image_document { IMAGE_MANIFEST /* or an index */, IMAGE_CONFIG };

/* A kind of place that images come from. */
struct image_source {
    /* The descriptor that the reference stands for; its size may be 0 when that is not known. For
     * oci_descriptor_fini, whatever the result. */
    int (*start)(struct image *i, struct image_room *r, struct oci_descriptor *out, struct err *e);
    /* A document, verified, appended to `out` (whose ceiling is set). */
    int (*document)(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    enum image_document what, struct buf *out, struct err *e);
    /* A layer's blob as it is, for source_close; called from several threads. */
    int (*layer)(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                 struct source *out, struct err *e);
    bool is_local; /* see image_is_local */
};
extern const struct image_source image_from_registry;
extern const struct image_source image_from_files;
/* ERR_DIGEST when the bytes are not those of the digest. */
int image_check_document(const struct digest *d, const struct buf *bytes, struct err *e) MUST_USE;
/* ERR_NOTFOUND with a hint: `what` is missing, and may not be asked for. */
int image_missing_offline(struct err *e, const char *what);

int image_resolve(struct image **out, struct image_room *r, const char *text,
                  struct err *e) MUST_USE;
void image_free(struct image *i);
DEFINE_AUTO(image, image_free)
#define AUTO_IMAGE CLEANUP(image_free_auto_)

/* Name of a blob in the store: DIRECTORY/ALGORITHM-HEX. */
enum { BLOB_PATH_MAX = 24 + DIGEST_TEXT_MAX };
void image_blob_path(char path[BLOB_PATH_MAX], const char *directory, const struct digest *d);

/* True where the blobs are read from where they are (a layout, an archive): none is pulled, none is
 * dropped. */
bool image_is_local(const struct image *i);
/* The compressed blob of layer `n`, which image_pull has seen to, for source_close. */
int image_open_layer(struct image *i, struct image_room *r, size_t n, struct source *out,
                     struct err *e) MUST_USE;

/* Forgets what the store has of the image's layers and is damaged. Before image_pull. */
int image_drop_damaged(struct image *i, struct image_room *r, struct err *e) MUST_USE;

/*
 * Gets the blobs of the layers that are not in the store and begins to ingest them as they arrive,
 * several at once; returns when all have arrived. Nothing is fetched of a local image. What several
 * images share is done once, by whichever comes first. `progress` is called by one thread at a time.
 * An error of a blob that did not arrive; those of ingesting it are image_ingest's. Of several layers
 * that fail, the lowest is reported.
 */
int image_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
               struct err *e) MUST_USE;
/* After image_pull: waits until all layers are in the store, as chunks and indexes. */
int image_ingest(struct image *i, struct image_room *r, struct err *e) MUST_USE;
/* Ends what image_pull began and image_ingest did not wait for. */
void image_work_free(struct image_work *w);
/* What a disk of the image with its grafts depends on. */
int image_disk_key(struct digest *out, const struct image *i, uint64_t free_size,
                   struct err *e) MUST_USE;
/* The disk of the image with `free_size` bytes of free room, as a stored map. */
int image_assemble(struct image *i, struct image_room *r, uint64_t free_size,
                   struct block_map **out, struct digest *digest, struct err *e) MUST_USE;

/* Gets one blob of an image in a registry into blobs/, unless it is there. */
int image_pull_blob(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    const struct registry_progress *progress, struct err *e) MUST_USE;

/* The same steps for native images (native.c), called by those above. */
int native_take_layers(struct image *i, struct err *e) MUST_USE;
int native_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
                struct err *e) MUST_USE;
int native_assemble(struct image *i, struct image_room *r, struct block_map **out,
                    struct digest *digest, struct err *e) MUST_USE;

/* The document that a tag stood for; the record's own name is checked too. Does not mark it as used. */
int tag_peek(struct digest *document, struct store *s, const struct digest *name,
             struct err *e) MUST_USE;

#endif
