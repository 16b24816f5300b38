/* SPDX-License-Identifier: MIT */
/* Files, ports, freeze, and requests that are none. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_process.h"
#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

/* ---- Files and the rest --------------------------------------------------------------------- */

static void test_files(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    char path[128];
    AUTO_FREE uint8_t *bytes = mem_zalloc(AGENT_TEST_BIG);
    fill(bytes, AGENT_TEST_BIG);
    snprintf(path, sizeof(path), "%s/a/b/c", f->dir);
    assert_int_equal(agent_make_dirs(f->agent, path, 0750, &e), 0);
    assert_int_equal(agent_make_dirs(f->agent, path, 0750, &e), 0);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0750);

    snprintf(path, sizeof(path), "%s/a/b/c/big", f->dir);
    static const size_t sizes[] = {
        0, 1, AGENT_CHUNK_MAX - 1, AGENT_CHUNK_MAX, AGENT_CHUNK_MAX + 1, AGENT_TEST_BIG};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        assert_int_equal(agent_put(f->agent, path, 0640, bytes, sizes[i], &e), 0);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 07777, 0640);
        assert_int_equal(info.st_size, sizes[i]);
        struct buf back;
        buf_init(&back, AGENT_TEST_BIG);
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
    assert_int_equal(agent_network(f->agent, NULL, &e), -ERR_UNSUPPORTED);
    assert_int_equal(agent_power_off(f->agent, &e), -ERR_UNSUPPORTED);
}

/* Both sources of random bytes answer, and nothing comes twice. */
static void test_random(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    enum { READS = 16, HALF = AGENT_RANDOM_SIZE / 2 };
    uint8_t bytes[READS][AGENT_RANDOM_SIZE];
    for (size_t i = 0; i < READS; i++)
        assert_int_equal(agent_random(f->agent, bytes[i], &e), 0);
    const uint8_t *all = bytes[0];
    for (size_t i = 0; i < sizeof(bytes); i += HALF) {
        for (size_t k = 0; k < i; k += HALF)
            assert_memory_not_equal(all + i, all + k, HALF);
    }
}

static void test_echo(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    static const size_t sizes[] = {
        0, 1, AGENT_CHUNK_MAX - 1, AGENT_CHUNK_MAX, AGENT_CHUNK_MAX + 1, AGENT_TEST_BIG};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        assert_int_equal(agent_echo(f->agent, sizes[i], &e), 0);
}

/* ---- A terminal ----------------------------------------------------------------------------- */

/* The size changes when the program has told the one it began with: a byte in the pipe says so. */
struct window {
    int pipe[2];
    uint16_t rows;
    struct output said;
};

static void window_size(void *ctx, uint16_t *rows, uint16_t *columns)
{
    struct window *w = ctx;
    char byte;
    if (read(w->pipe[0], &byte, 1) == 1)
        w->rows = 50;
    *rows = w->rows;
    *columns = 132;
}

static int watch_output(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct window *w = ctx;
    bool before = strstr(buf_text(&w->said.out), "a line\r\nerr\r\n") != NULL;
    int rc = collect(&w->said, stream, data, len, e);
    if (!before && strstr(buf_text(&w->said.out), "a line\r\nerr\r\n"))
        assert_int_equal(write(w->pipe[1], "x", 1), 1);
    return rc;
}

static void test_terminal(void **state)
{
    static const char line[] = "a line\n";
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    int input[2];
    struct window w = {.rows = 40};
    assert_int_equal(pipe2(input, O_CLOEXEC), 0);
    assert_int_equal(pipe2(w.pipe, O_CLOEXEC | O_NONBLOCK), 0);
    output_init(&w.said);
    struct agent_live live = {.input_fd = input[0],
                              .terminal = true,
                              .resize_fd = w.pipe[0],
                              .size = window_size,
                              .ctx = &w};
    struct agent_exec exec = shell(SHELL("trap 'stty size; exit 5' WINCH; stty -echo;"
                                         "tty -s && echo a terminal; stty size; head -n 1;"
                                         "echo err >&2; while :; do sleep 0.05; done"));
    exec.live = &live;
    assert_int_equal(write(input[1], line, sizeof(line) - 1), sizeof(line) - 1);
    struct agent_result r = {.exited = false};
    assert_int_equal(agent_run(f->agent, &exec, watch_output, &w, &r, &e), 0);
    assert_true(r.exited && r.status == 5);
    /* the line may be echoed before the program asks not to */
    const char *said = buf_text(&w.said.out);
    const char *begun = strstr(said, "a terminal\r\n");
    assert_non_null(begun);
    assert_string_equal(begun, "a terminal\r\n40 132\r\na line\r\nerr\r\n50 132\r\n");
    assert_int_equal(w.said.err.len, 0);
    output_fini(&w.said);
    for (int i = 0; i < 2; i++) {
        close(input[i]);
        close(w.pipe[i]);
    }
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

#define AGENT_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        AGENT_TEST(test_files),
        AGENT_TEST(test_probe),
        AGENT_TEST(test_frozen),
        AGENT_TEST(test_random),
        AGENT_TEST(test_echo),
        AGENT_TEST(test_terminal),
        AGENT_TEST(test_malformed_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
