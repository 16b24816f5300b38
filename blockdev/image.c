/* SPDX-License-Identifier: MIT */
/*
 * Whole files in and out of the store. A file is cut at multiples of CHUNK_SIZE_MAX; of each
 * piece, the non-zero blocks are put together into one chunk, so that zeros take nothing, neither
 * as chunks nor in a chunk.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "blockdev/internal.h"

bool piece_is_zero(const uint8_t *data, size_t len)
{
    return len == 0 || (data[0] == 0 && memcmp(data, data + 1, len - 1) == 0);
}

/* Moves the non-zero blocks of data[0..len) to its front; *kept is their length. An extent for each
 * run of them goes to `extents` (room for one a block), still without a chunk. */
static size_t pack_blocks(uint64_t off, uint8_t *data, size_t len, struct map_extent *extents,
                          size_t *kept)
{
    size_t count = 0, used = 0;
    for (size_t at = 0; at < len; at += BLOCK_SIZE) {
        if (piece_is_zero(data + at, BLOCK_SIZE))
            continue;
        struct map_extent *last = count > 0 ? &extents[count - 1] : NULL;
        if (last && last->off + last->size == off + at)
            last->size += BLOCK_SIZE;
        else
            extents[count++] = (struct map_extent){
                .off = off + at, .size = BLOCK_SIZE, .chunk_off = (uint32_t)used};
        if (used != at)
            memcpy(data + used, data + at, BLOCK_SIZE);
        used += BLOCK_SIZE;
    }
    *kept = used;
    return count;
}

/* A piece on its way through the pool. */
struct piece {
    uint64_t off;
    size_t len;
    uint8_t *data;
    struct map_extent extents[CHUNK_SIZE_MAX / BLOCK_SIZE];
    size_t extent_count;
};

struct put {
    struct store *store;
    struct block_map *map;
};

static void piece_free(struct piece *p)
{
    if (!p)
        return;
    free(p->data);
    free(p);
}
DEFINE_AUTO(piece, piece_free)
#define AUTO_PIECE CLEANUP(piece_free_auto_)

/* NULL when memory is short. */
static struct piece *piece_new(void)
{
    AUTO_PIECE struct piece *p = mem_zalloc(sizeof(*p));
    if (p)
        p->data = mem_zalloc(CHUNK_SIZE_MAX);
    return p && p->data ? MOVE(p) : NULL;
}

static int piece_work(void *ctx, void *item, struct err *e)
{
    const struct put *put = ctx;
    struct piece *p = item;
    size_t kept;
    p->extent_count = pack_blocks(p->off, p->data, p->len, p->extents, &kept);
    if (p->extent_count == 0)
        return 0;
    struct digest chunk;
    int rc = store_put_chunk(put->store, p->data, kept, &chunk, e);
    for (size_t i = 0; rc == 0 && i < p->extent_count; i++)
        p->extents[i].chunk = chunk;
    return rc;
}

static int piece_add(struct block_map *m, const struct piece *p, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->extent_count; i++)
        rc = block_map_add(m, &p->extents[i], e);
    return rc;
}

static int piece_done(void *ctx, void *item, struct err *e)
{
    const struct put *put = ctx;
    AUTO_PIECE struct piece *p = item;
    return piece_add(put->map, p, e);
}

static void piece_drop(void *ctx UNUSED, void *item)
{
    piece_free(item);
}

static const struct pool_ops piece_ops = {
    .work = piece_work, .done = piece_done, .drop = piece_drop};

/* What pieces are read from. */
struct input {
    /* Offset of the next piece at or after `off` that has data; `size` when there is none. */
    int (*next)(const struct input *in, uint64_t off, uint64_t *out, struct err *e);
    int (*read)(const struct input *in, uint64_t off, void *data, size_t len, struct err *e);
    uint64_t size;
    int fd;
    struct bdev *device;
    const struct cancel *cancel;
};

static int file_next(const struct input *in, uint64_t off, uint64_t *out, struct err *e)
{
    off_t data = lseek(in->fd, (off_t)off, SEEK_DATA);
    if (data < 0 && errno == ENXIO) {
        *out = in->size;
        return 0;
    }
    if (data < 0 && errno != EINVAL)
        return err_sys(e, "looking for data at offset %llu", (unsigned long long)off);
    uint64_t found = data < 0 ? off : (uint64_t)data; /* EINVAL: the file system cannot tell */
    *out = found - found % CHUNK_SIZE_MAX;
    return 0;
}

static int file_piece(const struct input *in, uint64_t off, void *data, size_t len, struct err *e)
{
    return file_pread_full(in->fd, data, len, off, e);
}

static int device_next(const struct input *in, uint64_t off, uint64_t *out, struct err *e)
{
    uint64_t at = off, run = 0;
    while (at < in->size && bdev_content(in->device, in->size - at, at, &run) == BDEV_ZEROS)
        at += run;
    *out = at - at % CHUNK_SIZE_MAX;
    if (*out < off || at >= in->size)
        *out = at >= in->size ? in->size : off;
    return cancel_check(in->cancel, e);
}

static int device_piece(const struct input *in, uint64_t off, void *data, size_t len, struct err *e)
{
    int rc = bdev_read(in->device, data, len, off);
    if (rc == -ENOMEM)
        return err_nomem(e, "disk");
    return rc < 0 ? err_set(e, ERR_CORRUPT, "the disk cannot be read at offset %llu",
                            (unsigned long long)off)
                  : 0;
}

