/* SPDX-License-Identifier: MIT */
/*
 * Two disks side by side. Where both take the same bytes of the same chunk nothing is read; the rest
 * is read and compared block by block, so the answer depends on contents alone.
 */

#include <stdlib.h>
#include <string.h>

#include "bake/disk.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { COMPARE_CACHE = 64 << 20 };

/* One of the two, at a position. */
struct side {
    struct block_map *map;
    struct bdev *device;
    uint8_t *data;
    size_t next; /* the first extent that ends after the position */
};

struct compare {
    struct side sides[2];
    struct disk_difference *out;
    void (*range)(void *ctx, uint64_t off, uint64_t size);
    void *ctx;
    uint64_t range_off; /* of the range in hand, empty at first */
    uint64_t range_size;
};

static void end_range(struct compare *c)
{
    if (c->range_size == 0)
        return;
    c->out->ranges++;
    if (c->range)
        c->range(c->ctx, c->range_off, c->range_size);
    c->range_size = 0;
}

static void add_block(struct compare *c, uint64_t off)
{
    if (c->range_size > 0 && c->range_off + c->range_size != off)
        end_range(c);
    if (c->range_size == 0)
        c->range_off = off;
    c->range_size += BLOCK_SIZE;
    c->out->different += BLOCK_SIZE;
}

/* The extent at `at`, or NULL for zeros; *end is where that stops being so, if it is sooner. */
static const struct map_extent *look(struct side *s, uint64_t at, uint64_t *end)
{
    while (s->next < block_map_count(s->map)) {
        const struct map_extent *x = block_map_extent(s->map, s->next);
        if (x->off + x->size <= at) {
            s->next++;
            continue;
        }
        uint64_t change = x->off > at ? x->off : x->off + x->size;
        *end = change < *end ? change : *end;
        return x->off > at ? NULL : x;
    }
    return NULL;
}

static int read_side(struct side *s, const struct map_extent *x, uint64_t off, size_t len,
                     struct err *e)
{
    memset(s->data, 0, len);
    int failed = x ? bdev_read(s->device, s->data, len, off) : 0;
    return failed < 0
               ? err_sysno(e, -failed, "reading %zu bytes at %llu", len, (unsigned long long)off)
               : 0;
}

static int compare_run(struct compare *c, const struct map_extent *const x[2], uint64_t off,
                       size_t len, struct err *e)
{
    for (size_t i = 0; i < 2; i++) {
        int rc = read_side(&c->sides[i], x[i], off, len, e);
        if (rc < 0)
            return rc;
    }
    for (size_t at = 0; at < len; at += BLOCK_SIZE) {
        if (memcmp(c->sides[0].data + at, c->sides[1].data + at, BLOCK_SIZE) != 0)
            add_block(c, off + at);
    }
    return 0;
}

static bool same_bytes(const struct map_extent *a, const struct map_extent *b, uint64_t at)
{
    if (!a || !b)
        return a == b;
    return digest_equal(&a->chunk, &b->chunk) &&
           a->chunk_off + (at - a->off) == b->chunk_off + (at - b->off);
}

static int compare_all(struct compare *c, const struct cancel *cancel, struct err *e)
{
    uint64_t size = block_map_virtual_size(c->sides[0].map);
    uint64_t other = block_map_virtual_size(c->sides[1].map);
    size = other > size ? other : size;
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < size;) {
        uint64_t end = size;
        const struct map_extent *x[2];
        for (size_t i = 0; i < 2; i++)
            x[i] = look(&c->sides[i], at, &end);
        bool same = same_bytes(x[0], x[1], at);
        if (!same && end - at > CHUNK_SIZE_MAX)
            end = at + CHUNK_SIZE_MAX;
        if (!same)
            rc = compare_run(c, x, at, (size_t)(end - at), e);
        if (rc == 0)
            rc = cancel_check(cancel, e);
        at = end;
    }
    end_range(c);
    return rc;
}

/* ---- Chunks ---- */

static int compare_digests(const void *a, const void *b)
{
    return digest_compare(a, b);
}

/* The chunks of a map, sorted, each once. */
static int list_chunks(struct digest **out, size_t *count, const struct block_map *m, struct err *e)
{
    size_t extents = block_map_count(m);
    struct digest *list = mem_array(extents + 1, sizeof(*list));
    if (!list)
        return err_nomem(e, "chunks");
    for (size_t i = 0; i < extents; i++)
        list[i] = block_map_extent(m, i)->chunk;
    if (extents > 1)
        qsort(list, extents, sizeof(*list), compare_digests);
    size_t kept = 0;
    for (size_t i = 0; i < extents; i++) {
        if (kept == 0 || !digest_equal(&list[kept - 1], &list[i]))
            list[kept++] = list[i];
    }
    *out = list;
    *count = kept;
    return 0;
}

static uint64_t stored_size(struct store *s, const struct digest *d)
{
    uint64_t size = 0;
    struct err ignored = ERR_INIT; /* reading it would have failed */
    return store_chunk_stored_size(s, d, &size, &ignored) == 0 ? size : 0;
}

static int count_chunks(struct compare *c, struct store *s, struct err *e)
{
    AUTO_FREE struct digest *a = NULL;
    AUTO_FREE struct digest *b = NULL;
    size_t counts[2] = {0};
    int rc = list_chunks(&a, &counts[0], c->sides[0].map, e);
    if (rc == 0)
        rc = list_chunks(&b, &counts[1], c->sides[1].map, e);
    if (rc < 0)
        return rc;
    size_t i = 0;
    size_t k = 0;
    while (i < counts[0] || k < counts[1]) {
        int order = i == counts[0] ? 1 : k == counts[1] ? -1 : digest_compare(&a[i], &b[k]);
        if (order < 0)
            c->out->only_stored[0] += stored_size(s, &a[i]);
        else if (order > 0)
            c->out->only_stored[1] += stored_size(s, &b[k]);
        else
            c->out->shared_stored += stored_size(s, &a[i]);
        i += order <= 0;
        k += order >= 0;
    }
    return 0;
}

/* ---- Both ---- */

static int open_side(struct side *side, struct store *s, const struct digest *map,
                     struct chunk_cache *cache, struct err *e)
{
    int rc = store_get_map(s, map, &side->map, e);
    if (rc == 0 && !(side->data = mem_zalloc(CHUNK_SIZE_MAX)))
        rc = err_nomem(e, "disk");
    return rc < 0 ? rc : bdev_open_map(&side->device, side->map, cache, e);
}

static void close_side(struct side *side)
{
    bdev_close(side->device);
    block_map_free(side->map);
    free(side->data);
}

int disk_compare(struct disk_difference *out, struct store *s, const struct digest maps[2],
                 const struct disk_compare_options *o, struct err *e)
{
    *out = (struct disk_difference){0};
    struct compare c = {.out = out, .range = o->range, .ctx = o->ctx};
    AUTO_CHUNK_CACHE struct chunk_cache *cache = NULL;
    int rc = chunk_cache_new(&cache, s, COMPARE_CACHE, e);
    for (size_t i = 0; rc == 0 && i < 2; i++)
        rc = open_side(&c.sides[i], s, &maps[i], cache, e);
    if (rc == 0)
        rc = compare_all(&c, o->cancel, e);
    if (rc == 0)
        rc = count_chunks(&c, s, e);
    for (size_t i = 0; i < 2; i++)
        close_side(&c.sides[i]);
    return rc;
}
