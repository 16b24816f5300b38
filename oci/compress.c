/* SPDX-License-Identifier: MIT */
/*
 * Compression of layers that are written here. One thread, fixed levels, nothing of time or machine in
 * the headers: the same bytes in give the same bytes out, by the same version of the library.
 */
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"
#include "oci/internal.h"

enum { OUT_LEN = 256 << 10, GZIP_LEVEL = 6, ZSTD_LEVEL = 3, GZIP_MEMORY_LEVEL = 8 };

struct oci_encoder {
    const struct sink *to;
    enum oci_compression kind;
    z_stream zlib;
    bool zlib_open;
    ZSTD_CCtx *zstd;
    uint8_t out[OUT_LEN];
};

int oci_encoder_new(struct oci_encoder **out, enum oci_compression kind, const struct sink *to,
                    struct err *e)
{
    AUTO_OCI_ENCODER struct oci_encoder *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "compression");
    c->to = to;
    c->kind = kind;
    if (kind == OCI_GZIP) {
        c->zlib_open = deflateInit2(&c->zlib, GZIP_LEVEL, Z_DEFLATED, MAX_WBITS + 16,
                                    GZIP_MEMORY_LEVEL, Z_DEFAULT_STRATEGY) == Z_OK;
        if (!c->zlib_open)
            return err_nomem(e, "compression");
    }
    if (kind == OCI_ZSTD) {
        c->zstd = ZSTD_createCCtx();
        if (!c->zstd ||
            ZSTD_isError(ZSTD_CCtx_setParameter(c->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL)))
            return err_nomem(e, "compression");
    }
    *out = MOVE(c);
    return 0;
}

void oci_encoder_free(struct oci_encoder *c)
{
    if (!c)
        return;
    if (c->zlib_open)
        deflateEnd(&c->zlib);
    ZSTD_freeCCtx(c->zstd);
    free(c);
}

static int deflate_all(struct oci_encoder *c, const void *data, size_t len, bool end, struct err *e)
{
    /* zlib's input pointer has no const without ZLIB_CONST; it is not written to. */
    memcpy(&c->zlib.next_in, &data, sizeof(data));
    c->zlib.avail_in = (uInt)len;
    for (;;) {
        c->zlib.next_out = c->out;
        c->zlib.avail_out = OUT_LEN;
        int code = deflate(&c->zlib, end ? Z_FINISH : Z_NO_FLUSH);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return err_set(e, ERR_SYS, "gzip: zlib error %d", code);
        size_t made = OUT_LEN - c->zlib.avail_out;
        int rc = made > 0 ? c->to->write(c->to->self, c->out, made, e) : 0;
        if (rc < 0 || code == Z_STREAM_END || (!end && c->zlib.avail_out > 0))
            return rc;
    }
}

static int zstd_all(struct oci_encoder *c, const void *data, size_t len, bool end, struct err *e)
{
    ZSTD_inBuffer in = {.src = data, .size = len};
    for (;;) {
        ZSTD_outBuffer out = {.dst = c->out, .size = OUT_LEN};
        size_t left = ZSTD_compressStream2(c->zstd, &out, &in, end ? ZSTD_e_end : ZSTD_e_continue);
        if (ZSTD_isError(left))
            return err_set(e, ERR_SYS, "zstd: %s", ZSTD_getErrorName(left));
        int rc = out.pos > 0 ? c->to->write(c->to->self, c->out, out.pos, e) : 0;
        if (rc < 0 || (end ? left == 0 : in.pos == in.size))
            return rc;
    }
}

int oci_encoder_write(struct oci_encoder *c, const void *data, size_t len, bool end, struct err *e)
{
    enum { STEP = 1 << 30 }; /* zlib counts in 32 bits */
    const uint8_t *bytes = data;
    for (;;) {
        size_t step = len < STEP ? len : STEP;
        bool last = end && step == len;
        int rc = c->kind == OCI_GZIP   ? deflate_all(c, bytes, step, last, e)
                 : c->kind == OCI_ZSTD ? zstd_all(c, bytes, step, last, e)
                 : step > 0            ? c->to->write(c->to->self, bytes, step, e)
                                       : 0;
        len -= step;
        if (rc < 0 || len == 0)
            return rc;
        bytes += step;
    }
}
