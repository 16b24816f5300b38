/* SPDX-License-Identifier: MIT */
/*
 * The registry client: one exchange with a registry, and what all threads share.
 *
 * An exchange deals with what is between us and the answer: the host's rate gate, the
 * authorization, the meaning of the status. It does not try again after other faults; that is for
 * the operations in fetch.c, which know what a try has already brought.
 */
#include "registry/internal.h"

#include <ctype.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    DEFAULT_TRIES = 5,
    RETRY_WAIT_MS = 500,
    RETRY_WAIT_MAX_MS = 30000,
    RETRY_AFTER_MAX_MS = 600000,
    GATE_WAIT_MS = 5000,
    GATE_MAX_WAIT_MS = 600000,
    HELPER_TIMEOUT_MS = 30000,
    ERROR_CODE_MAX = 40,
    SPARE_CONNECTIONS = 12,
    RANGES_MIN = 64 << 20,
    SEGMENT_LEN = 16 << 20
};

/* Where CA certificates of registries lie: dockerd's, podman's, containerd's. */
static const char *const usual_certs_dirs[] = {"/etc/docker/certs.d", "/etc/containers/certs.d",
                                               "/etc/containerd/certs.d", NULL};

/* ---- Re-tries --------------------------------------------------------------------------- */

bool retry_again(struct retry *r, struct err *e)
{
    int64_t wait = r->first_wait_ms > 0 ? r->first_wait_ms : RETRY_WAIT_MS;

    r->used++;
    /* ERR_RATE is past helping here: the gate has waited already. */
    if (!err_retryable(e) || e->class == ERR_RATE || r->used >= r->tries ||
        e->retry_after_ms > RETRY_AFTER_MAX_MS)
        return false;
    for (unsigned i = 1; i < r->used && wait < RETRY_WAIT_MAX_MS; i++)
        wait *= 2;
    wait = wait < RETRY_WAIT_MAX_MS ? wait : RETRY_WAIT_MAX_MS;
    if (e->retry_after_ms >= 0)
        wait = e->retry_after_ms;
    if (cancel_sleep_ms(r->cancel, (long)wait, e) < 0)
        return false;
    err_clear(e);
    return true;
}

struct retry registry_retry(const struct registry *r)
{
    return (struct retry){.tries = r->options.tries,
                          .first_wait_ms = r->tuning.retry_wait_ms,
                          .cancel = r->options.cancel};
}

struct retry stop_retry(const struct registry *r, const struct stop *stop)
{
    struct retry retry = registry_retry(r);

    if (!stop->last)
        retry.tries = 1;
    return retry;
}

/* ---- Life ------------------------------------------------------------------------------- */

static unsigned first_set(unsigned a, unsigned b, unsigned c)
{
    return a > 0 ? a : b > 0 ? b : c;
}

/* What the options leave open comes from the network's settings. */
static void merge_settings(struct registry *r)
{
    static const struct registry_network nothing = {0};
    struct registry_options *o = &r->options;
    const struct registry_network *n = o->network ? o->network : &nothing;

    o->network = n;
    o->tries = first_set(o->tries, n->tries, DEFAULT_TRIES);
    if (o->connect_timeout_ms <= 0)
        o->connect_timeout_ms = n->connect_timeout_ms;
    if (o->stall_timeout_ms <= 0)
        o->stall_timeout_ms = n->stall_timeout_ms;
    if (n->retry_wait_ms > 0)
        r->tuning.retry_wait_ms = n->retry_wait_ms;
    if (n->rate_wait_ms > 0)
        r->tuning.gate_wait_ms = n->rate_wait_ms;
    if (!o->certs_dirs)
        o->certs_dirs = usual_certs_dirs;
}

static int build(struct registry *r, struct err *e)
{
    const struct registry_options *o = &r->options;
    unsigned cap = o->network->requests_per_minute;
    struct http_options http = {.connect_timeout_ms = o->connect_timeout_ms,
                                .stall_timeout_ms = o->stall_timeout_ms,
                                .certs_dirs = o->certs_dirs,
                                .cancel = o->cancel};
    struct gate_options gates = {.first_wait_ms = r->tuning.gate_wait_ms,
                                 .max_wait_ms = r->tuning.gate_max_wait_ms,
                                 .tries = o->tries,
                                 .spacing_ms = cap > 0 ? (60000 + cap - 1) / cap : 0,
                                 .cancel = o->cancel};
    struct credential_options logins = {.config_path = o->config_path,
                                        .helper_timeout_ms = r->tuning.helper_timeout_ms,
                                        .cancel = o->cancel};

    if (endpoints_new(&r->endpoints, o->network, o->plain_http_hosts, e) < 0)
        return -(int)e->class;
    endpoints_describe(r->endpoints, &http);
    if (http_new(&r->http, &http, e) < 0 || gates_new(&r->gates, &gates, e) < 0)
        return -(int)e->class;
    return auth_new(&r->auth, r->http, &logins, http.plain_http_hosts, e);
}

