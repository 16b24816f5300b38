/* SPDX-License-Identifier: MIT */
/*
 * Writes the planned file system into a sparse temporary file through libext2fs, whose non-zero
 * blocks then become chunks. The library has the superblock, descriptors, bitmaps, inode tables,
 * attributes and all checksums; directories and extent trees, where it would search for a place
 * with each addition, are built in memory and handed over as blocks.
 *
 * Order of blocks: tables, then "loose" blocks (directories, extent trees, attributes, long link
 * targets) in order of the nodes up to the first region, then, if that is not enough, after the
 * last one. Nothing here asks for the time, the environment or a random number.
 */
#include <errno.h>
#include <ext2fs/ext2_fs.h>
#include <ext2fs/ext2fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    FILE_SYSTEM_TIME = 1577836800, /* 2020-01-01T00:00:00Z, on every disk */
    GROUPS_PER_FLEX_LOG = 4,       /* what mke2fs uses: 16 */
    EXTENT_MAGIC = 0xf30a,
    EXTENT_ENTRY_LEN = 12,
    SHORT_TARGET_MAX = 59, /* link targets that stand in the inode */
    ACL_VERSION = 2,       /* include/uapi/linux/posix_acl_xattr.h */
};

#define TIME_SECONDS_MIN ((int64_t)INT32_MIN)
#define TIME_SECONDS_MAX (((int64_t)3 << 32) + INT32_MAX)

/* Blocks of a file that lie together. */
struct run {
    uint32_t file_block;
    uint32_t count;
    uint64_t disk_block;
};

struct writer {
    ext2_filsys fs;
    const struct ext4_plan *plan;
    uint64_t next_loose; /* blocks */
    uint64_t data_start;
    uint64_t data_end;
    struct run *runs; /* of the inode in hand */
    size_t run_count;
    size_t run_capacity;
};

static int library_error(struct err *e, errcode_t code, const char *doing)
{
    if (code == EXT2_ET_NO_MEMORY)
        return err_nomem(e, "ext4 file system");
    if (code > 0 && code < 4096)
        return err_sysno(e, (int)code, "ext4: %s", doing);
    return err_set(e, ERR_CORRUPT, "ext4: %s: libext2fs error %ld", doing, (long)code);
}

/* ---- File system ----------------------------------------------------------------------- */

static void set_features(struct ext2_super_block *super)
{
    super->s_feature_compat = EXT2_FEATURE_COMPAT_EXT_ATTR | EXT2_FEATURE_COMPAT_DIR_INDEX |
                              EXT4_FEATURE_COMPAT_SPARSE_SUPER2;
    super->s_feature_incompat = EXT2_FEATURE_INCOMPAT_FILETYPE | EXT3_FEATURE_INCOMPAT_EXTENTS |
                                EXT4_FEATURE_INCOMPAT_FLEX_BG;
    super->s_feature_ro_compat =
        EXT2_FEATURE_RO_COMPAT_LARGE_FILE | EXT4_FEATURE_RO_COMPAT_HUGE_FILE |
        EXT4_FEATURE_RO_COMPAT_DIR_NLINK | EXT4_FEATURE_RO_COMPAT_EXTRA_ISIZE |
        EXT4_FEATURE_RO_COMPAT_METADATA_CSUM;
}

/* UUID and hash seed come of the seed. The UUID says version 8, which RFC 9562 leaves to us. */
static void set_identity(ext2_filsys fs, const struct digest *seed)
{
    memcpy(fs->super->s_uuid, seed->bytes, 16);
    fs->super->s_uuid[6] = (uint8_t)((fs->super->s_uuid[6] & 0x0f) | 0x80);
    fs->super->s_uuid[8] = (uint8_t)((fs->super->s_uuid[8] & 0x3f) | 0x80);
    memcpy(fs->super->s_hash_seed, seed->bytes + 16, 16);
    fs->super->s_def_hash_version = EXT2_HASH_HALF_MD4;
    fs->super->s_flags |= EXT2_FLAGS_SIGNED_HASH;
    fs->super->s_checksum_type = EXT2_CRC32C_CHKSUM;
    ext2fs_init_csum_seed(fs);
}

