/* SPDX-License-Identifier: MIT */
/* Image names: what is accepted, how it is understood, and how it prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "oci/oci.h"

#define HEX "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SHA256 "sha256:" HEX
#define SHA512 "sha512:" HEX HEX

static void test_accepted(void **state UNUSED)
{
    static const struct {
        const char *text;
        const char *host; /* NULL: a layout */
        const char *repository;
        const char *tag; /* NULL: none */
        const char *printed;
    } cases[] = {
        {"debian", "docker.io", "library/debian", "latest", "docker.io/library/debian:latest"},
        {"debian:12", "docker.io", "library/debian", "12", "docker.io/library/debian:12"},
        {"user/app", "docker.io", "user/app", "latest", "docker.io/user/app:latest"},
        {"docker.io/debian:12", "docker.io", "library/debian", "12", "docker.io/library/debian:12"},
        {"index.docker.io/a/b:1", "docker.io", "a/b", "1", "docker.io/a/b:1"},
        {"docker://ghcr.io/a/b/c:v1.0_x-y", "ghcr.io", "a/b/c", "v1.0_x-y",
         "ghcr.io/a/b/c:v1.0_x-y"},
        {"docker://debian", "docker.io", "library/debian", "latest",
         "docker.io/library/debian:latest"},
        {"registry-1.docker.io/library/debian", "docker.io", "library/debian", "latest",
         "docker.io/library/debian:latest"},
        {"docker.io/library/debian:12@" SHA256, "docker.io", "library/debian", "12",
         "docker.io/library/debian:12@" SHA256},
        {"host:80/a", "host:80", "a", "latest", "host:80/a:latest"},
        {"a.b.c.d/e/f/g/h/i:J.k_l-M", "a.b.c.d", "e/f/g/h/i", "J.k_l-M",
         "a.b.c.d/e/f/g/h/i:J.k_l-M"},
        {"0/1:2", "docker.io", "0/1", "2", "docker.io/0/1:2"},
        {"a_b", "docker.io", "library/a_b", "latest", "docker.io/library/a_b:latest"},
        {"r.io/x:" HEX HEX, "r.io", "x", HEX HEX, "r.io/x:" HEX HEX},
        {"r.io/x:_", "r.io", "x", "_", "r.io/x:_"},
        {"localhost/x", "localhost", "x", "latest", "localhost/x:latest"},
        {"localhost:5000/x", "localhost:5000", "x", "latest", "localhost:5000/x:latest"},
        {"127.0.0.1:5000/tb2/fix-git:20251031", "127.0.0.1:5000", "tb2/fix-git", "20251031",
         "127.0.0.1:5000/tb2/fix-git:20251031"},
        {"[::1]:5000/x:1", "[::1]:5000", "x", "1", "[::1]:5000/x:1"},
        {"Reg/x", "Reg", "x", "latest", "Reg/x:latest"},
        {"a.b/x__y/z-w.v", "a.b", "x__y/z-w.v", "latest", "a.b/x__y/z-w.v:latest"},
        {"a---b", "docker.io", "library/a---b", "latest", "docker.io/library/a---b:latest"},
        {"debian@" SHA256, "docker.io", "library/debian", NULL, "docker.io/library/debian@" SHA256},
        {"debian:12@" SHA256, "docker.io", "library/debian", "12",
         "docker.io/library/debian:12@" SHA256},
        {"r.io/x@" SHA512, "r.io", "x", NULL, "r.io/x@" SHA512},
        {"oci:/tmp/images", NULL, "/tmp/images", NULL, "oci:/tmp/images"},
        {"oci:rel/Dir:v1", NULL, "rel/Dir", "v1", "oci:rel/Dir:v1"},
        {"oci:/a@b/c:v1", NULL, "/a@b/c", "v1", "oci:/a@b/c:v1"},
        /* As skopeo has it: the first colon ends the path, names may look like image names. */
        {"oci:/a:b/c", NULL, "/a", "b/c", "oci:/a:b/c"},
        {"oci:d:ex.com/x:v1", NULL, "d", "ex.com/x:v1", "oci:d:ex.com/x:v1"},
        {"oci:d:@3", NULL, "d", NULL, "oci:d:@3"},
        {"oci:d@" SHA256, NULL, "d", NULL, "oci:d@" SHA256},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_ref ref;
        struct err e = ERR_INIT;

        if (oci_ref_parse(&ref, cases[i].text, &e) < 0)
            fail_msg("%s: %s", cases[i].text, e.text);
        assert_int_equal(ref.transport, cases[i].host ? OCI_REGISTRY : OCI_LAYOUT);
        if (cases[i].host)
            assert_string_equal(ref.host, cases[i].host);
        else
            assert_null(ref.host);
        assert_string_equal(ref.repository, cases[i].repository);
        if (cases[i].tag)
            assert_string_equal(ref.tag, cases[i].tag);
        else
            assert_null(ref.tag);
        AUTO_FREE char *printed = oci_ref_print(&ref);
        assert_string_equal(printed, cases[i].printed);
        oci_ref_fini(&ref);
    }
}

