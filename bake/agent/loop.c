/* SPDX-License-Identifier: MIT */
/*
 * One round of the event loop: every part adds the descriptors it can use right now and its
 * deadline, the loop waits once, every part looks at what happened. The poll set is built anew each
 * round from the state, so that there is no second copy of "what are we waiting for" to keep true.
 * A part that cannot make progress leaves its descriptor out: a hang-up cannot spin the loop.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

int64_t now_ms(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) < 0)
        return 0;
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void loop_begin(struct loop *l)
{
    l->count = 0;
    l->deadline_ms = -1;
}

void loop_watch(struct loop *l, struct source *s, int events)
{
    s->watch = -1;
    if (s->fd < 0 || !events || l->count == WATCHES_MAX)
        return;
    s->watch = l->count;
    l->fds[l->count++] = (struct pollfd){.fd = s->fd, .events = (short)events, .revents = 0};
}

void loop_deadline(struct loop *l, int64_t at_ms)
{
    if (at_ms >= 0 && (l->deadline_ms < 0 || at_ms < l->deadline_ms))
        l->deadline_ms = at_ms;
}

void loop_wait(struct loop *l)
{
    int timeout_ms = -1;
    if (l->deadline_ms >= 0) {
        int64_t left = l->deadline_ms - now_ms();
        timeout_ms = left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
    }
    if (poll(l->fds, (nfds_t)l->count, timeout_ms) < 0) {
        for (int i = 0; i < l->count; i++)
            l->fds[i].revents = 0;
    }
}

short loop_events(const struct loop *l, const struct source *s)
{
    if (s->watch < 0 || s->watch >= l->count || l->fds[s->watch].fd != s->fd)
        return 0;
    return l->fds[s->watch].revents;
}

void source_close(struct source *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    s->watch = -1;
}
