/* SPDX-License-Identifier: MIT */
/*
 * Layer regions. The cursor is where the next address of the region will be given out; it is moved
 * by the thread that brings the files, in their order, before anything is handed to the workers, so
 * addresses never depend on these.
 *
 * Small files go into the open pack, a chunk in the making that stays open while large files pass
 * by; their addresses are then not in one run, and the map has an extent for each. Which file ends a
 * pack is up to the files, not to how many came before, so that layers with the same files in a row
 * have the same packs. Large files are cut into pieces of CHUNK_SIZE_MAX, each a chunk; a piece
 * without data gets no addresses, so a sparse file takes what its data takes. Memory: the pack, the
 * current piece, and what the pool has in hand; buffers are used again, since fresh ones cost a page
 * fault for every 4 KiB.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "blockdev/internal.h"

enum {
    SPARE_MAX = 8,
    PACK_SIZE_MIN = 64 << 10, /* of one that a file ends */
    RUNS_MAX = CHUNK_SIZE_MAX / BLOCK_SIZE,
};

/* Addresses of a part of a chunk. */
struct region_run {
    uint64_t region_off;
    uint32_t chunk_off;
    uint32_t size;
};

/* Data on its way to a chunk. */
struct region_chunk {
    struct region_run runs[RUNS_MAX];
    size_t run_count;
    size_t len;    /* used; a multiple of BLOCK_SIZE once submitted */
    size_t filled; /* what lies behind may be left from another use of the buffer */
    uint8_t *data;
    struct digest digest;
};

struct region_writer {
    struct store *store;
    struct pool *pool;
    struct block_map *map;
    uint64_t cursor;
    struct region_chunk *pack;  /* open, or NULL */
    struct region_chunk *piece; /* of the current large file, or NULL before its first data */
    uint64_t piece_index;       /* which one that is */
    struct region_chunk *spare[SPARE_MAX];
    size_t spare_count;
    bool in_file;
    uint64_t size; /* of the current file */
    uint64_t end;  /* of its data so far */
    struct region_extent *extents;
    size_t extent_count;
    size_t extent_capacity;
};

static void region_chunk_free(struct region_chunk *c)
{
    if (!c)
        return;
    free(c->data);
    free(c);
}
DEFINE_AUTO(region_chunk, region_chunk_free)
#define AUTO_REGION_CHUNK CLEANUP(region_chunk_free_auto_)

/* NULL when memory is short. The pool's callbacks run on the thread that submits, so no lock guards
 * the spare buffers. */
static struct region_chunk *region_chunk_new(struct region_writer *w)
{
    if (w->spare_count > 0) {
        struct region_chunk *spare = w->spare[--w->spare_count];
        spare->run_count = spare->len = spare->filled = 0;
        return spare;
    }
    AUTO_REGION_CHUNK struct region_chunk *c = mem_zalloc(sizeof(*c));
    if (c)
        c->data = mem_zalloc(CHUNK_SIZE_MAX);
    return c && c->data ? MOVE(c) : NULL;
}

static void region_chunk_recycle(struct region_writer *w, struct region_chunk *c)
{
    if (c && w->spare_count < SPARE_MAX)
        w->spare[w->spare_count++] = c;
    else
        region_chunk_free(c);
}

/* Zeros up to `end`. */
static void region_chunk_pad(struct region_chunk *c, size_t end)
{
    if (end <= c->filled)
        return;
    memset(c->data + c->filled, 0, end - c->filled);
    c->filled = end;
}

/* Offsets rise. */
static void region_chunk_write(struct region_chunk *c, size_t at, const void *data, size_t len)
{
    region_chunk_pad(c, at);
    memcpy(c->data + at, data, len);
    c->filled = at + len;
}

/* ---- Pool ------------------------------------------------------------------------------ */

static int chunk_work(void *ctx, void *item, struct err *e)
{
    const struct region_writer *w = ctx;
    struct region_chunk *c = item;
    return store_put_chunk(w->store, c->data, c->len, &c->digest, e);
}

static int chunk_done(void *ctx, void *item, struct err *e)
{
    struct region_writer *w = ctx;
    const struct region_chunk *c = item;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < c->run_count; i++) {
        const struct region_run *run = &c->runs[i];
        struct map_extent x = {.off = run->region_off,
                               .size = run->size,
                               .chunk_off = run->chunk_off,
                               .chunk = c->digest};
        rc = block_map_add(w->map, &x, e);
    }
    region_chunk_recycle(w, item);
    return rc;
}

static void chunk_drop(void *ctx, void *item)
{
    region_chunk_recycle(ctx, item);
}

static const struct pool_ops chunk_ops = {
    .work = chunk_work, .done = chunk_done, .drop = chunk_drop};

