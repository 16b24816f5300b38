/* SPDX-License-Identifier: MIT */
/*
 * Child processes: no shell, own process group, killed when this process (strictly: the thread
 * that started it) dies. Thread-safe; a child belongs to one thread at a time.
 */
#ifndef TB2_BASE_PROC_H
#define TB2_BASE_PROC_H

#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"

struct proc {
    pid_t pid; /* -1 when none */
};

/* What a child starts with; borrowed for the call. */
struct proc_setup {
    const char *cwd;   /* NULL: the current directory */
    char *const *envp; /* NULL: the environment of this process */
    int stdin_fd;      /* these three: -1 for /dev/null */
    int stdout_fd;
    int stderr_fd;
};

/* Starts argv[0] (looked up in PATH). ERR_NOTFOUND if there is no such program. */
int proc_start(struct proc *p, const char *const argv[], const struct proc_setup *setup,
               struct err *e) MUST_USE;

/*
 * Waits at most `timeout_ms` (-1: for ever). *status is the wait status; ERR_TIMEOUT when the child
 * still runs, ERR_CANCELLED when `c` is set. The child is then still there.
 */
int proc_wait(struct proc *p, int64_t timeout_ms, const struct cancel *c, int *status,
              struct err *e) MUST_USE;

/* SIGKILLs the whole group and reaps the child. No-op when there is none. */
void proc_kill(struct proc *p);

/* How a program is run to its end. */
struct proc_io {
    const char *input; /* text on stdin; NULL: none */
    struct buf *out;   /* stdout and stderr, up to the buffers' ceilings; NULL: discarded */
    struct buf *err_out;
    int64_t timeout_ms;          /* it is killed after that */
    const struct cancel *cancel; /* may be NULL */
};

/* Runs a program to its end. *status is the wait status. Its standard streams are sockets, which
 * cannot be opened again as /dev/stdout. */
int proc_run(const char *const argv[], const struct proc_io *io, int *status,
             struct err *e) MUST_USE;

#endif
