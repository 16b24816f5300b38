/* SPDX-License-Identifier: MIT */
/*
 * Reading a ZFile: blocks of equal plain size, each compressed by itself and followed by a CRC of its
 * compressed bytes; a table of their stored lengths; the same record at both ends. All of it may be
 * hostile.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/overlaybd_internal.h"

static const uint8_t magic[24] = {'Z', 'F', 'i', 'l', 'e', 0,   1,   0,   't', 'u', 'j', 'i',
                                  '.', 'y', 'y', 'f', '@', 'A', 'l', 'i', 'b', 'a', 'b', 'a'};

enum {
    RECORD_SIZE = 96, /* of the header's 512 bytes */
    /* Offsets in the record. */
    AT_SIZE = 24,
    AT_DIGEST = 28,
    AT_FLAGS = 32,
    AT_INDEX_OFFSET = 40,
    AT_BLOCK_COUNT = 48,
    AT_PLAIN_SIZE = 56,
    AT_INDEX_CRC = 64,
    AT_BLOCK_SIZE = 72,
    AT_COMPRESSION = 76,
    AT_USE_DICTIONARY = 78,
    AT_DICTIONARY_SIZE = 84,
    AT_CHECKED = 88,

    PLAIN_BLOCK_MIN = 512, /* readable; writers keep to OVERLAYBD_BLOCK_SIZE_* */
    PLAIN_BLOCK_MAX = 65536,
    BLOCKS_A_GROUP = 256,     /* whose start is remembered */
    READ_AHEAD_MAX = 1 << 20, /* stored bytes read at once */
};
#define INDEX_SIZE_MAX ((uint64_t)512 << 20)

struct zfile {
    const struct source *file; /* borrowed */
    struct zfile_info info;
    uint32_t *lengths;      /* stored bytes of each block, its CRC included */
    uint64_t *group_starts; /* where each BLOCKS_A_GROUP blocks start in the file */
};

static uint32_t record_digest(const uint8_t head[ZFILE_HEADER_SIZE])
{
    static const uint8_t none[4];
    uint32_t crc = crc32c_raw(0, head, AT_DIGEST);
    crc = crc32c_raw(crc, none, sizeof(none));
    return crc32c_raw(crc, head + AT_DIGEST + 4, ZFILE_HEADER_SIZE - AT_DIGEST - 4);
}

void zfile_info_encode(const struct zfile_info *info, uint8_t out[ZFILE_HEADER_SIZE])
{
    memset(out, 0, ZFILE_HEADER_SIZE);
    memcpy(out, magic, sizeof(magic));
    overlaybd_put32(out + AT_SIZE, RECORD_SIZE);
    overlaybd_put64(out + AT_FLAGS, info->flags);
    overlaybd_put64(out + AT_INDEX_OFFSET, info->index_offset);
    overlaybd_put64(out + AT_BLOCK_COUNT, info->block_count);
    overlaybd_put64(out + AT_PLAIN_SIZE, info->plain_size);
    overlaybd_put32(out + AT_INDEX_CRC, info->index_crc);
    overlaybd_put32(out + AT_BLOCK_SIZE, info->block_size);
    out[AT_COMPRESSION] = (uint8_t)info->compression;
    out[AT_CHECKED] = info->checked;
    overlaybd_put32(out + AT_DIGEST, record_digest(out));
}

static int bad(struct err *e, const char *what)
{
    return err_set(e, ERR_CORRUPT, "ZFile: %s", what);
}

static int check_geometry(const struct zfile_info *i, uint64_t file_size, struct err *e)
{
    if (i->compression != OVERLAYBD_LZ4 && i->compression != OVERLAYBD_ZSTD)
        return err_set(e, ERR_UNSUPPORTED, "ZFile: compression %u is neither LZ4 (1) nor zstd (2)",
                       (unsigned)i->compression);
    if (i->block_size < PLAIN_BLOCK_MIN || i->block_size > PLAIN_BLOCK_MAX ||
        (i->block_size & (i->block_size - 1)) != 0)
        return err_set(e, ERR_UNSUPPORTED, "ZFile: blocks of %u bytes", i->block_size);
    if (i->block_count > INDEX_SIZE_MAX / 4)
        return err_set(e, ERR_LIMIT, "ZFile: %llu blocks", (unsigned long long)i->block_count);
    uint64_t wanted = i->plain_size / i->block_size + (i->plain_size % i->block_size != 0);
    if (i->block_count != wanted)
        return bad(e, "its number of blocks does not fit its size");
    if (i->index_offset < ZFILE_HEADER_SIZE || i->index_offset > file_size ||
        4 * i->block_count > file_size - i->index_offset)
        return bad(e, "its table of blocks is not within the file");
    return 0;
}

