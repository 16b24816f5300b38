/* SPDX-License-Identifier: MIT */
/*
 * requests PORT CONNECTIONS METHOD FILE: what asking costs at the least. Sends METHOD for each path that FILE
 * has a line for to 127.0.0.1:PORT, over so many connections that stay open, from one thread, and reads
 * the answers without a look at more than their status and length. Shares nothing with the product.
 * Prints seconds and processor seconds as one line of JSON.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 256, ANSWER_MAX = 256 << 10, PATH_MAX_LEN = 1024 };

struct connection {
    char answer[ANSWER_MAX];
    size_t len;
};

struct load {
    const char *method;
    FILE *paths;
    struct sockaddr_in to;
    unsigned count; /* connections */
    unsigned open;  /* of them with a request under way */
    unsigned long answers;
    struct pollfd polls[CONNECTIONS_MAX];
    struct connection *connections;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The next line's request; without one the connection is done. */
static void send_next(struct load *l, unsigned n)
{
    char path[PATH_MAX_LEN];
    char request[2 * PATH_MAX_LEN];
    if (!fgets(path, sizeof(path), l->paths)) {
        close(l->polls[n].fd);
        l->polls[n].fd = -1;
        l->open--;
        return;
    }
    path[strcspn(path, "\n")] = 0;
    int len = snprintf(request, sizeof(request),
                       "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                       "Accept: application/vnd.oci.image.index.v1+json, "
                       "application/vnd.oci.image.manifest.v1+json, "
                       "application/vnd.docker.distribution.manifest.list.v2+json, "
                       "application/vnd.docker.distribution.manifest.v2+json\r\n\r\n",
                       l->method, path, ntohs(l->to.sin_port));
    l->connections[n].len = 0;
    if (len >= (int)sizeof(request) || write(l->polls[n].fd, request, (size_t)len) != len)
        die("sending");
}

/* Bytes of the whole answer; 0: its head is not here yet. */
static size_t answer_len(const struct load *l, const struct connection *c)
{
    const char *end = strstr(c->answer, "\r\n\r\n");
    if (!end)
        return 0;
    const char *length = strcasestr(c->answer, "\r\nContent-Length:");
    size_t body = length && length < end && strcmp(l->method, "HEAD") != 0
                      ? strtoull(length + strlen("\r\nContent-Length:"), NULL, 10)
                      : 0;
    return (size_t)(end - c->answer) + 4 + body;
}

static void take(struct load *l, unsigned n)
{
    struct connection *c = &l->connections[n];
    ssize_t got = read(l->polls[n].fd, c->answer + c->len, sizeof(c->answer) - 1 - c->len);
    if (got <= 0)
        die("an answer is cut off, or too long");
    c->len += (size_t)got;
    c->answer[c->len] = 0;
    size_t whole = answer_len(l, c);
    if (whole == 0 || c->len < whole)
        return;
    if (strncmp(c->answer, "HTTP/1.1 200 ", 13) != 0) {
        fprintf(stderr, "not what was asked for: %.200s\n", c->answer);
        exit(1);
    }
    l->answers++;
    send_next(l, n);
}

static void run(struct load *l)
{
    int one = 1;
    for (unsigned n = 0; n < l->count; n++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&l->to, sizeof(l->to)) < 0 ||
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0)
            die("connecting");
        l->polls[n] = (struct pollfd){.fd = fd, .events = POLLIN};
        l->open++;
        send_next(l, n);
    }
    while (l->open > 0) {
        if (poll(l->polls, l->count, -1) < 0)
            die("waiting");
        for (unsigned n = 0; n < l->count; n++) {
            if (l->polls[n].fd >= 0 && l->polls[n].revents)
                take(l, n);
        }
    }
}

int main(int argc, char **argv)
{
    static struct load l;
    unsigned count = argc == 5 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    if (count < 1 || count > CONNECTIONS_MAX) {
        fprintf(stderr, "usage: requests PORT CONNECTIONS METHOD FILE\n");
        return 2;
    }
    l = (struct load){.method = argv[3],
                      .count = count,
                      .paths = fopen(argv[4], "re"),
                      .connections = calloc(count, sizeof(*l.connections)),
                      .to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    if (!l.paths || !l.connections)
        die(argv[4]);
    double start = now(CLOCK_MONOTONIC);
    run(&l);
    printf("{\"requests\": %lu, \"wall_s\": %.3f, \"cpu_s\": %.3f}\n", l.answers,
           now(CLOCK_MONOTONIC) - start, now(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
