/* SPDX-License-Identifier: MIT */
/* Tars that libarchive alone would misread, cut tars, and tars that arrive in odd pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "oci/internal.h"
#include "tarball.h"

#define TAR_TYPE "application/vnd.oci.image.layer.v1.tar"

static void start(struct buf *b)
{
    buf_init(b, (size_t)64 << 20);
}

static void append(struct buf *b, const void *bytes, size_t len)
{
    struct err e = ERR_INIT;
    assert_int_equal(buf_add(b, bytes, len, &e), 0);
}

static void append_zeros(struct buf *b, size_t len)
{
    static const uint8_t zeros[1024];
    append(b, zeros, len);
}

static void read_ok(struct test_layer *l, const struct buf *tar)
{
    struct err e = ERR_INIT;
    if (test_layer_read(l, tar, tar, TAR_TYPE, &e) < 0)
        fail_msg("%s", e.text);
}

static void refuse(const struct buf *tar, enum err_class class, const char *part)
{
    struct err e = ERR_INIT;
    struct test_layer l;
    int rc = test_layer_read(&l, tar, tar, TAR_TYPE, &e);
    if (rc != -(int)class || !strstr(e.text, part))
        fail_msg("%d, \"%s\" does not say \"%s\"", rc, e.text, part);
    test_layer_fini(&l);
}

static void expect_content(const struct test_layer *l, const char *path, const char *content)
{
    char *got = test_layer_content(l, test_layer_find(l, path));
    assert_string_equal(got, content);
    free(got);
}

static void expect_time(const struct test_layer *l, const char *path, int64_t seconds,
                        uint32_t nanoseconds)
{
    const struct oci_entry *entry = test_layer_find(l, path);
    assert_int_equal(entry->mtime_seconds, seconds);
    assert_int_equal(entry->mtime_nanoseconds, nanoseconds);
}

/* ---- PAX records ---- */

static void times_before_1970(void **state)
{
    (void)state;
    struct buf tar;
    start(&tar);
    tar_describe(&tar, "F half x pax.mtime=-0.5\nD least pax.mtime=-0.0000000019\n"
                       "S link t pax.mtime=-1.25\nF zero x pax.mtime=-0\nF whole x pax.mtime=-7\n"
                       "F dot x pax.mtime=3.\nF after x pax.mtime=0.5\nF plain x");
    tar_end(&tar);
    struct test_layer l;
    read_ok(&l, &tar);
    expect_time(&l, "half", -1, 500000000);
    expect_time(&l, "least", -1, 999999999);
    expect_time(&l, "link", -2, 750000000);
    expect_time(&l, "zero", 0, 0);
    expect_time(&l, "whole", -7, 0);
    expect_time(&l, "dot", 3, 0);
    expect_time(&l, "after", 0, 500000000);
    expect_time(&l, "plain", TAR_MTIME, 0);
    test_layer_fini(&l);
    buf_fini(&tar);
}

static void empty_values_fall_back(void **state)
{
    (void)state;
    struct buf tar;
    start(&tar);
    tar_describe(&tar, "F f data uid=5 gid=6 mtime=7 pax.uid= pax.gid= pax.mtime= pax.size= "
                       "pax.path= pax.uname= pax.ctime=\n"
                       "S s target pax.linkpath=\n"
                       "F twice x uid=5 mtime=8 pax.uid=9 pax.mtime=1.5 pax.uid= pax.mtime=\n"
                       "F last x uid=5 pax.uid= pax.uid=9\nF next y");
    tar_end(&tar);
    struct test_layer l;
    read_ok(&l, &tar);
    const struct oci_entry *f = test_layer_find(&l, "f");
    assert_int_equal(f->uid, 5);
    assert_int_equal(f->gid, 6);
    expect_time(&l, "f", 7, 0);
    expect_content(&l, "f", "data");
    assert_string_equal(test_layer_find(&l, "s")->target, "target");
    assert_int_equal(test_layer_find(&l, "twice")->uid, 5);
    expect_time(&l, "twice", 8, 0);
    assert_int_equal(test_layer_find(&l, "last")->uid, 9);
    expect_content(&l, "next", "y");
    test_layer_fini(&l);
    buf_fini(&tar);
}

