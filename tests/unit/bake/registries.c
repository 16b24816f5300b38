/* SPDX-License-Identifier: MIT */
/* registries.yaml: what it says, and where it is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "bake/bake.h"
#include "base/mem.h"
#include "registry/registry.h"

static int parse(struct registry_network *out, const char *text, struct err *e)
{
    return registries_parse(out, "r.yaml", text, strlen(text), e);
}

static void test_all_keys(void **state UNUSED)
{
    struct registry_network n;
    struct err e = ERR_INIT;

    if (parse(&n,
              "ca: /etc/ca.pem\n"
              "connect_timeout: 5s\n"
              "stall_timeout: 20\n"
              "retry_wait: 250ms\n"
              "rate_wait: 1m\n"
              "tries: 7\n"
              "requests_per_minute: 120\n"
              "registries:\n"
              "  docker.io:\n"
              "    mirrors:\n"
              "      - https://cache.corp/hub\n"
              "      - {url: 'http://10.0.0.1:5000', timeout: 3s, digests_only: true, ca: x.pem}\n"
              "    origin: false\n"
              "  registry.lan:5000:\n"
              "    plain_http: true\n"
              "    ca: lan.pem\n",
              &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(n.ca_file, "/etc/ca.pem");
    assert_int_equal(n.connect_timeout_ms, 5000);
    assert_int_equal(n.stall_timeout_ms, 20000);
    assert_int_equal(n.retry_wait_ms, 250);
    assert_int_equal(n.rate_wait_ms, 60000);
    assert_int_equal(n.tries, 7);
    assert_int_equal(n.requests_per_minute, 120);
    assert_int_equal(n.host_count, 2);
    const struct registry_host *hub = &n.hosts[0];
    assert_string_equal(hub->name, "docker.io");
    assert_true(hub->mirrors_only && !hub->plain_http);
    assert_int_equal(hub->mirror_count, 2);
    assert_string_equal(hub->mirrors[0].url, "https://cache.corp/hub");
    assert_string_equal(hub->mirrors[1].url, "http://10.0.0.1:5000");
    assert_string_equal(hub->mirrors[1].ca_file, "x.pem");
    assert_int_equal(hub->mirrors[1].timeout_ms, 3000);
    assert_true(hub->mirrors[1].digests_only && !hub->mirrors[0].digests_only);
    const struct registry_host *lan = &n.hosts[1];
    assert_string_equal(lan->name, "registry.lan:5000");
    assert_true(lan->plain_http && !lan->mirrors_only);
    assert_string_equal(lan->ca_file, "lan.pem");
    registry_network_fini(&n);
}

static void test_errors(void **state UNUSED)
{
    static const struct {
        const char *text;
        const char *message;
    } rows[] = {
        {"- a\n", "r.yaml:1:1: registries.yaml must be a mapping"},
        {"tris: 3\n", "r.yaml:1:1: registries.yaml has no key 'tris'"},
        {"tries: 0\n", "r.yaml:1:8: tries must be a number from 1 to 100"},
        {"tries: many\n", "tries must be a number"},
        {"requests_per_minute: 99999999\n", "requests_per_minute must be a number"},
        {"retry_wait: soon\n", "retry_wait must be"},
        {"ca:\n", "ca has no value"},
        {"registries: 3\n", "registries must be a mapping"},
        {"registries:\n  https://docker.io: {}\n", "r.yaml:2:3: a registry is named as in images"},
        {"registries:\n  docker.io: []\n", "a registry must be a mapping"},
        {"registries:\n  docker.io: {mirors: []}\n", "a registry has no key 'mirors'"},
        {"registries:\n  docker.io: {origin: 3}\n", "origin must be true or false"},
        {"registries:\n  docker.io: {mirrors: x}\n", "mirrors must be a list"},
        {"registries:\n  docker.io: {mirrors: [cache.corp]}\n",
         "r.yaml:2:25: 'cache.corp' is no address of a mirror"},
        {"registries:\n  docker.io: {mirrors: [{timeout: 3}]}\n", "the mirror has no url"},
        {"registries:\n  docker.io: {mirrors: [{url: 'https://u:p@h'}]}\n", "no address"},
        {"registries:\n  docker.io: {mirrors: [{url: 'https://h', tries: 3}]}\n",
         "a mirror has no key 'tries'"},
        {"registries: {docker.io: {}, docker.io: {}}\n", "already in line 1"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct registry_network n;
        struct err e = ERR_INIT;

        assert_int_equal(parse(&n, rows[i].text, &e), -ERR_INPUT);
        if (!strstr(e.text, rows[i].message))
            fail_msg("row %zu: %s", i, e.text);
        registry_network_fini(&n);
    }
}

static void test_out_of_memory(void **state UNUSED)
{
    for (unsigned nth = 1; nth < 60; nth++) {
        struct registry_network n;
        struct err e = ERR_INIT;

        mem_fail_nth(nth);
        int rc =
            parse(&n, "ca: x\nregistries: {a: {mirrors: ['https://b', {url: 'https://c'}]}}\n", &e);
        mem_fail_nth(0);
        assert_true(rc == 0 || rc == -ERR_NOMEM);
        registry_network_fini(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_keys),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
