/* SPDX-License-Identifier: MIT */
/*
 * What an inode of a hostile file system says: its blocks, the target of a link, attributes, times. Read when
 * it is asked for, into the reader, which holds that of one node at a time.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "blockdev/ext4_read_internal.h"

enum {
    EXTENTS_MAX = 1 << 22, /* of one file */
    XATTRS_MAX = 4096,
};

#define ACL_PREFIX "system.posix_acl_"

/* More than ext4 holds with blocks of 4 KiB. */
#define FILE_SIZE_MAX ((uint64_t)16 << 40)

int ext4_inode_read(struct ext4_reader *r, uint32_t number, struct ext2_inode_large *out,
                    struct err *e)
{
    struct ext2_inode *small = (struct ext2_inode *)(void *)out;
    *out = (struct ext2_inode_large){0};
    errcode_t code = ext2fs_read_inode_full(r->fs, number, small, sizeof(*out));
    if (code)
        return ext4_reader_error(r, e, code, "reading the inode");
    if (out->i_links_count == 0)
        return err_set(e, ERR_CORRUPT, "it was removed, and still has a name");
    if (out->i_flags & (EXT4_ENCRYPT_FL | EXT4_INLINE_DATA_FL))
        return err_set(e, ERR_UNSUPPORTED, "encrypted or inline");
    return 0;
}

int ext4_inode_type(uint8_t *out, bool *skip, uint32_t mode, struct err *e)
{
    static const struct {
        uint32_t format;
        enum ext4_type type;
    } types[] = {{S_IFREG, EXT4_FILE},         {S_IFDIR, EXT4_DIRECTORY},
                 {S_IFLNK, EXT4_SYMLINK},      {S_IFCHR, EXT4_CHARACTER_DEVICE},
                 {S_IFBLK, EXT4_BLOCK_DEVICE}, {S_IFIFO, EXT4_FIFO}};
    *skip = (mode & S_IFMT) == S_IFSOCK;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if ((mode & S_IFMT) == types[i].format) {
            *out = (uint8_t)types[i].type;
            return 0;
        }
    }
    return *skip ? 0 : err_set(e, ERR_CORRUPT, "a file of no type");
}

/* Gives the next name of the directory in hand its node. */

/* ---- Blocks ---- */

static int add_extent(struct ext4_reader *r, const struct ext4_extent *x, struct err *e)
{
    const struct ext4_extent *last = r->extent_count > 0 ? &r->extents[r->extent_count - 1] : NULL;
    if (last && x->file_off < last->file_off + last->len)
        return err_set(e, ERR_CORRUPT, "its blocks are out of order");
    if (x->disk_off > r->device->size || x->len > r->device->size - x->disk_off)
        return err_set(e, ERR_CORRUPT, "its blocks are outside the disk");
    if (r->extent_count == EXTENTS_MAX)
        return err_set(e, ERR_LIMIT, "it is in more than %d pieces", EXTENTS_MAX);
    int rc =
        mem_grow(&r->extents, &r->extent_capacity, r->extent_count + 1, sizeof(*r->extents), e);
    if (rc == 0)
        r->extents[r->extent_count++] = *x;
    return rc;
}

/* Adds `count` blocks, as far as the file goes. */
static int add_blocks(struct ext4_reader *r, uint64_t size, uint64_t file_block, uint64_t count,
                      uint64_t disk_block, struct err *e)
{
    uint64_t unit = r->fs->blocksize;
    struct ext4_extent x = {.file_off = file_block * unit, .len = count * unit};
    if (x.file_off >= size)
        return 0;
    if (x.len > size - x.file_off)
        x.len = size - x.file_off;
    if (mem_mul_u64(disk_block, unit, &x.disk_off))
        return err_set(e, ERR_CORRUPT, "its blocks are outside the disk");
    return add_extent(r, &x, e);
}

static int read_extent_tree(struct ext4_reader *r, uint32_t number, struct ext2_inode_large *inode,
                            uint64_t size, struct err *e)
{
    ext2_extent_handle_t handle = NULL;
    struct ext2fs_extent x;
    int rc = 0;
    errcode_t code =
        ext2fs_extent_open2(r->fs, number, (struct ext2_inode *)(void *)inode, &handle);
    if (code)
        return ext4_reader_error(r, e, code, "reading its blocks");
    code = ext2fs_extent_get(handle, EXT2_EXTENT_ROOT, &x);
    while (rc == 0 && code == 0) {
        bool wanted =
            (x.e_flags & EXT2_EXTENT_FLAGS_LEAF) && !(x.e_flags & EXT2_EXTENT_FLAGS_UNINIT);
        if (wanted)
            rc = add_blocks(r, size, x.e_lblk, x.e_len, x.e_pblk, e);
        code = ext2fs_extent_get(handle, EXT2_EXTENT_NEXT, &x);
    }
    ext2fs_extent_free(handle);
    if (rc == 0 && code != EXT2_ET_EXTENT_NO_NEXT && code != EXT2_ET_NO_CURRENT_NODE)
        rc = ext4_reader_error(r, e, code, "reading its blocks");
    return rc;
}

