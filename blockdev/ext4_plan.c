/* SPDX-License-Identifier: MIT */
/*
 * The plan of an ext4 file system (docs/formats/disk.md): who is whose child, which inode is
 * whose, how large the disk must be and where its tables lie.
 *
 * All tables stand at the front of the disk, whatever group they describe (flex_bg allows it), so
 * that the regions behind them hold nothing but file data. The disk is a whole number of groups;
 * its size follows from an upper bound of what the metadata can take, so that the second pass
 * over the nodes, which writes, never needs more than the first one counted.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    DESCRIPTOR_SIZE = 32, /* of a group, without the 64bit feature */
    INODES_PER_BLOCK = BLOCK_SIZE / EXT4_INODE_SIZE,
    INODES_PER_GROUP_MAX = 8 * BLOCK_SIZE,
    BYTES_PER_INODE = 16 << 10, /* of free space, as mke2fs counts */
    /* The kernel keeps up to this many blocks from everyone (s_resv_clusters, fs/ext4/super.c). */
    KERNEL_RESERVED_BLOCKS = 4096,
    DIRENT_MAX = 8 + EXT4_NAME_MAX + 1,
};

#define BLOCK_COUNT_MAX ((uint64_t)UINT32_MAX)

static uint64_t divide_up(uint64_t value, uint64_t unit)
{
    return value / unit + (value % unit != 0);
}

/* ---- Layout ---------------------------------------------------------------------------- */

/* A disk of at least `block_count` blocks with at least `inode_count` inodes. */
static void lay_out(struct ext4_layout *l, uint64_t block_count, uint64_t inode_count)
{
    uint64_t groups = divide_up(block_count, EXT4_BLOCKS_PER_GROUP);
    uint64_t groups_for_inodes = divide_up(inode_count, INODES_PER_GROUP_MAX);
    if (groups < groups_for_inodes)
        groups = groups_for_inodes;
    uint64_t inodes_per_group = mem_round_up(divide_up(inode_count, groups), INODES_PER_BLOCK);
    l->group_count = (uint32_t)groups;
    l->block_count = groups * EXT4_BLOCKS_PER_GROUP;
    l->inodes_per_group = (uint32_t)inodes_per_group;
    l->inode_table_blocks = inodes_per_group / INODES_PER_BLOCK;
    /* Block 0 is the superblock's; no copies of it or of the descriptors are kept elsewhere. */
    l->block_bitmaps = 1 + divide_up(groups * DESCRIPTOR_SIZE, BLOCK_SIZE);
    l->inode_bitmaps = l->block_bitmaps + groups;
    l->inode_tables = l->inode_bitmaps + groups;
    l->front_end = l->inode_tables + groups * l->inode_table_blocks;
}

/* Inodes of a disk: those used, and one for each BYTES_PER_INODE of free space. */
static uint64_t inodes_wanted(uint64_t used, uint64_t free_size)
{
    return used + divide_up(free_size, BYTES_PER_INODE);
}

/* False if no ext4 disk without 64-bit block numbers is that large. */
static bool fit(struct ext4_layout *l, uint64_t data_end_blocks, uint64_t loose_blocks,
                uint64_t data_blocks, uint64_t free_blocks, uint64_t inode_count)
{
    uint64_t need = data_end_blocks + loose_blocks;
    for (;;) {
        if (need > BLOCK_COUNT_MAX || inode_count > UINT32_MAX)
            return false;
        lay_out(l, need, inode_count);
        uint64_t used = l->front_end + loose_blocks + data_blocks + KERNEL_RESERVED_BLOCKS;
        if (l->block_count > BLOCK_COUNT_MAX)
            return false;
        if (l->block_count - data_end_blocks >= loose_blocks &&
            l->block_count >= used + free_blocks)
            return true;
        need = used + free_blocks > need ? used + free_blocks : need + 1;
    }
}

