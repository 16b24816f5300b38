/* SPDX-License-Identifier: MIT */
/*
 * The byte stream to the guest agent, in frames. The guest is hostile: a frame has a ceiling, one
 * is held at a time, and whatever does not parse breaks the link for good. Both directions move in
 * the same wait, so a guest that does not read cannot keep us from reading.
 *
 * Opening: the far end may still hold half a frame of an earlier connection (a snapshot lies in
 * between), and old bytes of its own may come first. So bytes are skipped until the reply with our
 * nonce comes, and from the second try on a hello is preceded by as many zeros as the longest frame
 * has: they complete, and thereby spoil, whatever the guest was in the middle of.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/link.h"
#include "bake/channel/protocol.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

enum {
    OUT_CEILING = 4 * AGENT_FRAME_MAX,
    HELLO_AGAIN_MS = 1000,
    CHECK_MS = 250,      /* between looks at the machine while a hello waits */
    LOOK_MS = 1000,      /* the same while anything else does */
    ENDED_WAIT_MS = 2000 /* for the machine's end to show after its socket closed */
};

static const uint64_t SKIP_MAX = (uint64_t)64 << 20; /* bytes before a hello is answered */

static int64_t earlier(int64_t a, int64_t b)
{
    if (a < 0 || b < 0)
        return a < 0 ? b : a;
    return a < b ? a : b;
}

void agent_link_break(struct agent *a)
{
    file_close(&a->fd);
    a->fd = -1;
}

/* The far end is gone: says why the machine ended if it did, else that the connection is lost. */
static int link_lost(struct agent *a, int sys, struct err *e)
{
    agent_link_break(a);
    int64_t until = clock_ms() + ENDED_WAIT_MS;
    while (a->check && clock_ms() < until) {
        if (a->check(a->vm, e) < 0)
            return err_in(e, "connection to the guest agent lost");
        clock_sleep_ms(20);
    }
    return err_set(e, ERR_NET, "connection to the guest agent lost%s%s", sys ? ": " : "",
                   sys ? strerror(sys) : "");
}

/* Of a machine that ended the socket may stay open: Firecracker goes on when its guest powers off. */
static int link_look(struct agent *a, struct err *e)
{
    if (!a->check || a->check(a->vm, e) == 0)
        return 0;
    agent_link_break(a);
    return err_in(e, "connection to the guest agent lost");
}

static int link_check_open(const struct agent *a, struct err *e)
{
    if (a->fd >= 0)
        return 0;
    return err_set(e, ERR_NET, "the connection to the guest agent was given up earlier");
}

uint32_t agent_link_stream(struct agent *a)
{
    a->next_stream = a->next_stream == UINT32_MAX ? 1 : a->next_stream + 1;
    return a->next_stream;
}

int agent_link_send(struct agent *a, uint32_t type, uint32_t stream, const void *payload,
                    size_t len, struct err *e)
{
    uint8_t header[AGENT_HEADER_LEN];
    int rc = link_check_open(a, e);
    if (rc < 0)
        return rc;
    if (len > AGENT_PAYLOAD_MAX)
        return err_set(e, ERR_LIMIT, "request of %zu bytes to the guest agent (limit %d)", len,
                       AGENT_PAYLOAD_MAX);
    agent_put_header(header, type, stream, payload, len);
    rc = buf_add(&a->out, header, sizeof(header), e);
    if (rc == 0 && len > 0)
        rc = buf_add(&a->out, payload, len, e);
    if (rc < 0)
        agent_link_break(a);
    return rc;
}