/* Names of images in archives: containers-transports(5). */
static void test_archives(void **state UNUSED)
{
    static const struct {
        const char *text;
        enum oci_transport transport;
        const char *path;
        const char *tag;
        const char *printed;
    } cases[] = {
        {"oci-archive:/x.tar", OCI_LAYOUT_ARCHIVE, "/x.tar", NULL, "oci-archive:/x.tar"},
        {"oci-archive:x.tar:v1", OCI_LAYOUT_ARCHIVE, "x.tar", "v1", "oci-archive:x.tar:v1"},
        {"oci-archive:x.tar:a/b:v1", OCI_LAYOUT_ARCHIVE, "x.tar", "a/b:v1",
         "oci-archive:x.tar:a/b:v1"},
        {"oci-archive:x@" SHA256, OCI_LAYOUT_ARCHIVE, "x", NULL, "oci-archive:x@" SHA256},
        {"docker-archive:x.tar", OCI_DOCKER_ARCHIVE, "x.tar", NULL, "docker-archive:x.tar"},
        {"docker-archive:x.tar:debian", OCI_DOCKER_ARCHIVE, "x.tar",
         "docker.io/library/debian:latest", "docker-archive:x.tar:docker.io/library/debian:latest"},
        {"docker-archive:x.tar:r.io:5000/a/b:v1", OCI_DOCKER_ARCHIVE, "x.tar", "r.io:5000/a/b:v1",
         "docker-archive:x.tar:r.io:5000/a/b:v1"},
        {"docker-archive:x.tar:@2", OCI_DOCKER_ARCHIVE, "x.tar", NULL, "docker-archive:x.tar:@2"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_ref ref;
        struct err e = ERR_INIT;

        if (oci_ref_parse(&ref, cases[i].text, &e) < 0)
            fail_msg("%s: %s", cases[i].text, e.text);
        assert_int_equal(ref.transport, cases[i].transport);
        assert_string_equal(ref.repository, cases[i].path);
        if (cases[i].tag)
            assert_string_equal(ref.tag, cases[i].tag);
        else
            assert_null(ref.tag);
        AUTO_FREE char *printed = oci_ref_print(&ref);
        assert_string_equal(printed, cases[i].printed);
        oci_ref_fini(&ref);
    }
}

static void test_refused(void **state UNUSED)
{
    static const char *const cases[] = {
        "",
        "docker://",
        "oci:",
        "oci::x",
        "oci:d:",
        "oci:d:a b",
        "oci:d:@",
        "oci:d:@x",
        "oci:d:@1234567",
        "oci-archive:",
        "docker-archive:",
        "docker-archive:f:",
        "docker-archive:f:A",
        "docker-archive:f:x@" SHA256,
        "docker-archive:f:oci:x",
        "Debian",
        "a/B",
        "debian:",
        "debian:-x",
        "debian:a/b:",
        "debian:a b",
        "a..b",
        "a___b",
        "-a",
        "a-",
        "a//b",
        "/a",
        "a/",
        "a.b/",
        "reg:port/x",
        "reg:123456/x",
        "re_g.io/x",
        "-reg.io/x",
        "reg..io/x",
        "[::1/x",
        "a@sha256:abc",
        "a@md5:d41d8cd98f00b204e9800998ecf8427e",
        "a@" SHA256 "0",
        "a/../b",
        "http://reg.io/x",
        "debian\n",
        "x:" HEX HEX "a",
        "r.io/" HEX HEX HEX HEX,
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_ref ref;
        struct err e = ERR_INIT;

        if (oci_ref_parse(&ref, cases[i], &e) == 0)
            fail_msg("\"%s\" was accepted", cases[i]);
        assert_int_equal(e.class, ERR_INPUT);
    }
}

/* A login that someone has put into a name does not come back in the message. */
static void test_login_is_masked(void **state UNUSED)
{
    static const char *const cases[] = {"https://me:hunter2@reg.io/x", "me:hunter2@reg.io/x",
                                        "oci:"};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_ref ref;
        struct err e = ERR_INIT;

        assert_int_equal(oci_ref_parse(&ref, cases[i], &e), -ERR_INPUT);
        assert_null(strstr(e.text, "hunter2"));
        assert_null(strstr(e.hint, "hunter2"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_login_is_masked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
