/* SPDX-License-Identifier: MIT */
/*
 * A block map as a read-only disk: gaps are zeros, the rest is copied out of the chunk cache. The
 * store verified a chunk when the cache loaded it; what cannot be verified is EIO and a log line
 * that names the chunk, once per extent of the map, since a guest may ask again and again.
 */
#include "blockdev/blockdev.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

struct leaf {
    struct bdev device;
    const struct block_map *map;
    struct chunk_cache *cache;
    atomic_uchar *reported; /* per extent: its chunk's failure has been logged */
    /* Extents in the order of their first read; each place is filled once, after it was taken. */
    atomic_uchar *touched;        /* per extent: it is in the trace */
    atomic_uint_least32_t *trace; /* index of an extent plus 1; 0: not filled yet */
    atomic_size_t trace_len;
    atomic_uint failure_state; /* of `failure`: 0 none, 1 being written, 2 there */
    struct err failure;        /* the first one */
};

static struct leaf *leaf_of(struct bdev *d)
{
    return (struct leaf *)(void *)d; /* the device is the first member */
}

static int report(struct leaf *l, size_t index, const struct err *e)
{
    const struct map_extent *extent = block_map_extent(l->map, index);
    unsigned none = 0;
    if (atomic_compare_exchange_strong(&l->failure_state, &none, 1)) {
        l->failure = *e;
        atomic_store(&l->failure_state, 2);
    }
    if (!atomic_exchange(&l->reported[index], 1)) {
        log_event(LOG_WARN, "blockdev", "disk range %" PRIu64 "+%" PRIu32 ": %s%s%s", extent->off,
                  extent->size, e->text, e->hint[0] ? "; " : "", e->hint);
    }
    return e->class == ERR_NOMEM ? -ENOMEM : -EIO;
}

static void touch(struct leaf *l, size_t index)
{
    if (atomic_load_explicit(&l->touched[index], memory_order_relaxed) ||
        atomic_exchange(&l->touched[index], 1))
        return;
    size_t place = atomic_fetch_add(&l->trace_len, 1);
    atomic_store(&l->trace[place], (uint32_t)(index + 1));
}

/* Copies `len` bytes at `off` of the disk, all within one extent. */
static int read_extent(struct leaf *l, size_t index, uint8_t *data, size_t len, uint64_t off,
                       bool now)
{
    const struct map_extent *extent = block_map_extent(l->map, index);
    struct err e = ERR_INIT;
    struct cached_chunk *chunk;
    if (now && !chunk_cache_peek(l->cache, &extent->chunk, &chunk))
        return -EAGAIN;
    if (!now && chunk_cache_get(l->cache, &extent->chunk, &chunk, &e) < 0)
        return report(l, index, &e);
    size_t chunk_len;
    const uint8_t *bytes = cached_chunk_bytes(chunk, &chunk_len);
    uint64_t at = extent->chunk_off + (off - extent->off);
    touch(l, index);
    bool inside = at <= chunk_len && len <= chunk_len - at;
    if (inside)
        memcpy(data, bytes + at, len);
    chunk_cache_put(l->cache, chunk);
    if (inside)
        return 0;
    err_set(&e, ERR_CORRUPT, "a chunk has %zu bytes, fewer than the disk's map takes from it",
            chunk_len);
    return report(l, index, &e);
}

static int read_range(struct leaf *l, void *data, size_t len, uint64_t off, bool now)
{
    uint8_t *at = data;
    size_t count = block_map_count(l->map);
    for (size_t i = block_map_find(l->map, off); len > 0; i++) {
        const struct map_extent *extent = i < count ? block_map_extent(l->map, i) : NULL;
        uint64_t start = extent ? extent->off : UINT64_MAX;
        if (start > off) {
            size_t gap = start - off < len ? (size_t)(start - off) : len;
            memset(at, 0, gap);
            at += gap;
            off += gap;
            len -= gap;
        }
        if (len == 0)
            break;
        uint64_t left = extent->off + extent->size - off;
        size_t n = left < len ? (size_t)left : len;
        int rc = read_extent(l, i, at, n, off, now);
        if (rc < 0)
            return rc;
        at += n;
        off += n;
        len -= n;
    }
    return 0;
}

static int leaf_read(struct bdev *d, void *data, size_t len, uint64_t off)
{
    return read_range(leaf_of(d), data, len, off, false);
}

static int leaf_read_now(struct bdev *d, void *data, size_t len, uint64_t off)
{
    return read_range(leaf_of(d), data, len, off, true);
}

/* ---- Lending ---- */