/* `head` has the magic. */
static int decode_record(struct zfile_info *out, const uint8_t head[ZFILE_HEADER_SIZE],
                         struct err *e)
{
    *out = (struct zfile_info){.flags = overlaybd_get64(head + AT_FLAGS),
                               .index_offset = overlaybd_get64(head + AT_INDEX_OFFSET),
                               .block_count = overlaybd_get64(head + AT_BLOCK_COUNT),
                               .plain_size = overlaybd_get64(head + AT_PLAIN_SIZE),
                               .index_crc = overlaybd_get32(head + AT_INDEX_CRC),
                               .block_size = overlaybd_get32(head + AT_BLOCK_SIZE),
                               .compression = (enum overlaybd_compression)head[AT_COMPRESSION],
                               .checked = head[AT_CHECKED] != 0};
    if (head[AT_USE_DICTIONARY] != 0 || overlaybd_get32(head + AT_DICTIONARY_SIZE) != 0)
        return err_set(e, ERR_UNSUPPORTED, "ZFile: compressed with a dictionary");
    return 0;
}

static int read_info(struct zfile *z, struct err *e)
{
    uint8_t head[ZFILE_HEADER_SIZE];
    const struct source *file = z->file;
    if (file->size < sizeof(head))
        return err_set(e, ERR_NOTFOUND, "no ZFile");
    int rc = source_read_full(file, 0, head, sizeof(head), e);
    if (rc < 0)
        return rc;
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return err_set(e, ERR_NOTFOUND, "no ZFile");
    rc = decode_record(&z->info, head, e);
    if (rc < 0)
        return rc;
    uint64_t flags = z->info.flags;
    if (!(flags & ZFILE_IS_HEADER) || !(flags & ZFILE_IS_DATA))
        return bad(e, "its header is none of a data file");
    if ((flags & ZFILE_HAS_CRCS) && record_digest(head) != overlaybd_get32(head + AT_DIGEST))
        return bad(e, "its header fails its checksum");
    if (!(flags & ZFILE_IS_WHOLE)) {
        if (file->size < 2 * sizeof(head))
            return bad(e, "it has no trailer");
        rc = source_read_full(file, file->size - sizeof(head), head, sizeof(head), e);
        if (rc == 0 && memcmp(head, magic, sizeof(magic)) != 0)
            rc = bad(e, "it has no trailer; it may be cut short");
        if (rc == 0)
            rc = decode_record(&z->info, head, e);
        if (rc < 0)
            return rc;
        flags = z->info.flags;
        if ((flags & ZFILE_IS_HEADER) || !(flags & ZFILE_IS_DATA) || !(flags & ZFILE_IS_SEALED))
            return bad(e, "its trailer is none of a finished file");
    }
    return check_geometry(&z->info, file->size, e);
}

/* Turns the table as stored into lengths and starts. */
static int decode_index(struct zfile *z, struct err *e)
{
    const uint8_t *stored = (const uint8_t *)z->lengths;
    size_t most = block_bound(z->info.compression, z->info.block_size) + ZFILE_CRC_SIZE;
    uint32_t least = z->info.checked ? ZFILE_CRC_SIZE + 1 : 1;
    uint64_t at = ZFILE_HEADER_SIZE;
    for (size_t i = 0; i < z->info.block_count; i++) {
        uint32_t length = overlaybd_get32(stored + 4 * i);
        if (length < least || length > most)
            return bad(e, "a block has an impossible length");
        if (i % BLOCKS_A_GROUP == 0)
            z->group_starts[i / BLOCKS_A_GROUP] = at;
        z->lengths[i] = length;
        at += length;
    }
    return at <= z->info.index_offset ? 0 : bad(e, "its blocks reach into their table");
}

static int read_index(struct zfile *z, struct err *e)
{
    size_t count = (size_t)z->info.block_count;
    z->lengths = mem_array(count + 1, sizeof(*z->lengths));
    z->group_starts = mem_array(count / BLOCKS_A_GROUP + 1, sizeof(*z->group_starts));
    if (!z->lengths || !z->group_starts)
        return err_nomem(e, "block table");
    int rc = source_read_full(z->file, z->info.index_offset, z->lengths, 4 * count, e);
    if (rc < 0)
        return rc;
    if ((z->info.flags & ZFILE_HAS_CRCS) &&
        crc32c_raw(0, z->lengths, 4 * count) != z->info.index_crc)
        return bad(e, "its table of blocks fails its checksum");
    return decode_index(z, e);
}

static uint64_t block_start(const struct zfile *z, size_t block)
{
    size_t first = block - block % BLOCKS_A_GROUP;
    uint64_t at = z->group_starts[block / BLOCKS_A_GROUP];
    for (size_t i = first; i < block; i++)
        at += z->lengths[i];
    return at;
}

