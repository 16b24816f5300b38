/* SPDX-License-Identifier: MIT */
/* The alias rule against vectors made by the trainer's own code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "manifests/manifest.h"

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

static void check_vector(const struct json *vector)
{
    struct err e = ERR_INIT;
    const char *name;
    const char *image;
    const char *user;
    const char *expected;
    struct json *list;
    struct task t = {.name = NULL};
    must(json_get_string(vector, "task", &name, &e), &e);
    must(json_get_string(vector, "image", &image, &e), &e);
    must(json_get_string(vector, "user", &user, &e), &e);
    must(json_get_string(vector, "alias", &expected, &e), &e);
    must(json_get_array(vector, "commands", &list, &e), &e);
    must(json_get_u64(vector, "cpu_count", &t.alias_cpus, &e), &e);
    must(json_get_u64(vector, "memory_mb", &t.alias_memory_mb, &e), &e);
    t.name = mem_strdup(name);
    t.image = mem_strdup(image);
    size_t count = json_length(list);
    const char **commands = mem_array(count + 1, sizeof(*commands));
    for (size_t i = 0; i < count; i++)
        commands[i] = json_as_string(json_element(list, i));
    AUTO_FREE char *alias = NULL;
    must(template_alias(&alias, &t, user, commands, count, &e), &e);
    assert_string_equal(alias, expected);
    free(commands);
    free(t.name);
    free(t.image);
}

static void vectors(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    buf_init(&text, 16 << 20);
    must(file_read(AT_FDCWD, TB2_TEST_DATA "/manifests/alias_vectors.json", &text, &e), &e);
    AUTO_JSON struct json *all = NULL;
    must(json_parse(&all, text.data, text.len, "alias vectors", &e), &e);
    assert_true(json_length(all) >= 7);
    for (size_t i = 0; i < json_length(all); i++)
        check_vector(json_element(all, i));
}

static void slugs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *slug;
    } rows[] = {
        {"fix-git", "fix-git"},
        {"A_b.C", "a-b-c"},
        {"na\xC3\xAFve", "na-ve"},
        {"\xE4\xBD\xA0\xE5\xA5\xBD", "--"},
        {"\xF0\x9F\x98\x80x", "-x"},
        {"\xE2\x84\xAA", "k"},       /* KELVIN SIGN in lower case is k */
        {"\xC4\xB0z", "i-z"},        /* I WITH DOT ABOVE becomes i and a combining dot */
        {"a\xFF\xE2\x82z", "a---z"}, /* not UTF-8: one per byte */
        {" -- ", "----"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct task t = {.alias_cpus = 1, .alias_memory_mb = 2048};
        t.name = mem_strdup(rows[i].name);
        t.image = mem_strdup("i");
        AUTO_FREE char *alias = NULL;
        must(template_alias(&alias, &t, "root", NULL, 0, &e), &e);
        size_t len = strlen(rows[i].slug);
        assert_int_equal(strlen(alias), 4 + len + 1 + 10);
        assert_memory_equal(alias + 4, rows[i].slug, len);
        assert_int_equal(alias[4 + len], '-');
        free(t.name);
        free(t.image);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors), cmocka_unit_test(slugs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
