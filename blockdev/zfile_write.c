/* SPDX-License-Identifier: MIT */
/*
 * Writing a ZFile: pieces of the plain bytes are read and compressed by workers and written in
 * order; header and table come last, so that a reader needs no look at the file's end.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "blockdev/overlaybd_internal.h"

enum { PIECE_SIZE = 1 << 20 }; /* plain bytes of one worker's turn; a multiple of any block size */

struct piece {
    uint64_t off;
    size_t len;
    struct block_codec *codec;
    uint8_t *plain;
    uint8_t *stored;
    size_t stored_len;
    uint32_t *lengths; /* of its blocks */
    size_t block_count;
    struct piece *next; /* of the idle ones */
};

struct writer {
    const struct source *plain;
    const struct zfile_options *options;
    int fd;
    uint64_t start; /* of the ZFile in the file */
    uint64_t end;   /* of what has been written of it */
    struct buf index;
    uint64_t block_count;
    struct piece *idle; /* of the submitting thread */
};

static void piece_free(struct piece *p)
{
    if (!p)
        return;
    block_codec_free(p->codec);
    free(p->plain);
    free(p->stored);
    free(p->lengths);
    free(p);
}
DEFINE_AUTO(piece, piece_free)

static int piece_new(struct piece **out, const struct zfile_options *o, struct err *e)
{
    struct piece *p CLEANUP(piece_free_auto_) = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "piece of a ZFile");
    size_t blocks = PIECE_SIZE / o->block_size;
    p->plain = mem_zalloc(PIECE_SIZE);
    p->stored = mem_array(blocks, block_bound(o->compression, o->block_size) + ZFILE_CRC_SIZE);
    p->lengths = mem_array(blocks, sizeof(*p->lengths));
    if (!p->plain || !p->stored || !p->lengths)
        return err_nomem(e, "piece of a ZFile");
    int rc = block_codec_new(&p->codec, o->compression, e);
    if (rc == 0)
        *out = MOVE(p);
    return rc;
}

static int piece_take(struct writer *w, struct piece **out, struct err *e)
{
    if (!w->idle)
        return piece_new(out, w->options, e);
    *out = w->idle;
    w->idle = w->idle->next;
    return 0;
}

static int piece_work(void *ctx, void *item, struct err *e)
{
    const struct writer *w = ctx;
    struct piece *p = item;
    size_t block_size = w->options->block_size;
    p->stored_len = 0;
    p->block_count = 0;
    int rc = cancel_check(w->options->cancel, e);
    if (rc == 0)
        rc = source_read_full(w->plain, p->off, p->plain, p->len, e);
    for (size_t at = 0; rc == 0 && at < p->len; at += block_size) {
        size_t len = p->len - at < block_size ? p->len - at : block_size;
        uint8_t *to = p->stored + p->stored_len;
        size_t got = 0;
        rc = block_encode(p->codec, p->plain + at, len, to, &got, e);
        if (rc < 0)
            break;
        overlaybd_put32(to + got, crc32c_raw(ZFILE_CRC_START, to, got));
        p->lengths[p->block_count++] = (uint32_t)got + ZFILE_CRC_SIZE;
        p->stored_len += got + ZFILE_CRC_SIZE;
    }
    return rc;
}

static int piece_done(void *ctx, void *item, struct err *e)
{
    struct writer *w = ctx;
    struct piece *p = item;
    int rc = file_pwrite_full(w->fd, p->stored, p->stored_len, w->start + w->end, e);
    for (size_t i = 0; rc == 0 && i < p->block_count; i++)
        rc = buf_add_u32(&w->index, p->lengths[i], e);
    w->end += p->stored_len;
    w->block_count += p->block_count;
    p->next = w->idle;
    w->idle = p;
    return rc;
}

static void piece_drop(void *ctx UNUSED, void *item)
{
    piece_free(item);
}

static int write_blocks(struct writer *w, struct err *e)
{
    static const struct pool_ops ops = {.work = piece_work, .done = piece_done, .drop = piece_drop};
    AUTO_POOL struct pool *pool = NULL;
    int rc = pool_new(&pool, &ops, w, w->options->workers, e);
    for (uint64_t off = 0; rc == 0 && off < w->plain->size; off += PIECE_SIZE) {
        struct piece *p;
        rc = piece_take(w, &p, e);
        if (rc < 0)
            break;
        uint64_t left = w->plain->size - off;
        p->off = off;
        p->len = left < PIECE_SIZE ? (size_t)left : PIECE_SIZE;
        rc = pool_submit(pool, p, e);
    }
    return rc == 0 ? pool_finish(pool, e) : rc;
}

/* Table, trailer and header, in this order; w->end comes to stand behind the trailer. */
static int write_ends(struct writer *w, struct err *e)
{
    struct zfile_info info = {.flags = ZFILE_IS_DATA | ZFILE_IS_SEALED | ZFILE_HAS_CRCS,
                              .index_offset = w->end,
                              .block_count = w->block_count,
                              .plain_size = w->plain->size,
                              .index_crc = crc32c_raw(0, w->index.data, w->index.len),
                              .block_size = w->options->block_size,
                              .compression = w->options->compression,
                              .checked = true};
    uint8_t trailer[ZFILE_HEADER_SIZE], header[ZFILE_HEADER_SIZE];
    zfile_info_encode(&info, trailer);
    info.flags = ZFILE_IS_HEADER | ZFILE_IS_DATA | ZFILE_IS_WHOLE | ZFILE_HAS_CRCS;
    zfile_info_encode(&info, header);
    uint64_t index = w->start + w->end;
    int rc = file_pwrite_full(w->fd, w->index.data, w->index.len, index, e);
    if (rc == 0)
        rc = file_pwrite_full(w->fd, trailer, sizeof(trailer), index + w->index.len, e);
    if (rc == 0)
        rc = file_pwrite_full(w->fd, header, sizeof(header), w->start, e);
    w->end += w->index.len + sizeof(trailer);
    return rc;
}

int zfile_write(int fd, uint64_t at, const struct source *plain, const struct zfile_options *o,
                uint64_t *size, struct err *e)
{
    struct writer w = {
        .plain = plain, .options = o, .fd = fd, .start = at, .end = ZFILE_HEADER_SIZE};
    buf_init(&w.index, (size_t)(plain->size / o->block_size + 1) * 4);
    int rc = write_blocks(&w, e);
    if (rc == 0)
        rc = write_ends(&w, e);
    buf_fini(&w.index);
    while (w.idle) {
        struct piece *next = w.idle->next;
        piece_free(w.idle);
        w.idle = next;
    }
    *size = w.end;
    return rc;
}
