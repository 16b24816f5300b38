/* SPDX-License-Identifier: MIT */
/*
 * Block maps in memory: a growing array of extents, sorted and joined by block_map_finish. Lookups
 * are binary searches; combinations walk the maps side by side, so they cost a pass over each.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "blockdev/internal.h"

struct block_map {
    uint64_t virtual_size;
    struct map_extent *extents;
    size_t count;
    size_t capacity;
};

int block_map_new(struct block_map **out, uint64_t virtual_size, struct err *e)
{
    if (virtual_size % BLOCK_SIZE != 0 || virtual_size > INT64_MAX)
        return err_set(e, ERR_INPUT, "%llu bytes is no size for a disk",
                       (unsigned long long)virtual_size);
    struct block_map *m = mem_zalloc(sizeof(*m));
    if (!m)
        return err_nomem(e, "block map");
    m->virtual_size = virtual_size;
    *out = m;
    return 0;
}

void block_map_free(struct block_map *m)
{
    if (!m)
        return;
    free(m->extents);
    free(m);
}

uint64_t block_map_virtual_size(const struct block_map *m)
{
    return m->virtual_size;
}

size_t block_map_count(const struct block_map *m)
{
    return m->count;
}

const struct map_extent *block_map_extent(const struct block_map *m, size_t index)
{
    return &m->extents[index];
}

static uint64_t end_of(const struct map_extent *x)
{
    return x->off + x->size;
}

int block_map_add(struct block_map *m, const struct map_extent *extent, struct err *e)
{
    if (extent->off % BLOCK_SIZE != 0 || extent->size % BLOCK_SIZE != 0 ||
        extent->chunk_off % BLOCK_SIZE != 0 || extent->size == 0 || extent->size > CHUNK_SIZE_MAX ||
        extent->chunk_off > CHUNK_SIZE_MAX - extent->size || extent->size > m->virtual_size ||
        extent->off > m->virtual_size - extent->size)
        return err_set(e, ERR_CORRUPT, "block map: bad extent of %u bytes at %llu",
                       (unsigned)extent->size, (unsigned long long)extent->off);
    int rc = mem_grow(&m->extents, &m->capacity, m->count + 1, sizeof(*m->extents), e);
    if (rc < 0)
        return rc;
    m->extents[m->count++] = *extent;
    return 0;
}

static int compare_extents(const void *a, const void *b)
{
    const struct map_extent *x = a, *y = b;
    return (x->off > y->off) - (x->off < y->off);
}

static bool continues(const struct map_extent *left, const struct map_extent *right)
{
    return end_of(left) == right->off && left->chunk_off + left->size == right->chunk_off &&
           digest_equal(&left->chunk, &right->chunk);
}

int block_map_finish(struct block_map *m, struct err *e)
{
    if (m->count > 1)
        qsort(m->extents, m->count, sizeof(*m->extents), compare_extents);
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++) {
        const struct map_extent *x = &m->extents[i];
        struct map_extent *last = kept > 0 ? &m->extents[kept - 1] : NULL;
        if (last && x->off < end_of(last))
            return err_set(e, ERR_CORRUPT, "block map: two extents hold offset %llu",
                           (unsigned long long)x->off);
        if (last && continues(last, x))
            last->size += x->size;
        else
            m->extents[kept++] = *x;
    }
    m->count = kept;
    return 0;
}

size_t block_map_find(const struct block_map *m, uint64_t off)
{
    size_t low = 0, high = m->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (end_of(&m->extents[middle]) > off)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The part [from, to) of an extent, moved so that `from` comes to stand at `new_off`. */
static int add_part(struct block_map *out, const struct map_extent *x, uint64_t from, uint64_t to,
                    uint64_t new_off, struct err *e)
{
    struct map_extent part = *x;
    part.off = new_off;
    part.size = (uint32_t)(to - from);
    part.chunk_off = x->chunk_off + (uint32_t)(from - x->off);
    return block_map_add(out, &part, e);
}

