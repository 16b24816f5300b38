/* SPDX-License-Identifier: MIT */
/*
 * Reading an LSMT layer: a header, sectors, an index of where on the disk they are, and a trailer
 * that says where the index is. The format has no checksum of its own; what can be checked of a
 * hostile one is that all of it stays within the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/overlaybd_internal.h"

static const uint8_t magic[24] = {'L',  'S',  'M',  'T',  0,    1,    2,    0,
                                  0x65, 0x7e, 0x63, 0xd2, 0x94, 0x44, 0x08, 0x4c,
                                  0xa2, 0xd2, 0xc8, 0xec, 0x4f, 0xcf, 0xae, 0x8a};

enum {
    RECORD_SIZE = 390,
    /* Offsets in the record. */
    AT_SIZE = 24,
    AT_FLAGS = 28,
    AT_INDEX_OFFSET = 32,
    AT_ENTRY_COUNT = 40,
    AT_VIRTUAL_SIZE = 48,
    AT_UUID = 56,
    AT_PARENT_UUID = 93,
    AT_VERSION = 132,
    AT_SUB_VERSION = 133,

    FLAG_HEADER = 1 << 0, /* else: trailer */
    FLAG_DATA = 1 << 1,
    FLAG_SEALED = 1 << 2,

    UUID_TEXT = 37,
};

/* Bits of an entry's two words. */
enum { SECTOR_BITS = 50, AT_BITS = 55 };
#define SECTOR_MASK (((uint64_t)1 << SECTOR_BITS) - 1)
#define AT_MASK (((uint64_t)1 << AT_BITS) - 1)