static void global_records_are_ignored(void **state)
{
    (void)state;
    struct buf tar;
    struct buf records;
    start(&tar);
    start(&records);
    tar_record(&records, "comment", "0123456789abcdef", 16);
    tar_record(&records, "mtime", "5", 1);
    tar_record(&records, "uid", "77", 2);
    tar_extended(&tar, 'g', &records);
    tar_describe(&tar, "F f x\nF g y pax.uid=3");
    tar_end(&tar);
    struct test_layer l;
    read_ok(&l, &tar);
    assert_int_equal(oci_layer_count(l.layer), 2);
    assert_int_equal(test_layer_find(&l, "f")->uid, 0);
    expect_time(&l, "f", TAR_MTIME, 0);
    assert_int_equal(test_layer_find(&l, "g")->uid, 3);
    test_layer_fini(&l);
    buf_fini(&tar);
    buf_fini(&records);
}

static void malformed_values(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"F f x pax.uid=root", "the PAX record uid is malformed"},
        {"F f x pax.gid=-", "the PAX record gid is malformed"},
        {"F f x pax.size=-1", "the PAX record size is malformed"},
        {"F f x pax.size=1e9", "the PAX record size is malformed"},
        {"F f x pax.size=9999999999999999999", "the PAX record size is malformed"},
        {"F f x pax.mtime=now", "the PAX record mtime is malformed"},
        {"F f x pax.mtime=1,5", "the PAX record mtime is malformed"},
        {"F f x pax.mtime=1.-5", "the PAX record mtime is malformed"},
        {"F f x pax.mtime=99999999999999999999", "the PAX record mtime is malformed"},
        {"F f x pax.path=a\\x00b", "the PAX record path is malformed"},
        {"D d\nS s x pax.linkpath=a\\x00b",
         "after 1 entries: bad tar archive: the PAX record linkpath"},
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct buf tar;
        start(&tar);
        tar_describe(&tar, texts[i][0]);
        tar_end(&tar);
        refuse(&tar, ERR_CORRUPT, texts[i][1]);
        buf_fini(&tar);
    }
}

static void malformed_records(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "5 a=b\n", "7 a=b\n", "x",         "6a=b\n",  "3 \n",
        "6 abc\n", "6 =bc\n", "6 a=b\n\n", "0 a=b\n", "99999999999999999999 a=b\n",
        " 6 a=b\n"};
    for (size_t i = 0; i < 2 * ARRAY_LEN(texts); i++) {
        struct buf tar;
        struct buf records;
        start(&tar);
        start(&records);
        append(&records, texts[i / 2], strlen(texts[i / 2]));
        tar_extended(&tar, i % 2 ? 'g' : 'x', &records);
        tar_describe(&tar, "F f x");
        tar_end(&tar);
        refuse(&tar, ERR_CORRUPT, "a PAX record");
        buf_fini(&tar);
        buf_fini(&records);
    }
}

/* ---- Framing ---- */

/* A header of this type that states a size, perhaps its data, and a file behind it. */
static void sized(struct buf *tar, char type, bool pax, const char *data)
{
    if (pax) {
        struct buf records;
        start(&records);
        tar_record(&records, "mtime", "9", 1);
        tar_record(&records, "size", "700", 3);
        tar_extended(tar, 'x', &records);
        buf_fini(&records);
    }
    const struct tar_header h = {
        .name = "sized", .type = type, .link = "f", .mode = 0755, .size = pax ? 0 : 700};
    tar_header(tar, &h);
    if (data) {
        char bytes[700];
        memset(bytes, *data, sizeof(bytes));
        tar_content(tar, bytes, sizeof(bytes));
    }
}

