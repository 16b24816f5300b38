/* SPDX-License-Identifier: MIT */
/*
 * What the files of this folder share: the HTTP transport, re-tries, rate gates, logins, tokens.
 *
 *     fetch.c  blob.c  e2b.c    one remote operation each
 *        |    ranges.c  |       a blob over several connections
 *        |       |      |
 *      endpoints.c      |       mirrors in order, then the registry
 *          |            |
 *      client.c         |       one exchange with one of them: gate, token, status -> error
 *      |  |  \          |
 *   gate auth  \        |
 *      credentials     /
 *              \      /
 *               http.c          one request and its redirects; knows nothing of registries
 *                  |
 *               trust.c         CA certificates of a host
 */
#ifndef TB2_REGISTRY_INTERNAL_H
#define TB2_REGISTRY_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"
#include "registry/registry.h"

/* ---- Transport (http.c) ----------------------------------------------------------------- */

/* Connections and settings; one for all threads. Proxies come from the environment as libcurl
 * reads it (https_proxy, no_proxy, ...); SSL_CERT_FILE names the system's CA certificates. */
struct http;

/* CA certificates (PEM) for one host[:port]. */
struct http_ca {
    const char *host;
    const char *file;
};

struct http_options {
    int64_t connect_timeout_ms; /* 0: 10,000 */
    /* No byte has arrived for this long, or less than HTTP_MIN_RATE bytes a second during it:
     * ERR_NET; 0: 30,000. Time that a sink takes does not count. */
    int64_t stall_timeout_ms;
    /* CA certificates beside the system's: for all hosts, for some, and in HOST[:PORT]/NAME.crt of
     * directories (NULL-terminated); all may be NULL; borrowed until http_free. */
    const char *ca_file;
    const struct http_ca *cas;
    size_t ca_count;
    const char *const *certs_dirs;
    bool plain_http_anywhere;            /* http:// is fine for every host */
    const char *const *plain_http_hosts; /* else for these, and loopback; NULL-terminated or NULL;
                                            borrowed until http_free */
    const char *unix_socket;     /* spoken to instead of the URL's host; NULL: none; borrowed until
                                http_free */
    const struct cancel *cancel; /* may be NULL */
};

enum { HTTP_MIN_RATE = 1024 };

int http_new(struct http **out, const struct http_options *options, struct err *e) MUST_USE;
void http_free(struct http *h);
DEFINE_AUTO(http, http_free)
#define AUTO_HTTP CLEANUP(http_free_auto_)

/* Header values are NULL when the far end did not send them. */
struct http_response {
    int status;           /* 200, 404, ... */
    char *content_type;   /* without parameters, lower case */
    char *content_digest; /* Docker-Content-Digest */
    char *authenticate;   /* all WWW-Authenticate values, joined by ", " */
    char *location;       /* as sent; only of an answer that was not followed */
    char *etag;           /* as sent, quotes included */
    char *encoding;       /* Content-Encoding, unless "identity": the bytes are as sent */
    char *redirected;     /* host:port that answered, where redirects led away from the URL's own;
                             its challenges are about no login of ours */
    char *next_token;     /* x-next-token: where a list goes on */
    bool has_length;
    uint64_t length; /* Content-Length */
    bool has_range;  /* Content-Range: bytes first-last/total */
    uint64_t range_first;
    uint64_t range_last;
    bool has_range_total;
    uint64_t range_total;
    bool has_taken; /* Range: 0-LAST of an upload (distribution-spec, Pushing a blob in chunks) */
    uint64_t taken; /* bytes that are there: LAST + 1; 0 for "0-0", which registries say of none */
    int64_t retry_after_ms; /* Retry-After (seconds or HTTP date); -1: none */
    bool has_remaining;     /* RateLimit-Remaining: requests that are left, as Docker Hub counts */
    uint64_t rate_remaining;
    uint64_t rate_limit; /* RateLimit-Limit; 0: not sent */
};
void http_response_init(struct http_response *r);
void http_response_fini(struct http_response *r);
#define AUTO_HTTP_RESPONSE CLEANUP(http_response_fini)

/* Takes the body of a 2xx answer, piece by piece, from the calling thread; `r` is complete but for
 * the body. A negative result ends the request with that error. */
