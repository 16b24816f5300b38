/* SPDX-License-Identifier: MIT */
/* Connections that end, and what the agent makes of the next one. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_process.h"
#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

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
    wait_gone((int)strtol(buf_text(&o.out), NULL, 10));
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
    wait_gone((int)strtol(buf_text(&o.out), NULL, 10));
    output_fini(&o);

    struct agent *second = open_agent(listener_connect(&l), NULL);
    bool running = false;
    struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    assert_int_equal(agent_process(second, detached.id, &running, &r, &tail, &e), 0);
    assert_true(running);
    int pid = (int)strtol(buf_text(&tail), NULL, 10);
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

static int hang_up(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    const struct agent *a = ctx;
    (void)stream;
    (void)data;
    (void)len;
    (void)e;
    shutdown(a->fd, SHUT_RDWR);
    return 0;
}

/* The connection goes a thousand times, with the first output or before it. */
static void test_a_thousand_losses(void **state)
{
    (void)state;
    struct listener l;
    struct err e = ERR_INIT;
    listener_start(&l);
    for (int i = 0; i < 1000; i++) {
        AUTO_AGENT struct agent *agent = open_agent(listener_connect(&l), NULL);
        struct agent_exec exec = shell(SHELL("echo all is well; exec sleep 1000"));
        struct agent_result r = {.exited = false, .status = 77};
        if (i % 2 == 1)
            shutdown(agent->fd, SHUT_RD);
        assert_int_equal(agent_run(agent, &exec, hang_up, agent, &r, &e), -ERR_NET);
        assert_int_equal(r.status, 77);
        assert_false(r.exited);
    }
    struct agent *last = open_agent(listener_connect(&l), NULL);
    struct agent_exec exec = shell(SHELL("exit 7"));
    struct agent_result r = {.exited = false};
    assert_int_equal(agent_run(last, &exec, NULL, NULL, &r, &e), 0);
    assert_true(r.exited && r.status == 7);
    agent_free(last);
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
        AGENT_TEST(test_output_refused),
        AGENT_TEST(test_cancel),
        cmocka_unit_test_setup(test_connection_lost, set_up),
        cmocka_unit_test(test_reconnect),
        cmocka_unit_test(test_a_thousand_losses),
        cmocka_unit_test(test_garbage_first),
        AGENT_TEST(test_hello_in_mid_frame),
        AGENT_TEST(test_window_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