static void sizes_without_data(void **state)
{
    (void)state;
    static const char types[] = "123456";
    for (size_t i = 0; i < 8 * strlen(types); i++) {
        bool at_end = (i & 1) != 0;
        bool pax = (i & 2) != 0;
        bool data = (i & 4) != 0;
        struct buf tar;
        start(&tar);
        tar_describe(&tar, "F f 1");
        sized(&tar, types[i / 8], pax, data ? "d" : NULL);
        if (!at_end)
            tar_describe(&tar, "F after 2");
        tar_end(&tar);
        struct test_layer l;
        if (data && types[i / 8] != '1') { /* no unpacker expects that */
            refuse(&tar, ERR_CORRUPT,
                   "entry sized: 700 bytes of data behind an entry that is no file");
            buf_fini(&tar);
            continue;
        }
        read_ok(&l, &tar);
        assert_int_equal(oci_layer_count(l.layer), at_end ? 2 : 3);
        assert_int_equal(test_layer_find(&l, "sized")->size, 0);
        if (!at_end)
            expect_content(&l, "after", "2");
        test_layer_fini(&l);
        buf_fini(&tar);
    }
}

static void lone_zero_block(void **state)
{
    (void)state;
    struct buf tar;
    start(&tar);
    tar_describe(&tar, "F a 1");
    append_zeros(&tar, 512);
    struct test_layer l;
    read_ok(&l, &tar);
    expect_content(&l, "a", "1");
    test_layer_fini(&l);
    tar_describe(&tar, "F b 2");
    refuse(&tar, ERR_CORRUPT,
           "after 1 entries: bad tar archive: data follow a lone block of zeros");
    tar_end(&tar);
    refuse(&tar, ERR_CORRUPT, "data follow a lone block of zeros");
    buf_fini(&tar);
}

static void extended_header_alone(void **state)
{
    (void)state;
    struct buf tar;
    struct buf records;
    start(&tar);
    start(&records);
    tar_record(&records, "path", "f", 1);
    tar_extended(&tar, 'x', &records);
    refuse(&tar, ERR_CORRUPT, "bad tar archive");
    tar_end(&tar);
    refuse(&tar, ERR_CORRUPT, "an extended header without its entry");
    buf_fini(&records);
    buf_drop(&tar, tar.len);
    const struct tar_header h = {.name = "pax", .type = 'x', .size = (1 << 20) + 1};
    tar_header(&tar, &h);
    refuse(&tar, ERR_LIMIT, "an extended tar header of more than");
    buf_fini(&tar);
}

static void headers_of_volumes_and_long_names(void **state)
{
    (void)state;
    struct buf tar;
    start(&tar);
    const struct tar_header volume = {.name = "label", .type = 'V', .gnu = true};
    tar_header(&tar, &volume);
    char name[300];
    memset(name, 'n', sizeof(name));
    name[150] = '/';
    name[299] = 0;
    const struct tar_header longer = {
        .name = "././@LongLink", .type = 'L', .size = 300, .gnu = true};
    tar_header(&tar, &longer);
    tar_content(&tar, name, sizeof(name));
    tar_describe(&tar, "F short 1\nF next 2");
    tar_end(&tar);
    struct test_layer l;
    read_ok(&l, &tar);
    assert_int_equal(oci_layer_count(l.layer), 2);
    expect_content(&l, name, "1");
    expect_content(&l, "next", "2");
    test_layer_fini(&l);
    buf_fini(&tar);
}

/* ---- Cut and in pieces ---- */

static void make_tar(struct buf *tar)
{
    static const uint64_t map[] = {0, 512, 2048, 4, 4096, 4, 8192, 4, 9000, 4, 9990, 4};
    const struct tar_header sparse = {.name = "sparse",
                                      .type = 'S',
                                      .size = 532,
                                      .gnu = true,
                                      .map = map,
                                      .map_count = 6,
                                      .real_size = 10000};
    char data[700];
    memset(data, 's', sizeof(data));
    start(tar);
    tar_describe(tar, "D d\nF d/a first uid=3000000 pax.mtime=-0.5 pax.uid=");
    tar_header(tar, &sparse);
    tar_content(tar, data, 532);
    tar_describe(tar, "H h d/a\nF empty\nF last 12345");
    sized(tar, '1', true, NULL);
    tar_describe(tar, "F end x");
}

