/* SPDX-License-Identifier: MIT */
/*
 * Layer blobs as plain bytes.
 *
 * The compression is told by the first bytes, never by the media type (registries get that wrong);
 * a difference is logged once. The blob is hashed as it passes. A decoder ends only where the
 * compressed form does: a tar reader is content long before the checksum of the last gzip member has
 * been seen.
 *
 * gzip: any number of members (RFC 1952, section 2.2), zero padding after the last one. zstd: any
 * number of frames, skippable ones among them (RFC 8878, section 3.1), the window bounded before
 * memory is taken.
 */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/log.h"
#include "base/mem.h"
#include "oci/internal.h"

#if TB2_ISAL && !defined(TB2_GZIP_BY_ZLIB)
#define GUNZIP oci_gunzip_isal
#else
#define GUNZIP oci_gunzip_zlib
#endif

enum { INPUT_LEN = 128 << 10, MAGIC_LEN = 5 /* of the longest: xz */ };

struct oci_decoder {
    const struct source *blob;
    const struct oci_descriptor *descriptor;
    const struct cancel *cancel;
    struct hasher *blob_hasher;
    enum oci_compression compression;
    uint64_t off;        /* of the blob: read and hashed up to here */
    uint64_t plain_size; /* handed out so far */
    uint8_t *input;
    size_t input_at;
    size_t input_len;
    bool inside;  /* in the middle of a gzip member or zstd frame */
    bool padding; /* zero bytes were met after a gzip member: only more may follow */
    bool *wide;   /* as in struct oci_layer_options */
    void *gunzip; /* of GUNZIP */
    ZSTD_DCtx *zstd;
};

void oci_decoder_free(struct oci_decoder *d)
{
    if (!d)
        return;
    if (d->gunzip)
        GUNZIP.close(d->gunzip);
    ZSTD_freeDCtx(d->zstd);
    hasher_free(d->blob_hasher);
    free(d->input);
    free(d);
}

/* Adds more of the blob behind the input that is there. */
static int read_more(struct oci_decoder *d, struct err *e)
{
    int rc = cancel_check(d->cancel, e);
    if (rc < 0)
        return rc;
    size_t got = 0;
    rc = d->blob->read(d->blob->self, d->off, d->input + d->input_len, INPUT_LEN - d->input_len,
                       &got, e);
    if (rc < 0)
        return rc;
    if (got > d->blob->size - d->off)
        got = (size_t)(d->blob->size - d->off);
    if (got == 0)
        return err_set(e, ERR_DIGEST, "the blob ends after %llu of %llu bytes",
                       (unsigned long long)d->off, (unsigned long long)d->blob->size);
    hasher_add(d->blob_hasher, d->input + d->input_len, got);
    d->off += got;
    d->input_len += got;
    return 0;
}

/* Makes sure that there is unread input, unless the blob is at its end. */
static int fill(struct oci_decoder *d, struct err *e)
{
    if (d->input_at < d->input_len || d->off == d->blob->size)
        return 0;
    d->input_at = 0;
    d->input_len = 0;
    return read_more(d, e);
}

static bool input_is_empty(const struct oci_decoder *d)
{
    return d->input_at == d->input_len;
}

static const char *compression_name(enum oci_compression compression)
{
    switch (compression) {
    case OCI_PLAIN:
        return "plain tar";
    case OCI_GZIP:
        return "gzip";
    case OCI_ZSTD:
        return "zstd";
    }
    return "unknown";
}

/* What the media type promises (media-types.md; Docker writes tar.gzip). */
static enum oci_compression promised_compression(const char *media_type)
{
    const char *suffix = strrchr(media_type, '.');
    const char *plus = strrchr(media_type, '+');
    if (plus && (!suffix || plus > suffix))
        suffix = plus;
    if (suffix && strcmp(suffix + 1, "gzip") == 0)
        return OCI_GZIP;
    return suffix && strcmp(suffix + 1, "zstd") == 0 ? OCI_ZSTD : OCI_PLAIN;
}

static bool starts_with(const struct oci_decoder *d, const char *magic, size_t len)
{
    return d->input_len >= len && memcmp(d->input, magic, len) == 0;
}

