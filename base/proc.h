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

/*
 * Starts argv[0] (looked up in PATH) with the descriptors as its stdin, stdout and stderr; -1 means
 * /dev/null. `cwd` NULL keeps the current directory, `envp` NULL the environment. ERR_NOTFOUND if
 * there is no such program.
 */
int proc_start(struct proc *p, const char *const argv[], const char *cwd, char *const envp[],
               int stdin_fd, int stdout_fd, int stderr_fd, struct err *e) MUST_USE;

/*
 * Waits at most `timeout_ms` (-1: for ever). *status is the wait status; ERR_TIMEOUT when the child
 * still runs, ERR_CANCELLED when `c` is set. The child is then still there.
 */
int proc_wait(struct proc *p, int64_t timeout_ms, const struct cancel *c, int *status,
              struct err *e) MUST_USE;

/* SIGKILLs the whole group and reaps the child. No-op when there is none. */
void proc_kill(struct proc *p);

/*
 * Runs a program to its end with `input` on stdin (NULL: none), stdout and stderr collected up to
 * the ceilings of the buffers (either may be NULL: discarded); kills it after `timeout_ms`.
 * *status is the wait status.
 */
int proc_run(const char *const argv[], const char *input, struct buf *out, struct buf *err_out,
             int64_t timeout_ms, const struct cancel *c, int *status, struct err *e) MUST_USE;

#endif
