/* SPDX-License-Identifier: MIT */
/*
 * Child processes. fork + exec by hand rather than posix_spawn: the child must get its own process
 * group, a parent-death signal and clean signal state, and report why exec failed. The report comes
 * through a close-on-exec pipe: its end of file means that exec succeeded.
 */
#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

struct child {
    const char *const *argv;
    const char *cwd;
    char *const *envp;
    int fds[3];
    int report;
    pid_t parent;
};

/* What the child says when it could not start. */
struct report {
    int sys;
    bool directory; /* it could not change to its directory */
};

/* Runs in the child: only async-signal-safe calls. Returns only on failure. */
static struct report child_exec(const struct child *c)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent)
        _exit(127); /* the parent died before the death signal was armed */
    /* Move the descriptors out of the way first, so that none is overwritten before it is used. */
    int moved[3];
    for (int i = 0; i < 3; i++) {
        moved[i] = fcntl(c->fds[i], F_DUPFD_CLOEXEC, 3);
        if (moved[i] < 0)
            return (struct report){.sys = errno};
    }
    for (int i = 0; i < 3; i++) {
        if (dup2(moved[i], i) < 0)
            return (struct report){.sys = errno};
    }
    if (c->cwd && chdir(c->cwd) < 0)
        return (struct report){.sys = errno, .directory = true};
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    char *const *argv;
    memcpy(&argv, &c->argv, sizeof(argv)); /* execvpe's prototype lacks const */
    execvpe(argv[0], argv, c->envp ? c->envp : environ);
    return (struct report){.sys = errno};
}

/* All zero when the child was started. */
static struct report report_read(int fd)
{
    struct report report = {.sys = 0};
    ssize_t n;
    do {
        n = read(fd, &report, sizeof(report));
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(report) ? report : (struct report){.sys = 0};
}

int proc_start(struct proc *p, const char *const argv[], const struct proc_setup *setup,
               struct err *e)
{
    AUTO_FD int null = -1;
    int rc = file_open(&null, AT_FDCWD, "/dev/null", O_RDWR, 0, e);
    if (rc < 0)
        return rc;
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(e, "starting %s", argv[0]);
    AUTO_FD int report_in = pipe_fds[0];
    AUTO_FD int report_out = pipe_fds[1];
    struct child c = {.argv = argv, .cwd = setup->cwd, .envp = setup->envp, .report = report_out};
    c.fds[0] = setup->stdin_fd >= 0 ? setup->stdin_fd : null;
    c.fds[1] = setup->stdout_fd >= 0 ? setup->stdout_fd : null;
    c.fds[2] = setup->stderr_fd >= 0 ? setup->stderr_fd : null;
    c.parent = getpid();
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, "starting %s", argv[0]);
    if (pid == 0) {
        struct report failure = child_exec(&c);
        ssize_t n = write(c.report, &failure, sizeof(failure));
        (void)n;
        _exit(127);
    }
    file_close(&report_out);
    struct report failure = report_read(report_in);
    if (failure.sys != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        if (failure.directory)
            return err_sysno(e, failure.sys, "starting %s in %s", argv[0], setup->cwd);
        if (failure.sys == ENOENT)
            return err_set(e, ERR_NOTFOUND, "program %s is not installed", argv[0]);
        return err_sysno(e, failure.sys, "starting %s", argv[0]);
    }
    p->pid = pid;
    return 0;
}

static int wait_step(struct proc *p, int *status, struct err *e)
{
    pid_t n;
    do {
        n = waitpid(p->pid, status, WNOHANG);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_sys(e, "waiting for process %ld", (long)p->pid);
    if (n == 0)
        return 0;
    p->pid = -1;
    return 1;
}

int proc_wait(struct proc *p, int64_t timeout_ms, const struct cancel *c, int *status,
              struct err *e)
{
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : clock_ms() + timeout_ms;
    AUTO_FD int pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    for (;;) {
        int rc = wait_step(p, status, e);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        int64_t left = deadline - clock_ms();
        if (left <= 0)
            return err_set(e, ERR_TIMEOUT, "process %ld still runs after %lld ms", (long)p->pid,
                           (long long)timeout_ms);
        rc = cancel_check(c, e);
        if (rc < 0)
            return rc;
        /* Without pidfd (an old kernel) fall back on short sleeps. */
        int64_t longest = pidfd >= 0 ? 60000 : 10;
        struct pollfd fds[2] = {{.fd = pidfd, .events = POLLIN},
                                {.fd = cancel_fd(c), .events = POLLIN}};
        (void)poll(fds, 2, cancel_wait_ms(c, left < longest ? left : longest));
    }
}

void proc_kill(struct proc *p)
{
    if (p->pid <= 0)
        return;
    kill(-p->pid, SIGKILL);
    kill(p->pid, SIGKILL);
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    p->pid = -1;
}

struct stream {
    int fd; /* our end, non-blocking; -1 when closed */
    struct buf *out;
};

/* Drains what there is; past the ceiling the rest is read and dropped. */
static void stream_read(struct stream *s)
{
    char piece[16384];
    ssize_t n = read(s->fd, piece, sizeof(piece));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        file_close(&s->fd);
        return;
    }
    if (s->out) {
        struct err ignored = ERR_INIT;
        size_t room = s->out->ceiling - s->out->len;
        if (buf_add(s->out, piece, (size_t)n < room ? (size_t)n : room, &ignored) < 0)
            s->out = NULL;
    }
}