static int detect(struct oci_decoder *d, struct err *e)
{
    /* A source may hand out less than it is asked for. */
    while (d->input_len < MAGIC_LEN && d->off < d->blob->size) {
        int rc = read_more(d, e);
        if (rc < 0)
            return rc;
    }
    bool skippable = d->input_len >= 4 && (d->input[0] & 0xf0) == 0x50 &&
                     memcmp(d->input + 1, "\x2a\x4d\x18", 3) == 0;
    if (starts_with(d, "\x1f\x8b", 2))
        d->compression = OCI_GZIP;
    else if (skippable || starts_with(d, "\x28\xb5\x2f\xfd", 4))
        d->compression = OCI_ZSTD;
    else if (starts_with(d, "BZh", 3) || starts_with(d, "\xfd\x37zXZ", MAGIC_LEN))
        return err_set(e, ERR_UNSUPPORTED,
                       "the layer is compressed with %s; OCI layers are plain, "
                       "gzip or zstd",
                       d->input[0] == 'B' ? "bzip2" : "xz");
    enum oci_compression promised = promised_compression(d->descriptor->media_type);
    if (promised != d->compression && d->blob->size > 0) {
        char text[DIGEST_TEXT_MAX];
        log_event(LOG_WARN, "oci", "layer %s holds %s although its media type is %s",
                  digest_print(&d->descriptor->digest, text), compression_name(d->compression),
                  d->descriptor->media_type);
    }
    return 0;
}

static int start_decoder(struct oci_decoder *d, struct err *e)
{
    if (d->compression == OCI_GZIP) {
        d->gunzip = GUNZIP.open();
        if (!d->gunzip)
            return err_nomem(e, "gzip decoder");
        d->inside = true;
    }
    if (d->compression == OCI_ZSTD) {
        d->zstd = ZSTD_createDCtx();
        if (!d->zstd)
            return err_nomem(e, "zstd decoder");
        int window_log = 10; /* the least that the format has */
        while ((size_t)1 << window_log < (d->wide ? OCI_WINDOW_NARROW : OCI_WINDOW_MAX))
            window_log++;
        size_t rc = ZSTD_DCtx_setParameter(d->zstd, ZSTD_d_windowLogMax, window_log);
        if (ZSTD_isError(rc))
            return err_set(e, ERR_UNSUPPORTED, "zstd decoder: %s", ZSTD_getErrorName(rc));
    }
    return 0;
}

int oci_decoder_new(struct oci_decoder **out, const struct source *blob,
                    const struct oci_stream_options *o, struct err *e)
{
    const struct oci_descriptor *blob_descriptor = o->blob;
    if (blob->size != blob_descriptor->size)
        return err_set(e, ERR_DIGEST, "the blob has %llu bytes, its descriptor says %llu",
                       (unsigned long long)blob->size, (unsigned long long)blob_descriptor->size);
    AUTO_OCI_DECODER struct oci_decoder *d = mem_zalloc(sizeof(*d));
    if (!d)
        return err_nomem(e, "layer decoder");
    d->blob = blob;
    d->descriptor = blob_descriptor;
    d->cancel = o->cancel;
    d->wide = o->wide;
    d->input = mem_zalloc(INPUT_LEN);
    if (!d->input)
        return err_nomem(e, "layer decoder");
    int rc = hasher_new(&d->blob_hasher, blob_descriptor->digest.algorithm, e);
    if (rc == 0)
        rc = detect(d, e);
    if (rc == 0)
        rc = start_decoder(d, e);
    if (rc < 0)
        return rc;
    *out = MOVE(d);
    return 0;
}

/* Between gzip members: finds the next one, or skips zero padding. */
static int gzip_next_member(struct oci_decoder *d, struct err *e)
{
    while (!input_is_empty(d) && d->input[d->input_at] == 0) {
        d->input_at++;
        d->padding = true;
    }
    if (input_is_empty(d))
        return 0;
    if (d->padding || d->input[d->input_at] != 0x1f)
        return err_set(e, ERR_CORRUPT, "bytes that are not gzip follow the gzip stream");
    GUNZIP.restart(d->gunzip);
    d->inside = true;
    return 0;
}

/* One step of the decoder; the output in `io` moves on. */
static int gzip_inflate(struct oci_decoder *d, struct oci_gunzip_io *io, struct err *e)
{
    io->in = d->input + d->input_at;
    io->in_len = d->input_len - d->input_at;
    size_t before = io->out_len;
    bool starved = io->in_len == 0;
    bool ended = false;
    int rc = GUNZIP.inflate(d->gunzip, io, &ended, e);
    d->input_at = d->input_len - io->in_len;
    d->inside = !ended;
    if (rc == -ERR_CORRUPT)
        return err_in(e, "bad gzip stream near byte %llu",
                      (unsigned long long)(d->off - d->input_len + d->input_at));
    if (rc == 0 && starved && !ended && io->out_len == before)
        return err_set(e, ERR_CORRUPT, "the gzip stream is truncated");
    return rc;
}

