/* SPDX-License-Identifier: MIT */
/* The agent, run as an ordinary process, and its host end, over a socket pair. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <netinet/in.h>

struct fixture {
    pid_t pid;
    struct agent *agent;
    struct cancel cancel;
    char dir[64];
};

static pid_t start_agent(const char *option, int fd)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", fd);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fcntl(fd, F_SETFD, 0);
        execl(TB2_AGENT, "tb2-agent", option, number, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static struct agent *open_agent(int fd, const struct cancel *cancel)
{
    struct err e = ERR_INIT;
    struct agent *agent = NULL;
    struct agent_peer peer = {.fd = fd, .timeout_ms = 20000, .cancel = cancel};
    if (agent_open_fd(&agent, &peer, &e) < 0)
        fail_msg("%s", e.text);
    return agent;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err e = ERR_INIT;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    f->pid = start_agent("--fd", ends[1]);
    close(ends[1]);
    assert_int_equal(cancel_init(&f->cancel, &e), 0);
    f->agent = open_agent(ends[0], &f->cancel);
    snprintf(f->dir, sizeof(f->dir), "/tmp/tb2-agent-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    int status = 0;
    agent_free(f->agent);
    waitpid(f->pid, &status, 0);
    cancel_fini(&f->cancel);
    int removed = file_remove_tree(AT_FDCWD, f->dir, &e);
    free(f);
    assert_int_equal(status, 0);
    return removed;
}

/* ---- Running -------------------------------------------------------------------------------- */

struct output {
    struct buf out;
    struct buf err;
};

static int collect(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct output *o = ctx;
    return buf_add(stream == 1 ? &o->out : &o->err, data, len, e);
}

static void output_init(struct output *o)
{
    buf_init(&o->out, (size_t)64 << 20);
    buf_init(&o->err, (size_t)64 << 20);
}

static void output_fini(struct output *o)
{
    buf_fini(&o->out);
    buf_fini(&o->err);
}

static const char *const plain_env[] = {"PATH=/usr/bin:/bin", NULL};

static struct agent_exec shell(const char *const argv[4])
{
    return (struct agent_exec){.argv = argv, .env = plain_env};
}

#define SHELL(text)                                                                                \
    (const char *const[4])                                                                         \
    {                                                                                              \
        "sh", "-c", text, NULL                                                                     \
    }

static struct agent_result run_ok(struct fixture *f, const struct agent_exec *exec,
                                  struct output *o)
{
    struct err e = ERR_INIT;
    struct agent_result result = {.exited = false};
    if (agent_run(f->agent, exec, collect, o, &result, &e) < 0)
        fail_msg("%s", e.text);
    return result;
}

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

static void fill(uint8_t *bytes, size_t len)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
}

enum { BIG = 10 * 1024 * 1024 };

static void test_big_input_comes_back(void **state)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(BIG);
    fill(bytes, BIG);
    struct output o;
    output_init(&o);
    struct agent_exec exec = shell(SHELL("tee /dev/stderr"));
    exec.input = bytes;
    exec.input_len = BIG;
    struct agent_result r = run_ok(*state, &exec, &o);
    assert_true(r.exited && r.status == 0);
    assert_int_equal(o.out.len, BIG);
    assert_memory_equal(o.out.data, bytes, BIG);
    assert_int_equal(o.err.len, BIG);
    assert_memory_equal(o.err.data, bytes, BIG);
    output_fini(&o);
}

