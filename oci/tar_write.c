/* SPDX-License-Identifier: MIT */
/*
 * Headers of a tar: ustar (POSIX.1-2001, pax, "ustar Interchange Format"), and PAX records before it for
 * what that has no room for. Nothing of it depends on the time or the machine.
 *
 * Sparse files are written out with their zeros: layers should hold no sparse entries (layer.md, "Sparse
 * files"), and compression leaves nothing of zeros.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

enum {
    NAME_ROOM = 100,
    NUMBER_ROOM = 12, /* of sizes and times, with the byte that ends them */
    OWNER_ROOM = 8,
    CHECKSUM_AT = 148,
};

#define XATTR_RECORD "SCHILY.xattr." /* what all known unpackers read */

static const char record_header_name[] = "PaxHeaders.0";

/* Where a header's fields are. */
static const struct {
    size_t name, mode, uid, gid, size, mtime, type, link, magic, major, minor;
} at = {0, 100, 108, 116, 124, 136, 156, 157, 257, 329, 337};

/* ---- Records ---- */

/* "LENGTH key=value\n", where LENGTH counts itself. */
static int add_record(struct buf *out, const char *key, const void *value, size_t len,
                      struct err *e)
{
    char digits[24];
    size_t rest = 1 + strlen(key) + 1 + len + 1;
    size_t total = rest;
    for (size_t before = 0; before != total;) {
        before = total;
        total = rest + (size_t)snprintf(digits, sizeof(digits), "%zu", before);
    }
    int rc = buf_printf(out, e, "%zu %s=", total, key);
    if (rc == 0)
        rc = buf_add(out, value, len, e);
    return rc < 0 ? rc : buf_add_text(out, "\n", e);
}

static int add_number(struct buf *out, const char *key, uint64_t value, struct err *e)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return add_record(out, key, text, strlen(text), e);
}

/* Seconds are rounded down, so that -0.5 s is -1 and 500,000,000 ns. */
static int add_time(struct buf *out, int64_t seconds, uint32_t nanoseconds, struct err *e)
{
    char text[48];
    bool negative = seconds < 0 && nanoseconds > 0;
    long long whole = negative ? -(long long)(seconds + 1) : (long long)seconds;
    unsigned fraction = negative ? 1000000000u - nanoseconds : nanoseconds;
    snprintf(text, sizeof(text), "%s%lld", negative ? "-" : "", whole);
    size_t len = strlen(text);
    if (nanoseconds > 0)
        snprintf(text + len, sizeof(text) - len, ".%09u", fraction);
    return add_record(out, "mtime", text, strlen(text), e);
}

static int add_xattrs(struct buf *out, const struct oci_entry *entry, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < entry->xattr_count; i++) {
        const struct oci_xattr *x = &entry->xattrs[i];
        AUTO_FREE char *key = mem_printf(XATTR_RECORD "%s", x->name);
        if (!key)
            return err_nomem(e, "attribute");
        if (strchr(x->name, '='))
            return err_set(e, ERR_UNSUPPORTED, "an attribute's name has a '='");
        rc = add_record(out, key, x->value, x->value_len, e);
    }
    return rc;
}

/* ---- Headers ---- */

/* Octal, ended by NUL; false where it has no room. */
static bool put_number(uint8_t *field, size_t room, uint64_t value)
{
    char text[32];
    int len = snprintf(text, sizeof(text), "%0*llo", (int)room - 1, (unsigned long long)value);
    if ((size_t)len >= room) {
        snprintf(text, sizeof(text), "%0*o", (int)room - 1, 0u);
        memcpy(field, text, room);
        return false;
    }
    memcpy(field, text, room);
    return true;
}

static bool put_text(uint8_t *field, const char *text)
{
    size_t len = strlen(text);
    memcpy(field, text, len < NAME_ROOM ? len : NAME_ROOM);
    return len <= NAME_ROOM;
}

static void seal(uint8_t header[OCI_TAR_BLOCK])
{
    unsigned sum = 0;
    memcpy(header + at.magic, "ustar\00000", 8);
    memset(header + CHECKSUM_AT, ' ', 8);
    for (size_t i = 0; i < OCI_TAR_BLOCK; i++)
        sum += header[i];
    char text[8];
    snprintf(text, sizeof(text), "%06o", sum);
    memcpy(header + CHECKSUM_AT, text, 7);
}

static int pad(struct buf *out, struct err *e)
{
    static const uint8_t zeros[OCI_TAR_BLOCK];
    size_t over = out->len % OCI_TAR_BLOCK;
    return over == 0 ? 0 : buf_add(out, zeros, OCI_TAR_BLOCK - over, e);
}

static int add_records(struct buf *out, const struct buf *records, struct err *e)
{
    uint8_t header[OCI_TAR_BLOCK] = {0};
    if (records->len == 0)
        return 0;
    put_text(header + at.name, record_header_name);
    put_number(header + at.mode, OWNER_ROOM, 0644);
    put_number(header + at.uid, OWNER_ROOM, 0);
    put_number(header + at.gid, OWNER_ROOM, 0);
    put_number(header + at.size, NUMBER_ROOM, records->len);
    put_number(header + at.mtime, NUMBER_ROOM, 0);
    header[at.type] = 'x';
    seal(header);
    int rc = buf_add(out, header, sizeof(header), e);
    if (rc == 0)
        rc = buf_add(out, records->data, records->len, e);
    return rc < 0 ? rc : pad(out, e);
}

