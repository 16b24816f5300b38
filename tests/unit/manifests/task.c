/* SPDX-License-Identifier: MIT */
/* task.toml: spellings, floors, errors; loading and listing directories. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "manifests/internal.h"

#define IMAGE "docker_image = 'x/y:1'\n"

static struct task *parse(const char *keys, struct err *e)
{
    AUTO_FREE char *text = mem_printf("[environment]\n" IMAGE "%s", keys);
    struct task *t = NULL;
    err_clear(e);
    int rc = task_parse(&t, "one", "task.toml", text, strlen(text), e);
    assert_true(rc == 0 || rc == -(int)e->class);
    assert_true((rc == 0) == (t != NULL));
    return t;
}

static void defaults(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_TASK struct task *t = parse("", &e);
    assert_string_equal(t->name, "one");
    assert_string_equal(t->image, "x/y:1");
    assert_int_equal(t->cpus, 1);
    assert_int_equal(t->memory_mb, 2048);
    assert_int_equal(t->storage_mb, 10240);
    assert_int_equal(t->alias_cpus, 1);
    assert_int_equal(t->alias_memory_mb, 2048);
    assert_int_equal(t->build_timeout_ms, 600000);
    assert_true(t->allow_internet);
    assert_int_equal(t->env_count, 0);
    assert_int_equal(t->host_env_count, 0);
}

static void amounts(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        uint64_t cpus, memory_mb, storage_mb, alias_cpus, alias_memory_mb, timeout_ms;
    } rows[] = {
        {"cpus = 4", 4, 2048, 10240, 4, 2048, 600000},
        {"cpus = 1.0", 1, 2048, 10240, 1, 2048, 600000},
        {"cpus = 0.5", 1, 2048, 10240, 1, 2048, 600000},
        {"cpus = 2.5", 3, 2048, 10240, 2, 2048, 600000},
        {"cpus = '2'", 2, 2048, 10240, 2, 2048, 600000},
        {"cpus = ' 1.5 '", 2, 2048, 10240, 1, 2048, 600000},
        {"'cpus ' = 4\n\"cpus\\u0000\" = 4", 1, 2048, 10240, 1, 2048, 600000}, /* other keys */
        {"cpus = 0", 1, 2048, 10240, 1, 2048, 600000},
        {"memory_mb = 4096", 1, 4096, 10240, 1, 4096, 600000},
        {"memory_mb = 4096.0", 1, 4096, 10240, 1, 4096, 600000},
        {"memory_mb = 512", 1, 2048, 10240, 1, 2048, 600000},
        {"memory = '4G'", 1, 4096, 10240, 1, 2048, 600000}, /* the alias reads memory_mb alone */
        {"memory = '8g'", 1, 8192, 10240, 1, 2048, 600000},
        {"memory = ' 4G '", 1, 4096, 10240, 1, 2048, 600000},
        {"memory = '2.5G'", 1, 2560, 10240, 1, 2048, 600000},
        {"memory = '4194305K'", 1, 4097, 10240, 1, 2048, 600000},
        {"memory = '512m'", 1, 2048, 10240, 1, 2048, 600000},
        {"memory = '4G'\nmemory_mb = 4096", 1, 4096, 10240, 1, 4096, 600000},
        {"memory_mb = 1024\nmemory = '1G'", 1, 2048, 10240, 1, 2048, 600000},
        {"storage = '20G'", 1, 2048, 20480, 1, 2048, 600000},
        {"storage_mb = 60000", 1, 2048, 60000, 1, 2048, 600000},
        {"storage_mb = 2048", 1, 2048, 10240, 1, 2048, 600000},
        {"build_timeout_sec = 900", 1, 2048, 10240, 1, 2048, 900000},
        {"build_timeout_sec = 900.5", 1, 2048, 10240, 1, 2048, 900500},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TASK struct task *t = parse(rows[i].keys, &e);
        if (!t)
            fail_msg("%s: %s", rows[i].keys, e.text);
        print_message("%s\n", rows[i].keys);
        assert_int_equal(t->cpus, rows[i].cpus);
        assert_int_equal(t->memory_mb, rows[i].memory_mb);
        assert_int_equal(t->storage_mb, rows[i].storage_mb);
        assert_int_equal(t->alias_cpus, rows[i].alias_cpus);
        assert_int_equal(t->alias_memory_mb, rows[i].alias_memory_mb);
        assert_int_equal(t->build_timeout_ms, rows[i].timeout_ms);
    }
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t mb; /* UINT64_MAX: refused */
    } rows[] = {
        {"2G", 2048},
        {"1.5G", 1536},
        {"512m", 512},
        {"2048K", 2},
        {" 4G ", 4096},
        {"1k", 1},
        {"0.1M", 1},
        {"999999999G", 1023999998976},
        {"0.000000001G", 1},
        {"0G", 0},
        {"2GB", UINT64_MAX},
        {"2Gi", UINT64_MAX},
        {"2", UINT64_MAX},
        {"", UINT64_MAX},
        {"G", UINT64_MAX},
        {"2 G", UINT64_MAX},
        {"-2G", UINT64_MAX},
        {"+2G", UINT64_MAX},
        {"1.G", UINT64_MAX},
        {".5G", UINT64_MAX},
        {"1e3M", UINT64_MAX},
        {"2T", UINT64_MAX},
        {"1000000000G", UINT64_MAX},
        {"1.5.5G", UINT64_MAX},
        {"0x10M", UINT64_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint64_t mb = UINT64_MAX;
        bool taken = size_parse_mb(rows[i].text, strlen(rows[i].text), &mb);
        if (mb != rows[i].mb || taken != (rows[i].mb != UINT64_MAX))
            fail_msg("size '%s'", rows[i].text);
    }
}

