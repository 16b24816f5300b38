/* SPDX-License-Identifier: MIT */
/*
 * Layer blobs: decompression, tar, names. The first byte says in which portions the source hands
 * the blob out. What a layer was read from must survive the index, and be a tree or a refusal.
 */
#include <string.h>

#include "fuzz.h"
#include "oci/oci.h"

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

static int drop(void *self UNUSED, const void *data UNUSED, size_t len UNUSED, struct err *e UNUSED)
{
    return 0;
}

static void check_index(const struct oci_layer *layer)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf bytes;
    AUTO_BUF struct buf again;
    AUTO_OCI_LAYER struct oci_layer *decoded = NULL;
    buf_init(&bytes, LIMIT_LAYER_INDEX);
    buf_init(&again, LIMIT_LAYER_INDEX);
    PROMISE(oci_layer_encode(layer, &bytes, &e) == 0);
    PROMISE(oci_layer_decode(&decoded, bytes.data, bytes.len, &e) == 0);
    PROMISE(oci_layer_encode(decoded, &again, &e) == 0);
    PROMISE(bytes.len == again.len && memcmp(bytes.data, again.data, bytes.len) == 0);
}

static void check_tree(struct oci_layer *layer)
{
    struct err e = ERR_INIT;
    AUTO_OCI_TREE struct oci_tree *tree = NULL;
    struct oci_layer *const twice[] = {layer, layer};
    int rc = oci_tree_merge(&tree, twice, ARRAY_LEN(twice), &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return;
    for (size_t i = 0; i < oci_tree_count(tree); i++)
        PROMISE((*oci_tree_node(tree, i).name == '\0') == (i == 0));
    PROMISE(oci_tree_dump(tree, &(struct sink){.write = drop}, &e) == 0);
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
    check_index(layer);
    check_tree(layer);
    return 0;
}
