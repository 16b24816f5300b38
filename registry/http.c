/* SPDX-License-Identifier: MIT */
/*
 * The transport, over libcurl.
 *
 * Each thread borrows a worker (an easy handle in a multi handle of its own, which keeps
 * connections alive) for one request. The multi interface is used for its poll: it also waits on
 * the cancel descriptor, so that a stop is seen at once, and lets us measure stalls ourselves.
 * Redirects are not left to libcurl, for what may travel on to another host is our decision.
 */
#include "registry/internal.h"

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
    BUFFER_BYTES = 256 << 10,
    KEPT_CONNECTIONS = 4
};

struct worker {
    CURLM *multi;
    CURL *easy;
    struct worker *next;
};

struct http {
    struct http_options options;
    const char *ca_file;  /* from the environment; NULL: libcurl's own choice */
    pthread_mutex_t lock; /* guards idle; never held across I/O */
    struct worker *idle;
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
    int64_t active_ms; /* when something last arrived */
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

void http_free(struct http *h)
{
    if (!h)
        return;
    while (h->idle) {
        struct worker *w = h->idle;
        h->idle = w->next;
        worker_free(w);
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

/* ---- URLs ------------------------------------------------------------------------------- */

/* A part of a URL that is there; *out stays as it is when it is not. */
static int url_part(char **out, CURLU *url, CURLUPart part, unsigned flags, struct err *e)
{
    char *text = NULL;
    CURLUcode code = curl_url_get(url, part, &text, flags);

    if (code == CURLUE_OUT_OF_MEMORY)
        return err_nomem(e, "URL");
    if (code != CURLUE_OK)
        return 0;
    *out = mem_strdup(text); /* libcurl's own strings are not for free() */
    curl_free(text);
    return *out ? 0 : err_nomem(e, "URL");
}

/* What decides whether credentials may be sent and plain HTTP spoken. */
struct origin {
    char *scheme;
    char *host;
    char *port;
};

static void origin_fini(struct origin *o)
{
    free(o->scheme);
    free(o->host);
    free(o->port);
    *o = (struct origin){0};
}

static int read_origin(struct origin *o, CURLU *url, const char *text, struct err *e)
{
    if (curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK &&
        (url_part(&o->scheme, url, CURLUPART_SCHEME, 0, e) < 0 ||
         url_part(&o->host, url, CURLUPART_HOST, 0, e) < 0 ||
         url_part(&o->port, url, CURLUPART_PORT, CURLU_DEFAULT_PORT, e) < 0))
        return -(int)e->class;
    if (o->scheme && o->host && o->port &&
        (strcmp(o->scheme, "http") == 0 || strcmp(o->scheme, "https") == 0))
        return 0;
    return err_set(e, ERR_INPUT, "not an http or https URL");
}

static int origin_of(struct origin *out, const char *text, struct err *e)
{
    CURLU *url = curl_url();
    struct origin o = {0};

    if (!url)
        return err_nomem(e, "URL");
    int rc = read_origin(&o, url, text, e);
    curl_url_cleanup(url);
    if (rc < 0) {
        origin_fini(&o);
        return rc;
    }
    *out = o;
    return 0;
}

static bool origin_equal(const struct origin *a, const struct origin *b)
{
    return strcmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
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

/* The URL that `location` means in an answer to a request of `base`. */
static int resolve_location(char **out, const char *base, const char *location, struct err *e)
{
    CURLU *url = curl_url();
    char *text = NULL;
    int rc = 0;

    if (!url)
        return err_nomem(e, "URL");
    if (curl_url_set(url, CURLUPART_URL, base, 0) == CURLUE_OK &&
        curl_url_set(url, CURLUPART_URL, location, 0) == CURLUE_OK)
        rc = url_part(&text, url, CURLUPART_URL, 0, e);
    curl_url_cleanup(url);
    if (rc < 0)
        return rc;
    if (!text)
        return err_set(e, ERR_UNSUPPORTED, "a redirect to something else than http or https");
    *out = text;
    return 0;
}

char *http_printable_url(const char *text)
{
    CURLU *url = curl_url();
    char *printable = NULL;
    struct err ignored = ERR_INIT;
    int rc = 0;

    if (url && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK) {
        (void)curl_url_set(url, CURLUPART_USER, NULL, 0);
        (void)curl_url_set(url, CURLUPART_PASSWORD, NULL, 0);
        (void)curl_url_set(url, CURLUPART_QUERY, NULL, 0);
        (void)curl_url_set(url, CURLUPART_FRAGMENT, NULL, 0);
        rc = url_part(&printable, url, CURLUPART_URL, 0, &ignored);
    }
    curl_url_cleanup(url);
    return printable || rc < 0 ? printable : mem_strdup("(malformed URL)");
}

char *http_escape(const char *text)
{
    char *escaped = curl_easy_escape(NULL, text, 0);

    if (!escaped)
        return NULL;
    char *copy = mem_strdup(escaped);
    curl_free(escaped);
    return copy;
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

static size_t on_header(char *data, size_t size, size_t count, void *ctx)
{
    struct transfer *t = ctx;
    size_t len = size * count;

    t->active_ms = clock_ms();
    if (http_response_line(&t->response, data, len, t->e) < 0) {
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

    if (t->following)
        return drop(t, len);
    if (request->sink && is_success(t->response.status))
        rc = request->sink(request->sink_ctx, &t->response, data, len, t->e);
    else if (request->reply)
        rc = keep(t, data, len);
    else
        return drop(t, len);
    t->active_ms = clock_ms();
    t->failed = rc < 0;
    return rc < 0 || t->enough ? 0 : len;
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
         "name the CA's certificate file in SSL_CERT_FILE, if it is a private one"},
        {CURLE_SSL_CACERT_BADFILE, ERR_INPUT, "the file of CA certificates cannot be read",
         "check SSL_CERT_FILE"},
        {CURLE_URL_MALFORMAT, ERR_INPUT, "not a URL", NULL},
        {CURLE_UNSUPPORTED_PROTOCOL, ERR_INPUT, "not an http or https URL", NULL},
    };
    long sys = 0;

    (void)curl_easy_getinfo(w->easy, CURLINFO_OS_ERRNO, &sys);
    if (code == CURLE_OUT_OF_MEMORY)
        return err_nomem(e, "HTTP request");
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

static int check_time(const struct http *h, const struct transfer *t, int64_t deadline_ms,
                      struct err *e)
{
    int64_t now = clock_ms();

    if (cancel_check(h->options.cancel, e) < 0)
        return -(int)e->class;
    if (now >= deadline_ms)
        return err_set(e, ERR_TIMEOUT, "no complete answer within %lld ms",
                       (long long)t->request->total_timeout_ms);
    if (now - t->active_ms >= h->options.stall_timeout_ms) {
        err_set(e, ERR_NET, "nothing has arrived for %lld ms",
                (long long)h->options.stall_timeout_ms);
        e->sys = ETIMEDOUT;
        return -(int)e->class;
    }
    return 0;
}

/* Runs the prepared transfer to its end. */
static int drive(struct http *h, struct worker *w, struct transfer *t, int64_t deadline_ms,
                 CURLcode *result, struct err *e)
{
    struct curl_waitfd stop = {.events = CURL_WAIT_POLLIN};
    unsigned stop_count = h->options.cancel ? 1 : 0;
    int running = 1;
    int left = 0;

    if (h->options.cancel)
        stop.fd = h->options.cancel->fd;
    for (;;) {
        if (curl_multi_perform(w->multi, &running) != CURLM_OK)
            return err_set(e, ERR_NET, "the HTTP library gave up");
        if (!running)
            break;
        if (check_time(h, t, deadline_ms, e) < 0)
            return -(int)e->class;
        int64_t wait = h->options.stall_timeout_ms / 2 + 1;
        int64_t until = deadline_ms - clock_ms();
        wait = wait > POLL_MS ? POLL_MS : wait;
        wait = wait > until ? until : wait;
        if (curl_multi_poll(w->multi, &stop, stop_count, wait > 0 ? (int)wait : 0, NULL) !=
            CURLM_OK)
            return err_set(e, ERR_NET, "the HTTP library gave up");
    }
    CURLMsg *message = curl_multi_info_read(w->multi, &left);
    *result = message ? message->data.result : CURLE_FAILED_INIT;
    return 0;
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
        AUTO_FREE char *line =
            mem_printf("Range: bytes=%llu-", (unsigned long long)request->range_first);
        fine = line && add_line(&list, line);
    }
    if (!fine) {
        curl_slist_free_all(list);
        return err_nomem(e, "HTTP request");
    }
    *out = list;
    return 0;
}

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

static bool set_options(const struct http *h, struct worker *w, struct transfer *t, const char *url,
                        const struct origin *o, struct curl_slist *headers)
{
    CURL *easy = w->easy;
    bool fine = true;

#define SET(option, value) fine = curl_easy_setopt(easy, option, value) == CURLE_OK && fine
    SET(CURLOPT_URL, url);
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
    if (http_host_is_loopback(o->host))
        SET(CURLOPT_PROXY, ""); /* a proxy's loopback is another one */
#undef SET
    /* For speed only: libcurl 7.88 refuses it on a handle whose last try found no host name. */
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    return fine && set_method(easy, t->request);
}

/* Where the next request of a chain goes, and what it may carry. */
struct hop {
    char *url;
    struct origin origin;
    const char *authorization;
};

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
    t->dropped = 0;
    t->enough = false;
    t->following = false;
    if (!set_options(h, w, t, hop->url, &hop->origin, headers) ||
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

int http_redirect(char **out, bool *same_origin, const char *base, const char *location,
                  struct err *e)
{
    AUTO_FREE char *url = NULL;
    struct origin from = {0};
    struct origin to = {0};
    int rc = 0;

    if (resolve_location(&url, base, location, e) < 0 || origin_of(&from, base, e) < 0)
        return -(int)e->class;
    if (origin_of(&to, url, e) < 0) {
        origin_fini(&from);
        return e->class == ERR_NOMEM
                   ? -ERR_NOMEM
                   : err_set(e, ERR_UNSUPPORTED, "a redirect to something else than http or https");
    }
    bool same = origin_equal(&from, &to);
    if (strcmp(from.scheme, "https") == 0 && strcmp(to.scheme, "http") == 0)
        rc = err_set(e, ERR_UNSUPPORTED, "a redirect from https to plain http, at %s, is refused",
                     to.host);
    origin_fini(&from);
    origin_fini(&to);
    if (rc < 0)
        return rc;
    *same_origin = same;
    *out = MOVE(url);
    return 0;
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
    hop_fini(hop);
    hop->url = MOVE(url);
    hop->origin = next;
    return 0;
}

static int perform(struct http *h, struct transfer *t, struct hop *hop, struct err *e)
{
    int64_t limit = t->request->total_timeout_ms;
    int64_t deadline_ms = limit > 0 ? clock_ms() + limit : INT64_MAX;

    for (int redirects = 0;; redirects++) {
        if (cancel_check(h->options.cancel, e) < 0 || check_plain(h, &hop->origin, e) < 0 ||
            transfer_once(h, t, hop, deadline_ms, e) < 0)
            return -(int)e->class;
        if (!t->following)
            return 0;
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
