/* SPDX-License-Identifier: MIT */
/*
 * Assembly: layer indexes to a disk, without touching file data. Regions follow one another along
 * the layer chain from a fixed start, so images that share their lower layers share addresses; the
 * map covers only what the merged tree refers to, so what an upper layer deleted reads as zeros.
 */

#include <stdlib.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

struct assembly {
    const struct cancel *cancel; /* borrowed */
    size_t layer_count;
    struct oci_layer **layers;
    struct block_map **regions;
    uint64_t *starts; /* of the regions, on the disk */
    struct oci_tree *tree;
    struct ext4_extent *extents; /* of the node in hand */
    size_t extent_capacity;
    struct ext4_xattr *xattrs;
    size_t xattr_capacity;
};

static void assembly_fini(struct assembly *a)
{
    oci_tree_free(a->tree);
    for (size_t i = 0; i < a->layer_count; i++) {
        if (a->layers)
            oci_layer_free(a->layers[i]);
        if (a->regions)
            block_map_free(a->regions[i]);
    }
    free(a->layers);
    free(a->regions);
    free(a->starts);
    free(a->extents);
    free(a->xattrs);
}

static int load_layers(struct assembly *a, struct store *s, const struct image *i, struct err *e)
{
    const size_t own = i->config.diff_id_count;
    const size_t count = own + i->graft_count;
    a->layers = mem_array(count, sizeof(struct oci_layer *));
    a->regions = mem_array(count, sizeof(struct block_map *));
    a->starts = mem_array(count + 1, sizeof(*a->starts));
    if (!a->layers || !a->regions || !a->starts)
        return err_nomem(e, "layers");
    a->layer_count = count;
    for (size_t n = 0; n < count; n++) {
        const struct digest *id = n < own ? &i->config.diff_ids[n] : &i->grafts[n - own];
        int rc = layer_load(s, id, &a->layers[n], &a->regions[n], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The image's layers, then one of its grafts after another, each fitted on what is below. */
static int merge_layers(struct assembly *a, const struct image *i, struct err *e)
{
    int rc = 0;
    for (size_t n = i->config.diff_id_count; rc == 0 && n < a->layer_count; n++) {
        AUTO_OCI_TREE struct oci_tree *below = NULL;
        rc = oci_tree_merge(&below, a->layers, n, a->cancel, e);
        if (rc == 0)
            rc = graft_fit(a->layers[n], below, e);
        if (rc < 0)
            return err_in(e, "laying a graft on the image");
    }
    return oci_tree_merge(&a->tree, a->layers, a->layer_count, a->cancel, e);
}

/* Region addresses relative to the first; the last element is the sum. */
static int place_regions(struct assembly *a, struct err *e)
{
    for (size_t n = 0; n < a->layer_count; n++) {
        uint64_t size = mem_round_up(block_map_virtual_size(a->regions[n]), CHUNK_SIZE_MAX);
        if (mem_add_u64(a->starts[n], size, &a->starts[n + 1]))
            return err_set(e, ERR_LIMIT, "layers are too large");
    }
    return 0;
}

static enum ext4_type node_type(enum oci_entry_type type)
{
    switch (type) {
    case OCI_DIRECTORY:
        return EXT4_DIRECTORY;
    case OCI_SYMLINK:
        return EXT4_SYMLINK;
    case OCI_CHARACTER_DEVICE:
        return EXT4_CHARACTER_DEVICE;
    case OCI_BLOCK_DEVICE:
        return EXT4_BLOCK_DEVICE;
    case OCI_FIFO:
        return EXT4_FIFO;
    case OCI_FILE:
    case OCI_HARDLINK:
    case OCI_WHITEOUT:
    case OCI_OPAQUE:
        break; /* a merged tree has only files of these */
    }
    return EXT4_FILE;
}

static int assembly_node(void *ctx, size_t index, struct ext4_node *out, struct err *e)
{
    struct assembly *a = ctx;
    struct oci_node n = oci_tree_node(a->tree, index);
    const struct oci_entry *entry = n.entry;
    int rc =
        mem_grow(&a->extents, &a->extent_capacity, entry->extent_count, sizeof(*a->extents), e);
    if (rc == 0)
        rc = mem_grow(&a->xattrs, &a->xattr_capacity, entry->xattr_count, sizeof(*a->xattrs), e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < entry->extent_count; i++)
        a->extents[i] = (struct ext4_extent){entry->extents[i].file_off, entry->extents[i].len,
                                             a->starts[n.layer] + entry->extents[i].region_off};
    for (size_t i = 0; i < entry->xattr_count; i++)
        a->xattrs[i] = (struct ext4_xattr){entry->xattrs[i].name, entry->xattrs[i].value,
                                           entry->xattrs[i].value_len};
    *out = (struct ext4_node){
        .name = n.name,
        .parent = n.parent,
        .link_of = n.link_of,
        .type = node_type(entry->type),
        .mode = entry->mode,
        .uid = entry->uid,
        .gid = entry->gid,
        .mtime_seconds = entry->mtime_seconds,
        .mtime_nanoseconds = entry->mtime_nanoseconds,
        .size = entry->size,
        .target = entry->target,
        .device_major = entry->device_major,
        .device_minor = entry->device_minor,
        .xattrs = a->xattrs,
        .xattr_count = entry->xattr_count,
        .extents = a->extents,
        .extent_count = entry->extent_count,
    };
    return 0;
}

/* UUID and hash seed of the disk follow from what is on it. */
int image_disk_key(struct digest *out, const struct image *i, uint64_t free_size, struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *head =
        mem_printf("tb2-bake disk %d %llu\n", FORMAT_VERSION, (unsigned long long)free_size);
    if (!head)
        return err_nomem(e, "disk");
    hasher_add(h, head, strlen(head));
    for (size_t n = 0; n < i->config.diff_id_count; n++)
        hasher_add(h, i->config.diff_ids[n].bytes, digest_len(i->config.diff_ids[n].algorithm));
    for (size_t n = 0; n < i->graft_count; n++)
        hasher_add(h, i->grafts[n].bytes, digest_len(i->grafts[n].algorithm));
    for (size_t n = 0; n < i->native_count; n++)
        hasher_add(h, i->native_layers[n].digest.bytes,
                   digest_len(i->native_layers[n].digest.algorithm));
    hasher_finish(h, out);
    return 0;
}

/* Adds the data of every inode once, from the region maps. */
static int add_data(struct assembly *a, struct block_map *disk, struct err *e)
{
    size_t count = oci_tree_count(a->tree);
    for (size_t index = 0; index < count; index++) {
        struct oci_node n = oci_tree_node(a->tree, index);
        if (n.link_of != SIZE_MAX)
            continue;
        for (size_t i = 0; i < n.entry->extent_count; i++) {
            const struct oci_extent *x = &n.entry->extents[i];
            int rc = block_map_copy_range(disk, a->regions[n.layer], x->region_off,
                                          mem_round_up(x->len, BLOCK_SIZE),
                                          a->starts[n.layer] + x->region_off, e);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int build_map(struct assembly *a, struct block_map *metadata, struct block_map **out,
                     struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    int rc = block_map_new(&disk, block_map_virtual_size(metadata), e);
    for (size_t i = 0; rc == 0 && i < block_map_count(metadata); i++)
        rc = block_map_add(disk, block_map_extent(metadata, i), e);
    if (rc == 0)
        rc = add_data(a, disk, e);
    if (rc == 0)
        rc = block_map_finish(disk, e);
    if (rc < 0)
        return rc;
    *out = MOVE(disk);
    return 0;
}

static int assemble(struct assembly *a, struct store *s, const struct image *i, uint64_t free_size,
                    struct block_map **out, struct err *e)
{
    struct ext4_options options = {.free_size = free_size};
    int rc = load_layers(a, s, i, e);
    if (rc == 0)
        rc = place_regions(a, e);
    if (rc == 0)
        rc = merge_layers(a, i, e);
    if (rc == 0)
        rc = image_disk_key(&options.seed, i, free_size, e);
    if (rc < 0)
        return rc;
    uint64_t data_size = a->starts[a->layer_count];
    options.data_start = ext4_data_start(data_size, oci_tree_count(a->tree), free_size);
    options.data_end = options.data_start + data_size;
    for (size_t n = 0; n <= a->layer_count; n++)
        a->starts[n] += options.data_start;
    struct ext4_nodes nodes = {.count = oci_tree_count(a->tree), .node = assembly_node, .ctx = a};
    AUTO_BLOCK_MAP struct block_map *metadata = NULL;
    rc = ext4_write(&metadata, s, &nodes, &options, e);
    return rc < 0 ? rc : build_map(a, metadata, out, e);
}

int image_assemble(struct image *i, struct image_room *r, uint64_t free_size,
                   struct block_map **out, struct digest *digest, struct err *e)
{
    struct assembly a = {.cancel = r->cancel};
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    int rc = cancel_check(r->cancel, e);
    if (rc == 0 && i->native)
        rc = native_assemble(i, r, &disk, digest, e);
    else if (rc == 0)
        rc = assemble(&a, r->store, i, free_size, &disk, e);
    if (rc == 0 && !i->native)
        rc = store_put_map(r->store, disk, digest, e);
    assembly_fini(&a);
    if (rc < 0)
        return err_in(e, "image %s", i->text);
    *out = MOVE(disk);
    return 0;
}