/* A program that does not read all of its input neither blocks nor loses its output. */
static void test_unread_input(void **state)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(BIG);
    static const char *const texts[] = {"exec <&-; echo done", "head -c 5 >/dev/null; echo done",
                                        "echo done"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct output o;
        output_init(&o);
        struct agent_exec exec = shell(SHELL(texts[i]));
        exec.input = bytes;
        exec.input_len = BIG;
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

static void put_file(struct fixture *f, const char *name, const char *text, uint32_t mode,
                     char path[128])
{
    struct err e = ERR_INIT;
    snprintf(path, 128, "%s/%s", f->dir, name);
    if (agent_put(f->agent, path, mode, text, strlen(text), &e) < 0)
        fail_msg("%s", e.text);
}

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

static void wait_gone(pid_t pid)
{
    int64_t until = clock_ms() + 10000;
    while (kill(pid, 0) == 0 && clock_ms() < until)
        clock_sleep_ms(5);
    assert_true(kill(pid, 0) < 0 && errno == ESRCH);
}

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
    int child = atoi(buf_text(&o.out));
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

/* ---- Files and the rest --------------------------------------------------------------------- */

static void test_files(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    char path[128];
    AUTO_FREE uint8_t *bytes = mem_zalloc(BIG);
    fill(bytes, BIG);
    snprintf(path, sizeof(path), "%s/a/b/c", f->dir);
    assert_int_equal(agent_make_dirs(f->agent, path, 0750, &e), 0);
    assert_int_equal(agent_make_dirs(f->agent, path, 0750, &e), 0);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0750);

    snprintf(path, sizeof(path), "%s/a/b/c/big", f->dir);
    static const size_t sizes[] = {0,  1, AGENT_CHUNK_MAX - 1, AGENT_CHUNK_MAX, AGENT_CHUNK_MAX + 1,
                                   BIG};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        assert_int_equal(agent_put(f->agent, path, 0640, bytes, sizes[i], &e), 0);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 07777, 0640);
        assert_int_equal(info.st_size, sizes[i]);
        struct buf back;
        buf_init(&back, BIG);
        assert_int_equal(agent_get(f->agent, path, &back, &e), 0);
        assert_int_equal(back.len, sizes[i]);
        if (sizes[i])
            assert_memory_equal(back.data, bytes, sizes[i]);
        buf_fini(&back);
    }
    struct buf small;
    buf_init(&small, 1000);
    assert_int_equal(agent_get(f->agent, path, &small, &e), -ERR_LIMIT);
    assert_int_equal(agent_get(f->agent, "/no/such", &small, &e), -ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "/no/such"));
    assert_int_equal(agent_get(f->agent, f->dir, &small, &e), -ERR_STEP);
    assert_int_equal(agent_get(f->agent, "/dev/zero", &small, &e), -ERR_STEP);
    assert_int_equal(agent_get(f->agent, "/proc/self/comm", &small, &e), 0);
    assert_string_equal(buf_text(&small), "tb2-agent\n");
    buf_fini(&small);
    assert_int_equal(agent_put(f->agent, "/no/such/dir/file", 0644, "x", 1, &e), -ERR_NOTFOUND);
    assert_int_equal(agent_put(f->agent, "relative", 0644, "x", 1, &e), -ERR_STEP);
    assert_int_equal(agent_put(f->agent, f->dir, 0644, "x", 1, &e), -ERR_STEP);
    assert_int_equal(agent_make_dirs(f->agent, "/etc/passwd/x", 0755, &e), -ERR_STEP);
    assert_int_equal(agent_make_dirs(f->agent, "/etc/passwd", 0755, &e), -ERR_STEP);
    char left[160];
    snprintf(left, sizeof(left), "%s/a/b/c/.tb2-put-0", f->dir);
    assert_int_not_equal(access(left, F_OK), 0);
}

static void test_probe(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    bool open = false;
    AUTO_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(agent_probe_port(f->agent, ntohs(at.sin_port), 1000, &open, &e), 0);
    assert_false(open);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(agent_probe_port(f->agent, ntohs(at.sin_port), 1000, &open, &e), 0);
    assert_true(open);
    assert_int_equal(agent_probe_port(f->agent, 0, 1000, &open, &e), -ERR_STEP);
}

static void test_frozen(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct agent_exec exec = shell(SHELL("exit 0"));
    struct agent_result r;
    struct buf b;
    int64_t now_ns = 0;
    buf_init(&b, 4096);
    assert_int_equal(agent_sync(f->agent, true, &e), 0);
    assert_int_equal(agent_freeze(f->agent, &e), 0);
    assert_int_equal(agent_run(f->agent, &exec, NULL, NULL, &r, &e), -ERR_BUSY);
    assert_int_equal(agent_put(f->agent, "/tmp/x", 0644, "x", 1, &e), -ERR_BUSY);
    assert_int_equal(agent_get(f->agent, "/etc/passwd", &b, &e), -ERR_BUSY);
    assert_int_equal(agent_sync(f->agent, false, &e), -ERR_BUSY);
    assert_int_equal(agent_clock(f->agent, &now_ns, &e), 0);
    assert_true(llabs(now_ns - clock_wall_ns()) < 10000000000);
    assert_int_equal(agent_thaw(f->agent, &e), 0);
    assert_int_equal(agent_run(f->agent, &exec, NULL, NULL, &r, &e), 0);
    /* the machine under test is ours: it is left alone */
    assert_int_equal(agent_set_clock(f->agent, &now_ns, &e), -ERR_UNSUPPORTED);
    assert_int_equal(agent_reseed(f->agent, &e), -ERR_UNSUPPORTED);
    assert_int_equal(agent_network(f->agent, &e), -ERR_UNSUPPORTED);
    assert_int_equal(agent_power_off(f->agent, &e), -ERR_UNSUPPORTED);
}

/* ---- Connections that end ------------------------------------------------------------------- */

static int stop_at_once(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct output *o = ctx;
    int rc = buf_add(&o->out, data, len, e);
    return rc < 0 ? rc : err_set(e, ERR_INPUT, "enough of stream %d", stream);
}

