/* SPDX-License-Identifier: MIT */
/*
 * QMP: JSON objects, one a line, over a stream socket (QEMU docs/interop/qmp-spec). QEMU greets,
 * qmp_capabilities ends the negotiation, then each command gets one "return" or "error" that
 * repeats its "id"; events come at any time between. What QEMU sends is bounded by LIMIT_QMP a
 * line; lines that are neither reply nor event are an error. Files reach QEMU as descriptors
 * (getfd), so that it needs no path of ours and no shell.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bake/vm/qmp.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

struct qmp {
    int fd;
    int64_t timeout_ms; /* for each command */
    const struct cancel *cancel;
    int64_t last_id;
    size_t scanned; /* bytes of `in` known to hold no line end */
    bool ended;     /* the connection is over */
    struct buf in;
    struct qmp_events events;
};

static void note_event(struct qmp *q, const char *name, const struct json *message)
{
    struct err ignored = ERR_INIT;
    if (strcmp(name, "STOP") == 0)
        q->events.stopped = true;
    if (strcmp(name, "RESUME") == 0)
        q->events.stopped = false;
    if (strcmp(name, "SHUTDOWN") != 0)
        return;
    q->events.shutdown = true;
    struct json *data = NULL;
    const char *reason = NULL;
    if (json_get_object_opt(message, "data", &data, &ignored) == 0 && data &&
        json_get_string_opt(data, "reason", &reason, &ignored) == 0 && reason)
        snprintf(q->events.reason, sizeof(q->events.reason), "%s", reason);
}

/* Takes the first whole line out of the buffer; *out stays NULL when there is none. */
static int take_line(struct qmp *q, struct json **out, struct err *e)
{
    while (q->in.len > q->scanned) {
        const uint8_t *end = memchr(q->in.data + q->scanned, '\n', q->in.len - q->scanned);
        if (!end) {
            q->scanned = q->in.len;
            return 0;
        }
        size_t len = (size_t)(end - q->in.data);
        size_t text = len > 0 && q->in.data[len - 1] == '\r' ? len - 1 : len;
        struct json *message = NULL;
        int rc = text > 0 ? json_parse(&message, q->in.data, text, "QMP message", e) : 0;
        buf_drop(&q->in, len + 1);
        q->scanned = 0;
        if (rc < 0 || message) {
            *out = message;
            return rc;
        }
    }
    return 0;
}

/* Reads what has arrived. `ended` is set at the end of the connection. */
static int fill(struct qmp *q, struct err *e)
{
    char piece[16384];
    ssize_t n = recv(q->fd, piece, sizeof(piece), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n <= 0) {
        q->ended = true;
        return 0;
    }
    return buf_add(&q->in, piece, (size_t)n, e);
}

/* The next message that is no event. */
static int next_message(struct qmp *q, struct json **out, int64_t deadline, struct err *e)
{
    for (;;) {
        AUTO_JSON struct json *message = NULL;
        int rc = take_line(q, &message, e);
        if (rc < 0)
            return rc;
        if (message) {
            const char *event = json_as_string(json_member(message, "event"));
            if (!event) {
                *out = MOVE(message);
                return 0;
            }
            note_event(q, event, message);
            continue;
        }
        if (q->ended)
            return err_set(e, ERR_NET, "QEMU closed the connection");
        int64_t left = deadline - clock_ms();
        if (left <= 0)
            return err_set(e, ERR_TIMEOUT, "QEMU did not answer in time");
        rc = cancel_check(q->cancel, e);
        if (rc < 0)
            return rc;
        struct pollfd fds[2] = {{.fd = q->fd, .events = POLLIN},
                                {.fd = cancel_fd(q->cancel), .events = POLLIN}};
        (void)poll(fds, 2, cancel_wait_ms(q->cancel, left));
        rc = fds[0].revents ? fill(q, e) : 0;
        if (rc < 0)
            return rc;
    }
}

