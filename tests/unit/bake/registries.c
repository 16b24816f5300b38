/* SPDX-License-Identifier: MIT */
/* registries.yaml: what it says, and where it is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "bake/image.h"
#include "base/file.h"
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

static int parse_conf(struct registry_network *out, const char *text, struct err *e)
{
    return registries_parse(out, "/etc/containers/registries.conf", text, strlen(text), e);
}

static void test_registries_conf(void **state UNUSED)
{
    struct registry_network n;
    struct err e = ERR_INIT;

    if (parse_conf(&n,
                   "unqualified-search-registries = ['docker.io']\n"
                   "[[registry]]\n"
                   "prefix = 'docker.io'\n"
                   "location = 'docker.io'\n"
                   "[[registry.mirror]]\n"
                   "location = 'cache.corp/hub'\n"
                   "[[registry.mirror]]\n"
                   "location = '10.0.0.1:5000'\n"
                   "insecure = true\n"
                   "pull-from-mirror = 'digest-only'\n"
                   "[[registry]]\n"
                   "location = 'lan:5000'\n"
                   "insecure = true\n"
                   "[[registry]]\n"
                   "prefix = 'old.corp/team'\n"
                   "location = 'new.corp/group'\n"
                   "[[registry]]\n"
                   "prefix = '*.bad.example'\n"
                   "blocked = true\n",
                   &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(n.host_count, 4);
    assert_string_equal(n.hosts[0].name, "docker.io");
    assert_int_equal(n.hosts[0].mirror_count, 2);
    assert_false(n.hosts[0].mirrors_only);
    assert_string_equal(n.hosts[0].mirrors[0].url, "https://cache.corp/hub");
    assert_string_equal(n.hosts[0].mirrors[1].url, "http://10.0.0.1:5000");
    assert_true(n.hosts[0].mirrors[1].digests_only);
    assert_string_equal(n.hosts[1].name, "lan:5000");
    assert_true(n.hosts[1].plain_http && n.hosts[1].mirror_count == 0);
    assert_string_equal(n.hosts[2].mirrors[0].url, "https://new.corp/group");
    assert_true(n.hosts[2].mirrors_only);
    assert_true(n.hosts[3].mirrors_only && n.hosts[3].mirror_count == 0);
    registry_network_fini(&n);
}

static void test_conf_errors(void **state UNUSED)
{
    static const struct {
        const char *text;
        const char *message;
    } rows[] = {
        {"[[registry]]\n", "registries.conf:1:3: the registry has neither prefix nor location"},
        {"[[registry]]\nlocation = 3\n", "registries.conf:2:12: this must be a text"},
        {"[[registry]]\nlocation = 'a'\n[[registry.mirror]]\n", "the mirror has no location"},
        {"[[registry]]\nlocation = 'a'\n[[registry.mirror]]\nlocation = 'a b'\n", "no address"},
        {"[registries.search]\nregistries = []\n", "version 1"},
        {"registry = 3\n", "this must be a list of tables"},
        {"[[registry]]\nlocation='a'\n[[registry.mirror]]\nlocation='b'\n"
         "pull-from-mirror='tag-only'\n",
         "tags alone"},
        {"= 3\n", "registries.conf:1:1"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct registry_network n;
        struct err e = ERR_INIT;

        assert_int_equal(parse_conf(&n, rows[i].text, &e), -ERR_INPUT);
        if (!strstr(e.text, rows[i].message))
            fail_msg("row %zu: %s", i, e.text);
        registry_network_fini(&n);
    }
}

static void put(const char *root, const char *name, const char *text)
{
    AUTO_FREE char *directory = mem_printf("%s/%s", root, name);
    AUTO_FREE char *path = mem_printf("%s/hosts.toml", directory);
    struct err e = ERR_INIT;

    assert_int_equal(file_make_dirs(AT_FDCWD, directory, &e), 0);
    if (text)
        assert_int_equal(file_put(AT_FDCWD, AT_FDCWD, path, text, strlen(text), &e), 0);
}

static const struct registry_host *find(const struct registry_network *n, const char *name)
{
    for (size_t i = 0; i < n->host_count; i++) {
        if (strcmp(n->hosts[i].name, name) == 0)
            return &n->hosts[i];
    }
    fail_msg("no %s", name);
    return NULL;
}

static void test_hosts_toml(void **state UNUSED)
{
    char root[] = "/tmp/tb2-hosts-XXXXXX";
    struct registry_network n;
    struct err e = ERR_INIT;

    assert_non_null(mkdtemp(root));
    put(root, "docker.io",
        "server = 'https://registry-1.docker.io'\n"
        "[host.'https://cache.corp']\n"
        "capabilities = ['pull', 'resolve']\n"
        "ca = 'cache.crt'\n"
        "[host.'https://art.corp/api/docker/hub/v2']\n"
        "capabilities = ['pull']\n"
        "override_path = true\n"
        "[host.'https://push.corp']\n"
        "capabilities = ['push']\n");
    put(root, "old.corp", "server = 'https://new.corp'\n");
    put(root, "_default", "[host.'http://10.0.0.1:5000']\n");
    put(root, "certificates.corp", NULL);
    if (registries_load(&n, root, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(n.host_count, 3);
    const struct registry_host *hub = find(&n, "docker.io");
    AUTO_FREE char *ca = mem_printf("%s/docker.io/cache.crt", root);
    assert_int_equal(hub->mirror_count, 2);
    assert_false(hub->mirrors_only);
    assert_string_equal(hub->mirrors[0].url, "https://cache.corp/v2");
    assert_string_equal(hub->mirrors[0].ca_file, ca);
    assert_false(hub->mirrors[0].digests_only);
    assert_string_equal(hub->mirrors[1].url, "https://art.corp/api/docker/hub/v2");
    assert_true(hub->mirrors[1].digests_only);
    const struct registry_host *old = find(&n, "old.corp");
    assert_string_equal(old->mirrors[0].url, "https://new.corp/v2");
    assert_true(old->mirrors_only);
    assert_string_equal(find(&n, "*")->mirrors[0].url, "http://10.0.0.1:5000/v2");
    registry_network_fini(&n);

    put(root, "docker.io", "host = 3\n");
    assert_int_equal(registries_load(&n, root, &e), -ERR_INPUT);
    assert_non_null(strstr(e.text, "docker.io/hosts.toml:1:8: this must be a table"));
    assert_int_equal(file_remove_tree(AT_FDCWD, root, &e), 0);
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
        cmocka_unit_test(test_all_keys),        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_registries_conf), cmocka_unit_test(test_conf_errors),
        cmocka_unit_test(test_hosts_toml),      cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
