/* SPDX-License-Identifier: MIT */
/*
 * Native images as a source: OverlayBD layers, which are the disk already. Their blobs are pulled
 * whole and verified: ranges of a blob can only be checked by checksums that whoever made the blob
 * could choose, and a disk is made of nearly all of its bytes anyway
 * (docs/decisions/0019-native-images.md).
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/common/slots.h"
#include "bake/image/image.h"
#include "base/mem.h"
#include "blockdev/overlaybd.h"

/* The layers of an image, open. */
struct stack {
    size_t count;
    struct source *blobs;
    struct overlaybd_layer **layers;
};

static void stack_fini(struct stack *s)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->layers)
            overlaybd_close(s->layers[i]);
        if (s->blobs)
            source_close(&s->blobs[i]);
    }
    free(s->layers);
    free(s->blobs);
}

int native_take_layers(struct image *i, struct err *e)
{
    if (i->manifest.layer_count > OVERLAYBD_LAYERS_MAX)
        return err_set(e, ERR_LIMIT, "%zu OverlayBD layers, more than the %d that can be stacked",
                       i->manifest.layer_count, OVERLAYBD_LAYERS_MAX);
    if (*i->config.os && strcmp(i->config.os, "linux") != 0)
        return err_set(e, ERR_UNSUPPORTED, "the image is for the operating system \"%.60s\"",
                       i->config.os);
    i->native_layers = i->manifest.layers;
    i->native_count = i->manifest.layer_count;
    i->manifest.layers = NULL;
    i->manifest.layer_count = 0;
    i->config.diff_id_count = 0;
    return 0;
}

int native_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
                struct err *e)
{
    int rc = 0;
    for (size_t n = 0; !image_is_local(i) && rc == 0 && n < i->native_count; n++)
        rc = image_pull_blob(i, r, &i->native_layers[n], progress, e);
    return rc;
}

/* Blobs in files are nobody's word yet. */
static int check_blob(const struct source *blob, const struct digest *want, const struct cancel *c,
                      struct err *e)
{
    enum { PORTION = 1 << 20 };
    AUTO_HASHER struct hasher *h = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(PORTION);
    struct digest sum;
    int rc = data ? hasher_new(&h, want->algorithm, e) : err_nomem(e, "blob");
    for (uint64_t at = 0; rc == 0 && at < blob->size; at += PORTION) {
        size_t len = blob->size - at < PORTION ? (size_t)(blob->size - at) : PORTION;
        rc = cancel_check(c, e);
        if (rc == 0)
            rc = source_read_full(blob, at, data, len, e);
        hasher_add(h, data, len);
    }
    if (rc < 0)
        return rc;
    hasher_finish(h, &sum);
    return digest_equal(&sum, want) ? 0
                                    : err_set(e, ERR_DIGEST, "the blob does not match its digest");
}

static int open_layer(struct stack *s, struct image *i, struct image_room *r, size_t n,
                      struct err *e)
{
    const struct oci_descriptor *d = &i->native_layers[n];
    char text[DIGEST_TEXT_MAX];
    int rc = i->source->layer(i, r, d, &s->blobs[n], e);
    if (rc == 0 && image_is_local(i))
        rc = check_blob(&s->blobs[n], &d->digest, r->cancel, e);
    if (rc == 0)
        rc = overlaybd_open(&s->layers[n], &s->blobs[n], e);
    return rc < 0 ? err_in(e, "layer %zu of %zu (%s)", n + 1, i->native_count,
                           digest_print(&d->digest, text))
                  : 0;
}

static void drop_blobs(const struct image *i, struct image_room *r)
{
    for (size_t n = 0; !image_is_local(i) && n < i->native_count; n++) {
        char path[BLOB_PATH_MAX];
        image_blob_path(path, "blobs", &i->native_layers[n].digest);
        unlinkat(store_dir(r->store), path, 0);
    }
}

int native_assemble(struct image *i, struct image_room *r, struct block_map **out,
                    struct digest *digest, struct err *e)
{
    struct stack s = {.count = i->native_count,
                      .blobs = mem_array(i->native_count, sizeof(*s.blobs)),
                      .layers = mem_array(i->native_count, sizeof(struct overlaybd_layer *))};
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    struct bdev *disk = NULL;
    int rc = s.blobs && s.layers ? 0 : err_nomem(e, "OverlayBD layers");
    for (size_t n = 0; rc == 0 && n < s.count; n++)
        rc = open_layer(&s, i, r, n, e);
    if (rc == 0)
        rc = bdev_open_overlaybd(&disk, s.layers, s.count, e);
    if (rc == 0)
        rc = store_put_device(r->store, disk, machine_cores(), r->cancel, &m, e);
    bdev_close(disk);
    stack_fini(&s);
    if (rc == 0 || rc == -ERR_CORRUPT || rc == -ERR_DIGEST)
        drop_blobs(i, r);
    if (rc == 0)
        rc = store_put_map(r->store, m, digest, e);
    if (rc < 0)
        return rc;
    *out = MOVE(m);
    return 0;
}