uint64_t ext4_data_start(uint64_t data_size, uint64_t name_count, uint64_t free_size)
{
    if (data_size > INT64_MAX || free_size > INT64_MAX || name_count > UINT32_MAX)
        return EXT4_DATA_START; /* ext4_write refuses it */
    /* Every name at its largest, with a block of attributes and one for itself. */
    uint64_t loose = name_count * 3 + data_size / BLOCK_SIZE / EXT4_EXTENTS_IN_BLOCK;
    uint64_t data = data_size / BLOCK_SIZE, free_blocks = divide_up(free_size, BLOCK_SIZE);
    uint64_t inodes = inodes_wanted(name_count + EXT4_FIRST_INODE, free_size);
    uint64_t start = EXT4_DATA_START / BLOCK_SIZE;
    struct ext4_layout l;
    while (fit(&l, start + data, loose, data, free_blocks, inodes) && l.front_end > start)
        start *= 2;
    return start * BLOCK_SIZE;
}

/* ---- Nodes ----------------------------------------------------------------------------- */

int ext4_node_error(const struct ext4_plan *p, size_t index, enum err_class class,
                    const char *reason, struct err *e)
{
    char path[LIMIT_PATH + 1];
    size_t at = LIMIT_PATH;
    path[at] = 0;
    while (index != 0) {
        struct ext4_node n;
        struct err ignored = ERR_INIT;
        if (p->nodes->node(p->nodes->ctx, index, &n, &ignored) < 0 || !n.name)
            break;
        size_t len = strlen(n.name);
        if (len + 1 > at)
            break;
        at -= len;
        memcpy(path + at, n.name, len);
        path[--at] = '/';
        index = n.parent < index ? n.parent : 0;
    }
    return err_set(e, class, "%s: %s", path[at] ? path + at : "/", reason);
}

static const char *name_problem(const char *name)
{
    if (!name || !*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strchr(name, '/'))
        return "not a name";
    return strlen(name) > EXT4_NAME_MAX ? "its name is longer than 255 bytes" : NULL;
}

/* How node `i` hangs in the tree. */
static int check_place(const struct ext4_plan *p, size_t i, const struct ext4_node *n,
                       struct err *e)
{
    if (i == 0)
        return n->type == EXT4_DIRECTORY && n->link_of == SIZE_MAX
                   ? 0
                   : err_set(e, ERR_CORRUPT, "the root is not a directory");
    const char *problem = name_problem(n->name);
    if (problem)
        return ext4_node_error(
            p, i, n->name && strlen(n->name) > EXT4_NAME_MAX ? ERR_UNSUPPORTED : ERR_CORRUPT,
            problem, e);
    if (n->parent >= i || p->node[n->parent].type != EXT4_DIRECTORY || p->node[n->parent].is_link)
        return ext4_node_error(p, i, ERR_CORRUPT, "its parent is not a directory before it", e);
    if (n->link_of != SIZE_MAX && (n->link_of >= i || p->node[n->link_of].is_link ||
                                   p->node[n->link_of].type == EXT4_DIRECTORY))
        return ext4_node_error(p, i, ERR_CORRUPT, "it is a link to what cannot have links", e);
    return 0;
}

/* Blocks of a tree over this many extents. */
static uint64_t extent_tree_blocks(uint64_t extents)
{
    uint64_t blocks = 0;
    while (extents > EXT4_EXTENTS_IN_INODE) {
        extents = divide_up(extents, EXT4_EXTENTS_IN_BLOCK);
        blocks += extents;
    }
    return blocks;
}

/* Counts what a node's own blocks can come to at most. */
static int count_blocks(struct ext4_plan *p, size_t i, const struct ext4_node *n, struct err *e)
{
    uint64_t size = 0;
    for (size_t k = 0; k < n->extent_count; k++) {
        if (n->type != EXT4_FILE || mem_add_u64(size, n->extents[k].len, &size) || size > INT64_MAX)
            return ext4_node_error(p, i, ERR_CORRUPT, "its data cannot be its", e);
        p->data_blocks += divide_up(n->extents[k].len, BLOCK_SIZE);
    }
    p->loose_blocks += n->xattr_count > 0;
    p->loose_blocks += n->type == EXT4_SYMLINK;
    p->loose_blocks += extent_tree_blocks(n->extent_count +
                                          size / ((uint64_t)EXT4_EXTENT_BLOCKS_MAX * BLOCK_SIZE));
    return 0;
}