/* Sends the text; the descriptor, if any, travels with its first byte. */
static int send_text(struct qmp *q, const char *text, size_t len, int pass_fd, struct err *e)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    while (len > 0) {
        char *base;
        memcpy(&base, &text, sizeof(base)); /* iovec lacks const */
        struct iovec part = {.iov_base = base, .iov_len = len};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (pass_fd >= 0) {
            message.msg_control = control.bytes;
            message.msg_controllen = sizeof(control.bytes);
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(head), &pass_fd, sizeof(int));
        }
        ssize_t n = sendmsg(q->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int sys = errno;
            (void)err_set(e, ERR_NET, "QEMU does not take commands: %s", strerror(sys));
            e->sys = sys;
            return -ERR_NET;
        }
        pass_fd = -1;
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

static int refused(const struct json *message, struct err *e)
{
    const struct json *fault = json_member(message, "error");
    const char *text = fault ? json_as_string(json_member(fault, "desc")) : NULL;
    if (text)
        return err_set(e, ERR_NET, "QEMU refused: %s", text);
    return err_set(e, ERR_CORRUPT, "QEMU answered with neither a result nor an error");
}

/* Sends one command and waits for the message that carries its id. */
static int exchange(struct qmp *q, const char *text, int pass_fd, struct json **reply,
                    struct err *e)
{
    int64_t deadline = clock_ms() + q->timeout_ms;
    int rc = send_text(q, text, strlen(text), pass_fd, e);
    if (rc == 0)
        rc = send_text(q, "\n", 1, -1, e);
    while (rc == 0) {
        AUTO_JSON struct json *message = NULL;
        rc = next_message(q, &message, deadline, e);
        if (rc < 0)
            break;
        if (json_as_integer(json_member(message, "id")) != q->last_id)
            continue; /* the late answer of a command that was given up */
        struct json *value = json_member(message, "return");
        if (!value)
            return refused(message, e);
        if (reply) {
            *reply = json_clone(value);
            return *reply ? 0 : err_nomem(e, "QMP reply");
        }
        return 0;
    }
    return rc;
}

int qmp_command(struct qmp *q, const char *command, struct json *arguments, int pass_fd,
                struct json **reply, struct err *e)
{
    AUTO_JSON struct json *message = json_new_object();
    json_set(message, "execute", json_new_string(command));
    if (arguments)
        json_set(message, "arguments", arguments);
    json_set(message, "id", json_new_integer(++q->last_id));
    char *printed = NULL;
    int rc = json_print(message, 0, &printed, e);
    AUTO_FREE char *text = printed;
    if (rc == 0)
        rc = exchange(q, text, pass_fd, reply, e);
    return rc < 0 ? err_in(e, "QEMU command %s", command) : 0;
}

int qmp_open(struct qmp **out, int fd, int64_t timeout_ms, const struct cancel *c, struct err *e)
{
    AUTO_FD int taken = fd;
    AUTO_QMP struct qmp *q = mem_zalloc(sizeof(*q));
    if (!q)
        return err_nomem(e, "QMP connection");
    q->fd = taken;
    taken = -1;
    q->timeout_ms = timeout_ms;
    q->cancel = c;
    buf_init(&q->in, LIMIT_QMP);
    AUTO_JSON struct json *greeting = NULL;
    int rc = next_message(q, &greeting, clock_ms() + timeout_ms, e);
    if (rc == 0 && !json_member(greeting, "QMP"))
        rc = err_set(e, ERR_CORRUPT, "the greeting is not QMP's");
    if (rc < 0)
        return err_in(e, "QEMU control socket");
    rc = qmp_command(q, "qmp_capabilities", NULL, -1, NULL, e);
    if (rc == 0)
        *out = MOVE(q);
    return rc;
}

void qmp_free(struct qmp *q)
{
    if (!q)
        return;
    file_close(&q->fd);
    buf_fini(&q->in);
    free(q);
}

void qmp_poll(struct qmp *q)
{
    size_t before;
    struct err ignored = ERR_INIT;
    do {
        before = q->in.len;
        if (fill(q, &ignored) < 0)
            q->ended = true;
    } while (!q->ended && q->in.len > before);
    for (;;) {
        AUTO_JSON struct json *message = NULL;
        if (take_line(q, &message, &ignored) < 0 || !message)
            return;
        const char *event = json_as_string(json_member(message, "event"));
        if (event)
            note_event(q, event, message);
    }
}

const struct qmp_events *qmp_events(const struct qmp *q)
{
    return &q->events;
}
