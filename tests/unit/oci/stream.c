/* SPDX-License-Identifier: MIT */
/* A stream of many pieces, with and without threads: the same bytes, the same end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "oci/internal.h"
#include "tarball.h"

enum { PLAIN_LEN = 3 << 20, ENOUGH = 8 << 20 };

static char media_type[] = "application/vnd.oci.image.layer.v1.tar";

struct world {
    struct buf plain;
    struct buf blobs[3]; /* plain, gzip of two members, zstd */
};

static int make_world(void **state)
{
    struct world *w = mem_zalloc(sizeof(*w));
    struct err e = ERR_INIT;
    assert_non_null(w);
    buf_init(&w->plain, ENOUGH);
    for (uint32_t i = 0; w->plain.len < PLAIN_LEN; i++)
        assert_int_equal(buf_add_u32(&w->plain, i * i / 1000, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(w->blobs); i++)
        buf_init(&w->blobs[i], ENOUGH);
    assert_int_equal(buf_add(&w->blobs[0], w->plain.data, w->plain.len, &e), 0);
    gzip_member(&w->blobs[1], w->plain.data, 1000000);
    gzip_member(&w->blobs[1], w->plain.data + 1000000, w->plain.len - 1000000);
    zstd_frame(&w->blobs[2], w->plain.data, w->plain.len, 0);
    *state = w;
    return 0;
}

static int drop_world(void **state)
{
    struct world *w = *state;
    buf_fini(&w->plain);
    for (size_t i = 0; i < ARRAY_LEN(w->blobs); i++)
        buf_fini(&w->blobs[i]);
    free(w);
    return 0;
}

static struct oci_stream *open_stream(const struct buf *blob, struct source *source,
                                      struct oci_descriptor *descriptor, bool threads)
{
    struct err e = ERR_INIT;
    struct oci_stream *s = NULL;
    *descriptor = (struct oci_descriptor){.media_type = media_type, .size = blob->len};
    digest_bytes(&descriptor->digest, blob->data, blob->len);
    struct oci_stream_options options = {
        .blob = descriptor, .plain_algorithm = DIGEST_SHA256, .threads = threads};
    assert_int_equal(source_from_memory(source, blob->data, blob->len, &e), 0);
    assert_int_equal(oci_stream_new(&s, source, &options, &e), 0);
    return s;
}

static void all_bytes_in_order(void **state)
{
    struct world *w = *state;
    struct digest diff_id;
    digest_bytes(&diff_id, w->plain.data, w->plain.len);
    for (size_t i = 0; i < 2 * ARRAY_LEN(w->blobs); i++) {
        struct err e = ERR_INIT;
        struct source source;
        struct oci_descriptor d;
        struct oci_stream *s = open_stream(&w->blobs[i / 2], &source, &d, i % 2);
        const void *data;
        size_t len = 1;
        size_t off = 0;
        while (len > 0) {
            assert_int_equal(oci_stream_read(s, &data, &len, &e), 0);
            assert_true(len <= w->plain.len - off);
            assert_memory_equal(data, w->plain.data + off, len);
            off += len;
        }
        assert_int_equal(off, w->plain.len);
        assert_int_equal(oci_stream_check_blob(s, &e), 0);
        assert_int_equal(oci_stream_check_plain(s, &diff_id, &e), 0);
        oci_stream_free(s);
        source_close(&source);
    }
}

/* A caller who has seen enough: the blob is still checked to its end. */
static void given_up_at_any_time(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(w->blobs); i++) {
        for (size_t reads = 0; reads < 14; reads++) {
            struct err e = ERR_INIT;
            struct source source;
            struct oci_descriptor d;
            struct oci_stream *s = open_stream(&w->blobs[i / 2], &source, &d, i % 2);
            const void *data;
            size_t len = 1;
            for (size_t n = 0; n < reads && len > 0; n++)
                assert_int_equal(oci_stream_read(s, &data, &len, &e), 0);
            if (reads % 2)
                assert_int_equal(oci_stream_check_blob(s, &e), 0);
            oci_stream_free(s);
            source_close(&source);
        }
    }
}

