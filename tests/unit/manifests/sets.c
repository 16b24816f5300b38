/* SPDX-License-Identifier: MIT */
/* Sets of tasks: lists, selection, shares, lock files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "manifests/internal.h"

static struct task_set *parse(const char *text)
{
    struct err e = ERR_INIT;
    struct task_set *set = NULL;
    if (task_set_parse(&set, "set.yaml", text, strlen(text), &e) < 0)
        fail_msg("%s", e.text);
    return set;
}

/* ---- Lists ---- */

static void a_list_of_tasks(void **state)
{
    (void)state;
    AUTO_TASK_SET struct task_set *set = parse("defaults: {cpus: 2, memory: 4G, env: {A: '1'}}\n"
                                               "tasks:\n"
                                               "  - name: b\n"
                                               "    image: r/b:1\n"
                                               "    cpus: 1.5\n"
                                               "    memory: 3000\n"
                                               "    storage: 20G\n"
                                               "    user: app\n"
                                               "    internet: false\n"
                                               "  - image: docker.io/swe/a_1776:latest\n"
                                               "  - image: r/c:v2\n");
    assert_int_equal(set->count, 3);
    const struct task *named = set->entries[1].task;
    assert_string_equal(set->entries[0].name, "a_1776");
    assert_string_equal(set->entries[1].name, "b");
    assert_string_equal(set->entries[2].name, "c-v2");
    assert_int_equal(named->cpus, 2);
    assert_int_equal(named->alias_cpus, 1);
    assert_int_equal(named->memory_mb, 3000);
    assert_int_equal(named->storage_mb, 20480);
    assert_string_equal(named->user, "app");
    assert_false(named->allow_internet);
    assert_int_equal(named->env_count, 1);
    const struct task *plain = set->entries[0].task;
    assert_int_equal(plain->cpus, 2);
    assert_int_equal(plain->memory_mb, 4096);
    assert_int_equal(plain->storage_mb, 10240);
    assert_null(plain->user);
    assert_true(plain->allow_internet);
}

static void json_is_yaml(void **state)
{
    (void)state;
    AUTO_TASK_SET struct task_set *set =
        parse("{\"tasks\": [{\"name\": \"a\", \"image\": \"r/a:1\", \"memory\": \"8G\"}]}");
    assert_int_equal(set->count, 1);
    assert_int_equal(set->entries[0].task->memory_mb, 8192);
}

static void broken_lists(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *message;
    } rows[] = {
        {"[]", "mapping with the key tasks"},
        {"tasks: {}", "tasks must be a list"},
        {"defaults: {}", "tasks must be a list"},
        {"task: []", "only tasks and defaults"},
        {"tasks: [a]", "mapping with name and image"},
        {"tasks: [{name: a}]", "set.yaml:1:9: the task has no image"},
        {"tasks: [{image: ''}]", "image is empty"},
        {"tasks: [{image: x, imgae: y}]", "unknown key 'imgae'"},
        {"defaults: {name: a}\ntasks: [{image: x}]", "unknown key 'name'"},
        {"tasks: [{image: x, memory: 4GB}]", "memory must be a size"},
        {"tasks: [{image: x, cpus: many}]", "cpus must be a number"},
        {"tasks: [{image: x, name: 'a,b'}]", "a name has none of"},
        {"tasks: [{image: x:1, name: a}, {image: y:1, name: a}]",
         "two tasks have the name 'a' (images x:1 and y:1)"},
        {"tasks: [{image: r/a:1}, {image: q/a:1}]", "two tasks have the name 'a-1'"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct task_set *set = NULL;
        int rc = task_set_parse(&set, "set.yaml", rows[i].text, strlen(rows[i].text), &e);
        if (rc != -ERR_INPUT || !strstr(e.text, rows[i].message) || set)
            fail_msg("%s: %d %s", rows[i].text, rc, e.text);
    }
}

static void lists_of_images(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *names; /* joined by spaces; NULL: refused */
    } rows[] = {
        {"# mine\nr/b:1\n\n  r/a:latest   first  \n", "b-1 first"},
        {"r/x@sha256:00", "x"},
        {"", ""},
        {"r/a:1\nq/a:1\n", NULL},
        {"r/a:1 one two\n", NULL},
    };
    char path[] = "/tmp/tb2-images-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct task_set *set = NULL;
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(file_pwrite_full(fd, rows[i].text, strlen(rows[i].text), 0, &e), 0);
        int rc = task_set_load_images(&set, path, &e);
        char names[256] = "";
        for (size_t n = 0; set && n < set->count; n++)
            snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", n ? " " : "",
                     set->entries[n].name);
        if (rows[i].names ? rc < 0 || strcmp(names, rows[i].names) != 0 : rc != -ERR_INPUT)
            fail_msg("row %zu: %d '%s' %s", i, rc, names, e.text);
        task_set_free(set);
    }
    close(fd);
    unlink(path);
}

/* ---- Selection ---- */