typedef int http_sink(void *ctx, const struct http_response *r, const void *data, size_t len,
                      struct err *e);

struct http_request {
    const char *method; /* "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE" */
    const char *url;
    const char *const *headers; /* NULL-terminated "Name: value" lines; NULL: none */
    /* Value of Authorization; NULL: none. Never logged, never sent on to another host or port. */
    const char *authorization;
    const void *body; /* NULL: none (POST, PUT, PATCH then send an empty one) */
    size_t body_len;
    /* Takes the body: a 2xx one beyond its ceiling is ERR_LIMIT, that of any other status is cut
     * there; NULL: dropped. */
    struct buf *reply;
    http_sink *sink; /* takes 2xx bodies instead of `reply`; NULL: none */
    void *sink_ctx;
    bool ranged; /* asks for the bytes from range_first on */
    uint64_t range_first;
    uint64_t range_last; /* up to this one; 0: to the end */
    /* A redirect is an answer like any other: for secrets in `headers`, which would go along. */
    bool no_redirects;
    int64_t total_timeout_ms;  /* ERR_TIMEOUT after this long; 0: no such limit */
    int64_t answer_timeout_ms; /* ERR_TIMEOUT when no answer has begun by then; 0: no such limit */
    const atomic_bool *given_up; /* ERR_CANCELLED soon after it is set; may be NULL */
};

/*
 * One request and its answer. Redirects of GET and HEAD are followed here (at most 5): Range is
 * kept, Authorization only while scheme, host and port stay; https to http is refused.
 * 0 once an answer is complete, whatever its status; *out is to be finished by the caller then.
 * ERR_NET (sys where known), ERR_TIMEOUT, ERR_CANCELLED, ERR_LIMIT, ERR_INPUT (URL, plain HTTP not
 * allowed), ERR_UNSUPPORTED (redirect), or what the sink said. Messages hold no query, no secret,
 * and no host but the one that redirects led to: the caller says who was spoken to. Thread-safe.
 */
int http_perform(struct http *h, const struct http_request *request, struct http_response *out,
                 struct err *e) MUST_USE;

/*
 * Where a redirect of `base` leads: *out is free()d by the caller, *same_origin says whether
 * credentials may go along. ERR_UNSUPPORTED for https to http, and for other schemes.
 */
int http_redirect(char **out, bool *same_origin, const char *base, const char *location,
                  struct err *e) MUST_USE;

/* Sets the error that stands for a status beyond 2xx: 401, 403 ERR_DENIED; 404, 410 ERR_NOTFOUND;
 * 429 ERR_RATE; 408, 5xx ERR_NET; else ERR_UNSUPPORTED; e->retry_after_ms from the answer.
 * `detail` may be NULL. */
int http_status_error(struct err *e, const struct http_response *r, const char *detail);

/* Header line by line (http_response.c): a status line starts the answer over. */
int http_response_line(struct http_response *r, const char *line, size_t len,
                       struct err *e) MUST_USE;

/* The number that a RateLimit field begins with ("76;w=21600" of Docker Hub, "100, 100;w=60" of the
 * IETF draft); false when it begins with something else. */
bool http_parse_rate(const char *text, uint64_t *out);

/* "bytes first-last/total", where total may be "*" (RFC 9110, section 14.4). False, with nothing
 * changed, when it is something else. */
bool http_parse_content_range(struct http_response *r, const char *text);

/* "0-LAST" or "bytes=0-LAST" of an upload; false, and nothing set, when it is something else. */
bool http_parse_taken(struct http_response *r, const char *text);

/* Seconds, or an HTTP date (RFC 9110, section 10.2.3), as milliseconds from now; -1: neither. */
int64_t http_parse_retry_after(const char *text, int64_t now_seconds);

/* 127.0.0.0/8, [::1] or localhost, with or without a port. */
bool http_host_is_loopback(const char *host);

/* True for loopback addresses, localhost and the listed hosts ("host" or "host:port"). */
bool http_plain_allowed(const char *host, const char *const *plain_http_hosts);

/* `text` percent-encoded for a query value; free with free(); NULL when memory is short. */
char *http_escape(const char *text) MUST_USE;

