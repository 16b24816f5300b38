/* SPDX-License-Identifier: MIT */
/*
 * Programs run for the host: a fixed table of them.
 *
 * Life of a slot: STARTING (the `start` pipe is open: it closes when exec succeeded, or carries why
 * not), running, ended (pid is 0), reported (attached is false), free. An end is reported only
 * after all output up to the end of both pipes, or, when a child left behind holds them open, after
 * EXIT_GRACE_MS and what was in the pipes then. Such pipes are read on and thrown away until they
 * close, so that a daemon started by a step does not die of SIGPIPE; the slot is taken back from
 * the longest-ended process when the table is full.
 *
 * A program on a terminal has the terminal's master in place of the pipes: what it prints is one stream,
 * and the end of the host's input is no end of file for it.
 *
 * A time-out, or the loss of the host, kills the process group and, where there is a version 2
 * cgroup, the whole cgroup of the process: a child that left the group is reached too.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void cgroup_name(char name[32], uint64_t id)
{
    snprintf(name, 32, "%llu", (unsigned long long)id);
}

static void process_release(struct guest *g, struct process *p)
{
    source_close(&p->start);
    source_close(&p->in);
    source_close(&p->out[0]);
    source_close(&p->out[1]);
    if (p->cgroup >= 0) {
        char name[32];
        cgroup_name(name, p->id);
        close(p->cgroup);
        unlinkat(g->cgroups, name, AT_REMOVEDIR); /* stays while something lives in it */
    }
    p->used = false;
}

static struct process *process_slot(struct guest *g)
{
    struct process *oldest = NULL;
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct process *p = &g->processes[i];
        if (!p->used)
            return p;
        bool over = p->pid == 0 && p->start.fd < 0 && (p->detached || !p->attached);
        if (over && (!oldest || p->id < oldest->id))
            oldest = p;
    }
    if (oldest)
        process_release(g, oldest);
    return oldest;
}

static struct process *process_of_stream(struct guest *g, uint32_t stream)
{
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct process *p = &g->processes[i];
        if (p->used && p->attached && p->stream == stream)
            return p;
    }
    return NULL;
}