static const char set_text[] = "tasks:\n"
                               "  - {name: fix-git, image: a}\n"
                               "  - {name: fix-perl, image: b}\n"
                               "  - {name: build-pmars, image: c}\n"
                               "  - {name: more/fix-git, image: d}\n"
                               "  - {name: more/train, image: e}\n";

/* Names that are selected, joined by spaces. */
static int choose(const char *names, const char *excludes, char *out, size_t len, struct err *e)
{
    const char *lists[2][8] = {{0}};
    size_t counts[2] = {0, 0};
    AUTO_FREE char *first = mem_strdup(names);
    AUTO_FREE char *second = mem_strdup(excludes);
    char *texts[2] = {first, second};
    for (int i = 0; i < 2; i++) {
        char *save = NULL;
        for (char *word = strtok_r(texts[i], " ", &save); word; word = strtok_r(NULL, " ", &save))
            lists[i][counts[i]++] = word;
    }
    AUTO_TASK_SET struct task_set *set = parse(set_text);
    struct task_selection s = {.names = lists[0],
                               .name_count = counts[0],
                               .excludes = lists[1],
                               .exclude_count = counts[1]};
    bool marks[8] = {false};
    int rc = task_select(set, &s, marks, e);
    out[0] = 0;
    for (size_t i = 0; rc == 0 && i < set->count; i++) {
        if (marks[i])
            snprintf(out + strlen(out), len - strlen(out), "%s%s", out[0] ? " " : "",
                     set->entries[i].name);
    }
    return rc;
}

