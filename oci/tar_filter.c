/* SPDX-License-Identifier: MIT */
/*
 * The framing of a tar, followed ahead of libarchive (docs/decisions/0007-tar-filter.md).
 *
 * libarchive 3.6 reads some well-formed tars wrongly without a word: it takes an empty PAX number
 * for 0, loses the sign of "-0.5", stops at a lone block of zeros, cuts a PAX name at a NUL byte,
 * and looks for the data of links that state a size but have none. So the bytes pass through here
 * first. All headers of one entry (PAX, GNU long names, the entry's own) are gathered, judged, and
 * where need be changed in place, never in length; they are handed on in one piece, followed by
 * the entry's data as it comes. What libarchive cannot express is kept as facts about the entry,
 * which the caller matches by the offset where the entry's first header starts. Two readers thus
 * have to agree on every header's place.
 *
 * What is not understood here (a wrong checksum, a cut header) is passed on: libarchive says what
 * is wrong with it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "oci/internal.h"

/* Bytes of one extended header and of all headers of an entry, as far as libarchive goes. */
enum { BLOCK = 512, MAX_EXTENDED = 1 << 20, MAX_GROUP = 4 << 20 };

/* Attributes without a value that one entry may have: each costs a look at all records before. */
enum { MAX_EMPTY = 1024 };

/* Fields of a header (POSIX.1-2017 pax, ustar Interchange Format; GNU tar manual). */
enum {
    FIELD_SIZE = 124,
    FIELD_CHECKSUM = 148,
    FIELD_TYPE = 156,
    FIELD_LINK = 157,
    FIELD_EXTENDED = 482,      /* of an old GNU sparse header: more map blocks follow */
    FIELD_MORE_EXTENDED = 504, /* of such a block: one more follows */
    LEN_SIZE = 12,
    LEN_CHECKSUM = 8,
};

struct oci_tar {
    struct oci_stream *stream;
    const uint8_t *input; /* of the stream, not yet taken */
    size_t input_len;
    struct buf group;   /* headers of one entry, perhaps one block more */
    size_t given;       /* bytes of the group that were handed out, to be dropped */
    uint64_t off;       /* bytes handed out */
    uint64_t body_left; /* of the entry in hand, with padding */
    uint64_t padding;   /* the last bytes of that, which may be missing at the tar's end */
    uint64_t skip_left; /* data of a hard link, which nobody gets */
    bool passing;       /* the rest is handed on as it is */
    bool global_seen;   /* the log has a line about global headers */
    size_t count;       /* entries handed out */
    struct oci_tar_facts facts;
};

/* PAX records that have a meaning here. An empty value means that there is no such record. */
enum key { PATH, LINKPATH, SIZE, UID, GID, MTIME, ATIME, CTIME, UNAME, GNAME, KEY_COUNT };

static const char *const key_names[KEY_COUNT] = {"path",  "linkpath", "size",  "uid",   "gid",
                                                 "mtime", "atime",    "ctime", "uname", "gname"};

struct record {
    uint8_t *key;
    size_t key_len;
    const uint8_t *value;
    size_t value_len;
};

/* What the extended headers of one entry say. */
struct extended {
    bool has_link;
    bool has_size;
    uint64_t size;
    bool has_mtime;
    int64_t mtime_seconds;
    uint32_t mtime_nanoseconds;
};

/* ---- PAX records ---- */

static int next_record(uint8_t **at, size_t *left, struct record *out, struct err *e)
{
    size_t len = 0;
    size_t i = 0;
    for (; i < *left && (*at)[i] >= '0' && (*at)[i] <= '9' && len <= MAX_EXTENDED; i++)
        len = len * 10 + (size_t)((*at)[i] - '0');
    if (i == 0 || i == *left || (*at)[i] != ' ' || len > *left || len < i + 4 ||
        (*at)[len - 1] != '\n')
        return err_set(e, ERR_CORRUPT, "bad tar archive: a PAX record is malformed");
    out->key = *at + i + 1;
    uint8_t *equals = memchr(out->key, '=', len - i - 2);
    if (!equals || equals == out->key)
        return err_set(e, ERR_CORRUPT, "bad tar archive: a PAX record has no key");
    out->key_len = (size_t)(equals - out->key);
    out->value = equals + 1;
    out->value_len = len - 1 - (size_t)(out->value - *at);
    *at += len;
    *left -= len;
    return 0;
}