static char type_flag(enum oci_entry_type type)
{
    switch (type) {
    case OCI_HARDLINK:
        return '1';
    case OCI_SYMLINK:
        return '2';
    case OCI_CHARACTER_DEVICE:
        return '3';
    case OCI_BLOCK_DEVICE:
        return '4';
    case OCI_DIRECTORY:
        return '5';
    case OCI_FIFO:
        return '6';
    case OCI_FILE:
    case OCI_WHITEOUT:
    case OCI_OPAQUE:
        break;
    }
    return '0';
}

/* The name as the tar spells it. */
static char *tar_name(const struct oci_entry *entry)
{
    size_t base = oci_path_base(entry->path);
    switch (entry->type) {
    case OCI_WHITEOUT:
        return mem_printf("%.*s" OCI_WHITEOUT_PREFIX "%s", (int)base, entry->path,
                          entry->path + base);
    case OCI_OPAQUE:
        return mem_printf("%s%s" OCI_OPAQUE_NAME, entry->path, *entry->path ? "/" : "");
    case OCI_DIRECTORY:
        return *entry->path ? mem_printf("%s/", entry->path) : mem_strdup("./");
    case OCI_FILE:
    case OCI_SYMLINK:
    case OCI_HARDLINK:
    case OCI_CHARACTER_DEVICE:
    case OCI_BLOCK_DEVICE:
    case OCI_FIFO:
        break;
    }
    return mem_strdup(entry->path);
}

/* What the fields have no room for becomes records. */
static int fill(uint8_t header[OCI_TAR_BLOCK], struct buf *records, const struct oci_entry *entry,
                const char *name, struct err *e)
{
    bool is_file = entry->type == OCI_FILE;
    bool has_time = entry->mtime_seconds >= 0 && entry->mtime_nanoseconds == 0;
    uint64_t seconds = entry->mtime_seconds > 0 ? (uint64_t)entry->mtime_seconds : 0;
    const char *target = entry->target ? entry->target : "";
    int rc = 0;
    put_number(header + at.mode, OWNER_ROOM, entry->mode & 07777);
    if (!put_text(header + at.name, name))
        rc = add_record(records, "path", name, strlen(name), e);
    if (rc == 0 && !put_text(header + at.link, target))
        rc = add_record(records, "linkpath", target, strlen(target), e);
    if (rc == 0 && !put_number(header + at.uid, OWNER_ROOM, entry->uid))
        rc = add_number(records, "uid", entry->uid, e);
    if (rc == 0 && !put_number(header + at.gid, OWNER_ROOM, entry->gid))
        rc = add_number(records, "gid", entry->gid, e);
    if (rc == 0 && !put_number(header + at.size, NUMBER_ROOM, is_file ? entry->size : 0))
        rc = add_number(records, "size", entry->size, e);
    has_time &= put_number(header + at.mtime, NUMBER_ROOM, seconds);
    if (rc == 0 && !has_time)
        rc = add_time(records, entry->mtime_seconds, entry->mtime_nanoseconds, e);
    header[at.type] = (uint8_t)type_flag(entry->type);
    bool fits = put_number(header + at.major, OWNER_ROOM, entry->device_major);
    fits &= put_number(header + at.minor, OWNER_ROOM, entry->device_minor);
    if (rc == 0 && !fits)
        rc = err_set(e, ERR_UNSUPPORTED, "its device numbers do not fit into a tar");
    return rc < 0 ? rc : add_xattrs(records, entry, e);
}

/* Names that mean something else in a layer (layer.md, "Whiteouts"). */
static int check_name(const struct oci_entry *entry, struct err *e)
{
    const char *base = entry->path + oci_path_base(entry->path);
    if (strncmp(base, OCI_WHITEOUT_PREFIX, strlen(OCI_WHITEOUT_PREFIX)) != 0)
        return 0;
    char quoted[OCI_QUOTE_MAX];
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: a name that begins with " OCI_WHITEOUT_PREFIX " is a removal in a layer",
                   oci_text_quote(entry->path, quoted));
}

int oci_tar_headers(struct buf *out, const struct oci_entry *entry, struct err *e)
{
    AUTO_BUF struct buf records;
    uint8_t header[OCI_TAR_BLOCK] = {0};
    buf_init(&records, 4 * LIMIT_PATH + 2 * LIMIT_XATTRS);
    int rc = check_name(entry, e);
    AUTO_FREE char *name = rc == 0 ? tar_name(entry) : NULL;
    if (rc == 0 && !name)
        rc = err_nomem(e, "entry");
    if (rc == 0) {
        rc = fill(header, &records, entry, name, e);
        if (rc < 0)
            err_in(e, "%s", name);
    }
    if (rc == 0)
        rc = add_records(out, &records, e);
    if (rc < 0)
        return rc;
    seal(header);
    return buf_add(out, header, sizeof(header), e);
}