static void test_output_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct output o;
    output_init(&o);
    struct agent_exec exec = shell(SHELL("echo $$; sleep 1000"));
    struct agent_result r;
    assert_int_equal(agent_run(f->agent, &exec, stop_at_once, &o, &r, &e), -ERR_INPUT);
    wait_gone(atoi(buf_text(&o.out)));
    assert_int_equal(agent_run(f->agent, &exec, stop_at_once, &o, &r, &e), -ERR_NET);
    output_fini(&o);
}

static int cancel_at_once(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    (void)stream;
    (void)data;
    (void)len;
    (void)e;
    cancel_set(ctx);
    return 0;
}

static void test_cancel(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct agent_exec exec = shell(SHELL("echo x; sleep 1000"));
    struct agent_result r;
    assert_int_equal(agent_run(f->agent, &exec, cancel_at_once, &f->cancel, &r, &e),
                     -ERR_CANCELLED);
}

static int kill_agent(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct fixture *f = ctx;
    (void)stream;
    (void)data;
    (void)len;
    (void)e;
    kill(f->pid, SIGKILL);
    return 0;
}

/* Output came, the end did not: an error, never a result. */
static void test_connection_lost(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct agent_exec exec = shell(SHELL("echo all is well; exec sleep 3"));
    struct agent_result r = {.exited = false, .status = 77};
    assert_int_equal(agent_run(f->agent, &exec, kill_agent, f, &r, &e), -ERR_NET);
    assert_int_equal(r.status, 77);
    assert_false(r.exited);
    int status = 0;
    waitpid(f->pid, &status, 0);
    agent_free(f->agent);
    cancel_fini(&f->cancel);
    assert_int_equal(file_remove_tree(AT_FDCWD, f->dir, &e), 0);
    free(f);
}

/* One connection after another, as before and after a snapshot. */
struct listener {
    pid_t pid;
    struct sockaddr_un at;
    char dir[64];
};

static void listener_start(struct listener *l)
{
    *l = (struct listener){.at.sun_family = AF_UNIX};
    snprintf(l->dir, sizeof(l->dir), "/tmp/tb2-agent-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    snprintf(l->at.sun_path, sizeof(l->at.sun_path), "%s/socket", l->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&l->at, sizeof(l->at)), 0);
    assert_int_equal(listen(fd, 4), 0);
    l->pid = start_agent("--listen-fd", fd);
    close(fd);
}

static int listener_connect(const struct listener *l)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&l->at, sizeof(l->at)), 0);
    return fd;
}

static void listener_stop(struct listener *l)
{
    struct err e = ERR_INIT;
    kill(l->pid, SIGKILL);
    waitpid(l->pid, NULL, 0);
    assert_int_equal(file_remove_tree(AT_FDCWD, l->dir, &e), 0);
}

static void test_reconnect(void **state)
{
    (void)state;
    struct listener l;
    struct err e = ERR_INIT;
    listener_start(&l);
    struct agent *first = open_agent(listener_connect(&l), NULL);
    struct agent_exec exec = shell(SHELL("echo $$; exec sleep 1000"));
    exec.detach = true;
    struct agent_result detached = {.id = 0};
    assert_int_equal(agent_run(first, &exec, NULL, NULL, &detached, &e), 0);
    struct output o;
    output_init(&o);
    exec.detach = false;
    struct agent_result r;
    assert_int_equal(agent_run(first, &exec, stop_at_once, &o, &r, &e), -ERR_INPUT);
    agent_free(first);
    wait_gone(atoi(buf_text(&o.out)));
    output_fini(&o);

    struct agent *second = open_agent(listener_connect(&l), NULL);
    bool running = false;
    struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    assert_int_equal(agent_process(second, detached.id, &running, &r, &tail, &e), 0);
    assert_true(running);
    int pid = atoi(buf_text(&tail));
    assert_true(pid > 1);
    kill(pid, SIGKILL);
    while (running)
        assert_int_equal(agent_process(second, detached.id, &running, &r, NULL, &e), 0);
    assert_false(r.exited);
    assert_int_equal(r.status, SIGKILL);
    buf_fini(&tail);
    agent_free(second);
    listener_stop(&l);
}