static enum key find_key(const struct record *r)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strlen(key_names[i]) == r->key_len && memcmp(key_names[i], r->key, r->key_len) == 0)
            return (enum key)i;
    return KEY_COUNT;
}

static size_t count_digits(const uint8_t *at, size_t len)
{
    size_t i = 0;
    while (i < len && at[i] >= '0' && at[i] <= '9')
        i++;
    return i;
}

/* Decimal digits, at most 18 of them; -1 when there is anything else. */
static int64_t read_digits(const uint8_t *at, size_t len)
{
    if (len == 0 || len > 18 || count_digits(at, len) != len)
        return -1;
    int64_t value = 0;
    for (size_t i = 0; i < len; i++)
        value = value * 10 + (at[i] - '0');
    return value;
}

/* "-1.25" is one and a quarter second before 1970; the result counts up from the floor. */
static bool read_time(struct extended *x, const struct record *r)
{
    bool negative = r->value[0] == '-';
    const uint8_t *at = r->value + negative;
    size_t left = r->value_len - negative;
    size_t whole = count_digits(at, left);
    int64_t seconds = read_digits(at, whole);
    uint32_t nanoseconds = 0;
    if (seconds < 0 || (whole < left && at[whole] != '.'))
        return false;
    if (whole < left) {
        size_t digits = left - whole - 1;
        if (count_digits(at + whole + 1, digits) != digits)
            return false;
        for (size_t i = 0; i < 9; i++)
            nanoseconds = nanoseconds * 10 + (uint32_t)(i < digits ? at[whole + 1 + i] - '0' : 0);
    }
    x->has_mtime = true;
    x->mtime_seconds = negative ? -seconds - (nanoseconds > 0) : seconds;
    x->mtime_nanoseconds = negative && nanoseconds > 0 ? 1000000000 - nanoseconds : nanoseconds;
    return true;
}

/* Takes in one record with a value. */
static int read_record(struct extended *x, enum key key, const struct record *r, struct err *e)
{
    bool good = true;
    switch (key) {
    case PATH:
    case LINKPATH:
        good = !memchr(r->value, 0, r->value_len);
        x->has_link = x->has_link || key == LINKPATH;
        break;
    case SIZE: {
        int64_t size = read_digits(r->value, r->value_len);
        good = size >= 0;
        x->has_size = true;
        x->size = (uint64_t)size;
        break;
    }
    case UID:
    case GID: {
        size_t sign = r->value[0] == '-';
        good = read_digits(r->value + sign, r->value_len - sign) >= 0;
        break;
    }
    case MTIME:
        good = read_time(x, r);
        break;
    case ATIME:
    case CTIME:
    case UNAME:
    case GNAME:
    case KEY_COUNT:
        break;
    }
    if (!good)
        return err_set(e, ERR_CORRUPT, "bad tar archive: the PAX record %s is malformed",
                       key_names[key]);
    return 0;
}

/* Whether a record sets an attribute, in star's form, which Docker writes. */
static bool is_attribute(const struct record *r)
{
    static const char prefix[] = "SCHILY.xattr.";
    return r->key_len >= sizeof(prefix) - 1 && memcmp(r->key, prefix, sizeof(prefix) - 1) == 0;
}

/* Makes a record one that nobody knows. */
static void hide_record(const struct record *r)
{
    r->key[0] = '-';
}

/* Hides all records of the keys that are marked. */
static int hide_records(uint8_t *at, size_t left, const bool *hidden, struct err *e)
{
    struct record r;
    while (left > 0) {
        int rc = next_record(&at, &left, &r, e);
        if (rc < 0)
            return rc;
        enum key key = find_key(&r);
        if (key != KEY_COUNT && hidden[key])
            hide_record(&r);
    }
    return 0;
}

/* Hides the records before `end` with the key of an empty one. */
static int hide_attribute(uint8_t *at, const uint8_t *end, const struct record *empty,
                          struct err *e)
{
    struct record r;
    size_t left = (size_t)(end - at);
    while (left > 0) {
        int rc = next_record(&at, &left, &r, e);
        if (rc < 0)
            return rc;
        if (r.key_len == empty->key_len && memcmp(r.key, empty->key, r.key_len) == 0)
            hide_record(&r);
    }
    return 0;
}

