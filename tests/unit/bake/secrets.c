/* SPDX-License-Identifier: MIT */
/* Secrets: where values come from, what errors say of them, masking and searching piece by piece. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/recipe/secrets.h"
#include "base/file.h"
#include "base/mem.h"

#define VALUE "correct-horse"
#define LINES "-----BEGIN KEY-----\nabcdefghijkl\nshort\n-----END KEY-----\n"

static struct secret_set *open_set(void)
{
    static const char *const specs[] = {"A=env:TB2_TEST_A", "B.c=env:TB2_TEST_B",
                                        "LONG=env:TB2_TEST_C"};
    struct err e = ERR_INIT;
    struct secret_set *set = NULL;
    setenv("TB2_TEST_A", VALUE, 1);
    setenv("TB2_TEST_B", LINES, 1);
    setenv("TB2_TEST_C", VALUE "-battery", 1);
    if (secrets_open(&set, specs, ARRAY_LEN(specs), &e) < 0)
        fail_msg("%s", e.text);
    return set;
}

static void sources(void **state)
{
    (void)state;
    char path[] = "/tmp/tb2-secret-XXXXXX";
    AUTO_FD int fd = mkstemp(path);
    assert_int_equal(write(fd, "from a file\n", 12), 12);
    AUTO_FREE char *spec = mem_printf("F=file:%s", path);
    const char *specs[] = {spec};
    struct err e = ERR_INIT;
    AUTO_SECRETS struct secret_set *set = NULL;
    assert_int_equal(secrets_open(&set, specs, 1, &e), 0);
    const struct secret *s = secrets_find(set, "F");
    assert_string_equal(s->value, "from a file\n");
    assert_int_equal(s->essence, 11);
    assert_null(secrets_find(set, "f"));
    assert_null(secrets_find(NULL, "F"));
    unlink(path);
}

/* None of the errors tells what may be a value. */
static void errors(void **state)
{
    (void)state;
    static const struct {
        const char *specs[2];
        const char *part;
    } rows[] = {
        {{"A"}, "NAME=env:VARIABLE or NAME=file:PATH is expected"},
        {{"A=s3cr3t-value"}, "--secret A...: NAME=env:VARIABLE"},
        {{"s3cr3t-value"}, "--secret ...: NAME=env:VARIABLE"},
        {{"s3cr3tAAAA="}, "--secret ...: NAME=env:VARIABLE"},
        {{"s3cr3tAAA=="}, "--secret ...: NAME=env:VARIABLE"},
        {{"A=env:"}, "NAME=env:VARIABLE"},
        {{"a/b=env:TB2_TEST_A"}, "NAME=env:VARIABLE"},
        {{"A=env:TB2_TEST_NONE"}, "secret A: the environment has no variable TB2_TEST_NONE"},
        {{"A=env:TB2_TEST_SHORT"}, "secret A: its value has 6 bytes, and must have 8 to 65536"},
        {{"A=file:/no/such"}, "secret A: "},
        {{"A=file:/dev/null"}, "secret A: "},
        {{"A=env:TB2_TEST_A", "A=env:TB2_TEST_A"}, "--secret A is there twice"},
    };
    setenv("TB2_TEST_A", VALUE, 1);
    setenv("TB2_TEST_SHORT", "s3cr3t\n", 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct secret_set *set = NULL;
        size_t count = rows[i].specs[1] ? 2 : 1;
        assert_int_equal(secrets_open(&set, rows[i].specs, count, &e), -ERR_INPUT);
        if (!strstr(e.text, rows[i].part) || strstr(e.text, "s3cr3t") || strstr(e.text, VALUE))
            fail_msg("%s", e.text);
    }
}

/* Also at its end, where it may be cut. */
static void errors_are_masked(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_SECRETS struct secret_set *set = open_set();
    err_set(&e, ERR_STEP, "the guest powered off; console: %s | abcdefghijkl | correct-h", VALUE);
    (void)err_hint(&e, "not " VALUE "-battery");
    secret_mask_error(set, &e);
    assert_string_equal(e.text, "the guest powered off; console: *** | *** | ***");
    assert_string_equal(e.hint, "not ***");
    assert_int_equal(e.class, ERR_STEP);
    err_set(&e, ERR_STEP, "as it is");
    secret_mask_error(NULL, &e);
    assert_string_equal(e.text, "as it is");
}

