/* SPDX-License-Identifier: MIT */
/*
 * The transport, over libcurl.
 *
 * Each thread borrows a worker (an easy handle in a multi handle of its own, which keeps
 * connections alive) for one request. The multi interface is used for its poll: it also waits on
 * the cancel descriptor, so that a stop is seen at once, and lets us measure stalls ourselves.
 * Redirects are not left to libcurl, for what may travel on to another host is our decision.
 */
#include "registry/http_internal.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    DEFAULT_CONNECT_MS = 10000,
    DEFAULT_STALL_MS = 30000,
    MAX_REDIRECTS = 5,
    POLL_MS = 1000,
    GIVEN_UP_MS = 100,
    BUFFER_BYTES = 256 << 10,
    KEPT_CONNECTIONS = 4,
    HEADER_MAX = 256 << 10
};

/* The system's certificates and a host's own. */
#define LIMIT_CERTIFICATES ((size_t)16 << 20)

struct worker {
    CURLM *multi;
    CURL *easy;
    struct worker *next;
};

/* The CA certificates for one origin; they live until http_free. */
struct trust {
    char *host; /* host:port */
    struct buf pem;
    struct trust *next;
};

struct http {
    struct http_options options;
    const char *ca_file;  /* from the environment; NULL: libcurl's own choice */
    pthread_mutex_t lock; /* guards what follows; never held across network I/O */
    struct worker *idle;
    struct trust *trusts;
};

/* One request on its way. */
struct transfer {
    const struct http_request *request;
    struct http_response response;
    struct err *e;
    bool failed;    /* a callback has set *e */
    bool enough;    /* the rest of an error's body is not wanted */
    bool following; /* the answer is a redirect that will be followed */
    uint64_t dropped;
    uint64_t header_len;
    int64_t answer_deadline_ms;
    int64_t active_ms; /* when something last arrived */
    int64_t window_ms; /* since when `window_len` bytes have arrived; 0: none yet */
    uint64_t window_len;
};

/* ---- Life ------------------------------------------------------------------------------- */