static void set_policy(ext2_filsys fs)
{
    fs->now = FILE_SYSTEM_TIME; /* time of the last write */
    fs->super->s_mkfs_time = FILE_SYSTEM_TIME;
    fs->super->s_lastcheck = FILE_SYSTEM_TIME;
    fs->super->s_checkinterval = 0;
    fs->super->s_max_mnt_count = -1;
    fs->super->s_default_mount_opts = EXT2_DEFM_XATTR_USER | EXT2_DEFM_ACL;
    fs->super->s_min_extra_isize = sizeof(struct ext2_inode_large) - EXT2_GOOD_OLD_INODE_SIZE;
    fs->super->s_want_extra_isize = fs->super->s_min_extra_isize;
    fs->super->s_state = EXT2_VALID_FS;
    ext2fs_mark_valid(fs);
}

/* Tables lie where the plan says; what the guest will not have to zero is marked so. */
static void place_tables(ext2_filsys fs, const struct ext4_layout *l)
{
    for (dgrp_t g = 0; g < l->group_count; g++) {
        ext2fs_block_bitmap_loc_set(fs, g, l->block_bitmaps + g);
        ext2fs_inode_bitmap_loc_set(fs, g, l->inode_bitmaps + g);
        ext2fs_inode_table_loc_set(fs, g, l->inode_tables + g * l->inode_table_blocks);
        ext2fs_bg_flags_set(fs, g, EXT2_BG_INODE_ZEROED);
    }
    ext2fs_block_alloc_stats_range(fs, l->block_bitmaps, (blk_t)(l->front_end - l->block_bitmaps),
                                   +1);
    for (ext2_ino_t inode = 1; inode < EXT4_FIRST_INODE; inode++)
        ext2fs_inode_alloc_stats2(fs, inode, +1, inode == EXT4_ROOT_INODE);
}

static int loose_block(struct writer *w, uint64_t *out)
{
    if (w->next_loose == w->data_start)
        w->next_loose = w->data_end;
    if (w->next_loose >= w->plan->layout.block_count)
        return -1;
    *out = w->next_loose++;
    return 0;
}

/* The library's way to a block for attributes. */
static errcode_t give_block(ext2_filsys fs, blk64_t goal UNUSED, blk64_t *out)
{
    uint64_t block;
    if (loose_block(fs->priv_data, &block) < 0)
        return EXT2_ET_BLOCK_ALLOC_FAIL;
    *out = block;
    return 0;
}

static int open_file_system(struct writer *w, const char *path, const struct ext4_options *o,
                            struct err *e)
{
    const struct ext4_layout *l = &w->plan->layout;
    struct ext2_super_block parameters = {
        .s_blocks_count = (uint32_t)l->block_count,
        .s_inodes_count = l->group_count * l->inodes_per_group,
        .s_log_block_size = 2,
        .s_log_cluster_size = 2,
        .s_rev_level = EXT2_DYNAMIC_REV,
        .s_inode_size = EXT4_INODE_SIZE,
        .s_log_groups_per_flex = GROUPS_PER_FLEX_LOG,
    };
    set_features(&parameters);
    errcode_t code =
        ext2fs_initialize(path, EXT2_FLAG_64BITS, &parameters, unix_io_manager, &w->fs);
    if (code)
        return library_error(e, code, "starting a file system");
    ext2_filsys fs = w->fs;
    if (ext2fs_blocks_count(fs->super) != l->block_count ||
        fs->super->s_inodes_per_group != l->inodes_per_group ||
        fs->super->s_reserved_gdt_blocks != 0 || 1 + fs->desc_blocks != l->block_bitmaps)
        return err_set(e, ERR_UNSUPPORTED, "ext4: this libext2fs lays disks out differently");
    set_identity(fs, &o->seed);
    set_policy(fs);
    place_tables(fs, l);
    fs->priv_data = w;
    ext2fs_set_alloc_block_callback(fs, give_block, NULL);
    return 0;
}

/* ---- Blocks of an inode ---------------------------------------------------------------- */

static int take_block(struct writer *w, uint64_t *out, struct err *e)
{
    if (loose_block(w, out) < 0)
        return err_set(e, ERR_LIMIT, "ext4: no room left for metadata");
    ext2fs_block_alloc_stats2(w->fs, *out, +1);
    return 0;
}

