/* SPDX-License-Identifier: MIT */
/*
 * Changes tars so that they stay tars: blind changes almost always break a checksum or the length
 * of a PAX record, and then a reader sees one entry at most. So an input is changed in one place,
 * by libFuzzer or with knowledge of headers, and then checksums and records are mostly set right.
 */
#include <string.h>

#include "fuzz.h"

enum { BLOCK = 512, SIZE_AT = 124, CHECKSUM_AT = 148, TYPE_AT = 156, RECORD_MAX = 256 };

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

static unsigned draw(unsigned *state, size_t below)
{
    *state = *state * 1664525 + 1013904223;
    return below > 0 ? (unsigned)((*state >> 8) % below) : 0;
}

static size_t octal(const uint8_t *at, size_t len)
{
    size_t value = 0;
    for (size_t i = 0; i < len; i++)
        if (at[i] >= '0' && at[i] <= '7')
            value = value * 8 + (size_t)(at[i] - '0');
    return value;
}

static void put_octal(uint8_t *at, size_t len, size_t value)
{
    for (size_t i = len - 1; i-- > 0; value /= 8)
        at[i] = (uint8_t)('0' + value % 8);
    at[len - 1] = 0;
}

static void set_checksum(uint8_t *header)
{
    size_t sum = 0;
    memset(header + CHECKSUM_AT, ' ', 8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += header[i];
    put_octal(header + CHECKSUM_AT, 7, sum);
}

static int is_empty(const uint8_t *block)
{
    return block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0;
}

static size_t blocks_of(const uint8_t *header)
{
    return (octal(header + SIZE_AT, 12) + BLOCK - 1) / BLOCK;
}

/* The block after a header and its content, or `count`. */
static size_t next_header(const uint8_t *tar, size_t at, size_t count)
{
    size_t body = is_empty(tar + at * BLOCK) ? 0 : blocks_of(tar + at * BLOCK);
    return body < count - at - 1 ? at + 1 + body : count;
}

/* Some header of the tar. */
static size_t pick_header(const uint8_t *tar, size_t count, unsigned *state)
{
    size_t at = 0;
    for (unsigned left = draw(state, 8); left > 0 && at < count; left--)
        at = next_header(tar, at, count);
    return at < count ? at : 0;
}

/* Writes the true length in front of each record of an extended header, where it has room. */
static void set_records(uint8_t *at, size_t len)
{
    while (len > 3) {
        uint8_t *end = memchr(at, '\n', len);
        size_t digits = 0;
        while (digits < len && at[digits] >= '0' && at[digits] <= '9')
            digits++;
        if (!end || digits == 0 || digits > 3)
            return;
        size_t record = (size_t)(end - at) + 1;
        for (size_t i = digits, left = record; i-- > 0; left /= 10)
            at[i] = (uint8_t)('0' + left % 10);
        at += record;
        len -= record;
    }
}

static void repair(uint8_t *tar, size_t count, unsigned *state)
{
    for (size_t at = 0; at < count; at = next_header(tar, at, count)) {
        uint8_t *header = tar + at * BLOCK;
        if (is_empty(header))
            continue;
        size_t size = octal(header + SIZE_AT, 12);
        if (header[TYPE_AT] == 'x' && size <= (count - at - 1) * BLOCK && draw(state, 16) > 0)
            set_records(header + BLOCK, size);
        if (draw(state, 64) > 0)
            set_checksum(header);
    }
}

/* Opens a gap of blocks; 0 when there is no room. */
static int make_gap(uint8_t *tar, size_t *size, size_t max, size_t at, size_t blocks)
{
    if (blocks * BLOCK > max - *size)
        return 0;
    memmove(tar + (at + blocks) * BLOCK, tar + at * BLOCK, *size - at * BLOCK);
    *size += blocks * BLOCK;
    return 1;
}

static void put_header(uint8_t *header, const char *name, uint8_t type, size_t size)
{
    memset(header, 0, BLOCK);
    memcpy(header, name, strlen(name));
    put_octal(header + 100, 8, 0644);
    put_octal(header + 108, 8, 0);
    put_octal(header + 116, 8, 0);
    put_octal(header + SIZE_AT, 12, size);
    put_octal(header + 136, 12, 1);
    header[TYPE_AT] = type;
    memcpy(header + 257, "ustar\00000", 8);
    set_checksum(header);
}

/* An extended header with one or two records that mean something. */
static size_t add_extended(uint8_t *tar, size_t size, size_t max, size_t at, unsigned *state)
{
    static const char *const records[] = {
        "path=a/b",
        "path=a/.wh.b",
        "path=a/../b",
        "path=",
        "linkpath=a",
        "linkpath=",
        "size=0",
        "size=1",
        "size=512",
        "size=",
        "size=99999999999",
        "uid=4294967295",
        "uid=-1",
        "uid=",
        "gid=4294967296",
        "mtime=-0.5",
        "mtime=1.9999999999",
        "mtime=",
        "SCHILY.xattr.user.a=b",
        "SCHILY.xattr.user.a=",
        "SCHILY.xattr.security.capability=\1\2\3\4",
        "LIBARCHIVE.xattr.user.a=YQ==",
        "SCHILY.acl.access=user::rw-,group::r--,other::r--",
        "GNU.sparse.major=1",
        "GNU.sparse.minor=0",
        "GNU.sparse.realsize=1024",
        "GNU.sparse.name=s",
        "GNU.sparse.size=2048",
        "GNU.sparse.numblocks=1",
        "GNU.sparse.offset=512",
        "GNU.sparse.numbytes=512",
        "GNU.sparse.map=0,1,512,1",
        "hdrcharset=BINARY",
        "SCHILY.devmajor=1",
        "SCHILY.dev=3",
        "SCHILY.realsize=3",
        "SUN.devminor=2",
        "LIBARCHIVE.creationtime=5",
        "comment=x",
    };
    char text[2 * RECORD_MAX];
    size_t len = 0;
    for (unsigned left = 1 + draw(state, 3); left > 0; left--) {
        const char *record = records[draw(state, sizeof(records) / sizeof(*records))];
        size_t whole = strlen(record) + 4 + (strlen(record) + 4 > 99);
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%02zu %s\n", whole, record);
    }
    if (!make_gap(tar, &size, max, at, 2))
        return size;
    put_header(tar + at * BLOCK, "x", draw(state, 16) == 0 ? 'g' : 'x', len);
    memset(tar + (at + 1) * BLOCK, 0, BLOCK);
    memcpy(tar + (at + 1) * BLOCK, text, len);
    return size;
}

static size_t add_entry(uint8_t *tar, size_t size, size_t max, size_t at, unsigned *state)
{
    static const char *const names[] = {"a",  "a/b",          "a/b/c",   "./",     "/",
                                        "..", "a/../b",       "a/.wh.b", ".wh.a",  "a/.wh..wh..opq",
                                        "b",  ".wh..wh.plnk", "a//b/",   ".wh...", ".wh."};
    static const uint8_t types[] = "0\00012345567SLKNVxg";
    static const char *const targets[] = {"a", "b", "a/b", "/a", "..", "../..", "/", ""};
    if (!make_gap(tar, &size, max, at, 1))
        return size;
    uint8_t *header = tar + at * BLOCK;
    put_header(header, names[draw(state, sizeof(names) / sizeof(*names))],
               types[draw(state, sizeof(types) - 1)], 0);
    const char *target = targets[draw(state, sizeof(targets) / sizeof(*targets))];
    memcpy(header + 157, target, strlen(target));
    set_checksum(header);
    return size;
}

/* Copies an entry to another place, or leaves it out. */
static size_t move_entry(uint8_t *tar, size_t size, size_t max, size_t at, unsigned *state)
{
    size_t count = size / BLOCK;
    size_t next = next_header(tar, at, count);
    size_t blocks = next - at;
    if (draw(state, 3) == 0) {
        memmove(tar + at * BLOCK, tar + next * BLOCK, size - next * BLOCK);
        return size - blocks * BLOCK;
    }
    size_t to = pick_header(tar, count, state);
    if (!make_gap(tar, &size, max, to, blocks))
        return size;
    size_t from = to <= at ? at + blocks : at;
    memmove(tar + to * BLOCK, tar + from * BLOCK, blocks * BLOCK);
    return size;
}

static void change_header(uint8_t *header, unsigned *state)
{
    static const uint8_t types[] = "0\0001234567SLKNVxgXMDA";
    static const size_t sizes[] = {0, 1, 511, 512, 513, 1024, 1 << 20};
    switch (draw(state, 4)) {
    case 0:
        header[TYPE_AT] = types[draw(state, sizeof(types) - 1)];
        break;
    case 1:
        put_octal(header + SIZE_AT, 12, sizes[draw(state, sizeof(sizes) / sizeof(*sizes))]);
        break;
    default:
        LLVMFuzzerMutate(header, BLOCK, BLOCK);
        break;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    unsigned state = seed;
    unsigned kind = draw(&state, 16);
    if (size < 1 + BLOCK || kind == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    uint8_t *tar = data + 1;
    size_t tar_size = size - 1;
    size_t at = pick_header(tar, tar_size / BLOCK, &state);
    uint8_t *header = tar + at * BLOCK;
    size_t body = tar_size - (at + 1) * BLOCK;
    if (kind < 6)
        change_header(header, &state);
    else if (kind < 9 && body > 0)
        LLVMFuzzerMutate(header + BLOCK, body < BLOCK ? body : BLOCK, body < BLOCK ? body : BLOCK);
    else if (kind < 11)
        tar_size = add_extended(tar, tar_size, max_size - 1, at, &state);
    else if (kind < 13)
        tar_size = add_entry(tar, tar_size, max_size - 1, at, &state);
    else if (kind < 15)
        tar_size = move_entry(tar, tar_size, max_size - 1, at, &state);
    else
        data[0] = (uint8_t)draw(&state, 256);
    repair(tar, tar_size / BLOCK, &state);
    return 1 + tar_size;
}
