/* SPDX-License-Identifier: MIT */
/* Logins: which entry of config.json counts, and helpers that work, hang, fail or are missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "registry/internal.h"

/* base64 of me:pw, me:p:w:, hub:secret */
#define ME_PW "bWU6cHc="
#define ME_COLONS "bWU6cDp3Og=="
#define HUB_SECRET "aHViOnNlY3JldA=="

static char root[64];
static char logged[4096];

static void put(const char *name, const char *text, mode_t mode)
{
    struct err e = ERR_INIT;
    AUTO_FD int dir = -1;

    assert_int_equal(file_open_dir(&dir, AT_FDCWD, root, &e), 0);
    assert_int_equal(file_put(dir, dir, name, text, strlen(text), &e), 0);
    assert_int_equal(fchmodat(dir, name, mode, 0), 0);
}

static void on_log(void *ctx UNUSED, enum log_level level UNUSED, const char *module UNUSED,
                   const char *message)
{
    size_t len = strlen(logged);

    snprintf(logged + len, sizeof(logged) - len, "%s\n", message);
}

static int setup(void **state UNUSED)
{
    const char *path = getenv("PATH");

    snprintf(root, sizeof(root), "/tmp/tb2-login-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    AUTO_FREE char *longer = mem_printf("%s:%s", root, path ? path : "/usr/bin:/bin");
    setenv("PATH", longer, 1);
    put("docker-credential-good",
        "#!/bin/sh\nread server\ncase $server in\n"
        "https://index.docker.io/v1/) echo '{\"Username\":\"hub\",\"Secret\":\"h\"}';;\n"
        "reg.io) echo '{\"Username\":\"reg\",\"Secret\":\"r\"}';;\n"
        "token.io) echo '{\"Username\":\"<token>\",\"Secret\":\"t\"}';;\n"
        "*) echo 'credentials not found in native keychain'; exit 1;;\nesac\n",
        0755);
    put("docker-credential-hung", "#!/bin/sh\nexec sleep 60\n", 0755);
    put("docker-credential-broken", "#!/bin/sh\necho 'Secret: hunter2'; exit 3\n", 0755);
    put("docker-credential-garbled", "#!/bin/sh\necho '{hunter2'\n", 0755);
    log_set_sink(on_log, NULL, LOG_DEBUG);
    return 0;
}

static int teardown(void **state UNUSED)
{
    struct err e = ERR_INIT;

    log_set_sink(NULL, NULL, LOG_ERROR);
    return file_remove_tree(AT_FDCWD, root, &e);
}

static int find(struct credential *out, bool *found, const char *config, const char *host,
                const char *repository, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/config.json", root);
    struct credential_options options = {.config_path = path, .helper_timeout_ms = 10000};

    if (strstr(config, "hung"))
        options.helper_timeout_ms = 100;
    put("config.json", config, 0600);
    logged[0] = '\0';
    return credential_find(out, found, &options, host, repository, e);
}

static void test_lookup(void **state UNUSED)
{
    static const struct {
        const char *config;
        const char *host;
        const char *repository;
        const char *login; /* user:secret; NULL: none */
    } cases[] = {
        {"{}", "reg.io", "a/b", NULL},
        {"{\"auths\":{\"reg.io\":{\"auth\":\"" ME_PW "\"}}}", "reg.io", "a/b", "me:pw"},
        {"{\"auths\":{\"reg.io\":{\"auth\":\"" ME_COLONS "\"}}}", "reg.io", "a", "me:p:w:"},
        {"{\"auths\":{\"https://reg.io/v2/\":{\"auth\":\"" ME_PW "\"}}}", "reg.io", "a", "me:pw"},
        {"{\"auths\":{\"reg.io\":{\"username\":\"u\",\"password\":\"p\"}}}", "reg.io", "a", "u:p"},
        {"{\"auths\":{\"reg.io\":{\"identitytoken\":\"tok\",\"auth\":\"" ME_PW "\"}}}", "reg.io",
         "a", "<token>:tok"},
        /* ports and namespaces */
        {"{\"auths\":{\"reg\":{\"auth\":\"" ME_PW "\"}}}", "reg:5000", "a", NULL},
        {"{\"auths\":{\"reg:5000\":{\"auth\":\"" ME_PW "\"},\"reg\":{\"auth\":\"" HUB_SECRET
         "\"}}}",
         "reg:5000", "a", "me:pw"},
        {"{\"auths\":{\"reg\":{\"auth\":\"" HUB_SECRET "\"},\"reg/ns\":{\"auth\":\"" ME_PW "\"}}}",
         "reg", "ns/a", "me:pw"},
        {"{\"auths\":{\"reg\":{\"auth\":\"" HUB_SECRET "\"},\"reg/ns\":{\"auth\":\"" ME_PW "\"}}}",
         "reg", "nsx/a", "hub:secret"},
        /* docker.io by all its names, and only there */
        {"{\"auths\":{\"https://index.docker.io/v1/\":{\"auth\":\"" HUB_SECRET "\"}}}", "docker.io",
         "library/x", "hub:secret"},
        {"{\"auths\":{\"registry-1.docker.io\":{\"auth\":\"" HUB_SECRET "\"}}}", "docker.io",
         "library/x", "hub:secret"},
        {"{\"auths\":{\"https://index.docker.io/v1/\":{\"auth\":\"" HUB_SECRET "\"}}}", "mirror.io",
         "library/x", NULL},
        /* helper, store, inline, in this order */
        {"{\"auths\":{\"https://index.docker.io/v1/\":{}},\"credsStore\":\"good\"}", "docker.io",
         "library/x", "hub:h"},
        {"{\"auths\":{\"reg.io\":{\"auth\":\"" ME_PW "\"}},\"credHelpers\":{\"reg.io\":\"good\"}}",
         "reg.io", "a", "reg:r"},
        {"{\"credsStore\":\"good\",\"credHelpers\":{\"other.io\":\"broken\"}}", "reg.io", "a",
         "reg:r"},
        {"{\"auths\":{\"x.io\":{\"auth\":\"" ME_PW "\"}},\"credsStore\":\"good\"}", "x.io", "a",
         "me:pw"},
        {"{\"credsStore\":\"good\"}", "token.io", "a", "<token>:t"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct credential c = {0};
        bool found = false;
        struct err e = ERR_INIT;

        if (find(&c, &found, cases[i].config, cases[i].host, cases[i].repository, &e) < 0)
            fail_msg("%s: %s", cases[i].config, e.text);
        if (found != (cases[i].login != NULL))
            fail_msg("case %zu: %s", i, cases[i].config);
        if (!found)
            continue;
        AUTO_FREE char *login = mem_printf("%s:%s", c.user, c.secret);
        assert_string_equal(login, cases[i].login);
        assert_int_equal(c.identity_token, strcmp(c.user, "<token>") == 0);
        credential_fini(&c);
    }
}

/* A helper that fails is said and passed over; it never takes long, and its output stays secret. */
static void test_bad_helpers(void **state UNUSED)
{
    static const char *const names[] = {"hung", "broken", "garbled", "missing", "../evil", ""};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *config = mem_printf("{\"auths\":{\"reg.io\":{\"auth\":\"" ME_PW
                                            "\"}},\"credHelpers\":{\"reg.io\":\"%s\"}}",
                                            names[i]);
        struct credential c = {0};
        bool found = false;
        struct err e = ERR_INIT;

        assert_int_equal(find(&c, &found, config, "reg.io", "a", &e), 0);
        assert_true(found);
        assert_string_equal(c.secret, "pw");
        assert_non_null(strstr(logged, "no login for reg.io"));
        assert_null(strstr(logged, "hunter2"));
        credential_fini(&c);
    }
}

static void test_bad_config(void **state UNUSED)
{
    static const char *const cases[] = {
        "",
        "hunter2",
        "[]",
        "{\"auths\":7}",
        "{\"auths\":{\"reg.io\":{\"auth\":7}}}",
        "{\"auths\":{\"reg.io\":{\"auth\":\"hunter2!\"}}}",
        "{\"auths\":{\"reg.io\":{\"auth\":\"bm9jb2xvbg==\"}}}",
        "{\"auths\":{\"reg.io\":7}}",
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct credential c = {0};
        bool found = false;
        struct err e = ERR_INIT;

        if (find(&c, &found, cases[i], "reg.io", "a", &e) != -ERR_INPUT)
            fail_msg("\"%s\": %s", cases[i], e.text);
        assert_non_null(strstr(e.text, "config.json"));
        assert_null(strstr(e.text, "hunter2"));
        assert_false(found);
    }
}

/* A file below `home` with a login for reg.io; an empty user: with one for another registry. */
static void put_login(const char *home, const char *name, const char *user)
{
    AUTO_FREE char *path = mem_printf("%s/%s", home, name);
    AUTO_FREE char *directory = mem_strdup(path);
    AUTO_FREE char *text =
        mem_printf("{\"auths\":{\"%s\":{\"username\":\"%s\",\"password\":\"p\"}}}",
                   *user ? "reg.io" : "other.io", *user ? user : "u");
    struct err e = ERR_INIT;

    *strrchr(directory, '/') = '\0';
    assert_int_equal(file_make_dirs(AT_FDCWD, directory, &e), 0);
    assert_int_equal(file_put(AT_FDCWD, AT_FDCWD, path, text, strlen(text), &e), 0);
}

static void test_no_config(void **state UNUSED)
{
    struct credential_options options = {.config_path = "/nonexistent/config.json"};
    struct credential c = {0};
    bool found = true;
    struct err e = ERR_INIT;

    assert_int_equal(credential_find(&c, &found, &options, "reg.io", "a", &e), 0);
    assert_false(found);
    unsetenv("HOME");
    unsetenv("DOCKER_CONFIG");
    unsetenv("REGISTRY_AUTH_FILE");
    unsetenv("XDG_RUNTIME_DIR");
    options.config_path = NULL;
    found = true;
    assert_int_equal(credential_find(&c, &found, &options, "reg.io", "a", &e), 0);
    assert_false(found);
}

/* Podman's files, then docker's, unless a variable names one. */
static void test_files(void **state UNUSED)
{
    static const struct {
        const char *runtime; /* user of the login in each file; NULL: there is no such file */
        const char *podman;
        const char *docker;
        const char *variable; /* that names the fourth file, whose user is "named" */
        const char *user;     /* NULL: no login */
    } rows[] = {
        {"run", "pod", "dock", NULL, "run"},
        {NULL, "pod", "dock", NULL, "pod"},
        {NULL, NULL, "dock", NULL, "dock"},
        {NULL, NULL, NULL, NULL, NULL},
        {"", "", "dock", NULL, "dock"}, /* files without a login of this registry */
        {"run", "pod", "dock", "REGISTRY_AUTH_FILE", "named"},
        {"run", "pod", "dock", "DOCKER_CONFIG", "named"},
    };
    static const char *const names[] = {"run/containers/auth.json", ".config/containers/auth.json",
                                        ".docker/config.json"};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *const users[] = {rows[i].runtime, rows[i].podman, rows[i].docker};
        struct credential_options options = {.helper_timeout_ms = 1000};
        struct credential c = {0};
        bool found = false;
        struct err e = ERR_INIT;
        AUTO_FREE char *home = mem_printf("%s/home-%zu", root, i);
        AUTO_FREE char *run = mem_printf("%s/run", home);
        AUTO_FREE char *named = mem_printf("%s/config.json", home);

        for (size_t k = 0; k < ARRAY_LEN(names); k++) {
            if (users[k])
                put_login(home, names[k], users[k]);
        }
        put_login(home, "config.json", "named");
        setenv("HOME", home, 1);
        setenv("XDG_RUNTIME_DIR", run, 1);
        if (rows[i].variable)
            setenv(rows[i].variable, rows[i].variable[0] == 'R' ? named : home, 1);
        if (credential_find(&c, &found, &options, "reg.io", "a", &e) < 0)
            fail_msg("row %zu: %s", i, e.text);
        if (found != (rows[i].user != NULL) || (found && strcmp(c.user, rows[i].user) != 0))
            fail_msg("row %zu: %s", i, found ? c.user : "no login");
        credential_fini(&c);
        unsetenv("REGISTRY_AUTH_FILE");
        unsetenv("DOCKER_CONFIG");
        unsetenv("XDG_RUNTIME_DIR");
        unsetenv("HOME");
    }
}

static void test_basic(void **state UNUSED)
{
    static const char *const cases[][3] = {
        {"Aladdin", "open sesame", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}, /* RFC 7617 */
        {"a", "", "Basic YTo="},
        {"", "", "Basic Og=="},
        {"a", "\xc3\xa9", "Basic YTrDqQ=="},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct credential c = {.user = mem_strdup(cases[i][0]), .secret = mem_strdup(cases[i][1])};
        AUTO_FREE char *header = credential_basic(&c);

        assert_string_equal(header, cases[i][2]);
        credential_fini(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookup),     cmocka_unit_test(test_bad_helpers),
        cmocka_unit_test(test_bad_config), cmocka_unit_test(test_no_config),
        cmocka_unit_test(test_files),      cmocka_unit_test(test_basic),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
