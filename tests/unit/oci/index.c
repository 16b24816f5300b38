/* SPDX-License-Identifier: MIT */
/* The layer index: what is written is read back, anything else is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tarball.h"

static const char *const sample =
    "D ./ mode=0750\n"
    "D usr mtime=-7\n"
    "F usr/a hello uid=4294967295 gid=70000 pax.mtime=1700000000.000000009\n"
    "F usr/b world pax.SCHILY.xattr.user.a=\\x00\\x01 pax.SCHILY.xattr.user.b=v mode=6755\n"
    "F usr/empty\n"
    "H usr/c usr/a\n"
    "S usr/link \\xff/..//target\n"
    "C dev/c 4095:1048575\n"
    "B dev/b 8:1\n"
    "P dev/p\n"
    "W usr/.wh.gone\n"
    "W usr/.wh..wh..opq\n"
    "W .wh..wh..opq";

static void make(struct test_layer *l, struct buf *bytes, const char *text)
{
    struct err e = ERR_INIT;
    buf_init(bytes, LIMIT_LAYER_INDEX);
    if (test_layer_read_text(l, text, &e) < 0 || oci_layer_encode(l->layer, bytes, &e) < 0)
        fail_msg("%s", e.text);
}

static void expect_equal_texts(const char *a, const char *b)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a)
        assert_string_equal(a, b);
}

static void expect_equal(const struct oci_entry *a, const struct oci_entry *b)
{
    assert_int_equal(a->type, b->type);
    expect_equal_texts(a->path, b->path);
    expect_equal_texts(a->target, b->target);
    assert_int_equal(a->mode, b->mode);
    assert_int_equal(a->uid, b->uid);
    assert_int_equal(a->gid, b->gid);
    assert_true(a->mtime_seconds == b->mtime_seconds);
    assert_int_equal(a->mtime_nanoseconds, b->mtime_nanoseconds);
    assert_true(a->size == b->size);
    assert_int_equal(a->device_major, b->device_major);
    assert_int_equal(a->device_minor, b->device_minor);
    assert_int_equal(a->xattr_count, b->xattr_count);
    for (size_t i = 0; i < a->xattr_count; i++) {
        assert_string_equal(a->xattrs[i].name, b->xattrs[i].name);
        assert_int_equal(a->xattrs[i].value_len, b->xattrs[i].value_len);
        assert_memory_equal(a->xattrs[i].value, b->xattrs[i].value, a->xattrs[i].value_len);
    }
    assert_int_equal(a->extent_count, b->extent_count);
    if (a->extent_count > 0)
        assert_memory_equal(a->extents, b->extents, a->extent_count * sizeof(*a->extents));
}

static void round_trip(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct test_layer l;
    struct buf bytes;
    make(&l, &bytes, sample);
    struct oci_layer *read = NULL;
    if (oci_layer_decode(&read, bytes.data, bytes.len, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(oci_layer_count(read), oci_layer_count(l.layer));
    for (size_t i = 0; i < oci_layer_count(read); i++)
        expect_equal(oci_layer_entry(l.layer, i), oci_layer_entry(read, i));
    struct buf again;
    buf_init(&again, LIMIT_LAYER_INDEX);
    assert_int_equal(oci_layer_encode(read, &again, &e), 0);
    assert_int_equal(again.len, bytes.len);
    assert_memory_equal(again.data, bytes.data, bytes.len);
    oci_layer_free(read);
    buf_fini(&again);
    buf_fini(&bytes);
    test_layer_fini(&l);
}

static void bytes_are_those_of_the_document(void **state)
{
    (void)state;
    /* The example of docs/formats/layer-index.md. */
    static const uint8_t want[] = {
        't', 'b', '2', 'l', 'a',  'y',  'e',  'r', 1,    0,    0,    0,    3,                /* */
        1,   0,   1,   'a', 0xed, 0x03, 0,    0,   0x80, 0xc4, 0x9f, 0xd5, 0x0c, 0,    0,    /* */
        0,   1,   2,   '/', 'f',  0xa4, 0x03, 0,   0,    0x80, 0xc4, 0x9f, 0xd5, 0x0c, 0, 0, /* */
        2,   1,   0,   2,   0,                                                               /* */
        7,   2,   1,   'x',
    };
    struct test_layer l;
    struct buf bytes;
    make(&l, &bytes, "D a\nF a/f hi\nW a/.wh.x");
    assert_int_equal(bytes.len, sizeof(want) + DIGEST_SHA256_LEN);
    assert_memory_equal(bytes.data, want, sizeof(want));
    struct digest digest;
    digest_bytes(&digest, want, sizeof(want));
    assert_memory_equal(bytes.data + sizeof(want), digest.bytes, DIGEST_SHA256_LEN);
    buf_fini(&bytes);
    test_layer_fini(&l);
}

/* Decodes bytes whose digest is made to fit. */
static int decode_signed(const uint8_t *bytes, size_t len, struct err *e)
{
    uint8_t *copy = mem_zalloc(len + DIGEST_SHA256_LEN);
    assert_non_null(copy);
    memcpy(copy, bytes, len);
    struct digest digest;
    digest_bytes(&digest, copy, len);
    memcpy(copy + len, digest.bytes, DIGEST_SHA256_LEN);
    struct oci_layer *layer = NULL;
    int rc = oci_layer_decode(&layer, copy, len + DIGEST_SHA256_LEN, e);
    oci_layer_free(layer);
    free(copy);
    return rc;
}

