/* SPDX-License-Identifier: MIT */
/* Layer indexes as bytes: what decodes is the one encoding of what it decodes to, and can be
 * merged. */
#include <string.h>

#include "fuzz.h"
#include "oci/oci.h"

static int drop(void *self UNUSED, const void *data UNUSED, size_t len UNUSED, struct err *e UNUSED)
{
    return 0;
}

static void check_tree(struct oci_layer *layer)
{
    struct err e = ERR_INIT;
    AUTO_OCI_TREE struct oci_tree *tree = NULL;
    int rc = oci_tree_merge(&tree, &layer, 1, NULL, &e);
    PROMISE_ERROR(rc, &e);
    if (rc == 0)
        PROMISE(oci_tree_dump(tree, &(struct sink){.write = drop}, &e) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct digest digest;
    AUTO_BUF struct buf bytes;
    AUTO_BUF struct buf again;
    AUTO_OCI_LAYER struct oci_layer *layer = NULL;
    buf_init(&bytes, LIMIT_LAYER_INDEX);
    buf_init(&again, LIMIT_LAYER_INDEX);
    digest_bytes(&digest, data, size);
    PROMISE(buf_add(&bytes, data, size, &e) == 0);
    PROMISE(buf_add(&bytes, digest.bytes, DIGEST_SHA256_LEN, &e) == 0);
    int rc = oci_layer_decode(&layer, bytes.data, bytes.len, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return 0;
    PROMISE(oci_layer_encode(layer, &again, &e) == 0);
    PROMISE(bytes.len == again.len && memcmp(bytes.data, again.data, bytes.len) == 0);
    check_tree(layer);
    return 0;
}
