/* SPDX-License-Identifier: MIT */
/* Image layouts on disk: names, digests, blobs, and directories that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "oci/oci.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define HEX_C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
#define NAMED(hex, tag)                                                                            \
    "{\"digest\":\"sha256:" hex "\",\"size\":5,\"annotations\":{"                                  \
    "\"org.opencontainers.image.ref.name\":\"" tag "\"}}"

static char root[] = "/tmp/tb2-layout-XXXXXX";

static void put(const char *path, const char *text)
{
    struct err e = ERR_INIT;
    AUTO_FD int dir = -1;

    assert_int_equal(file_open_dir(&dir, AT_FDCWD, root, &e), 0);
    assert_int_equal(file_put(dir, dir, path, text, strlen(text), &e), 0);
}

static int setup(void **state UNUSED)
{
    struct err e = ERR_INIT;
    AUTO_FD int dir = -1;

    snprintf(root, sizeof(root), "/tmp/tb2-layout-XXXXXX");
    if (!mkdtemp(root) || file_open_dir(&dir, AT_FDCWD, root, &e) < 0 ||
        file_make_dirs(dir, "blobs/sha256", &e) < 0)
        return -1;
    put("oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}");
    return 0;
}

static int teardown(void **state UNUSED)
{
    struct err e = ERR_INIT;

    return file_remove_tree(AT_FDCWD, root, &e);
}

static int resolve(const char *suffix, struct oci_descriptor *out, struct err *e)
{
    AUTO_OCI_LAYOUT struct oci_layout *l = NULL;
    AUTO_FREE char *name = mem_printf("oci:%s%s", root, suffix);
    struct oci_ref ref;

    assert_int_equal(oci_ref_parse(&ref, name, e), 0);
    int rc = oci_layout_open(&l, ref.repository, e);
    if (rc == 0)
        rc = oci_layout_resolve(l, &ref, out, e);
    oci_ref_fini(&ref);
    return rc;
}

static void test_resolve(void **state UNUSED)
{
    static const struct {
        const char *suffix;
        int rc;
        char hex;
    } cases[] = {
        {":one", 0, 'a'},           {":two", 0, 'b'},           {":three", -ERR_NOTFOUND, 0},
        {"", -ERR_INPUT, 0},                                    /* two to choose from */
        {"@sha256:" HEX_B, 0, 'b'}, {"@sha256:" HEX_C, 0, 'c'}, /* not listed, but a blob */
        {":dup", -ERR_INPUT, 0},    {":same", 0, 'a'},
    };

    put("index.json",
        "{\"manifests\":[" NAMED(HEX_A, "one") "," NAMED(HEX_B, "two") "," NAMED(
            HEX_A, "dup") "," NAMED(HEX_B, "dup") "," NAMED(HEX_A, "same") "," NAMED(HEX_A,
                                                                                     "same") "]}");
    put("blobs/sha256/" HEX_C, "12345");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_descriptor d;
        struct err e = ERR_INIT;
        char hex[DIGEST_TEXT_MAX];
        int rc = resolve(cases[i].suffix, &d, &e);

        if (rc != cases[i].rc)
            fail_msg("%s: %d %s", cases[i].suffix, rc, e.text);
        if (rc < 0)
            continue;
        assert_int_equal(digest_hex(&d.digest, hex)[0], cases[i].hex);
        assert_int_equal(d.size, 5);
        oci_descriptor_fini(&d);
    }
}

static void test_only_one(void **state UNUSED)
{
    struct oci_descriptor d;
    struct err e = ERR_INIT;

    put("index.json", "{\"manifests\":[{\"digest\":\"sha256:" HEX_A "\",\"size\":5}]}");
    assert_int_equal(resolve("", &d, &e), 0);
    oci_descriptor_fini(&d);
}

static void test_blobs(void **state UNUSED)
{
    AUTO_OCI_LAYOUT struct oci_layout *l = NULL;
    struct oci_descriptor d = {.size = 5};
    struct source source = {0};
    struct err e = ERR_INIT;
    char data[5];

    put("index.json", "{\"manifests\":[]}");
    put("blobs/sha256/" HEX_A, "hello");
    assert_int_equal(oci_layout_open(&l, root, &e), 0);
    assert_int_equal(digest_parse(&d.digest, "sha256:" HEX_A, &e), 0);
    assert_int_equal(oci_layout_blob(l, &d, &source, &e), 0);
    assert_int_equal(source_read_full(&source, 0, data, sizeof(data), &e), 0);
    assert_memory_equal(data, "hello", 5);
    source_close(&source);

    d.size = 6;
    assert_int_equal(oci_layout_blob(l, &d, &source, &e), -ERR_CORRUPT);
    assert_int_equal(digest_parse(&d.digest, "sha256:" HEX_B, &e), 0);
    assert_int_equal(oci_layout_blob(l, &d, &source, &e), -ERR_NOTFOUND);

    AUTO_FREE char *fifo = mem_printf("%s/blobs/sha256/" HEX_C, root);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(digest_parse(&d.digest, "sha256:" HEX_C, &e), 0);
    assert_int_equal(oci_layout_blob(l, &d, &source, &e), -ERR_CORRUPT);
}

static void test_no_layout(void **state UNUSED)
{
    static const struct {
        const char *layout;
        const char *index;
        int rc;
    } cases[] = {
        {"{\"imageLayoutVersion\":\"2.0.0\"}", "{\"manifests\":[]}", -ERR_UNSUPPORTED},
        {"{}", "{\"manifests\":[]}", -ERR_CORRUPT},
        {"[]", "{\"manifests\":[]}", -ERR_CORRUPT},
        {"{\"imageLayoutVersion\":\"1.0.0\"}", "{\"manifests\":7}", -ERR_CORRUPT},
        {"{\"imageLayoutVersion\":\"1.0.0\"}", "[]", -ERR_CORRUPT},
        {"{\"imageLayoutVersion\":\"1.0.0\"}", "", -ERR_CORRUPT},
        {"{\"imageLayoutVersion\":\"1.0.0\"}", "{\"manifests\":[7]}", -ERR_CORRUPT},
        {"{\"imageLayoutVersion\":\"1.0.0\"}", "{\"manifests\":[{}]}", -ERR_CORRUPT},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_descriptor d;
        struct err e = ERR_INIT;

        put("oci-layout", cases[i].layout);
        put("index.json", cases[i].index);
        int rc = resolve(":x", &d, &e);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d %s", i, rc, e.text);
    }
    struct oci_layout *l = NULL;
    struct err e = ERR_INIT;
    assert_int_equal(oci_layout_open(&l, "/nonexistent/tb2", &e), -ERR_NOTFOUND);
    assert_int_equal(oci_layout_open(&l, "/", &e), -ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_resolve, setup, teardown),
        cmocka_unit_test_setup_teardown(test_only_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_blobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_layout, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
