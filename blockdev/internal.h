/* SPDX-License-Identifier: MIT */
/* What the files of blockdev share with one another and with their unit tests. */
#ifndef TB2_BLOCKDEV_INTERNAL_H
#define TB2_BLOCKDEV_INTERNAL_H

#include "blockdev/blockdev.h"

/* ---- Chunk files (chunk.c) ---------------------------------------------------------------- */

/* Compressor and decompressor state of one thread at a time. */
struct chunk_codec;

int chunk_codec_new(struct chunk_codec **out, struct err *e) MUST_USE;
void chunk_codec_free(struct chunk_codec *c);

/* Compresses; the result is borrowed from the codec until its next use. */
int chunk_encode(struct chunk_codec *c, const void *data, size_t len, const void **out,
                 size_t *out_len, struct err *e) MUST_USE;

/* Reads an open chunk file into `data` (room for CHUNK_SIZE_MAX). ERR_CORRUPT, without a name, for anything but
 * one whole frame of a valid chunk size. */
int chunk_decode_file(struct chunk_codec *c, int fd, void *data, size_t *len,
                      struct err *e) MUST_USE;

/* ---- Store ------------------------------------------------------------------------------- */

/* A codec of the store's idle ones (or a new one), and back. */
int store_take_codec(struct store *s, struct chunk_codec **out, struct err *e) MUST_USE;
void store_give_codec(struct store *s, struct chunk_codec *c);

/* Makes every chunk that this process offered since the last call durable. */
int store_sync_chunks(struct store *s, struct err *e) MUST_USE;

/* Counts a chunk for store_stats; `stored_size` 0: was there already. */
void store_count_chunk(struct store *s, uint64_t stored_size);

/* Reads and checks every chunk changed at or after `since` (seconds of the epoch) and removes the
 * damaged ones: for what a power cut may have torn. */
int store_recheck_chunks(struct store *s, int64_t since, struct err *e) MUST_USE;

/* ---- Regions (region.c) ------------------------------------------------------------------- */

/* Bytes of one layer's region: a quarter of what ext4 can address without the 64bit feature. */
#define REGION_SIZE_MAX ((uint64_t)4 << 40)

/* ---- ext4 (ext4_plan.c, ext4_dir.c, ext4.c) ------------------------------------------------ */

enum {
    EXT4_INODE_SIZE = 256,
    EXT4_BLOCKS_PER_GROUP = 8 * BLOCK_SIZE, /* one bitmap block's bits */
    EXT4_ROOT_INODE = 2,
    EXT4_FIRST_INODE = 11, /* the ones before are reserved */
    EXT4_LINKS_MAX = 65000,
    EXT4_NAME_MAX = 255,
    EXT4_EXTENTS_IN_BLOCK = (BLOCK_SIZE - 12 - 4) / 12, /* header before, checksum after them */
    EXT4_EXTENTS_IN_INODE = 4,
    EXT4_EXTENT_BLOCKS_MAX = 32768, /* blocks that one extent can hold */
};

/* Where the metadata at the front of the disk lies; all in blocks. */
struct ext4_layout {
    uint64_t block_count; /* of the disk; whole groups */
    uint32_t group_count;
    uint32_t inodes_per_group;
    uint64_t block_bitmaps; /* first of group_count */
    uint64_t inode_bitmaps; /* first of group_count */
    uint64_t inode_tables;  /* first of group_count * inode_table_blocks */
    uint64_t inode_table_blocks;
    uint64_t front_end; /* first block after all of these */
};

/* What the writer remembers of a node. */
struct ext4_plan_node {
    uint32_t inode; /* links: that of the first name */
    uint32_t parent;
    uint32_t first_child; /* 0: none (the root is nobody's child) */
    uint32_t next_sibling;
    uint32_t links;
    enum ext4_type type;
    bool is_link;
};

struct ext4_plan {
    const struct ext4_nodes *nodes; /* borrowed */
    struct ext4_plan_node *node;
    uint32_t inode_count;  /* used, with the reserved ones */
    uint64_t data_blocks;  /* of the files */
    uint64_t loose_blocks; /* directories, extent trees, attributes, symlinks: at most */
    struct ext4_layout layout;
};

/* Reads all nodes once, checks how they hang together, numbers inodes, lays the disk out. */
int ext4_plan_init(struct ext4_plan *p, const struct ext4_nodes *nodes,
                   const struct ext4_options *options, struct err *e) MUST_USE;
void ext4_plan_fini(struct ext4_plan *p);
#define AUTO_EXT4_PLAN CLEANUP(ext4_plan_fini)

/* Sets an error about one node, naming its path. */
int ext4_node_error(const struct ext4_plan *p, size_t index, enum err_class class,
                    const char *reason, struct err *e);

/* A directory's entries, on the way to blocks. `hash` is ext4_name_hash of the name. */
struct ext4_dir;

int ext4_dir_new(struct ext4_dir **out, uint32_t inode, uint32_t parent_inode,
                 struct err *e) MUST_USE;
void ext4_dir_free(struct ext4_dir *d);
DEFINE_AUTO(ext4_dir, ext4_dir_free)
#define AUTO_EXT4_DIR CLEANUP(ext4_dir_free_auto_)
int ext4_dir_add(struct ext4_dir *d, const char *name, uint32_t inode, enum ext4_type type,
                 uint32_t hash, struct err *e) MUST_USE;
/* The blocks, borrowed from the directory, their checksums still to be set; *indexed when the first is the root of a hash tree. */
int ext4_dir_finish(struct ext4_dir *d, uint8_t **blocks, size_t *count, bool *indexed,
                    struct err *e) MUST_USE;

/* Hash of a name under the file system's seed (ext4.c). */
uint32_t ext4_name_hash(const char *name, size_t len, const uint32_t seed[4]);

/* ---- Pieces (image.c) --------------------------------------------------------------------- */

/* True if all `len` bytes are zero. */
bool piece_is_zero(const uint8_t *data, size_t len);

/*
 * Stores one piece of a disk, `len` bytes (a multiple of BLOCK_SIZE, at most CHUNK_SIZE_MAX) that
 * stand at `off`: its non-zero blocks, one after the other, become one chunk; adds their extents to
 * `m`. May move the blocks within `data`.
 */
int piece_put(struct store *s, struct block_map *m, uint64_t off, uint8_t *data, size_t len,
              struct err *e) MUST_USE;

#endif