static void damage_is_found(void **state)
{
    (void)state;
    struct test_layer l;
    struct buf bytes;
    make(&l, &bytes, sample);
    for (size_t len = 0; len < bytes.len; len++) {
        struct err e = ERR_INIT;
        struct oci_layer *layer = NULL;
        assert_int_equal(oci_layer_decode(&layer, bytes.data, len, &e), -ERR_CORRUPT);
    }
    for (size_t i = 0; i < bytes.len; i++) {
        struct err e = ERR_INIT;
        struct oci_layer *layer = NULL;
        bytes.data[i] ^= 0x40;
        assert_int_equal(oci_layer_decode(&layer, bytes.data, bytes.len, &e), -ERR_CORRUPT);
        bytes.data[i] ^= 0x40;
    }
    buf_fini(&bytes);
    test_layer_fini(&l);
}

/* Any byte changed to any of a few values, with a digest that fits: never a crash, and what is
 * accepted is written again as the same bytes. */
static void hostile_bytes(void **state)
{
    (void)state;
    static const uint8_t values[] = {0, 1, 2, 8, 9, 0x2e, 0x2f, 0x7f, 0x80, 0xff};
    struct test_layer l;
    struct buf bytes;
    make(&l, &bytes, sample);
    size_t len = bytes.len - DIGEST_SHA256_LEN;
    for (size_t i = 0; i < len; i++) {
        uint8_t kept = bytes.data[i];
        for (size_t v = 0; v < sizeof(values); v++) {
            struct err e = ERR_INIT;
            bytes.data[i] = values[v];
            int rc = decode_signed(bytes.data, len, &e);
            assert_true(rc == 0 || rc == -ERR_CORRUPT);
        }
        bytes.data[i] = kept;
        struct err e = ERR_INIT;
        assert_true(decode_signed(bytes.data, i, &e) < 0);
    }
    buf_fini(&bytes);
    test_layer_fini(&l);
}

struct reject_case {
    const char *name;
    const char *bytes; /* the entries, after a count of one */
    size_t len;
};

#define REJECT(name, text)                                                                         \
    {                                                                                              \
        name, text, sizeof(text) - 1                                                               \
    }

static const struct reject_case rejects[] = {
    REJECT("unknown type", "\x09\x00\x01x"),
    REJECT("path climbs", "\x07\x00\x04../x"),
    REJECT("path is absolute", "\x07\x00\x02/x"),
    REJECT("path has an empty component", "\x07\x00\x04"
                                          "a//b"),
    REJECT("path ends in a slash", "\x07\x00\x02"
                                   "a/"),
    REJECT("path has a NUL", "\x07\x00\x03"
                             "a\0b"),
    REJECT("whiteout of the root", "\x07\x00\x00"),
    REJECT("shared beginning is too long", "\x07\x01\x01x"),
    REJECT("number is too long", "\x07\x80\x00\x01x"),
    REJECT("number does not fit", "\x07\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01x"),
    REJECT("length past the end", "\x07\x00\x7fx"),
    REJECT("hard link to the root", "\x03\x00\x01x\x00"),
    REJECT("hard link climbs", "\x03\x00\x01x\x02.."),
    REJECT("mode with type bits", "\x01\x00\x01x\x80\x80\x02\x00\x00\x00\x00\x00"),
    REJECT("nanoseconds", "\x01\x00\x01x\x00\x00\x00\x00\x80\x94\xeb\xdc\x03\x00"),
    REJECT("attributes out of order", "\x01\x00\x01x\x00\x00\x00\x00\x00\x02\x01"
                                      "b\x00\x01"
                                      "a\x00"),
    REJECT("extent of no bytes", "\x00\x00\x01x\x00\x00\x00\x00\x00\x00\x05\x01\x00\x00\x00"),
    REJECT("extent past the file", "\x00\x00\x01x\x00\x00\x00\x00\x00\x00\x05\x01\x04\x02\x00"),
    REJECT("more after the entry", "\x07\x00\x01xx"),
};

static void malformed_entries(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(rejects); i++) {
        struct buf bytes;
        buf_init(&bytes, 1 << 16);
        assert_int_equal(buf_add(&bytes, "tb2layer\1\0\0\0\1", 13, &e), 0);
        assert_int_equal(buf_add(&bytes, rejects[i].bytes, rejects[i].len, &e), 0);
        if (decode_signed(bytes.data, bytes.len, &e) != -ERR_CORRUPT)
            fail_msg("%s was not refused", rejects[i].name);
        buf_fini(&bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),        cmocka_unit_test(bytes_are_those_of_the_document),
        cmocka_unit_test(damage_is_found),   cmocka_unit_test(hostile_bytes),
        cmocka_unit_test(malformed_entries),
    };
    return cmocka_run_group_tests_name("oci index", tests, NULL, NULL);
}
