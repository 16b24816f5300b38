/* SPDX-License-Identifier: MIT */
/*
 * Reads a file system through libext2fs, over a block device of ours. Names are read once, into memory;
 * what an inode says is read when it is asked for (ext4_inode.c).
 *
 * The library checks what it decodes, but never gives up: an extent tree that points to itself is read for
 * as long as it seems to go on. So all its reads come through here, and have a budget.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/ext4_read_internal.h"

enum {
    SUPERBLOCK_AT = 1024,
    SUPERBLOCK_LEN = 1024,
    BLOCK_SIZE_LOG_MAX = 6, /* 64 KiB */
    DEPTH_MAX = 2048,       /* directories above one another in a path of LIMIT_PATH bytes */
};

/* What all reads of metadata together may come to: this, and so many times the disk. */
#define BUDGET_MIN ((uint64_t)64 << 20)
#define BUDGET_TIMES 8

/* ---- The library's way to the device ---- */

static errcode_t channel_read(io_channel channel, unsigned long long block, int count, void *data)
{
    struct ext4_reader *r = channel->private_data;
    uint64_t unit = (uint64_t)channel->block_size;
    uint64_t len = count < 0 ? (uint64_t)-count : (uint64_t)count * unit;
    uint64_t off;
    r->cancelled |= cancel_is_set(r->cancel);
    r->too_much |= len > r->budget;
    if (r->cancelled || r->too_much)
        return EIO;
    r->budget -= len;
    if (mem_mul_u64(block, unit, &off) || off > r->device->size || len > r->device->size - off)
        return EXT2_ET_SHORT_READ;
    return bdev_read(r->device, data, len, off) < 0 ? EIO : 0;
}

static errcode_t channel_read_32(io_channel channel, unsigned long block, int count, void *data)
{
    return channel_read(channel, block, count, data);
}

static errcode_t channel_write(io_channel channel UNUSED, unsigned long block UNUSED,
                               int count UNUSED, const void *data UNUSED)
{
    return EROFS;
}

static errcode_t channel_set_size(io_channel channel, int size)
{
    channel->block_size = size;
    return 0;
}

static errcode_t channel_flush(io_channel channel UNUSED)
{
    return 0;
}

static errcode_t channel_close(io_channel channel)
{
    if (--channel->refcount > 0)
        return 0;
    free(channel->name);
    free(channel);
    return 0;
}

static errcode_t channel_open(const char *name, int flags, io_channel *out);
static struct struct_io_manager device_manager = {
    .magic = EXT2_ET_MAGIC_IO_MANAGER,
    .name = "tb2 block device",
    .open = channel_open,
    .close = channel_close,
    .set_blksize = channel_set_size,
    .read_blk = channel_read_32,
    .read_blk64 = channel_read,
    .write_blk = channel_write,
    .flush = channel_flush,
};

/* A manager is given nothing but a name: it is the reader's address. */
static errcode_t channel_open(const char *name, int flags UNUSED, io_channel *out)
{
    void *reader = NULL;
    struct struct_io_channel *c = mem_zalloc(sizeof(*c));
    if (!c || sscanf(name, "%p", &reader) != 1 || !(c->name = mem_strdup(name))) {
        free(c);
        return EXT2_ET_NO_MEMORY;
    }
    c->magic = EXT2_ET_MAGIC_IO_CHANNEL;
    c->manager = &device_manager;
    c->block_size = SUPERBLOCK_LEN;
    c->refcount = 1;
    c->private_data = reader;
    *out = c;
    return 0;
}

int ext4_reader_error(const struct ext4_reader *r, struct err *e, errcode_t code, const char *doing)
{
    if (r->cancelled)
        return err_set(e, ERR_CANCELLED, "cancelled");
    if (r->too_much)
        return err_set(e, ERR_CORRUPT, "%s: its structures go in circles", doing);
    if (code == EXT2_ET_NO_MEMORY)
        return err_nomem(e, "file system");
    if (code > 0 && code < 4096)
        return err_set(e, ERR_CORRUPT, "%s: %s", doing, strerror((int)code));
    return err_set(e, ERR_CORRUPT, "%s: libext2fs error %ld", doing, (long)code);
}

/* ---- The file system ---- */

