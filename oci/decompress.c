/* SPDX-License-Identifier: MIT */
/*
 * Layer blobs as plain bytes.
 *
 * The compression is told by the first bytes, never by the media type (registries get that wrong);
 * a difference is logged once. Both sides are hashed as they pass, so one read of the blob gives
 * its digest, its diff_id and its content. A stream ends only where its compressed form does: a
 * tar reader is content long before the checksum of the last gzip member has been seen.
 *
 * gzip: any number of members (RFC 1952, section 2.2), zero padding after the last one. zstd: any
 * number of frames, skippable ones among them (RFC 8878, section 3.1), the window bounded before
 * memory is taken.
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/log.h"
#include "base/mem.h"
#include "oci/internal.h"

enum { INPUT_LEN = 128 << 10, OUTPUT_LEN = 256 << 10, MAGIC_LEN = 5 /* of the longest: xz */ };

struct oci_stream {
    const struct source *blob;
    const struct oci_descriptor *descriptor;
    const struct cancel *cancel;
    struct hasher *blob_hasher;
    struct hasher *plain_hasher;
    enum oci_compression compression;
    uint64_t off;        /* of the blob: read and hashed up to here */
    uint64_t plain_size; /* handed out so far */
    uint8_t *input;
    size_t input_at;
    size_t input_len;
    uint8_t *output;
    bool inside;     /* in the middle of a gzip member or zstd frame */
    bool padding;    /* zero bytes were met after a gzip member: only more may follow */
    bool zlib_ready; /* `zlib` is initialised */
    z_stream zlib;
    ZSTD_DCtx *zstd;
};

void oci_stream_free(struct oci_stream *s)
{
    if (!s)
        return;
    if (s->zlib_ready)
        inflateEnd(&s->zlib);
    ZSTD_freeDCtx(s->zstd);
    hasher_free(s->blob_hasher);
    hasher_free(s->plain_hasher);
    free(s->input);
    free(s->output);
    free(s);
}

/* Adds more of the blob behind the input that is there. */
static int read_more(struct oci_stream *s, struct err *e)
{
    int rc = cancel_check(s->cancel, e);
    if (rc < 0)
        return rc;
    size_t got = 0;
    rc = s->blob->read(s->blob->self, s->off, s->input + s->input_len, INPUT_LEN - s->input_len,
                       &got, e);
    if (rc < 0)
        return rc;
    if (got > s->blob->size - s->off)
        got = (size_t)(s->blob->size - s->off);
    if (got == 0)
        return err_set(e, ERR_DIGEST, "the blob ends after %llu of %llu bytes",
                       (unsigned long long)s->off, (unsigned long long)s->blob->size);
    hasher_add(s->blob_hasher, s->input + s->input_len, got);
    s->off += got;
    s->input_len += got;
    return 0;
}

/* Makes sure that there is unread input, unless the blob is at its end. */
static int fill(struct oci_stream *s, struct err *e)
{
    if (s->input_at < s->input_len || s->off == s->blob->size)
        return 0;
    s->input_at = 0;
    s->input_len = 0;
    return read_more(s, e);
}

static bool input_is_empty(const struct oci_stream *s)
{
    return s->input_at == s->input_len;
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

static bool starts_with(const struct oci_stream *s, const char *magic, size_t len)
{
    return s->input_len >= len && memcmp(s->input, magic, len) == 0;
}

static int detect(struct oci_stream *s, struct err *e)
{
    /* A source may hand out less than it is asked for. */
    while (s->input_len < MAGIC_LEN && s->off < s->blob->size) {
        int rc = read_more(s, e);
        if (rc < 0)
            return rc;
    }
    bool skippable = s->input_len >= 4 && (s->input[0] & 0xf0) == 0x50 &&
                     memcmp(s->input + 1, "\x2a\x4d\x18", 3) == 0;
    if (starts_with(s, "\x1f\x8b", 2))
        s->compression = OCI_GZIP;
    else if (skippable || starts_with(s, "\x28\xb5\x2f\xfd", 4))
        s->compression = OCI_ZSTD;
    else if (starts_with(s, "BZh", 3) || starts_with(s, "\xfd\x37zXZ", MAGIC_LEN))
        return err_set(e, ERR_UNSUPPORTED,
                       "the layer is compressed with %s; OCI layers are plain, "
                       "gzip or zstd",
                       s->input[0] == 'B' ? "bzip2" : "xz");
    enum oci_compression promised = promised_compression(s->descriptor->media_type);
    if (promised != s->compression && s->blob->size > 0) {
        char text[DIGEST_TEXT_MAX];
        log_event(LOG_WARN, "oci", "layer %s holds %s although its media type is %s",
                  digest_print(&s->descriptor->digest, text), compression_name(s->compression),
                  s->descriptor->media_type);
    }
    return 0;
}

static int start_decoder(struct oci_stream *s, struct err *e)
{
    if (s->compression == OCI_GZIP) {
        if (inflateInit2(&s->zlib, MAX_WBITS + 16) != Z_OK)
            return err_nomem(e, "gzip decoder");
        s->zlib_ready = true;
        s->inside = true;
    }
    if (s->compression == OCI_ZSTD) {
        s->zstd = ZSTD_createDCtx();
        if (!s->zstd)
            return err_nomem(e, "zstd decoder");
        size_t rc = ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, OCI_MAX_ZSTD_WINDOW_LOG);
        if (ZSTD_isError(rc))
            return err_set(e, ERR_UNSUPPORTED, "zstd decoder: %s", ZSTD_getErrorName(rc));
    }
    return 0;
}