static void print_uuid(char text[UUID_TEXT], const uint8_t u[16])
{
    snprintf(text, UUID_TEXT,
             "%02X%02X%02X%02X-%02X%02X-%02X%02X-%02X%02X-%02X%02X%02X%02X%02X%02X", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
}

void lsmt_record_encode(const struct lsmt_record *r, uint8_t out[LSMT_HEADER_SIZE])
{
    static const uint8_t no_parent[16];
    memset(out, 0, LSMT_HEADER_SIZE);
    memcpy(out, magic, sizeof(magic));
    overlaybd_put32(out + AT_SIZE, RECORD_SIZE);
    overlaybd_put32(out + AT_FLAGS, (r->is_header ? FLAG_HEADER : 0) | FLAG_DATA | FLAG_SEALED);
    overlaybd_put64(out + AT_INDEX_OFFSET, r->index_offset);
    overlaybd_put64(out + AT_ENTRY_COUNT, r->entry_count);
    overlaybd_put64(out + AT_VIRTUAL_SIZE, r->virtual_size);
    print_uuid((char *)out + AT_UUID, r->uuid);
    print_uuid((char *)out + AT_PARENT_UUID, no_parent);
    out[AT_VERSION] = 1;
    out[AT_SUB_VERSION] = 1;
}

static int bad(struct err *e, const char *what)
{
    return err_set(e, ERR_CORRUPT, "LSMT layer: %s", what);
}

static int read_record(const struct source *file, uint64_t at, uint8_t out[LSMT_HEADER_SIZE],
                       struct err *e)
{
    int rc = source_read_full(file, at, out, LSMT_HEADER_SIZE, e);
    if (rc == 0 && memcmp(out, magic, sizeof(magic)) != 0)
        rc =
            bad(e, at == 0 ? "it does not start as one" : "it has no trailer; it may be cut short");
    return rc;
}

/* The ends of the file; what counts is in the trailer. */
static int read_ends(const struct source *file, uint8_t record[LSMT_HEADER_SIZE], struct err *e)
{
    if (file->size < (uint64_t)2 * LSMT_HEADER_SIZE)
        return bad(e, "it is shorter than a header and a trailer");
    int rc = read_record(file, 0, record, e);
    if (rc < 0)
        return rc;
    uint32_t flags = overlaybd_get32(record + AT_FLAGS);
    if (!(flags & FLAG_HEADER) || !(flags & FLAG_DATA))
        return bad(e, "its header is none of a data file");
    rc = read_record(file, file->size - LSMT_HEADER_SIZE, record, e);
    if (rc < 0)
        return rc;
    flags = overlaybd_get32(record + AT_FLAGS);
    if ((flags & FLAG_HEADER) || !(flags & FLAG_DATA) || !(flags & FLAG_SEALED))
        return bad(e, "its trailer is none of a finished layer");
    return 0;
}

/* Adds an entry as stored, unless it is padding. `limit` is the first sector after the data. */
static int add_entry(struct lsmt_layer *l, const uint8_t *stored, uint64_t limit, struct err *e)
{
    uint64_t low = overlaybd_get64(stored), high = overlaybd_get64(stored + 8);
    struct lsmt_entry entry = {.sector = low & SECTOR_MASK,
                               .count = (uint32_t)(low >> SECTOR_BITS),
                               .at = high & AT_MASK,
                               .zeros = (high >> AT_BITS & 1) != 0};
    if (entry.sector == LSMT_PADDING_SECTOR || entry.count == 0)
        return 0;
    const struct lsmt_entry *last = l->count > 0 ? &l->entries[l->count - 1] : NULL;
    if (last && last->sector + last->count > entry.sector)
        return bad(e, "its index is out of order");
    uint64_t stored_sectors = entry.zeros ? 0 : entry.count;
    if (entry.at < LSMT_HEADER_SIZE / SECTOR_SIZE || entry.at > limit ||
        stored_sectors > limit - entry.at)
        return bad(e, "its index points outside its data");
    l->entries[l->count++] = entry;
    return 0;
}

int lsmt_parse(struct lsmt_layer *out, const struct source *file, struct err *e)
{
    uint8_t record[LSMT_HEADER_SIZE];
    int rc = read_ends(file, record, e);
    if (rc < 0)
        return rc;
    uint64_t index = overlaybd_get64(record + AT_INDEX_OFFSET);
    uint64_t count = overlaybd_get64(record + AT_ENTRY_COUNT);
    uint64_t index_end = file->size - LSMT_HEADER_SIZE;
    struct lsmt_layer l = {.virtual_size = overlaybd_get64(record + AT_VIRTUAL_SIZE)};
    if (count > LSMT_ENTRIES_MAX)
        return err_set(e, ERR_LIMIT, "LSMT layer: %llu index entries; %d is the most",
                       (unsigned long long)count, LSMT_ENTRIES_MAX);
    if (index < LSMT_HEADER_SIZE || index > index_end ||
        count * LSMT_ENTRY_SIZE > index_end - index)
        return bad(e, "its index is not within the file");
    if (l.virtual_size % SECTOR_SIZE != 0)
        return bad(e, "the size of its disk is not in whole sectors");
    if (l.virtual_size > OVERLAYBD_DISK_SIZE_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "LSMT layer: a disk of %llu bytes; readers fail from 2 TiB on",
                       (unsigned long long)l.virtual_size);
    size_t size = (size_t)count * LSMT_ENTRY_SIZE;
    AUTO_FREE uint8_t *stored = mem_zalloc(size);
    l.entries = mem_array((size_t)count, sizeof(*l.entries));
    if (!stored || !l.entries)
        rc = err_nomem(e, "layer index");
    if (rc == 0)
        rc = source_read_full(file, index, stored, size, e);
    for (size_t at = 0; rc == 0 && at < size; at += LSMT_ENTRY_SIZE)
        rc = add_entry(&l, stored + at, index / SECTOR_SIZE, e);
    if (rc < 0)
        lsmt_layer_fini(&l);
    else
        *out = l;
    return rc;
}

void lsmt_layer_fini(struct lsmt_layer *l)
{
    free(l->entries);
    *l = (struct lsmt_layer){0};
}