static int write_block(struct writer *w, uint64_t block, const void *data, struct err *e)
{
    errcode_t code = io_channel_write_blk64(w->fs->io, block, 1, data);
    return code ? library_error(e, code, "writing a block") : 0;
}

/* Adds blocks to the inode in hand, joined to the run before where they continue it. */
static int add_run(struct writer *w, uint64_t file_block, uint64_t count, uint64_t disk_block,
                   struct err *e)
{
    while (count > 0) {
        struct run *last = w->run_count > 0 ? &w->runs[w->run_count - 1] : NULL;
        bool joins = last && last->file_block + last->count == file_block &&
                     last->disk_block + last->count == disk_block &&
                     last->count < EXT4_EXTENT_BLOCKS_MAX;
        if (!joins) {
            int rc = mem_grow(&w->runs, &w->run_capacity, w->run_count + 1, sizeof(*w->runs), e);
            if (rc < 0)
                return rc;
            last = &w->runs[w->run_count++];
            *last = (struct run){.file_block = (uint32_t)file_block, .disk_block = disk_block};
        }
        uint64_t room = EXT4_EXTENT_BLOCKS_MAX - last->count;
        uint64_t part = count < room ? count : room;
        last->count += (uint32_t)part;
        file_block += part;
        disk_block += part;
        count -= part;
    }
    return 0;
}

/* A header and its entries: leaves hold runs, index blocks (depth above 0) the first file block
 * and the place of each child (`count` of the run is not used). */
static void put_extents(uint8_t *at, const struct run *runs, size_t count, size_t max,
                        unsigned depth)
{
    ext4_put_u16(at, EXTENT_MAGIC);
    ext4_put_u16(at + 2, count);
    ext4_put_u16(at + 4, max);
    ext4_put_u16(at + 6, depth);
    for (size_t i = 0; i < count; i++) {
        uint8_t *entry = at + EXTENT_ENTRY_LEN * (1 + i);
        ext4_put_u32(entry, runs[i].file_block);
        if (depth == 0) {
            ext4_put_u16(entry + 4, runs[i].count);
            ext4_put_u16(entry + 6, runs[i].disk_block >> 32);
            ext4_put_u32(entry + 8, runs[i].disk_block);
        } else {
            ext4_put_u32(entry + 4, runs[i].disk_block);
            ext4_put_u16(entry + 8, runs[i].disk_block >> 32);
        }
    }
}

/* Writes one level of the tree over `runs`, which then lists that level's blocks instead. */
static int write_level(struct writer *w, ext2_ino_t inode, unsigned depth, struct err *e)
{
    size_t parents = 0;
    for (size_t from = 0; from < w->run_count; from += EXT4_EXTENTS_IN_BLOCK) {
        size_t left = w->run_count - from;
        size_t count = left < EXT4_EXTENTS_IN_BLOCK ? left : EXT4_EXTENTS_IN_BLOCK;
        uint8_t data[BLOCK_SIZE] = {0};
        put_extents(data, w->runs + from, count, EXT4_EXTENTS_IN_BLOCK, depth);
        uint64_t block;
        int rc = take_block(w, &block, e);
        if (rc < 0)
            return rc;
        struct ext3_extent_header *header = (void *)data;
        errcode_t code = ext2fs_extent_block_csum_set(w->fs, inode, header);
        rc = code ? library_error(e, code, "summing an extent block")
                  : write_block(w, block, data, e);
        if (rc < 0)
            return rc;
        w->runs[parents++] =
            (struct run){.file_block = w->runs[from].file_block, .disk_block = block};
    }
    w->run_count = parents;
    return 0;
}

/* Puts the inode in hand's runs into it, by a tree if they are many; adds the tree to *blocks. */
static int set_extents(struct writer *w, ext2_ino_t number, struct ext2_inode_large *inode,
                       uint64_t *blocks, struct err *e)
{
    unsigned depth = 0;
    while (w->run_count > EXT4_EXTENTS_IN_INODE) {
        int rc = write_level(w, number, depth, e);
        if (rc < 0)
            return rc;
        *blocks += w->run_count;
        depth++;
    }
    uint8_t root[sizeof(inode->i_block)] = {0};
    put_extents(root, w->runs, w->run_count, EXT4_EXTENTS_IN_INODE, depth);
    memcpy(inode->i_block, root, sizeof(root));
    inode->i_flags |= EXT4_EXTENTS_FL;
    return 0;
}