int oci_stream_new(struct oci_stream **out, const struct source *blob,
                   const struct oci_descriptor *blob_descriptor,
                   enum digest_algorithm plain_algorithm, const struct cancel *cancel,
                   struct err *e)
{
    if (blob->size != blob_descriptor->size)
        return err_set(e, ERR_DIGEST, "the blob has %llu bytes, its descriptor says %llu",
                       (unsigned long long)blob->size, (unsigned long long)blob_descriptor->size);
    AUTO_OCI_STREAM struct oci_stream *s = mem_zalloc(sizeof(*s));
    if (!s)
        return err_nomem(e, "layer stream");
    s->blob = blob;
    s->descriptor = blob_descriptor;
    s->cancel = cancel;
    s->input = mem_zalloc(INPUT_LEN);
    s->output = mem_zalloc(OUTPUT_LEN);
    if (!s->input || !s->output)
        return err_nomem(e, "layer buffers");
    int rc = hasher_new(&s->blob_hasher, blob_descriptor->digest.algorithm, e);
    if (rc == 0)
        rc = hasher_new(&s->plain_hasher, plain_algorithm, e);
    if (rc == 0)
        rc = detect(s, e);
    if (rc == 0)
        rc = start_decoder(s, e);
    if (rc < 0)
        return rc;
    *out = MOVE(s);
    return 0;
}

/* Between gzip members: finds the next one, or skips zero padding. */
static int gzip_next_member(struct oci_stream *s, struct err *e)
{
    while (!input_is_empty(s) && s->input[s->input_at] == 0) {
        s->input_at++;
        s->padding = true;
    }
    if (input_is_empty(s))
        return 0;
    if (s->padding || s->input[s->input_at] != 0x1f)
        return err_set(e, ERR_CORRUPT, "bytes that are not gzip follow the gzip stream");
    inflateReset(&s->zlib);
    s->inside = true;
    return 0;
}

static int gzip_inflate(struct oci_stream *s, struct err *e)
{
    s->zlib.next_in = s->input + s->input_at;
    s->zlib.avail_in = (uInt)(s->input_len - s->input_at);
    int status = inflate(&s->zlib, Z_NO_FLUSH);
    s->input_at = s->input_len - s->zlib.avail_in;
    if (status == Z_STREAM_END)
        s->inside = false;
    else if (status == Z_MEM_ERROR)
        return err_nomem(e, "gzip decoder");
    else if (status != Z_OK && status != Z_BUF_ERROR)
        return err_set(e, ERR_CORRUPT, "bad gzip stream near byte %llu: %s",
                       (unsigned long long)(s->off - s->input_len + s->input_at),
                       s->zlib.msg ? s->zlib.msg : "damaged");
    return 0;
}

static int gzip_read(struct oci_stream *s, size_t *len, struct err *e)
{
    s->zlib.next_out = s->output;
    s->zlib.avail_out = OUTPUT_LEN;
    while (s->zlib.avail_out > 0) {
        int rc = fill(s, e);
        if (rc < 0)
            return rc;
        if (input_is_empty(s)) {
            if (s->inside)
                return err_set(e, ERR_CORRUPT, "the gzip stream is truncated");
            break;
        }
        rc = s->inside ? gzip_inflate(s, e) : gzip_next_member(s, e);
        if (rc < 0)
            return rc;
    }
    *len = OUTPUT_LEN - s->zlib.avail_out;
    return 0;
}