/* Damage is met behind the bytes that stand before it, with the same words. */
static void damage_in_its_place(void **state)
{
    struct world *w = *state;
    struct err e[2] = {ERR_INIT, ERR_INIT};
    size_t off[2] = {0, 0};
    struct buf *blob = &w->blobs[1];
    blob->data[blob->len / 2] ^= 0x55;
    for (size_t threads = 0; threads < 2; threads++) {
        struct source source;
        struct oci_descriptor d;
        struct oci_stream *s = open_stream(blob, &source, &d, threads);
        const void *data;
        size_t len = 1;
        int rc = 0;
        while (rc == 0 && len > 0) {
            rc = oci_stream_read(s, &data, &len, &e[threads]);
            off[threads] += rc == 0 ? len : 0;
        }
        assert_int_equal(rc, -ERR_CORRUPT);
        struct err ignored = ERR_INIT;
        assert_int_equal(oci_stream_check_blob(s, &ignored), 0);
        oci_stream_free(s);
        source_close(&source);
    }
    blob->data[blob->len / 2] ^= 0x55;
    assert_true(off[0] > 0);
    assert_int_equal(off[0], off[1]);
    assert_string_equal(e[0].text, e[1].text);
}

static void every_allocation_may_fail(void **state)
{
    struct world *w = *state;
    struct oci_descriptor d = {.media_type = media_type, .size = w->blobs[1].len};
    struct oci_stream_options options = {
        .blob = &d, .plain_algorithm = DIGEST_SHA256, .threads = true};
    struct source source;
    struct err e = ERR_INIT;
    assert_int_equal(source_from_memory(&source, w->blobs[1].data, w->blobs[1].len, &e), 0);
    int rc = -1;
    for (unsigned long nth = 1; rc < 0; nth++) {
        struct oci_stream *s = NULL;
        mem_fail_nth(nth);
        rc = oci_stream_new(&s, &source, &options, &e);
        mem_fail_nth(0);
        assert_true(rc == -ERR_NOMEM || (rc == 0 && nth > 5));
        oci_stream_free(s);
    }
    source_close(&source);
}

/* Who asks to be told of a wide window is, before its memory is taken; of a narrow one nobody is. */
static void wide_windows_are_told_of(void **state)
{
    struct world *w = *state;
    static const struct {
        int log;
        bool wide;
    } cases[] = {{10, false}, {23, false}, {24, true}, {27, true}};
    for (size_t i = 0; i < ARRAY_LEN(cases) * 2; i++) {
        struct err e = ERR_INIT;
        struct buf blob;
        struct source source;
        struct oci_stream *s = NULL;
        const void *data;
        size_t len = 1;
        bool wide = false;
        buf_init(&blob, ENOUGH);
        zstd_frame(&blob, w->plain.data, 5000, 0); /* an ordinary frame comes first */
        zstd_frame(&blob, w->plain.data, 5000, cases[i / 2].log);
        struct oci_descriptor d = {.media_type = media_type, .size = blob.len};
        struct oci_stream_options o = {
            .blob = &d, .plain_algorithm = DIGEST_SHA256, .threads = i % 2, .wide = &wide};
        assert_int_equal(source_from_memory(&source, blob.data, blob.len, &e), 0);
        assert_int_equal(oci_stream_new(&s, &source, &o, &e), 0);
        int rc = 0;
        while (rc == 0 && len > 0)
            rc = oci_stream_read(s, &data, &len, &e);
        assert_int_equal(rc, cases[i / 2].wide ? -ERR_LIMIT : 0);
        assert_int_equal(wide, cases[i / 2].wide);
        oci_stream_free(s);
        source_close(&source);
        buf_fini(&blob);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_in_order),        cmocka_unit_test(wide_windows_are_told_of),
        cmocka_unit_test(given_up_at_any_time),      cmocka_unit_test(damage_in_its_place),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("oci stream", tests, make_world, drop_world);
}
