/* SPDX-License-Identifier: MIT */
/*
 * A raw terminal: keys are bytes for the program in the guest, an interrupt character too, which its own
 * terminal turns into a signal. A new size arrives as SIGWINCH, whose handler only makes a descriptor
 * readable. Signals that end this program end it the usual way, through a cancel, so that the terminal
 * is as it was before.
 */
#include "cli/terminal.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/file.h"
#include "base/mem.h"

struct terminal {
    struct termios before;
    struct sigaction action_before;
    int resized; /* eventfd */
};

/* For the handler alone: the open terminal's eventfd; -1: none. */
static volatile sig_atomic_t resized_fd = -1;

static void on_resize(int number UNUSED)
{
    struct cancel c = {.fd = resized_fd};
    if (c.fd >= 0)
        cancel_set(&c);
}

static void take_size(void *ctx, uint16_t *rows, uint16_t *columns)
{
    const struct terminal *t = ctx;
    struct winsize size;
    uint64_t count;
    ssize_t got = read(t->resized, &count, sizeof(count)); /* nonblocking: often there is nothing */
    (void)got;
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) < 0)
        return;
    *rows = size.ws_row;
    *columns = size.ws_col;
}

void terminal_close(struct terminal *t)
{
    if (!t)
        return;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t->before);
    sigaction(SIGWINCH, &t->action_before, NULL);
    resized_fd = -1;
    file_close(&t->resized);
    free(t);
}

int terminal_open(struct terminal **out, struct agent_live *live, struct err *e)
{
    struct terminal *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "terminal");
    t->resized = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->resized < 0 || tcgetattr(STDIN_FILENO, &t->before) < 0) {
        int rc = err_sys(e, "the terminal on stdin");
        file_close(&t->resized);
        free(t);
        return rc;
    }
    struct sigaction action = {.sa_handler = on_resize, .sa_flags = SA_RESTART};
    struct termios raw = t->before;
    resized_fd = t->resized;
    sigaction(SIGWINCH, &action, &t->action_before);
    cfmakeraw(&raw);
    *live = (struct agent_live){.input_fd = STDIN_FILENO,
                                .terminal = true,
                                .resize_fd = t->resized,
                                .size = take_size,
                                .ctx = t};
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0) {
        int rc = err_sys(e, "making the terminal raw");
        terminal_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

const char *terminal_type(void)
{
    const char *type = getenv("TERM");
    return type && *type ? type : "xterm";
}
