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
#include "base/mem.h"

enum {
    DEFAULT_TRIES = 5,
    RETRY_WAIT_MS = 500,
    RETRY_WAIT_MAX_MS = 30000,
    RETRY_AFTER_MAX_MS = 600000,
    GATE_WAIT_MS = 5000,
    GATE_MAX_WAIT_MS = 600000,
    HELPER_TIMEOUT_MS = 30000,
    ERROR_CODE_MAX = 40
};

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

/* ---- Life ------------------------------------------------------------------------------- */

static int build(struct registry *r, struct err *e)
{
    const struct registry_options *o = &r->options;
    struct http_options http = {.connect_timeout_ms = o->connect_timeout_ms,
                                .stall_timeout_ms = o->stall_timeout_ms,
                                .plain_http_hosts = o->plain_http_hosts,
                                .cancel = o->cancel};
    struct gate_options gates = {.first_wait_ms = r->tuning.gate_wait_ms,
                                 .max_wait_ms = r->tuning.gate_max_wait_ms,
                                 .tries = o->tries,
                                 .cancel = o->cancel};
    struct credential_options logins = {.config_path = o->config_path,
                                        .helper_timeout_ms = r->tuning.helper_timeout_ms,
                                        .cancel = o->cancel};

    if (http_new(&r->http, &http, e) < 0 || gates_new(&r->gates, &gates, e) < 0)
        return -(int)e->class;
    return auth_new(&r->auth, r->http, &logins, o->plain_http_hosts, e);
}

int registry_new_tuned(struct registry **out, const struct registry_options *options,
                       const struct registry_tuning *tuning, struct err *e)
{
    AUTO_REGISTRY struct registry *r = mem_zalloc(sizeof(*r));

    if (!r)
        return err_nomem(e, "registry client");
    r->options = *options;
    r->tuning = *tuning;
    if (r->options.tries == 0)
        r->options.tries = DEFAULT_TRIES;
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
                                                 .helper_timeout_ms = HELPER_TIMEOUT_MS};

    return registry_new_tuned(out, options, &usual, e);
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    auth_free(r->auth);
    gates_free(r->gates);
    http_free(r->http);
    free(r);
}

struct registry_stats registry_stats(struct registry *r)
{
    return (struct registry_stats){.manifest_heads = r->counters.manifest_heads,
                                   .manifest_gets = r->counters.manifest_gets,
                                   .blob_gets = r->counters.blob_gets,
                                   .blob_bytes = r->counters.blob_bytes,
                                   .retries = r->counters.retries};
}

/* ---- Exchanges -------------------------------------------------------------------------- */

/* docker.io is a name; the machine behind it has another. */
static const char *api_host(const struct oci_ref *ref)
{
    return strcmp(ref->host, "docker.io") == 0 ? "registry-1.docker.io" : ref->host;
}

static char *build_url(const struct registry *r, const struct oci_ref *ref, const char *path)
{
    bool plain = http_plain_allowed(ref->host, r->options.plain_http_hosts);

    return mem_printf("%s://%s/v2/%s/%s", plain ? "http" : "https", api_host(ref), ref->repository,
                      path);
}

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

static int status_error(const struct oci_ref *ref, const struct http_request *request,
                        const struct http_response *response, struct err *e)
{
    char code[ERROR_CODE_MAX];

    http_status_error(e, response, error_code(request->reply, code));
    if (e->class == ERR_DENIED)
        return err_hint(e, "check the name; for a private image log in first: docker login %s",
                        ref->host);
    if (e->class == ERR_RATE)
        return limit_hint(e);
    if (e->class == ERR_NET)
        return err_hint(e, "the registry has a fault of its own; try again later");
    return -(int)e->class;
}

/* One request through the gate. */
static int send_once(struct registry *r, const struct oci_ref *ref, struct http_request *request,
                     struct http_response *out, struct err *e)
{
    struct gate_pass pass;

    if (gate_enter(r->gates, ref->host, &pass, e) < 0)
        return -(int)e->class;
    if (request->reply)
        buf_drop(request->reply, request->reply->len);
    int rc = http_perform(r->http, request, out, e);
    if (rc < 0)
        gate_leave(r->gates, &pass, GATE_UNKNOWN, -1);
    else
        gate_leave(r->gates, &pass, out->status == 429 ? GATE_LIMITED : GATE_PASSED,
                   out->retry_after_ms);
    return rc;
}

/*
 * Gets the authorization to send (or, with the 401 `answer` to the one that was sent, another one).
 * A 429 of the token server closes the gate of the registry it serves, and it is asked again;
 * *limits counts them.
 */
static int authorize(struct registry *r, const struct oci_ref *ref,
                     const struct http_response *answer, struct auth_use *use, unsigned *limits,
                     struct err *e)
{
    for (;;) {
        struct gate_pass pass;

        if (gate_enter(r->gates, ref->host, &pass, e) < 0)
            return -(int)e->class;
        int rc = answer ? auth_refused(r->auth, ref, answer, use, e)
                        : auth_current(r->auth, ref, use, e);
        bool limited = rc < 0 && e->class == ERR_RATE;
        gate_leave(r->gates, &pass, limited ? GATE_LIMITED : GATE_UNKNOWN, e->retry_after_ms);
        if (!limited)
            return rc;
        if (++*limits >= r->options.tries)
            return limit_hint(e);
        err_clear(e);
    }
}

/*
 * Sends until the answer is neither 401 nor 429, or an error says that it will not be. The gate
 * makes the waits; how often one exchange takes a 429 is counted here, since a server may ask for
 * no wait at all.
 */
static int exchange(struct registry *r, const struct oci_ref *ref, struct http_request *request,
                    struct auth_use *use, struct http_response *out, struct err *e)
{
    unsigned limits = 0;

    for (;;) {
        AUTO_HTTP_RESPONSE struct http_response answer;

        http_response_init(&answer);
        if (authorize(r, ref, NULL, use, &limits, e) < 0)
            return -(int)e->class;
        request->authorization = use->header;
        if (send_once(r, ref, request, &answer, e) < 0)
            return -(int)e->class;
        if (answer.status == 429 && ++limits < r->options.tries)
            continue;
        if (answer.status != 401) {
            auth_accepted(r->auth, ref, use);
            *out = answer;
            http_response_init(&answer);
            return 0;
        }
        use->refusals++;
        if (authorize(r, ref, &answer, use, &limits, e) < 0)
            return -(int)e->class;
    }
}

int registry_exchange(struct registry *r, const struct oci_ref *ref, const char *path,
                      struct http_request *request, struct http_response *out, struct err *e)
{
    struct http_response answer;
    struct auth_use use = {0};
    AUTO_FREE char *url = build_url(r, ref, path);

    if (!url)
        return err_nomem(e, "request");
    request->url = url;
    int rc = exchange(r, ref, request, &use, &answer, e);
    auth_use_fini(&use);
    request->authorization = NULL;
    request->url = NULL;
    if (rc == 0 && answer.status / 100 != 2 && answer.status != 416) {
        rc = status_error(ref, request, &answer, e);
        http_response_fini(&answer);
    }
    if (rc < 0)
        return err_in(e, "registry %s", ref->host);
    *out = answer;
    return 0;
}