/* Plain bytes of a block: only the last may be short. */
static size_t plain_length(const struct zfile *z, size_t block)
{
    uint64_t left = z->info.plain_size - (uint64_t)block * z->info.block_size;
    return left < z->info.block_size ? (size_t)left : z->info.block_size;
}

static int decode_block(const struct zfile *z, size_t block, const uint8_t *stored, uint8_t *plain,
                        struct err *e)
{
    size_t len = z->lengths[block];
    if (z->info.checked) {
        len -= ZFILE_CRC_SIZE;
        if (crc32c_raw(ZFILE_CRC_START, stored, len) != overlaybd_get32(stored + len))
            return err_set(e, ERR_CORRUPT, "ZFile: block %zu fails its checksum", block);
    }
    int rc = block_decode(z->info.compression, stored, len, plain, plain_length(z, block), e);
    return rc < 0 ? err_in(e, "ZFile: block %zu", block) : 0;
}

/* Where decoded bytes go: [off, off + len) of the plain file. */
struct request {
    uint64_t off;
    size_t len;
    uint8_t *data;
    uint8_t *scratch; /* one plain block */
};

static int deliver_block(const struct zfile *z, size_t block, const uint8_t *stored,
                         const struct request *r, struct err *e)
{
    uint64_t start = (uint64_t)block * z->info.block_size;
    size_t size = plain_length(z, block);
    if (start >= r->off && start + size <= r->off + r->len)
        return decode_block(z, block, stored, r->data + (start - r->off), e);
    int rc = decode_block(z, block, stored, r->scratch, e);
    if (rc < 0)
        return rc;
    uint64_t from = start > r->off ? start : r->off;
    uint64_t to = start + size < r->off + r->len ? start + size : r->off + r->len;
    memcpy(r->data + (from - r->off), r->scratch + (from - start), (size_t)(to - from));
    return 0;
}

/* How many blocks from `first` to `last` are stored in at most READ_AHEAD_MAX bytes; *bytes is how
 * many these are. At least one. */
static size_t batch(const struct zfile *z, size_t first, size_t last, size_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    while (first + count <= last &&
           (count == 0 || *bytes + z->lengths[first + count] <= READ_AHEAD_MAX))
        *bytes += z->lengths[first + count++];
    return count;
}

static int zfile_read(void *self, uint64_t off, void *data, size_t len, size_t *got, struct err *e)
{
    const struct zfile *z = self;
    *got = 0;
    if (off >= z->info.plain_size || len == 0)
        return 0;
    if (len > z->info.plain_size - off)
        len = (size_t)(z->info.plain_size - off);
    size_t block_size = z->info.block_size;
    size_t first = (size_t)(off / block_size), last = (size_t)((off + len - 1) / block_size);
    size_t most = block_bound(z->info.compression, block_size) + ZFILE_CRC_SIZE;
    size_t all = (last - first + 1) * most;
    AUTO_FREE uint8_t *stored = mem_zalloc(all < READ_AHEAD_MAX ? all : READ_AHEAD_MAX);
    AUTO_FREE uint8_t *scratch = mem_zalloc(block_size);
    if (!stored || !scratch)
        return err_nomem(e, "compressed blocks");
    struct request r = {off, len, data, scratch};
    int rc = 0;
    for (size_t at = first; rc == 0 && at <= last;) {
        size_t bytes;
        size_t count = batch(z, at, last, &bytes);
        rc = source_read_full(z->file, block_start(z, at), stored, bytes, e);
        const uint8_t *from = stored;
        for (size_t i = at; rc == 0 && i < at + count; from += z->lengths[i++])
            rc = deliver_block(z, i, from, &r, e);
        at += count;
    }
    if (rc == 0)
        *got = len;
    return rc;
}

static void zfile_close(void *self)
{
    struct zfile *z = self;
    if (!z)
        return;
    free(z->lengths);
    free(z->group_starts);
    free(z);
}

static void zfile_free(struct zfile *z)
{
    zfile_close(z);
}
DEFINE_AUTO(zfile, zfile_free)

int zfile_open(struct source *out, const struct source *file, struct err *e)
{
    struct zfile *z CLEANUP(zfile_free_auto_) = mem_zalloc(sizeof(*z));
    if (!z)
        return err_nomem(e, "ZFile");
    z->file = file;
    int rc = read_info(z, e);
    if (rc == 0)
        rc = read_index(z, e);
    if (rc < 0)
        return rc;
    uint64_t size = z->info.plain_size;
    *out = (struct source){.read = zfile_read, .close = zfile_close, .self = MOVE(z), .size = size};
    return 0;
}
