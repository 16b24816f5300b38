/* SPDX-License-Identifier: MIT */
/*
 * What the files of this folder share: the HTTP transport, re-tries, rate gates, logins, tokens.
 *
 *     fetch.c  e2b.c            one remote operation each
 *        |       |
 *     client.c   |              one exchange with a registry: gate, token, status -> error
 *      |  |  \   |
 *   gate auth  \ |
 *      credentials
 *            http.c             one request and its redirects; knows nothing of registries
 */
#ifndef TB2_REGISTRY_INTERNAL_H
#define TB2_REGISTRY_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"
#include "registry/registry.h"

/* ---- Transport (http.c) ------------------------------------------------------------------ */

/* Connections and settings; one for all threads. Proxies come from the environment as libcurl
 * reads it; SSL_CERT_FILE names other CA certificates. */
struct http;

struct http_options {
    int64_t connect_timeout_ms; /* 0: 10,000 */
    int64_t stall_timeout_ms;   /* no byte either way for this long: ERR_NET; 0: 30,000 */
    bool plain_http_anywhere;   /* http:// is fine for every host */
    const char *const *plain_http_hosts; /* else for these, and loopback; NULL-terminated or NULL;
                                            borrowed until http_free */
    const struct cancel *cancel;         /* may be NULL */
};

int http_new(struct http **out, const struct http_options *options, struct err *e) MUST_USE;
void http_free(struct http *h);
DEFINE_AUTO(http, http_free)
#define AUTO_HTTP CLEANUP(http_free_auto_)

/* Header values are NULL when the far end did not send them. */
struct http_response {
    int status;          /* 200, 404, ... */
    char *content_type;  /* without parameters, lower case */
    char *content_digest; /* Docker-Content-Digest */
    char *authenticate;  /* all WWW-Authenticate values, joined by ", " */
    char *location;      /* as sent; only of an answer that was not followed */
    bool has_length;
    uint64_t length;     /* Content-Length */
    bool has_range;      /* Content-Range: bytes first-last/total */
    uint64_t range_first;
    bool has_range_total;
    uint64_t range_total;
    int64_t retry_after_ms; /* Retry-After (seconds or HTTP date); -1: none */
};
void http_response_fini(struct http_response *r);
#define AUTO_HTTP_RESPONSE CLEANUP(http_response_fini)

/* Takes the body of a 2xx answer, piece by piece, from the calling thread; `r` is complete but for
 * the body. A negative result ends the request with that error. */
typedef int http_sink(void *ctx, const struct http_response *r, const void *data, size_t len,
                      struct err *e);

struct http_request {
    const char *method;         /* "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE" */
    const char *url;
    const char *const *headers; /* NULL-terminated "Name: value" lines; NULL: none */
    const char *authorization;  /* value of Authorization; NULL: none. Never logged, never sent on
                                   to another host or port. */
    const void *body;           /* NULL: none (POST, PUT, PATCH then send an empty one) */
    size_t body_len;
    struct buf *reply;          /* takes the body: a 2xx one beyond its ceiling is ERR_LIMIT, that
                                   of any other status is cut there; NULL: dropped */
    http_sink *sink;            /* takes 2xx bodies instead of `reply`; NULL: none */
    void *sink_ctx;
    bool ranged;                /* asks for the bytes from range_first on */
    uint64_t range_first;
    int64_t total_timeout_ms;   /* ERR_TIMEOUT after this long; 0: no such limit */
};

/*
 * One request and its answer. Redirects of GET and HEAD are followed here (at most 5): Range is
 * kept, Authorization only while scheme, host and port stay; https to http is refused.
 * 0 once an answer is complete, whatever its status; *out is to be finished by the caller then.
 * ERR_NET (sys where known), ERR_TIMEOUT, ERR_CANCELLED, ERR_LIMIT, ERR_INPUT (URL, plain HTTP not
 * allowed), ERR_UNSUPPORTED (redirect), or what the sink said. Messages hold no host, query, or
 * secret: the caller says who was spoken to. Thread-safe.
 */
int http_perform(struct http *h, const struct http_request *request, struct http_response *out,
                 struct err *e) MUST_USE;

/* Sets the error that stands for a status beyond 2xx: 401, 403 ERR_DENIED; 404, 410 ERR_NOTFOUND;
 * 429 ERR_LIMIT; 408, 5xx ERR_NET; else ERR_UNSUPPORTED; e->retry_after_ms from the answer.
 * `detail` may be NULL. */
int http_status_error(struct err *e, const struct http_response *r, const char *detail);

/* True for loopback addresses, localhost and the listed hosts ("host" or "host:port"). */
bool http_plain_allowed(const char *host, const char *const *plain_http_hosts);

/* `text` percent-encoded for a query value; free with free(); NULL when memory is short. */
char *http_escape(const char *text) MUST_USE;

/* The URL without user, password, query and fragment, for people; free with free(). */
char *http_printable_url(const char *url) MUST_USE;

/* ---- Re-tries (client.c) ------------------------------------------------------------------ */

struct retry {
    unsigned tries;             /* in all; the first counts */
    unsigned used;
    int64_t first_wait_ms;      /* doubles each time, up to 30 s */
    const struct cancel *cancel;
};

/*
 * After a failed try: waits and returns true when another one makes sense (err_retryable, tries
 * left, a Retry-After of at most ten minutes), with *e cleared. False leaves *e as it is, or sets
 * ERR_CANCELLED.
 */
bool retry_again(struct retry *r, struct err *e) MUST_USE;

#endif
