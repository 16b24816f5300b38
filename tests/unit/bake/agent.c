/* SPDX-License-Identifier: MIT */
/* Programs run by the agent: how they end, what they say, why they do not start. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_process.h"
#include "bake/channel.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

/* ---- Running -------------------------------------------------------------------------------- */

static void test_ends(void **state)
{
    static const struct {
        const char *text;
        bool exited;
        int status;
        const char *out;
        const char *err;
    } cases[] = {
        {"exit 0", true, 0, "", ""},
        {"exit 7", true, 7, "", ""},
        {"exit 255", true, 255, "", ""},
        {"kill -9 $$", false, 9, "", ""},
        {"kill -TERM $$", false, 15, "", ""},
        {"echo out; echo err >&2; exit 3", true, 3, "out\n", "err\n"},
        {"printf 'a\\0b'", true, 0, "a", ""},
        {"trap", true, 0, "", ""},
        {"cat", true, 0, "", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct output o;
        output_init(&o);
        struct agent_exec exec = shell(SHELL(cases[i].text));
        struct agent_result r = run_ok(*state, &exec, &o);
        assert_int_equal(r.exited, cases[i].exited);
        assert_int_equal(r.status, cases[i].status);
        assert_false(r.timed_out);
        assert_string_equal(buf_text(&o.out), cases[i].out);
        assert_string_equal(buf_text(&o.err), cases[i].err);
        output_fini(&o);
    }
}

/* Output that ends together with its program is never lost. */
static void test_short_programs(void **state)
{
    for (int i = 0; i < 1000; i++) {
        char text[64];
        char expected[32];
        snprintf(text, sizeof(text), "echo line %d; exit %d", i, i % 100);
        snprintf(expected, sizeof(expected), "line %d\n", i);
        struct output o;
        output_init(&o);
        struct agent_exec exec = shell(SHELL(text));
        struct agent_result r = run_ok(*state, &exec, &o);
        assert_true(r.exited);
        assert_int_equal(r.status, i % 100);
        assert_string_equal(buf_text(&o.out), expected);
        output_fini(&o);
    }
}

static void test_big_input_comes_back(void **state)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(AGENT_TEST_BIG);
    fill(bytes, AGENT_TEST_BIG);
    struct output o;
    output_init(&o);
    struct agent_exec exec = shell(SHELL("tee /dev/stderr"));
    exec.input = bytes;
    exec.input_len = AGENT_TEST_BIG;
    struct agent_result r = run_ok(*state, &exec, &o);
    assert_true(r.exited && r.status == 0);
    assert_int_equal(o.out.len, AGENT_TEST_BIG);
    assert_memory_equal(o.out.data, bytes, AGENT_TEST_BIG);
    assert_int_equal(o.err.len, AGENT_TEST_BIG);
    assert_memory_equal(o.err.data, bytes, AGENT_TEST_BIG);
    output_fini(&o);
}

/* A program that does not read all of its input neither blocks nor loses its output. */
static void test_unread_input(void **state)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(AGENT_TEST_BIG);
    static const char *const texts[] = {"exec <&-; echo done", "head -c 5 >/dev/null; echo done",
                                        "echo done"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct output o;
        output_init(&o);
        struct agent_exec exec = shell(SHELL(texts[i]));
        exec.input = bytes;
        exec.input_len = AGENT_TEST_BIG;
        struct agent_result r = run_ok(*state, &exec, &o);
        assert_true(r.exited && r.status == 0);
        assert_string_equal(buf_text(&o.out), "done\n");
        output_fini(&o);
    }
}

static void test_environment(void **state)
{
    struct fixture *f = *state;
    static const char *const env[] = {"PATH=/usr/bin:/bin", "HOME=/nowhere", "A=b c",
                                      "EMPTY=", NULL};
    static const char *const argv[] = {"env", NULL};
    struct output o;
    output_init(&o);
    struct agent_exec exec = {.argv = argv, .env = env, .workdir = f->dir};
    run_ok(f, &exec, &o);
    assert_string_equal(buf_text(&o.out), "PATH=/usr/bin:/bin\nHOME=/nowhere\nA=b c\nEMPTY=\n");
    output_fini(&o);

    static const char *const pwd[] = {"pwd", NULL};
    output_init(&o);
    exec.argv = pwd;
    exec.env = NULL; /* PATH has a default */
    run_ok(f, &exec, &o);
    assert_non_null(strstr(buf_text(&o.out), f->dir));
    output_fini(&o);
}

