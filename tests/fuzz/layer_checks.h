/* SPDX-License-Identifier: MIT */
/* What must hold of every layer that was read, for the targets layer and tar. */
#ifndef TB2_FUZZ_LAYER_CHECKS_H
#define TB2_FUZZ_LAYER_CHECKS_H

#include <string.h>

#include "base/buf.h"
#include "fuzz.h"
#include "oci/oci.h"

/* The index of a layer survives encoding; `bytes` (initialised by the caller) gets it. */
static inline void check_index(const struct oci_layer *layer, struct buf *bytes)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf again;
    AUTO_OCI_LAYER struct oci_layer *decoded = NULL;
    buf_init(&again, LIMIT_LAYER_INDEX);
    PROMISE(oci_layer_encode(layer, bytes, &e) == 0);
    PROMISE(oci_layer_decode(&decoded, bytes->data, bytes->len, &e) == 0);
    PROMISE(oci_layer_encode(decoded, &again, &e) == 0);
    PROMISE(bytes->len == again.len && memcmp(bytes->data, again.data, bytes->len) == 0);
}

static inline int drop_text(void *self UNUSED, const void *data UNUSED, size_t len UNUSED,
                            struct err *e UNUSED)
{
    return 0;
}

/* The layer on itself is a tree whose names can be looked at, or refused. */
static inline void check_tree(struct oci_layer *layer)
{
    struct err e = ERR_INIT;
    AUTO_OCI_TREE struct oci_tree *tree = NULL;
    struct oci_layer *const twice[] = {layer, layer};
    int rc = oci_tree_merge(&tree, twice, ARRAY_LEN(twice), NULL, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return;
    for (size_t i = 0; i < oci_tree_count(tree); i++) {
        struct oci_node node = oci_tree_node(tree, i);
        PROMISE((*node.name == '\0') == (i == 0) && !strchr(node.name, '/'));
        PROMISE(strcmp(node.name, ".") != 0 && strcmp(node.name, "..") != 0);
        PROMISE(i == 0 || node.parent < i);
        PROMISE(node.link_of == SIZE_MAX || node.link_of < i);
    }
    PROMISE(oci_tree_dump(tree, &(struct sink){.write = drop_text}, &e) == 0);
}

#endif
