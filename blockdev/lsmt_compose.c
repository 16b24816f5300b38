/* SPDX-License-Identifier: MIT */
/*
 * Composing an LSMT layer from block maps. Everything but the sectors themselves is known from the
 * maps, so the file need not be written to be read: its bytes are made where they are asked for,
 * which lets workers compress any part of it at any time.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/internal.h"
#include "blockdev/overlaybd_internal.h"

enum { CACHE_SIZE = 16 << 20 };

/* Part of a chunk, at its place in the file. */
struct segment {
    uint64_t at; /* bytes */
    struct map_extent from;
};

struct lsmt_file {
    struct chunk_cache *cache;
    struct segment *segments; /* in order of `at`, without gaps */
    size_t segment_count, segment_capacity;
    size_t *slots;     /* hash table over segments: 1 + their number; 0: free */
    size_t slot_count; /* a power of two */
    uint64_t data_end;
    struct buf index;
    uint64_t entry_count;
    struct lsmt_entry last; /* not in `index` yet; count 0: none */
    uint8_t header[LSMT_HEADER_SIZE];
    uint8_t trailer[LSMT_HEADER_SIZE];
};

static void file_free(struct lsmt_file *f)
{
    if (!f)
        return;
    chunk_cache_free(f->cache);
    free(f->segments);
    free(f->slots);
    buf_fini(&f->index);
    free(f);
}
DEFINE_AUTO(lsmt_file, file_free)

/* ---- Planning ---- */

static bool same_piece(const struct map_extent *a, const struct map_extent *b)
{
    return a->size == b->size && a->chunk_off == b->chunk_off && digest_equal(&a->chunk, &b->chunk);
}

/* The slot of the segment that holds what `x` takes, or the free one where it belongs. */
static size_t find_slot(const struct lsmt_file *f, const struct map_extent *x)
{
    uint64_t hash = overlaybd_get64(x->chunk.bytes) + x->chunk_off + x->size;
    size_t slot = (size_t)hash & (f->slot_count - 1);
    while (f->slots[slot] != 0 && !same_piece(&f->segments[f->slots[slot] - 1].from, x))
        slot = (slot + 1) & (f->slot_count - 1);
    return slot;
}

/* Where in the file the extent's bytes are. */
static int place(struct lsmt_file *f, const struct map_extent *x, uint64_t *at, struct err *e)
{
    size_t slot = find_slot(f, x);
    if (f->slots[slot] != 0) {
        *at = f->segments[f->slots[slot] - 1].at;
        return 0;
    }
    int rc =
        mem_grow(&f->segments, &f->segment_capacity, f->segment_count + 1, sizeof(*f->segments), e);
    if (rc < 0)
        return rc;
    f->segments[f->segment_count++] = (struct segment){f->data_end, *x};
    f->slots[slot] = f->segment_count;
    *at = f->data_end;
    f->data_end += x->size;
    return 0;
}

static int put_entry(struct lsmt_file *f, const struct lsmt_entry *x, struct err *e)
{
    if (f->entry_count == LSMT_ENTRIES_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "OverlayBD layer: more than %d pieces, which its readers refuse",
                       LSMT_ENTRIES_MAX);
    f->entry_count++;
    int rc = buf_add_u64(&f->index, x->sector | (uint64_t)x->count << 50, e);
    return rc < 0 ? rc : buf_add_u64(&f->index, x->at | (uint64_t)x->zeros << 55, e);
}

/* True if `next` starts where `last` ends, on the disk and in the file, and fits into its entry. */
static bool continues(const struct lsmt_entry *last, const struct lsmt_entry *next)
{
    return last->count > 0 && last->zeros == next->zeros &&
           last->sector + last->count == next->sector &&
           last->at + (last->zeros ? 0 : last->count) == next->at &&
           last->count + next->count <= LSMT_ENTRY_SECTORS_MAX;
}