static int zstd_failure(const struct oci_stream *s, size_t code, struct err *e)
{
    ZSTD_ErrorCode kind = ZSTD_getErrorCode(code);
    if (kind == ZSTD_error_memory_allocation)
        return err_nomem(e, "zstd decoder");
    if (kind == ZSTD_error_frameParameter_windowTooLarge)
        return err_set(e, ERR_LIMIT, "zstd window too large: at most %d MiB are given to one layer",
                       1 << (OCI_MAX_ZSTD_WINDOW_LOG - 20));
    return err_set(e, ERR_CORRUPT, "bad zstd stream near byte %llu: %s",
                   (unsigned long long)(s->off - s->input_len + s->input_at),
                   ZSTD_getErrorName(code));
}

static int zstd_read(struct oci_stream *s, size_t *len, struct err *e)
{
    ZSTD_outBuffer out = {.dst = s->output, .size = OUTPUT_LEN, .pos = 0};
    while (out.pos < out.size) {
        int rc = fill(s, e);
        if (rc < 0)
            return rc;
        if (input_is_empty(s) && !s->inside)
            break;
        /* Without input this drains what the decoder still holds. */
        ZSTD_inBuffer in = {
            .src = s->input + s->input_at, .size = s->input_len - s->input_at, .pos = 0};
        size_t before = out.pos;
        size_t hint = ZSTD_decompressStream(s->zstd, &out, &in);
        if (ZSTD_isError(hint))
            return zstd_failure(s, hint, e);
        s->input_at += in.pos;
        s->inside = hint != 0;
        if (s->inside && in.size == 0 && out.pos == before)
            return err_set(e, ERR_CORRUPT, "the zstd stream is truncated");
    }
    *len = out.pos;
    return 0;
}

static int note_plain(struct oci_stream *s, const void *data, size_t len, struct err *e)
{
    hasher_add(s->plain_hasher, data, len);
    s->plain_size += len;
    uint64_t grown = s->plain_size > OCI_MAX_PLAIN ? s->plain_size - OCI_MAX_PLAIN : 0;
    if (grown / OCI_MAX_RATIO > s->off)
        return err_set(e, ERR_LIMIT, "%llu compressed bytes grew to more than %llu",
                       (unsigned long long)s->off, (unsigned long long)s->plain_size);
    return 0;
}

int oci_stream_read(struct oci_stream *s, const void **data, size_t *len, struct err *e)
{
    int rc = 0;
    size_t got = 0;
    *data = s->output;
    switch (s->compression) {
    case OCI_PLAIN:
        rc = fill(s, e);
        *data = s->input + s->input_at;
        got = s->input_len - s->input_at;
        s->input_at = s->input_len;
        break;
    case OCI_GZIP:
        rc = gzip_read(s, &got, e);
        break;
    case OCI_ZSTD:
        rc = zstd_read(s, &got, e);
        break;
    }
    if (rc == 0)
        rc = note_plain(s, *data, got, e);
    if (rc < 0)
        return rc;
    *len = got;
    return 0;
}

static int compare(struct hasher *h, const struct digest *promised, enum err_class class,
                   const char *what, struct err *e)
{
    struct digest got;
    hasher_finish(h, &got);
    if (digest_equal(&got, promised))
        return 0;
    char got_text[DIGEST_TEXT_MAX];
    char promised_text[DIGEST_TEXT_MAX];
    return err_set(e, class, "%s %s, but promised was %s", what, digest_print(&got, got_text),
                   digest_print(promised, promised_text));
}

int oci_stream_check_blob(struct oci_stream *s, struct err *e)
{
    while (s->off < s->blob->size) {
        s->input_at = s->input_len;
        int rc = fill(s, e);
        if (rc < 0)
            return rc;
    }
    return compare(s->blob_hasher, &s->descriptor->digest, ERR_DIGEST, "the blob hashes to", e);
}

int oci_stream_check_plain(struct oci_stream *s, const struct digest *diff_id, struct err *e)
{
    return compare(s->plain_hasher, diff_id, ERR_CORRUPT, "the uncompressed layer has diff_id", e);
}