/* libcurl wants one call for the whole process, before the first handle. */
static void init_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* The value of a variable; NULL when it is unset or empty. */
static const char *set_in_environment(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

int http_new(struct http **out, const struct http_options *options, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct http *h = mem_zalloc(sizeof(*h));

    if (!h)
        return err_nomem(e, "HTTP client");
    (void)pthread_once(&once, init_curl);
    h->options = *options;
    if (h->options.connect_timeout_ms <= 0)
        h->options.connect_timeout_ms = DEFAULT_CONNECT_MS;
    if (h->options.stall_timeout_ms <= 0)
        h->options.stall_timeout_ms = DEFAULT_STALL_MS;
    h->ca_file = set_in_environment("SSL_CERT_FILE");
    if (!h->ca_file)
        h->ca_file = set_in_environment("CURL_CA_BUNDLE");
    (void)pthread_mutex_init(&h->lock, NULL);
    *out = h;
    return 0;
}

static void worker_free(struct worker *w)
{
    if (!w)
        return;
    curl_easy_cleanup(w->easy);
    if (w->multi)
        (void)curl_multi_cleanup(w->multi);
    free(w);
}

static void trust_free(struct trust *t)
{
    free(t->host);
    buf_fini(&t->pem);
    free(t);
}

void http_free(struct http *h)
{
    if (!h)
        return;
    while (h->idle) {
        struct worker *w = h->idle;
        h->idle = w->next;
        worker_free(w);
    }
    while (h->trusts) {
        struct trust *t = h->trusts;
        h->trusts = t->next;
        trust_free(t);
    }
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}

/* NULL when memory is short. */
static struct worker *worker_borrow(struct http *h)
{
    (void)pthread_mutex_lock(&h->lock);
    struct worker *w = h->idle;
    if (w)
        h->idle = w->next;
    (void)pthread_mutex_unlock(&h->lock);
    if (w)
        return w;

    w = mem_zalloc(sizeof(*w));
    if (!w)
        return NULL;
    w->multi = curl_multi_init();
    w->easy = curl_easy_init();
    if (!w->multi || !w->easy) {
        worker_free(w);
        return NULL;
    }
    (void)curl_multi_setopt(w->multi, CURLMOPT_MAXCONNECTS, (long)KEPT_CONNECTIONS);
    return w;
}

static void worker_return(struct http *h, struct worker *w)
{
    curl_easy_reset(w->easy);
    (void)pthread_mutex_lock(&h->lock);
    w->next = h->idle;
    h->idle = w;
    (void)pthread_mutex_unlock(&h->lock);
}

static int check_plain(const struct http *h, const struct origin *o, struct err *e)
{
    if (strcmp(o->scheme, "https") == 0 || h->options.plain_http_anywhere)
        return 0;
    AUTO_FREE char *host = mem_printf("%s:%s", o->host, o->port);
    if (!host)
        return err_nomem(e, "URL");
    if (http_plain_allowed(host, h->options.plain_http_hosts))
        return 0;
    err_set(e, ERR_INPUT, "plain HTTP to %s is not allowed", host);
    return err_hint(e, "list %s among the plain-HTTP hosts, if you trust the network", host);
}

/* ---- One transfer ----------------------------------------------------------------------- */

static bool is_success(int status)
{
    return status >= 200 && status < 300;
}

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static void note_arrival(struct transfer *t, size_t len)
{
    t->active_ms = clock_ms();
    if (t->window_ms == 0)
        t->window_ms = t->active_ms;
    t->window_len += len;
}

static size_t on_header(char *data, size_t size, size_t count, void *ctx)
{
    struct transfer *t = ctx;
    size_t len = size * count;

    note_arrival(t, len);
    t->header_len += len;
    if (t->header_len > HEADER_MAX)
        err_set(t->e, ERR_LIMIT, "the answer has more than %d bytes of header", HEADER_MAX);
    if (t->header_len > HEADER_MAX || http_response_line(&t->response, data, len, t->e) < 0) {
        t->failed = true;
        return 0;
    }
    const char *method = t->request->method;
    t->following = !t->request->no_redirects && is_redirect(t->response.status) &&
                   t->response.location &&
                   (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0);
    return len;
}

/* Bodies that nobody asked for are read to keep the connection, up to a point. */
static size_t drop(struct transfer *t, size_t len)
{
    t->dropped += len;
    if (t->dropped <= LIMIT_TOKEN)
        return len;
    t->enough = true;
    return 0;
}

static int keep(struct transfer *t, const void *data, size_t len)
{
    struct buf *reply = t->request->reply;
    size_t room = reply->ceiling - reply->len;

    if (is_success(t->response.status) || len <= room)
        return buf_add(reply, data, len, t->e);
    t->enough = true;
    return buf_add(reply, data, room, t->e);
}

static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
    struct transfer *t = ctx;
    const struct http_request *request = t->request;
    size_t len = size * count;
    int rc;

    note_arrival(t, len);
    if (t->following)
        return drop(t, len);
    if (request->sink && is_success(t->response.status))
        rc = request->sink(request->sink_ctx, &t->response, data, len, t->e);
    else if (request->reply)
        rc = keep(t, data, len);
    else
        return drop(t, len);
    /* A slow disk is not a slow network. */
    int64_t taken_ms = clock_ms() - t->active_ms;
    t->active_ms += taken_ms;
    t->window_ms += taken_ms;
    t->failed = rc < 0;
    return rc < 0 || t->enough ? 0 : len;
}

/* True, with the error set, when it was the proxy that did not let us through. */
static bool proxy_refused(struct worker *w, struct err *e)
{
    long status = 0;

    (void)curl_easy_getinfo(w->easy, CURLINFO_HTTP_CONNECTCODE, &status);
    if (status == 0 || is_success((int)status))
        return false;
    if (status == 407) {
        err_set(e, ERR_DENIED, "the proxy wants a login");
        err_hint(e, "put it into the proxy's URL: https_proxy=http://USER:PASSWORD@HOST:PORT");
    } else {
        err_set(e, ERR_NET, "the proxy answers with status %ld", status);
        err_hint(e, "check https_proxy and no_proxy");
    }
    return true;
}

