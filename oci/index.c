/* SPDX-License-Identifier: MIT */
/*
 * The layer index as bytes: docs/formats/layer-index.md is the format, version 1.
 *
 * Paths share their beginning with the entry before, extents continue where the one before ended,
 * numbers are LEB128: an ordinary layer takes about 40 bytes an entry. Everything is checked on
 * the way in, by oci_entry_check among others, so that a damaged or hostile index is refused and
 * never half believed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

#define MAGIC "tb2layer"
enum { MAGIC_LEN = 8, VERSION = 1, ENTRY_MIN_LEN = 3 };

/* What an entry is written relative to. */
struct context {
    char path[LIMIT_PATH];
    uint64_t region_off; /* where the extent before ended */
};

/* ---- Numbers ---- */

static int put(struct buf *out, uint64_t value, struct err *e)
{
    uint8_t bytes[10];
    size_t len = 0;
    do {
        bytes[len++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    return buf_add(out, bytes, len, e);
}

/* Signed numbers alternate: 0, -1, 1, -2, ... */
static uint64_t fold(int64_t value)
{
    return value < 0 ? ~((uint64_t)value << 1) : (uint64_t)value << 1;
}

static int64_t unfold(uint64_t value)
{
    return (int64_t)((value >> 1) ^ (0 - (value & 1)));
}

static int get(struct cursor *c, uint64_t *out, struct err *e)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte;
        int rc = cursor_u8(c, &byte, e);
        if (rc < 0)
            return rc;
        uint64_t bits = byte & 0x7f;
        if ((bits << shift) >> shift != bits)
            break;
        value |= bits << shift;
        if ((byte & 0x80) == 0) {
            if (byte == 0 && shift > 0)
                break;
            *out = value;
            return 0;
        }
    }
    return err_set(e, ERR_CORRUPT, "a number is not in its shortest form");
}

static int get_u32(struct cursor *c, uint32_t *out, struct err *e)
{
    uint64_t value;
    int rc = get(c, &value, e);
    if (rc < 0)
        return rc;
    if (value > UINT32_MAX)
        return err_set(e, ERR_CORRUPT, "a number is out of range");
    *out = (uint32_t)value;
    return 0;
}

/* A length or count of things that take at least `unit` bytes each, which must still be there. */
static int get_count(struct cursor *c, size_t *out, size_t unit, struct err *e)
{
    uint64_t value;
    int rc = get(c, &value, e);
    if (rc < 0)
        return rc;
    if (value > c->left / unit)
        return err_set(e, ERR_CORRUPT, "a length goes past the end");
    *out = (size_t)value;
    return 0;
}

static int put_bytes(struct buf *out, const void *bytes, size_t len, struct err *e)
{
    int rc = put(out, len, e);
    return rc < 0 ? rc : buf_add(out, bytes, len, e);
}

static int get_text(struct cursor *c, char **out, struct err *e)
{
    size_t len;
    const uint8_t *bytes;
    int rc = get_count(c, &len, 1, e);
    if (rc == 0)
        rc = cursor_bytes(c, &bytes, len, e);
    if (rc < 0)
        return rc;
    if (memchr(bytes, 0, len))
        return err_set(e, ERR_CORRUPT, "a text holds a NUL byte");
    *out = mem_strndup((const char *)bytes, len);
    return *out ? 0 : err_nomem(e, "text");
}

static bool has_metadata(enum oci_entry_type type)
{
    return type != OCI_HARDLINK && type != OCI_WHITEOUT && type != OCI_OPAQUE;
}

/* ---- Encoding ---- */

static int put_path(struct buf *out, struct context *context, const char *path, struct err *e)
{
    size_t shared = 0;
    while (path[shared] != 0 && path[shared] == context->path[shared])
        shared++;
    size_t len = strlen(path);
    int rc = put(out, shared, e);
    if (rc == 0)
        rc = put_bytes(out, path + shared, len - shared, e);
    if (rc == 0)
        memcpy(context->path + shared, path + shared, len - shared + 1);
    return rc;
}

static int put_extents(struct buf *out, struct context *context, const struct oci_entry *entry,
                       struct err *e)
{
    int rc = put(out, entry->extent_count, e);
    uint64_t file_off = 0;
    for (size_t i = 0; rc == 0 && i < entry->extent_count; i++) {
        const struct oci_extent *x = &entry->extents[i];
        rc = put(out, x->file_off - file_off, e);
        if (rc == 0)
            rc = put(out, x->len, e);
        if (rc == 0)
            rc = put(out, fold((int64_t)(x->region_off - context->region_off)), e);
        file_off = x->file_off + x->len;
        context->region_off = x->region_off + x->len;
    }
    return rc;
}

static int put_xattrs(struct buf *out, const struct oci_entry *entry, struct err *e)
{
    int rc = put(out, entry->xattr_count, e);
    for (size_t i = 0; rc == 0 && i < entry->xattr_count; i++) {
        const struct oci_xattr *x = &entry->xattrs[i];
        rc = put_bytes(out, x->name, strlen(x->name), e);
        if (rc == 0)
            rc = put_bytes(out, x->value, x->value_len, e);
    }
    return rc;
}

