/* SPDX-License-Identifier: MIT */
/* A cancel request is an eventfd that is never read: once written it stays readable. */
#include "base/cancel.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

int cancel_init(struct cancel *c, struct err *e)
{
    c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->fd < 0)
        return err_sys(e, "making a cancel event");
    return 0;
}

void cancel_fini(struct cancel *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

void cancel_set(struct cancel *c)
{
    int saved = errno; /* may run in a signal handler */
    uint64_t one = 1;
    ssize_t written = write(c->fd, &one, sizeof(one));
    (void)written; /* EAGAIN: set already, 2^64 - 2 times over */
    errno = saved;
}

bool cancel_is_set(const struct cancel *c)
{
    if (!c)
        return false;
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

int cancel_check(const struct cancel *c, struct err *e)
{
    return cancel_is_set(c) ? err_set(e, ERR_CANCELLED, "cancelled") : 0;
}

int cancel_sleep_ms(const struct cancel *c, long ms, struct err *e)
{
    if (!c) {
        clock_sleep_ms(ms);
        return 0;
    }
    int64_t end = clock_ms() + ms;
    for (int64_t left = ms; left > 0; left = end - clock_ms()) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        int n = poll(&p, 1, left > 60000 ? 60000 : (int)left);
        if (n == 1)
            break;
    }
    return cancel_check(c, e);
}