static void errors(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        enum err_class class;
        const char *text;
    } rows[] = {
        {"memory = '2GB'", ERR_INPUT,
         "task.toml:3:10: memory = \"2GB\" must be a number followed by K, M or G, such as \"2G\", "
         "\"1.5G\" or \"512M\""},
        {"memory = '2'", ERR_INPUT,
         "task.toml:3:10: memory = \"2\" must be a number followed by K, M or G, such as \"2G\", "
         "\"1.5G\" or \"512M\""},
        {"memory = 2048", ERR_INPUT,
         "task.toml:3:10: memory must be a string with a unit, such as \"2G\"; plain megabytes go "
         "into "
         "memory_mb"},
        {"memory_mb = '2048'", ERR_INPUT,
         "task.toml:3:13: memory_mb must be a number of megabytes; sizes with a unit go into "
         "memory"},
        {"memory_mb = 2048\nmemory = '4G'", ERR_INPUT,
         "task.toml:4:10: memory = \"4G\" is 4096 MB, but memory_mb = 2048 in line 3: keep one of "
         "them"},
        {"storage = '1G'\nstorage_mb = 4096", ERR_INPUT,
         "task.toml:3:11: storage = \"1G\" is 1024 MB, but storage_mb = 4096 in line 4: keep one "
         "of "
         "them"},
        {"storage = '99999999G'", ERR_INPUT,
         "task.toml:3:11: storage = \"99999999G\" is more than 16777216 MB"},
        {"cpus = -1", ERR_INPUT, "task.toml:3:8: cpus must be from 0 to 1024"},
        {"cpus = nan", ERR_INPUT, "task.toml:3:8: cpus must be from 0 to 1024"},
        {"cpus = 100000", ERR_INPUT, "task.toml:3:8: cpus must be from 0 to 1024"},
        {"cpus = 'two\\n'", ERR_INPUT,
         "task.toml:3:8: cpus = \"two\\n\" must be a number from 0 to 1024"},
        {"cpus = \"two\\n\"", ERR_INPUT,
         "task.toml:3:8: cpus = \"two?\" must be a number from 0 to 1024"},
        {"cpus = true", ERR_INPUT, "task.toml:3:8: cpus must be a number"},
        {"memory_mb = inf", ERR_INPUT, "task.toml:3:13: memory_mb must be from 0 to 16777216"},
        {"build_timeout_sec = 0", ERR_INPUT,
         "task.toml:3:21: build_timeout_sec must be more than 0"},
        {"build_timeout_sec = '9'", ERR_INPUT,
         "task.toml:3:21: build_timeout_sec must be a number"},
        {"allow_internet = 'no'", ERR_INPUT,
         "task.toml:3:18: allow_internet must be true or false"},
        {"gpus = 1", ERR_UNSUPPORTED,
         "task.toml:3:8: the task asks for gpus = 1; microVMs have no GPU"},
        {"os = 'windows'", ERR_UNSUPPORTED,
         "task.toml:3:6: os = \"windows\" is not supported, only \"linux\""},
        {"network_mode = 'allowlist'", ERR_UNSUPPORTED,
         "task.toml:3:16: network_mode = \"allowlist\" is not supported, only \"public\" and "
         "\"no-network\""},
        {"allow_internet = true\nnetwork_mode = 'no-network'", ERR_INPUT,
         "task.toml:4:16: allow_internet and network_mode say different things; the other is in "
         "line 3"},
        {"env = 1", ERR_INPUT, "task.toml:3:7: environment.env must be a table of strings"},
        {"env.A = 1", ERR_INPUT, "task.toml:3:9: a value of environment.env must be a string"},
        {"env.A = \"\\u0000\"", ERR_INPUT,
         "task.toml:3:9: a value of environment.env holds a NUL character"},
        {"env.'A=B' = ''", ERR_INPUT,
         "task.toml:3:13: environment.env: 'A=B' cannot name a variable"},
        {"env.'' = ''", ERR_INPUT, "task.toml:3:10: environment.env: '' cannot name a variable"},
        {"cpus = yes", ERR_INPUT,
         "task.toml:3:8: 'yes' is not a value (strings need quotes; numbers, dates, true and false "
         "have "
         "one spelling)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TASK struct task *t = parse(rows[i].keys, &e);
        assert_null(t);
        assert_string_equal(e.text, rows[i].text);
        assert_int_equal(e.class, rows[i].class);
    }
}