static void process_kill(struct process *p)
{
    if (p->pid > 0)
        kill(-p->pid, SIGKILL);
    if (p->pid > 0)
        kill(p->pid, SIGKILL); /* before its setsid there is no group */
    if (p->cgroup < 0)
        return;
    int fd = openat(p->cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t written = write(fd, "1", 1);
    (void)written; /* nothing more can be done about it */
    close(fd);
}

static int process_make_cgroup(struct guest *g, uint64_t id)
{
    if (g->cgroups < 0)
        return -1;
    char name[32];
    cgroup_name(name, id);
    if (mkdirat(g->cgroups, name, 0755) < 0 && errno != EEXIST)
        return -1;
    return openat(g->cgroups, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int pipe_open(int *reader, int *writer)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *reader = ends[0];
    *writer = ends[1];
    return 0;
}

static void unblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static void terminal_size(int fd, uint32_t rows, uint32_t columns)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
    ioctl(fd, TIOCSWINSZ, &size); /* a program that asks gets 0 by 0 then */
}

/* A new terminal: its master twice, for each direction, so that one can be closed alone. */
static int process_open_terminal(struct process *p, struct spawn_ends *ends,
                                 const struct exec_request *request)
{
    int locked = 0;
    int master = openat(AT_FDCWD, "/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return -errno;
    p->terminal = true;
    p->out[0].fd = master;
    if (ioctl(master, TIOCSPTLCK, &locked) < 0)
        return -errno;
    ends->terminal = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    p->in.fd = fcntl(master, F_DUPFD_CLOEXEC, 3);
    if (ends->terminal < 0 || p->in.fd < 0)
        return -errno;
    terminal_size(master, request->rows, request->columns);
    return 0;
}

/* The pipes: our sides into `p`, the child's sides into `ends`. */
static int process_open_pipes(struct process *p, struct spawn_ends *ends,
                              const struct exec_request *request)
{
    int result = pipe_open(&p->start.fd, &ends->failure);
    if (request->terminal)
        return result < 0 ? result : process_open_terminal(p, ends, request);
    for (int i = 0; result == 0 && i < 2; i++)
        result = pipe_open(&p->out[i].fd, &ends->out[i]);
    if (result == 0 && request->has_input)
        result = pipe_open(&ends->in, &p->in.fd);
    return result;
}

static void ends_close(struct spawn_ends *ends)
{
    const int fds[] = {ends->in, ends->out[0], ends->out[1], ends->terminal, ends->failure};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

static void process_reset(struct process *p, uint64_t id, uint32_t stream, bool detached)
{
    p->used = true;
    p->attached = true;
    p->detached = detached;
    p->timed_out = false;
    p->terminal = false;
    p->oom_before = machine_oom_kills();
    p->oom_kills = 0;
    p->id = id;
    p->stream = stream;
    p->pid = 0;
    p->status = 0;
    p->deadline_ms = -1;
    p->grace_ms = -1;
    p->draining = false;
    p->left[0] = p->left[1] = 0;
    p->start = p->in = p->out[0] = p->out[1] = (struct source){.fd = -1, .watch = -1};
    p->cgroup = -1;
    p->in_at = p->in_len = 0;
    p->in_end = false;
    p->tail_at = p->tail_len = 0;
}

void process_start(struct guest *g, uint32_t stream, struct exec_request *request)
{
    struct process *p = process_slot(g);
    if (!p) {
        channel_send_error(&g->channel, stream, AGENT_AT_SPAWN, EAGAIN,
                           "the agent's process table is full");
        return;
    }
    process_reset(p, g->next_id++, stream, request->detach);
    p->alone = request->alone;
    p->cgroup = process_make_cgroup(g, p->id);
    struct spawn_ends ends = {.in = -1,
                              .out = {-1, -1},
                              .terminal = -1,
                              .failure = -1,
                              .cgroup = p->cgroup,
                              .machine = g->machine};
    int failed = process_open_pipes(p, &ends, request);
    if (failed == 0) {
        p->pid = fork();
        if (p->pid == 0)
            spawn_child(&ends, request);
        if (p->pid < 0) {
            failed = -errno;
            p->pid = 0;
        }
    }
    ends_close(&ends);
    if (failed < 0) {
        channel_send_error(&g->channel, stream, AGENT_AT_SPAWN, -failed, "making the process");
        process_release(g, p);
        return;
    }
    const int ours[] = {p->start.fd, p->in.fd, p->out[0].fd, p->out[1].fd};
    for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
        if (ours[i] >= 0)
            unblock(ours[i]);
    }
    if (request->timeout_ms && request->timeout_ms < INT64_MAX / 2)
        p->deadline_ms = now_ms() + (int64_t)request->timeout_ms;
}

bool process_input(struct guest *g, uint32_t stream, const uint8_t *data, size_t len)
{
    struct process *p = process_of_stream(g, stream);
    if (!p)
        return true; /* it has ended: what was under way to it is dropped */
    if (p->in_end || len > AGENT_WINDOW - p->in_len)
        return false;
    if (len == 0)
        p->in_end = true;
    if (p->in_at) {
        memmove(p->input, p->input + p->in_at, p->in_len);
        p->in_at = 0;
    }
    memcpy(p->input + p->in_len, data, len);
    p->in_len += len;
    return true;
}

static void process_credit(struct guest *g, struct process *p, size_t len)
{
    p->in_at += len;
    p->in_len -= len;
    uint8_t payload[4];
    agent_put_u32(payload, (uint32_t)len);
    if (p->attached && !p->detached)
        channel_send(&g->channel, AGENT_CREDIT, p->stream, payload, sizeof(payload));
}

/* A program that closed its stdin, or ended, does not stop the host: the rest is taken and
 * dropped. */
static void process_pump_input(struct guest *g, struct process *p, short events)
{
    if (p->in_len && events) {
        ssize_t sent = write(p->in.fd, p->input + p->in_at, p->in_len);
        if (sent > 0)
            process_credit(g, p, (size_t)sent);
        else if (sent < 0 && errno != EAGAIN && errno != EINTR)
            source_close(&p->in);
    }
    if (p->in_len && p->in.fd < 0)
        process_credit(g, p, p->in_len);
    if (p->in_end && !p->in_len)
        source_close(&p->in);
}

static void tail_add(struct process *p, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        p->tail[p->tail_at] = data[i];
        p->tail_at = (p->tail_at + 1) % AGENT_TAIL_MAX;
    }
    p->tail_len = p->tail_len + len > AGENT_TAIL_MAX ? AGENT_TAIL_MAX : p->tail_len + len;
}

/* Reads once from an output pipe. Bytes go to the host, to the tail, or nowhere. */
static void process_pump_output(struct guest *g, struct process *p, int index)
{
    uint8_t scrap[AGENT_DATA_MAX];
    bool live = p->attached && !p->detached;
    uint8_t *at = live ? channel_reserve(&g->channel, AGENT_DATA_MAX) : scrap;
    if (!at)
        return;
    size_t want = AGENT_DATA_MAX;
    if (live && p->draining && p->left[index] < want)
        want = p->left[index];
    if (!want)
        return;
    ssize_t got = read(p->out[index].fd, at, want);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        source_close(&p->out[index]);
    if (got <= 0)
        return;
    if (live && p->draining)
        p->left[index] -= (size_t)got;
    if (live)
        channel_send_reserved(&g->channel, index == 0 ? AGENT_STDOUT : AGENT_STDERR, p->stream,
                              (size_t)got);
    else if (p->detached)
        tail_add(p, scrap, (size_t)got);
}

static void process_started(struct guest *g, struct process *p)
{
    struct spawn_failure failure;
    ssize_t got = read(p->start.fd, &failure, sizeof(failure));
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    source_close(&p->start);
    if (got == (ssize_t)sizeof(failure)) {
        failure.detail[sizeof(failure.detail) - 1] = 0;
        if (p->attached)
            channel_send_error(&g->channel, p->stream, (enum agent_stage)failure.stage, failure.sys,
                               failure.detail);
        p->attached = false;
        p->detached = false;
        source_close(&p->out[0]);
        source_close(&p->out[1]);
        return;
    }
    uint8_t payload[8];
    agent_put_u64(payload, p->id);
    if (p->attached)
        channel_send(&g->channel, AGENT_STARTED, p->stream, payload, sizeof(payload));
}

static void put_end(uint8_t payload[AGENT_END_LEN], const struct process *p)
{
    uint32_t end = AGENT_END_RUNNING;
    int status = 0;
    if (p->pid == 0) {
        end = WIFEXITED(p->status) ? AGENT_END_EXITED : AGENT_END_SIGNALLED;
        status = WIFEXITED(p->status) ? WEXITSTATUS(p->status) : WTERMSIG(p->status);
    }
    agent_put_u32(payload, end);
    agent_put_u32(payload + 4, (uint32_t)status);
    agent_put_u32(payload + 8, p->timed_out);
    agent_put_u32(payload + 12, p->oom_kills);
}

void process_resize(struct guest *g, uint32_t stream, uint32_t rows, uint32_t columns)
{
    struct process *p = process_of_stream(g, stream);
    if (p && p->terminal && p->out[0].fd >= 0)
        terminal_size(p->out[0].fd, rows, columns);
}

void process_report(struct guest *g, uint32_t stream, uint64_t id)
{
    struct process *p = NULL;
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        if (g->processes[i].used && g->processes[i].detached && g->processes[i].id == id)
            p = &g->processes[i];
    }
    uint8_t *at = channel_reserve(&g->channel, AGENT_END_LEN + AGENT_TAIL_MAX);
    if (!p || !at) {
        channel_send_error(&g->channel, stream, AGENT_AT_REQUEST, ESRCH, "no such process");
        return;
    }
    put_end(at, p);
    size_t first = (p->tail_at + AGENT_TAIL_MAX - p->tail_len) % AGENT_TAIL_MAX;
    for (size_t i = 0; i < p->tail_len; i++)
        at[AGENT_END_LEN + i] = p->tail[(first + i) % AGENT_TAIL_MAX];
    channel_send_reserved(&g->channel, AGENT_OK, stream, AGENT_END_LEN + p->tail_len);
}