/* ---- Addresses ------------------------------------------------------------------------- */

/* Gives addresses to the next `size` bytes of the chunk. */
static int take_addresses(struct region_writer *w, struct region_chunk *c, size_t size,
                          uint64_t *out, struct err *e)
{
    if (size > REGION_SIZE_MAX - w->cursor)
        return err_set(e, ERR_LIMIT, "a layer holds more than %llu bytes of data",
                       (unsigned long long)REGION_SIZE_MAX);
    struct region_run *last = c->run_count > 0 ? &c->runs[c->run_count - 1] : NULL;
    if (!last || last->region_off + last->size != w->cursor) {
        last = &c->runs[c->run_count++];
        *last = (struct region_run){.region_off = w->cursor, .chunk_off = (uint32_t)c->len};
    }
    last->size += (uint32_t)size;
    c->len += size;
    *out = w->cursor;
    w->cursor += size;
    return 0;
}

static int add_extent(struct region_writer *w, uint64_t file_off, uint64_t len, uint64_t region_off,
                      struct err *e)
{
    struct region_extent *last = w->extent_count > 0 ? &w->extents[w->extent_count - 1] : NULL;
    if (last && last->file_off + last->len == file_off &&
        last->region_off + last->len == region_off) {
        last->len += len;
        return 0;
    }
    int rc =
        mem_grow(&w->extents, &w->extent_capacity, w->extent_count + 1, sizeof(*w->extents), e);
    if (rc < 0)
        return rc;
    w->extents[w->extent_count++] =
        (struct region_extent){.file_off = file_off, .len = len, .region_off = region_off};
    return 0;
}

static int close_pack(struct region_writer *w, struct err *e)
{
    return w->pack ? pool_submit(w->pool, MOVE(w->pack), e) : 0;
}

/* Makes room in a pack for a file of `size` bytes. */
static int open_pack(struct region_writer *w, uint64_t size, struct err *e)
{
    int rc = 0;
    if (w->pack && mem_round_up(size, BLOCK_SIZE) > CHUNK_SIZE_MAX - w->pack->len)
        rc = close_pack(w, e);
    if (rc < 0 || w->pack)
        return rc;
    w->pack = region_chunk_new(w);
    return w->pack ? 0 : err_nomem(e, "chunk of a layer");
}

/* One size in 32 does: the same file does in every layer, and bytes need not be looked at. */
static bool ends_pack(uint64_t size)
{
    return ((uint32_t)size * 0x9e3779b1U) >> 27 == 0;
}

/* Ends the current piece: `len` bytes of the file. */
static int close_piece(struct region_writer *w, struct err *e)
{
    if (!w->piece)
        return 0;
    AUTO_REGION_CHUNK struct region_chunk *piece = MOVE(w->piece);
    uint64_t file_off = w->piece_index * CHUNK_SIZE_MAX;
    uint64_t left = w->size - file_off;
    size_t len = left < CHUNK_SIZE_MAX ? (size_t)left : CHUNK_SIZE_MAX;
    size_t blocks = (size_t)mem_round_up(len, BLOCK_SIZE);
    uint64_t at;
    region_chunk_pad(piece, blocks);
    if (piece_is_zero(piece->data, len)) {
        region_chunk_recycle(w, MOVE(piece));
        return 0;
    }
    int rc = take_addresses(w, piece, blocks, &at, e);
    if (rc == 0)
        rc = add_extent(w, file_off, len, at, e);
    return rc < 0 ? rc : pool_submit(w->pool, MOVE(piece), e);
}

/* ---- Files ----------------------------------------------------------------------------- */

int region_file_begin(struct region_writer *w, uint64_t size, struct err *e)
{
    if (w->in_file)
        return err_set(e, ERR_INPUT, "a file of the layer is still open");
    if (size > INT64_MAX)
        return err_set(e, ERR_LIMIT, "a file of %llu bytes", (unsigned long long)size);
    int rc = size > 0 && size < CUT_FILE_SIZE ? open_pack(w, size, e) : 0;
    if (rc < 0)
        return rc;
    w->in_file = true;
    w->size = size;
    w->end = 0;
    return 0;
}

static int large_file_data(struct region_writer *w, uint64_t off, const uint8_t *data, size_t len,
                           struct err *e)
{
    while (len > 0) {
        uint64_t index = off / CHUNK_SIZE_MAX;
        int rc = w->piece && w->piece_index != index ? close_piece(w, e) : 0;
        if (rc < 0)
            return rc;
        if (!w->piece)
            w->piece = region_chunk_new(w);
        if (!w->piece)
            return err_nomem(e, "chunk of a layer");
        w->piece_index = index;
        size_t at = (size_t)(off % CHUNK_SIZE_MAX);
        size_t part = len < CHUNK_SIZE_MAX - at ? len : CHUNK_SIZE_MAX - at;
        region_chunk_write(w->piece, at, data, part);
        off += part;
        data += part;
        len -= part;
    }
    return 0;
}