static void images(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *error; /* NULL: accepted */
    } rows[] = {
        {"", "task.toml: [environment] has no docker_image"},
        {"docker_image = 'a'", "task.toml: [environment] has no docker_image"},
        {"[environment]\ncpus = 1", "task.toml: [environment] has no docker_image"},
        {"[verifier.environment]\ndocker_image = 'a'",
         "task.toml: [environment] has no docker_image"},
        {"[environment]\n#docker_image = 'a'", "task.toml: [environment] has no docker_image"},
        {"[environment]\ndocker_image = ''", "task.toml:2:16: docker_image is empty"},
        {"[environment]\ndocker_image = ' '", "task.toml:2:16: docker_image is empty"},
        {"[environment]\ndocker_image = 7", "task.toml:2:16: docker_image must be a string"},
        {"[[environment]]\ndocker_image = 'a'", "task.toml:1:3: environment must be a table"},
        {"environment = 'a'", "task.toml:1:15: environment must be a table"},
        {"environment.docker_image = 'a'", NULL},
        {"environment = {docker_image = 'a'}", NULL},
        {"[environment]\ndocker_image = 'a'\n[environment.tpu]\nx = 1\n[[steps]]\n[steps.agent]\n",
         NULL},
        {"version = '1.0'\n[environment]\ndocker_image = 'a'\n[sandbox]\ngpus = 4\nmemory = 9\n",
         NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TASK struct task *t = NULL;
        int rc = task_parse(&t, "one", "task.toml", rows[i].text, strlen(rows[i].text), &e);
        assert_string_equal(e.text, rows[i].error ? rows[i].error : "");
        assert_int_equal(rc, rows[i].error ? -ERR_INPUT : 0);
    }
}

