/* SPDX-License-Identifier: MIT */
/*
 * The byte stream to the host, in frames. Two facts of the virtio-serial driver
 * (drivers/char/virtio_console.c) shape it: while the host end is closed, read gives 0 and poll
 * gives POLLHUP for ever, so a hung-up port is left out of the poll set; and the driver sends
 * SIGIO when the host end opens or closes, which puts it back.
 *
 * A connection can end anywhere, also unnoticed (a snapshot in between). So without a session, and
 * after anything that is no frame, all bytes are skipped until a whole valid hello is found.
 *
 * Back-pressure: programs' output is queued only up to OUT_BUSY, requests are read only while the
 * longest reply fits. A host that does not read stalls its own stream, nothing else: timeouts,
 * detached processes and reaping go on.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void channel_init(struct channel *c, enum channel_kind kind, int fd)
{
    c->kind = kind;
    c->link = (struct source){.fd = kind == CHANNEL_LISTENER ? -1 : fd, .watch = -1};
    c->listener = (struct source){.fd = kind == CHANNEL_LISTENER ? fd : -1, .watch = -1};
}

bool channel_has_room(const struct channel *c, size_t len)
{
    return OUT_MAX - c->out_len >= len;
}

bool channel_wants_output(const struct channel *c)
{
    return c->out_len < OUT_BUSY;
}

uint8_t *channel_reserve(struct channel *c, size_t len)
{
    if (!channel_has_room(c, len + AGENT_HEADER_LEN))
        return NULL;
    if (OUT_MAX - c->out_at - c->out_len < len + AGENT_HEADER_LEN) {
        memmove(c->out, c->out + c->out_at, c->out_len);
        explicit_bzero(c->out + c->out_len, c->out_at);
        c->out_at = 0;
    }
    return c->out + c->out_at + c->out_len + AGENT_HEADER_LEN;
}

void channel_send_reserved(struct channel *c, uint32_t type, uint32_t stream, size_t len)
{
    if (!c->session)
        return;
    uint8_t *header = c->out + c->out_at + c->out_len;
    agent_put_header(header, type, stream, header + AGENT_HEADER_LEN, len);
    c->out_len += AGENT_HEADER_LEN + len;
}

void channel_send(struct channel *c, uint32_t type, uint32_t stream, const void *payload,
                  size_t len)
{
    uint8_t *at = channel_reserve(c, len);
    if (!at)
        return;
    if (len)
        memcpy(at, payload, len);
    channel_send_reserved(c, type, stream, len);
}

void channel_send_error(struct channel *c, uint32_t stream, enum agent_stage stage, int sys,
                        const char *detail)
{
    uint8_t payload[8 + AGENT_DETAIL_MAX];
    size_t len = strnlen(detail, AGENT_DETAIL_MAX);
    agent_put_u32(payload, (uint32_t)stage);
    agent_put_u32(payload + 4, (uint32_t)sys);
    memcpy(payload + 8, detail, len);
    channel_send(c, AGENT_ERROR, stream, payload, 8 + len);
}

/* What went through does not stay: it may be a secret, and would be in every snapshot. */
void channel_drop(struct channel *c, size_t frame_len)
{
    c->in_len -= frame_len;
    memmove(c->in, c->in + frame_len, c->in_len);
    explicit_bzero(c->in + c->in_len, frame_len);
}

void channel_desync(struct channel *c)
{
    c->session = false;
    explicit_bzero(c->out + c->out_at, c->out_len);
    c->out_at = 0;
    c->out_len = 0;
}

/* Skips to the next hello; true when a whole one stands at the start of the buffer. */
static bool channel_find_hello(struct channel *c, struct agent_frame *out, size_t *frame_len)
{
    size_t at = 0;
    for (; c->in_len - at >= 4; at++) {
        const uint8_t *header = c->in + at;
        size_t left = c->in_len - at;
        if (agent_get_u32(header) != AGENT_MAGIC)
            continue;
        if (left >= AGENT_HEADER_LEN && (agent_get_u32(header + 4) != AGENT_HELLO ||
                                         agent_get_u32(header + 12) != AGENT_HELLO_LEN))
            continue;
        long found = agent_frame_parse(header, left, out);
        if (found < 0)
            continue;
        channel_drop(c, at);
        if (found == 0)
            return false;
        *frame_len = (size_t)found;
        out->payload = c->in + AGENT_HEADER_LEN;
        return true;
    }
    channel_drop(c, at);
    return false;
}

bool channel_next(struct channel *c, struct agent_frame *out, size_t *frame_len)
{
    if (c->session) {
        long found = agent_frame_parse(c->in, c->in_len, out);
        if (found > 0)
            *frame_len = (size_t)found;
        if (found >= 0)
            return found > 0;
        channel_desync(c);
    }
    return channel_find_hello(c, out, frame_len);
}

void channel_watch(struct channel *c, struct loop *l)
{
    loop_watch(l, &c->listener, c->link.fd < 0 ? POLLIN : 0);
    int events = 0;
    if (c->in_len < sizeof(c->in) && channel_has_room(c, REPLY_MAX))
        events |= POLLIN;
    if (c->out_len)
        events |= POLLOUT;
    loop_watch(l, &c->link, c->hung_up ? 0 : events);
}

static bool channel_would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static void channel_write(struct channel *c)
{
    while (c->out_len) {
        ssize_t sent = write(c->link.fd, c->out + c->out_at, c->out_len);
        if (sent <= 0)
            return; /* an end of the connection shows in read */
        explicit_bzero(c->out + c->out_at, (size_t)sent);
        c->out_at += (size_t)sent;
        c->out_len -= (size_t)sent;
    }
    c->out_at = 0;
}

static void channel_accept(struct channel *c)
{
    int fd = accept4(c->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        c->link.fd = fd;
}

bool channel_pump(struct channel *c, struct loop *l)
{
    if (loop_events(l, &c->listener))
        channel_accept(c);
    short events = loop_events(l, &c->link);
    if (events & POLLOUT)
        channel_write(c);
    if (!(events & (POLLIN | POLLHUP | POLLERR)))
        return true;
    if (c->in_len == sizeof(c->in))
        return !(events & (POLLHUP | POLLERR));
    ssize_t got = read(c->link.fd, c->in + c->in_len, sizeof(c->in) - c->in_len);
    if (got > 0)
        c->in_len += (size_t)got;
    return got > 0 || (got < 0 && channel_would_block());
}

void channel_hang_up(struct channel *c)
{
    channel_desync(c);
    c->in_len = 0;
    if (c->kind == CHANNEL_PORT)
        c->hung_up = true;
    else
        source_close(&c->link);
}