/* An empty value takes the attribute away that an earlier record set (POSIX pax), which libarchive
 * does not know. */
static int hide_empty_attributes(uint8_t *bytes, size_t len, struct err *e)
{
    uint8_t *at = bytes;
    size_t left = len;
    size_t count = 0;
    struct record r;
    while (left > 0) {
        const uint8_t *start = at;
        int rc = next_record(&at, &left, &r, e);
        if (rc == 0 && r.value_len == 0 && is_attribute(&r)) {
            if (++count > MAX_EMPTY)
                return err_set(e, ERR_LIMIT, "more than %d extended attributes without a value",
                               MAX_EMPTY);
            rc = hide_attribute(bytes, start, &r, e);
            hide_record(&r);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Reads the records of one extended header; those whose last value is empty are hidden. */
static int read_records(struct extended *x, uint8_t *bytes, size_t len, struct err *e)
{
    bool empty[KEY_COUNT] = {false};
    bool any = false;
    uint8_t *at = bytes;
    size_t left = len;
    struct record r;
    while (left > 0) {
        int rc = next_record(&at, &left, &r, e);
        enum key key = rc == 0 ? find_key(&r) : KEY_COUNT;
        if (rc == 0 && key != KEY_COUNT && r.value_len > 0)
            rc = read_record(x, key, &r, e);
        if (rc < 0)
            return rc;
        if (key != KEY_COUNT) {
            empty[key] = r.value_len == 0;
            any = any || empty[key];
        }
    }
    x->has_link = x->has_link && !empty[LINKPATH];
    x->has_size = x->has_size && !empty[SIZE];
    x->has_mtime = x->has_mtime && !empty[MTIME];
    int rc = any ? hide_records(bytes, len, empty, e) : 0;
    return rc < 0 ? rc : hide_empty_attributes(bytes, len, e);
}

/* Global records count for nothing, as with Docker and containerd; the log says so. */
static int read_global(struct oci_tar *t, uint8_t *at, size_t left, struct err *e)
{
    struct record r;
    while (left > 0) {
        int rc = next_record(&at, &left, &r, e);
        if (rc < 0)
            return rc;
        enum key key = find_key(&r);
        if (key != KEY_COUNT && !t->global_seen) {
            log_event(LOG_WARN, "oci", "a global PAX header sets %s; it is ignored",
                      key_names[key]);
            t->global_seen = true;
        }
    }
    return 0;
}

/* ---- Headers ---- */

static bool is_zero(const uint8_t *block)
{
    return block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0;
}

/* Octal digits after spaces, as far as they go. */
static uint64_t read_octal(const uint8_t *field, size_t len)
{
    uint64_t value = 0;
    size_t i = 0;
    while (i < len && (field[i] == ' ' || field[i] == '\t'))
        i++;
    for (; i < len && field[i] >= '0' && field[i] <= '7'; i++)
        value = value * 8 + (uint64_t)(field[i] - '0');
    return value;
}

/* Sums of the header's bytes with the checksum as spaces; historic tars took them as signed. */
static void add_up(const uint8_t *header, uint64_t *plain, uint64_t *historic)
{
    int64_t with_sign = 0;
    *plain = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        bool own = i >= FIELD_CHECKSUM && i < FIELD_CHECKSUM + LEN_CHECKSUM;
        uint8_t byte = own ? ' ' : header[i];
        *plain += byte;
        with_sign += byte < 128 ? byte : byte - 256;
    }
    *historic = (uint64_t)with_sign;
}

static bool checksum_is_right(const uint8_t *header)
{
    uint64_t plain;
    uint64_t historic;
    add_up(header, &plain, &historic);
    uint64_t stated = read_octal(header + FIELD_CHECKSUM, LEN_CHECKSUM);
    return stated == plain || stated == historic;
}

/* False for sizes that are negative or beyond any file. */
static bool read_size(uint64_t *out, const uint8_t *header)
{
    const uint8_t *field = header + FIELD_SIZE;
    uint64_t value = 0;
    if ((field[0] & 0x80) == 0) {
        *out = read_octal(field, LEN_SIZE);
        return !memchr(field, '-', LEN_SIZE);
    }
    for (size_t i = 0; i < LEN_SIZE; i++) {
        if (value >> 54 != 0)
            return false;
        value = value << 8 | (i == 0 ? field[i] & 0x7f : field[i]);
    }
    *out = value;
    return value >> 62 == 0;
}

static void set_checksum(uint8_t *header)
{
    uint64_t sum;
    uint64_t ignored;
    add_up(header, &sum, &ignored);
    uint8_t *field = header + FIELD_CHECKSUM;
    for (size_t i = 6; i-- > 0; sum /= 8)
        field[i] = (uint8_t)('0' + sum % 8);
    field[6] = 0;
    field[7] = ' ';
}

static void clear_size(uint8_t *header)
{
    memset(header + FIELD_SIZE, '0', LEN_SIZE - 1);
    header[FIELD_SIZE + LEN_SIZE - 1] = 0;
    set_checksum(header);
}

/*
 * Writers in Go leave in the header what is ASCII of a name. When that is nothing, libarchive
 * forgets the kind of the link, and so the target that a PAX record gives.
 */
static void fill_link(uint8_t *header)
{
    bool is_link = header[FIELD_TYPE] == '1' || header[FIELD_TYPE] == '2';
    if (is_link && header[FIELD_LINK] == 0) {
        header[FIELD_LINK] = '-';
        header[FIELD_LINK + 1] = 0;
        set_checksum(header);
    }
}

/* Rounded up to whole blocks. */
static uint64_t padded(uint64_t size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* A header that is about the next one, and has its content right behind it. */
static bool is_about_next(uint8_t type)
{
    return type != 0 && strchr("xXgLKA", type) != NULL;
}

/* Links, devices, directories and fifos. */
static bool has_no_data(uint8_t type)
{
    return type >= '1' && type <= '6';
}

/* ---- Groups ---- */

/* Gathers until the group has `len` bytes, or all that there are. */
static int gather(struct oci_tar *t, size_t len, struct err *e)
{
    while (t->group.len < len) {
        if (t->input_len == 0) {
            const void *data;
            int rc = oci_stream_read(t->stream, &data, &t->input_len, e);
            if (rc < 0 || t->input_len == 0)
                return rc;
            t->input = data;
        }
        size_t part = len - t->group.len < t->input_len ? len - t->group.len : t->input_len;
        int rc = buf_add(&t->group, t->input, part, e);
        if (rc < 0)
            return rc;
        t->input += part;
        t->input_len -= part;
    }
    return 0;
}

/* From here on the bytes are handed on as they are. */
static int pass(struct oci_tar *t)
{
    t->passing = true;
    t->given = t->group.len;
    return 0;
}

/* Behind `at` bytes of headers; they are about nothing, unless `bound` to an entry. */
static int end_mark(struct oci_tar *t, size_t at, bool bound, struct err *e)
{
    if (bound)
        return err_set(e, ERR_CORRUPT, "bad tar archive: an extended header without its entry");
    buf_drop(&t->group, at);
    int rc = gather(t, 2 * BLOCK, e);
    if (rc < 0)
        return rc;
    if (t->group.len == 2 * BLOCK && !is_zero(t->group.data + BLOCK))
        return err_set(e, ERR_CORRUPT, "bad tar archive: data follow a lone block of zeros");
    return pass(t);
}

/* Where an extended header of the entry in hand is in the group; both are 0 before there is one. */
struct extended_place {
    size_t at;
    size_t end;
};

/*
 * Takes an extended header out of the group. Of several PAX headers before one entry the last one
 * counts, as with Docker and containerd; libarchive stumbles over them. A GNU long name of no bytes
 * is none.
 */
static void drop_extended(struct oci_tar *t, const struct extended_place *place)
{
    memmove(t->group.data + place->at, t->group.data + place->end, t->group.len - place->end);
    t->group.len -= place->end - place->at;
    t->group.data[t->group.len] = 0;
}

static bool is_empty_name(const struct oci_tar *t, const struct extended_place *place)
{
    const uint8_t *header = t->group.data + place->at;
    bool is_name = header[FIELD_TYPE] == 'L' || header[FIELD_TYPE] == 'K';
    return is_name && (place->end == place->at + BLOCK || header[BLOCK] == 0);
}

/* One header about the next, at `*at` of the group; moves `*at` behind it. *cut: it is not all there. */
static int take_extended(struct oci_tar *t, size_t *at, struct extended *x, bool *cut,
                         struct err *e)
{
    uint8_t type = t->group.data[*at + FIELD_TYPE];
    uint64_t size;
    if (!read_size(&size, t->group.data + *at) || size > MAX_EXTENDED)
        return err_set(e, ERR_LIMIT, "an extended tar header of more than %d bytes", MAX_EXTENDED);
    size_t body = *at + BLOCK;
    size_t end = body + (size_t)padded(size);
    int rc = gather(t, end, e);
    *cut = t->group.len < end;
    if (rc == 0 && !*cut && (type == 'x' || type == 'X'))
        rc = read_records(x, t->group.data + body, (size_t)size, e);
    if (rc == 0 && !*cut && type == 'g')
        rc = read_global(t, t->group.data + body, (size_t)size, e);
    *at = end;
    return rc;
}

/* Whether a header, or the end, stands where the data of the entry would. */
static int data_is_missing(struct oci_tar *t, size_t at, bool *out, struct err *e)
{
    int rc = gather(t, at + BLOCK, e);
    const uint8_t *next = t->group.data + at;
    *out = t->group.len < at + BLOCK || is_zero(next) || checksum_is_right(next);
    return rc;
}

/* Takes the size out of an entry that has no data, from all its headers. */
static int drop_size(struct oci_tar *t, size_t header, struct err *e)
{
    static const bool hidden[KEY_COUNT] = {[SIZE] = true};
    for (size_t at = 0; at < header;) {
        uint8_t *h = t->group.data + at;
        uint64_t size = 0;
        if (is_about_next(h[FIELD_TYPE]) && !read_size(&size, h))
            size = 0;
        if (h[FIELD_TYPE] == 'x' || h[FIELD_TYPE] == 'X') {
            int rc = hide_records(h + BLOCK, (size_t)size, hidden, e);
            if (rc < 0)
                return rc;
        }
        at += BLOCK + (size_t)padded(size);
    }
    clear_size(t->group.data + header);
    return 0;
}

/*
 * A size where no data should be: mostly there are none. A hard link may have its target's data
 * once more (POSIX pax, linkdata), which nobody needs; behind other entries they are refused by
 * whoever knows the entry's name.
 */
static int drop_unexpected(struct oci_tar *t, size_t header, size_t at, uint64_t size,
                           struct err *e)
{
    bool missing = false;
    int rc = data_is_missing(t, at, &missing, e);
    if (rc == 0)
        rc = drop_size(t, header, e);
    if (rc < 0)
        return rc;
    bool is_link = t->group.data[header + FIELD_TYPE] == '1';
    if (missing || is_link)
        t->facts.data = 0;
    if (!missing && is_link)
        t->skip_left = padded(size);
    return 0;
}

/* The entry's own header, at `at`: settles how many bytes of data follow. */
static int take_entry(struct oci_tar *t, size_t at, const struct extended *x, struct err *e)
{
    size_t header = at;
    uint8_t type = t->group.data[header + FIELD_TYPE];
    uint64_t size;
    if (!read_size(&size, t->group.data + header))
        return pass(t);
    if (x->has_size)
        size = x->size;
    bool more = type == 'S' && t->group.data[header + FIELD_EXTENDED] != 0;
    for (at += BLOCK; more; at += BLOCK) {
        int rc = gather(t, at + BLOCK, e);
        if (rc < 0)
            return rc;
        if (t->group.len < at + BLOCK)
            return pass(t);
        more = t->group.data[at + FIELD_MORE_EXTENDED] != 0;
    }
    if (x->has_link)
        fill_link(t->group.data + header);
    t->facts.type = (char)type;
    t->facts.data = size;
    if (has_no_data(type) && size > 0) {
        int rc = drop_unexpected(t, header, at, size, e);
        if (rc < 0)
            return rc;
        size = 0;
    }
    t->facts.has_mtime = x->has_mtime;
    t->facts.mtime_seconds = x->mtime_seconds;
    t->facts.mtime_nanoseconds = x->has_mtime ? x->mtime_nanoseconds : 0;
    t->body_left = padded(size);
    t->padding = padded(size) - size;
    t->given = at;
    t->count++;
    return 0;
}

static int take_group(struct oci_tar *t, struct err *e)
{
    t->facts = (struct oci_tar_facts){.off = t->off};
    struct extended x = {0};
    struct extended_place pax = {0};
    bool bound = false; /* a header is about the entry to come, not about the whole tar */
    for (size_t at = 0;;) {
        int rc = gather(t, at + BLOCK, e);
        if (rc < 0)
            return rc;
        if (t->group.len < at + BLOCK)
            return pass(t);
        const uint8_t *header = t->group.data + at;
        if (is_zero(header))
            return end_mark(t, at, bound, e);
        if (!checksum_is_right(header))
            return pass(t);
        if (header[FIELD_TYPE] == 'V') { /* a volume's label: a header and no more */
            at += BLOCK;
            continue;
        }
        if (!is_about_next(header[FIELD_TYPE]))
            return take_entry(t, at, &x, e);
        bool is_pax = header[FIELD_TYPE] == 'x' || header[FIELD_TYPE] == 'X';
        bound = bound || header[FIELD_TYPE] != 'g';
        if (is_pax && pax.end > 0) {
            drop_extended(t, &pax);
            at -= pax.end - pax.at;
            x = (struct extended){0};
        }
        struct extended_place place = {.at = at};
        bool cut = false;
        rc = take_extended(t, &at, &x, &cut, e);
        if (rc < 0 || cut)
            return rc < 0 ? rc : pass(t);
        place.end = at;
        if (is_pax)
            pax = place;
        if (is_empty_name(t, &place)) {
            drop_extended(t, &place);
            at = place.at;
        }
    }
}

/* Some writers leave out the padding of the very last file; others read that, libarchive not. */
static int give_padding(struct oci_tar *t, const void **data, size_t *len)
{
    static const uint8_t zeros[BLOCK];
    *data = zeros;
    *len = (size_t)t->body_left;
    t->body_left = 0;
    return 0;
}

/* Leaves out the data of a hard link. */
static int skip_data(struct oci_tar *t, struct err *e)
{
    while (t->skip_left > 0) {
        int rc = gather(t, 1, e);
        if (rc < 0)
            return rc;
        if (t->group.len == 0)
            return err_set(e, ERR_CORRUPT, "bad tar archive: it ends in the data of a hard link");
        size_t part = t->group.len < t->skip_left ? t->group.len : (size_t)t->skip_left;
        buf_drop(&t->group, part);
        t->skip_left -= part;
    }
    return 0;
}

/* Data of an entry, or anything behind the tar's end. */
static int give_body(struct oci_tar *t, const void **data, size_t *len, struct err *e)
{
    int rc = 0;
    bool from_group = t->group.len > 0;
    if (!from_group && t->input_len == 0) {
        const void *input;
        rc = oci_stream_read(t->stream, &input, &t->input_len, e);
        t->input = input;
    }
    if (rc < 0)
        return rc;
    size_t there = from_group ? t->group.len : t->input_len;
    if (!from_group && t->input_len == 0 && !t->passing && t->body_left <= t->padding)
        return give_padding(t, data, len);
    *data = from_group ? t->group.data : t->input;
    *len = !t->passing && there > t->body_left ? (size_t)t->body_left : there;
    if (!t->passing)
        t->body_left -= *len;
    if (from_group) {
        t->given = *len;
    } else {
        t->input += *len;
        t->input_len -= *len;
    }
    return 0;
}

int oci_tar_read(struct oci_tar *t, const void **data, size_t *len, struct err *e)
{
    buf_drop(&t->group, t->given);
    t->given = 0;
    int rc;
    if (t->passing || t->body_left > 0) {
        rc = give_body(t, data, len, e);
    } else {
        rc = skip_data(t, e);
        if (rc == 0)
            rc = take_group(t, e);
        *data = t->group.data;
        *len = t->given;
        if (rc < 0 && t->count > 0)
            return err_in(e, "after %zu entries", t->count);
    }
    if (rc == 0)
        t->off += *len;
    return rc;
}

const struct oci_tar_facts *oci_tar_facts(const struct oci_tar *t)
{
    return &t->facts;
}

int oci_tar_new(struct oci_tar **out, struct oci_stream *stream, struct err *e)
{
    struct oci_tar *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "tar filter");
    t->stream = stream;
    buf_init(&t->group, MAX_GROUP);
    *out = t;
    return 0;
}

void oci_tar_free(struct oci_tar *t)
{
    if (!t)
        return;
    buf_fini(&t->group);
    free(t);
}
