/* SPDX-License-Identifier: MIT */
/* See ext4_tree.h. */
#include "ext4_tree.h"

#include <stdlib.h>
#include <string.h>

#include "blockdev/ext4_read.h"

int tree_node(void *ctx, size_t index, struct ext4_node *out, struct err *e)
{
    const struct tree *t = ctx;
    if (index >= t->count)
        return err_set(e, ERR_NOTFOUND, "no node %zu", index);
    *out = t->nodes[index];
    return 0;
}

struct ext4_node *tree_add(struct tree *t, size_t parent, enum ext4_type type, const char *name)
{
    struct err e = ERR_INIT;
    assert_ok(mem_grow(&t->nodes, &t->capacity, t->count + 1, sizeof(*t->nodes), &e));
    assert_ok(mem_grow(&t->names, &t->name_capacity, t->count + 1, sizeof(*t->names), &e));
    t->names[t->count] = mem_strdup(name);
    struct ext4_node *n = &t->nodes[t->count++];
    *n = (struct ext4_node){.name = t->names[t->count - 1],
                            .parent = parent,
                            .link_of = SIZE_MAX,
                            .type = type,
                            .mode = type == EXT4_DIRECTORY ? 0755 : 0644,
                            .mtime_seconds = 1700000000};
    return n;
}

void tree_init(struct tree *t, struct fixture *f, size_t workers)
{
    struct err e = ERR_INIT;
    *t = (struct tree){.data_start = EXT4_DATA_START};
    assert_ok(region_writer_new(&t->writer, f->store, workers, &e));
    tree_add(t, 0, EXT4_DIRECTORY, "");
}

void tree_fini(struct tree *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->names[i]);
        free((void *)(uintptr_t)t->nodes[i].extents);
    }
    free(t->names);
    free(t->nodes);
    region_writer_free(t->writer);
}

struct ext4_node *tree_add_file(struct tree *t, size_t parent, const char *name, uint64_t size,
                                const uint64_t (*parts)[2])
{
    struct err e = ERR_INIT;
    struct ext4_node *n = tree_add(t, parent, EXT4_FILE, name);
    struct region_extent *extents = NULL;
    size_t count = 0;
    assert_ok(region_file_begin(t->writer, size, &e));
    for (size_t i = 0; parts && parts[i][1] > 0; i++) {
        AUTO_FREE uint8_t *data = mem_zalloc((size_t)parts[i][1]);
        fixture_fill(data, (size_t)parts[i][1], size);
        assert_ok(region_file_data(t->writer, parts[i][0], data, (size_t)parts[i][1], &e));
    }
    assert_ok(region_file_end(t->writer, &extents, &count, &e));
    struct ext4_extent *own = mem_array(count, sizeof(*own));
    for (size_t i = 0; i < count; i++)
        own[i] = (struct ext4_extent){.file_off = extents[i].file_off,
                                      .len = extents[i].len,
                                      .disk_off = t->data_start + extents[i].region_off};
    free(extents);
    n->size = size;
    n->extents = own;
    n->extent_count = count;
    return n;
}

int tree_write(struct tree *t, struct fixture *f, uint64_t free_size, struct disk *d,
               struct block_map **out, struct err *error)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *data = NULL, *metadata = NULL, *placed = NULL;
    assert_ok(region_writer_finish(t->writer, &data, &e));
    struct ext4_nodes nodes = {.count = t->count, .node = tree_node, .ctx = t};
    d->options = (struct ext4_options){.data_start = t->data_start,
                                       .data_end = t->data_start + block_map_virtual_size(data),
                                       .free_size = free_size};
    digest_bytes(&d->options.seed, "seed", 4);
    int rc = ext4_write(&metadata, f->store, &nodes, &d->options, error);
    if (rc < 0)
        return rc;
    assert_ok(block_map_new(&placed, block_map_virtual_size(metadata), &e));
    assert_ok(
        block_map_copy_range(placed, data, 0, block_map_virtual_size(data), t->data_start, &e));
    assert_ok(block_map_finish(placed, &e));
    /* Metadata and data must not meet, so the overlay is as many blocks as both. */
    return block_map_overlay(out, placed, metadata, NULL, error);
}

/* ---- Read back ---- */