/* The URL without user, password, query and fragment, for people; free with free(). */
char *http_printable_url(const char *url) MUST_USE;

/* ---- CA certificates (trust.c) ----------------------------------------------------------- */

/*
 * Adds the CA certificates for a host (name and port) to `pem`: files of the options, and of their
 * directories those below NAME:PORT, or NAME when the port is 443. Nothing is added when there are
 * none. ERR_INPUT when a named file cannot be read.
 */
int trust_collect(struct buf *pem, const struct http_options *options, const char *name,
                  const char *port, struct err *e) MUST_USE;

/* ---- Re-tries (client.c) ---------------------------------------------------------------- */

struct retry {
    unsigned tries; /* in all; the first counts */
    unsigned used;
    int64_t first_wait_ms; /* doubles each time, up to 30 s; 0: 500 */
    const struct cancel *cancel;
};

/*
 * After a failed try: waits and returns true when another one makes sense (err_retryable, tries
 * left, a Retry-After of at most ten minutes), with *e cleared. False leaves *e as it is, or sets
 * ERR_CANCELLED.
 */
bool retry_again(struct retry *r, struct err *e) MUST_USE;

/* ---- Rate gates (gate.c) ---------------------------------------------------------------- */

/*
 * One gate per host. A 429 closes it for everyone; after the wait one request goes ahead as a
 * probe, and its answer opens the gate or starts a longer wait. Thread-safe.
 */
struct gates;
struct gate;

struct gate_options {
    int64_t first_wait_ms; /* after a 429 without Retry-After; doubles with each that follows */
    int64_t max_wait_ms;   /* a longer wait ends the request with ERR_RATE at once */
    unsigned tries;        /* 429s in a row after which everyone gets ERR_RATE */
    int64_t spacing_ms;    /* between two requests to one host; 0: none */
    const struct cancel *cancel;
};

enum gate_answer { GATE_UNKNOWN, GATE_PASSED, GATE_LIMITED };

struct gate_pass {
    struct gate *gate;
    unsigned generation;
    bool probe;
};

int gates_new(struct gates **out, const struct gate_options *options, struct err *e) MUST_USE;
void gates_free(struct gates *g);
DEFINE_AUTO(gates, gates_free)

enum {
    GATE_PATIENT = 1, /* waits for a closed gate; else that is ERR_RATE at once */
    GATE_COUNTED = 2  /* the spacing counts */
};

/* Waits until a request to `host` may go; each success is followed by one gate_leave.
 * ERR_RATE (retry_after_ms set), ERR_CANCELLED. */
int gate_enter(struct gates *g, const char *host, unsigned flags, struct gate_pass *out,
               struct err *e) MUST_USE;
void gate_leave(struct gates *g, const struct gate_pass *pass, enum gate_answer answer,
                int64_t retry_after_ms);

/* What an answer says about the requests that are left, and the least that any host has left. */
void gate_note_quota(struct gates *g, const struct gate_pass *pass, uint64_t remaining,
                     uint64_t limit);
/* How long the gate that stays closed longest does so, at least 1; 0: none is closed. */
int64_t gates_limited_ms(struct gates *g);
bool gates_quota(struct gates *g, uint64_t *remaining, uint64_t *limit);

/* ---- Logins (credentials.c) ------------------------------------------------------------- */

struct credential {
    char *user;
    char *secret;        /* password or identity token; never printed */
    bool identity_token; /* goes to the token server as a refresh token */
};
void credential_fini(struct credential *c);

/* Wipes a text, then frees it. */
void secret_free(char *text);

struct credential_options {
    const char *config_path;   /* NULL: see registry_options */
    int64_t helper_timeout_ms; /* a helper that takes longer is killed */
    const struct cancel *cancel;
};

/*
 * The login for a repository from the first file that has one (registry_options.config_path), read
 * anew each time: a helper
 * listed for the host, the credential store, an inline entry (config.json of the Docker CLI; the
 * helper protocol of docker-credential-helpers). *found is false when there is none. A helper
 * that fails is logged and passed over. ERR_INPUT when the file is malformed.
 */
