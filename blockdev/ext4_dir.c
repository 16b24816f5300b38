/* SPDX-License-Identifier: MIT */
/*
 * Directory blocks, as the kernel's documentation has them (Documentation/filesystems/ext4/
 * directory.rst). A directory that fits one block is a plain list; any other gets a hash tree at
 * once, its leaves filled in hash order, so that neither writing nor looking up is ever
 * quadratic.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    TAIL_LEN = 12,                    /* struct ext4_dir_entry_tail */
    LEAF_LEN = BLOCK_SIZE - TAIL_LEN, /* for entries */
    DOTS_LEN = 24,                    /* "." and ".." */
    ROOT_INDEX_AT = 32,               /* after the dots and struct dx_root_info */
    NODE_INDEX_AT = 8,                /* after an empty entry over the whole block */
    INDEX_TAIL_LEN = 8,               /* struct dx_tail */
    INDEX_ENTRY_LEN = 8,              /* hash, block */
    ROOT_INDEX_MAX = (BLOCK_SIZE - ROOT_INDEX_AT - INDEX_TAIL_LEN) / INDEX_ENTRY_LEN,
    NODE_INDEX_MAX = (BLOCK_SIZE - NODE_INDEX_AT - INDEX_TAIL_LEN) / INDEX_ENTRY_LEN,
    TYPE_DIRECTORY = 2,
    TYPE_TAIL = 0xde,
    HASH_HALF_MD4 = 1,
    DIRECTORY_BYTES_MAX = 1 << 30,
};

struct entry {
    uint32_t hash;
    uint32_t order; /* number of the entry: makes sorting stable */
    uint32_t inode;
    uint32_t name_at;
    uint8_t name_len;
    uint8_t type;
};

struct ext4_dir {
    uint32_t inode;
    uint32_t parent_inode;
    struct entry *entries;
    size_t count;
    size_t capacity;
    struct buf names;
    size_t list_len; /* of all entries in one list, with the dots */
    uint8_t *blocks;
    size_t block_count;
    size_t block_capacity;
};

/* A leaf of the tree, for the index. */
struct leaf {
    uint32_t hash;
};

int ext4_dir_new(struct ext4_dir **out, uint32_t inode, uint32_t parent_inode, struct err *e)
{
    struct ext4_dir *d = mem_zalloc(sizeof(*d));
    if (!d)
        return err_nomem(e, "directory");
    d->inode = inode;
    d->parent_inode = parent_inode;
    d->list_len = DOTS_LEN;
    buf_init(&d->names, DIRECTORY_BYTES_MAX);
    *out = d;
    return 0;
}

void ext4_dir_free(struct ext4_dir *d)
{
    if (!d)
        return;
    free(d->entries);
    free(d->blocks);
    buf_fini(&d->names);
    free(d);
}

static uint8_t dirent_type(enum ext4_type type)
{
    switch (type) {
    case EXT4_FILE:
        return 1;
    case EXT4_DIRECTORY:
        return TYPE_DIRECTORY;
    case EXT4_CHARACTER_DEVICE:
        return 3;
    case EXT4_BLOCK_DEVICE:
        return 4;
    case EXT4_FIFO:
        return 5;
    case EXT4_SYMLINK:
        return 7;
    }
    return 0;
}

static size_t entry_len(const struct entry *x)
{
    return (8u + x->name_len + 3u) & ~(size_t)3;
}

int ext4_dir_add(struct ext4_dir *d, const char *name, uint32_t inode, enum ext4_type type,
                 uint32_t hash, struct err *e)
{
    size_t len = strlen(name);
    int rc = mem_grow(&d->entries, &d->capacity, d->count + 1, sizeof(*d->entries), e);
    if (rc < 0)
        return rc;
    struct entry x = {.hash = hash,
                      .order = (uint32_t)d->count,
                      .inode = inode,
                      .name_at = (uint32_t)d->names.len,
                      .name_len = (uint8_t)len,
                      .type = dirent_type(type)};
    rc = buf_add(&d->names, name, len, e);
    if (rc < 0)
        return rc;
    d->entries[d->count++] = x;
    d->list_len += entry_len(&x);
    return 0;
}

/* A new zeroed block; blocks got before move. */
static int add_block(struct ext4_dir *d, uint8_t **out, struct err *e)
{
    int rc = mem_grow(&d->blocks, &d->block_capacity, d->block_count + 1, BLOCK_SIZE, e);
    if (rc < 0)
        return rc;
    *out = d->blocks + d->block_count++ * BLOCK_SIZE;
    return 0;
}

static uint8_t *block_at(struct ext4_dir *d, size_t index)
{
    return d->blocks + index * BLOCK_SIZE;
}

static void put_entry(uint8_t *at, uint32_t inode, size_t len, const char *name, uint8_t name_len,
                      uint8_t type)
{
    ext4_put_u32(at, inode);
    ext4_put_u16(at + 4, len);
    at[6] = name_len;
    at[7] = type;
    memcpy(at + 8, name, name_len);
}

static void put_tail(uint8_t *block)
{
    put_entry(block + LEAF_LEN, 0, TAIL_LEN, "", 0, TYPE_TAIL);
}

/* Puts entries from `next` on into the block until one does not fit; returns the first that did
 * not. `at` is where the first goes, `last` where the one before it stands. */