/* libcurl's word for what went wrong, in ours. */
static int transfer_error(const struct http *h, struct worker *w, CURLcode code, struct err *e)
{
    static const struct {
        CURLcode code;
        enum err_class class;
        const char *text;
        const char *hint;
    } known[] = {
        {CURLE_COULDNT_RESOLVE_HOST, ERR_NET, "the host name does not resolve",
         "check the host name and this machine's DNS"},
        {CURLE_COULDNT_RESOLVE_PROXY, ERR_NET, "the proxy's name does not resolve",
         "check http_proxy and https_proxy"},
        {CURLE_GOT_NOTHING, ERR_NET, "the connection closed without an answer", NULL},
        {CURLE_PARTIAL_FILE, ERR_NET, "the answer was cut off", NULL},
        {CURLE_RECV_ERROR, ERR_NET, "the connection was lost", NULL},
        {CURLE_SEND_ERROR, ERR_NET, "the connection was lost", NULL},
        {CURLE_HTTP2_STREAM, ERR_NET, "the connection was lost", NULL},
        {CURLE_SSL_CONNECT_ERROR, ERR_NET, "no TLS connection",
         "if it speaks plain HTTP, list it among the plain-HTTP hosts"},
        {CURLE_PEER_FAILED_VERIFICATION, ERR_DENIED, "its TLS certificate is not trusted",
         "if its CA is a private one, name the CA's certificate: --ca FILE"},
        {CURLE_SSL_CACERT_BADFILE, ERR_INPUT, "the file of CA certificates cannot be read",
         "check --ca, 'ca' in registries.yaml, certs.d and SSL_CERT_FILE"},
        {CURLE_URL_MALFORMAT, ERR_INPUT, "not a URL", NULL},
        {CURLE_UNSUPPORTED_PROTOCOL, ERR_INPUT, "not an http or https URL", NULL},
    };
    long sys = 0;

    (void)curl_easy_getinfo(w->easy, CURLINFO_OS_ERRNO, &sys);
    if (code == CURLE_OUT_OF_MEMORY)
        return err_nomem(e, "HTTP request");
    if (proxy_refused(w, e))
        return -(int)e->class;
    if (code == CURLE_OPERATION_TIMEDOUT) {
        err_set(e, ERR_NET, "no connection within %lld ms",
                (long long)h->options.connect_timeout_ms);
        e->sys = ETIMEDOUT;
        return err_hint(e, "check the address, and what is between here and there");
    }
    if (code == CURLE_COULDNT_CONNECT) {
        char reason[128];
        const char *text = sys ? strerror_r((int)sys, reason, sizeof(reason)) : "no connection";
        err_set(e, ERR_NET, "%c%s", tolower((unsigned char)text[0]), text + 1);
        e->sys = (int)sys;
        return err_hint(e, "check that it runs, and its address");
    }
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (known[i].code != code)
            continue;
        err_set(e, known[i].class, "%s", known[i].text);
        e->sys = known[i].class == ERR_NET ? (int)sys : 0;
        return known[i].hint ? err_hint(e, "%s", known[i].hint) : -(int)e->class;
    }
    return err_set(e, ERR_NET, "%s", curl_easy_strerror(code));
}

/* Bytes that drip keep a connection for ever without ever stalling. */
static int check_rate(const struct http *h, struct transfer *t, int64_t now, struct err *e)
{
    int64_t window_ms = now - t->window_ms;

    if (t->window_ms == 0 || window_ms < h->options.stall_timeout_ms)
        return 0;
    if (t->window_len < (uint64_t)window_ms * HTTP_MIN_RATE / 1000) {
        err_set(e, ERR_NET, "only %llu bytes have arrived in %lld ms",
                (unsigned long long)t->window_len, (long long)window_ms);
        e->sys = ETIMEDOUT;
        return -(int)e->class;
    }
    t->window_ms = now;
    t->window_len = 0;
    return 0;
}