int block_map_copy_range(struct block_map *out, const struct block_map *in, uint64_t off,
                         uint64_t size, uint64_t new_off, struct err *e)
{
    uint64_t end;
    if (off % BLOCK_SIZE != 0 || size % BLOCK_SIZE != 0 || new_off % BLOCK_SIZE != 0 ||
        mem_add_u64(off, size, &end) || end > in->virtual_size || size > out->virtual_size ||
        new_off > out->virtual_size - size)
        return err_set(e, ERR_CORRUPT, "block map: no range of %llu bytes at %llu to copy to %llu",
                       (unsigned long long)size, (unsigned long long)off,
                       (unsigned long long)new_off);
    for (size_t i = block_map_find(in, off); i < in->count && in->extents[i].off < end; i++) {
        const struct map_extent *x = &in->extents[i];
        uint64_t from = x->off > off ? x->off : off;
        uint64_t to = end_of(x) < end ? end_of(x) : end;
        int rc = add_part(out, x, from, to, new_off + (from - off), e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* A walk over a map at rising offsets. */
struct walk {
    const struct block_map *map; /* NULL: nothing in it */
    size_t at;
};

/* The first extent that ends after `off`; NULL when there is none. */
static const struct map_extent *walk_to(struct walk *w, uint64_t off)
{
    if (!w->map)
        return NULL;
    while (w->at < w->map->count && end_of(&w->map->extents[w->at]) <= off)
        w->at++;
    return w->at < w->map->count ? &w->map->extents[w->at] : NULL;
}

/* Adds what of `x` none of the walks covers. */
static int add_uncovered(struct block_map *out, const struct map_extent *x, struct walk *walks,
                         size_t walk_count, struct err *e)
{
    uint64_t off = x->off;
    while (off < end_of(x)) {
        uint64_t free_until = end_of(x), covered_until = off;
        for (size_t i = 0; i < walk_count; i++) {
            const struct map_extent *cover = walk_to(&walks[i], off);
            if (!cover)
                continue;
            if (cover->off <= off && end_of(cover) > covered_until)
                covered_until = end_of(cover);
            else if (cover->off > off && cover->off < free_until)
                free_until = cover->off;
        }
        if (covered_until > off) {
            off = covered_until;
            continue;
        }
        int rc = add_part(out, x, off, free_until, off, e);
        if (rc < 0)
            return rc;
        off = free_until;
    }
    return 0;
}

int block_map_overlay(struct block_map **out, const struct block_map *lower,
                      const struct block_map *upper, const struct block_map *zeros, struct err *e)
{
    if (upper->virtual_size != lower->virtual_size ||
        (zeros && zeros->virtual_size != lower->virtual_size))
        return err_set(e, ERR_CORRUPT, "block map: the maps are of disks of different sizes");
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = block_map_new(&m, lower->virtual_size, e);
    for (size_t i = 0; rc == 0 && i < upper->count; i++)
        rc = block_map_add(m, &upper->extents[i], e);
    struct walk walks[] = {{.map = upper, .at = 0}, {.map = zeros, .at = 0}};
    for (size_t i = 0; rc == 0 && i < lower->count; i++)
        rc = add_uncovered(m, &lower->extents[i], walks, ARRAY_LEN(walks), e);
    if (rc == 0)
        rc = block_map_finish(m, e);
    if (rc < 0)
        return rc;
    *out = MOVE(m);
    return 0;
}

/* True if `lower` holds at `off` what `x` holds there. Both cover it. */
static bool same_at(const struct map_extent *x, const struct map_extent *lower)
{
    return x->chunk_off + lower->off == lower->chunk_off + x->off &&
           digest_equal(&x->chunk, &lower->chunk);
}

/* Adds what of `x` the walk's map does not hold just so. */
static int add_changed(struct block_map *out, const struct map_extent *x, struct walk *lower,
                       struct err *e)
{
    uint64_t off = x->off, end = end_of(x);
    int rc = 0;
    while (rc == 0 && off < end) {
        const struct map_extent *below = walk_to(lower, off);
        uint64_t until = end;
        bool covered = below && below->off <= off;
        if (covered && end_of(below) < until)
            until = end_of(below);
        else if (!covered && below && below->off < until)
            until = below->off;
        if (!covered || !same_at(x, below))
            rc = add_part(out, x, off, until, off, e);
        off = until;
    }
    return rc;
}

int block_map_delta(struct block_map **data, struct block_map **zeros,
                    const struct block_map *lower, const struct block_map *target, struct err *e)
{
    if (target->virtual_size < lower->virtual_size)
        return err_set(e, ERR_CORRUPT, "block map: the disk is smaller than what it stands on");
    AUTO_BLOCK_MAP struct block_map *changed = NULL, *gone = NULL;
    struct walk over_lower = {.map = lower}, over_target = {.map = target};
    int rc = block_map_new(&changed, target->virtual_size, e);
    if (rc == 0)
        rc = block_map_new(&gone, target->virtual_size, e);
    for (size_t i = 0; rc == 0 && i < target->count; i++)
        rc = add_changed(changed, &target->extents[i], &over_lower, e);
    for (size_t i = 0; rc == 0 && i < lower->count; i++)
        rc = add_uncovered(gone, &lower->extents[i], &over_target, 1, e);
    if (rc == 0)
        rc = block_map_finish(changed, e);
    if (rc == 0)
        rc = block_map_finish(gone, e);
    if (rc < 0)
        return rc;
    *data = MOVE(changed);
    *zeros = MOVE(gone);
    return 0;
}