int region_file_data(struct region_writer *w, uint64_t off, const void *data, size_t len,
                     struct err *e)
{
    if (!w->in_file || off < w->end || off > w->size || len > w->size - off)
        return err_set(e, ERR_CORRUPT, "%zu bytes at offset %llu of a file of %llu bytes", len,
                       (unsigned long long)off, (unsigned long long)w->size);
    w->end = off + len;
    if (len == 0)
        return 0;
    if (w->size >= CUT_FILE_SIZE)
        return large_file_data(w, off, data, len, e);
    region_chunk_write(w->pack, w->pack->len + (size_t)off, data, len);
    return 0;
}

/* A small file's bytes stand behind what the pack holds already; zeros need not stay there. */
static int small_file_end(struct region_writer *w, struct err *e)
{
    if (w->size == 0)
        return 0;
    struct region_chunk *pack = w->pack;
    size_t blocks = (size_t)mem_round_up(w->size, BLOCK_SIZE);
    uint64_t at;
    region_chunk_pad(pack, pack->len + blocks);
    if (piece_is_zero(pack->data + pack->len, (size_t)w->size)) {
        pack->filled = pack->len;
        return 0;
    }
    int rc = take_addresses(w, pack, blocks, &at, e);
    if (rc == 0)
        rc = add_extent(w, 0, w->size, at, e);
    return rc == 0 && pack->len >= PACK_SIZE_MIN && ends_pack(w->size) ? close_pack(w, e) : rc;
}

int region_file_end(struct region_writer *w, struct region_extent **extents, size_t *count,
                    struct err *e)
{
    if (!w->in_file)
        return err_set(e, ERR_INPUT, "no file of the layer is open");
    int rc = w->size >= CUT_FILE_SIZE ? close_piece(w, e) : small_file_end(w, e);
    w->in_file = false;
    if (rc < 0)
        return rc;
    *count = w->extent_count;
    *extents = MOVE(w->extents);
    w->extent_count = 0;
    w->extent_capacity = 0;
    return 0;
}

/* ---- Region ---------------------------------------------------------------------------- */

static int writer_new(struct region_writer **out, struct store *s, struct crew *crew,
                      size_t workers, struct err *e)
{
    AUTO_REGION_WRITER struct region_writer *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "layer region");
    w->store = s;
    int rc = block_map_new(&w->map, REGION_SIZE_MAX, e);
    if (rc == 0 && crew)
        rc = pool_new_on(&w->pool, &chunk_ops, w, crew, crew_size(crew) + 2, e);
    else if (rc == 0)
        rc = pool_new(&w->pool, &chunk_ops, w, workers, e);
    if (rc < 0)
        return rc;
    *out = MOVE(w);
    return 0;
}

int region_writer_new(struct region_writer **out, struct store *s, size_t workers, struct err *e)
{
    return writer_new(out, s, NULL, workers, e);
}

int region_writer_new_on(struct region_writer **out, struct store *s, struct crew *crew,
                         struct err *e)
{
    return writer_new(out, s, crew, 0, e);
}

void region_writer_free(struct region_writer *w)
{
    if (!w)
        return;
    pool_free(w->pool);
    block_map_free(w->map);
    region_chunk_free(w->pack);
    region_chunk_free(w->piece);
    for (size_t i = 0; i < w->spare_count; i++)
        region_chunk_free(w->spare[i]);
    free(w->extents);
    free(w);
}

int region_writer_finish(struct region_writer *w, struct block_map **out, struct err *e)
{
    if (w->in_file)
        return err_set(e, ERR_INPUT, "a file of the layer is still open");
    if (w->pack && w->pack->len == 0) { /* it was opened for files that turned out to be zeros */
        region_chunk_free(w->pack);
        w->pack = NULL;
    }
    int rc = close_pack(w, e);
    if (rc == 0)
        rc = pool_finish(w->pool, e);
    if (rc == 0)
        rc = block_map_finish(w->map, e);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    uint64_t size = mem_round_up(w->cursor, CHUNK_SIZE_MAX);
    if (rc == 0)
        rc = block_map_new(&m, size, e);
    if (rc == 0)
        rc = block_map_copy_range(m, w->map, 0, size, 0, e);
    if (rc == 0)
        rc = block_map_finish(m, e);
    if (rc < 0)
        return rc;
    *out = MOVE(m);
    return 0;
}
