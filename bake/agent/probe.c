/* SPDX-License-Identifier: MIT */
/*
 * Is a server of the guest ready? A probe connects to a port of 127.0.0.1; one for HTTP also sends a GET
 * and waits for the first line of an answer (RFC 9112, section 4), of which the status is told. Whatever
 * goes wrong is the same answer: not ready, 0.
 */
#include "bake/agent/agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct probe *free_probe(struct guest *g)
{
    for (size_t i = 0; i < PROBES_MAX; i++) {
        if (g->probes[i].link.fd < 0)
            return &g->probes[i];
    }
    return NULL;
}

static void probe_end(struct guest *g, struct probe *p, uint64_t value)
{
    source_close(&p->link);
    answer_u64(g, p->stream, value);
}

/* Reads what the request says; false when it is malformed. */
static bool read_request(struct probe *p, const struct agent_frame *f, uint32_t *port)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    *port = read_u32(&r);
    p->deadline_ms = now_ms() + read_u32(&r);
    p->stream = f->stream;
    p->http = f->type == AGENT_HTTP_PROBE;
    p->waiting = false;
    p->len = p->sent = 0;
    if (p->http) {
        int len = snprintf(p->text, sizeof(p->text),
                           "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nUser-Agent: tb2-bake\r\n"
                           "Accept: */*\r\nConnection: close\r\n\r\n",
                           read_string(&r), *port);
        p->len = len > 0 ? (size_t)len : 0;
    }
    return !r.bad && !r.left && *port >= 1 && *port <= 65535 && p->len < sizeof(p->text);
}

void probe_open(struct guest *g, const struct agent_frame *f)
{
    uint32_t port = 0;
    struct probe *p = free_probe(g);
    if (!p || !read_request(p, f, &port)) {
        answer(g, f->stream, p ? -EINVAL : -EAGAIN, AGENT_AT_REQUEST, "probe");
        return;
    }
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    p->link.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->link.fd < 0) {
        answer(g, f->stream, -errno, AGENT_AT_MACHINE, "making a socket");
        return;
    }
    struct sockaddr address;
    memcpy(&address, &to, sizeof(to));
    int connected = connect(p->link.fd, &address, sizeof(to));
    if (connected < 0 && errno == EINPROGRESS)
        return;
    if (connected < 0 || !p->http)
        probe_end(g, p, connected == 0);
}

void probe_watch(struct guest *g, struct loop *l)
{
    for (size_t i = 0; i < PROBES_MAX; i++) {
        struct probe *p = &g->probes[i];
        loop_watch(l, &p->link, p->waiting ? POLLIN : POLLOUT);
        if (p->link.fd >= 0)
            loop_deadline(l, p->deadline_ms);
    }
}

/* "HTTP/1.1 200 OK": the status, 0 when the line is none. */
static uint64_t status_of(const struct probe *p)
{
    uint64_t status = 0;
    static const char version[] = "HTTP/1.";
    size_t at = sizeof(version) - 1 + 2;
    if (p->len < at + 3 || memcmp(p->text, version, sizeof(version) - 1) != 0 ||
        p->text[at - 1] != ' ')
        return 0;
    for (size_t i = at; i < at + 3; i++) {
        if (p->text[i] < '0' || p->text[i] > '9')
            return 0;
        status = status * 10 + (uint64_t)(p->text[i] - '0');
    }
    return status;
}

static void pump_http(struct guest *g, struct probe *p)
{
    if (!p->waiting) {
        ssize_t sent = send(p->link.fd, p->text + p->sent, p->len - p->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            probe_end(g, p, 0);
        p->sent += sent > 0 ? (size_t)sent : 0;
        if (p->sent < p->len)
            return;
        p->waiting = true;
        p->len = 0;
        return;
    }
    ssize_t got = recv(p->link.fd, p->text + p->len, sizeof(p->text) - p->len, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    p->len += got > 0 ? (size_t)got : 0;
    if (got <= 0 || p->len == sizeof(p->text) || memchr(p->text, '\n', p->len))
        probe_end(g, p, status_of(p));
}

void probe_pump(struct guest *g, struct loop *l)
{
    for (size_t i = 0; i < PROBES_MAX; i++) {
        struct probe *p = &g->probes[i];
        if (p->link.fd < 0)
            continue;
        if (now_ms() >= p->deadline_ms) {
            probe_end(g, p, 0);
            continue;
        }
        if (!loop_events(l, &p->link))
            continue;
        int failed = 0;
        socklen_t len = sizeof(failed);
        if (getsockopt(p->link.fd, SOL_SOCKET, SO_ERROR, &failed, &len) < 0)
            failed = errno;
        if (failed || !p->http)
            probe_end(g, p, failed == 0);
        else
            pump_http(g, p);
    }
}
