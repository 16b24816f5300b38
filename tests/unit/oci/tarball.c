/* SPDX-License-Identifier: MIT */
/* See tarball.h. Formats: POSIX.1-2017 pax, GNU tar manual (sparse formats, base-256 numbers). */
#include "tarball.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"

enum { BLOCK = 512, FIELDS = 16 };

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

static void add(struct buf *b, const void *bytes, size_t len)
{
    struct err e = ERR_INIT;
    must(buf_add(b, bytes, len, &e), &e);
}

static void pad(struct buf *b)
{
    static const uint8_t zeros[BLOCK];
    add(b, zeros, (BLOCK - b->len % BLOCK) % BLOCK);
}

static void number(uint8_t *field, size_t len, int64_t value)
{
    if (value >= 0 && (len > 11 || value < (int64_t)1 << (3 * (len - 1)))) {
        char text[32];
        snprintf(text, sizeof(text), "%0*llo", (int)len - 1, (unsigned long long)value);
        if (strlen(text) == len - 1) {
            memcpy(field, text, len);
            return;
        }
    }
    for (size_t i = len; i-- > 0; value >>= 8)
        field[i] = (uint8_t)(value & 0xff);
    field[0] |= 0x80;
}

static void sparse_fields(uint8_t *field, const struct tar_header *h, size_t first, size_t room)
{
    for (size_t i = 0; i < room && first + i < h->map_count; i++) {
        number(field + i * 24, 12, (int64_t)h->map[2 * (first + i)]);
        number(field + i * 24 + 12, 12, (int64_t)h->map[2 * (first + i) + 1]);
    }
}

void tar_header(struct buf *tar, const struct tar_header *h)
{
    uint8_t block[BLOCK] = {0};
    memcpy(block, h->name, strlen(h->name) < 100 ? strlen(h->name) : 100);
    number(block + 100, 8, h->mode);
    number(block + 108, 8, h->uid);
    number(block + 116, 8, h->gid);
    number(block + 124, 12, (int64_t)h->size);
    number(block + 136, 12, h->mtime);
    block[156] = (uint8_t)h->type;
    if (h->link)
        memcpy(block + 157, h->link, strlen(h->link) < 100 ? strlen(h->link) : 100);
    memcpy(block + 257, h->gnu ? "ustar  " : "ustar\00000", 8);
    number(block + 329, 8, h->major);
    number(block + 337, 8, h->minor);
    if (h->map) {
        sparse_fields(block + 386, h, 0, 4);
        block[482] = h->map_count > 4;
        number(block + 483, 12, (int64_t)h->real_size);
    }
    memset(block + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < BLOCK; i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum & 0777777);
    add(tar, block, BLOCK);
    for (size_t first = 4; first < h->map_count; first += 21) {
        uint8_t more[BLOCK] = {0};
        sparse_fields(more, h, first, 21);
        more[504] = h->map_count > first + 21;
        add(tar, more, BLOCK);
    }
}

void tar_content(struct buf *tar, const void *bytes, size_t len)
{
    add(tar, bytes, len);
    pad(tar);
}

void tar_record(struct buf *records, const char *key, const void *value, size_t value_len)
{
    size_t rest = strlen(key) + value_len + 3; /* space, '=', newline */
    size_t len = rest + 1;
    char text[32];
    while ((size_t)snprintf(text, sizeof(text), "%zu", len) + rest != len)
        len++;
    add(records, text, strlen(text));
    add(records, " ", 1);
    add(records, key, strlen(key));
    add(records, "=", 1);
    add(records, value, value_len);
    add(records, "\n", 1);
}

void tar_extended(struct buf *tar, char type, const struct buf *records)
{
    const struct tar_header h = {.name = "pax", .type = type, .mode = 0644, .size = records->len};
    tar_header(tar, &h);
    tar_content(tar, records->data, records->len);
}

/* ---- The text form ---- */

struct field {
    char *text; /* unescaped, NUL-terminated */
    size_t len;
};

/* Cuts a line into fields, in place. */
static size_t split(char *line, struct field *fields)
{
    size_t count = 0;
    while (*line != 0) {
        line += strspn(line, " ");
        if (*line == 0)
            break;
        assert_true(count < FIELDS);
        char *out = line;
        struct field *f = &fields[count++];
        f->text = line;
        while (*line != 0 && *line != ' ') {
            unsigned byte;
            if (line[0] == '\\' && line[1] == 'x' && sscanf(line + 2, "%2x", &byte) == 1) {
                *out++ = (char)byte;
                line += 4;
            } else {
                *out++ = *line++;
            }
        }
        f->len = (size_t)(out - f->text);
        if (*line == ' ')
            line++;
        *out = 0;
    }
    return count;
}