static void recipes_need_theirs(void **state)
{
    (void)state;
    static const char text[] = "name: x\nsteps: [{run: a}, {run: b, secrets: [A, D]}]\n";
    struct err e = ERR_INIT;
    AUTO_SECRETS struct secret_set *set = open_set();
    AUTO_RECIPE struct recipe *r = NULL;
    assert_int_equal(recipe_parse(&r, "r.yaml", text, strlen(text), &e), 0);
    assert_int_equal(secrets_check(set, r, &e), -ERR_INPUT);
    assert_string_equal(e.text, "the step in line 2 of the recipe needs the secret D");
}

/* Masks `text` in two pieces, cut at `cut`. */
static void expect_mask(const struct secret_set *set, const char *text, size_t cut,
                        const char *wanted)
{
    struct err e = ERR_INIT;
    struct secret_mask mask;
    struct buf out;
    size_t len = strlen(text);
    secret_mask_init(&mask, set);
    buf_init(&out, 1 << 20);
    assert_int_equal(secret_mask_add(&mask, text, cut, false, &out, &e), 0);
    assert_int_equal(secret_mask_add(&mask, text + cut, len - cut, true, &out, &e), 0);
    if (strcmp(buf_text(&out), wanted) != 0)
        fail_msg("cut at %zu: %s", cut, buf_text(&out));
    buf_fini(&out);
    secret_mask_fini(&mask);
}

static void masking(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *masked;
    } rows[] = {
        {"nothing of it", "nothing of it"},
        {"x " VALUE " y", "x *** y"},
        {VALUE VALUE "\n", "******\n"},
        {"correct-correct-horse", "correct-***"},
        {VALUE "-battery.", "***."},                 /* the longest */
        {VALUE "-batt", "***"},                      /* of the longer one, cut off */
        {"key: " LINES "end", "key: ***\nend"},      /* as a whole, without its last line end */
        {"k abcdefghijkl\n short", "k ***\n short"}, /* a line of it; short ones are not */
        {"-----END KEY-----", "***"},
    };
    AUTO_SECRETS struct secret_set *set = open_set();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t cut = 0; cut <= strlen(rows[i].text); cut++)
            expect_mask(set, rows[i].text, cut, rows[i].masked);
    expect_mask(NULL, VALUE, 3, VALUE);
}

static void searching(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_SECRETS struct secret_set *set = open_set();
    static const char text[] = "some bytes " VALUE "! and more";
    for (size_t cut = 0; cut < sizeof(text); cut++) {
        struct secret_search s;
        secret_search_init(&s, set);
        assert_int_equal(secret_search_add(&s, text, cut, &e), 0);
        assert_int_equal(secret_search_add(&s, text + cut, sizeof(text) - cut, &e), 0);
        assert_string_equal(s.found, "A");
        secret_search_fini(&s);
        /* what is not joined is not found */
        secret_search_init(&s, set);
        assert_int_equal(secret_search_add(&s, text, cut, &e), 0);
        secret_search_part(&s);
        assert_int_equal(secret_search_add(&s, text + cut, sizeof(text) - cut, &e), 0);
        bool whole = cut <= 11 || cut >= 11 + strlen(VALUE);
        assert_int_equal(s.found != NULL, whole);
        secret_search_fini(&s);
    }
}

static void searching_files(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_SECRETS struct secret_set *set = open_set();
    char path[] = "/tmp/tb2-secret-XXXXXX";
    AUTO_FD int fd = mkstemp(path);
    unlink(path);
    static const off_t places[] = {0, 4096 - 5, (1 << 20) - 3, (5 << 20) + 1, (64 << 20) - 13};
    for (size_t i = 0; i < ARRAY_LEN(places) + 1; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(ftruncate(fd, 64 << 20), 0);
        bool put = i < ARRAY_LEN(places);
        if (put)
            assert_int_equal(file_pwrite_full(fd, VALUE, strlen(VALUE), (uint64_t)places[i], &e),
                             0);
        struct secret_search s;
        secret_search_init(&s, set);
        assert_int_equal(secret_search_file(&s, fd, &e), 0);
        assert_int_equal(s.found != NULL, put);
        secret_search_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources),           cmocka_unit_test(errors),
        cmocka_unit_test(errors_are_masked), cmocka_unit_test(recipes_need_theirs),
        cmocka_unit_test(masking),           cmocka_unit_test(searching),
        cmocka_unit_test(searching_files),
    };
    return cmocka_run_group_tests_name("secrets", tests, NULL, NULL);
}