static void names_and_globs(void **state)
{
    (void)state;
    static const struct {
        const char *names;
        const char *excludes;
        const char *expected; /* NULL: an error that holds ... */
        const char *message;
    } rows[] = {
        {"", "", "build-pmars fix-git fix-perl more/fix-git more/train", NULL},
        {"fix-perl build-pmars", "", "build-pmars fix-perl", NULL},
        {"fix-*", "", "fix-git fix-perl more/fix-git", NULL},
        {"more/*", "", "more/fix-git more/train", NULL},
        {"train", "", "more/train", NULL},
        {"fix-git", "", "fix-git", NULL}, /* the whole name comes first */
        {"fix-gi?", "more/*", "fix-git", NULL},
        {"", "fix-*", "build-pmars more/train", NULL},
        {"[fb]*", "", "build-pmars fix-git fix-perl more/fix-git", NULL},
        {"", "nothing-like-it", "build-pmars fix-git fix-perl more/fix-git more/train", NULL},
        {"fix-gti", "", NULL, "task 'fix-gti' is not in set.yaml"},
        {"fix-git zzz*", "", NULL, "no task of set.yaml matches 'zzz*'"},
        {"fix-[gp", "", NULL, "the pattern 'fix-[gp' matches nothing: it has a [ without its ]"},
        {"", "[", NULL, "the pattern '[' matches nothing: it has a [ without its ]"},
        {"", "fix-[z-a]*", NULL, "it has a range whose end comes before its beginning"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        char found[256];
        int rc = choose(rows[i].names, rows[i].excludes, found, sizeof(found), &e);
        bool right = rows[i].expected ? rc == 0 && strcmp(found, rows[i].expected) == 0
                                      : rc == -ERR_INPUT && strstr(e.text, rows[i].message);
        if (!right)
            fail_msg("'%s' without '%s': %d '%s' %s", rows[i].names, rows[i].excludes, rc, found,
                     e.text);
    }
}

/* One that is well formed matches the text, says fnmatch. */
static void malformed_globs(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        const char *match;
        const char *fault; /* NULL: none */
    } rows[] = {
        {"", "", NULL},
        {"*.[ch]", "x.c", NULL},
        {"\\[", "[", NULL},
        {"[[]", "[", NULL},
        {"[]]", "]", NULL},
        {"[!]]", "x", NULL},
        {"[^]a-c]", "d", NULL},
        {"[a-]", "-", NULL},
        {"[-a]", "-", NULL},
        {"[a\\]b]", "]", NULL},
        {"[[:alpha:][:digit:]_]", "7", NULL},
        {"[[.x.]]", "x", NULL},
        {"[[=x=]]", "x", NULL},
        {"a]b", "a]b", NULL},
        {"[", NULL, "without its ]"},
        {"a[", NULL, "without its ]"},
        {"[]", NULL, "without its ]"},
        {"[!]", NULL, "without its ]"},
        {"*.[ch", NULL, "without its ]"},
        {"[[:alpha:]", NULL, "without its ]"},
        {"[a-", NULL, "without its ]"},
        {"[a\\]", NULL, "without its ]"},
        {"[a\\", NULL, "without its ]"},
        {"[[.x", NULL, "without its ]"},
        {"[[:foo:]]", NULL, "class of letters"},
        {"[[::]]", NULL, "class of letters"},
        {"[[.xyz.]]", NULL, "names a letter"},
        {"[z-a]", NULL, "range"},
        {"[a-bz-y]", NULL, "range"},
        {"x\\", NULL, "backslash"},
        {"\\", NULL, "backslash"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *fault = glob_fault(rows[i].pattern);
        bool right = rows[i].fault ? fault && strstr(fault, rows[i].fault) : !fault;
        if (!right)
            fail_msg("'%s': %s", rows[i].pattern, fault ? fault : "no fault");
        if (rows[i].match)
            assert_int_equal(fnmatch(rows[i].pattern, rows[i].match, 0), 0);
    }
}

/* ---- Shares ---- */

static uint64_t some_costs(void *ctx, size_t entry)
{
    (void)ctx;
    return entry % 3 == 0 ? 0 : entry * 1000 % 7919 + 1;
}

static uint64_t no_costs(void *ctx, size_t entry)
{
    (void)ctx;
    (void)entry;
    return 0;
}

/* The shares of any number of machines are all of the tasks, each once, and about equal. */
static void shares_fit_together(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    AUTO_BUF struct buf text;
    struct err e = ERR_INIT;
    buf_init(&text, 1 << 20);
    assert_int_equal(buf_add_text(&text, "tasks:\n", &e), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(buf_printf(&text, &e, "  - {name: t%03d, image: i}\n", i), 0);
    AUTO_TASK_SET struct task_set *set = parse(buf_text(&text));
    uint64_t (*const costs[])(void *, size_t) = {NULL, no_costs, some_costs};
    static const unsigned shard_counts[] = {1, 2, 3, 8, 100, 150};
    for (size_t c = 0; c < ARRAY_LEN(costs); c++) {
        for (size_t n = 0; n < ARRAY_LEN(shard_counts); n++) {
            unsigned taken[COUNT] = {0};
            uint64_t least = UINT64_MAX;
            uint64_t most = 0;
            for (unsigned shard = 1; shard <= shard_counts[n]; shard++) {
                struct task_selection s = {
                    .shard = shard, .shard_count = shard_counts[n], .cost = costs[c]};
                bool marks[COUNT];
                assert_int_equal(task_select(set, &s, marks, &e), 0);
                uint64_t load = 0;
                for (size_t i = 0; i < COUNT; i++) {
                    taken[i] += marks[i];
                    load +=
                        marks[i] ? (costs[c] == some_costs ? some_costs(NULL, i) + 2000 : 1) : 0;
                }
                least = load < least ? load : least;
                most = load > most ? load : most;
            }
            for (size_t i = 0; i < COUNT; i++)
                assert_int_equal(taken[i], 1);
            if (costs[c] != some_costs)
                assert_true(most - least <= 1);
        }
    }
}

/* ---- Lock files ---- */

static const char lock_text[] =
    "# tb2-bake lock 1: image, digest, bytes of its layers\n"
    "r/a:1 sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 7\n"
    "r/b:1 sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 123456789012\n";

static void locks_survive_a_round(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_LOCK struct lock *l = NULL;
    assert_int_equal(lock_parse(&l, lock_text, "tb2.lock", &e), 0);
    assert_int_equal(lock_find(l, "r/b:1")->size, 123456789012);
    assert_null(lock_find(l, "r/b"));
    struct digest d = lock_find(l, "r/a:1")->digest;
    assert_int_equal(lock_set(l, "r/b:1", &d, 1, &e), 0);
    assert_int_equal(lock_set(l, "r/Z:1", &d, 0, &e), 0);
    assert_int_equal(lock_set(l, "two words", &d, 0, &e), -ERR_INPUT);
    AUTO_FREE char *text = NULL;
    assert_int_equal(lock_print(l, &text, &e), 0);
    assert_string_equal(
        text, "# tb2-bake lock 1: image, digest, bytes of its layers\n"
              "r/Z:1 sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0\n"
              "r/a:1 sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 7\n"
              "r/b:1 sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1\n");
}

static void broken_locks(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", "tb2.lock: the first line"},
        {"r/a:1 sha256:00\n", "the first line"},
        {"# tb2-bake lock 1\nr/a:1\n", "tb2.lock:2: image r/a:1 has no digest"},
        {"# tb2-bake lock 1\n\n# x\nr/a:1 sha256:00\n", "tb2.lock:4"},
        {"# tb2-bake lock 1\nr/a:1 sha256:"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa x\n",
         "'x' is no size"},
        {"# tb2-bake lock 1\nr/a:1 sha256:"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1 2\n",
         "more than image"},
        {"# tb2-bake lock 1\nr/a:1 sha256:"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1\nr/a:1 sha256:"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1\n",
         "tb2.lock:3: image r/a:1 stands there twice"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct lock *l = NULL;
        if (lock_parse(&l, rows[i][0], "tb2.lock", &e) != -ERR_INPUT || !strstr(e.text, rows[i][1]))
            fail_msg("row %zu: %s", i, e.text);
        assert_null(l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_tasks),     cmocka_unit_test(json_is_yaml),
        cmocka_unit_test(broken_lists),        cmocka_unit_test(lists_of_images),
        cmocka_unit_test(names_and_globs),     cmocka_unit_test(malformed_globs),
        cmocka_unit_test(shares_fit_together), cmocka_unit_test(locks_survive_a_round),
        cmocka_unit_test(broken_locks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