int registry_new_tuned(struct registry **out, const struct registry_options *options,
                       const struct registry_tuning *tuning, struct err *e)
{
    AUTO_REGISTRY struct registry *r = mem_zalloc(sizeof(*r));

    if (!r)
        return err_nomem(e, "registry client");
    r->options = *options;
    r->tuning = *tuning;
    atomic_init(&r->spare_connections, SPARE_CONNECTIONS);
    merge_settings(r);
    if (build(r, e) < 0)
        return -(int)e->class;
    *out = MOVE(r);
    return 0;
}

int registry_new(struct registry **out, const struct registry_options *options, struct err *e)
{
    static const struct registry_tuning usual = {.retry_wait_ms = RETRY_WAIT_MS,
                                                 .gate_wait_ms = GATE_WAIT_MS,
                                                 .gate_max_wait_ms = GATE_MAX_WAIT_MS,
                                                 .helper_timeout_ms = HELPER_TIMEOUT_MS,
                                                 .ranges_min = RANGES_MIN,
                                                 .segment_len = SEGMENT_LEN};

    return registry_new_tuned(out, options, &usual, e);
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    auth_free(r->auth);
    gates_free(r->gates);
    http_free(r->http);
    endpoints_free(r->endpoints);
    free(r);
}

struct registry_stats registry_stats(struct registry *r)
{
    struct registry_stats stats = {.manifest_heads = r->counters.manifest_heads,
                                   .manifest_gets = r->counters.manifest_gets,
                                   .blob_gets = r->counters.blob_gets,
                                   .blob_bytes = r->counters.blob_bytes,
                                   .retries = r->counters.retries,
                                   .mirrored = r->counters.mirrored,
                                   .rate_waits = r->counters.rate_waits};

    stats.limited_ms = gates_limited_ms(r->gates);
    stats.has_quota = gates_quota(r->gates, &stats.quota_remaining, &stats.quota_limit);
    return stats;
}

void registry_network_fini(struct registry_network *n)
{
    for (size_t i = 0; i < n->host_count; i++) {
        struct registry_host *host = &n->hosts[i];

        for (size_t k = 0; k < host->mirror_count; k++) {
            free(host->mirrors[k].url);
            free(host->mirrors[k].ca_file);
        }
        free(host->mirrors);
        free(host->name);
        free(host->ca_file);
    }
    free(n->hosts);
    free(n->ca_file);
    *n = (struct registry_network){0};
}

/* ---- Exchanges -------------------------------------------------------------------------- */

/*
 * The code of the first error in a registry's reply (distribution-spec, section Error Codes). Only
 * the code: the message beside it is free text from outside, which could echo what we sent.
 */
static const char *error_code(const struct buf *reply, char out[ERROR_CODE_MAX])
{
    AUTO_JSON struct json *doc = NULL;
    struct err ignored = ERR_INIT;

    if (!reply || reply->len == 0 ||
        json_parse(&doc, reply->data, reply->len, "reply", &ignored) < 0)
        return NULL;
    const struct json *first = json_element(json_member(doc, "errors"), 0);
    const char *code = first ? json_as_string(json_member(first, "code")) : NULL;
    size_t len = code ? strlen(code) : 0;
    if (len == 0 || len >= ERROR_CODE_MAX)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        if (!isalpha((unsigned char)code[i]) && code[i] != '_')
            return NULL;
        out[i] = (char)toupper((unsigned char)code[i]);
    }
    out[len] = '\0';
    return out;
}

static int limit_hint(struct err *e)
{
    return err_hint(e, "run again later: what is done stays done; a login (docker login) may have "
                       "a higher limit");
}

static int status_error(const struct stop *stop, const struct http_response *response,
                        const char *code, struct err *e)
{
    const struct endpoint *at = stop->endpoint;

    http_status_error(e, response, code);
    if (response->redirected)
        return err_in(e, "redirected to %s", response->redirected);
    if (e->class == ERR_DENIED)
        return err_hint(e, "check the name; for a private image log in first: docker login %s",
                        at->host);
    if (e->class == ERR_RATE)
        return limit_hint(e);
    if (e->class == ERR_NET)
        return err_hint(e, "the registry has a fault of its own; try again later");
    return -(int)e->class;
}

/* Some say in the body alone that the limit is reached, with another status of the 400s. */
static void find_limit(const struct http_request *request, struct http_response *response)
{
    char code[ERROR_CODE_MAX];

    if (response->status / 100 == 4 && error_code(request->reply, code) &&
        strcmp(code, "TOOMANYREQUESTS") == 0)
        response->status = 429;
}

/* One request through the gate. */
static int send_once(struct registry *r, const struct stop *stop, struct http_request *request,
                     struct http_response *out, struct err *e)
{
    struct gate_pass pass;

    unsigned flags = GATE_COUNTED | (stop->last ? GATE_PATIENT : 0);