/* How far the extent and those that continue it go. */
static size_t join(const struct ext4_extent *all, size_t count, size_t at, struct ext4_extent *out)
{
    *out = all[at++];
    while (at < count && all[at].file_off == out->file_off + out->len &&
           all[at].disk_off == out->disk_off + out->len)
        out->len += all[at++].len;
    return at;
}

/* Blocks of the writer's extents may be more than the file is long, and are cut otherwise. */
static void check_extents(const struct ext4_node *want, const struct ext4_node *got)
{
    size_t a = 0, b = 0;
    while (a < want->extent_count || b < got->extent_count) {
        struct ext4_extent x, y;
        assert_true(a < want->extent_count && b < got->extent_count);
        a = join(want->extents, want->extent_count, a, &x);
        b = join(got->extents, got->extent_count, b, &y);
        assert_int_equal(x.file_off, y.file_off);
        assert_int_equal(x.disk_off, y.disk_off);
        uint64_t end = mem_round_up(x.file_off + x.len, BLOCK_SIZE);
        assert_int_equal(y.file_off + y.len, end < want->size ? end : want->size);
    }
}

static void check_xattrs(const struct ext4_node *want, const struct ext4_node *got)
{
    assert_int_equal(want->xattr_count, got->xattr_count);
    for (size_t i = 0; i < want->xattr_count; i++) {
        assert_string_equal(want->xattrs[i].name, got->xattrs[i].name);
        assert_int_equal(want->xattrs[i].value_len, got->xattrs[i].value_len);
        assert_memory_equal(want->xattrs[i].value, got->xattrs[i].value, got->xattrs[i].value_len);
    }
}

static void check_node(const struct ext4_node *want, const struct ext4_node *got)
{
    if (want->link_of != SIZE_MAX)
        return;
    assert_int_equal(want->type, got->type);
    if (want->type != EXT4_SYMLINK)
        assert_int_equal(want->mode, got->mode);
    assert_int_equal(want->uid, got->uid);
    assert_int_equal(want->gid, got->gid);
    assert_int_equal(want->mtime_seconds, got->mtime_seconds);
    assert_int_equal(want->mtime_nanoseconds, got->mtime_nanoseconds);
    assert_int_equal(want->device_major, got->device_major);
    assert_int_equal(want->device_minor, got->device_minor);
    if (want->target)
        assert_string_equal(want->target, got->target);
    if (want->type == EXT4_FILE)
        assert_int_equal(want->size, got->size);
    check_extents(want, got);
    check_xattrs(want, got);
}

/* The trees of tests are in the writer's order, which need not be the reader's. */
static size_t find_name(const struct tree *t, size_t parent, const char *name, size_t hint)
{
    for (size_t i = 0; i < t->count; i++) {
        size_t at = (hint + i) % t->count;
        if (t->nodes[at].parent == parent && strcmp(t->names[at], name) == 0)
            return at;
    }
    fail_msg("no %s in the tree", name);
    return 0;
}

void tree_check(struct tree *t, struct fixture *f, const struct block_map *disk)
{
    struct err e = ERR_INIT;
    AUTO_CHUNK_CACHE struct chunk_cache *cache = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_EXT4_READER struct ext4_reader *r = NULL;
    assert_ok(chunk_cache_new(&cache, f->store, 8 * MIB, &e));
    assert_ok(bdev_open_map(&d, disk, cache, &e));
    assert_ok(ext4_reader_open(&r, d, NULL, &e));
    assert_int_equal(ext4_reader_count(r), t->count);
    AUTO_FREE size_t *same = mem_array(t->count, sizeof(*same));
    for (size_t i = 0, at = 0; i < t->count; i++) {
        struct ext4_node n;
        assert_ok(ext4_reader_node(r, i, &n, &e));
        same[i] = at = find_name(t, same[n.parent], n.name, at);
        const struct ext4_node *want = &t->nodes[at];
        assert_true((n.link_of == SIZE_MAX) == (want->link_of == SIZE_MAX));
        if (n.link_of != SIZE_MAX)
            assert_int_equal(same[n.link_of], want->link_of);
        check_node(want, &n);
    }
    ext4_reader_close(r);
    r = NULL;
    bdev_close(d);
    d = NULL;
}