static int put_pieces(struct pool *pool, const struct input *in, struct err *e)
{
    uint64_t off = 0;
    int rc = in->next(in, off, &off, e);
    while (rc == 0 && off < in->size) {
        AUTO_PIECE struct piece *p = piece_new();
        if (!p)
            return err_nomem(e, "piece of a file");
        uint64_t left = in->size - off;
        size_t len = left < CHUNK_SIZE_MAX ? (size_t)left : CHUNK_SIZE_MAX;
        p->off = off;
        p->len = (size_t)mem_round_up(len, BLOCK_SIZE);
        rc = in->read(in, off, p->data, len, e);
        if (rc == 0)
            rc = pool_submit(pool, MOVE(p), e);
        off += CHUNK_SIZE_MAX;
        if (rc == 0 && off < in->size)
            rc = in->next(in, off, &off, e);
    }
    return rc;
}

static int put_input(struct store *s, const struct input *in, size_t workers,
                     struct block_map **out, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = block_map_new(&m, mem_round_up(in->size, BLOCK_SIZE), e);
    if (rc < 0)
        return rc;
    struct put put = {.store = s, .map = m};
    AUTO_POOL struct pool *pool = NULL;
    rc = pool_new(&pool, &piece_ops, &put, workers, e);
    if (rc == 0)
        rc = put_pieces(pool, in, e);
    if (rc == 0)
        rc = pool_finish(pool, e);
    if (rc == 0)
        rc = block_map_finish(m, e);
    if (rc < 0)
        return rc;
    *out = MOVE(m);
    return 0;
}

int store_put_file(struct store *s, int fd, size_t workers, struct block_map **out, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "reading a file's size");
    struct input in = {
        .next = file_next, .read = file_piece, .fd = fd, .size = (uint64_t)st.st_size};
    return put_input(s, &in, workers, out, e);
}

int store_put_device(struct store *s, struct bdev *d, size_t workers, const struct cancel *c,
                     struct block_map **out, struct err *e)
{
    struct input in = {.next = device_next,
                       .read = device_piece,
                       .size = d->size,
                       .fd = -1,
                       .device = d,
                       .cancel = c};
    return put_input(s, &in, workers, out, e);
}

/* Writes blocks to a fresh file, leaving holes for those of zeros. */
static int write_sparse(int fd, const uint8_t *data, size_t len, uint64_t off, struct err *e)
{
    int rc = 0;
    for (size_t at = 0, end; rc == 0 && at < len; at = end) {
        bool zero = piece_is_zero(data + at, BLOCK_SIZE);
        for (end = at + BLOCK_SIZE; end < len && piece_is_zero(data + end, BLOCK_SIZE) == zero;)
            end += BLOCK_SIZE;
        if (!zero)
            rc = file_pwrite_full(fd, data + at, end - at, off + at, e);
    }
    return rc;
}

/* Extents in a row that are of one chunk. */
struct export_part {
    size_t first;
    size_t count;
};

struct export
{
    struct store *store;
    const struct block_map *map;
    int fd;
    const struct cancel *cancel;
};

static int export_work(void *ctx, void *item, struct err *e)
{
    const struct export *export = ctx;
    const struct export_part *part = item;
    const struct digest *chunk = &block_map_extent(export->map, part->first)->chunk;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    if (!data)
        return err_nomem(e, "chunk");
    size_t len = 0;
    int rc = cancel_check(export->cancel, e);
    if (rc == 0)
        rc = store_get_chunk(export->store, chunk, data, &len, e);
    for (size_t i = 0; rc == 0 && i < part->count; i++) {
        const struct map_extent *x = block_map_extent(export->map, part->first + i);
        char text[DIGEST_TEXT_MAX];
        if (x->chunk_off + (size_t)x->size > len)
            return err_set(e, ERR_CORRUPT, "chunk %s: shorter than the block map says",
                           digest_print(chunk, text));
        rc = write_sparse(export->fd, data + x->chunk_off, x->size, x->off, e);
    }
    return rc;
}

static int export_done(void *ctx UNUSED, void *item, struct err *e UNUSED)
{
    free(item);
    return 0;
}

static void export_drop(void *ctx UNUSED, void *item)
{
    free(item);
}

static const struct pool_ops export_ops = {
    .work = export_work, .done = export_done, .drop = export_drop};

static int export_parts(struct pool *pool, const struct block_map *m, struct err *e)
{
    size_t count = block_map_count(m);
    int rc = 0;
    for (size_t first = 0, next; rc == 0 && first < count; first = next) {
        next = first + 1;
        while (next < count &&
               digest_equal(&block_map_extent(m, first)->chunk, &block_map_extent(m, next)->chunk))
            next++;
        struct export_part *part = mem_zalloc(sizeof(*part));
        if (!part)
            return err_nomem(e, "exported disk");
        *part = (struct export_part){.first = first, .count = next - first};
        rc = pool_submit(pool, part, e);
    }
    return rc;
}

int store_export_map(struct store *s, const struct block_map *m, int fd, size_t workers,
                     const struct cancel *c, struct err *e)
{
    if (ftruncate(fd, (off_t)block_map_virtual_size(m)) < 0)
        return err_sys(e, "setting the size of the exported disk");
    struct export export = {.store = s, .map = m, .fd = fd, .cancel = c};
    AUTO_POOL struct pool *pool = NULL;
    int rc = pool_new(&pool, &export_ops, &export, workers, e);
    if (rc == 0)
        rc = export_parts(pool, m, e);
    return rc == 0 ? pool_finish(pool, e) : rc;
}
