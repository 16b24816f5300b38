/* SPDX-License-Identifier: MIT */
/*
 * Bytes of a block map (docs/formats/block-map.md). There is one encoding of each map: extents
 * sorted and joined, chunks numbered by first use. The decoder refuses any other, so that the
 * digest of the bytes is the digest of the disk.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    EXTENT_LEN = 8 + 4 + 4 + 4,
    MAP_PATH_MAX = 6 + DIGEST_TEXT_MAX, /* "disks/" + hex + NUL */
};

static const uint8_t magic[8] = {'T', 'B', '2', 'M', 'A', 'P', '0', '1'};

/* An extent's chunk, to be numbered. */
struct chunk_use {
    struct digest chunk;
    size_t extent;
};

static int compare_uses(const void *a, const void *b)
{
    const struct chunk_use *x = a, *y = b;
    int order = digest_compare(&x->chunk, &y->chunk);
    return order != 0 ? order : (x->extent > y->extent) - (x->extent < y->extent);
}

/* first[i]: the first extent that has extent i's chunk. */
static int find_first_uses(const struct block_map *m, size_t *first, struct err *e)
{
    size_t count = block_map_count(m);
    AUTO_FREE struct chunk_use *uses = mem_array(count, sizeof(*uses));
    if (!uses)
        return err_nomem(e, "block map");
    for (size_t i = 0; i < count; i++)
        uses[i] = (struct chunk_use){.chunk = block_map_extent(m, i)->chunk, .extent = i};
    if (count > 1)
        qsort(uses, count, sizeof(*uses), compare_uses);
    for (size_t i = 0; i < count; i++) {
        bool same = i > 0 && digest_equal(&uses[i - 1].chunk, &uses[i].chunk);
        first[uses[i].extent] = same ? first[uses[i - 1].extent] : uses[i].extent;
    }
    return 0;
}