static int put_numbers(struct buf *out, const uint64_t *numbers, size_t count, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put(out, numbers[i], e);
    return rc;
}

static int put_entry(struct buf *out, struct context *context, const struct oci_entry *entry,
                     struct err *e)
{
    int rc = buf_add_u8(out, (uint8_t)entry->type, e);
    if (rc == 0)
        rc = put_path(out, context, entry->path, e);
    if (rc == 0 && entry->target)
        rc = put_bytes(out, entry->target, strlen(entry->target), e);
    if (rc < 0 || !has_metadata(entry->type))
        return rc;
    const uint64_t common[] = {entry->mode, entry->uid, entry->gid, fold(entry->mtime_seconds),
                               entry->mtime_nanoseconds};
    rc = put_numbers(out, common, ARRAY_LEN(common), e);
    if (rc == 0)
        rc = put_xattrs(out, entry, e);
    if (rc == 0 && entry->type == OCI_FILE) {
        rc = put(out, entry->size, e);
        if (rc == 0)
            rc = put_extents(out, context, entry, e);
    }
    if (rc == 0 && (entry->type == OCI_CHARACTER_DEVICE || entry->type == OCI_BLOCK_DEVICE)) {
        const uint64_t device[] = {entry->device_major, entry->device_minor};
        rc = put_numbers(out, device, ARRAY_LEN(device), e);
    }
    return rc;
}

int oci_layer_encode(const struct oci_layer *l, struct buf *out, struct err *e)
{
    struct context context = {0};
    size_t start = out->len;
    int rc = buf_add(out, MAGIC, MAGIC_LEN, e);
    if (rc == 0)
        rc = buf_add_u32(out, VERSION, e);
    if (rc == 0)
        rc = put(out, l->count, e);
    for (size_t i = 0; rc == 0 && i < l->count; i++)
        rc = put_entry(out, &context, &l->entries[i], e);
    if (rc < 0)
        return err_in(e, "layer index");
    struct digest digest;
    digest_bytes(&digest, out->data + start, out->len - start);
    rc = buf_add(out, digest.bytes, DIGEST_SHA256_LEN, e);
    return rc < 0 ? err_in(e, "layer index") : 0;
}

/* ---- Decoding ---- */

static int get_path(struct cursor *c, struct context *context, char **out, struct err *e)
{
    uint64_t shared;
    size_t len;
    const uint8_t *bytes;
    int rc = get(c, &shared, e);
    if (rc == 0)
        rc = get_count(c, &len, 1, e);
    if (rc == 0)
        rc = cursor_bytes(c, &bytes, len, e);
    if (rc < 0)
        return rc;
    if (shared > strlen(context->path) || len >= LIMIT_PATH - shared || memchr(bytes, 0, len))
        return err_set(e, ERR_CORRUPT, "a path is malformed");
    if (len > 0 && (uint8_t)context->path[shared] == bytes[0])
        return err_set(e, ERR_CORRUPT, "a path is not in its shortest form");
    memcpy(context->path + shared, bytes, len);
    context->path[shared + len] = 0;
    *out = mem_strdup(context->path);
    return *out ? 0 : err_nomem(e, "path");
}

static int get_extent(struct cursor *c, struct context *context, struct oci_extent *x,
                      uint64_t *file_off, struct err *e)
{
    uint64_t gap;
    uint64_t step;
    int rc = get(c, &gap, e);
    if (rc == 0)
        rc = get(c, &x->len, e);
    if (rc == 0)
        rc = get(c, &step, e);
    if (rc < 0)
        return rc;
    if (mem_add_u64(*file_off, gap, &x->file_off) || mem_add_u64(x->file_off, x->len, file_off))
        return err_set(e, ERR_CORRUPT, "an extent is out of range");
    x->region_off = context->region_off + (uint64_t)unfold(step);
    if (mem_add_u64(x->region_off, x->len, &context->region_off))
        return err_set(e, ERR_CORRUPT, "an extent is out of range");
    return 0;
}

static int get_extents(struct cursor *c, struct context *context, struct oci_entry *entry,
                       struct err *e)
{
    size_t count;
    int rc = get_count(c, &count, 3, e);
    if (rc < 0 || count == 0)
        return rc;
    entry->extents = mem_array(count, sizeof(*entry->extents));
    if (!entry->extents)
        return err_nomem(e, "extents");
    entry->extent_count = count;
    uint64_t file_off = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = get_extent(c, context, &entry->extents[i], &file_off, e);
    return rc;
}

static int get_xattr(struct cursor *c, struct oci_xattr *x, struct err *e)
{
    const uint8_t *bytes;
    int rc = get_text(c, &x->name, e);
    if (rc == 0)
        rc = get_count(c, &x->value_len, 1, e);
    if (rc == 0)
        rc = cursor_bytes(c, &bytes, x->value_len, e);
    if (rc < 0)
        return rc;
    x->value = mem_dup(bytes, x->value_len);
    return x->value ? 0 : err_nomem(e, "extended attribute");
}

