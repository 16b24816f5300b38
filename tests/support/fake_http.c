/* SPDX-License-Identifier: MIT */
/* One thread accepts; each connection has a thread of its own, joined when the server stops. */
#include "fake_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

enum { MAX_CONNECTIONS = 256, MAX_HEAD = 64 << 10 };

struct connection {
    struct fake_http *server;
    pthread_t thread;
    int fd;
    char text[MAX_HEAD]; /* the request; not from the heap, whose failures are the client's test */
};

struct fake_http {
    fake_handler *handler;
    void *ctx;
    int listener;
    uint16_t port;
    pthread_t acceptor;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_mutex_t handling;
    bool stopping;
    size_t count;
    struct connection connections[MAX_CONNECTIONS];
};

bool fake_header(const struct fake_request *request, const char *name, char *out, size_t len)
{
    size_t name_len = strlen(name);

    for (const char *line = request->headers; line && *line;) {
        const char *end = strstr(line, "\r\n");
        if (strncasecmp(line, name, name_len) == 0 && line[name_len] == ':') {
            const char *value = line + name_len + 1;
            value += strspn(value, " ");
            snprintf(out, len, "%.*s", (int)(end ? end - value : (long)strlen(value)), value);
            return true;
        }
        line = end ? end + 2 : NULL;
    }
    return false;
}

size_t fake_range(const struct fake_request *request)
{
    char value[64];

    if (!fake_header(request, "Range", value, sizeof(value)) ||
        strncmp(value, "bytes=", strlen("bytes=")) != 0)
        return 0;
    return (size_t)strtoull(value + strlen("bytes="), NULL, 10);
}

size_t fake_range_end(const struct fake_request *request, size_t size)
{
    char value[64];
    char *dash = NULL;

    if (fake_header(request, "Range", value, sizeof(value)))
        dash = strchr(value, '-');
    return dash && dash[1] ? (size_t)strtoull(dash + 1, NULL, 10) + 1 : size;
}

void fake_add_header(struct fake_reply *reply, const char *fmt, ...)
{
    size_t len = strlen(reply->headers);
    va_list args;

    va_start(args, fmt);
    vsnprintf(reply->headers + len, sizeof(reply->headers) - len, fmt, args);
    va_end(args);
    len = strlen(reply->headers);
    snprintf(reply->headers + len, sizeof(reply->headers) - len, "\r\n");
}

static bool send_all(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        len -= (size_t)sent;
    }
    return true;
}

/* Waits for the client to go away (or the server to stop, which shuts the socket down). */
static void wait_for_end(int fd)
{
    char byte;

    while (recv(fd, &byte, 1, 0) > 0)
        ;
}

/* Ways of sending that end only when the client does. */
static void send_forever(int fd, const struct fake_reply *reply)
{
    static const char line[] =
        "X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
    char size[32];

    switch ((int)reply->end) {
    case FAKE_HEADERS:
        while (send_all(fd, line, strlen(line)))
            ;
        break;
    case FAKE_DRIP: {
        struct pollfd gone = {.fd = fd, .events = POLLIN};
        const char *at = reply->body;
        const char *end = at + reply->body_len;
        while (poll(&gone, 1, 20) == 0 && at < end && send_all(fd, at, 1))
            at++;
        break;
    }
    default:
        snprintf(size, sizeof(size), "%zx\r\n", reply->body_len);
        while (send_all(fd, size, strlen(size)) && send_all(fd, reply->body, reply->body_len) &&
               send_all(fd, "\r\n", 2))
            ;
        break;
    }
}

/* True when the connection stays usable. */
static bool send_reply(int fd, const struct fake_request *request, const struct fake_reply *reply)
{
    char head[4096];
    bool forever = reply->end == FAKE_DRIP || reply->end == FAKE_ENDLESS;
    bool length = strcasestr(reply->headers, "content-length:") ||
                  strcasestr(reply->headers, "transfer-encoding:");
    int len =
        snprintf(head, sizeof(head), "HTTP/1.1 %d Status\r\n%s", reply->status, reply->headers);

    if (reply->end == FAKE_HEADERS) {
        if (send_all(fd, head, (size_t)len))
            send_forever(fd, reply);
        return false;
    }
    if (reply->end == FAKE_ENDLESS)
        len += snprintf(head + len, sizeof(head) - (size_t)len, "Transfer-Encoding: chunked\r\n");
    else if (!length)
        len += snprintf(head + len, sizeof(head) - (size_t)len, "Content-Length: %zu\r\n",
                        reply->body_len);
    len += snprintf(head + len, sizeof(head) - (size_t)len, "\r\n");
    if (!send_all(fd, head, (size_t)len))
        return false;
    size_t body_len = strcmp(request->method, "HEAD") == 0 ? 0 : reply->body_len;
    if (reply->end != FAKE_WHOLE && body_len > reply->cut_after)
        body_len = reply->cut_after;
    if (forever && strcmp(request->method, "HEAD") != 0) {
        send_forever(fd, reply);
        return false;
    }
    if (!send_all(fd, reply->body, body_len) || reply->end == FAKE_CLOSE)
        return false;
    if (reply->end == FAKE_RESET) {
        struct linger hard = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        return false;
    }
    if (reply->end == FAKE_STALL) {
        wait_for_end(fd);
        return false;
    }
    return true;
}