static size_t fill_leaf(const struct ext4_dir *d, uint8_t *block, size_t at, size_t last,
                        size_t next)
{
    while (next < d->count && entry_len(&d->entries[next]) <= LEAF_LEN - at) {
        const struct entry *x = &d->entries[next++];
        put_entry(block + at, x->inode, entry_len(x), buf_text(&d->names) + x->name_at, x->name_len,
                  x->type);
        last = at;
        at += entry_len(x);
    }
    ext4_put_u16(block + last + 4, LEAF_LEN - last); /* the last one takes what is left */
    put_tail(block);
    return next;
}

static int compare_hashes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash > y->hash ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Count of the leaves that the sorted entries fill. */
static size_t count_leaves(const struct ext4_dir *d)
{
    size_t leaves = 1, at = 0;
    for (size_t i = 0; i < d->count; i++) {
        if (entry_len(&d->entries[i]) > LEAF_LEN - at) {
            leaves++;
            at = 0;
        }
        at += entry_len(&d->entries[i]);
    }
    return leaves;
}

static int add_leaves(struct ext4_dir *d, struct leaf *leaves, struct err *e)
{
    for (size_t next = 0, number = 0; next < d->count; number++) {
        uint8_t *block;
        int rc = add_block(d, &block, e);
        if (rc < 0)
            return rc;
        /* Bit 0 says that names of the same hash stand in the leaf before, too. */
        bool continued = next > 0 && d->entries[next - 1].hash == d->entries[next].hash;
        leaves[number].hash = d->entries[next].hash | continued;
        next = fill_leaf(d, block, 0, 0, next);
    }
    return 0;
}

/* Writes index entries: the first has no hash, its place holds limit and count. */
static void put_index(uint8_t *at, size_t limit, const struct leaf *leaves, size_t step,
                      size_t count, size_t first_block)
{
    for (size_t i = 0; i < count; i++) {
        ext4_put_u32(at + i * INDEX_ENTRY_LEN, leaves[i * step].hash);
        ext4_put_u32(at + i * INDEX_ENTRY_LEN + 4, (uint32_t)(first_block + i));
    }
    ext4_put_u16(at, limit);
    ext4_put_u16(at + 2, count);
}

static void put_root(const struct ext4_dir *d, uint8_t *block, size_t dots_len, unsigned levels)
{
    put_entry(block, d->inode, 12, ".", 1, TYPE_DIRECTORY);
    put_entry(block + 12, d->parent_inode, dots_len, "..", 2, TYPE_DIRECTORY);
    if (dots_len == 12)
        return;
    block[28] = HASH_HALF_MD4;
    block[29] = 8; /* length of struct dx_root_info */
    block[30] = (uint8_t)levels;
}

static int build_tree(struct ext4_dir *d, struct err *e)
{
    qsort(d->entries, d->count, sizeof(*d->entries), compare_hashes);
    size_t leaf_count = count_leaves(d);
    size_t node_count =
        leaf_count > ROOT_INDEX_MAX ? (leaf_count + NODE_INDEX_MAX - 1) / NODE_INDEX_MAX : 0;
    if (node_count > ROOT_INDEX_MAX)
        return err_set(e, ERR_UNSUPPORTED, "a directory of %zu names", d->count);
    AUTO_FREE struct leaf *leaves = mem_array(leaf_count, sizeof(*leaves));
    if (!leaves)
        return err_nomem(e, "directory");
    uint8_t *block;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < 1 + node_count; i++) /* root and index blocks come first */
        rc = add_block(d, &block, e);
    if (rc == 0)
        rc = add_leaves(d, leaves, e);
    if (rc < 0)
        return rc;

    size_t first_leaf = 1 + node_count;
    put_root(d, block_at(d, 0), BLOCK_SIZE - 12, node_count > 0);
    put_index(block_at(d, 0) + ROOT_INDEX_AT, ROOT_INDEX_MAX, leaves,
              node_count > 0 ? NODE_INDEX_MAX : 1, node_count > 0 ? node_count : leaf_count, 1);
    for (size_t i = 0; i < node_count; i++) {
        size_t from = i * NODE_INDEX_MAX, left = leaf_count - from;
        put_entry(block_at(d, 1 + i), 0, BLOCK_SIZE, "", 0, 0);
        put_index(block_at(d, 1 + i) + NODE_INDEX_AT, NODE_INDEX_MAX, leaves + from, 1,
                  left < NODE_INDEX_MAX ? left : NODE_INDEX_MAX, first_leaf + from);
    }
    return 0;
}

int ext4_dir_finish(struct ext4_dir *d, uint8_t **blocks, size_t *count, bool *indexed,
                    struct err *e)
{
    bool tree = d->list_len > LEAF_LEN;
    int rc;
    if (tree) {
        rc = build_tree(d, e);
    } else {
        uint8_t *block;
        rc = add_block(d, &block, e);
        if (rc == 0) {
            put_root(d, block, 12, 0);
            fill_leaf(d, block, DOTS_LEN, 12, 0);
        }
    }
    if (rc < 0)
        return rc;
    *blocks = d->blocks;
    *count = d->block_count;
    *indexed = tree;
    return 0;
}
