/* SPDX-License-Identifier: MIT */
/* Recipes: every key, every error, the shipped files, the canonical form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "manifests/internal.h"

static struct recipe *parse(const char *text, struct err *e)
{
    struct recipe *r = NULL;
    err_clear(e);
    int rc = recipe_parse(&r, "r.yaml", text, strlen(text), e);
    assert_true(rc == 0 || rc == -(int)e->class);
    assert_true((rc == 0) == (r != NULL));
    return r;
}

static char *canonical(const char *text)
{
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *r = parse(text, &e);
    if (!r)
        fail_msg("%s: %s", text, e.text);
    AUTO_JSON struct json *j = recipe_canonical(r);
    char *out = NULL;
    assert_int_equal(json_print(j, 0, &out, &e), 0);
    return out;
}

static void every_key(void **state)
{
    (void)state;
    static const char text[] = "# a comment\n"
                               "name: all.keys_1\n"
                               "network: none\n"
                               "pipefail: True\n"
                               "steps:\n"
                               "  - run: echo hi\n"
                               "  - run: [/bin/sh, -c, \"echo \\\"x\\\"\", '']\n"
                               "    user: 1000\n"
                               "    workdir: /app\n"
                               "    timeout: 2m\n"
                               "    env: {B: 2, A: true, C: \"\"}\n"
                               "  - env:\n"
                               "      P: a=b\n"
                               "  - workdir: /srv/x\n"
                               "  - user: www-data\n"
                               "  - run: |\n"
                               "      one\n"
                               "      two\n"
                               "    timeout: 1.5\n"
                               "start: exec my-server\n"
                               "ready:\n"
                               "  port: 8000\n"
                               "  interval: 0.25\n"
                               "  timeout: 1h\n"
                               "  try_timeout: 250ms\n";
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *r = parse(text, &e);
    if (!r)
        fail_msg("%s", e.text);
    assert_string_equal(r->name, "all.keys_1");
    assert_int_equal(r->network, RECIPE_NETWORK_NONE);
    assert_true(r->pipefail);
    assert_int_equal(r->step_count, 6);
    assert_string_equal(r->steps[0].text, "echo hi");
    assert_int_equal(r->steps[0].line, 6);
    assert_int_equal(r->steps[0].timeout_ms, 600000);
    const struct recipe_step *list = &r->steps[1];
    assert_null(list->text);
    assert_string_equal(list->argv[2], "echo \"x\"");
    assert_string_equal(list->argv[3], "");
    assert_null(list->argv[4]);
    assert_string_equal(list->user, "1000");
    assert_string_equal(list->workdir, "/app");
    assert_int_equal(list->timeout_ms, 120000);
    assert_int_equal(list->env_count, 3);
    assert_string_equal(list->env[0].name, "A");
    assert_string_equal(list->env[0].value, "true");
    assert_string_equal(list->env[2].value, "");
    assert_int_equal(r->steps[2].kind, RECIPE_ENV);
    assert_string_equal(r->steps[2].env[0].value, "a=b");
    assert_int_equal(r->steps[3].kind, RECIPE_WORKDIR);
    assert_string_equal(r->steps[3].text, "/srv/x");
    assert_int_equal(r->steps[4].kind, RECIPE_USER);
    assert_string_equal(r->steps[4].text, "www-data");
    assert_string_equal(r->steps[5].text, "one\ntwo\n");
    assert_int_equal(r->steps[5].timeout_ms, 1500);
    assert_string_equal(r->start, "exec my-server");
    assert_int_equal(r->ready.kind, RECIPE_READY_PORT);
    assert_int_equal(r->ready.port, 8000);
    assert_int_equal(r->ready.interval_ms, 250);
    assert_int_equal(r->ready.timeout_ms, 3600000);
    assert_int_equal(r->ready.try_timeout_ms, 250);
}

static void files_and_more(void **state)
{
    (void)state;
    static const char text[] = "name: x\n"
                               "network: tap\n"
                               "steps:\n"
                               "  - copy: {from: tree/, to: srv/}\n"
                               "  - copy:\n"
                               "      from: /etc/hosts\n"
                               "      to: /x\n"
                               "      owner: 1000:users\n"
                               "      mode: 0640\n"
                               "      exclude: ['*.o', a/b]\n"
                               "  - graft: {tarball: ../t.tar, at: /opt, mode: 755}\n"
                               "  - graft: {image: 'alpine:3', at: /, owner: root}\n"
                               "  - run: x\n"
                               "    network: none\n"
                               "    retries: 3\n"
                               "    backoff: 2\n"
                               "    secrets: [B, {name: A.b, env: VALUE}]\n"
                               "ready: {http: {port: 80, path: /up?x=1, status: 204}}\n";
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *r = NULL;
    assert_int_equal(recipe_parse(&r, "dir/r.yaml", text, strlen(text), &e), 0);
    assert_int_equal(r->network, RECIPE_NETWORK_TAP);
    const struct recipe_files *f = r->steps[0].files;
    assert_int_equal(r->steps[0].kind, RECIPE_COPY);
    assert_string_equal(f->path, "dir/tree/");
    assert_string_equal(f->to, "srv/");
    assert_null(f->owner);
    assert_false(f->has_mode);
    f = r->steps[1].files;
    assert_string_equal(f->path, "/etc/hosts");
    assert_string_equal(f->owner, "1000:users");
    assert_int_equal(f->mode, 0640);
    assert_string_equal(f->excludes[1], "a/b");
    f = r->steps[2].files;
    assert_int_equal(r->steps[2].kind, RECIPE_GRAFT);
    assert_int_equal(f->source, RECIPE_SOURCE_TARBALL);
    assert_string_equal(f->path, "dir/../t.tar");
    assert_int_equal(f->mode, 0755);
    f = r->steps[3].files;
    assert_int_equal(f->source, RECIPE_SOURCE_IMAGE);
    assert_string_equal(f->from, "alpine:3");
    assert_null(f->path);
    const struct recipe_step *run = &r->steps[4];
    assert_true(run->no_network);
    assert_int_equal(run->retries, 3);
    assert_int_equal(run->backoff_ms, 2000);
    assert_int_equal(run->secret_count, 2);
    assert_string_equal(run->secrets[0].name, "A.b");
    assert_string_equal(run->secrets[0].env, "VALUE");
    assert_null(run->secrets[1].env);
    assert_true(recipe_has_secrets(r));
    assert_int_equal(r->ready.kind, RECIPE_READY_HTTP);
    assert_int_equal(r->ready.port, 80);
    assert_string_equal(r->ready.http_path, "/up?x=1");
    assert_int_equal(r->ready.http_status, 204);
}

static void defaults(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *r = parse("name: x", &e);
    assert_non_null(r);
    assert_int_equal(r->network, RECIPE_NETWORK_USER);
    assert_false(r->pipefail);
    assert_int_equal(r->step_count, 0);
    assert_null(r->start);
    assert_int_equal(r->ready.kind, RECIPE_READY_NONE);
    AUTO_RECIPE struct recipe *ready = parse("name: x\nready: test -d /x", &e);
    assert_int_equal(ready->ready.kind, RECIPE_READY_COMMAND);
    assert_string_equal(ready->ready.command, "test -d /x");
    assert_int_equal(ready->ready.interval_ms, 500);
    assert_int_equal(ready->ready.timeout_ms, 60000);
    assert_int_equal(ready->ready.try_timeout_ms, 10000);
}

#define STEP "name: x\nsteps:\n  - "

struct refused {
    const char *text;
    const char *error;
};

static void expect_refused(const struct refused *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct err e = ERR_INIT;
        AUTO_RECIPE struct recipe *r = parse(rows[i].text, &e);
        assert_null(r);
        assert_string_equal(e.text, rows[i].error);
        assert_int_equal(e.class, ERR_INPUT);
    }
}

static void errors_of_files_and_more(void **state)
{
    (void)state;
    static const struct refused rows[] = {
        {"name: x\nready: {http: {path: /}}", "r.yaml:2:15: http needs a port"},
        {"name: x\nready: {http: {port: 1, path: x}}",
         "r.yaml:2:31: path must begin with '/', be shorter than 1024 and as in a URL"},
        {"name: x\nready: {http: {port: 1, path: \"/'\"}}",
         "r.yaml:2:31: path must begin with '/', be shorter than 1024 and as in a URL"},
        {"name: x\nready: {http: {port: 1, status: 99}}",
         "r.yaml:2:33: status must be a number from 100 to 599"},
        {STEP "run: x\n    network: user", "r.yaml:4:14: network of a step can only be none"},
        {STEP "run: x\n    retries: 11", "r.yaml:4:14: retries must be a number from 0 to 10"},
        {STEP "run: x\n    retries: -1", "r.yaml:4:14: retries must be a number from 0 to 10"},
        {STEP "run: x\n    secrets: A", "r.yaml:4:14: secrets must be a list"},
        {STEP "run: x\n    secrets: [A, A]", "r.yaml:4:18: secret A is there twice"},
        {STEP "run: x\n    secrets: [{name: A, env: V}, {name: B, env: V}]",
         "r.yaml:4:34: the variable V has secret A already"},
        {STEP "run: x\n    secrets: [a/b]",
         "r.yaml:4:15: a secret's name must be at most 64 letters, digits, '_', '-' and '.'"},
        {STEP "run: x\n    secrets: [{name: A, file: B}]",
         "r.yaml:4:15: a secret must be a name, or a mapping of name and perhaps env"},
        {STEP "run: x\n    secrets: [{name: A, env: B=C}]",
         "r.yaml:4:30: env of a secret must be the name of a variable"},
        {STEP "copy: x", "r.yaml:3:11: copy must be a mapping"},
        {STEP "copy: {from: x}", "r.yaml:3:11: copy must have from and to"},
        {STEP "copy: {from: x, to: /, mode: 888}",
         "r.yaml:3:34: mode must be three or four octal digits"},
        {STEP "copy: {from: x, to: /, mode: 77777}",
         "r.yaml:3:34: mode must be three or four octal digits"},
        {STEP "copy: {from: x, to: /, user: y}", "r.yaml:3:28: copy has no key 'user'"},
        {STEP "copy: {from: x, to: /, owner: y z}",
         "r.yaml:3:35: owner must be an account's name or number"},
        {STEP "graft: {at: /}",
         "r.yaml:3:12: graft must have at, and one of directory, tarball and image"},
        {STEP "graft: {image: a, tarball: b, at: /}",
         "r.yaml:3:32: a graft must have exactly one of directory, tarball and image"},
        {STEP "graft: {image: a, at: b}", "r.yaml:3:27: at must be an absolute path"},
        {STEP "graft: {image: a, at: /, exclude: [b]}",
         "r.yaml:3:39: exclude is for a graft of a directory"},
    };
    expect_refused(rows, ARRAY_LEN(rows));
}

static void errors(void **state)
{
    (void)state;
    static const struct refused rows[] = {
        {"", "r.yaml: the file is empty"},
        {"# only a comment\n", "r.yaml: the file is empty"},
        {"- a\n", "r.yaml:1:1: a recipe must be a mapping"},
        {"text", "r.yaml:1:1: a recipe must be a mapping"},
        {"network: none", "r.yaml:1:1: a recipe needs a name"},
        {"name: x\ncolour: red", "r.yaml:2:1: a recipe has no key 'colour'"},
        {"name: x\n\"a\\nb\": red", "r.yaml:2:1: a recipe has no key 'a?b'"},
        {"name: x\n1: 2", "r.yaml:2:1: a recipe has no key '1'"},
        {"name: x\nname: y", "r.yaml:2:1: the key 'name' is already in line 1"},
        {"name: x\n\"name\": y", "r.yaml:2:1: the key 'name' is already in line 1"},
        {"name: X",
         "r.yaml:1:7: name must be at most 64 of the characters a-z, 0-9, '.', '_' and '-'"},
        {"name:", "r.yaml:1:6: name has no value"},
        {"name: ~", "r.yaml:1:7: name has no value"},
        {"name: null", "r.yaml:1:7: name has no value"},
        {"name: ''", "r.yaml:1:7: name is empty"},
        {"name: [x]", "r.yaml:1:7: name must be text, not a list"},
        {"name: {x: y}", "r.yaml:1:7: name must be text, not a mapping"},
        {"name: x\nnetwork: host", "r.yaml:2:10: network must be none, user or tap"},
        {"name: x\npipefail: yes", "r.yaml:2:11: pipefail must be true or false"},
        {"name: x\npipefail: on", "r.yaml:2:11: pipefail must be true or false"},
        {"name: x\npipefail: \"true\"", "r.yaml:2:11: pipefail must be true or false"},
        {"name: x\npipefail: 1", "r.yaml:2:11: pipefail must be true or false"},
        {"name: x\nsteps: echo", "r.yaml:2:8: steps must be a list"},
        {"name: x\nsteps:", "r.yaml:2:7: steps must be a list"},
        {STEP "echo", "r.yaml:3:5: a step without run must be a mapping"},
        {STEP "{}", "r.yaml:3:5: a step without run must have exactly one of env, workdir, user, "
                    "copy and graft"},
        {STEP "{user: a, workdir: /b}", "r.yaml:3:5: a step without run must have exactly one of "
                                        "env, workdir, user, copy and graft"},
        {STEP "timeout: 3", "r.yaml:3:5: a step without run has no key 'timeout'"},
        {STEP "Run: x", "r.yaml:3:5: a step without run has no key 'Run'"},
        {STEP "run: x\n    shell: y", "r.yaml:4:5: a run step has no key 'shell'"},
        {STEP "run:", "r.yaml:3:9: run has no value"},
        {STEP "run: ''", "r.yaml:3:10: run is empty"},
        {STEP "run: []", "r.yaml:3:10: run must be text or a list of at least one text"},
        {STEP "run: {a: b}", "r.yaml:3:10: run must be text or a list of at least one text"},
        {STEP "run: [a, [b]]", "r.yaml:3:14: run must be text, not a list"},
        {STEP "run: ['', b]", "r.yaml:3:11: run is empty"},
        {STEP "run: [a, ~]", "r.yaml:3:14: run has no value"},
        {STEP "run: \"a\\0b\"", "r.yaml:3:10: a NUL character cannot be part of a text"},
        {STEP "run: x\n    timeout: 0", "r.yaml:4:14: timeout must be more than 0 and at most 24h"},
        {STEP "run: x\n    timeout: 25h",
         "r.yaml:4:14: timeout must be more than 0 and at most 24h"},
        {STEP "run: x\n    timeout: 5 minutes",
         "r.yaml:4:14: timeout must be a number of seconds, or a number with ms, s, m or h"},
        {STEP "run: x\n    timeout: -1",
         "r.yaml:4:14: timeout must be a number of seconds, or a number with ms, s, m or h"},
        {STEP "run: x\n    timeout: [1]",
         "r.yaml:4:14: timeout must be a number of seconds, or a number with ms, s, m or h"},
        {STEP "run: x\n    workdir: app", "r.yaml:4:14: workdir must be an absolute path"},
        {STEP "user: a b", "r.yaml:3:11: user must be an account's name or number"},
        {STEP "user: -x", "r.yaml:3:11: user must be an account's name or number"},
        {STEP "user: ':1'", "r.yaml:3:11: user must be an account's name or number"},
        {STEP "env: [A]", "r.yaml:3:10: env must be a mapping of names to values"},
        {STEP "env: {A=B: c}", "r.yaml:3:11: 'A=B' cannot name an environment variable"},
        {STEP "env: {'': c}", "r.yaml:3:11: '' cannot name an environment variable"},
        {STEP "env: {A: }", "r.yaml:3:14: A has no value"},
        {STEP "env: {A: 1, A: 2}", "r.yaml:3:17: the key 'A' is already in line 3"},
        {"name: x\nstart: ''", "r.yaml:2:8: start is empty"},
        {"name: x\nready: {}", "r.yaml:2:8: ready must have exactly one of command, port and http"},
        {"name: x\nready: {port: 1, command: y}",
         "r.yaml:2:8: ready must have exactly one of command, port and http"},
        {"name: x\nready: {interval: 1}",
         "r.yaml:2:8: ready must have exactly one of command, port and http"},
        {"name: x\nready: [a]", "r.yaml:2:8: ready must be a mapping"},
        {"name: x\nready: {url: y}", "r.yaml:2:9: ready has no key 'url'"},
        {"name: x\nready: {port: 0}", "r.yaml:2:15: port must be a TCP port, from 1 to 65535"},
        {"name: x\nready: {port: 65536}", "r.yaml:2:15: port must be a TCP port, from 1 to 65535"},
        {"name: x\nready: {port: 0x50}", "r.yaml:2:15: port must be a TCP port, from 1 to 65535"},
        {"name: &a x", "r.yaml:1:7: anchors are not supported here"},
        {"name: *a", "r.yaml:1:7: aliases are not supported here"},
        {"name: !!str x", "r.yaml:1:7: tags are not supported here"},
        {"name: ! x", "r.yaml:1:7: tags are not supported here"},
        {"steps: &s [a]", "r.yaml:1:8: anchors are not supported here"},
        {"steps: !t {a: b}", "r.yaml:1:8: tags are not supported here"},
        {"name: x\n---\nname: y", "r.yaml:2:1: a second document starts here"},
        {"? [a]\n: b", "r.yaml:1:3: a key must be text"},
        {"name: {{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{", "r.yaml:1:8: a key must be text"},
        {"name: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
         "r.yaml:1:38: nested more than 32 levels deep"},
    };
    expect_refused(rows, ARRAY_LEN(rows));
}

/* What libyaml itself refuses: its words, our place. */
static void syntax_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *place;
    } rows[] = {
        {"name: [a", "r.yaml:2:1: "},      {"name: x\n bad: y", "r.yaml:2:5: "},
        {"name: 'x", "r.yaml:1:9: "},      {"name: \tx\n\t- y", "r.yaml:2:1: "},
        {"name: \"\\q\"", "r.yaml:1:8: "}, {"name: @x", "r.yaml:1:7: "},
        {"name: \xFF", "r.yaml:1:"},       {"name: \x01", "r.yaml:1:"},
        {"\xFF\xFEn\0", "r.yaml:1:1: "},   {"a: b: c", "r.yaml:1:5: "},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_RECIPE struct recipe *r = parse(rows[i].text, &e);
        assert_null(r);
        assert_int_equal(e.class, ERR_INPUT);
        if (strncmp(e.text, rows[i].place, strlen(rows[i].place)) != 0)
            fail_msg("row %zu: %s", i, e.text);
    }
}

