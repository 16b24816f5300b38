/* SPDX-License-Identifier: MIT */
/*
 * A disk as a stack of layers. A region's layer holds all of the region at its place, whether this
 * disk refers to it or not: its bytes then depend on the image's layers up to it alone, and images
 * that share these share the blob. What the disk does not refer to is hidden by zeros in the last
 * layer, which also has everything else: metadata, and what steps wrote.
 */
#include <stdlib.h>

#include "bake/push/internal.h"
#include "base/mem.h"

/* Regions of an image's layers, as they may be on a disk. */
struct regions {
    struct block_map *const *maps;
    size_t count;
    const uint64_t *starts; /* from the first one on; one more than there are regions */
    uint64_t base;          /* find_base: where they begin on the disk */
};

void push_plan_fini(struct push_plan *p)
{
    for (size_t i = 0; i < p->count; i++) {
        block_map_free(p->layers[i].data);
        block_map_free(p->layers[i].zeros);
    }
    free(p->layers);
    *p = (struct push_plan){0};
}

/* As regions are placed when a disk is assembled. */
static int find_starts(uint64_t *starts, struct block_map *const *maps, size_t count, struct err *e)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t size = mem_round_up(block_map_virtual_size(maps[i]), CHUNK_SIZE_MAX);
        if (mem_add_u64(starts[i], size, &starts[i + 1]))
            return err_set(e, ERR_LIMIT, "layers are too large");
    }
    return 0;
}

/* True if the disk has some of the region's data at its place. */
static bool is_used(const struct block_map *disk, const struct block_map *region, uint64_t start)
{
    for (size_t i = 0; i < block_map_count(region); i++) {
        const struct map_extent *want = block_map_extent(region, i);
        uint64_t from = start + want->off;
        for (size_t n = block_map_find(disk, from); n < block_map_count(disk); n++) {
            const struct map_extent *x = block_map_extent(disk, n);
            if (x->off >= from + want->size)
                break;
            if (digest_equal(&x->chunk, &want->chunk) &&
                x->off - from == (uint64_t)x->chunk_off - want->chunk_off)
                return true;
        }
    }
    return false;
}

/* Where the first region starts: a power of two (ext4_data_start). False: nowhere on this disk. */
static bool find_base(const struct block_map *disk, struct regions *r)
{
    uint64_t size = block_map_virtual_size(disk);
    for (r->base = EXT4_DATA_START; r->base < size && size - r->base >= r->starts[r->count];
         r->base *= 2) {
        for (size_t i = 0; i < r->count; i++) {
            if (is_used(disk, r->maps[i], r->base + r->starts[i]))
                return true;
        }
    }
    return false;
}

/* Adds a layer of regions [first, end), and these to `all`. */
static int add_regions(struct push_plan *p, struct block_map *all, const struct regions *r,
                       size_t first, size_t end, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = block_map_new(&m, r->base + r->starts[end], e);
    for (size_t i = first; rc == 0 && i < end; i++) {
        uint64_t size = block_map_virtual_size(r->maps[i]);
        rc = block_map_copy_range(m, r->maps[i], 0, size, r->base + r->starts[i], e);
        if (rc == 0)
            rc = block_map_copy_range(all, r->maps[i], 0, size, r->base + r->starts[i], e);
    }
    if (rc == 0)
        rc = block_map_finish(m, e);
    if (rc == 0)
        p->layers[p->count++] = (struct push_layer){.data = MOVE(m)};
    return rc;
}

/* Layers of all regions that the disk uses. Of more than can be stacked, the upper ones share one. */
static int add_lower_layers(struct push_plan *p, struct block_map *all,
                            const struct block_map *disk, struct regions *r, struct err *e)
{
    int rc = 0;
    if (!find_base(disk, r))
        return 0;
    for (size_t i = 0; rc == 0 && i < r->count; i++) {
        if (!is_used(disk, r->maps[i], r->base + r->starts[i]))
            continue;
        bool last = p->count == OVERLAYBD_LAYERS_MAX - 2;
        rc = add_regions(p, all, r, i, last ? r->count : i + 1, e);
        if (last)
            break;
    }
    return rc;
}

static int add_last_layer(struct push_plan *p, const struct block_map *all,
                          const struct block_map *disk, struct err *e)
{
    struct push_layer *l = &p->layers[p->count];
    int rc = block_map_delta(&l->data, &l->zeros, all, disk, e);
    if (rc < 0)
        return rc;
    p->count++;
    if (block_map_count(l->zeros) > 0)
        return 0;
    block_map_free(l->zeros);
    l->zeros = NULL;
    return 0;
}

int push_plan_make(struct push_plan *out, const struct block_map *disk,
                   struct block_map *const *regions, size_t region_count, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *all = NULL;
    AUTO_FREE uint64_t *starts = mem_array(region_count + 1, sizeof(*starts));
    struct push_plan p = {.layers = mem_array(OVERLAYBD_LAYERS_MAX, sizeof(*p.layers))};
    struct regions r = {.maps = regions, .count = region_count, .starts = starts};
    int rc =
        starts && p.layers ? find_starts(starts, regions, region_count, e) : err_nomem(e, "layers");
    if (rc == 0)
        rc = block_map_new(&all, block_map_virtual_size(disk), e);
    if (rc == 0)
        rc = add_lower_layers(&p, all, disk, &r, e);
    if (rc == 0)
        rc = block_map_finish(all, e);
    if (rc == 0)
        rc = add_last_layer(&p, all, disk, e);
    if (rc < 0)
        push_plan_fini(&p);
    else
        *out = p;
    return rc;
}