static int check_time(const struct http *h, struct transfer *t, int64_t deadline_ms, struct err *e)
{
    const struct http_request *request = t->request;
    int64_t now = clock_ms();

    if (cancel_check(h->options.cancel, e) < 0)
        return -(int)e->class;
    if (request->given_up && atomic_load(request->given_up))
        return err_set(e, ERR_CANCELLED, "no longer wanted");
    if (now >= t->answer_deadline_ms && t->window_ms == 0)
        return err_set(e, ERR_TIMEOUT, "no answer within %lld ms",
                       (long long)request->answer_timeout_ms);
    if (now >= deadline_ms)
        return err_set(e, ERR_TIMEOUT, "no complete answer within %lld ms",
                       (long long)t->request->total_timeout_ms);
    if (now - t->active_ms >= h->options.stall_timeout_ms) {
        err_set(e, ERR_NET, "nothing has arrived for %lld ms",
                (long long)h->options.stall_timeout_ms);
        e->sys = ETIMEDOUT;
        return -(int)e->class;
    }
    return check_rate(h, t, now, e);
}

/* Runs the prepared transfer to its end. */
static int drive(struct http *h, struct worker *w, struct transfer *t, int64_t deadline_ms,
                 CURLcode *result, struct err *e)
{
    struct curl_waitfd stop = {.events = CURL_WAIT_POLLIN};
    unsigned stop_count = cancel_fd(h->options.cancel) >= 0 ? 1 : 0;
    int running = 1;
    int left = 0;

    if (stop_count > 0)
        stop.fd = cancel_fd(h->options.cancel);
    for (;;) {
        if (curl_multi_perform(w->multi, &running) != CURLM_OK)
            return err_set(e, ERR_NET, "the HTTP library gave up");
        if (!running)
            break;
        if (check_time(h, t, deadline_ms, e) < 0)
            return -(int)e->class;
        int64_t wait = h->options.stall_timeout_ms / 2 + 1;
        int64_t until = deadline_ms < t->answer_deadline_ms || t->window_ms != 0
                            ? deadline_ms - clock_ms()
                            : t->answer_deadline_ms - clock_ms();
        int64_t most = t->request->given_up ? GIVEN_UP_MS : POLL_MS;
        wait = wait > most ? most : wait;
        wait = wait > until ? until : wait;
        int wait_ms = cancel_wait_ms(h->options.cancel, wait);
        if (curl_multi_poll(w->multi, &stop, stop_count, wait_ms, NULL) != CURLM_OK)
            return err_set(e, ERR_NET, "the HTTP library gave up");
    }
    CURLMsg *message = curl_multi_info_read(w->multi, &left);
    *result = message ? message->data.result : CURLE_FAILED_INIT;
    return 0;
}

static char *range_line(const struct http_request *request)
{
    unsigned long long first = request->range_first;
    unsigned long long last = request->range_last;

    return last > 0 ? mem_printf("Range: bytes=%llu-%llu", first, last)
                    : mem_printf("Range: bytes=%llu-", first);
}

static bool add_line(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (longer)
        *list = longer;
    return longer != NULL;
}

static int build_headers(struct curl_slist **out, const struct http_request *request,
                         const char *authorization, struct err *e)
{
    struct curl_slist *list = NULL;
    bool fine = add_line(&list, "Expect:");
    bool typed = false;

    for (size_t i = 0; fine && request->headers && request->headers[i]; i++) {
        typed = typed || strncasecmp(request->headers[i], "Content-Type:", 13) == 0;
        fine = add_line(&list, request->headers[i]);
    }
    /* libcurl would call any body a form, and servers then read it as one. */
    fine = fine && (typed || add_line(&list, "Content-Type:"));
    if (fine && authorization) {
        AUTO_FREE char *line = mem_printf("Authorization: %s", authorization);
        fine = line && add_line(&list, line);
    }
    if (fine && request->ranged) {
        AUTO_FREE char *line = range_line(request);
        fine = line && add_line(&list, line);
    }
    if (!fine) {
        curl_slist_free_all(list);
        return err_nomem(e, "HTTP request");
    }
    *out = list;
    return 0;
}

/* Where the next request of a chain goes, and what it may carry. */
struct hop {
    char *url;
    struct origin origin;
    const struct buf *pem; /* CA certificates; NULL for plain HTTP; borrowed */
    const char *authorization;
    bool away; /* redirects have led to another origin */
};

