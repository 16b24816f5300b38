/* SPDX-License-Identifier: MIT */
/*
 * Authorizations: which one a request carries, and how a new one is had.
 *
 * There is one per repository, since tokens are. A 401 leads to a renewal by whichever thread sees
 * it first; the others wait for its result. Each renewal starts a generation, and a request knows
 * the one it was sent with: a 401 for an older generation just means "try again with the new one".
 * A generation is proven once any request got through with it; a 401 for a proven one means that it
 * has run out, for an unproven one that we are not wanted.
 */
#include "registry/internal.h"

#include <pthread.h>
#include <strings.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    TOKEN_TIMEOUT_MS = 60000,
    MIN_LIFE_SECONDS = 60, /* token specification: the default, and the least there should be */
    MAX_LIFE_SECONDS = 24 * 3600,
    TOKEN_MAX_LEN = 64 << 10,
    MAX_REFUSALS = 5, /* of one exchange; threads may use a short-lived token up under us */
    WAIT_SLICE_MS = 200
};

struct entry {
    char *host;
    char *repository;
    char *header; /* NULL: anonymous */
    bool busy;    /* some thread is renewing it */
    bool proven;
    bool has_login; /* the header came from a login, not from anonymity */
    unsigned generation;
    unsigned uses;              /* requests sent with this generation */
    int64_t expires_ms;         /* INT64_MAX: never */
    struct challenge challenge; /* of the last renewal */
    struct entry *next;
};

struct auth {
    struct http *http;
    struct credential_options logins;
    const char *const *plain_http_hosts;
    pthread_mutex_t lock; /* guards all below; never held across I/O */
    pthread_cond_t changed;
    struct entry *list; /* entries live as long as their list */
    bool said_anonymous;
};

int auth_new(struct auth **out, struct http *http, const struct credential_options *options,
             const char *const *plain_http_hosts, struct err *e)
{
    struct auth *a = mem_zalloc(sizeof(*a));

    if (!a)
        return err_nomem(e, "authorizations");
    a->http = http;
    a->logins = *options;
    a->plain_http_hosts = plain_http_hosts;
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)cond_init(&a->changed);
    *out = a;
    return 0;
}

static void entry_free(struct entry *entry)
{
    free(entry->host);
    free(entry->repository);
    secret_free(entry->header);
    challenge_fini(&entry->challenge);
    free(entry);
}

void auth_free(struct auth *a)
{
    if (!a)
        return;
    while (a->list) {
        struct entry *entry = a->list;
        a->list = entry->next;
        entry_free(entry);
    }
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    free(a);
}

/* NULL when memory is short. */
static struct entry *entry_of(struct auth *a, const struct oci_ref *ref)
{
    for (struct entry *entry = a->list; entry; entry = entry->next) {
        if (strcmp(entry->host, ref->host) == 0 && strcmp(entry->repository, ref->repository) == 0)
            return entry;
    }
    struct entry *entry = mem_zalloc(sizeof(*entry));
    if (!entry)
        return NULL;
    entry->host = mem_strdup(ref->host);
    entry->repository = mem_strdup(ref->repository);
    entry->expires_ms = INT64_MAX;
    if (!entry->host || !entry->repository) {
        entry_free(entry);
        return NULL;
    }
    entry->next = a->list;
    a->list = entry;
    return entry;
}

/* ---- Getting a token (token.md of the distribution documentation) ----------------------- */

/* What a renewal gave. */
struct grant {
    char *header;
    bool has_login;
    int64_t expires_ms;
};

static bool token_is_legal(const char *token)
{
    size_t len = strlen(token);

    for (size_t i = 0; i < len; i++) {
        if (token[i] <= ' ' || token[i] > '~')
            return false;
    }
    return len > 0 && len <= TOKEN_MAX_LEN;
}

static int read_token(struct grant *out, const struct buf *reply, struct err *e)
{
    AUTO_JSON struct json *doc = NULL;
    const char *token = NULL;
    const char *other = NULL;
    uint64_t life = 0;

    if (json_parse(&doc, reply->data, reply->len, "token", e) < 0 ||
        json_get_string_opt(doc, "token", &token, e) < 0 ||
        json_get_string_opt(doc, "access_token", &other, e) < 0)
        return e->class == ERR_NOMEM
                   ? -ERR_NOMEM
                   : err_set(e, ERR_CORRUPT, "the reply of the token server does not parse");
    /* Some write the number as text, or with a fraction; without it the token is just renewed early. */
    if (json_get_u64_opt(doc, "expires_in", MIN_LIFE_SECONDS, &life, e) < 0) {
        err_clear(e);
        life = MIN_LIFE_SECONDS;
    }
    if (!token || !*token)
        token = other;
    if (!token || !token_is_legal(token))
        return err_set(e, ERR_CORRUPT, "the reply of the token server holds no token");
    if (life < MIN_LIFE_SECONDS)
        life = MIN_LIFE_SECONDS;
    if (life > MAX_LIFE_SECONDS)
        life = MAX_LIFE_SECONDS;
    /* From now on, by our clock: issued_at is by theirs. */
    out->expires_ms = clock_ms() + (int64_t)life * 1000;
    out->header = mem_printf("Bearer %s", token);
    return out->header ? 0 : err_nomem(e, "token");
}