static uint32_t le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The library sizes its tables by what the superblock says: that must not be more than there is
 * (Documentation/filesystems/ext4/super.rst of Linux). */
static int check_superblock(struct bdev *d, struct err *e)
{
    uint8_t super[SUPERBLOCK_LEN];
    if (d->size < SUPERBLOCK_AT + SUPERBLOCK_LEN)
        return err_set(e, ERR_CORRUPT, "no ext4 file system: the disk is too small");
    if (bdev_read(d, super, sizeof(super), SUPERBLOCK_AT) < 0)
        return err_set(e, ERR_CORRUPT, "the superblock cannot be read");
    if (super[0x38] != 0x53 || super[0x39] != 0xef)
        return err_set(e, ERR_CORRUPT, "no ext4 file system");
    uint32_t size_log = le32(super + 0x18);
    uint64_t blocks = le32(super + 0x04);
    if (le32(super + 0x60) & EXT4_FEATURE_INCOMPAT_64BIT)
        blocks |= (uint64_t)le32(super + 0x150) << 32;
    if (size_log > BLOCK_SIZE_LOG_MAX || blocks > d->size >> (10 + size_log))
        return err_set(e, ERR_CORRUPT, "the file system is larger than its disk");
    return 0;
}

static int open_file_system(struct ext4_reader *r, struct err *e)
{
    char name[32];
    int rc = check_superblock(r->device, e);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%p", (void *)r);
    errcode_t code =
        ext2fs_open(name, EXT2_FLAG_64BITS | EXT2_FLAG_SKIP_MMP, 0, 0, &device_manager, &r->fs);
    if (code == EXT2_ET_UNSUPP_FEATURE || code == EXT2_ET_RO_UNSUPP_FEATURE)
        return err_set(e, ERR_UNSUPPORTED, "the file system has features unknown here");
    if (code)
        return ext4_reader_error(r, e, code, "opening the file system");
    if (ext2fs_has_feature_journal_needs_recovery(r->fs->super))
        return err_set(e, ERR_UNSUPPORTED, "the journal is not empty: it was not shut down");
    return 0;
}

/* ---- Names ---- */

static const char *name_of(const struct ext4_reader *r, const struct ext4_name *n)
{
    return (const char *)r->names.data + n->name;
}

int ext4_reader_path(const struct ext4_reader *r, size_t index, struct buf *out, struct err *e)
{
    uint32_t chain[DEPTH_MAX];
    size_t depth = 0;
    for (size_t at = index; at != 0; at = r->nodes[at].parent)
        chain[depth++] = (uint32_t)at;
    int rc = 0;
    while (rc == 0 && depth-- > 0) {
        rc = buf_add_text(out, name_of(r, &r->nodes[chain[depth]]), e);
        if (rc == 0 && depth > 0)
            rc = buf_add_text(out, "/", e);
    }
    return rc;
}

/* Puts the path of a node before an error. */
static int err_at(const struct ext4_reader *r, size_t index, struct err *e)
{
    struct err ignored = ERR_INIT;
    AUTO_BUF struct buf path;
    buf_init(&path, 2 * LIMIT_PATH);
    if (ext4_reader_path(r, index, &path, &ignored) < 0)
        return -(int)e->class;
    for (size_t i = 0; i < path.len; i++) {
        if (path.data[i] < ' ' || path.data[i] > '~')
            path.data[i] = '?';
    }
    return err_in(e, "/%s", buf_text(&path));
}

/* A name that was read and has no node yet. */
struct pending {
    uint32_t name;
    uint32_t inode;
};

/* A directory whose names are being taken up. */
struct level {
    uint32_t node;
    size_t path_len;
    size_t next, end; /* in `pending` */
};

struct walk {
    struct ext4_reader *reader;
    struct pending *pending;
    size_t count, capacity;
    struct level *levels;
    size_t depth, level_capacity;
    struct err *e;
    int rc; /* of the callback */
};

static void walk_fini(struct walk *w)
{
    free(w->pending);
    free(w->levels);
}