/* ---- Contents of the types ------------------------------------------------------------- */

/* What the blocks of one inode come to. */
struct content {
    uint64_t size;
    uint64_t blocks;
};

static int file_content(struct writer *w, size_t index, const struct ext4_node *n,
                        struct content *out, struct err *e)
{
    uint64_t end = 0, size_end = mem_round_up(n->size, BLOCK_SIZE);
    if (n->size > (uint64_t)UINT32_MAX * BLOCK_SIZE)
        return ext4_node_error(w->plan, index, ERR_UNSUPPORTED,
                               "ext4 holds no file of 16 TiB or more", e);
    for (size_t i = 0; i < n->extent_count; i++) {
        const struct ext4_extent *x = &n->extents[i];
        uint64_t blocks = mem_round_up(x->len, BLOCK_SIZE) / BLOCK_SIZE;
        uint64_t first = x->disk_off / BLOCK_SIZE;
        if (x->len == 0 || x->file_off % BLOCK_SIZE != 0 || x->disk_off % BLOCK_SIZE != 0 ||
            x->file_off < end || x->file_off > size_end ||
            blocks > (size_end - x->file_off) / BLOCK_SIZE || first < w->data_start ||
            first > w->data_end || blocks > w->data_end - first)
            return ext4_node_error(w->plan, index, ERR_CORRUPT, "its data has no valid place", e);
        if (!ext2fs_test_block_bitmap_range2(w->fs->block_map, first, (blk_t)blocks))
            return ext4_node_error(w->plan, index, ERR_CORRUPT, "its data is another file's, too",
                                   e);
        ext2fs_block_alloc_stats_range(w->fs, first, (blk_t)blocks, +1);
        int rc = add_run(w, x->file_off / BLOCK_SIZE, blocks, first, e);
        if (rc < 0)
            return rc;
        end = x->file_off + blocks * BLOCK_SIZE;
        out->blocks += blocks;
    }
    out->size = n->size;
    return 0;
}