/* True when all options were taken. */
static bool set_method(CURL *easy, const struct http_request *request)
{
    const char *method = request->method;
    bool body = request->body || (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0 &&
                                  strcmp(method, "DELETE") != 0);

    if (strcmp(method, "HEAD") == 0)
        return curl_easy_setopt(easy, CURLOPT_NOBODY, 1L) == CURLE_OK;
    if (body &&
        (curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                          (curl_off_t)(request->body ? request->body_len : 0)) != CURLE_OK ||
         curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body ? request->body : "") !=
             CURLE_OK))
        return false;
    return curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK;
}

static bool set_options(const struct http *h, struct worker *w, struct transfer *t,
                        const struct hop *hop, struct curl_slist *headers)
{
    CURL *easy = w->easy;
    const struct buf *pem = hop->pem;
    bool fine = true;

#define SET(option, value) fine = curl_easy_setopt(easy, option, value) == CURLE_OK && fine
    SET(CURLOPT_URL, hop->url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_CONTENT_DECODING, 0L); /* digests are over the bytes as sent */
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)h->options.connect_timeout_ms);
    SET(CURLOPT_USERAGENT, "tb2-bake");
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, t);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, t);
    if (h->ca_file)
        SET(CURLOPT_CAINFO, h->ca_file);
    if (pem && pem->len > 0)
        SET(CURLOPT_CAINFO_BLOB, (&(struct curl_blob){pem->data, pem->len, CURL_BLOB_NOCOPY}));
    if (h->options.unix_socket)
        SET(CURLOPT_UNIX_SOCKET_PATH, h->options.unix_socket);
    if (http_host_is_loopback(hop->origin.host))
        SET(CURLOPT_PROXY, ""); /* a proxy's loopback is another one */
#undef SET
    /* For speed only: libcurl 7.88 refuses it on a handle whose last try found no host name. */
    if (t->request->sink)
        (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    return fine && set_method(easy, t->request);
}

/* Sends one request to one URL and takes the answer; what came is in t->response. */
static int transfer_once(struct http *h, struct transfer *t, const struct hop *hop,
                         int64_t deadline_ms, struct err *e)
{
    struct curl_slist *headers = NULL;
    CURLcode result = CURLE_OK;
    int rc;

    if (build_headers(&headers, t->request, hop->authorization, e) < 0)
        return -(int)e->class;
    struct worker *w = worker_borrow(h);
    if (!w) {
        curl_slist_free_all(headers);
        return err_nomem(e, "HTTP connection");
    }
    t->active_ms = clock_ms();
    t->answer_deadline_ms = t->request->answer_timeout_ms > 0
                                ? t->active_ms + t->request->answer_timeout_ms
                                : INT64_MAX;
    t->window_ms = 0;
    t->window_len = 0;
    t->header_len = 0;
    t->dropped = 0;
    t->enough = false;
    t->following = false;
    if (!set_options(h, w, t, hop, headers) ||
        curl_multi_add_handle(w->multi, w->easy) != CURLM_OK) {
        rc = err_nomem(e, "HTTP request");
    } else {
        rc = drive(h, w, t, deadline_ms, &result, e);
        if (rc == 0 && t->failed)
            rc = -(int)e->class;
        else if (rc == 0 && result != CURLE_OK && !t->enough)
            rc = transfer_error(h, w, result, e);
        (void)curl_multi_remove_handle(w->multi, w->easy);
    }
    worker_return(h, w);
    curl_slist_free_all(headers);
    return rc;
}

/* ---- Requests --------------------------------------------------------------------------- */

static void hop_fini(struct hop *hop)
{
    free(hop->url);
    origin_fini(&hop->origin);
}

static int hop_follow(struct hop *hop, const char *location, struct err *e)
{
    AUTO_FREE char *url = NULL;
    struct origin next;
    bool same = false;

    if (http_redirect(&url, &same, hop->url, location, e) < 0 || origin_of(&next, url, e) < 0)
        return -(int)e->class;
    if (!same)
        hop->authorization = NULL;
    hop->away = hop->away || !same;
    hop_fini(hop);
    hop->url = MOVE(url);
    hop->origin = next;
    return 0;
}