/* After the main process ended: is everything that it wrote sent? */
static bool process_drained(struct process *p)
{
    if (p->out[0].fd < 0 && p->out[1].fd < 0)
        return true;
    if (!p->draining && now_ms() >= p->grace_ms) {
        p->draining = true;
        for (int i = 0; i < 2; i++) {
            int waiting = 0;
            if (p->out[i].fd >= 0 && ioctl(p->out[i].fd, FIONREAD, &waiting) == 0 && waiting > 0)
                p->left[i] = (size_t)waiting;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (p->out[i].fd < 0)
            p->left[i] = 0;
    }
    return p->draining && !p->left[0] && !p->left[1];
}

static void process_settle(struct guest *g, struct process *p)
{
    if (p->deadline_ms >= 0 && now_ms() >= p->deadline_ms && p->pid > 0) {
        p->timed_out = true;
        p->deadline_ms = -1;
        process_kill(p);
    }
    if (p->start.fd >= 0 || p->pid > 0)
        return;
    if (p->attached && !p->detached) {
        if (!process_drained(p) || !channel_wants_output(&g->channel))
            return;
        uint8_t payload[AGENT_END_LEN];
        put_end(payload, p);
        channel_send(&g->channel, AGENT_EXIT, p->stream, payload, sizeof(payload));
        p->attached = false;
    }
    if (!p->detached && p->out[0].fd < 0 && p->out[1].fd < 0)
        process_release(g, p);
}

void process_watch(struct guest *g, struct loop *l)
{
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct process *p = &g->processes[i];
        if (!p->used)
            continue;
        bool live = p->attached && !p->detached;
        bool take = !live || channel_wants_output(&g->channel);
        loop_watch(l, &p->start, POLLIN);
        loop_watch(l, &p->in, p->in_len ? POLLOUT : 0);
        for (int k = 0; k < 2; k++)
            loop_watch(l, &p->out[k], take && !(live && p->draining && !p->left[k]) ? POLLIN : 0);
        if (p->pid > 0)
            loop_deadline(l, p->deadline_ms);
        else if (live && !p->draining)
            loop_deadline(l, p->grace_ms);
    }
}

