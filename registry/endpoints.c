/* SPDX-License-Identifier: MIT */
/*
 * Where the content of a registry can be had from: its mirrors in order, then the registry itself.
 *
 * Rules come from registries.yaml; of those that fit a reference the longest name counts, as in
 * containers-registries.conf(5), whose meaning of prefixes is taken over too: a rule's own path is
 * replaced by the mirror's. Endpoints of mirrors are made at the start, those of registries when they
 * are first spoken to; all live as long as the client.
 */
#include "registry/internal.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <strings.h>

#include "base/log.h"
#include "base/mem.h"

enum { MIRRORS_MAX = 16, FAILURES_MAX = 3, NOTES_MAX = 1024 };

/* One registry_host. */
struct rule {
    const struct registry_host *host;
    char *name;               /* its name up to the slash */
    const char *path;         /* behind the slash; "" */
    struct endpoint *mirrors; /* in order */
    struct rule *next;
};

struct endpoints {
    const struct registry_network *network;
    const char *const *plain_http_hosts;
    const char **plain_all; /* those, and what the network's settings add */
    struct http_ca *cas;
    size_t ca_count;
    struct rule *rules;
    pthread_mutex_t lock; /* guards the list */
    struct endpoint *origins;
};

static void endpoint_free(struct endpoint *at)
{
    free(at->api);
    free(at->host);
    free(at->prefix);
    free(at);
}

static void free_list(struct endpoint *list)
{
    while (list) {
        struct endpoint *next = list->next;
        endpoint_free(list);
        list = next;
    }
}

void endpoints_free(struct endpoints *all)
{
    if (!all)
        return;
    while (all->rules) {
        struct rule *rule = all->rules;
        all->rules = rule->next;
        free_list(rule->mirrors);
        free(rule->name);
        free(rule);
    }
    free_list(all->origins);
    free(all->plain_all);
    free(all->cas);
    (void)pthread_mutex_destroy(&all->lock);
    free(all);
}

/* ---- Mirrors ---------------------------------------------------------------------------- */

struct mirror_url {
    bool plain;
    const char *host;
    size_t host_len;
    const char *path; /* from the slash on, or "" */
    size_t path_len;  /* without final slashes */
};

int registry_mirror_check(const char *url, struct err *e)
{
    const char *rest = strstr(url, "://");

    for (const char *at = url; *at; at++) {
        if (!isgraph((unsigned char)*at) || strchr("?#@\\\"", *at))
            return err_set(e, ERR_INPUT, "'%s' is no address of a mirror", url);
    }
    bool known = strncmp(url, "https://", strlen("https://")) == 0 ||
                 strncmp(url, "http://", strlen("http://")) == 0;
    if (!known || strcspn(rest + 3, "/") == 0) {
        err_set(e, ERR_INPUT, "'%s' is no address of a mirror", url);
        return err_hint(e, "it looks like https://HOST or https://HOST:PORT/PREFIX");
    }
    return 0;
}

static struct mirror_url split(const char *url)
{
    struct mirror_url u = {.plain = strncmp(url, "http://", strlen("http://")) == 0};

    u.host = strstr(url, "://") + 3;
    u.host_len = strcspn(u.host, "/");
    u.path = u.host + u.host_len;
    u.path_len = strlen(u.path);
    while (u.path_len > 0 && u.path[u.path_len - 1] == '/')
        u.path_len--;
    return u;
}

static bool has_api_path(const struct mirror_url *u)
{
    const char *at = strstr(u->path, "/v2");

    return at && (at[3] == '/' || at[3] == '\0');
}

static int mirror_new(struct endpoint **out, const struct registry_mirror *mirror, struct err *e)
{
    if (registry_mirror_check(mirror->url, e) < 0)
        return -(int)e->class;
    struct mirror_url u = split(mirror->url);
    struct endpoint *at = mem_zalloc(sizeof(*at));
    if (!at)
        return err_nomem(e, "mirror");
    bool api = has_api_path(&u);
    at->mirror = true;
    at->digests_only = mirror->digests_only;
    at->timeout_ms = mirror->timeout_ms;
    at->host = mem_strndup(u.host, u.host_len);
    at->api = mem_printf("%s://%.*s%.*s", u.plain ? "http" : "https", (int)u.host_len, u.host,
                         api ? (int)u.path_len : 3, api ? u.path : "/v2");
    at->prefix = api || u.path_len == 0 ? mem_strdup("")
                                        : mem_printf("%.*s/", (int)u.path_len - 1, u.path + 1);
    if (!at->host || !at->api || !at->prefix) {
        endpoint_free(at);
        return err_nomem(e, "mirror");
    }
    *out = at;
    return 0;
}