struct feeder {
    int fd;
    const char *at;
    size_t left;
};

static void feeder_write(struct feeder *f)
{
    ssize_t n = send(f->fd, f->at, f->left, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        f->at += n;
        f->left -= (size_t)n;
    }
    if (n <= 0 || f->left == 0)
        file_close(&f->fd);
}

/* Moves bytes until both outputs are closed, the deadline passes or `c` is set. */
static int pump(struct stream streams[2], struct feeder *feed, int64_t deadline,
                const struct cancel *c, struct err *e)
{
    while (streams[0].fd >= 0 || streams[1].fd >= 0) {
        int64_t left = deadline - clock_ms();
        if (left <= 0)
            return err_set(e, ERR_TIMEOUT, "time limit passed");
        int rc = cancel_check(c, e);
        if (rc < 0)
            return rc;
        struct pollfd fds[4] = {{.fd = streams[0].fd, .events = POLLIN},
                                {.fd = streams[1].fd, .events = POLLIN},
                                {.fd = feed->fd, .events = POLLOUT},
                                {.fd = cancel_fd(c), .events = POLLIN}};
        (void)poll(fds, 4, cancel_wait_ms(c, left));
        for (int i = 0; i < 2; i++) {
            if (streams[i].fd >= 0 && fds[i].revents)
                stream_read(&streams[i]);
        }
        if (feed->fd >= 0 && fds[2].revents)
            feeder_write(feed);
    }
    return 0;
}

/* A socket pair rather than a pipe: writes to a child that has closed its stdin can then be told
 * not to raise SIGPIPE. */
static int open_pair(int *ours, int *theirs, struct err *e)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return err_sys(e, "connecting to a child process");
    *ours = fds[0];
    *theirs = fds[1];
    int flags = fcntl(*ours, F_GETFL);
    if (flags < 0 || fcntl(*ours, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_sys(e, "connecting to a child process");
    return 0;
}

int proc_run(const char *const argv[], const struct proc_io *io, int *status, struct err *e)
{
    int ours[3] = {-1, -1, -1};
    int theirs[3] = {-1, -1, -1};
    int rc = 0;
    for (int i = io->input ? 0 : 1; rc == 0 && i < 3; i++)
        rc = open_pair(&ours[i], &theirs[i], e);
    struct proc p = {.pid = -1};
    if (rc == 0)
        rc = proc_start(&p, argv,
                        &(struct proc_setup){
                            .stdin_fd = theirs[0], .stdout_fd = theirs[1], .stderr_fd = theirs[2]},
                        e);
    for (int i = 0; i < 3; i++)
        file_close(&theirs[i]);
    int64_t deadline = clock_ms() + io->timeout_ms;
    struct stream streams[2] = {{ours[1], io->out}, {ours[2], io->err_out}};
    struct feeder feed = {
        .fd = ours[0], .at = io->input, .left = io->input ? strlen(io->input) : 0};
    if (feed.fd >= 0 && feed.left == 0)
        file_close(&feed.fd);
    if (rc == 0)
        rc = pump(streams, &feed, deadline, io->cancel, e);
    if (rc == 0) {
        int64_t left = deadline - clock_ms();
        rc = proc_wait(&p, left > 0 ? left : 0, io->cancel, status, e);
    }
    proc_kill(&p);
    file_close(&streams[0].fd);
    file_close(&streams[1].fd);
    file_close(&feed.fd);
    return rc < 0 ? err_in(e, "%s", argv[0]) : 0;
}
