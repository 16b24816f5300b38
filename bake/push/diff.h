/* SPDX-License-Identifier: MIT */
/* Private to bake/push: what makes one disk's tree of another's, as a layer. */
#ifndef TB2_BAKE_PUSH_DIFF_H
#define TB2_BAKE_PUSH_DIFF_H

#include "base/cancel.h"
#include "blockdev/blockdev.h"
#include "oci/oci.h"

/* All are borrowed for the call. */
struct push_diff {
    struct store *store;
    const struct block_map *lower; /* NULL: an empty tree */
    const struct block_map *upper;
    enum oci_compression compression;
    const struct cancel *cancel;
};

/*
 * Writes the layer that, laid over the tree of the disk `lower`, gives that of `upper`: what is new or
 * another (with the directories above it), whiteouts for what is gone. Names of one inode that changed are
 * all in it, the first one whole. Depends on the two maps and the compression alone. Without a lower disk
 * an empty lost+found, as mke2fs makes it, is left out. Errors as those of ext4_reader_open;
 * ERR_UNSUPPORTED: a name that a layer cannot have; ERR_LIMIT: more than LIMIT_DIFF_LAYER bytes. `to` is called by the
 * calling thread alone; calls have nothing in common but the store.
 */
int push_diff_write(const struct push_diff *d, const struct sink *to, struct oci_layer_facts *out,
                    struct err *e) MUST_USE;

#endif
