/* SPDX-License-Identifier: MIT */
/* What the files of blockdev share with one another and with their unit tests. */
#ifndef TB2_BLOCKDEV_INTERNAL_H
#define TB2_BLOCKDEV_INTERNAL_H

#include "blockdev/blockdev.h"

/* ---- Chunk files (chunk.c) ---------------------------------------------------------------- */

/* Compressor and decompressor state of one thread at a time. */
struct chunk_codec;

int chunk_codec_new(struct chunk_codec **out, struct err *e) MUST_USE;
void chunk_codec_free(struct chunk_codec *c);

/* Compresses; the result is borrowed from the codec until its next use. */
int chunk_encode(struct chunk_codec *c, const void *data, size_t len, const void **out,
                 size_t *out_len, struct err *e) MUST_USE;

/* Reads an open chunk file into `data` (room for CHUNK_SIZE_MAX). ERR_CORRUPT, without a name, for anything but
 * one whole frame of a valid chunk size. */
int chunk_decode_file(struct chunk_codec *c, int fd, void *data, size_t *len,
                      struct err *e) MUST_USE;

/* ---- Store ------------------------------------------------------------------------------- */

/* A codec of the store's idle ones (or a new one), and back. */
int store_take_codec(struct store *s, struct chunk_codec **out, struct err *e) MUST_USE;
void store_give_codec(struct store *s, struct chunk_codec *c);

/* Makes every chunk that this process offered since the last call durable. */
int store_sync_chunks(struct store *s, struct err *e) MUST_USE;

/* Counts a chunk for store_stats; `stored_size` 0: was there already. */
void store_count_chunk(struct store *s, uint64_t stored_size);

/* Reads and checks every chunk changed at or after `since` (seconds of the epoch) and removes the
 * damaged ones: for what a power cut may have torn. */
int store_recheck_chunks(struct store *s, int64_t since, struct err *e) MUST_USE;

/* ---- Regions (region.c) ------------------------------------------------------------------- */

/* Bytes of one layer's region: a quarter of what ext4 can address without the 64bit feature. */
#define REGION_SIZE_MAX ((uint64_t)4 << 40)

/* ---- Pieces (image.c) --------------------------------------------------------------------- */

/* True if all `len` bytes are zero. */
bool piece_is_zero(const uint8_t *data, size_t len);

/*
 * Stores one piece of a disk, `len` bytes (a multiple of BLOCK_SIZE, at most CHUNK_SIZE_MAX) that
 * stand at `off`: its non-zero blocks, one after the other, become one chunk; adds their extents to
 * `m`. May move the blocks within `data`.
 */
int piece_put(struct store *s, struct block_map *m, uint64_t off, uint8_t *data, size_t len,
              struct err *e) MUST_USE;

#endif
