/* SPDX-License-Identifier: MIT */
/*
 * A scripted HTTP/1.1 server on a loopback port, for tests: a handler decides each answer, and can
 * cut it short, reset the connection, or stall. Not for anything but tests: it trusts its client.
 */
#ifndef TB2_TESTS_FAKE_HTTP_H
#define TB2_TESTS_FAKE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_request {
    const char *method;
    const char *path;    /* with the query */
    const char *headers; /* all header lines */
    const char *body;    /* terminated */
    size_t body_len;
};

/* Value of a header in `out` (at most `len` bytes with the terminator); false when absent. */
bool fake_header(const struct fake_request *request, const char *name, char *out, size_t len);

/* First byte asked for by "Range: bytes=N-"; 0 when there is no such header. */
size_t fake_range(const struct fake_request *request);
/* Byte behind the last one asked for by "Range: bytes=N-M"; `size` when there is no such header. */
size_t fake_range_end(const struct fake_request *request, size_t size);

enum fake_end {
    FAKE_WHOLE,   /* the body is sent whole, the connection stays */
    FAKE_CLOSE,   /* after `cut_after` bytes of the body the connection is closed */
    FAKE_RESET,   /* ... is reset */
    FAKE_STALL,   /* ... nothing more is sent until the client goes away */
    FAKE_DRIP,    /* the body is sent byte by byte, slowly */
    FAKE_ENDLESS, /* the body, in chunks, is sent again and again until the client goes away */
    FAKE_HEADERS  /* header lines are sent until the client goes away */
};

struct fake_reply {
    int status;
    char headers[2048]; /* lines ending in \r\n; Content-Length is added unless it is there */
    const void *body;   /* must live until the server is stopped */
    size_t body_len;
    enum fake_end end;
    size_t cut_after;
};

/* printf that adds one header line to a reply. */
void fake_add_header(struct fake_reply *reply, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Calls never overlap, so the handler needs no locks of its own. */
typedef void fake_handler(void *ctx, const struct fake_request *request, struct fake_reply *reply);

struct fake_http;

/* Aborts the test program when the server cannot be had. */
struct fake_http *fake_http_start(fake_handler *handler, void *ctx);
uint16_t fake_http_port(const struct fake_http *server);
/* Ends all connections and threads. */
void fake_http_stop(struct fake_http *server);

#endif