struct block_list {
    struct ext4_reader *reader;
    uint64_t size;
    struct err *e;
    int rc;
};

static int on_block(ext2_filsys fs UNUSED, blk64_t *block, e2_blkcnt_t number, blk64_t at UNUSED,
                    int off UNUSED, void *ctx)
{
    struct block_list *l = ctx;
    l->rc = add_blocks(l->reader, l->size, (uint64_t)number, 1, *block, l->e);
    return l->rc < 0 ? BLOCK_ABORT : 0;
}

/* As ext2 and ext3 keep them. */
static int read_block_list(struct ext4_reader *r, uint32_t number, uint64_t size, struct err *e)
{
    struct block_list l = {.reader = r, .size = size, .e = e};
    errcode_t code = ext2fs_block_iterate3(
        r->fs, number, BLOCK_FLAG_DATA_ONLY | BLOCK_FLAG_READ_ONLY, NULL, on_block, &l);
    if (l.rc < 0)
        return l.rc;
    return code ? ext4_reader_error(r, e, code, "reading its blocks") : 0;
}

static int read_blocks(struct ext4_reader *r, uint32_t number, struct ext2_inode_large *inode,
                       uint64_t size, struct err *e)
{
    r->extent_count = 0;
    if (size > FILE_SIZE_MAX)
        return err_set(e, ERR_CORRUPT, "it is larger than a file can be");
    return inode->i_flags & EXT4_EXTENTS_FL ? read_extent_tree(r, number, inode, size, e)
                                            : read_block_list(r, number, size, e);
}

/* A short target stands where the block numbers would be. */
static int read_target(struct ext4_reader *r, uint32_t number, struct ext2_inode_large *inode,
                       uint64_t size, struct err *e)
{
    if (size == 0 || size >= sizeof(r->target))
        return err_set(e, ERR_CORRUPT, "a link of %llu bytes", (unsigned long long)size);
    memset(r->target, 0, sizeof(r->target));
    if (ext2fs_is_fast_symlink((struct ext2_inode *)(void *)inode)) {
        memcpy(r->target, inode->i_block,
               size < sizeof(inode->i_block) ? size : sizeof(inode->i_block));
    } else {
        int rc = read_blocks(r, number, inode, size, e);
        for (size_t i = 0; rc == 0 && i < r->extent_count; i++) {
            const struct ext4_extent *x = &r->extents[i];
            if (bdev_read(r->device, r->target + x->file_off, x->len, x->disk_off) < 0)
                rc = err_set(e, ERR_CORRUPT, "its target cannot be read");
        }
        if (rc < 0)
            return rc;
    }
    return strlen(r->target) == size ? 0 : err_set(e, ERR_CORRUPT, "its target is none");
}

/* ---- Attributes ---- */

struct xattr_list {
    struct ext4_reader *reader;
    struct ext2_xattr_handle *handle;
    struct err *e;
    int rc;
};

/* Names and values go into one buffer, which may move: they are offsets first. */
static int take_xattr(struct ext4_reader *r, const char *name, const void *value, size_t len,
                      struct err *e)
{
    int rc = 0;
    if (r->xattr_count == XATTRS_MAX)
        rc = err_set(e, ERR_LIMIT, "more than %d attributes", XATTRS_MAX);
    if (rc == 0)
        rc = mem_grow(&r->xattrs, &r->xattr_capacity, r->xattr_count + 1, sizeof(*r->xattrs), e);
    if (rc == 0)
        rc = buf_add(&r->xattr_bytes, name, strlen(name) + 1, e);
    if (rc == 0)
        rc = buf_add(&r->xattr_bytes, value, len, e);
    if (rc == 0)
        r->xattrs[r->xattr_count++] = (struct ext4_xattr){.value_len = len};
    return rc;
}

/* Entries that name nobody have this for a number (include/uapi/linux/posix_acl_xattr.h); the library leaves
 * a 0 there. */
static void settle_acl(uint8_t *acl, size_t len)
{
    enum { HEAD_LEN = 4, ENTRY_LEN = 8, ID_AT = 4, TAG_USER = 2, TAG_GROUP = 8 };
    for (size_t at = HEAD_LEN; at + ENTRY_LEN <= len; at += ENTRY_LEN) {
        if (acl[at] != TAG_USER && acl[at] != TAG_GROUP)
            memset(acl + at + ID_AT, 0xff, ENTRY_LEN - ID_AT);
    }
}

