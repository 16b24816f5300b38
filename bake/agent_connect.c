/* SPDX-License-Identifier: MIT */
/*
 * From a machine to its agent. Kept apart from the rest of the agent's host end, which knows no
 * machine, so that it can be tested against the agent as an ordinary process.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "bake/internal.h"
#include "base/clock.h"
#include "base/file.h"

enum { RETRY_MS = 20, CONSOLE_SHOWN = 1024 };

static int connect_socket(int *out, const char *path, struct err *e)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(to.sun_path))
        return err_set(e, ERR_LIMIT, "socket path %s is too long", path);
    memcpy(to.sun_path, path, strlen(path) + 1);
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(e, "socket for the guest agent");
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0)
        return err_sys(e, "connecting to %s", path);
    *out = fd;
    fd = -1;
    return 0;
}

/* The end of the console log, printable, for a guest that says nothing else. */
static void add_console(struct vm *v, struct err *e)
{
    struct err ignored = ERR_INIT;
    const char *path = vm_console_path(v);
    char text[CONSOLE_SHOWN + 1];
    uint64_t size = 0;
    AUTO_FD int fd = -1;
    if (!path || file_size(AT_FDCWD, path, &size, &ignored) < 0 ||
        file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, &ignored) < 0)
        return;
    size_t len = size < CONSOLE_SHOWN ? (size_t)size : CONSOLE_SHOWN;
    if (len == 0 || file_pread_full(fd, text, len, size - len, &ignored) < 0)
        return;
    for (size_t i = 0; i < len; i++) {
        if ((text[i] < 0x20 && text[i] != '\n') || text[i] == 0x7f)
            text[i] = text[i] == '\r' || text[i] == '\t' ? ' ' : '?';
    }
    text[len] = 0;
    char before[ERR_TEXT_MAX];
    memcpy(before, e->text, sizeof(before));
    int rc = err_set(e, e->class, "%.900s; the console's last lines:\n%s", before, text);
    (void)rc;
}

int agent_connect(struct agent **out, struct vm *v, int64_t timeout_ms, const struct cancel *c,
                  struct err *e)
{
    int64_t deadline_ms = clock_ms() + timeout_ms;
    int fd = -1;
    while (connect_socket(&fd, vm_agent_socket(v), e) < 0) {
        bool later = e->sys == ENOENT || e->sys == ECONNREFUSED || e->sys == EAGAIN;
        if (!later || clock_ms() >= deadline_ms)
            return -(int)e->class;
        int rc = vm_check(v, e);
        if (rc == 0)
            rc = cancel_sleep_ms(c, RETRY_MS, e);
        if (rc < 0)
            return rc;
    }
    int64_t left_ms = deadline_ms - clock_ms();
    struct agent_peer peer = {
        .fd = fd, .vm = v, .check = vm_check, .timeout_ms = left_ms < 0 ? 0 : left_ms, .cancel = c};
    int rc = agent_open_fd(out, &peer, e);
    if (rc == -ERR_TIMEOUT)
        add_console(v, e);
    return rc;
}