static int take_name(struct walk *w, const char *name, size_t len, uint32_t inode)
{
    struct ext4_reader *r = w->reader;
    struct err *e = w->e;
    if (len == 0 || memchr(name, '/', len) || memchr(name, 0, len))
        return err_set(e, ERR_CORRUPT, "it has a name that is none");
    if (inode == 0 || inode > r->fs->super->s_inodes_count)
        return err_set(e, ERR_CORRUPT, "it has a name of no inode");
    if (r->count + w->count >= EXT4_NAMES_MAX)
        return err_set(e, ERR_LIMIT, "more than %d names", EXT4_NAMES_MAX);
    int rc = mem_grow(&w->pending, &w->capacity, w->count + 1, sizeof(*w->pending), e);
    if (rc < 0)
        return rc;
    w->pending[w->count] = (struct pending){(uint32_t)r->names.len, inode};
    rc = buf_add(&r->names, name, len, e);
    if (rc == 0)
        rc = buf_add_u8(&r->names, 0, e);
    w->count += rc == 0;
    return rc;
}

static int on_name(struct ext2_dir_entry *d, int off UNUSED, int size UNUSED, char *block UNUSED,
                   void *ctx)
{
    struct walk *w = ctx;
    size_t len = (size_t)ext2fs_dirent_name_len(d);
    bool dots = len <= 2 && memcmp(d->name, "..", len) == 0;
    w->rc = dots && len > 0 ? 0 : take_name(w, d->name, len, d->inode);
    return w->rc < 0 ? DIRENT_ABORT : 0;
}

static int by_name(const void *a, const void *b, void *names)
{
    const struct pending *x = a;
    const struct pending *y = b;
    return strcmp((const char *)names + x->name, (const char *)names + y->name);
}

/* Whether the directory can be entered, and the length of its path. */
static int check_place(const struct walk *w, const struct ext4_name *n, size_t *path_len)
{
    const struct level *above = w->depth > 0 ? &w->levels[w->depth - 1] : NULL;
    *path_len = above ? above->path_len + 1 + strlen(name_of(w->reader, n)) : 0;
    for (size_t i = 0; i < w->depth; i++) {
        if (w->reader->nodes[w->levels[i].node].inode == n->inode)
            return err_set(w->e, ERR_CORRUPT, "a directory below itself");
    }
    if (w->depth == DEPTH_MAX || *path_len + 1 + NAME_MAX >= LIMIT_PATH)
        return err_set(w->e, ERR_LIMIT, "directories are nested too deeply");
    return 0;
}

/* Reads the names of a directory and makes it the one in hand. */
static int enter(struct walk *w, size_t node)
{
    struct ext4_reader *r = w->reader;
    size_t first = w->count;
    size_t path_len;
    int rc = check_place(w, &r->nodes[node], &path_len);
    if (rc == 0)
        rc = mem_grow(&w->levels, &w->level_capacity, w->depth + 1, sizeof(*w->levels), w->e);
    if (rc < 0)
        return rc;
    errcode_t code = ext2fs_dir_iterate(r->fs, r->nodes[node].inode, 0, NULL, on_name, w);
    if (w->rc < 0)
        return w->rc;
    if (code)
        return ext4_reader_error(r, w->e, code, "reading the directory");
    if (w->count > first)
        qsort_r(w->pending + first, w->count - first, sizeof(*w->pending), by_name, r->names.data);
    for (size_t i = first + 1; i < w->count; i++) {
        if (by_name(&w->pending[i - 1], &w->pending[i], r->names.data) == 0)
            return err_set(w->e, ERR_CORRUPT, "it has a name twice");
    }
    w->levels[w->depth++] = (struct level){(uint32_t)node, path_len, first, w->count};
    return 0;
}

static int take_up(struct walk *w, uint32_t parent, const struct pending *p)
{
    struct ext4_reader *r = w->reader;
    struct ext2_inode_large inode;
    bool skip = false;
    int rc = mem_grow(&r->nodes, &r->capacity, r->count + 1, sizeof(*r->nodes), w->e);
    if (rc < 0)
        return rc;
    size_t index = r->count;
    struct ext4_name *n = &r->nodes[index];
    *n = (struct ext4_name){p->name, parent, (uint32_t)index, p->inode, 0};
    rc = ext4_inode_read(r, p->inode, &inode, w->e);
    if (rc == 0)
        rc = ext4_inode_type(&n->type, &skip, inode.i_mode, w->e);
    if (rc == 0 && index == 0 && n->type != EXT4_DIRECTORY)
        rc = err_set(w->e, ERR_CORRUPT, "the root is no directory");
    if (rc == 0 && skip)
        return 0;
    r->count++;
    if (rc == 0 && n->type == EXT4_DIRECTORY)
        rc = enter(w, index);
    return rc < 0 ? err_at(r, index, w->e) : 0;
}