static int fill_directory(struct writer *w, size_t index, struct ext4_dir *d, struct err *e)
{
    const struct ext4_plan *p = w->plan;
    char last[EXT4_NAME_MAX + 1] = "";
    for (size_t i = p->node[index].first_child; i != 0; i = p->node[i].next_sibling) {
        struct ext4_node n;
        int rc = p->nodes->node(p->nodes->ctx, i, &n, e);
        if (rc < 0)
            return rc;
        size_t len = strlen(n.name);
        if (len > EXT4_NAME_MAX || strcmp(last, n.name) >= 0)
            return ext4_node_error(p, i, ERR_CORRUPT, "its name is not after its sibling's", e);
        memcpy(last, n.name, len + 1);
        uint32_t hash = ext4_name_hash(n.name, len, w->fs->super->s_hash_seed);
        rc = ext4_dir_add(d, n.name, p->node[i].inode, p->node[i].type, hash, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int directory_content(struct writer *w, size_t index, struct ext2_inode_large *inode,
                             struct content *out, struct err *e)
{
    const struct ext4_plan_node *node = &w->plan->node[index];
    AUTO_EXT4_DIR struct ext4_dir *d = NULL;
    uint8_t *blocks = NULL;
    size_t count = 0;
    bool indexed = false;
    int rc = ext4_dir_new(&d, node->inode, w->plan->node[node->parent].inode, e);
    if (rc == 0)
        rc = fill_directory(w, index, d, e);
    if (rc == 0)
        rc = ext4_dir_finish(d, &blocks, &count, &indexed, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        uint64_t block;
        rc = take_block(w, &block, e);
        if (rc < 0)
            break;
        errcode_t code =
            ext2fs_write_dir_block4(w->fs, block, blocks + i * BLOCK_SIZE, 0, node->inode);
        rc = code ? library_error(e, code, "writing a directory") : add_run(w, i, 1, block, e);
    }
    if (rc < 0)
        return rc;
    inode->i_flags |= indexed ? EXT2_INDEX_FL : 0;
    out->size = (uint64_t)count * BLOCK_SIZE;
    out->blocks = count;
    return 0;
}

static int symlink_content(struct writer *w, size_t index, const struct ext4_node *n,
                           struct ext2_inode_large *inode, struct content *out, struct err *e)
{
    size_t len = n->target ? strlen(n->target) : 0;
    if (len == 0 || len >= BLOCK_SIZE)
        return ext4_node_error(w->plan, index, ERR_UNSUPPORTED,
                               len == 0 ? "a symbolic link to nothing"
                                        : "a symbolic link with a target of 4096 bytes or more",
                               e);
    out->size = len;
    if (len <= SHORT_TARGET_MAX) {
        memcpy(inode->i_block, n->target, len);
        return 0;
    }
    uint8_t data[BLOCK_SIZE] = {0};
    memcpy(data, n->target, len);
    uint64_t block;
    int rc = take_block(w, &block, e);
    if (rc == 0)
        rc = write_block(w, block, data, e);
    if (rc == 0)
        rc = add_run(w, 0, 1, block, e);
    out->blocks = 1;
    return rc;
}

/* The two encodings of device numbers: old where it can say them, as the kernel does. */
static int device_content(struct writer *w, size_t index, const struct ext4_node *n,
                          struct ext2_inode_large *inode, struct err *e)
{
    uint32_t major = n->device_major, minor = n->device_minor;
    if (major >= 1u << 12 || minor >= 1u << 20)
        return ext4_node_error(w->plan, index, ERR_UNSUPPORTED,
                               "a device number that Linux cannot have", e);
    if (major < 256 && minor < 256)
        inode->i_block[0] = major << 8 | minor;
    else
        inode->i_block[1] = (minor & 0xff) | major << 8 | (minor & ~0xffu) << 12;
    return 0;
}

static int set_content(struct writer *w, size_t index, const struct ext4_node *n,
                       struct ext2_inode_large *inode, struct content *out, struct err *e)
{
    const struct ext4_plan_node *node = &w->plan->node[index];
    int rc = 0;
    bool mapped = true;
    w->run_count = 0;
    switch (n->type) {
    case EXT4_FILE:
        rc = file_content(w, index, n, out, e);
        break;
    case EXT4_DIRECTORY:
        rc = directory_content(w, index, inode, out, e);
        break;
    case EXT4_SYMLINK:
        rc = symlink_content(w, index, n, inode, out, e);
        mapped = out->blocks > 0;
        break;
    case EXT4_CHARACTER_DEVICE:
    case EXT4_BLOCK_DEVICE:
        rc = device_content(w, index, n, inode, e);
        mapped = false;
        break;
    case EXT4_FIFO:
        mapped = false;
        break;
    }
    return rc == 0 && mapped ? set_extents(w, node->inode, inode, &out->blocks, e) : rc;
}

/* ---- Attributes ------------------------------------------------------------------------ */

/* An access control list as the kernel hands it out: version, then entries of tag, permissions,
 * id. */
static bool is_acl(const struct ext4_xattr *x)
{
    static const uint16_t tags[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20};
    if (x->value_len < 4 || (x->value_len - 4) % 8 != 0 || x->value[0] != ACL_VERSION ||
        x->value[1] != 0 || x->value[2] != 0 || x->value[3] != 0)
        return false;
    for (size_t at = 4; at < x->value_len; at += 8) {
        bool known = false;
        for (size_t i = 0; i < ARRAY_LEN(tags); i++)
            known = known || (x->value[at] == tags[i] && x->value[at + 1] == 0);
        if (!known || x->value[at + 2] > 7 || x->value[at + 3] != 0)
            return false;
    }
    return true;
}

static const char *xattr_problem(const struct ext4_node *n, const struct ext4_xattr *x)
{
    static const char *const prefixes[] = {"user.", "trusted.", "security."};
    if (strcmp(x->name, "system.posix_acl_access") == 0 ||
        strcmp(x->name, "system.posix_acl_default") == 0) {
        if (n->type == EXT4_SYMLINK)
            return "a symbolic link cannot have";
        return is_acl(x) ? NULL : "its value is no access control list:";
    }
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        size_t len = strlen(prefixes[i]);
        if (strncmp(x->name, prefixes[i], len) == 0)
            return x->name[len] && strlen(x->name + len) <= 255 ? NULL
                                                                : "ext4 cannot name its attribute";
    }
    return "ext4 has no place for its attribute";
}

static int xattr_error(struct writer *w, size_t index, const struct ext4_xattr *x,
                       const char *problem, struct err *e)
{
    AUTO_FREE char *reason = mem_printf("%s %.300s", problem, x->name);
    return ext4_node_error(w->plan, index, ERR_UNSUPPORTED, reason ? reason : problem, e);
}

static int set_xattrs(struct writer *w, size_t index, const struct ext4_node *n,
                      struct ext2_xattr_handle *handle, struct err *e)
{
    for (size_t i = 0; i < n->xattr_count; i++) {
        const struct ext4_xattr *x = &n->xattrs[i];
        const char *problem = xattr_problem(n, x);
        if (problem)
            return xattr_error(w, index, x, problem, e);
        errcode_t code = ext2fs_xattr_set(handle, x->name, x->value, x->value_len);
        if (code == EXT2_ET_EA_NO_SPACE)
            return xattr_error(w, index, x,
                               "its attributes do not fit its inode and one block; the first that "
                               "does not is",
                               e);
        if (code)
            return library_error(e, code, "writing an attribute");
    }
    return 0;
}

static int write_xattrs(struct writer *w, size_t index, const struct ext4_node *n, struct err *e)
{
    if (n->xattr_count == 0)
        return 0;
    struct ext2_xattr_handle *handle;
    errcode_t code = ext2fs_xattrs_open(w->fs, w->plan->node[index].inode, &handle);
    if (code)
        return library_error(e, code, "starting attributes");
    int rc = set_xattrs(w, index, n, handle, e);
    code = ext2fs_xattrs_close(&handle);
    return rc == 0 && code ? library_error(e, code, "ending attributes") : rc;
}

/* ---- Inodes ---------------------------------------------------------------------------- */

static uint16_t type_bits(enum ext4_type type)
{
    switch (type) {
    case EXT4_FILE:
        return S_IFREG;
    case EXT4_DIRECTORY:
        return S_IFDIR;
    case EXT4_SYMLINK:
        return S_IFLNK;
    case EXT4_CHARACTER_DEVICE:
        return S_IFCHR;
    case EXT4_BLOCK_DEVICE:
        return S_IFBLK;
    case EXT4_FIFO:
        return S_IFIFO;
    }
    return 0;
}

/* All times are the modification time, bent to what the inode can say (fs/ext4/ext4.h, epoch
 * bits). */
static void set_times(struct ext2_inode_large *inode, const struct ext4_node *n)
{
    int64_t seconds = n->mtime_seconds;
    if (seconds < TIME_SECONDS_MIN)
        seconds = TIME_SECONDS_MIN;
    if (seconds > TIME_SECONDS_MAX)
        seconds = TIME_SECONDS_MAX;
    uint32_t low = (uint32_t)seconds;
    uint32_t epoch = (uint32_t)((uint64_t)(seconds - (int32_t)low) >> 32) & 3;
    uint32_t extra = (n->mtime_nanoseconds % 1000000000u) << 2 | epoch;
    inode->i_atime = inode->i_ctime = inode->i_mtime = inode->i_crtime = low;
    inode->i_atime_extra = inode->i_ctime_extra = extra;
    inode->i_mtime_extra = inode->i_crtime_extra = extra;
}

static int write_inode(struct writer *w, size_t index, const struct ext4_node *given, struct err *e)
{
    /* Building a directory asks for other nodes, which may move what this one points to. */
    struct ext4_node n = *given;
    const struct ext4_plan_node *node = &w->plan->node[index];
    uint8_t bytes[EXT4_INODE_SIZE] = {0};
    struct ext2_inode_large inode = {0};
    inode.i_mode = (uint16_t)(type_bits(n.type) | (n.mode & 07777));
    inode.i_uid = (uint16_t)n.uid;
    inode.i_uid_high = (uint16_t)(n.uid >> 16);
    inode.i_gid = (uint16_t)n.gid;
    inode.i_gid_high = (uint16_t)(n.gid >> 16);
    inode.i_links_count = node->links > EXT4_LINKS_MAX ? 1 : (uint16_t)node->links;
    inode.i_extra_isize = sizeof(inode) - EXT2_GOOD_OLD_INODE_SIZE;
    set_times(&inode, &n);
    struct content content = {0};
    int rc = set_content(w, index, &n, &inode, &content, e);
    if (rc < 0)
        return rc;
    inode.i_size = (uint32_t)content.size;
    inode.i_size_high = (uint32_t)(content.size >> 32);
    uint64_t sectors = content.blocks * (BLOCK_SIZE / 512);
    inode.i_blocks = (uint32_t)sectors;
    inode.osd2.linux2.l_i_blocks_hi = (uint16_t)(sectors >> 32);
    memcpy(bytes, &inode, sizeof(inode));
    struct ext2_inode *as_inode = (void *)bytes;
    errcode_t code = ext2fs_write_inode_full(w->fs, node->inode, as_inode, EXT4_INODE_SIZE);
    if (code)
        return library_error(e, code, "writing an inode");
    if (node->inode >= EXT4_FIRST_INODE)
        ext2fs_inode_alloc_stats2(w->fs, node->inode, +1, n.type == EXT4_DIRECTORY);
    if (n.xattr_count == 0)
        return 0;
    rc = w->plan->nodes->node(w->plan->nodes->ctx, index, &n, e);
    return rc < 0 ? rc : write_xattrs(w, index, &n, e);
}

static int write_nodes(struct writer *w, struct err *e)
{
    const struct ext4_nodes *nodes = w->plan->nodes;
    for (size_t i = 0; i < nodes->count; i++) {
        if (w->plan->node[i].is_link)
            continue;
        struct ext4_node n;
        int rc = nodes->node(nodes->ctx, i, &n, e);
        if (rc == 0)
            rc = write_inode(w, i, &n, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- Whole ----------------------------------------------------------------------------- */

uint32_t ext4_name_hash(const char *name, size_t len, const uint32_t seed[4])
{
    uint32_t copy[4];
    memcpy(copy, seed, sizeof(copy));
    ext2_dirhash_t hash = 0;
    if (ext2fs_dirhash2(EXT2_HASH_HALF_MD4, name, (int)len, NULL, 0, copy, &hash, NULL))
        return 0; /* only an unknown hash version fails */
    return hash;
}

static int write_file_system(struct writer *w, const char *path, const struct ext4_options *o,
                             struct err *e)
{
    int rc = open_file_system(w, path, o, e);
    if (rc == 0)
        rc = write_nodes(w, e);
    if (rc == 0) {
        errcode_t code = ext2fs_set_gdt_csum(w->fs);
        if (!code)
            code = ext2fs_close2(w->fs, EXT2_FLAG_FLUSH_NO_SYNC);
        if (code)
            rc = library_error(e, code, "ending a file system");
        else
            w->fs = NULL;
    }
    if (w->fs)
        ext2fs_free(w->fs);
    free(w->runs);
    return rc;
}

int ext4_write(struct block_map **out, struct store *s, const struct ext4_nodes *nodes,
               const struct ext4_options *options, struct err *e)
{
    AUTO_EXT4_PLAN struct ext4_plan plan = {0};
    int rc = ext4_plan_init(&plan, nodes, options, e);
    if (rc < 0)
        return rc;
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    rc = file_tmp_open(&t, store_tmp_dir(s), e);
    if (rc < 0)
        return rc;
    if (ftruncate(t.fd, (off_t)(plan.layout.block_count * BLOCK_SIZE)) < 0)
        return err_sys(e, "making a temporary file of the size of the disk");
    AUTO_FREE char *path = mem_printf("%s/%s", store_tmp_path(s), t.name);
    if (!path)
        return err_nomem(e, "ext4 file system");
    struct writer w = {.plan = &plan,
                       .next_loose = plan.layout.front_end,
                       .data_start = options->data_start / BLOCK_SIZE,
                       .data_end = options->data_end / BLOCK_SIZE};
    rc = write_file_system(&w, path, options, e);
    return rc < 0 ? rc : store_put_file(s, t.fd, 1, out, e);
}
