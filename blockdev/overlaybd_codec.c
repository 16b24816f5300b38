/* SPDX-License-Identifier: MIT */
/* Blocks of a ZFile: LZ4 blocks or zstd frames, and the CRC that guards them. */
#include <ext2fs/ext2_fs.h>
#include <ext2fs/ext2fs.h>
#include <limits.h>
#include <lz4.h>
#include <zstd.h>

#include "base/mem.h"
#include "blockdev/overlaybd_internal.h"

enum { BLOCK_ZSTD_LEVEL = 3 }; /* as the reference writer's */

struct block_codec {
    enum overlaybd_compression compression;
    ZSTD_CCtx *zstd;
    void *lz4;
};

uint32_t crc32c_raw(uint32_t state, const void *data, size_t len)
{
    return ext2fs_crc32c_le(state, data, len);
}

int block_codec_new(struct block_codec **out, enum overlaybd_compression compression, struct err *e)
{
    AUTO_BLOCK_CODEC struct block_codec *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "block compressor");
    c->compression = compression;
    if (compression == OVERLAYBD_ZSTD)
        c->zstd = ZSTD_createCCtx();
    else
        c->lz4 = mem_zalloc((size_t)LZ4_sizeofState());
    if (!c->zstd && !c->lz4)
        return err_nomem(e, "block compressor");
    *out = MOVE(c);
    return 0;
}

void block_codec_free(struct block_codec *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->zstd);
    free(c->lz4);
    free(c);
}

size_t block_bound(enum overlaybd_compression compression, size_t len)
{
    return compression == OVERLAYBD_ZSTD ? ZSTD_compressBound(len)
                                         : (size_t)LZ4_compressBound((int)len);
}

int block_encode(struct block_codec *c, const void *plain, size_t len, void *out, size_t *out_len,
                 struct err *e)
{
    size_t room = block_bound(c->compression, len);
    if (c->compression == OVERLAYBD_ZSTD) {
        size_t got = ZSTD_compressCCtx(c->zstd, out, room, plain, len, BLOCK_ZSTD_LEVEL);
        if (ZSTD_isError(got))
            return err_set(e, ERR_NOMEM, "compressing a block: %s", ZSTD_getErrorName(got));
        *out_len = got;
        return 0;
    }
    int got = LZ4_compress_fast_extState(c->lz4, plain, out, (int)len, (int)room, 1);
    if (got <= 0)
        return err_set(e, ERR_NOMEM, "compressing a block: lz4 refused it");
    *out_len = (size_t)got;
    return 0;
}

int block_decode(enum overlaybd_compression compression, const void *block, size_t len, void *plain,
                 size_t plain_len, struct err *e)
{
    bool good;
    if (compression == OVERLAYBD_ZSTD) {
        size_t got = ZSTD_decompress(plain, plain_len, block, len);
        good = !ZSTD_isError(got) && got == plain_len;
    } else {
        good = LZ4_decompress_safe(block, plain, (int)len, (int)plain_len) == (int)plain_len;
    }
    return good ? 0 : err_set(e, ERR_CORRUPT, "a compressed block is damaged");
}