static void variables(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_TASK struct task *t = parse("[environment.env]\n"
                                     "Z = 'last'\n"
                                     "KEY = '${API_KEY}'\n"
                                     "A = ''\n"
                                     "DEF = '${X:-y}'\n"
                                     "PART = 'a${X}'\n"
                                     "TWO = '${X}${Y}'\n"
                                     "ODD = '${}'\n"
                                     "PATH = '/opt/bin:$PATH'\n",
                                     &e);
    static const char *const expected[][2] = {
        {"A", ""},           {"ODD", "${}"}, {"PART", "a${X}"}, {"PATH", "/opt/bin:$PATH"},
        {"TWO", "${X}${Y}"}, {"Z", "last"},
    };
    assert_non_null(t);
    assert_int_equal(t->env_count, ARRAY_LEN(expected));
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_string_equal(t->env[i].name, expected[i][0]);
        assert_string_equal(t->env[i].value, expected[i][1]);
    }
    assert_int_equal(t->host_env_count, 2);
    assert_string_equal(t->host_env[0], "DEF");
    assert_string_equal(t->host_env[1], "KEY");
}

static void network(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        bool allowed;
    } rows[] = {
        {"allow_internet = true", true},
        {"allow_internet = false", false},
        {"network_mode = 'public'", true},
        {"network_mode = 'no-network'", false},
        {"allow_internet = false\nnetwork_mode = 'no-network'", false},
        {"gpus = 0\nos = 'linux'", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TASK struct task *t = parse(rows[i].keys, &e);
        assert_non_null(t);
        assert_int_equal(t->allow_internet, rows[i].allowed);
    }
}

/* Whole files in the forms that suites use. */
static void shapes(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        const char *image; /* NULL: none, so refused */
        uint64_t cpus, memory_mb, storage_mb, alias_memory_mb, timeout_ms;
        bool internet;
        size_t env_count, host_env_count;
    } cases[] = {
        {"older", "example/mcmc-3.11:20251031", 4, 8192, 10240, 2048, 600000, true, 0, 0},
        {"newer", "registry.example:5000/suite/install-things:20260403", 1, 2048, 10240, 2048,
         600000, false, 1, 1},
        {"steps",
         "ghcr.example/x/y@sha256:0000000000000000000000000000000000000000000000000000000000000000",
         2, 24576, 60000, 24576, 600000, false, 0, 0},
        {"crlf", "haskell:9.4.8", 3, 2048, 10240, 2048, 1200000, true, 0, 0},
        {"lookalike", NULL, 0, 0, 0, 0, 0, false, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        AUTO_BUF struct buf text;
        AUTO_TASK struct task *t = NULL;
        AUTO_FREE char *path = mem_printf(TB2_TEST_DATA "/manifests/tasks/%s.toml", cases[i].file);
        buf_init(&text, LIMIT_TASK_TOML);
        assert_int_equal(file_read(AT_FDCWD, path, &text, &e), 0);
        int rc = task_parse(&t, cases[i].file, path, text.data, text.len, &e);
        if ((rc == 0) != (cases[i].image != NULL))
            fail_msg("%s: %s", cases[i].file, e.text);
        if (rc < 0)
            continue;
        assert_string_equal(t->image, cases[i].image);
        assert_int_equal(t->cpus, cases[i].cpus);
        assert_int_equal(t->memory_mb, cases[i].memory_mb);
        assert_int_equal(t->storage_mb, cases[i].storage_mb);
        assert_int_equal(t->alias_memory_mb, cases[i].alias_memory_mb);
        assert_int_equal(t->build_timeout_ms, cases[i].timeout_ms);
        assert_int_equal(t->allow_internet, cases[i].internet);
        assert_int_equal(t->env_count, cases[i].env_count);
        assert_int_equal(t->host_env_count, cases[i].host_env_count);
    }
}

/* ---- Directories --------------------------------------------------------------------------- */