/* Reads one request into `text`, whose parts *request points to; false at the end. */
static bool read_request(int fd, char *text, struct fake_request *request)
{
    size_t len = 0;
    char *end;
    char value[32];

    text[0] = '\0';
    while (!(end = strstr(text, "\r\n\r\n"))) {
        ssize_t got = len < MAX_HEAD - 1 ? recv(fd, text + len, MAX_HEAD - 1 - len, 0) : -1;
        if (got <= 0)
            return false;
        len += (size_t)got;
        text[len] = '\0';
    }
    *end = '\0';
    char *line_end = strstr(text, "\r\n");
    request->headers = line_end ? line_end + 2 : end;
    char *first = strchr(text, ' ');
    char *second = first ? strchr(first + 1, ' ') : NULL;
    if (!second)
        return false;
    *first = '\0';
    *second = '\0';
    request->method = text;
    request->path = first + 1;
    request->body = end + 4;
    request->body_len = 0;
    if (fake_header(request, "Content-Length", value, sizeof(value)))
        request->body_len = (size_t)strtoull(value, NULL, 10);
    size_t have = len - (size_t)(end + 4 - text);
    while (have < request->body_len) {
        ssize_t got = len < MAX_HEAD - 1 ? recv(fd, text + len, MAX_HEAD - 1 - len, 0) : -1;
        if (got <= 0)
            return false;
        len += (size_t)got;
        have += (size_t)got;
        text[len] = '\0';
    }
    return true;
}

static void *serve(void *argument)
{
    struct connection *c = argument;
    struct fake_request request;

    while (read_request(c->fd, c->text, &request)) {
        struct fake_reply reply = {.status = 404};

        (void)pthread_mutex_lock(&c->server->handling);
        c->server->handler(c->server->ctx, &request, &reply);
        (void)pthread_mutex_unlock(&c->server->handling);
        if (!send_reply(c->fd, &request, &reply))
            break;
    }
    (void)pthread_mutex_lock(&c->server->lock);
    close(c->fd);
    c->fd = -1;
    (void)pthread_mutex_unlock(&c->server->lock);
    return NULL;
}

static void *accept_all(void *argument)
{
    struct fake_http *s = argument;

    for (;;) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        /* An answer goes out in several writes; none is to wait for the client's acknowledgement. */
        int on = 1;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        (void)pthread_mutex_lock(&s->lock);
        if (s->stopping || s->count == MAX_CONNECTIONS) {
            close(fd);
        } else {
            struct connection *c = &s->connections[s->count];
            c->server = s;
            c->fd = fd;
            if (pthread_create(&c->thread, NULL, serve, c) == 0)
                s->count++;
            else
                close(fd);
        }
        (void)pthread_mutex_unlock(&s->lock);
    }
}

struct fake_http *fake_http_start(fake_handler *handler, void *ctx)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    struct fake_http *s = mem_zalloc(sizeof(*s));

    if (!s)
        abort();
    s->handler = handler;
    s->ctx = ctx;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_mutex_init(&s->handling, NULL);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&address, len) < 0 ||
        listen(s->listener, 64) < 0 ||
        getsockname(s->listener, (struct sockaddr *)&address, &len) < 0 ||
        pthread_create(&s->acceptor, NULL, accept_all, s) != 0)
        abort();
    s->port = ntohs(address.sin_port);
    return s;
}

uint16_t fake_http_port(const struct fake_http *server)
{
    return server->port;
}

void fake_http_stop(struct fake_http *s)
{
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->stopping = true;
    (void)shutdown(s->listener, SHUT_RDWR);
    for (size_t i = 0; i < s->count; i++) {
        if (s->connections[i].fd >= 0)
            (void)shutdown(s->connections[i].fd, SHUT_RDWR);
    }
    size_t count = s->count;
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->acceptor, NULL);
    for (size_t i = 0; i < count; i++)
        (void)pthread_join(s->connections[i].thread, NULL);
    close(s->listener);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_mutex_destroy(&s->handling);
    free(s);
}
