/* SPDX-License-Identifier: MIT */
/*
 * The tree of an ext4 file system that someone else has written to: a disk on which a guest's root user
 * had all power. Read-only. Everything on it is hostile: what contradicts itself is an error that names the
 * path, and reads, names and depths are bounded whatever it says.
 */
#ifndef TB2_BLOCKDEV_EXT4_READ_H
#define TB2_BLOCKDEV_EXT4_READ_H

#include "base/cancel.h"
#include "blockdev/blockdev.h"

/* Names that one file system may have. */
enum { EXT4_NAMES_MAX = 10 * 1000 * 1000 };

struct ext4_reader;

/*
 * Reads all names of the file system that the device holds; `d` and `c` (may be NULL) are borrowed for the
 * reader's life, and the device must stay as it is. ERR_CORRUPT: it holds none, or a damaged one;
 * ERR_UNSUPPORTED: one whose journal waits to be replayed, or with encrypted or inline files; ERR_LIMIT.
 * The library it is read by checks the checksums that the file system has.
 */
int ext4_reader_open(struct ext4_reader **out, struct bdev *d, const struct cancel *c,
                     struct err *e) MUST_USE;
void ext4_reader_close(struct ext4_reader *r);
DEFINE_AUTO(ext4_reader, ext4_reader_close)
#define AUTO_EXT4_READER CLEANUP(ext4_reader_close_auto_)

/* At least 1: the root. */
size_t ext4_reader_count(const struct ext4_reader *r);

/* Name, parent, link and type alone, which are in memory. */
void ext4_reader_peek(const struct ext4_reader *r, size_t index, struct ext4_node *out);

/*
 * A node as struct ext4_nodes has it (numbering, lifetime): one that ext4_write could write. Extents lie in
 * their file and on the device; what they leave out, blocks that were never written among it, is zeros.
 * Attributes are sorted by name. Sockets, which are nothing without their process, are left out of the tree.
 * One thread at a time. ERR_CORRUPT, ERR_LIMIT, naming the path.
 */
int ext4_reader_node(struct ext4_reader *r, size_t index, struct ext4_node *out,
                     struct err *e) MUST_USE;

/* Appends the path of a node, "" for the root. */
int ext4_reader_path(const struct ext4_reader *r, size_t index, struct buf *out,
                     struct err *e) MUST_USE;

#endif