/* ---- Rules ------------------------------------------------------------------------------ */

static int add_rule(struct endpoints *all, const struct registry_host *host, struct err *e)
{
    size_t len = strcspn(host->name, "/");
    struct rule *rule = mem_zalloc(sizeof(*rule));

    if (!rule)
        return err_nomem(e, "registries");
    rule->next = all->rules;
    all->rules = rule;
    rule->host = host;
    rule->path = host->name + len + (host->name[len] == '/');
    rule->name = mem_strndup(host->name, len);
    if (!rule->name)
        return err_nomem(e, "registries");
    if (host->mirror_count > MIRRORS_MAX)
        return err_set(e, ERR_INPUT, "%s: more than %d mirrors", host->name, MIRRORS_MAX);
    struct endpoint **end = &rule->mirrors;
    for (size_t i = 0; i < host->mirror_count; i++) {
        if (mirror_new(end, &host->mirrors[i], e) < 0)
            return err_in(e, "%s", host->name);
        end = &(*end)->next;
    }
    return 0;
}

static void add_ca(struct endpoints *all, const char *host, const char *file)
{
    if (file)
        all->cas[all->ca_count++] = (struct http_ca){host, file};
}

/* What http_options need: hosts in the clear, and certificates. */
static int collect_hosts(struct endpoints *all, struct err *e)
{
    size_t plain = 0;
    size_t room = 1;

    while (all->plain_http_hosts && all->plain_http_hosts[plain])
        plain++;
    for (const struct rule *rule = all->rules; rule; rule = rule->next)
        room += 1 + rule->host->mirror_count;
    all->plain_all = mem_array(plain + room, sizeof(*all->plain_all));
    all->cas = mem_array(room, sizeof(*all->cas));
    if (!all->plain_all || !all->cas)
        return err_nomem(e, "registries");
    for (size_t i = 0; i < plain; i++)
        all->plain_all[i] = all->plain_http_hosts[i];
    for (const struct rule *rule = all->rules; rule; rule = rule->next) {
        const struct registry_host *host = rule->host;
        const struct endpoint *at = rule->mirrors;

        if (host->plain_http)
            all->plain_all[plain++] = rule->name;
        add_ca(all, strcmp(rule->name, "docker.io") == 0 ? "registry-1.docker.io" : rule->name,
               host->ca_file);
        for (size_t i = 0; i < host->mirror_count; i++, at = at->next) {
            if (strncmp(at->api, "http://", strlen("http://")) == 0)
                all->plain_all[plain++] = at->host;
            add_ca(all, at->host, host->mirrors[i].ca_file);
        }
    }
    return 0;
}

int endpoints_new(struct endpoints **out, const struct registry_network *network,
                  const char *const *plain_http_hosts, struct err *e)
{
    struct endpoints *all = mem_zalloc(sizeof(*all));
    int rc = 0;

    if (!all)
        return err_nomem(e, "registries");
    (void)pthread_mutex_init(&all->lock, NULL);
    all->network = network;
    all->plain_http_hosts = plain_http_hosts;
    for (size_t i = 0; rc == 0 && i < network->host_count; i++)
        rc = add_rule(all, &network->hosts[i], e);
    if (rc == 0)
        rc = collect_hosts(all, e);
    if (rc < 0) {
        endpoints_free(all);
        return rc;
    }
    *out = all;
    return 0;
}

void endpoints_describe(const struct endpoints *all, struct http_options *http)
{
    http->plain_http_hosts = all->plain_all;
    http->ca_file = all->network->ca_file;
    http->cas = all->cas;
    http->ca_count = all->ca_count;
}

