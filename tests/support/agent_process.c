/* SPDX-License-Identifier: MIT */
/* See agent_process.h. */
#include "agent_process.h"

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
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/link.h"
#include "base/clock.h"
#include "base/file.h"

pid_t start_agent(const char *option, int fd)
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

struct agent *open_agent(int fd, const struct cancel *cancel)
{
    struct err e = ERR_INIT;
    struct agent *agent = NULL;
    struct agent_peer peer = {.fd = fd, .timeout_ms = 20000, .cancel = cancel};
    if (agent_open_fd(&agent, &peer, &e) < 0)
        fail_msg("%s", e.text);
    return agent;
}

int set_up(void **state)
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

int tear_down(void **state)
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

int collect(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct output *o = ctx;
    return buf_add(stream == 1 ? &o->out : &o->err, data, len, e);
}

void output_init(struct output *o)
{
    buf_init(&o->out, (size_t)64 << 20);
    buf_init(&o->err, (size_t)64 << 20);
}

void output_fini(struct output *o)
{
    buf_fini(&o->out);
    buf_fini(&o->err);
}

const char *const plain_env[] = {"PATH=/usr/bin:/bin", NULL};

struct agent_exec shell(const char *const argv[4])
{
    return (struct agent_exec){.argv = argv, .env = plain_env};
}

struct agent_result run_ok(struct fixture *f, const struct agent_exec *exec, struct output *o)
{
    struct err e = ERR_INIT;
    struct agent_result result = {.exited = false};
    if (agent_run(f->agent, exec, collect, o, &result, &e) < 0)
        fail_msg("%s", e.text);
    return result;
}

void fill(uint8_t *bytes, size_t len)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
}

void put_file(struct fixture *f, const char *name, const char *text, uint32_t mode, char path[128])
{
    struct err e = ERR_INIT;
    snprintf(path, 128, "%s/%s", f->dir, name);
    if (agent_put(f->agent, path, mode, text, strlen(text), &e) < 0)
        fail_msg("%s", e.text);
}

void wait_gone(pid_t pid)
{
    int64_t until = clock_ms() + 10000;
    while (kill(pid, 0) == 0 && clock_ms() < until)
        clock_sleep_ms(5);
    assert_true(kill(pid, 0) < 0 && errno == ESRCH);
}