static int make_set(void **state)
{
    static char root[] = "/tmp/tb2-task-XXXXXX";
    static const char text[] = "[environment]\n" IMAGE;
    struct err e = ERR_INIT;
    memcpy(root, "/tmp/tb2-task-XXXXXX", sizeof(root));
    if (!mkdtemp(root))
        return -1;
    AUTO_FD int dir = -1;
    if (file_open(&dir, AT_FDCWD, root, O_RDONLY | O_DIRECTORY, 0, &e) < 0)
        return -1;
    static const char *const names[] = {"b-task",    "a.task",       "Z",
                                        "no-task",   "\xC3\xA9",     "group/b-task",
                                        "group/x/y", "b-task/inner", ".hidden/task"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *path = mem_printf("%s/task.toml", names[i]);
        if (file_make_dirs(dir, names[i], &e) < 0)
            return -1;
        if (i != 3 && file_put(dir, dir, path, text, strlen(text), &e) < 0)
            return -1;
    }
    if (file_put(dir, dir, "README", "x", 1, &e) < 0 || symlinkat("b-task", dir, "link") < 0 ||
        symlinkat(".", dir, "loop") < 0 || symlinkat("..", dir, "group/up") < 0)
        return -1;
    *state = root;
    return 0;
}

static int remove_set(void **state)
{
    struct err e = ERR_INIT;
    return file_remove_tree(AT_FDCWD, *state, &e);
}

/* At any depth, but not in tasks, hidden directories and links. */
static void lists(void **state)
{
    static const char *const expected[] = {"Z",         "a.task", "b-task",  "group/b-task",
                                           "group/x/y", "link",   "\xC3\xA9"};
    struct err e = ERR_INIT;
    AUTO_TASK_SET struct task_set *set = NULL;
    assert_int_equal(task_set_open(&set, *state, &e), 0);
    assert_int_equal(set->count, ARRAY_LEN(expected));
    for (size_t i = 0; i < set->count; i++) {
        assert_string_equal(set->entries[i].name, expected[i]);
        AUTO_TASK struct task *t = NULL;
        assert_int_equal(task_load(&t, set->entries[i].directory, &e), 0);
    }
    AUTO_FREE char *missing = mem_printf("%s/none", (const char *)*state);
    AUTO_TASK_SET struct task_set *none = NULL;
    assert_int_equal(task_set_open(&none, missing, &e), -ERR_NOTFOUND);
}

static void loads(void **state)
{
    static const char *const rows[][2] = {
        {"b-task", "b-task"},      {"b-task/", "b-task"}, {"b-task/.", "b-task"},
        {"Z/../a.task", "a.task"}, {"link", "link"},      {"Z/../b-task/../Z//", "Z"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_FREE char *directory = mem_printf("%s/%s", (const char *)*state, rows[i][0]);
        AUTO_TASK struct task *t = NULL;
        if (task_load(&t, directory, &e) < 0)
            fail_msg("%s", e.text);
        assert_string_equal(t->name, rows[i][1]);
        assert_string_equal(t->directory, directory);
    }
    struct err e = ERR_INIT;
    struct task *t = NULL;
    AUTO_FREE char *empty = mem_printf("%s/no-task", (const char *)*state);
    AUTO_FREE char *missing = mem_printf("%s/none", (const char *)*state);
    assert_int_equal(task_load(&t, empty, &e), -ERR_NOTFOUND);
    assert_int_equal(task_load(&t, missing, &e), -ERR_NOTFOUND);
    assert_null(t);
}

static void memory_short(void **state)
{
    (void)state;
    bool done = false;
    for (unsigned long nth = 1; !done && nth < 1000; nth++) {
        struct err e = ERR_INIT;
        static const char text[] = "[environment]\n" IMAGE "cpus = 2\nmemory = '3G'\nenv.A = 'b'\n"
                                   "env.C = '${D}'\n";
        AUTO_TASK struct task *t = NULL;
        mem_fail_nth(nth);
        int rc = task_parse(&t, "one", "task.toml", text, strlen(text), &e);
        mem_fail_nth(0);
        done = rc == 0;
        assert_true(done || rc == -ERR_NOMEM);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(amounts),
        cmocka_unit_test(sizes),
        cmocka_unit_test(errors),
        cmocka_unit_test(images),
        cmocka_unit_test(variables),
        cmocka_unit_test(network),
        cmocka_unit_test(shapes),
        cmocka_unit_test_setup_teardown(lists, make_set, remove_set),
        cmocka_unit_test_setup_teardown(loads, make_set, remove_set),
        cmocka_unit_test(memory_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