/* How much of a reference a rule covers; 0: nothing. */
static size_t covers(const struct rule *rule, const struct oci_ref *ref)
{
    size_t host_len = strlen(ref->host);
    size_t len = strlen(rule->name);
    size_t path_len = strlen(rule->path);

    if (rule->name[0] == '*') {
        const char *tail = rule->name + 1;
        bool fits = host_len >= len - 1 && strcasecmp(ref->host + host_len - (len - 1), tail) == 0;
        return fits ? len : 0;
    }
    if (strcasecmp(rule->name, ref->host) != 0)
        return 0;
    if (path_len == 0)
        return 256 + len; /* a name beats a pattern */
    bool fits =
        strncmp(rule->path, ref->repository, path_len) == 0 && ref->repository[path_len] == '/';
    return fits ? 256 + len + path_len : 0;
}

static const struct rule *find_rule(const struct endpoints *all, const struct oci_ref *ref)
{
    const struct rule *best = NULL;
    size_t most = 0;

    for (const struct rule *rule = all->rules; rule; rule = rule->next) {
        size_t cover = covers(rule, ref);
        if (cover > most) {
            most = cover;
            best = rule;
        }
    }
    return best;
}

bool endpoints_have_digest_mirror(const struct endpoints *all, const struct oci_ref *ref)
{
    const struct rule *rule = find_rule(all, ref);
    const struct endpoint *at = rule ? rule->mirrors : NULL;

    while (at && !at->digests_only)
        at = at->next;
    return at != NULL;
}

/* ---- Registries ------------------------------------------------------------------------- */

static struct endpoint *origin_new(const struct endpoints *all, const char *host)
{
    struct endpoint *at = mem_zalloc(sizeof(*at));
    bool plain = http_plain_allowed(host, all->plain_all);

    if (!at)
        return NULL;
    /* docker.io is a name; the machine behind it has another. */
    at->api = mem_printf("%s://%s/v2", plain ? "http" : "https",
                         strcmp(host, "docker.io") == 0 ? "registry-1.docker.io" : host);
    at->host = mem_strdup(host);
    at->prefix = mem_strdup("");
    if (!at->api || !at->host || !at->prefix) {
        endpoint_free(at);
        return NULL;
    }
    return at;
}

struct endpoint *endpoint_origin(struct endpoints *all, const struct oci_ref *ref)
{
    (void)pthread_mutex_lock(&all->lock);
    struct endpoint *at = all->origins;
    while (at && strcmp(at->host, ref->host) != 0)
        at = at->next;
    if (!at) {
        at = origin_new(all, ref->host);
        if (at) {
            at->next = all->origins;
            all->origins = at;
        }
    }
    (void)pthread_mutex_unlock(&all->lock);
    return at;
}

/* ---- Routes ----------------------------------------------------------------------------- */

struct route {
    struct endpoint *at[MIRRORS_MAX + 1];
    size_t count;
    const char *repository; /* without what a mirror's prefix replaces */
};

/* Mirrors that may be asked; those set aside too when `all_of_them`. */
static void add_mirrors(struct route *route, const struct rule *rule, bool by_digest,
                        bool all_of_them)
{
    for (struct endpoint *at = rule->mirrors; at; at = at->next) {
        bool fits = by_digest || !at->digests_only;
        if (fits && (all_of_them || !atomic_load(&at->set_aside)))
            route->at[route->count++] = at;
    }
}

static int plan_route(struct route *route, struct endpoints *all, const struct errand *errand,
                      struct err *e)
{
    const struct oci_ref *ref = errand->ref;
    const struct rule *rule = find_rule(all, ref);

    *route = (struct route){.repository = ref->repository};
    if (rule) {
        size_t len = strlen(rule->path);
        route->repository += len + (len > 0);
        add_mirrors(route, rule, errand->by_digest, false);
        if (rule->host->mirrors_only) {
            if (route->count == 0)
                add_mirrors(route, rule, errand->by_digest, true);
            return route->count > 0
                       ? 0
                       : err_set(e, ERR_NOTFOUND,
                                 "registry %s: is not to be asked, and has no mirror", ref->host);
        }
    }
    struct endpoint *origin = endpoint_origin(all, ref);
    if (!origin)
        return err_nomem(e, "registry");
    route->at[route->count++] = origin;
    return 0;
}