static int link_write(struct agent *a, struct err *e)
{
    ssize_t sent = send(a->fd, a->out.data, a->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        return link_lost(a, errno, e);
    if (sent > 0)
        buf_drop(&a->out, (size_t)sent);
    return 0;
}

static int link_read(struct agent *a, struct err *e)
{
    ssize_t got = recv(a->fd, a->in + a->in_len, AGENT_FRAME_MAX - a->in_len, MSG_DONTWAIT);
    if (got == 0)
        return link_lost(a, 0, e);
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        return link_lost(a, errno, e);
    if (got > 0) {
        a->in_len += (size_t)got;
        a->heard_ms = clock_ms();
    }
    return 0;
}

/* Moves bytes once, waiting at most until the deadline. */
static int link_move(struct agent *a, int64_t deadline_ms, struct err *e)
{
    struct pollfd fds[2 + AGENT_ALSO_MAX] = {
        {.fd = a->fd, .events = POLLIN, .revents = 0},
        {.fd = cancel_fd(a->cancel), .events = POLLIN, .revents = 0}};
    size_t count = a->also ? a->also_count : 0;
    for (size_t i = 0; i < count; i++)
        fds[2 + i] = a->also[i];
    if (a->out.len)
        fds[0].events |= POLLOUT;
    int64_t left = deadline_ms >= 0 ? deadline_ms - clock_ms() : INT64_MAX;
    int ready = poll(fds, 2 + count, cancel_wait_ms(a->cancel, left));
    if (ready < 0 && errno != EINTR)
        return err_sys(e, "waiting for the guest agent");
    if (cancel_check(a->cancel, e) < 0) {
        agent_link_break(a);
        return -(int)e->class;
    }
    if (ready <= 0)
        return 0;
    for (size_t i = 0; i < count; i++) {
        a->also[i].revents = fds[2 + i].revents;
        a->woken = a->woken || fds[2 + i].revents;
    }
    int rc = fds[0].revents & POLLOUT ? link_write(a, e) : 0;
    if (rc == 0 && fds[0].revents & (POLLIN | POLLHUP | POLLERR))
        rc = link_read(a, e);
    return rc;
}

static void link_drop(struct agent *a, size_t len)
{
    a->in_len -= len;
    memmove(a->in, a->in + len, a->in_len);
}

int agent_link_receive(struct agent *a, int64_t deadline_ms, struct agent_frame *out, bool *got,
                       struct err *e)
{
    int rc = link_check_open(a, e);
    link_drop(a, a->taken);
    a->taken = 0;
    a->woken = false;
    int64_t look_ms = clock_ms() + LOOK_MS;
    while (rc == 0) {
        struct agent_frame frame = {.type = 0};
        long len = agent_frame_parse(a->in, a->in_len, &frame);
        if (len < 0) {
            agent_link_break(a);
            return err_set(e, ERR_CORRUPT, "the guest agent sent bytes that are no frame");
        }
        if (len > 0 && frame.type == AGENT_HELLO_REPLY) {
            link_drop(a, (size_t)len); /* of a hello that was said more than once */
            continue;
        }
        if (len > 0) {
            a->taken = (size_t)len;
            *out = frame;
            *got = true;
            return 0;
        }
        if (a->woken || (deadline_ms >= 0 && clock_ms() >= deadline_ms)) {
            *got = false;
            return 0;
        }
        size_t before = a->in_len;
        rc = link_move(a, earlier(deadline_ms, look_ms), e);
        if (rc == 0 && a->in_len == before && clock_ms() >= look_ms) {
            rc = link_look(a, e); /* what was said before the end is read by now */
            look_ms = clock_ms() + LOOK_MS;
        }
    }
    return rc;
}

int agent_link_refuse(struct agent *a, const struct agent_frame *f, struct err *e)
{
    agent_link_break(a);
    return err_set(e, ERR_CORRUPT,
                   "the guest agent sent a frame that has no place here (type %u, stream %u, "
                   "%zu bytes)",
                   (unsigned)f->type, (unsigned)f->stream, f->len);
}

/* ---- Hello ---------------------------------------------------------------------------------- */

static int say_hello(struct agent *a, const uint8_t nonce[AGENT_NONCE_LEN], bool spoil,
                     struct err *e)
{
    uint8_t payload[AGENT_HELLO_LEN];
    memcpy(payload, nonce, AGENT_NONCE_LEN);
    agent_put_u32(payload + AGENT_NONCE_LEN, AGENT_VERSION);
    if (spoil) {
        AUTO_FREE uint8_t *zeros = mem_zalloc(AGENT_FRAME_MAX);
        if (!zeros)
            return err_nomem(e, "hello to the guest agent");
        int rc = buf_add(&a->out, zeros, AGENT_FRAME_MAX, e);
        if (rc < 0)
            return rc;
    }
    return agent_link_send(a, AGENT_HELLO, 0, payload, sizeof(payload), e);
}

/* Skips to our reply; true when it stands at the start of the buffer and is whole. */
static bool find_reply(struct agent *a, const uint8_t nonce[AGENT_NONCE_LEN],
                       struct agent_frame *out, uint64_t *skipped)
{
    size_t at = 0;
    bool found = false;
    while (!found && a->in_len - at >= AGENT_HEADER_LEN) {
        const uint8_t *header = a->in + at;
        uint32_t len = agent_get_u32(header + 12);
        bool likely = agent_get_u32(header) == AGENT_MAGIC &&
                      agent_get_u32(header + 4) == AGENT_HELLO_REPLY &&
                      len >= AGENT_HELLO_REPLY_MIN &&
                      len <= AGENT_HELLO_REPLY_MIN + AGENT_DETAIL_MAX;
        long whole = likely ? agent_frame_parse(header, a->in_len - at, out) : -1;
        if (whole == 0)
            break;
        found = whole > 0 && memcmp(out->payload, nonce, AGENT_NONCE_LEN) == 0;
        at += found ? 0 : 1;
    }
    link_drop(a, at);
    *skipped += at;
    out->payload = a->in + AGENT_HEADER_LEN;
    return found;
}

static int take_reply(struct agent *a, const struct agent_frame *f, struct err *e)
{
    a->taken = AGENT_HEADER_LEN + f->len;
    uint32_t version = agent_get_u32(f->payload + AGENT_NONCE_LEN);
    if (version != AGENT_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "guest agent speaks protocol version %u, not %u",
                       (unsigned)version, AGENT_VERSION);
    memcpy(a->boot_id, f->payload + AGENT_NONCE_LEN + 4, AGENT_BOOT_ID_LEN);
    if (f->len == AGENT_HELLO_REPLY_MIN)
        return 0;
    char text[AGENT_DETAIL_MAX + 1];
    size_t len = f->len - AGENT_HELLO_REPLY_MIN;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = f->payload[AGENT_HELLO_REPLY_MIN + i];
        text[i] = byte >= 0x20 && byte < 0x7f ? (char)byte : '?';
    }
    text[len] = 0;
    return err_set(e, ERR_STEP, "the guest did not start: %s", text);
}