/*
 * Collected certificates take the place of the file that libcurl would read, but not of the
 * directory. Where the system's are in no directory, its file is collected too.
 */
static int collect(struct trust *t, const struct http *h, const struct origin *o, struct err *e)
{
    const curl_version_info_data *build = curl_version_info(CURLVERSION_NOW);
    struct http_options system = {.ca_file = h->ca_file ? h->ca_file : build->cainfo};

    if (trust_collect(&t->pem, &h->options, o->host, o->port, e) < 0)
        return -(int)e->class;
    if (t->pem.len == 0 || (!h->ca_file && (build->capath || !build->cainfo)))
        return 0;
    return trust_collect(&t->pem, &system, o->host, o->port, e);
}

/* The certificates for a hop, collected once for each origin. */
static int find_trust(struct http *h, struct hop *hop, struct err *e)
{
    AUTO_FREE char *host = mem_printf("%s:%s", hop->origin.host, hop->origin.port);
    struct trust *t;
    int rc = 0;

    hop->pem = NULL;
    if (!host)
        return err_nomem(e, "CA certificates");
    if (strcmp(hop->origin.scheme, "https") != 0)
        return 0;
    (void)pthread_mutex_lock(&h->lock);
    for (t = h->trusts; t && strcmp(t->host, host) != 0;)
        t = t->next;
    if (!t) {
        t = mem_zalloc(sizeof(*t));
        if (t) {
            buf_init(&t->pem, LIMIT_CERTIFICATES);
            t->host = MOVE(host);
        }
        rc = t ? collect(t, h, &hop->origin, e) : err_nomem(e, "CA certificates");
        if (rc == 0) {
            t->next = h->trusts;
            h->trusts = t;
        } else if (t) {
            trust_free(t);
        }
    }
    (void)pthread_mutex_unlock(&h->lock);
    if (rc == 0)
        hop->pem = &t->pem;
    return rc;
}

/* Where redirects have led to another host, it is the one to blame. */
static int blame(const struct hop *hop, struct err *e)
{
    if (hop->away && e->class != ERR_CANCELLED)
        return err_in(e, "redirected to %s:%s", hop->origin.host, hop->origin.port);
    return -(int)e->class;
}

static int note_host(struct http_response *r, const struct hop *hop, struct err *e)
{
    if (!hop->away)
        return 0;
    r->redirected = mem_printf("%s:%s", hop->origin.host, hop->origin.port);
    return r->redirected ? 0 : err_nomem(e, "HTTP answer");
}

static int perform(struct http *h, struct transfer *t, struct hop *hop, struct err *e)
{
    int64_t limit = t->request->total_timeout_ms;
    int64_t deadline_ms = limit > 0 ? clock_ms() + limit : INT64_MAX;

    for (int redirects = 0;; redirects++) {
        if (cancel_check(h->options.cancel, e) < 0 || check_plain(h, &hop->origin, e) < 0 ||
            find_trust(h, hop, e) < 0 || transfer_once(h, t, hop, deadline_ms, e) < 0)
            return blame(hop, e);
        if (!t->following)
            return note_host(&t->response, hop, e);
        if (redirects == MAX_REDIRECTS)
            return err_set(e, ERR_UNSUPPORTED, "more than %d redirects", MAX_REDIRECTS);
        if (hop_follow(hop, t->response.location, e) < 0)
            return -(int)e->class;
        http_response_fini(&t->response);
    }
}

int http_perform(struct http *h, const struct http_request *request, struct http_response *out,
                 struct err *e)
{
    struct transfer t = {.request = request, .e = e};
    struct hop hop = {.authorization = request->authorization};

    http_response_init(&t.response);
    hop.url = mem_strdup(request->url);
    int rc = hop.url ? origin_of(&hop.origin, hop.url, e) : err_nomem(e, "URL");
    if (rc == 0)
        rc = perform(h, &t, &hop, e);
    hop_fini(&hop);
    if (rc < 0) {
        http_response_fini(&t.response);
        return rc;
    }
    *out = t.response;
    return 0;
}