/* Each way to cut it is refused, or gives the entries before the cut. */
static void cut_anywhere(void **state)
{
    (void)state;
    struct buf tar;
    make_tar(&tar);
    struct test_layer whole;
    read_ok(&whole, &tar);
    size_t last = 0;
    static const size_t steps[] = {1, 199, 311, 1}; /* to 1, 200, 511 and 512 of each block */
    size_t len = 0;
    for (size_t i = 0; len < tar.len; len += steps[i++ % 4]) {
        struct buf cut;
        start(&cut);
        append(&cut, tar.data, len);
        struct err e = ERR_INIT;
        struct test_layer l;
        int rc = test_layer_read(&l, &cut, &cut, TAR_TYPE, &e);
        assert_true(rc == 0 || rc == -ERR_CORRUPT);
        if (rc == 0) {
            size_t count = oci_layer_count(l.layer);
            assert_in_range(count, last, oci_layer_count(whole.layer));
            for (size_t k = 0; k < count; k++)
                assert_string_equal(oci_layer_entry(l.layer, k)->path,
                                    oci_layer_entry(whole.layer, k)->path);
            last = count;
        }
        test_layer_fini(&l);
        buf_fini(&cut);
    }
    /* The padding of the last file may lack. */
    assert_int_equal(last, oci_layer_count(whole.layer));
    test_layer_fini(&whole);
    buf_fini(&tar);
}

struct pieces {
    const struct buf *bytes;
    size_t len;
};

static int read_piece(void *self, uint64_t off, void *out, size_t len, size_t *got, struct err *e)
{
    const struct pieces *p = self;
    (void)e;
    size_t left = p->bytes->len - (size_t)off;
    *got = len < left ? len : left;
    *got = *got < p->len ? *got : p->len;
    memcpy(out, p->bytes->data + off, *got);
    return 0;
}

static void encode_in_pieces(const struct buf *tar, size_t len, struct buf *out)
{
    struct err e = ERR_INIT;
    struct pieces p = {.bytes = tar, .len = len};
    struct source source = {.read = read_piece, .self = &p, .size = tar->len};
    char type[] = TAR_TYPE;
    struct oci_layer_options options = {.blob = {.media_type = type, .size = tar->len}};
    digest_bytes(&options.blob.digest, tar->data, tar->len);
    options.diff_id = options.blob.digest;
    struct oci_layer *layer = NULL;
    if (oci_layer_read(&layer, &source, &options, &e) < 0)
        fail_msg("pieces of %zu: %s", len, e.text);
    assert_int_equal(oci_layer_encode(layer, out, &e), 0);
    oci_layer_free(layer);
}

static void in_pieces(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 7, 511, 512, 513, 700, 1024, 4097};
    struct buf tar;
    struct buf whole;
    make_tar(&tar);
    tar_end(&tar);
    start(&whole);
    encode_in_pieces(&tar, tar.len, &whole);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct buf got;
        start(&got);
        encode_in_pieces(&tar, lengths[i], &got);
        assert_int_equal(got.len, whole.len);
        assert_memory_equal(got.data, whole.data, whole.len);
        buf_fini(&got);
    }
    buf_fini(&whole);
    buf_fini(&tar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_before_1970),
        cmocka_unit_test(empty_values_fall_back),
        cmocka_unit_test(global_records_are_ignored),
        cmocka_unit_test(malformed_values),
        cmocka_unit_test(malformed_records),
        cmocka_unit_test(sizes_without_data),
        cmocka_unit_test(lone_zero_block),
        cmocka_unit_test(extended_header_alone),
        cmocka_unit_test(headers_of_volumes_and_long_names),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(in_pieces),
    };
    return cmocka_run_group_tests_name("oci tar", tests, NULL, NULL);
}