int credential_find(struct credential *out, bool *found, const struct credential_options *options,
                    const char *host, const char *repository, struct err *e) MUST_USE;

/* Value of Authorization for a login (RFC 7617); free with free(); NULL when memory is short. */
char *credential_basic(const struct credential *c) MUST_USE;

/* ---- Tokens (auth.c) -------------------------------------------------------------------- */

/* What WWW-Authenticate asks for (RFC 9110, section 11; distribution's token specification). */
struct challenge {
    bool bearer; /* else basic, if that is set */
    bool basic;
    char *realm; /* of the bearer challenge; NULL when there is none */
    char *service;
    char *scope;
};
void challenge_fini(struct challenge *c);
int challenge_parse(struct challenge *out, const char *header, struct err *e) MUST_USE;

/* The authorizations in use, one per repository, shared by all threads. */
struct auth;
/* `plain_http_hosts` as in http_options; pointers are borrowed until auth_free. */
int auth_new(struct auth **out, struct http *http, const struct credential_options *options,
             const char *const *plain_http_hosts, struct err *e) MUST_USE;
void auth_free(struct auth *a);
DEFINE_AUTO(auth, auth_free)

/* What one request was sent with. */
struct auth_use {
    char *header; /* value of Authorization, or NULL */
    unsigned generation;
    unsigned refusals; /* 401s that this exchange has seen; counted by the caller */
};
void auth_use_fini(struct auth_use *use);

/* The authorization to send now; renews one that has run out. */
int auth_current(struct auth *a, const struct oci_ref *ref, struct auth_use *use,
                 struct err *e) MUST_USE;

/* A request sent with `use` was answered by something else than 401. */
void auth_accepted(struct auth *a, const struct oci_ref *ref, const struct auth_use *use);

/*
 * It was answered by 401: gets another authorization, unless someone else just has. 0 means: try
 * again. ERR_DENIED when no login fits or a fresh token was refused too.
 */
int auth_refused(struct auth *a, const struct oci_ref *ref, const struct http_response *r,
                 struct auth_use *use, struct err *e) MUST_USE;

/* ---- Exchanges (client.c) --------------------------------------------------------------- */

/* Waits that tests shorten. */
struct registry_tuning {
    int64_t retry_wait_ms;
    int64_t gate_wait_ms;
    int64_t gate_max_wait_ms;
    int64_t helper_timeout_ms;
    uint64_t ranges_min;  /* blobs with so many bytes missing come over several connections */
    uint64_t segment_len; /* in parts of this size */
    uint64_t piece_len;   /* bigger blobs are pushed in pieces of this size; 0: the usual one */
};

struct registry_counters {
    _Atomic uint64_t manifest_heads, manifest_gets, blob_gets, blob_bytes, retries, mirrored,
        rate_waits;
};

struct registry {
    struct registry_options options;
    struct registry_tuning tuning;
    struct http *http;
    struct gates *gates;
    struct auth *auth;
    struct endpoints *endpoints;
    atomic_int spare_connections; /* for big blobs, beside the one that each pull has */
    struct registry_counters counters;
};

int registry_new_tuned(struct registry **out, const struct registry_options *options,
                       const struct registry_tuning *tuning, struct err *e) MUST_USE;

/* Tries of one operation of this client. */
struct retry registry_retry(const struct registry *r);

/* ---- Endpoints (endpoints.c) ------------------------------------------------------------ */

/* A registry or a mirror. */
struct endpoint {
    char *api;    /* what stands in front of /<repository>/: "https://cache.corp/v2" */
    char *host;   /* host[:port]: whose gate and logins count, and for messages */
    char *prefix; /* in front of the repository's name, with a final slash; may be empty */
    bool mirror;
    bool digests_only;
    int64_t timeout_ms;
    atomic_uint failures; /* in a row */
    atomic_bool set_aside;
    struct endpoint *next;
};

/* Who is asked now. */
struct stop {
    struct endpoint *endpoint;
    const struct oci_ref *ref; /* host and repository as they are there */
    bool last;                 /* nobody is left who could be asked instead */
};

struct endpoints;
int endpoints_new(struct endpoints **out, const struct registry_network *network,
                  const char *const *plain_http_hosts, struct err *e) MUST_USE;