static void unknown_keys_are_listed(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *r = parse("name: x\nready: {url: y}", &e);
    assert_null(r);
    assert_string_equal(e.hint,
                        "its keys are: command, port, http, interval, timeout, try_timeout");
}

/* The document names each key that the hints list, and every mapping has an unknown key. */
static void documented(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "name: x\nzz: 1",          STEP "run: x\n    zz: 1",          STEP "zz: 1",
        "name: x\nready: {zz: 1}", "name: x\nready: {http: {zz: 1}}", STEP "copy: {zz: 1}",
        STEP "graft: {zz: 1}"};
    struct err e = ERR_INIT;
    AUTO_BUF struct buf document;
    buf_init(&document, LIMIT_RECIPE);
    assert_int_equal(
        file_read(AT_FDCWD, TB2_TEST_DATA "/../../docs/formats/recipe.md", &document, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        AUTO_RECIPE struct recipe *r = parse(texts[i], &e);
        assert_null(r);
        AUTO_FREE char *names = mem_strdup(strchr(e.hint, ':') + 2);
        char *saved = NULL;
        for (char *name = strtok_r(names, ", ", &saved); name;
             name = strtok_r(NULL, ", ", &saved)) {
            AUTO_FREE char *row = mem_printf("| `%s` |", name);
            if (!strstr(buf_text(&document), row))
                fail_msg("docs/formats/recipe.md has no row for %s", name);
        }
    }
}

