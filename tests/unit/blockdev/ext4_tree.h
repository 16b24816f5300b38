/* SPDX-License-Identifier: MIT */
/* Trees of nodes with data in a region, and the disks made of them. */
#ifndef TB2_TESTS_BLOCKDEV_EXT4_TREE_H
#define TB2_TESTS_BLOCKDEV_EXT4_TREE_H

#include "fixture.h"

#include "base/mem.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

struct tree {
    struct ext4_node *nodes;
    size_t count;
    size_t capacity;
    char **names; /* owned */
    size_t name_capacity;
    struct region_writer *writer;
    uint64_t data_start;
};

struct disk {
    char path[160];
    struct digest digest;
    struct ext4_options options;
};

void tree_init(struct tree *t, struct fixture *f, size_t workers);
void tree_fini(struct tree *t);
#define AUTO_TREE CLEANUP(tree_fini)

/* Callback of struct ext4_nodes. */
int tree_node(void *ctx, size_t index, struct ext4_node *out, struct err *e);

/* Adds a node; the caller changes what it wants before the next call. */
struct ext4_node *tree_add(struct tree *t, size_t parent, enum ext4_type type, const char *name);

/* Adds a file with data (of seed `size`) where the parts say; a part of length 0 ends the list. */
struct ext4_node *tree_add_file(struct tree *t, size_t parent, const char *name, uint64_t size,
                                const uint64_t (*parts)[2]);

/* Writes the tree's disk: data and metadata in one map. */
int tree_write(struct tree *t, struct fixture *f, uint64_t free_size, struct disk *d,
               struct block_map **out, struct err *error);

/* Reads the tree back off its disk: it is the same. */
void tree_check(struct tree *t, struct fixture *f, const struct block_map *disk);

#endif