static int add_entry(struct lsmt_file *f, const struct lsmt_entry *x, struct err *e)
{
    if (continues(&f->last, x)) {
        f->last.count += x->count;
        return 0;
    }
    int rc = f->last.count > 0 ? put_entry(f, &f->last, e) : 0;
    f->last = *x;
    return rc;
}

static int add_extent(struct lsmt_file *f, const struct map_extent *x, bool zeros, struct err *e)
{
    /* Whole blocks in each entry. */
    const uint64_t most =
        LSMT_ENTRY_SECTORS_MAX - LSMT_ENTRY_SECTORS_MAX % (BLOCK_SIZE / SECTOR_SIZE);
    uint64_t at = f->data_end; /* what entries of zeros say, too: it has to be in the file */
    int rc = zeros ? 0 : place(f, x, &at, e);
    for (uint64_t done = 0, all = x->size / SECTOR_SIZE; rc == 0 && done < all;) {
        uint64_t count = all - done < most ? all - done : most;
        struct lsmt_entry entry = {.sector = x->off / SECTOR_SIZE + done,
                                   .at = at / SECTOR_SIZE + (zeros ? 0 : done),
                                   .count = (uint32_t)count,
                                   .zeros = zeros};
        rc = add_entry(f, &entry, e);
        done += count;
    }
    return rc;
}

/* Both maps in order of the disk. */
static int add_maps(struct lsmt_file *f, const struct block_map *data,
                    const struct block_map *zeros, struct err *e)
{
    size_t data_count = block_map_count(data), zeros_count = zeros ? block_map_count(zeros) : 0;
    uint64_t end = 0;
    int rc = 0;
    for (size_t d = 0, z = 0; rc == 0 && (d < data_count || z < zeros_count);) {
        const struct map_extent *x = d < data_count ? block_map_extent(data, d) : NULL;
        const struct map_extent *y = z < zeros_count ? block_map_extent(zeros, z) : NULL;
        bool zero = !x || (y && y->off < x->off);
        if (zero)
            x = y;
        if (x->off < end)
            return err_set(e, ERR_CORRUPT, "OverlayBD layer: data and zeros at one place");
        end = x->off + x->size;
        rc = add_extent(f, x, zero, e);
        d += !zero;
        z += zero;
    }
    if (rc == 0 && f->last.count > 0)
        rc = put_entry(f, &f->last, e);
    return rc;
}

/* Readers of either kind know padding by its sector or by its length. */
static int pad_index(struct lsmt_file *f, struct err *e)
{
    const struct lsmt_entry padding = {.sector = LSMT_PADDING_SECTOR};
    int rc = 0;
    while (rc == 0 && f->entry_count % LSMT_ENTRIES_UNIT != 0)
        rc = put_entry(f, &padding, e);
    return rc;
}

static int add_map_digest(struct hasher *h, const struct block_map *m, struct err *e)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    int rc = block_map_encode(m, &bytes, e);
    if (rc < 0)
        return rc;
    struct digest d;
    digest_bytes(&d, bytes.data, bytes.len);
    hasher_add(h, d.bytes, DIGEST_SHA256_LEN);
    return 0;
}

/* An id that depends on what the layer holds: hosts keep merged indexes under the ids of layers. */
static int derive_uuid(uint8_t uuid[16], const struct overlaybd_write_options *o, struct err *e)
{
    static const char domain[] = "tb2-bake OverlayBD layer 1";
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc < 0)
        return rc;
    hasher_add(h, domain, sizeof(domain));
    rc = add_map_digest(h, o->data, e);
    if (rc == 0 && o->zeros)
        rc = add_map_digest(h, o->zeros, e);
    struct digest d;
    hasher_finish(h, &d);
    memcpy(uuid, d.bytes, 16);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x80); /* RFC 9562: version 8, of one's own making */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
    return rc;
}

