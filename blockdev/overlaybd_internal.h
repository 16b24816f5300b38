/* SPDX-License-Identifier: MIT */
/* What the files of the OverlayBD format share. Sizes in bytes unless a name says sectors. */
#ifndef TB2_BLOCKDEV_OVERLAYBD_INTERNAL_H
#define TB2_BLOCKDEV_OVERLAYBD_INTERNAL_H

#include "base/io.h"
#include "blockdev/overlaybd.h"

enum { SECTOR_SIZE = 512 };

/* ---- Blocks and checksums (overlaybd_codec.c) ---------------------------------------------- */

/* CRC-32C (Castagnoli) without the usual inversion of its first and last state. */
uint32_t crc32c_raw(uint32_t state, const void *data, size_t len);

/* Compressor of one thread at a time. */
struct block_codec;
int block_codec_new(struct block_codec **out, enum overlaybd_compression compression,
                    struct err *e) MUST_USE;
void block_codec_free(struct block_codec *c);
DEFINE_AUTO(block_codec, block_codec_free)
#define AUTO_BLOCK_CODEC CLEANUP(block_codec_free_auto_)

/* The most bytes that `len` plain ones become. */
size_t block_bound(enum overlaybd_compression compression, size_t len);
/* `out` has room for block_bound of `len`; *out_len is what was written. */
int block_encode(struct block_codec *c, const void *plain, size_t len, void *out, size_t *out_len,
                 struct err *e) MUST_USE;
/* ERR_CORRUPT unless the block decompresses to exactly `plain_len` bytes. */
int block_decode(enum overlaybd_compression compression, const void *block, size_t len, void *plain,
                 size_t plain_len, struct err *e) MUST_USE;

/* ---- ZFile: blocks, each compressed by itself, and a table of their lengths ------------------ */

enum { ZFILE_HEADER_SIZE = 512 };

/*
 * A source over the plain bytes of the ZFile in `file` (borrowed for the source's life). ERR_NOTFOUND
 * if it is no ZFile at all.
 */
int zfile_open(struct source *out, const struct source *file, struct err *e) MUST_USE;

struct zfile_options {
    enum overlaybd_compression compression;
    uint32_t block_size;
    size_t workers;
    const struct cancel *cancel;
};
/* Writes a ZFile of all bytes of `plain` into `fd` at `at`; *size is how long it has become. */
int zfile_write(int fd, uint64_t at, const struct source *plain, const struct zfile_options *o,
                uint64_t *size, struct err *e) MUST_USE;

/* Header and trailer of a ZFile, decoded (zfile.c). */
struct zfile_info {
    uint64_t flags;
    uint64_t index_offset;
    uint64_t block_count;
    uint64_t plain_size;
    uint32_t index_crc;
    uint32_t block_size;
    enum overlaybd_compression compression;
    bool checked; /* a CRC follows each block */
};
enum {
    ZFILE_IS_HEADER = 1 << 0, /* else: trailer */
    ZFILE_IS_DATA = 1 << 1,
    ZFILE_IS_SEALED = 1 << 2,
    ZFILE_IS_WHOLE = 1 << 3, /* a header that has all that the trailer has */
    ZFILE_HAS_CRCS = 1 << 4,
    ZFILE_CRC_SIZE = 4,
    ZFILE_CRC_START = 100007, /* state before the first byte of a block */
};
void zfile_info_encode(const struct zfile_info *info, uint8_t out[ZFILE_HEADER_SIZE]);

/* ---- LSMT: sectors, and an index of where on the disk they are ------------------------------- */

enum {
    LSMT_HEADER_SIZE = 4096,
    LSMT_ENTRY_SIZE = 16,
    LSMT_ENTRY_SECTORS_MAX = 16383, /* 14 bits */
    LSMT_ENTRIES_MAX = 1000000,     /* of a layer, padding included: the reference reader's cap */
    LSMT_ENTRIES_UNIT = 256,        /* writers pad the index to so many */
};
#define LSMT_PADDING_SECTOR (((uint64_t)1 << 50) - 1)

/* `count` sectors of the disk from `sector` on are those at `at` of the layer's file, or zeros. */
struct lsmt_entry {
    uint64_t sector;
    uint64_t at;
    uint32_t count;
    bool zeros;
};

struct lsmt_layer {
    uint64_t virtual_size;
    struct lsmt_entry *entries; /* sorted, disjoint; owned */
    size_t count;
};
/* Reads and checks header, trailer and index of the LSMT file in `file`. */
int lsmt_parse(struct lsmt_layer *out, const struct source *file, struct err *e) MUST_USE;
void lsmt_layer_fini(struct lsmt_layer *l);

/* A source over the bytes of the LSMT file that `o` describes, made as they are read. The store and
 * the maps are borrowed for the source's life. */
int lsmt_compose(struct source *out, struct store *s, const struct overlaybd_write_options *o,
                 struct err *e) MUST_USE;

/* The record at both ends of the file (lsmt.c). */
struct lsmt_record {
    bool is_header;
    uint64_t index_offset; /* trailer */
    uint64_t entry_count;  /* trailer */
    uint64_t virtual_size;
    uint8_t uuid[16];
};
void lsmt_record_encode(const struct lsmt_record *r, uint8_t out[LSMT_HEADER_SIZE]);

/* ---- Tar wrapper (overlaybd_tar.c) ------------------------------------------------------------- */

enum { OVERLAYBD_TAR_HEAD = 1536 }; /* what comes before the payload */

/* Where the payload of the blob is: within the wrapper, or all of the blob when there is none. */
int overlaybd_tar_find(const struct source *blob, uint64_t *off, uint64_t *size,
                       struct err *e) MUST_USE;
/* Writes the wrapper around a payload of `size` bytes at OVERLAYBD_TAR_HEAD of `fd`; *total is the
 * blob's size. */
int overlaybd_tar_write(int fd, uint64_t size, uint64_t *total, struct err *e) MUST_USE;

/* ---- Integers: little endian ------------------------------------------------------------------- */

static inline uint32_t overlaybd_get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t overlaybd_get64(const uint8_t *at)
{
    return overlaybd_get32(at) | (uint64_t)overlaybd_get32(at + 4) << 32;
}

static inline void overlaybd_put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static inline void overlaybd_put64(uint8_t *at, uint64_t value)
{
    overlaybd_put32(at, (uint32_t)value);
    overlaybd_put32(at + 4, (uint32_t)(value >> 32));
}

#endif