/* ACLs have a form of their own on the disk; asked for by name, they come as the kernel gives them. */
static int take_acl(struct xattr_list *l, const char *name)
{
    void *value = NULL;
    size_t len = 0;
    errcode_t code = ext2fs_xattr_get(l->handle, name, &value, &len);
    if (code)
        return ext4_reader_error(l->reader, l->e, code, "reading its attributes");
    settle_acl(value, len);
    int rc = take_xattr(l->reader, name, value, len, l->e);
    ext2fs_free_mem(&value);
    return rc;
}

static int on_xattr(char *name, char *value, size_t len, void *ctx)
{
    struct xattr_list *l = ctx;
    l->rc = strncmp(name, ACL_PREFIX, strlen(ACL_PREFIX)) == 0
                ? take_acl(l, name)
                : take_xattr(l->reader, name, value, len, l->e);
    return l->rc < 0 ? XATTR_ABORT : 0;
}

static int compare_xattrs(const void *a, const void *b)
{
    const struct ext4_xattr *x = a;
    const struct ext4_xattr *y = b;
    return strcmp(x->name, y->name);
}

static int read_xattrs(struct ext4_reader *r, uint32_t number, struct err *e)
{
    struct ext2_xattr_handle *handle = NULL;
    struct xattr_list l = {.reader = r, .e = e};
    r->xattr_count = 0;
    r->xattr_bytes.len = 0;
    errcode_t code = ext2fs_xattrs_open(r->fs, number, &handle);
    l.handle = handle;
    if (code == 0)
        code = ext2fs_xattrs_read(handle);
    if (code == 0)
        code = ext2fs_xattrs_iterate(handle, on_xattr, &l);
    if (handle)
        ext2fs_xattrs_close(&handle);
    if (l.rc < 0)
        return l.rc;
    if (code)
        return ext4_reader_error(r, e, code, "reading its attributes");
    const uint8_t *at = r->xattr_bytes.data;
    for (size_t i = 0; i < r->xattr_count; i++) {
        struct ext4_xattr *x = &r->xattrs[i];
        x->name = (const char *)at;
        x->value = at + strlen(x->name) + 1;
        at = x->value + x->value_len;
    }
    if (r->xattr_count > 1)
        qsort(r->xattrs, r->xattr_count, sizeof(*r->xattrs), compare_xattrs);
    return 0;
}

/* ---- All of it ---- */

static void take_times(const struct ext4_reader *r, const struct ext2_inode_large *inode,
                       struct ext4_node *out)
{
    size_t need = offsetof(struct ext2_inode_large, i_mtime_extra) + sizeof(uint32_t);
    out->mtime_seconds = (int32_t)inode->i_mtime;
    if (EXT2_INODE_SIZE(r->fs->super) < need ||
        (size_t)EXT2_GOOD_OLD_INODE_SIZE + inode->i_extra_isize < need)
        return;
    out->mtime_seconds += (int64_t)(inode->i_mtime_extra & 3) << 32;
    uint32_t nanoseconds = inode->i_mtime_extra >> 2;
    out->mtime_nanoseconds = nanoseconds < 1000000000 ? nanoseconds : 0;
}

/* Kernel's two forms of a device number (new_decode_dev and old_decode_dev of Linux). */
static void take_device(const struct ext2_inode_large *inode, struct ext4_node *out)
{
    uint32_t old = inode->i_block[0];
    uint32_t new = inode->i_block[1];
    if (old) {
        out->device_major = old >> 8 & 0xff;
        out->device_minor = old & 0xff;
        return;
    }
    out->device_major = (new & 0xfff00) >> 8;
    out->device_minor = (new & 0xff) | (new >> 12 & 0xfff00);
}

int ext4_inode_fill(struct ext4_reader *r, uint32_t number, struct ext4_node *out, struct err *e)
{
    struct ext2_inode_large inode;
    uint8_t type = 0;
    bool skip = false;
    int rc = ext4_inode_read(r, number, &inode, e);
    if (rc == 0)
        rc = ext4_inode_type(&type, &skip, inode.i_mode, e);
    if (rc < 0)
        return rc;
    uint64_t size = EXT2_I_SIZE(&inode);
    out->mode = inode.i_mode & 07777;
    out->uid = inode_uid(inode);
    out->gid = inode_gid(inode);
    take_times(r, &inode, out);
    r->extent_count = 0;
    if (type == EXT4_FILE) {
        out->size = size;
        rc = read_blocks(r, number, &inode, size, e);
        out->extents = r->extents;
        out->extent_count = r->extent_count;
    } else if (type == EXT4_SYMLINK) {
        rc = read_target(r, number, &inode, size, e);
        out->target = r->target;
    } else if (type == EXT4_CHARACTER_DEVICE || type == EXT4_BLOCK_DEVICE) {
        take_device(&inode, out);
    }
    if (rc == 0)
        rc = read_xattrs(r, number, e);
    out->xattrs = r->xattrs;
    out->xattr_count = r->xattr_count;
    return rc;
}
