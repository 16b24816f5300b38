/* SPDX-License-Identifier: MIT */
/*
 * floor LEVEL STORE IMAGE...: what ingest cannot do without, each part timed alone on one thread over
 * the data of these images (oci:DIR:TAG), which STORE must hold already: inflating every distinct
 * layer (ISA-L; libzstd), sha256 of its blob, of its plain bytes, of its chunks, and compressing
 * each distinct chunk. Nothing is written. Prints CPU seconds as one line of JSON.
 */
#include <inttypes.h>
#include <isa-l/igzip_lib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { SEEN_MAX = 1 << 20, PLAIN_PIECE = 256 << 10 };

struct floor {
    struct store *store;
    int level;
    struct digest *seen; /* blobs, layers and chunks taken in, by hash */
    double inflate_s, blob_hash_s, plain_hash_s, chunk_hash_s, compress_s;
    uint64_t blob_size, plain_size, chunk_size, unique_size, stored_size;
    ZSTD_CCtx *compressor;
    uint8_t *chunk, *packed;
};

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* True the first time. */
static bool is_new(struct floor *f, const struct digest *d)
{
    uint64_t at;
    memcpy(&at, d->bytes, sizeof(at));
    for (at %= SEEN_MAX; f->seen[at].algorithm; at = (at + 1) % SEEN_MAX) {
        if (digest_equal(&f->seen[at], d))
            return false;
    }
    f->seen[at] = *d;
    return true;
}

/* Each plain byte is hashed right after it was made, as any program would; the clocks are apart. */
static void take_plain(struct floor *f, struct hasher *h, const uint8_t *data, size_t len)
{
    double start = cpu();
    hasher_add(h, data, len);
    f->plain_hash_s += cpu() - start;
    f->plain_size += len;
}

static void inflate_gzip(struct floor *f, struct hasher *h, uint8_t *blob, size_t len)
{
    struct inflate_state *state = mem_zalloc(sizeof(*state));
    uint8_t *out = mem_zalloc(PLAIN_PIECE);
    if (!state || !out)
        abort();
    isal_inflate_init(state);
    state->crc_flag = ISAL_GZIP;
    state->next_in = blob;
    state->avail_in = (uint32_t)len;
    do {
        double start = cpu();
        state->next_out = out;
        state->avail_out = PLAIN_PIECE;
        if (isal_inflate(state) != ISAL_DECOMP_OK)
            abort();
        f->inflate_s += cpu() - start;
        take_plain(f, h, out, PLAIN_PIECE - state->avail_out);
    } while (state->block_state != ISAL_BLOCK_FINISH);
    free(out);
    free(state);
}

static void inflate_zstd(struct floor *f, struct hasher *h, const uint8_t *blob, size_t len)
{
    ZSTD_DCtx *d = ZSTD_createDCtx();
    uint8_t *out = mem_zalloc(PLAIN_PIECE);
    if (!d || !out)
        abort();
    ZSTD_inBuffer in = {blob, len, 0};
    size_t hint = 1;
    while (hint != 0 || in.pos < in.size) {
        ZSTD_outBuffer to = {out, PLAIN_PIECE, 0};
        double start = cpu();
        hint = ZSTD_decompressStream(d, &to, &in);
        f->inflate_s += cpu() - start;
        if (ZSTD_isError(hint))
            abort();
        take_plain(f, h, out, to.pos);
    }
    free(out);
    ZSTD_freeDCtx(d);
}

static int take_blob(struct floor *f, struct image *i, size_t n, struct err *e)
{
    const struct oci_descriptor *d = &i->manifest.layers[n];
    struct source source = {0};
    AUTO_HASHER struct hasher *h = NULL;
    AUTO_FREE uint8_t *blob = mem_zalloc((size_t)d->size);
    int rc = blob ? hasher_new(&h, DIGEST_SHA256, e) : err_nomem(e, "blob");
    if (rc == 0)
        rc = oci_layout_blob(i->layout, d, &source, e);
    if (rc == 0)
        rc = source_read_full(&source, 0, blob, (size_t)d->size, e);
    source_close(&source);
    if (rc < 0)
        return rc;
    struct digest sum;
    double start = cpu();
    digest_bytes(&sum, blob, (size_t)d->size);
    f->blob_hash_s += cpu() - start;
    f->blob_size += d->size;
    if (blob[0] == 0x1f)
        inflate_gzip(f, h, blob, (size_t)d->size);
    else if (blob[0] == 0x28)
        inflate_zstd(f, h, blob, (size_t)d->size);
    else
        take_plain(f, h, blob, (size_t)d->size);
    hasher_finish(h, &sum);
    return digest_equal(&sum, &i->config.diff_ids[n]) ? 0 : err_set(e, ERR_DIGEST, "diff_id");
}

