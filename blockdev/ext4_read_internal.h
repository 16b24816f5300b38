/* SPDX-License-Identifier: MIT */
/* What the two files of the ext4 reader share: names (ext4_read.c), what their inodes say (ext4_inode.c). One thread. */
#ifndef TB2_BLOCKDEV_EXT4_READ_INTERNAL_H
#define TB2_BLOCKDEV_EXT4_READ_INTERNAL_H

#include <ext2fs/ext2_fs.h>
#include <ext2fs/ext2fs.h>

#include "blockdev/ext4_read.h"
#include "blockdev/internal.h"

/* A name, and which inode has it. */
struct ext4_name {
    uint32_t name; /* where it begins in `names` */
    uint32_t parent;
    uint32_t link_of; /* of itself where it is the first */
    uint32_t inode;
    uint8_t type; /* enum ext4_type */
};

/* A file system that is open. */
struct ext4_reader {
    ext2_filsys fs;
    struct bdev *device;
    const struct cancel *cancel;
    uint64_t budget;
    bool cancelled, too_much; /* why a read was refused */
    struct ext4_name *nodes;
    size_t count, capacity;
    struct buf names; /* each ended by NUL */
    /* Of the node in hand. */
    struct ext4_extent *extents;
    size_t extent_count, extent_capacity;
    struct ext4_xattr *xattrs;
    size_t xattr_count, xattr_capacity;
    struct buf xattr_bytes;
    char target[LIMIT_PATH];
};

/* Sets the error for what the library said of `doing`; or why a read of it was refused. */
int ext4_reader_error(const struct ext4_reader *r, struct err *e, errcode_t code,
                      const char *doing);

/* Reads an inode that has a name. Errors name no path. */
int ext4_inode_read(struct ext4_reader *r, uint32_t number, struct ext2_inode_large *out,
                    struct err *e) MUST_USE;
/* The type that a mode has; *skip for sockets. */
int ext4_inode_type(uint8_t *out, bool *skip, uint32_t mode, struct err *e) MUST_USE;
/* All that the inode says; what `out` points to is in the reader, until the next call. */
int ext4_inode_fill(struct ext4_reader *r, uint32_t number, struct ext4_node *out,
                    struct err *e) MUST_USE;

#endif