static bool lend_part(struct bdev_loan *loan, const uint8_t *data, size_t len)
{
    if (loan->part_count == BDEV_LOAN_PARTS)
        return false;
    /* Whoever borrows only reads; an iovec has no const. */
    loan->parts[loan->part_count++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    return true;
}

static bool lend_zeros(struct bdev_loan *loan, size_t len)
{
    static const uint8_t zeros[64 << 10];
    while (len > 0) {
        size_t n = len < sizeof(zeros) ? len : sizeof(zeros);
        if (!lend_part(loan, zeros, n))
            return false;
        len -= n;
    }
    return true;
}

/* `len` bytes at `off` of the disk, all within one extent. */
static bool lend_extent(struct leaf *l, size_t index, struct bdev_loan *loan, size_t len,
                        uint64_t off)
{
    const struct map_extent *extent = block_map_extent(l->map, index);
    struct cached_chunk *chunk;
    size_t chunk_len;
    if (loan->held_count == BDEV_LOAN_PARTS || !chunk_cache_peek(l->cache, &extent->chunk, &chunk))
        return false;
    loan->held[loan->held_count++] = chunk;
    const uint8_t *bytes = cached_chunk_bytes(chunk, &chunk_len);
    uint64_t at = extent->chunk_off + (off - extent->off);
    touch(l, index);
    return at <= chunk_len && len <= chunk_len - at && lend_part(loan, bytes + at, len);
}

static int leaf_lend(struct bdev *d, struct bdev_loan *loan, size_t len, uint64_t off)
{
    struct leaf *l = leaf_of(d);
    size_t count = block_map_count(l->map);
    bool fits = true;
    loan->cache = l->cache;
    for (size_t i = block_map_find(l->map, off); fits && len > 0;) {
        const struct map_extent *extent = i < count ? block_map_extent(l->map, i) : NULL;
        uint64_t end = !extent             ? UINT64_MAX
                       : extent->off > off ? extent->off
                                           : extent->off + extent->size;
        size_t n = end - off < len ? (size_t)(end - off) : len;
        if (extent && extent->off <= off)
            fits = lend_extent(l, i++, loan, n, off);
        else
            fits = lend_zeros(loan, n);
        off += n;
        len -= n;
    }
    if (fits)
        return 0;
    bdev_loan_end(loan);
    return -EAGAIN;
}

void bdev_loan_end(struct bdev_loan *loan)
{
    for (size_t i = 0; i < loan->held_count; i++)
        chunk_cache_put(loan->cache, loan->held[i]);
    loan->held_count = loan->part_count = 0;
}

static enum bdev_content leaf_content(struct bdev *d, uint64_t len, uint64_t off, uint64_t *run)
{
    struct leaf *l = leaf_of(d);
    size_t count = block_map_count(l->map);
    size_t i = block_map_find(l->map, off);
    const struct map_extent *extent = i < count ? block_map_extent(l->map, i) : NULL;
    if (!extent || extent->off > off) {
        *run = extent && extent->off - off < len ? extent->off - off : len;
        return BDEV_ZEROS;
    }
    uint64_t end = extent->off + extent->size;
    while (end - off < len && ++i < count && (extent = block_map_extent(l->map, i))->off == end)
        end += extent->size;
    *run = end - off < len ? end - off : len;
    return BDEV_DATA;
}

static void leaf_close(struct bdev *d)
{
    struct leaf *l = leaf_of(d);
    free(l->reported);
    free(l->touched);
    free(l->trace);
    free(l);
}

static const struct bdev_ops leaf_ops = {
    .read = leaf_read,
    .read_now = leaf_read_now,
    .lend = leaf_lend,
    .content = leaf_content,
    .close = leaf_close,
};

int bdev_open_map(struct bdev **out, const struct block_map *m, struct chunk_cache *c,
                  struct err *e)
{
    struct leaf *l = mem_zalloc(sizeof(*l));
    if (!l)
        return err_nomem(e, "disk");
    l->device.ops = &leaf_ops;
    l->device.size = block_map_virtual_size(m);
    l->map = m;
    l->cache = c;
    AUTO_BDEV struct bdev *device = &l->device;
    size_t count = block_map_count(m);
    l->reported = mem_array(count, sizeof(*l->reported));
    l->touched = mem_array(count, sizeof(*l->touched));
    l->trace = mem_array(count, sizeof(*l->trace));
    if (!l->reported || !l->touched || !l->trace)
        return err_nomem(e, "disk");
    *out = MOVE(device);
    return 0;
}

bool bdev_map_failure(const struct bdev *d, struct err *e)
{
    if (d->ops != &leaf_ops)
        return false;
    const struct leaf *l = (const struct leaf *)(const void *)d;
    if (atomic_load(&l->failure_state) != 2)
        return false;
    *e = l->failure;
    return true;
}

int bdev_map_trace(const struct bdev *d, uint32_t **out, size_t *count, struct err *e)
{
    assert(d->ops == &leaf_ops);
    const struct leaf *l = (const struct leaf *)(const void *)d;
    size_t len = atomic_load(&l->trace_len);
    uint32_t *extents = mem_array(len, sizeof(*extents));
    if (!extents)
        return err_nomem(e, "trace");
    *count = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t extent = atomic_load(&l->trace[i]);
        if (extent > 0) /* else a reader is just about to fill it */
            extents[(*count)++] = extent - 1;
    }
    *out = extents;
    return 0;
}