/* What the agent hears before a hello: garbage, a frame cut short, requests without a session. */
static void test_garbage_first(void **state)
{
    (void)state;
    struct listener l;
    struct err e = ERR_INIT;
    uint8_t noise[5000];
    fill(noise, sizeof(noise));
    uint8_t cut[AGENT_HEADER_LEN + 4] = {0};
    uint8_t text[1000] = {0};
    agent_put_header(cut, AGENT_HELLO, 0, text, AGENT_HELLO_LEN);
    uint8_t whole[AGENT_HEADER_LEN + 8] = {0};
    agent_put_header(whole, AGENT_POWER_OFF, 3, whole + AGENT_HEADER_LEN, 8);
    const struct {
        const uint8_t *bytes;
        size_t len;
    } cases[] = {{noise, sizeof(noise)},
                 {cut, 4},
                 {cut, AGENT_HEADER_LEN},
                 {cut, sizeof(cut)},
                 {whole, sizeof(whole)},
                 {text, 3},
                 {noise, 0}};
    listener_start(&l);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int fd = listener_connect(&l);
        assert_int_equal(write(fd, cases[i].bytes, cases[i].len), cases[i].len);
        struct agent *agent = open_agent(fd, NULL);
        struct agent_exec exec = shell(SHELL("exit 6"));
        struct agent_result r = {.status = 0};
        assert_int_equal(agent_run(agent, &exec, NULL, NULL, &r, &e), 0);
        assert_int_equal(r.status, 6);
        agent_free(agent);
    }
    listener_stop(&l);
}

/* A session that dies in the middle of a frame, and another hello on the same connection. */
static void test_hello_in_mid_frame(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint8_t header[AGENT_HEADER_LEN];
    AUTO_FREE uint8_t *payload = mem_zalloc(AGENT_PAYLOAD_MAX);
    agent_put_header(header, AGENT_EXEC, 1, payload, AGENT_PAYLOAD_MAX);
    int fd = dup(f->agent->fd);
    assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
    assert_int_equal(write(fd, payload, 1000), 1000);
    agent_free(f->agent);
    f->agent = open_agent(fd, &f->cancel);
    struct agent_exec exec = shell(SHELL("exit 6"));
    struct agent_result r = {.status = 0};
    assert_int_equal(agent_run(f->agent, &exec, NULL, NULL, &r, &e), 0);
    assert_int_equal(r.status, 6);
}

/* Every request with a payload of every short length: refused or answered, never a crash. */
static void test_malformed_requests(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    static const uint8_t patterns[] = {0x00, 0x01, 0xff};
    for (uint32_t type = AGENT_EXEC; type <= AGENT_POWER_OFF + 3; type++) {
        if (type == AGENT_STDIN || type == AGENT_SYNC) /* no answer; slow */
            continue;
        for (size_t len = 0; len < 64 * ARRAY_LEN(patterns); len++) {
            uint8_t payload[64];
            memset(payload, patterns[len % ARRAY_LEN(patterns)], sizeof(payload));
            uint32_t stream = agent_link_stream(f->agent);
            assert_int_equal(
                agent_link_send(f->agent, type, stream, payload, len / ARRAY_LEN(patterns), &e), 0);
            struct agent_frame reply = {.type = 0};
            bool got = false;
            assert_int_equal(agent_link_receive(f->agent, clock_ms() + 20000, &reply, &got, &e), 0);
            assert_true(got);
            assert_int_equal(reply.stream, stream);
        }
        if (type == AGENT_FREEZE)
            assert_int_equal(agent_thaw(f->agent, &e), 0);
    }
}

/* A host that sends more input than it may is no host of ours. */
static void test_window_overrun(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *payload = mem_zalloc(AGENT_WINDOW + 1);
    struct agent_exec exec = shell(SHELL("exec sleep 1000"));
    exec.detach = true;
    exec.input = payload;
    exec.input_len = AGENT_WINDOW;
    struct agent_result r;
    assert_int_equal(agent_run(f->agent, &exec, NULL, NULL, &r, &e), 0);
    int64_t now_ns;
    assert_int_equal(agent_clock(f->agent, &now_ns, &e), 0);
    assert_int_equal(
        agent_link_send(f->agent, AGENT_STDIN, f->agent->next_stream - 1, payload, 1, &e), 0);
    int fd = dup(f->agent->fd);
    struct agent_frame reply;
    bool got = true;
    assert_int_equal(agent_link_receive(f->agent, clock_ms() + 300, &reply, &got, &e), 0);
    assert_false(got);
    agent_free(f->agent);
    f->agent = open_agent(fd, &f->cancel);
    assert_int_equal(agent_clock(f->agent, &now_ns, &e), 0);
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
        AGENT_TEST(test_files),
        AGENT_TEST(test_probe),
        AGENT_TEST(test_frozen),
        AGENT_TEST(test_output_refused),
        AGENT_TEST(test_cancel),
        cmocka_unit_test_setup(test_connection_lost, set_up),
        cmocka_unit_test(test_reconnect),
        cmocka_unit_test(test_garbage_first),
        AGENT_TEST(test_hello_in_mid_frame),
        AGENT_TEST(test_malformed_requests),
        AGENT_TEST(test_window_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