static int encode_extents(const struct block_map *m, const size_t *first, uint32_t *numbers,
                          struct buf *out, struct err *e)
{
    uint32_t next = 0;
    for (size_t i = 0; i < block_map_count(m); i++) {
        const struct map_extent *x = block_map_extent(m, i);
        numbers[i] = first[i] == i ? next++ : numbers[first[i]];
        int rc = buf_add_u64(out, x->off, e);
        if (rc == 0)
            rc = buf_add_u32(out, x->size, e);
        if (rc == 0)
            rc = buf_add_u32(out, x->chunk_off, e);
        if (rc == 0)
            rc = buf_add_u32(out, numbers[i], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int block_map_encode(const struct block_map *m, struct buf *out, struct err *e)
{
    size_t count = block_map_count(m);
    AUTO_FREE size_t *first = mem_array(count, sizeof(*first));
    AUTO_FREE uint32_t *numbers = mem_array(count, sizeof(*numbers));
    if (!first || !numbers)
        return err_nomem(e, "block map");
    if (count > UINT32_MAX)
        return err_set(e, ERR_LIMIT, "block map: more than %u extents", UINT32_MAX);
    int rc = find_first_uses(m, first, e);
    if (rc < 0)
        return rc;
    uint32_t chunk_count = 0;
    for (size_t i = 0; i < count; i++) {
        if (block_map_extent(m, i)->chunk.algorithm != DIGEST_SHA256)
            return err_set(e, ERR_UNSUPPORTED, "block map: a chunk is not named by sha256");
        chunk_count += first[i] == i;
    }
    rc = buf_add(out, magic, sizeof(magic), e);
    if (rc == 0)
        rc = buf_add_u64(out, block_map_virtual_size(m), e);
    if (rc == 0)
        rc = buf_add_u32(out, chunk_count, e);
    if (rc == 0)
        rc = buf_add_u32(out, (uint32_t)count, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (first[i] == i)
            rc = buf_add(out, block_map_extent(m, i)->chunk.bytes, DIGEST_SHA256_LEN, e);
    }
    return rc < 0 ? rc : encode_extents(m, first, numbers, out, e);
}

struct header {
    uint64_t virtual_size;
    uint32_t chunk_count;
    uint32_t extent_count;
    const uint8_t *chunks;
};

static int decode_header(struct cursor *c, struct header *h, struct err *e)
{
    const uint8_t *start;
    int rc = cursor_bytes(c, &start, sizeof(magic), e);
    if (rc < 0)
        return rc;
    if (memcmp(start, magic, sizeof(magic) - 2) != 0)
        return err_set(e, ERR_CORRUPT, "it does not start like one");
    if (memcmp(start, magic, sizeof(magic)) != 0)
        return err_set(e, ERR_UNSUPPORTED, "format version %.2s is not known to this program",
                       (const char *)start + sizeof(magic) - 2);
    rc = cursor_u64(c, &h->virtual_size, e);
    if (rc == 0)
        rc = cursor_u32(c, &h->chunk_count, e);
    if (rc == 0)
        rc = cursor_u32(c, &h->extent_count, e);
    if (rc < 0)
        return rc;
    uint64_t need =
        (uint64_t)h->chunk_count * DIGEST_SHA256_LEN + (uint64_t)h->extent_count * EXTENT_LEN;
    if (need != c->left)
        return err_set(e, ERR_CORRUPT, "%zu bytes follow the header where %llu should", c->left,
                       (unsigned long long)need);
    return cursor_bytes(c, &h->chunks, (size_t)h->chunk_count * DIGEST_SHA256_LEN, e);
}

static int decode_extents(struct cursor *c, const struct header *h, struct block_map *m,
                          struct err *e)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < h->extent_count; i++) {
        struct map_extent x = {.chunk.algorithm = DIGEST_SHA256};
        uint32_t number;
        int rc = cursor_u64(c, &x.off, e);
        if (rc == 0)
            rc = cursor_u32(c, &x.size, e);
        if (rc == 0)
            rc = cursor_u32(c, &x.chunk_off, e);
        if (rc == 0)
            rc = cursor_u32(c, &number, e);
        if (rc < 0)
            return rc;
        if (number >= h->chunk_count || number > seen)
            return err_set(e, ERR_CORRUPT, "extent %u has a bad chunk number", i);
        seen += number == seen;
        memcpy(x.chunk.bytes, h->chunks + (size_t)number * DIGEST_SHA256_LEN, DIGEST_SHA256_LEN);
        if (i > 0 && x.off <= block_map_extent(m, i - 1)->off)
            return err_set(e, ERR_CORRUPT, "extent %u is out of order", i);
        rc = block_map_add(m, &x, e);
        if (rc < 0)
            return rc;
    }
    if (seen != h->chunk_count)
        return err_set(e, ERR_CORRUPT, "it names chunks that no extent has");
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return memcmp(a, b, DIGEST_SHA256_LEN);
}

static int check_distinct(const struct header *h, struct err *e)
{
    AUTO_FREE uint8_t *names = mem_dup(h->chunks, (size_t)h->chunk_count * DIGEST_SHA256_LEN);
    if (!names)
        return err_nomem(e, "block map");
    if (h->chunk_count > 1)
        qsort(names, h->chunk_count, DIGEST_SHA256_LEN, compare_names);
    for (uint32_t i = 1; i < h->chunk_count; i++) {
        const uint8_t *name = names + (size_t)i * DIGEST_SHA256_LEN;
        if (memcmp(name - DIGEST_SHA256_LEN, name, DIGEST_SHA256_LEN) == 0)
            return err_set(e, ERR_CORRUPT, "it names a chunk twice");
    }
    return 0;
}

static int decode(struct block_map **out, const void *bytes, size_t len, struct err *e)
{
    struct cursor c = {.at = bytes, .left = len};
    struct header h = {0};
    int rc = decode_header(&c, &h, e);
    if (rc == 0)
        rc = check_distinct(&h, e);
    if (rc < 0)
        return rc;
    if (h.virtual_size % BLOCK_SIZE != 0 || h.virtual_size > INT64_MAX)
        return err_set(e, ERR_CORRUPT, "%llu bytes is no size for a disk",
                       (unsigned long long)h.virtual_size);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    rc = block_map_new(&m, h.virtual_size, e);
    if (rc == 0)
        rc = decode_extents(&c, &h, m, e);
    if (rc == 0)
        rc = block_map_finish(m, e);
    if (rc < 0)
        return rc;
    if (block_map_count(m) != h.extent_count)
        return err_set(e, ERR_CORRUPT, "two of its extents should be one");
    *out = MOVE(m);
    return 0;
}

int block_map_decode(struct block_map **out, const void *bytes, size_t len, struct err *e)
{
    if (len > LIMIT_BLOCK_MAP)
        return err_set(e, ERR_LIMIT, "block map of %zu bytes", len);
    return decode(out, bytes, len, e) < 0 ? err_in(e, "block map") : 0;
}

static const char *map_path(const struct digest *d, char path[MAP_PATH_MAX])
{
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, MAP_PATH_MAX, "disks/%s", digest_hex(d, hex));
    return path;
}