static int plan(struct lsmt_file *f, const struct overlaybd_write_options *o, struct err *e)
{
    f->data_end = LSMT_HEADER_SIZE;
    buf_init(&f->index, (size_t)LSMT_ENTRIES_MAX * LSMT_ENTRY_SIZE);
    for (f->slot_count = 2; f->slot_count < 2 * block_map_count(o->data);)
        f->slot_count *= 2;
    f->slots = mem_array(f->slot_count, sizeof(*f->slots));
    if (!f->slots)
        return err_nomem(e, "OverlayBD layer");
    struct lsmt_record record = {.is_header = true,
                                 .virtual_size = block_map_virtual_size(o->data)};
    int rc = derive_uuid(record.uuid, o, e);
    if (rc == 0)
        rc = add_maps(f, o->data, o->zeros, e);
    if (rc == 0)
        rc = pad_index(f, e);
    lsmt_record_encode(&record, f->header);
    record.is_header = false;
    record.index_offset = f->data_end;
    record.entry_count = f->entry_count;
    lsmt_record_encode(&record, f->trailer);
    return rc;
}

/* ---- Reading ---- */

/* The last segment that starts at or before `at`, which is within the data. */
static const struct segment *find_segment(const struct lsmt_file *f, uint64_t at)
{
    size_t low = 0, high = f->segment_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (f->segments[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    return &f->segments[low];
}

static int read_segment(struct lsmt_file *f, uint64_t at, uint8_t *data, size_t len, size_t *got,
                        struct err *e)
{
    const struct segment *s = find_segment(f, at);
    struct cached_chunk *chunk;
    int rc = chunk_cache_get(f->cache, &s->from.chunk, &chunk, e);
    if (rc < 0)
        return rc;
    size_t chunk_len;
    const uint8_t *bytes = cached_chunk_bytes(chunk, &chunk_len);
    uint64_t skip = at - s->at;
    *got = s->from.size - skip < len ? (size_t)(s->from.size - skip) : len;
    if (s->from.chunk_off + (uint64_t)s->from.size <= chunk_len)
        memcpy(data, bytes + s->from.chunk_off + skip, *got);
    else
        rc = err_set(e, ERR_CORRUPT, "a chunk is shorter than the block map says");
    chunk_cache_put(f->cache, chunk);
    return rc;
}

static int file_read_at(void *self, uint64_t off, void *data, size_t len, size_t *got,
                        struct err *e)
{
    struct lsmt_file *f = self;
    uint64_t index_end = f->data_end + f->index.len;
    const struct {
        uint64_t start, end;
        const uint8_t *bytes;
    } parts[] = {{0, LSMT_HEADER_SIZE, f->header},
                 {f->data_end, index_end, f->index.data},
                 {index_end, index_end + LSMT_HEADER_SIZE, f->trailer}};
    *got = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (off < parts[i].start || off >= parts[i].end)
            continue;
        uint64_t left = parts[i].end - off;
        *got = left < len ? (size_t)left : len;
        memcpy(data, parts[i].bytes + (off - parts[i].start), *got);
        return 0;
    }
    return off < f->data_end ? read_segment(f, off, data, len, got, e) : 0;
}

static void file_close_source(void *self)
{
    file_free(self);
}

int lsmt_compose(struct source *out, struct store *s, const struct overlaybd_write_options *o,
                 struct err *e)
{
    struct lsmt_file *f CLEANUP(file_free_auto_) = mem_zalloc(sizeof(*f));
    if (!f)
        return err_nomem(e, "OverlayBD layer");
    int rc = plan(f, o, e);
    if (rc == 0)
        rc = chunk_cache_new(&f->cache, s, CACHE_SIZE, e);
    if (rc < 0)
        return rc;
    uint64_t size = f->data_end + f->index.len + LSMT_HEADER_SIZE;
    *out = (struct source){
        .read = file_read_at, .close = file_close_source, .self = MOVE(f), .size = size};
    return 0;
}