static int plan_node(struct ext4_plan *p, size_t i, uint64_t *name_bytes, struct err *e)
{
    struct ext4_node n;
    int rc = p->nodes->node(p->nodes->ctx, i, &n, e);
    if (rc == 0)
        rc = check_place(p, i, &n, e);
    if (rc < 0)
        return rc;
    struct ext4_plan_node *node = &p->node[i];
    node->type = n.type;
    if (i > 0) {
        node->parent = (uint32_t)n.parent;
        name_bytes[n.parent] += mem_round_up(8 + strlen(n.name), 4);
    }
    if (n.link_of != SIZE_MAX) {
        struct ext4_plan_node *first = &p->node[n.link_of];
        node->is_link = true;
        node->type = first->type;
        node->inode = first->inode;
        if (++first->links > EXT4_LINKS_MAX)
            return ext4_node_error(p, n.link_of, ERR_UNSUPPORTED, "it has more than 65000 names",
                                   e);
        return 0;
    }
    node->inode = i == 0 ? EXT4_ROOT_INODE : p->inode_count++;
    node->links = 1;
    if (n.type == EXT4_DIRECTORY) {
        node->links = 2;
        p->node[node->parent].links += i > 0;
    }
    return count_blocks(p, i, &n, e);
}

static int plan_nodes(struct ext4_plan *p, struct err *e)
{
    size_t count = p->nodes->count;
    AUTO_FREE uint64_t *name_bytes = mem_array(count, sizeof(*name_bytes));
    if (!name_bytes)
        return err_nomem(e, "file system");
    for (size_t i = 0; i < count; i++) {
        int rc = plan_node(p, i, name_bytes, e);
        if (rc < 0)
            return rc;
    }
    for (size_t i = count; i-- > 1;) { /* backwards, so that children come out in their order */
        p->node[i].next_sibling = p->node[p->node[i].parent].first_child;
        p->node[p->node[i].parent].first_child = (uint32_t)i;
    }
    for (size_t i = 0; i < count; i++) {
        if (p->node[i].type != EXT4_DIRECTORY)
            continue;
        /* A block is closed when the next name does not fit; the index needs one in 500. */
        uint64_t leaves = divide_up(name_bytes[i] + 24, BLOCK_SIZE - 12 - DIRENT_MAX);
        p->loose_blocks += leaves <= 1 ? 1 : leaves + 2 + leaves / 500;
        p->loose_blocks += extent_tree_blocks(2 + leaves / EXT4_EXTENT_BLOCKS_MAX);
    }
    return 0;
}

static int plan_layout(struct ext4_plan *p, const struct ext4_options *o, struct err *e)
{
    if (o->data_start % BLOCK_SIZE != 0 || o->data_end % BLOCK_SIZE != 0 ||
        o->data_end < o->data_start)
        return err_set(e, ERR_INPUT, "file data cannot lie in [%llu, %llu)",
                       (unsigned long long)o->data_start, (unsigned long long)o->data_end);
    uint64_t free_blocks = divide_up(o->free_size, BLOCK_SIZE);
    if (!fit(&p->layout, o->data_end / BLOCK_SIZE, p->loose_blocks, p->data_blocks, free_blocks,
             inodes_wanted(p->inode_count, o->free_size)))
        return err_set(e, ERR_LIMIT, "the disk would be larger than 16 TiB");
    if (p->layout.front_end > o->data_start / BLOCK_SIZE)
        return err_set(e, ERR_INPUT,
                       "file data starts at %llu, within the file system's tables (%llu bytes)",
                       (unsigned long long)o->data_start,
                       (unsigned long long)p->layout.front_end * BLOCK_SIZE);
    return 0;
}

int ext4_plan_init(struct ext4_plan *p, const struct ext4_nodes *nodes,
                   const struct ext4_options *options, struct err *e)
{
    *p = (struct ext4_plan){.nodes = nodes, .inode_count = EXT4_FIRST_INODE};
    if (nodes->count == 0)
        return err_set(e, ERR_CORRUPT, "a file system without a root");
    if (nodes->count > UINT32_MAX - EXT4_FIRST_INODE)
        return err_set(e, ERR_LIMIT, "a file system of %zu names", nodes->count);
    p->node = mem_array(nodes->count, sizeof(*p->node));
    if (!p->node)
        return err_nomem(e, "file system");
    int rc = plan_nodes(p, e);
    return rc < 0 ? rc : plan_layout(p, options, e);
}

void ext4_plan_fini(struct ext4_plan *p)
{
    free(p->node);
    p->node = NULL;
}
