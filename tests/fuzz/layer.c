/* SPDX-License-Identifier: MIT */
/*
 * Layer blobs: decompression, tar, names. The first byte says in which portions the source hands
 * the blob out. What a layer was read from must survive the index, and be a tree or a refusal.
 */
#include <string.h>

#include "layer_checks.h"

struct portions {
    const uint8_t *data;
    size_t size;
    size_t most; /* bytes of one read; 0: as asked */
};

static int read_portion(void *self, uint64_t off, void *data, size_t len, size_t *got,
                        struct err *e UNUSED)
{
    const struct portions *p = self;
    size_t left = off < p->size ? p->size - (size_t)off : 0;
    *got = len < left ? len : left;
    if (p->most > 0 && *got > p->most)
        *got = p->most;
    if (*got > 0)
        memcpy(data, p->data + off, *got);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_OCI_LAYER struct oci_layer *layer = NULL;
    char type[] = "application/vnd.oci.image.layer.v1.tar";
    if (size == 0)
        return 0;
    struct portions p = {.data = data + 1, .size = size - 1, .most = data[0]};
    struct source blob = {.read = read_portion, .self = &p, .size = p.size};
    struct oci_layer_options options = {.blob = {.media_type = type, .size = p.size}};
    digest_bytes(&options.blob.digest, p.data, p.size);
    options.diff_id = options.blob.digest; /* right for a plain tar */
    int rc = oci_layer_read(&layer, &blob, &options, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(rc != -ERR_DIGEST);
    if (rc < 0)
        return 0;
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_LAYER_INDEX);
    check_index(layer, &bytes);
    check_tree(layer);
    return 0;
}