/* Whether the file has just these bytes: a damaged map is written again. */
static bool holds(struct store *s, const char *path, const struct buf *bytes)
{
    if (!store_use(s, path))
        return false;
    struct err ignored = ERR_INIT;
    AUTO_BUF struct buf there;
    buf_init(&there, bytes->len);
    return file_read(store_dir(s), path, &there, &ignored) == 0 && there.len == bytes->len &&
           memcmp(there.data, bytes->data, bytes->len) == 0;
}

static int write_unsynced(struct store *s, const char *path, const struct buf *bytes, struct err *e)
{
    int rc = file_put_unsynced(store_tmp_dir(s), store_dir(s), path, bytes->data, bytes->len, e);
    store_count_unsynced_map(s);
    return rc;
}

static int put_map(struct store *s, const struct block_map *m, bool sync, struct digest *out,
                   struct err *e)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    int rc = block_map_encode(m, &bytes, e);
    if (rc < 0)
        return rc;
    struct digest d;
    digest_bytes(&d, bytes.data, bytes.len);
    char path[MAP_PATH_MAX];
    map_path(&d, path);
    /* The chunks first: a map that can be seen after a power cut can be read. */
    if (sync)
        rc = store_sync_chunks(s, e);
    if (rc == 0 && !holds(s, path, &bytes))
        rc = sync ? file_put(store_tmp_dir(s), store_dir(s), path, bytes.data, bytes.len, e)
                  : write_unsynced(s, path, &bytes, e);
    if (rc < 0)
        return rc;
    *out = d;
    return 0;
}

int store_put_map(struct store *s, const struct block_map *m, struct digest *out, struct err *e)
{
    return put_map(s, m, true, out, e);
}

int store_put_map_unsynced(struct store *s, const struct block_map *m, struct digest *out,
                           struct err *e)
{
    return put_map(s, m, false, out, e);
}

int store_get_map(struct store *s, const struct digest *d, struct block_map **out, struct err *e)
{
    char path[MAP_PATH_MAX];
    store_use(s, map_path(d, path)); /* reading says whether it is there */
    return store_peek_map(s, d, out, e);
}

int store_peek_map(struct store *s, const struct digest *d, struct block_map **out, struct err *e)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    char path[MAP_PATH_MAX], text[DIGEST_TEXT_MAX];
    int rc = file_read(store_dir(s), map_path(d, path), &bytes, e);
    if (rc == 0)
        rc = digest_check(d, bytes.data, bytes.len, e);
    if (rc < 0) {
        err_in(e, "block map %s", digest_print(d, text));
        return err_hint(e, "bake the task again with --force: the map is then made anew");
    }
    return block_map_decode(out, bytes.data, bytes.len, e);
}