static int gzip_read(struct oci_decoder *d, uint8_t *data, size_t room, size_t *len, struct err *e)
{
    struct oci_gunzip_io io = {.out = data, .out_len = room};
    while (io.out_len > 0) {
        int rc = fill(d, e);
        if (rc < 0)
            return rc;
        if (input_is_empty(d) && !d->inside)
            break;
        rc = d->inside ? gzip_inflate(d, &io, e) : gzip_next_member(d, e);
        if (rc < 0)
            return rc;
    }
    *len = room - io.out_len;
    return 0;
}

static int zstd_failure(const struct oci_decoder *d, size_t code, struct err *e)
{
    ZSTD_ErrorCode kind = ZSTD_getErrorCode(code);
    if (kind == ZSTD_error_memory_allocation)
        return err_nomem(e, "zstd decoder");
    if (kind == ZSTD_error_frameParameter_windowTooLarge) {
        if (d->wide)
            *d->wide = true;
        return err_set(e, ERR_LIMIT,
                       "zstd window too large: at most %zu MiB are given to one layer",
                       (d->wide ? OCI_WINDOW_NARROW : OCI_WINDOW_MAX) >> 20);
    }
    return err_set(e, ERR_CORRUPT, "bad zstd stream near byte %llu: %s",
                   (unsigned long long)(d->off - d->input_len + d->input_at),
                   ZSTD_getErrorName(code));
}

static int zstd_read(struct oci_decoder *d, uint8_t *data, size_t room, size_t *len, struct err *e)
{
    ZSTD_outBuffer out = {.dst = data, .size = room, .pos = 0};
    while (out.pos < out.size) {
        int rc = fill(d, e);
        if (rc < 0)
            return rc;
        if (input_is_empty(d) && !d->inside)
            break;
        /* Without input this drains what the decoder still holds. */
        ZSTD_inBuffer in = {
            .src = d->input + d->input_at, .size = d->input_len - d->input_at, .pos = 0};
        size_t before = out.pos;
        size_t hint = ZSTD_decompressStream(d->zstd, &out, &in);
        if (ZSTD_isError(hint))
            return zstd_failure(d, hint, e);
        d->input_at += in.pos;
        d->inside = hint != 0;
        if (d->inside && in.size == 0 && out.pos == before)
            return err_set(e, ERR_CORRUPT, "the zstd stream is truncated");
    }
    *len = out.pos;
    return 0;
}

static int plain_read(struct oci_decoder *d, uint8_t *data, size_t room, size_t *len, struct err *e)
{
    int rc = fill(d, e);
    if (rc < 0)
        return rc;
    size_t left = d->input_len - d->input_at;
    *len = left < room ? left : room;
    memcpy(data, d->input + d->input_at, *len);
    d->input_at += *len;
    return 0;
}

static int note_plain(struct oci_decoder *d, size_t len, struct err *e)
{
    d->plain_size += len;
    uint64_t grown = d->plain_size > OCI_MAX_PLAIN ? d->plain_size - OCI_MAX_PLAIN : 0;
    if (grown / OCI_MAX_RATIO > d->off)
        return err_set(e, ERR_LIMIT, "%llu compressed bytes grew to more than %llu",
                       (unsigned long long)d->off, (unsigned long long)d->plain_size);
    return 0;
}

int oci_decoder_read(struct oci_decoder *d, uint8_t *data, size_t room, size_t *len, struct err *e)
{
    int rc = 0;
    size_t got = 0;
    switch (d->compression) {
    case OCI_PLAIN:
        rc = plain_read(d, data, room, &got, e);
        break;
    case OCI_GZIP:
        rc = gzip_read(d, data, room, &got, e);
        break;
    case OCI_ZSTD:
        rc = zstd_read(d, data, room, &got, e);
        break;
    }
    if (rc == 0)
        rc = note_plain(d, got, e);
    if (rc < 0)
        return rc;
    *len = got;
    return 0;
}

int oci_decoder_check_blob(struct oci_decoder *d, struct err *e)
{
    while (d->off < d->blob->size) {
        d->input_at = d->input_len;
        int rc = fill(d, e);
        if (rc < 0)
            return rc;
    }
    return oci_digest_check(d->blob_hasher, &d->descriptor->digest, ERR_DIGEST,
                            "the blob hashes to", e);
}