static int link_hello(struct agent *a, int64_t timeout_ms, struct err *e)
{
    uint8_t nonce[AGENT_NONCE_LEN];
    if (getrandom(nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce))
        return err_sys(e, "nonce for the guest agent");
    int64_t deadline_ms = timeout_ms < 0 ? -1 : clock_ms() + timeout_ms;
    int64_t again_ms = clock_ms();
    uint64_t skipped = 0;
    bool said = false;
    for (;;) {
        struct agent_frame reply = {.type = 0};
        if (find_reply(a, nonce, &reply, &skipped))
            return take_reply(a, &reply, e);
        if (skipped > SKIP_MAX)
            return err_set(e, ERR_CORRUPT, "the guest agent sends, but does not answer");
        if (deadline_ms >= 0 && clock_ms() >= deadline_ms)
            return err_set(e, ERR_TIMEOUT, "no answer from the guest agent after %lld ms",
                           (long long)timeout_ms);
        int rc = a->check ? a->check(a->vm, e) : 0;
        if (rc == 0 && clock_ms() >= again_ms && !a->out.len) {
            rc = say_hello(a, nonce, said, e);
            said = true;
            again_ms = clock_ms() + HELLO_AGAIN_MS;
        }
        if (rc == 0)
            rc = link_move(a, earlier(deadline_ms, clock_ms() + CHECK_MS), e);
        if (rc < 0)
            return rc;
    }
}

void agent_free(struct agent *a)
{
    if (!a)
        return;
    agent_link_break(a);
    buf_fini(&a->out);
    free(a->in);
    free(a);
}

int agent_open_fd(struct agent **out, const struct agent_peer *peer, struct err *e)
{
    AUTO_FD int fd = peer->fd;
    AUTO_AGENT struct agent *a = mem_zalloc(sizeof(*a));
    if (!a)
        return err_nomem(e, "guest agent");
    a->fd = -1;
    buf_init(&a->out, OUT_CEILING);
    a->in = mem_zalloc(AGENT_FRAME_MAX);
    if (!a->in)
        return err_nomem(e, "guest agent");
    a->fd = fd;
    fd = -1;
    a->cancel = peer->cancel;
    a->vm = peer->vm;
    a->check = peer->check;
    a->heard_ms = clock_ms();
    int rc = link_hello(a, peer->timeout_ms, e);
    if (rc < 0)
        return rc;
    *out = MOVE(a);
    return 0;
}