static void test_user(void **state)
{
    if (geteuid() != 0)
        skip();
    static const struct {
        const char *user;
        const char *expected;
    } cases[] = {
        {NULL, "0 0 /root\n"},
        {"root", "0 0 /root\n"},
        {"nobody", "65534 65534 /nonexistent\n"},
        {"12345", "12345 0 /\n"},
        {"12345:54321", "12345 54321 /\n"},
        {"nobody:daemon", "65534 1 /nonexistent\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct output o;
        output_init(&o);
        struct agent_exec exec = shell(SHELL("echo $(id -u) $(id -g) $HOME"));
        exec.user = cases[i].user;
        run_ok(*state, &exec, &o);
        assert_string_equal(buf_text(&o.out), cases[i].expected);
        output_fini(&o);
    }
}

/* ---- What cannot be started ----------------------------------------------------------------- */

static void check_refused(struct fixture *f, const struct agent_exec *exec, const char *expected)
{
    struct err e = ERR_INIT;
    struct output o;
    output_init(&o);
    struct agent_result result = {.exited = true, .status = 42};
    assert_int_equal(agent_run(f->agent, exec, collect, &o, &result, &e), -ERR_STEP);
    if (!strstr(e.text, expected))
        fail_msg("\"%s\" does not say \"%s\"", e.text, expected);
    assert_int_equal(result.status, 42);
    output_fini(&o);
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    char lost[128];
    char dos[128];
    char plain[128];
    char broken[128];
    put_file(f, "lost", "#! /no/such/bash -e\n", 0755, lost);
    put_file(f, "dos", "#!/bin/sh\r\necho\r\n", 0755, dos);
    put_file(f, "plain", "#!/bin/sh\n", 0644, plain);
    put_file(f, "broken", "echo no interpreter named\n", 0755, broken);
    const struct {
        const char *program;
        const char *workdir;
        const char *user;
        const char *expected;
    } cases[] = {
        {"no-such-program", NULL, NULL, "program no-such-program is not in the guest"},
        {"no-such-program", NULL, NULL, "PATH /usr/bin:/bin"},
        {"/no/such", NULL, NULL, "program /no/such does not exist in the guest"},
        {lost, NULL, NULL, "its interpreter /no/such/bash is missing"},
        {dos, NULL, NULL, "its interpreter /bin/sh? is missing"},
        {plain, NULL, NULL, "Permission denied"},
        {broken, NULL, NULL, "Exec format error"},
        {"/tmp", NULL, NULL, "Permission denied"},
        {"", NULL, NULL, "is not in the guest"},
        {"true", "/no/such/dir", NULL, "working directory /no/such/dir"},
        {"true", "/etc/passwd", NULL, "Not a directory"},
        {"true", NULL, "nobody-here", "user nobody-here is not in the guest's /etc/passwd"},
        {"true", NULL, "root:no-group", "group no-group is not in the guest's /etc/group"},
        {"true", NULL, "99999999999", "user 99999999999"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *argv[] = {cases[i].program, NULL};
        struct agent_exec exec = {
            .argv = argv, .env = plain_env, .workdir = cases[i].workdir, .user = cases[i].user};
        check_refused(f, &exec, cases[i].expected);
    }
    struct agent_exec exec = shell(SHELL("exit 5"));
    struct output o;
    output_init(&o);
    assert_int_equal(run_ok(f, &exec, &o).status, 5);
    output_fini(&o);
}

static void test_long_arguments(void **state)
{
    struct fixture *f = *state;
    AUTO_FREE char *text = mem_zalloc(200000);
    memset(text, 'x', 131071);
    memcpy(text, "echo ok; #", 10);
    struct output o;
    output_init(&o);
    struct agent_exec exec = shell(SHELL(text));
    run_ok(f, &exec, &o);
    assert_string_equal(buf_text(&o.out), "ok\n");
    output_fini(&o);

    memset(text, 'x', 199999);
    struct err e = ERR_INIT;
    struct agent_result result;
    assert_int_equal(agent_run(f->agent, &exec, NULL, NULL, &result, &e), -ERR_LIMIT);
    assert_true(e.hint[0] != 0);

    /* so long text goes through a file */
    char path[128];
    AUTO_FREE char *script = mem_zalloc(5000001);
    memset(script, '\n', 5000000);
    memcpy(script + 4999990, "echo long\n", 10);
    put_file(f, "step", script, 0700, path);
    const char *argv[] = {"sh", path, NULL};
    exec.argv = argv;
    output_init(&o);
    run_ok(f, &exec, &o);
    assert_string_equal(buf_text(&o.out), "long\n");
    output_fini(&o);
}

/* ---- Time-outs, children left behind, detached programs ------------------------------------- */

static void test_time_out(void **state)
{
    struct output o;
    output_init(&o);
    struct agent_exec exec = shell(SHELL("sleep 1000 & echo $!; echo $$; trap '' TERM; wait"));
    exec.timeout_ms = 300;
    int64_t begun = clock_ms();
    struct agent_result r = run_ok(*state, &exec, &o);
    assert_true(clock_ms() - begun < 20000);
    assert_true(r.timed_out);
    assert_false(r.exited);
    assert_int_equal(r.status, SIGKILL);
    int child = 0;
    int parent = 0;
    assert_int_equal(sscanf(buf_text(&o.out), "%d\n%d", &child, &parent), 2);
    wait_gone(child);
    wait_gone(parent);
    output_fini(&o);
}

/* The child holds both pipes open: the step still ends, the child lives and may go on writing. */
static void test_child_left_behind(void **state)
{
    struct fixture *f = *state;
    struct output o;
    output_init(&o);
    char text[256];
    snprintf(text, sizeof(text),
             "(trap '' HUP; sleep 0.6; echo late; echo alive >%s/mark; sleep 1000) & echo $!; echo "
             "first",
             f->dir);
    struct agent_exec exec = shell(SHELL(text));
    int64_t begun = clock_ms();
    struct agent_result r = run_ok(f, &exec, &o);
    assert_true(clock_ms() - begun < 20000);
    assert_true(r.exited && r.status == 0);
    assert_non_null(strstr(buf_text(&o.out), "first\n"));
    assert_null(strstr(buf_text(&o.out), "late"));
    int child = (int)strtol(buf_text(&o.out), NULL, 10);
    assert_true(child > 1);
    char mark[128];
    snprintf(mark, sizeof(mark), "%s/mark", f->dir);
    int64_t until = clock_ms() + 10000;
    while (access(mark, F_OK) < 0 && clock_ms() < until)
        clock_sleep_ms(5);
    assert_int_equal(access(mark, F_OK), 0);
    assert_int_equal(kill(-getpgid(child), SIGKILL), 0);
    output_fini(&o);
}

static void test_detached(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct agent_exec exec = shell(
        SHELL("read word; echo got $word; i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); "
              "done; echo last >&2; read word </dev/null; exit 9"));
    exec.detach = true;
    exec.input = "hello\n";
    exec.input_len = 6;
    struct agent_result r = {.id = 0};
    assert_int_equal(agent_run(f->agent, &exec, NULL, NULL, &r, &e), 0);
    assert_true(r.id != 0);
    struct output o;
    output_init(&o);
    struct agent_exec other = shell(SHELL("echo beside"));
    run_ok(f, &other, &o);
    assert_string_equal(buf_text(&o.out), "beside\n");
    output_fini(&o);

    bool running = true;
    struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    struct agent_result end = {.exited = false};
    while (running || tail.len < 6 || !strstr(buf_text(&tail), "last\n")) {
        buf_fini(&tail);
        buf_init(&tail, LIMIT_OUTPUT_TAIL);
        assert_int_equal(agent_process(f->agent, r.id, &running, &end, &tail, &e), 0);
        clock_sleep_ms(5);
    }
    assert_true(end.exited);
    assert_int_equal(end.status, 9);
    assert_int_equal(tail.len, LIMIT_OUTPUT_TAIL);
    buf_fini(&tail);
    assert_int_equal(agent_process(f->agent, r.id + 1000, &running, &end, NULL, &e), -ERR_NOTFOUND);
}

static void test_many_detached(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct agent_exec exec = shell(SHELL("exit 0"));
    exec.detach = true;
    for (int i = 0; i < 200; i++) { /* ended ones make room */
        struct agent_result r = {.id = 0};
        if (agent_run(f->agent, &exec, NULL, NULL, &r, &e) < 0)
            fail_msg("%d: %s", i, e.text);
    }
    exec = shell(SHELL("exec sleep 1000"));
    exec.detach = true;
    int rc = 0;
    int started = 0;
    for (; rc == 0 && started < 200; started++) {
        struct agent_result r = {.id = 0};
        rc = agent_run(f->agent, &exec, NULL, NULL, &r, &e);
    }
    assert_int_equal(rc, -ERR_STEP);
    assert_int_equal(started, 65);
}

#define AGENT_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        AGENT_TEST(test_ends),
        AGENT_TEST(test_short_programs),
        AGENT_TEST(test_big_input_comes_back),
        AGENT_TEST(test_unread_input),
        AGENT_TEST(test_environment),
        AGENT_TEST(test_user),
        AGENT_TEST(test_refusals),
        AGENT_TEST(test_long_arguments),
        AGENT_TEST(test_time_out),
        AGENT_TEST(test_child_left_behind),
        AGENT_TEST(test_detached),
        AGENT_TEST(test_many_detached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