/* The query of a GET, or the form of a POST when there is an identity token to send. */
static int build_query(char **out, const struct challenge *c, const struct entry *entry,
                       const char *refresh_token, struct err *e)
{
    AUTO_FREE char *plain_scope =
        c->scope ? mem_strdup(c->scope) : mem_printf("repository:%s:pull", entry->repository);
    AUTO_FREE char *scope = plain_scope ? http_escape(plain_scope) : NULL;
    AUTO_FREE char *service = http_escape(c->service ? c->service : "");

    if (!scope || !service)
        return err_nomem(e, "token request");
    const char *name = *service ? "service=" : "";
    const char *joint = *service ? "&" : "";
    if (!refresh_token) {
        *out = mem_printf("%s%s%sscope=%s", name, service, joint, scope);
    } else {
        char *token = http_escape(refresh_token);
        *out = token ? mem_printf("%s%s%sscope=%s&grant_type=refresh_token&client_id=tb2-bake"
                                  "&refresh_token=%s",
                                  name, service, joint, scope, token)
                     : NULL;
        secret_free(token);
    }
    return *out ? 0 : err_nomem(e, "token request");
}

static int send_token_request(struct grant *out, struct auth *a, struct http_request *request,
                              struct err *e)
{
    AUTO_BUF struct buf reply;
    struct http_response response;
    int rc = 0;

    buf_init(&reply, LIMIT_TOKEN);
    request->reply = &reply;
    request->total_timeout_ms = TOKEN_TIMEOUT_MS;
    if (http_perform(a->http, request, &response, e) < 0)
        return e->class == ERR_LIMIT ? err_set(e, ERR_CORRUPT, "its reply is too big")
                                     : -(int)e->class;
    if (response.status / 100 == 2)
        rc = read_token(out, &reply, e);
    else
        rc = http_status_error(e, &response, NULL);
    http_response_fini(&response);
    if (reply.data)
        explicit_bzero(reply.data, reply.len);
    return rc;
}

static int get_token(struct grant *out, struct auth *a, const struct challenge *c,
                     const struct entry *entry, const struct credential *login, struct err *e)
{
    static const char *const form[] = {"Content-Type: application/x-www-form-urlencoded", NULL};
    bool post = login && login->identity_token;
    char *query = NULL;
    char *basic = NULL;
    int rc;

    if (build_query(&query, c, entry, post ? login->secret : NULL, e) < 0)
        return -(int)e->class;
    AUTO_FREE char *url =
        post ? mem_strdup(c->realm)
             : mem_printf("%s%c%s", c->realm, strchr(c->realm, '?') ? '&' : '?', query);
    if (login && !post)
        basic = credential_basic(login);
    struct http_request request = {
        .method = post ? "POST" : "GET",
        .url = url,
        .headers = post ? form : NULL,
        .authorization = basic,
        .body = post ? query : NULL,
        .body_len = post ? strlen(query) : 0,
    };
    if (!url || (login && !post && !basic))
        rc = err_nomem(e, "token request");
    else
        rc = send_token_request(out, a, &request, e);
    secret_free(query);
    secret_free(basic);
    if (rc < 0) {
        AUTO_FREE char *server = http_printable_url(c->realm);
        return err_in(e, "token server %s", server ? server : "");
    }
    return 0;
}

static int denied(const struct entry *entry, bool had_login, struct err *e)
{
    err_set(e, ERR_DENIED, "access to %s denied, status 401%s", entry->repository,
            had_login ? " in spite of the login" : "");
    return err_hint(e, "check the name; for a private image log in first: docker login %s",
                    entry->host);
}

/* A registry reached by https must not send the login on in the clear. */
static int check_realm(const struct auth *a, const struct challenge *c, const struct entry *entry,
                       struct err *e)
{
    if (strncasecmp(c->realm, "https://", strlen("https://")) == 0 ||
        (strncasecmp(c->realm, "http://", strlen("http://")) == 0 &&
         http_plain_allowed(entry->host, a->plain_http_hosts)))
        return 0;
    AUTO_FREE char *server = http_printable_url(c->realm);
    return err_set(e, ERR_DENIED, "the registry names a token server that is not https: %.200s",
                   server ? server : "");
}