static int get_xattrs(struct cursor *c, struct oci_entry *entry, struct err *e)
{
    size_t count;
    int rc = get_count(c, &count, 2, e);
    if (rc < 0 || count == 0)
        return rc;
    if (count > LIMIT_XATTRS)
        return err_set(e, ERR_CORRUPT, "%zu extended attributes", count);
    entry->xattrs = mem_array(count, sizeof(*entry->xattrs));
    if (!entry->xattrs)
        return err_nomem(e, "extended attributes");
    entry->xattr_count = count;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = get_xattr(c, &entry->xattrs[i], e);
    return rc;
}

static int get_metadata(struct cursor *c, struct oci_entry *entry, struct err *e)
{
    uint64_t seconds;
    int rc = get_u32(c, &entry->mode, e);
    if (rc == 0)
        rc = get_u32(c, &entry->uid, e);
    if (rc == 0)
        rc = get_u32(c, &entry->gid, e);
    if (rc == 0)
        rc = get(c, &seconds, e);
    if (rc == 0)
        rc = get_u32(c, &entry->mtime_nanoseconds, e);
    if (rc < 0)
        return rc;
    entry->mtime_seconds = unfold(seconds);
    return get_xattrs(c, entry, e);
}

static int get_entry(struct cursor *c, struct context *context, struct oci_entry *entry,
                     struct err *e)
{
    uint8_t type;
    int rc = cursor_u8(c, &type, e);
    if (rc < 0)
        return rc;
    if (type > OCI_OPAQUE)
        return err_set(e, ERR_CORRUPT, "entry type %u", type);
    entry->type = (enum oci_entry_type)type;
    rc = get_path(c, context, &entry->path, e);
    if (rc == 0 && (entry->type == OCI_SYMLINK || entry->type == OCI_HARDLINK))
        rc = get_text(c, &entry->target, e);
    if (rc == 0 && has_metadata(entry->type))
        rc = get_metadata(c, entry, e);
    if (rc == 0 && entry->type == OCI_FILE) {
        rc = get(c, &entry->size, e);
        if (rc == 0)
            rc = get_extents(c, context, entry, e);
    }
    if (rc == 0 && (entry->type == OCI_CHARACTER_DEVICE || entry->type == OCI_BLOCK_DEVICE)) {
        rc = get_u32(c, &entry->device_major, e);
        if (rc == 0)
            rc = get_u32(c, &entry->device_minor, e);
    }
    return rc < 0 ? rc : oci_entry_check(entry, e);
}

/* Everything around the entries; *c is left at the first of them. */
static int open_index(struct cursor *c, size_t *count, struct err *e)
{
    if (c->left < MAGIC_LEN + 4 + DIGEST_SHA256_LEN)
        return err_set(e, ERR_CORRUPT, "%zu bytes are too few", c->left);
    const uint8_t *start = c->at;
    c->left -= DIGEST_SHA256_LEN;
    struct digest digest;
    digest_bytes(&digest, start, c->left);
    if (memcmp(digest.bytes, start + c->left, DIGEST_SHA256_LEN) != 0)
        return err_set(e, ERR_CORRUPT, "the bytes do not hash to the digest at their end");
    const uint8_t *magic;
    uint32_t version;
    int rc = cursor_bytes(c, &magic, MAGIC_LEN, e);
    if (rc == 0)
        rc = cursor_u32(c, &version, e);
    if (rc < 0)
        return rc;
    if (memcmp(magic, MAGIC, MAGIC_LEN) != 0 || version != VERSION)
        return err_set(e, ERR_CORRUPT, "not a layer index of version %d", VERSION);
    return get_count(c, count, ENTRY_MIN_LEN, e);
}

static int decode_entries(struct oci_layer *layer, struct cursor *c, struct err *e)
{
    size_t count;
    int rc = open_index(c, &count, e);
    struct context context = {0};
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct oci_entry entry = {0};
        rc = get_entry(c, &context, &entry, e);
        if (rc == 0)
            rc = oci_layer_add(layer, &entry, e);
        oci_entry_fini(&entry);
        if (rc < 0)
            return err_in(e, "entry %zu", i);
    }
    if (rc == 0 && c->left > 0)
        return err_set(e, ERR_CORRUPT, "%zu bytes follow the last entry", c->left);
    return rc;
}

int oci_layer_decode(struct oci_layer **out, const void *bytes, size_t len, struct err *e)
{
    AUTO_OCI_LAYER struct oci_layer *layer = mem_zalloc(sizeof(*layer));
    if (!layer)
        return err_nomem(e, "layer index");
    struct cursor c = {.at = bytes, .left = len};
    int rc = decode_entries(layer, &c, e);
    if (rc < 0)
        return err_in(e, "layer index");
    *out = MOVE(layer);
    return 0;
}