void process_pump(struct guest *g, struct loop *l)
{
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct process *p = &g->processes[i];
        if (!p->used)
            continue;
        if (loop_events(l, &p->start))
            process_started(g, p);
        process_pump_input(g, p, loop_events(l, &p->in));
        for (int k = 0; k < 2; k++) {
            if (p->start.fd < 0 && loop_events(l, &p->out[k]))
                process_pump_output(g, p, k);
        }
        process_settle(g, p);
    }
}

void process_reap(struct guest *g)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return;
        for (size_t i = 0; i < PROCESSES_MAX; i++) {
            struct process *p = &g->processes[i];
            if (!p->used || p->pid != pid)
                continue;
            if (p->alone)
                process_kill(p);
            p->pid = 0;
            p->status = status;
            p->oom_kills = (uint32_t)(machine_oom_kills() - p->oom_before);
            p->grace_ms = now_ms() + EXIT_GRACE_MS;
            source_close(&p->in);
        }
    }
}

/* All that this process is the parent of: in the end, all that it started. */
static void kill_children(void)
{
    char list[4096];
    if (files_read("/proc/thread-self/children", list, sizeof(list)) < 0)
        return;
    for (char *at = list, *end; *at; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at)
            return;
        if (pid > 0)
            kill((pid_t)pid, SIGKILL);
        end += strspn(end, " \n");
    }
}

/* Again and again, since one that forks may get a child past the signal. */
int process_end_all(struct guest *g)
{
    enum { WAIT_MS = 10000, POLL_NS = 2000000 };
    int64_t deadline_ms = now_ms() + WAIT_MS;
    for (;;) {
        siginfo_t info;
        if (g->machine)
            kill(-1, SIGKILL); /* as process 1: all but itself and the kernel's */
        else
            kill_children();
        process_reap(g);
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD)
            break;
        if (now_ms() >= deadline_ms)
            return -EBUSY;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct process *p = &g->processes[i];
        if (p->used && (p->detached || !p->attached))
            process_release(g, p);
    }
    return 0;
}

void process_abandon(struct guest *g, bool all)
{
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct process *p = &g->processes[i];
        if (!p->used)
            continue;
        if (all || (p->attached && !p->detached))
            process_kill(p);
        p->attached = false;
    }
}