/* Called without the lock; `entry` keeps its names and, while busy, its challenge. */
static int get_grant(struct grant *out, struct auth *a, const struct entry *entry, struct err *e)
{
    const struct challenge *c = &entry->challenge;
    struct credential login = {0};
    bool found = false;
    int rc;

    if (c->bearer && check_realm(a, c, entry, e) < 0)
        return -(int)e->class;
    if (credential_find(&login, &found, &a->logins, entry->host, entry->repository, e) < 0)
        return -(int)e->class;
    if (c->bearer) {
        rc = get_token(out, a, c, entry, found ? &login : NULL, e);
        if (rc < 0 && e->class == ERR_DENIED && !found)
            rc = denied(entry, false, e);
    } else if (found && !login.identity_token) {
        out->header = credential_basic(&login);
        out->expires_ms = INT64_MAX;
        rc = out->header ? 0 : err_nomem(e, "login");
    } else {
        rc = denied(entry, found, e);
    }
    credential_fini(&login);
    if (rc < 0)
        return rc;

    out->has_login = found;
    (void)pthread_mutex_lock(&a->lock);
    bool first = !found && !a->said_anonymous;
    a->said_anonymous = a->said_anonymous || !found;
    (void)pthread_mutex_unlock(&a->lock);
    if (first)
        log_event(LOG_INFO, "registry", "no login for %s: pulling anonymously", entry->host);
    return 0;
}

/* ---- The shared entry ------------------------------------------------------------------- */

/* Called and left with the lock held, which is released meanwhile; the entry is not busy. */
static int renew(struct auth *a, struct entry *entry, struct err *e)
{
    struct grant grant = {0};

    entry->busy = true;
    (void)pthread_mutex_unlock(&a->lock);
    int rc = get_grant(&grant, a, entry, e);
    (void)pthread_mutex_lock(&a->lock);
    entry->busy = false;
    if (rc == 0) {
        secret_free(entry->header);
        entry->header = grant.header;
        entry->expires_ms = grant.expires_ms;
        entry->generation++;
        entry->has_login = grant.has_login;
        entry->proven = false;
        entry->uses = 0;
    }
    (void)pthread_cond_broadcast(&a->changed);
    return rc;
}

/* Called and left with the lock held: waits until no one renews the entry. */
static int wait_idle(struct auth *a, const struct entry *entry, struct err *e)
{
    while (entry->busy) {
        if (cancel_check(a->logins.cancel, e) < 0)
            return -(int)e->class;
        (void)cond_wait_until(&a->changed, &a->lock, clock_ms() + WAIT_SLICE_MS);
    }
    return 0;
}

static int current(struct auth *a, struct entry *entry, struct auth_use *use, struct err *e)
{
    if (wait_idle(a, entry, e) < 0)
        return -(int)e->class;
    if (entry->expires_ms <= clock_ms() && renew(a, entry, e) < 0)
        return -(int)e->class;
    secret_free(use->header);
    use->header = NULL;
    use->generation = entry->generation;
    entry->uses++;
    if (!entry->header)
        return 0;
    use->header = mem_strdup(entry->header);
    return use->header ? 0 : err_nomem(e, "authorization");
}

int auth_current(struct auth *a, const struct oci_ref *ref, struct auth_use *use, struct err *e)
{
    (void)pthread_mutex_lock(&a->lock);
    struct entry *entry = entry_of(a, ref);
    int rc = entry ? current(a, entry, use, e) : err_nomem(e, "authorization");
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}

void auth_use_fini(struct auth_use *use)
{
    secret_free(use->header);
    *use = (struct auth_use){0};
}

void auth_accepted(struct auth *a, const struct oci_ref *ref, const struct auth_use *use)
{
    (void)pthread_mutex_lock(&a->lock);
    struct entry *entry = entry_of(a, ref);
    if (entry && entry->generation == use->generation)
        entry->proven = true;
    (void)pthread_mutex_unlock(&a->lock);
}

/* Some registries answer 401 without saying what they want (RFC 9110 demands it): a login can only
 * be sent as Basic then. */
static int read_challenge(struct challenge *c, const char *header, struct err *e)
{
    if (header)
        return challenge_parse(c, header, e);
    *c = (struct challenge){.basic = true};
    return 0;
}

/* Called and left with the lock held. */
static int refused(struct auth *a, struct entry *entry, const char *header, struct auth_use *use,
                   struct err *e)
{
    if (wait_idle(a, entry, e) < 0)
        return -(int)e->class;
    if (entry->generation != use->generation && use->refusals < MAX_REFUSALS)
        return 0; /* someone else has renewed it meanwhile */
    /* Generation 0 had no authorization. One that others use too may have been used up by them. */
    bool hopeless = use->generation > 0 && !entry->proven && entry->uses <= 1;
    if (hopeless || use->refusals >= MAX_REFUSALS)
        return denied(entry, entry->has_login, e);
    struct challenge c;
    if (read_challenge(&c, header, e) < 0)
        return -(int)e->class;
    if (!c.bearer && !c.basic) {
        challenge_fini(&c);
        return err_set(e, ERR_UNSUPPORTED,
                       "the registry asks for a kind of login other than "
                       "Basic and Bearer");
    }
    challenge_fini(&entry->challenge);
    entry->challenge = c;
    return renew(a, entry, e);
}

int auth_refused(struct auth *a, const struct oci_ref *ref, const struct http_response *r,
                 struct auth_use *use, struct err *e)
{
    (void)pthread_mutex_lock(&a->lock);
    struct entry *entry = entry_of(a, ref);
    int rc = entry ? refused(a, entry, r->authenticate, use, e) : err_nomem(e, "authorization");
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}