void endpoints_free(struct endpoints *all);

/* Fills in hosts that may be spoken to in the clear, and certificates; borrowed. */
void endpoints_describe(const struct endpoints *all, struct http_options *http);

/* The registry of a reference itself, whatever mirrors it has. NULL when memory is short. */
struct endpoint *endpoint_origin(struct endpoints *all, const struct oci_ref *ref);

/* Whether one of its mirrors is for digests alone. */
bool endpoints_have_digest_mirror(const struct endpoints *all, const struct oci_ref *ref);

/* Does the work at one stop. */
typedef int stop_work(void *ctx, const struct stop *stop, struct err *e);

/* Words the error of the last stop. */
typedef int stop_judge(const struct oci_ref *ref, struct err *e);

/* What is to be had, wherever that is. */
struct errand {
    const struct oci_ref *ref;
    bool by_digest; /* else mirrors for digests alone are left out */
    stop_work *work;
    void *ctx;
    stop_judge *judge; /* may be NULL */
};

/*
 * Does it at one stop after the other until it succeeds. No memory, a cancellation and a fault of
 * this machine end it at once. An error goes through the judge, and then tells what the earlier
 * stops said.
 */
int route_walk(struct registry *r, const struct errand *errand, struct err *e) MUST_USE;

/* Tries of one operation at a stop: one where others can be asked. */
struct retry stop_retry(const struct registry *r, const struct stop *stop);

/*
 * One request to /<repository>/<path> of a stop, with gate and authorization; `request` holds the
 * rest (url and authorization are set here). 0 for a 2xx answer, or 416; anything else is an error
 * (http_status_error) that names the registry or mirror.
 */
int stop_exchange(struct registry *r, const struct stop *stop, const char *path,
                  struct http_request *request, struct http_response *out, struct err *e) MUST_USE;

/* The same at the ref's own registry, never at a mirror: for what is more than a pull. */
int registry_exchange(struct registry *r, const struct oci_ref *ref, const char *path,
                      struct http_request *request, struct http_response *out,
                      struct err *e) MUST_USE;

/*
 * The same with request->url, which the registry has given; `own`: it is the registry's own, which
 * gets our authorization. *out (initialised by the caller) is the last answer, whatever its status.
 */
int registry_send(struct registry *r, const struct oci_ref *ref, bool own,
                  struct http_request *request, struct http_response *out, struct err *e) MUST_USE;

/* ---- Blobs (blob.c) ---------------------------------------------------------------------- */

/* A blob on its way into a file. */
struct download {
    struct registry *registry;
    const struct oci_descriptor *blob;
    char *path; /* "blobs/<digest>" */
    int fd;
    struct hasher *hasher; /* of the first `have` bytes of the file */
    uint64_t have;
    uint64_t best;       /* most that `have` has been: what counts as progress */
    bool started;        /* the answer at hand has been judged */
    unsigned bad_ranges; /* answers that were not the range asked for */
    bool no_ranges;      /* so it comes over one connection */
    bool encoded;        /* the last answer had a Content-Encoding */
    const struct registry_progress *progress; /* may be NULL */
    struct segments *segments;                /* NULL: the file is a prefix */
};

/* What each request for a blob says. */
extern const char *const blob_headers[];

/* Hashes the file from `have` up to `end`. */
int download_hash(struct download *d, uint64_t end, struct err *e) MUST_USE;

/* ---- Several connections (ranges.c) -------------------------------------------------------- */

/* Recognizes a file that ends with a map of its parts: *out is NULL when it does not. */
int segments_load(struct segments **out, const struct download *d, uint64_t file_size,
                  struct err *e) MUST_USE;
void segments_free(struct segments *s);

/* Whether what is missing is worth more than one connection. */
bool segments_wanted(const struct download *d);

/*
 * Fetches what is missing from a stop; success means that the file is the whole blob, hashed. An
 * error leaves the parts that have come. Where the stop does not do ranges, d->no_ranges is set, the
 * file is cut to the prefix it has, and the result is 0.
 */
int segments_fill(struct download *d, const struct stop *stop, struct err *e) MUST_USE;

#endif
