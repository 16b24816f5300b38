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
        AGENT_TEST(test_malformed_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
