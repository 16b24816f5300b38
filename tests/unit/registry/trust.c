/* SPDX-License-Identifier: MIT */
/* CA certificates: which files count for which host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "registry/internal.h"

static char root[64];

static void put(const char *path, const char *text)
{
    AUTO_FREE char *full = mem_printf("%s/%s", root, path);
    AUTO_FREE char *directory = mem_strdup(full);
    struct err e = ERR_INIT;

    *strrchr(directory, '/') = '\0';
    assert_int_equal(file_make_dirs(AT_FDCWD, directory, &e), 0);
    assert_int_equal(file_put(AT_FDCWD, AT_FDCWD, full, text, strlen(text), &e), 0);
}

static int setup(void **state UNUSED)
{
    snprintf(root, sizeof(root), "/tmp/tb2-trust-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    put("all.pem", "all");
    put("one.pem", "one\n");
    put("docker/reg.io/ca.crt", "docker");
    put("docker/reg.io/client.cert", "no CA");
    put("docker/reg.io:5000/ca.crt", "port");
    put("podman/reg.io/other.crt", "podman");
    return 0;
}

static int teardown(void **state UNUSED)
{
    struct err e = ERR_INIT;
    return file_remove_tree(AT_FDCWD, root, &e);
}

static void test_collect(void **state UNUSED)
{
    static const struct {
        const char *host;
        const char *port;
        const char *pem;
    } rows[] = {
        {"reg.io", "443", "all\none\n\ndocker\npodman\n"},
        {"reg.io", "5000", "all\nport\n"},
        {"REG.io", "443", "all\none\n\n"}, /* directories have the name as it is written */
        {"other.io", "443", "all\n"},
    };
    AUTO_FREE char *docker = mem_printf("%s/docker", root);
    AUTO_FREE char *podman = mem_printf("%s/podman", root);
    AUTO_FREE char *absent = mem_printf("%s/absent", root);
    AUTO_FREE char *all = mem_printf("%s/all.pem", root);
    AUTO_FREE char *one = mem_printf("%s/one.pem", root);
    const char *directories[] = {docker, absent, podman, NULL};
    struct http_ca ca = {"reg.io", one};
    struct http_options options = {
        .ca_file = all, .cas = &ca, .ca_count = 1, .certs_dirs = directories};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        AUTO_BUF struct buf pem;
        struct err e = ERR_INIT;

        buf_init(&pem, 4096);
        assert_int_equal(trust_collect(&pem, &options, rows[i].host, rows[i].port, &e), 0);
        assert_string_equal(buf_text(&pem), rows[i].pem);
    }
}

static void test_missing(void **state UNUSED)
{
    struct http_options options = {.ca_file = "/nonexistent/ca.pem"};
    AUTO_BUF struct buf pem;
    struct err e = ERR_INIT;

    buf_init(&pem, 4096);
    assert_int_equal(trust_collect(&pem, &options, "reg.io", "443", &e), -ERR_INPUT);
    assert_non_null(strstr(e.text, "/nonexistent/ca.pem"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collect),
        cmocka_unit_test(test_missing),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
