/* SPDX-License-Identifier: MIT */
/*
 * From a machine to its agent. Kept apart from the rest of the agent's host end, which knows no
 * machine, so that it can be tested against the agent as an ordinary process.
 */
#include <errno.h>
#include <string.h>

#include "bake/channel/console.h"
#include "bake/channel/link.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "base/clock.h"

enum { RETRY_MS = 20, CONSOLE_LINES = 5 };

/* The end of the console log, for a guest that says nothing else. */
static int add_console(struct vm *v, struct err *e)
{
    char tail[4096];
    char summary[1024];
    if (vm_console_tail(v, tail, sizeof(tail)) == 0)
        return -(int)e->class;
    console_summary(tail, CONSOLE_LINES, summary, sizeof(summary));
    char text[ERR_TEXT_MAX];
    memcpy(text, e->text, sizeof(text));
    return err_set(e, e->class, "%.900s; console: %s", text, summary);
}

int agent_connect(struct agent **out, struct vm *v, int64_t timeout_ms, const struct cancel *c,
                  struct err *e)
{
    int64_t deadline_ms = clock_ms() + timeout_ms;
    int fd = -1;
    while (vm_agent_open(v, &fd, e) < 0) {
        bool later = e->sys == ENOENT || e->sys == ECONNREFUSED || e->sys == EAGAIN;
        if (!later)
            return -(int)e->class;
        if (clock_ms() >= deadline_ms) {
            char why[ERR_TEXT_MAX];
            memcpy(why, e->text, sizeof(why));
            (void)err_set(e, ERR_TIMEOUT, "nobody answers for the guest's agent: %.900s", why);
            return add_console(v, e);
        }
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
    return rc == -ERR_TIMEOUT ? add_console(v, e) : rc;
}