    if (gate_enter(r->gates, stop->ref->host, flags, &pass, e) < 0)
        return -(int)e->class;
    if (request->reply)
        buf_drop(request->reply, request->reply->len);
    int rc = http_perform(r->http, request, out, e);
    if (rc < 0) {
        gate_leave(r->gates, &pass, GATE_UNKNOWN, -1);
        return rc;
    }
    find_limit(request, out);
    if (out->has_remaining)
        gate_note_quota(r->gates, &pass, out->rate_remaining, out->rate_limit);
    bool limited = out->status == 429;
    r->counters.rate_waits += limited;
    if (limited && out->retry_after_ms > 0)
        log_event(LOG_INFO, "registry",
                  "%s limits the rate of requests: to be asked again in %ld s", stop->ref->host,
                  (long)((out->retry_after_ms + 999) / 1000));
    else if (limited)
        log_event(LOG_INFO, "registry", "%s limits the rate of requests: to be asked again later",
                  stop->ref->host);
    gate_leave(r->gates, &pass, limited ? GATE_LIMITED : GATE_PASSED, out->retry_after_ms);
    return 0;
}

/*
 * Gets the authorization to send (or, with the 401 `answer` to the one that was sent, another one).
 * A 429 of the token server closes the gate of the registry it serves, and it is asked again;
 * *limits counts them.
 */
static int authorize(struct registry *r, const struct stop *stop,
                     const struct http_response *answer, struct auth_use *use, unsigned *limits,
                     struct err *e)
{
    const struct oci_ref *ref = stop->ref;

    for (;;) {
        struct gate_pass pass;

        if (gate_enter(r->gates, ref->host, stop->last ? GATE_PATIENT : 0, &pass, e) < 0)
            return -(int)e->class;
        int rc = answer ? auth_refused(r->auth, ref, answer, use, e)
                        : auth_current(r->auth, ref, use, e);
        bool limited = rc < 0 && e->class == ERR_RATE;
        r->counters.rate_waits += limited;
        gate_leave(r->gates, &pass, limited ? GATE_LIMITED : GATE_UNKNOWN, e->retry_after_ms);
        if (!limited)
            return rc;
        if (!stop->last || ++*limits >= r->options.tries)
            return limit_hint(e);
        err_clear(e);
    }
}

/*
 * Sends until the answer is neither 401 nor 429, or an error says that it will not be. A 401 of
 * another host, where a redirect has led, is an answer like any other: its challenge would have our
 * login for the registry sent to whomever it names. The gate
 * makes the waits; how often one exchange takes a 429 is counted here, since a server may ask for
 * no wait at all.
 */
static int exchange(struct registry *r, const struct stop *stop, struct http_request *request,
                    struct auth_use *use, struct http_response *out, struct err *e)
{
    unsigned limits = 0;
    unsigned limits_max = stop->last ? r->options.tries : 1;

    for (;;) {
        AUTO_HTTP_RESPONSE struct http_response answer;

        http_response_init(&answer);
        if (authorize(r, stop, NULL, use, &limits, e) < 0)
            return -(int)e->class;
        request->authorization = use->header;
        if (send_once(r, stop, request, &answer, e) < 0)
            return -(int)e->class;
        if (answer.status == 429 && ++limits < limits_max)
            continue;
        if (answer.status != 401 || answer.redirected) {
            auth_accepted(r->auth, stop->ref, use);
            *out = answer;
            http_response_init(&answer);
            return 0;
        }
        use->refusals++;
        if (authorize(r, stop, &answer, use, &limits, e) < 0)
            return -(int)e->class;
    }
}

int stop_exchange(struct registry *r, const struct stop *stop, const char *path,
                  struct http_request *request, struct http_response *out, struct err *e)
{
    const struct endpoint *at = stop->endpoint;
    struct http_response answer;
    struct auth_use use = {0};
    char code[ERROR_CODE_MAX];
    AUTO_FREE char *url = mem_printf("%s/%s/%s", at->api, stop->ref->repository, path);

    if (!url)
        return err_nomem(e, "request");
    request->url = url;
    int rc = exchange(r, stop, request, &use, &answer, e);
    auth_use_fini(&use);
    request->authorization = NULL;
    request->url = NULL;
    if (rc == 0 && answer.status / 100 != 2 && answer.status != 416) {
        rc = status_error(stop, &answer, error_code(request->reply, code), e);
        http_response_fini(&answer);
    }
    if (rc < 0)
        return err_in(e, "%s %s", at->mirror ? "mirror" : "registry", at->host);
    *out = answer;
    return 0;
}

int registry_exchange(struct registry *r, const struct oci_ref *ref, const char *path,
                      struct http_request *request, struct http_response *out, struct err *e)
{
    struct stop stop = {.endpoint = endpoint_origin(r->endpoints, ref), .ref = ref, .last = true};

    return stop.endpoint ? stop_exchange(r, &stop, path, request, out, e) : err_nomem(e, "request");
}

int registry_send(struct registry *r, const struct oci_ref *ref, bool own,
                  struct http_request *request, struct http_response *out, struct err *e)
{
    struct stop stop = {.endpoint = endpoint_origin(r->endpoints, ref), .ref = ref, .last = true};
    struct auth_use use = {0};

    if (!stop.endpoint)
        return err_nomem(e, "request");
    if (!own) /* not a registry: no gate, no login of ours */
        return http_perform(r->http, request, out, e);
    int rc = exchange(r, &stop, request, &use, out, e);
    auth_use_fini(&use);
    request->authorization = NULL;
    return rc;
}