static void shipped(void **state)
{
    (void)state;
    static const char *const names[] = {"tb2", "demo"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct err e = ERR_INIT;
        AUTO_FREE char *path =
            mem_printf(TB2_TEST_DATA "/../../manifests/recipes/%s.yaml", names[i]);
        AUTO_RECIPE struct recipe *r = NULL;
        if (recipe_load(&r, path, &e) < 0)
            fail_msg("%s", e.text);
        assert_string_equal(r->name, names[i]);
        assert_int_equal(r->ready.kind, RECIPE_READY_COMMAND);
    }
    struct err e = ERR_INIT;
    struct recipe *none = NULL;
    assert_int_equal(recipe_load(&none, TB2_TEST_DATA "/none.yaml", &e), -ERR_NOTFOUND);
}

static void canonical_form(void **state)
{
    (void)state;
    static const char *const same[] = {
        "name: x\nsteps: [{run: a}, {run: b, env: {B: 2, A: 1}}]\n",
        "# other layout\nname: y\nnetwork: user\npipefail: false\nsteps:\n- run: 'a'\n  timeout: "
        "600\n  retries: 2\n  backoff: 3\n"
        "- env:\n    A: \"1\"\n    B: '2'\n  run: >-\n    b\n",
        "{name: z, steps: [{run: a, env: {}}, {env: {A: 1, B: 2}, run: b, timeout: 1s}]}",
    };
    AUTO_FREE char *first = canonical(same[0]);
    assert_string_equal(first,
                        "{\"network\":\"user\",\"pipefail\":false,\"steps\":[{\"run\":\"a\"},"
                        "{\"env\":{\"A\":\"1\",\"B\":\"2\"},\"run\":\"b\"}]}");
    for (size_t i = 1; i < ARRAY_LEN(same); i++) {
        AUTO_FREE char *other = canonical(same[i]);
        assert_string_equal(other, first);
    }
    static const char *const different[] = {
        "name: x",
        "name: x\nnetwork: none",
        "name: x\npipefail: true",
        "name: x\nstart: a",
        "name: x\nready: a",
        "name: x\nready: {port: 1}",
        "name: x\nready: {port: 2}",
        "name: x\nready: {http: {port: 2}}",
        "name: x\nready: {http: {port: 2, path: /a}}",
        "name: x\nready: {http: {port: 2, status: 200}}",
        "name: x\nnetwork: tap",
        STEP "run: a\n    network: none",
        STEP "run: a\n    secrets: [A]",
        STEP "run: a\n    secrets: [{name: A, env: A}]",
        STEP "copy: {from: a, to: b}",
        STEP "copy: {from: b, to: b}",
        STEP "copy: {from: a, to: c}",
        STEP "copy: {from: a, to: b, owner: c}",
        STEP "copy: {from: a, to: b, mode: 644}",
        STEP "copy: {from: a, to: b, exclude: [c]}",
        STEP "graft: {directory: a, at: /b}",
        STEP "graft: {tarball: a, at: /b}",
        STEP "graft: {image: a, at: /b}",
        STEP "run: a",
        STEP "run: [a]",
        STEP "run: a\n    user: b",
        STEP "run: a\n    workdir: /b",
        STEP "run: a\n    env: {B: c}",
        STEP "env: {B: c}",
        STEP "workdir: /a",
        STEP "user: a",
        STEP "run: a\n  - run: b",
        STEP "run: b\n  - run: a",
    };
    char *texts[ARRAY_LEN(different)];
    for (size_t i = 0; i < ARRAY_LEN(different); i++) {
        texts[i] = canonical(different[i]);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(texts[i], texts[j]);
    }
    for (size_t i = 0; i < ARRAY_LEN(different); i++)
        free(texts[i]);
}

static void memory_short(void **state)
{
    (void)state;
    static const char text[] =
        "name: x\nsteps: [{run: [a, b], env: {C: d}, secrets: [{name: s, env: S}]}, {user: e}, "
        "{copy: {from: g, to: h, owner: i, exclude: [j]}}]\nready: f\n";
    bool done = false;
    for (unsigned long nth = 1; !done && nth < 1000; nth++) {
        struct err e = ERR_INIT;
        AUTO_RECIPE struct recipe *r = NULL;
        mem_fail_nth(nth);
        int rc = recipe_parse(&r, "r.yaml", text, strlen(text), &e);
        mem_fail_nth(0);
        done = rc == 0;
        assert_true(done || rc == -ERR_NOMEM);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key),
        cmocka_unit_test(files_and_more),
        cmocka_unit_test(defaults),
        cmocka_unit_test(errors),
        cmocka_unit_test(errors_of_files_and_more),
        cmocka_unit_test(syntax_errors),
        cmocka_unit_test(unknown_keys_are_listed),
        cmocka_unit_test(documented),
        cmocka_unit_test(shipped),
        cmocka_unit_test(canonical_form),
        cmocka_unit_test(memory_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