static bool option(struct tar_header *h, struct buf *records, const struct field *f)
{
    char *equals = strchr(f->text, '=');
    if (!equals)
        return false;
    char *value = equals + 1;
    if (strncmp(f->text, "mode=", 5) == 0) {
        h->mode = (uint32_t)strtoul(value, NULL, 8);
    } else if (strncmp(f->text, "uid=", 4) == 0) {
        h->uid = strtoll(value, NULL, 10);
    } else if (strncmp(f->text, "gid=", 4) == 0) {
        h->gid = strtoll(value, NULL, 10);
    } else if (strncmp(f->text, "mtime=", 6) == 0) {
        h->mtime = strtoll(value, NULL, 10);
    } else if (strncmp(f->text, "pax.", 4) == 0) {
        *equals = 0;
        tar_record(records, f->text + 4, value, f->len - (size_t)(value - f->text));
    } else {
        return false;
    }
    return true;
}

static char type_flag(char letter)
{
    static const char letters[] = "DFSHWPCB";
    static const char flags[] = "50210634";
    const char *at = strchr(letters, letter);
    if (!at)
        fail_msg("entry type %c", letter);
    return at ? flags[at - letters] : '0';
}

static void describe_line(struct buf *tar, char *line)
{
    struct field fields[FIELDS];
    size_t count = split(line, fields);
    if (count == 0)
        return;
    assert_true(count >= 2);
    char letter = fields[0].text[0];
    struct buf records;
    buf_init(&records, 1 << 20);
    struct tar_header h = {.name = fields[1].text,
                           .type = type_flag(letter),
                           .mtime = TAR_MTIME,
                           .mode = letter == 'D'   ? 0755
                                   : letter == 'S' ? 0777
                                                   : 0644};
    const struct field *content = NULL;
    for (size_t i = 2; i < count; i++)
        if (!option(&h, &records, &fields[i]))
            content = &fields[i];
    if (content && letter == 'F')
        h.size = content->len;
    else if (content && (letter == 'C' || letter == 'B'))
        assert_int_equal(sscanf(content->text, "%u:%u", &h.major, &h.minor), 2);
    else if (content)
        h.link = content->text;
    if (strlen(h.name) > 100)
        tar_record(&records, "path", h.name, strlen(h.name));
    if (h.link && strlen(h.link) > 100)
        tar_record(&records, "linkpath", h.link, strlen(h.link));
    if (records.len > 0)
        tar_extended(tar, 'x', &records);
    tar_header(tar, &h);
    if (h.size > 0 && content)
        tar_content(tar, content->text, content->len);
    buf_fini(&records);
}

void tar_describe(struct buf *tar, const char *text)
{
    while (*text != 0) {
        size_t len = strcspn(text, "\n");
        char *line = mem_strndup(text, len);
        assert_non_null(line);
        describe_line(tar, line);
        free(line);
        text += len + (text[len] == '\n');
    }
}

void tar_end(struct buf *tar)
{
    static const uint8_t zeros[2 * BLOCK];
    add(tar, zeros, sizeof(zeros));
}

/* ---- Compression ---- */

void gzip_member(struct buf *out, const void *bytes, size_t len)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&z, len) + 64;
    uint8_t *packed = mem_zalloc(room);
    uint8_t *copy = mem_dup(bytes, len);
    assert_non_null(packed);
    assert_non_null(copy);
    z.next_in = copy;
    z.avail_in = (uInt)len;
    z.next_out = packed;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    add(out, packed, room - z.avail_out);
    deflateEnd(&z);
    free(packed);
    free(copy);
}

void zstd_frame(struct buf *out, const void *bytes, size_t len, int window_log)
{
    ZSTD_CCtx *z = ZSTD_createCCtx();
    size_t room = ZSTD_compressBound(len);
    uint8_t *packed = mem_zalloc(room);
    assert_non_null(packed);
    ZSTD_inBuffer in = {bytes, len, 0};
    ZSTD_outBuffer o = {packed, room, 0};
    if (window_log > 0)
        assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, window_log)));
    /* Two calls, so that the size is not known and the window is written as asked. */
    ZSTD_compressStream2(z, &o, &in, ZSTD_e_flush);
    assert_int_equal(ZSTD_compressStream2(z, &o, &in, ZSTD_e_end), 0);
    add(out, packed, o.pos);
    free(packed);
    ZSTD_freeCCtx(z);
}

/* ---- Reading ---- */

static int begin_file(void *ctx, uint64_t size, struct err *e)
{
    struct test_layer *l = ctx;
    (void)e;
    assert_true(size > 0);
    l->file_size = size;
    l->data_len = 0;
    return 0;
}

