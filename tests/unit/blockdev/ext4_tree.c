/* SPDX-License-Identifier: MIT */
/* See ext4_tree.h. */
#include "ext4_tree.h"

#include <stdlib.h>

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