static int walk_all(struct walk *w)
{
    struct pending root = {0, EXT2_ROOT_INO};
    int rc = buf_add_u8(&w->reader->names, 0, w->e); /* the root's name */
    if (rc == 0)
        rc = take_up(w, 0, &root);
    while (rc == 0 && w->depth > 0) {
        struct level *l = &w->levels[w->depth - 1];
        if (l->next == l->end) {
            w->count = --w->depth > 0 ? w->levels[w->depth - 1].end : 0;
            continue;
        }
        struct pending p = w->pending[l->next++];
        rc = take_up(w, l->node, &p);
    }
    return rc;
}

/* ---- Links ---- */

struct by_inode {
    uint32_t inode;
    uint32_t node;
};

static int compare_inodes(const void *a, const void *b)
{
    const struct by_inode *x = a;
    const struct by_inode *y = b;
    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

/* Finds names of one inode. A directory has one. */
static int find_links(struct ext4_reader *r, struct err *e)
{
    AUTO_FREE struct by_inode *order = mem_array(r->count, sizeof(*order));
    if (!order)
        return err_nomem(e, "links");
    for (size_t i = 0; i < r->count; i++)
        order[i] = (struct by_inode){r->nodes[i].inode, (uint32_t)i};
    qsort(order, r->count, sizeof(*order), compare_inodes);
    for (size_t i = 1; i < r->count; i++) {
        if (order[i].inode != order[i - 1].inode)
            continue;
        struct ext4_name *n = &r->nodes[order[i].node];
        if (n->type == EXT4_DIRECTORY) {
            err_set(e, ERR_CORRUPT, "a directory of two names");
            return err_at(r, order[i].node, e);
        }
        n->link_of = r->nodes[order[i - 1].node].link_of;
    }
    return 0;
}

/* ---- Nodes ---- */

void ext4_reader_peek(const struct ext4_reader *r, size_t index, struct ext4_node *out)
{
    const struct ext4_name *n = &r->nodes[index];
    *out = (struct ext4_node){.name = name_of(r, n),
                              .parent = n->parent,
                              .link_of = n->link_of == index ? SIZE_MAX : n->link_of,
                              .type = (enum ext4_type)n->type};
}

int ext4_reader_node(struct ext4_reader *r, size_t index, struct ext4_node *out, struct err *e)
{
    ext4_reader_peek(r, index, out);
    int rc = ext4_inode_fill(r, r->nodes[index].inode, out, e);
    return rc < 0 ? err_at(r, index, e) : 0;
}

size_t ext4_reader_count(const struct ext4_reader *r)
{
    return r->count;
}

/* ---- Beginning and end ---- */

int ext4_reader_open(struct ext4_reader **out, struct bdev *d, const struct cancel *c,
                     struct err *e)
{
    AUTO_EXT4_READER struct ext4_reader *r = mem_zalloc(sizeof(*r));
    if (!r)
        return err_nomem(e, "file system");
    r->device = d;
    r->cancel = c;
    r->budget = d->size > (UINT64_MAX - BUDGET_MIN) / BUDGET_TIMES
                    ? UINT64_MAX
                    : BUDGET_MIN + BUDGET_TIMES * d->size;
    buf_init(&r->names, (size_t)1 << 31);
    buf_init(&r->xattr_bytes, (size_t)4 << 20);
    struct walk walk = {.reader = r, .e = e};
    int rc = open_file_system(r, e);
    if (rc == 0)
        rc = walk_all(&walk);
    walk_fini(&walk);
    if (rc == 0)
        rc = find_links(r, e);
    if (rc == 0)
        *out = MOVE(r);
    return rc;
}

void ext4_reader_close(struct ext4_reader *r)
{
    if (!r)
        return;
    if (r->fs)
        ext2fs_close_free(&r->fs);
    free(r->nodes);
    free(r->extents);
    free(r->xattrs);
    buf_fini(&r->names);
    buf_fini(&r->xattr_bytes);
    free(r);
}