static int take_data(void *ctx, uint64_t off, const void *data, size_t len, struct err *e)
{
    struct test_layer *l = ctx;
    assert_true(off + len <= l->file_size);
    struct oci_extent *last = l->extent_count > 0 ? &l->extents[l->extent_count - 1] : NULL;
    if (last && last->file_off + last->len == off) {
        last->len += len;
    } else {
        int rc =
            mem_grow(&l->extents, &l->extent_capacity, l->extent_count + 1, sizeof(*l->extents), e);
        if (rc < 0)
            return rc;
        l->extents[l->extent_count++] =
            (struct oci_extent){.file_off = off, .len = len, .region_off = l->data.len};
    }
    l->data_len += len;
    return buf_add(&l->data, data, len, e);
}

static int end_file(void *ctx, struct oci_extent **extents, size_t *count, struct err *e)
{
    struct test_layer *l = ctx;
    (void)e;
    *extents = l->extents;
    *count = l->extent_count;
    l->extents = NULL;
    l->extent_count = 0;
    l->extent_capacity = 0;
    return 0;
}

static int read_once(struct test_layer *out, const struct source *source,
                     const struct oci_layer_options *promised, bool threads, struct err *e)
{
    static const struct oci_data_ops ops = {begin_file, take_data, end_file};
    *out = (struct test_layer){0};
    buf_init(&out->data, (size_t)64 << 20);
    struct oci_layer_options options = *promised;
    options.ops = &ops;
    options.ctx = out;
    options.threads = threads;
    return oci_layer_read(&out->layer, source, &options, e);
}

/* With and without threads: the same layer, or the same error. */
int test_layer_read(struct test_layer *out, const struct buf *blob, const struct buf *plain,
                    const char *media_type, struct err *e)
{
    char *type = mem_strdup(media_type);
    assert_non_null(type);
    struct oci_layer_options options = {.blob = {.media_type = type, .size = blob->len}};
    digest_bytes(&options.blob.digest, buf_text(blob), blob->len);
    digest_bytes(&options.diff_id, buf_text(plain), plain->len);
    struct source source;
    int rc = source_from_memory(&source, buf_text(blob), blob->len, e);
    assert_int_equal(rc, 0);
    struct test_layer other;
    struct err other_e = ERR_INIT;
    int other_rc = read_once(&other, &source, &options, true, &other_e);
    rc = read_once(out, &source, &options, false, e);
    assert_int_equal(rc, other_rc);
    if (rc < 0) {
        assert_string_equal(e->text, other_e.text);
    } else {
        struct buf index[2];
        struct err ignored = ERR_INIT;
        buf_init(&index[0], LIMIT_LAYER_INDEX);
        buf_init(&index[1], LIMIT_LAYER_INDEX);
        assert_int_equal(oci_layer_encode(out->layer, &index[0], &ignored), 0);
        assert_int_equal(oci_layer_encode(other.layer, &index[1], &ignored), 0);
        assert_int_equal(index[0].len, index[1].len);
        assert_memory_equal(index[0].data, index[1].data, index[0].len);
        assert_int_equal(out->data.len, other.data.len);
        if (out->data.len > 0)
            assert_memory_equal(out->data.data, other.data.data, out->data.len);
        buf_fini(&index[0]);
        buf_fini(&index[1]);
    }
    test_layer_fini(&other);
    source_close(&source);
    free(type);
    return rc;
}

int test_layer_read_text(struct test_layer *out, const char *text, struct err *e)
{
    struct buf tar;
    buf_init(&tar, (size_t)64 << 20);
    tar_describe(&tar, text);
    tar_end(&tar);
    int rc = test_layer_read(out, &tar, &tar, "application/vnd.oci.image.layer.v1.tar", e);
    buf_fini(&tar);
    return rc;
}

void test_layer_fini(struct test_layer *l)
{
    oci_layer_free(l->layer);
    buf_fini(&l->data);
    free(l->extents);
    *l = (struct test_layer){0};
}

char *test_layer_content(const struct test_layer *l, const struct oci_entry *entry)
{
    char *content = mem_zalloc((size_t)entry->size + 1);
    assert_non_null(content);
    for (size_t i = 0; i < entry->extent_count; i++) {
        const struct oci_extent *x = &entry->extents[i];
        memcpy(content + x->file_off, l->data.data + x->region_off, (size_t)x->len);
    }
    return content;
}

const struct oci_entry *test_layer_find(const struct test_layer *l, const char *path)
{
    for (size_t i = 0; i < oci_layer_count(l->layer); i++)
        if (strcmp(oci_layer_entry(l->layer, i)->path, path) == 0)
            return oci_layer_entry(l->layer, i);
    fail_msg("no entry %s", path);
    return NULL;
}