/* Whether a mirror is at fault, and not just without what was asked for. */
static void note_failure(struct endpoint *at, const struct err *e)
{
    if (!at->mirror || e->class == ERR_NOTFOUND || e->class == ERR_DENIED || e->class == ERR_RATE ||
        e->class == ERR_UNSUPPORTED)
        return;
    if (atomic_fetch_add(&at->failures, 1) + 1 < FAILURES_MAX)
        return;
    if (!atomic_exchange(&at->set_aside, true))
        log_event(LOG_WARN, "registry",
                  "mirror %s is not asked again: it has failed %d times, last: %s", at->host,
                  FAILURES_MAX, e->text);
}

static bool ends_the_walk(const struct registry *r, const struct err *e)
{
    return e->class == ERR_NOMEM || e->class == ERR_SYS || cancel_is_set(r->options.cancel);
}

/* Which of two errors says more: that nobody has it counts only when all have said so. */
static bool says_more(const struct err *before, const struct err *now)
{
    return before->class != ERR_NONE && now->class == ERR_NOTFOUND && before->class != ERR_NOTFOUND;
}

static void add_note(char notes[NOTES_MAX], const struct err *e)
{
    size_t len = strlen(notes);

    snprintf(notes + len, NOTES_MAX - len, "%s%s", len > 0 ? "; " : "", e->text);
}

static int stop_at(struct registry *r, const struct route *route, size_t n,
                   const struct errand *errand, struct err *e)
{
    struct endpoint *at = route->at[n];
    struct oci_ref there = *errand->ref;
    AUTO_FREE char *repository = mem_printf("%s%s", at->prefix, route->repository);

    if (!repository)
        return err_nomem(e, "mirror");
    if (at->mirror) {
        there.host = at->host;
        there.repository = repository;
    }
    struct stop stop = {.endpoint = at, .ref = &there, .last = n + 1 == route->count};
    int rc = errand->work(errand->ctx, &stop, e);
    if (rc < 0) {
        note_failure(at, e);
        return rc;
    }
    atomic_store(&at->failures, 0);
    if (at->mirror)
        r->counters.mirrored++;
    return 0;
}

/* The last error, unless an earlier one says more; with what all others said. */
static int give_up(const struct errand *errand, const struct err *worst, const char *notes,
                   struct err *e)
{
    char hint[ERR_HINT_MAX];
    long retry_after_ms = e->retry_after_ms;
    int sys = e->sys;

    if (worst->class != ERR_NONE)
        *e = *worst;
    if (errand->judge)
        (void)errand->judge(errand->ref, e);
    if (notes[0] == '\0')
        return -(int)e->class;
    memcpy(hint, e->hint, sizeof(hint));
    err_set(e, e->class, "%s (before that: %s)", e->text, notes);
    e->retry_after_ms = retry_after_ms;
    e->sys = sys;
    return hint[0] ? err_hint(e, "%s", hint) : -(int)e->class;
}

int route_walk(struct registry *r, const struct errand *errand, struct err *e)
{
    struct route route;
    struct err worst = ERR_INIT;
    char notes[NOTES_MAX] = "";

    if (plan_route(&route, r->endpoints, errand, e) < 0)
        return -(int)e->class;
    for (size_t n = 0;; n++) {
        if (stop_at(r, &route, n, errand, e) == 0)
            return 0;
        if (ends_the_walk(r, e))
            return -(int)e->class;
        if (n + 1 == route.count)
            break;
        log_event(LOG_DEBUG, "registry", "%s; asking %s", e->text, route.at[n + 1]->host);
        add_note(notes, e);
        if (route.at[route.count - 1]->mirror && !says_more(&worst, e))
            worst = *e;
        err_clear(e);
    }
    /* The registry itself has the last word. */
    if (!route.at[route.count - 1]->mirror || !says_more(&worst, e))
        err_clear(&worst);
    return give_up(errand, &worst, notes, e);
}