static int take_chunk(struct floor *f, const struct digest *d, struct err *e)
{
    size_t len;
    int rc = store_get_chunk(f->store, d, f->chunk, &len, e);
    if (rc < 0)
        return rc;
    double start = cpu();
    struct digest sum;
    digest_bytes(&sum, f->chunk, len);
    f->chunk_hash_s += cpu() - start;
    f->chunk_size += len;
    if (!is_new(f, d))
        return 0;
    start = cpu();
    size_t got =
        ZSTD_compress2(f->compressor, f->packed, ZSTD_COMPRESSBOUND(CHUNK_SIZE_MAX), f->chunk, len);
    f->compress_s += cpu() - start;
    f->unique_size += len;
    f->stored_size += got;
    return 0;
}

/* The chunks of a region, each as often as it was cut there; a pack has several extents, of which one is its
 * first. */
static int take_map(struct floor *f, const struct block_map *m, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < block_map_count(m); i++) {
        const struct map_extent *extent = block_map_extent(m, i);
        if (extent->chunk_off == 0)
            rc = take_chunk(f, &extent->chunk, e);
    }
    return rc;
}

static int take_image(struct floor *f, struct image_room *room, const char *text, struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    int rc = image_resolve(&i, room, text, e);
    for (size_t n = 0; rc == 0 && n < i->manifest.layer_count; n++) {
        if (!is_new(f, &i->config.diff_ids[n]))
            continue;
        AUTO_OCI_LAYER struct oci_layer *layer = NULL;
        AUTO_BLOCK_MAP struct block_map *region = NULL;
        rc = take_blob(f, i, n, e);
        if (rc == 0)
            rc = layer_load(f->store, &i->config.diff_ids[n], &layer, &region, e);
        if (rc == 0)
            rc = take_map(f, region, e);
    }
    return rc;
}

static void report(const struct floor *f)
{
    double hashes = f->blob_hash_s + f->plain_hash_s + f->chunk_hash_s;
    printf(
        "{\"level\": %d, \"inflate_s\": %.3f, \"blob_hash_s\": %.3f, \"plain_hash_s\": %.3f, "
        "\"chunk_hash_s\": %.3f, \"compress_s\": %.3f, \"total_s\": %.3f, \"blob_bytes\": %" PRIu64
        ", \"plain_bytes\": %" PRIu64 ", \"chunk_bytes\": %" PRIu64 ", \"unique_bytes\": %" PRIu64
        ", \"stored_bytes\": %" PRIu64 "}\n",
        f->level, f->inflate_s, f->blob_hash_s, f->plain_hash_s, f->chunk_hash_s, f->compress_s,
        f->inflate_s + hashes + f->compress_s, f->blob_size, f->plain_size, f->chunk_size,
        f->unique_size, f->stored_size);
}

/* As the store's chunks. */
static int set_level(struct floor *f, struct err *e)
{
    if (!f->compressor)
        return err_nomem(e, "floor");
    size_t rc = ZSTD_CCtx_setParameter(f->compressor, ZSTD_c_compressionLevel, f->level);
    if (!ZSTD_isError(rc) && f->level == CHUNK_LEVEL_DEFAULT)
        rc = ZSTD_CCtx_setParameter(f->compressor, ZSTD_c_minMatch, CHUNK_MATCH_MIN);
    return ZSTD_isError(rc) ? err_set(e, ERR_INPUT, "level: %s", ZSTD_getErrorName(rc)) : 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: floor LEVEL STORE IMAGE...\n");
        return 2;
    }
    struct floor f = {.level = (int)strtol(argv[1], NULL, 10)};
    f.seen = mem_array(SEEN_MAX, sizeof(*f.seen));
    f.compressor = ZSTD_createCCtx();
    f.chunk = mem_zalloc(CHUNK_SIZE_MAX);
    f.packed = mem_zalloc(ZSTD_COMPRESSBOUND(CHUNK_SIZE_MAX));
    struct err e = ERR_INIT;
    struct image_options options = {0};
    struct image_room room = {0};
    int rc = f.seen && f.chunk && f.packed ? set_level(&f, &e) : err_nomem(&e, "floor");
    if (rc == 0)
        rc = store_open(&f.store, argv[2], &e);
    if (rc == 0)
        rc = image_room_open(&room, f.store, &options, NULL, &e);
    for (int i = 3; rc == 0 && i < argc; i++)
        rc = take_image(&f, &room, argv[i], &e);
    if (rc == 0)
        report(&f);
    else
        fprintf(stderr, "%s\n", e.text);
    image_room_close(&room);
    store_close(f.store);
    ZSTD_freeCCtx(f.compressor);
    free(f.packed);
    free(f.chunk);
    free(f.seen);
    return rc < 0;
}
