/* SPDX-License-Identifier: MIT */
/* The URL of an object store, taken apart. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "registry/internal.h"
#include "registry/object_internal.h"

#define UNRESERVED "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

void object_place_fini(struct object_place *p)
{
    free(p->base);
    free(p->host);
    free(p->path);
    free(p->name);
    s3_login_fini(&p->login);
    *p = (struct object_place){0};
}

bool object_name_is_legal(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > OBJECT_NAME_MAX || name[0] == '/' || name[len - 1] == '/' ||
        strspn(name, UNRESERVED "/") != len)
        return false;
    for (const char *at = name; at; at = strchr(at, '/')) {
        at += *at == '/';
        size_t part = strcspn(at, "/");
        if (part == 0 || (part <= 2 && strspn(at, ".") == part))
            return false;
    }
    return true;
}

/* Cuts trailing slashes off. */
static void cut_slashes(char *text)
{
    for (size_t len = strlen(text); len > 0 && text[len - 1] == '/'; len--)
        text[len - 1] = '\0';
}

/* "http://host:port/path" -> its host as a Host header has it (no default port), and path. */
static int split(struct object_place *p, const char *base, struct err *e)
{
    const char *host = strstr(base, "://");
    bool https = strncmp(base, "https:", 6) == 0;

    if (!host || host == base || (!https && strncmp(base, "http:", 5) != 0))
        return err_set(e, ERR_INPUT, "not an http or https URL");
    host += 3;
    size_t len = strcspn(host, "/");
    const char *usual = https ? ":443" : ":80";
    size_t host_len = len;
    if (len > strlen(usual) && strncmp(host + len - strlen(usual), usual, strlen(usual)) == 0)
        host_len = len - strlen(usual);
    if (host_len == 0 || memchr(host, '@', len))
        return err_set(e, ERR_INPUT, "the URL has no host, or a user in it");
    free(p->host);
    free(p->path);
    p->host = mem_strndup(host, host_len);
    p->path = mem_strdup(host + len);
    return p->host && p->path ? 0 : err_nomem(e, "URL");
}

static int parse_http(struct object_place *p, const char *url, struct err *e)
{
    if (strpbrk(url, "?# \t\r\n"))
        return err_set(e, ERR_INPUT, "a directory's URL has no query");
    p->base = mem_strdup(url);
    if (!p->base)
        return err_nomem(e, "URL");
    cut_slashes(p->base);
    p->name = http_printable_url(p->base);
    return p->name ? split(p, p->base, e) : err_nomem(e, "URL");
}

/* ---- s3:// ------------------------------------------------------------------------------ */

/* What the query of an s3 URL says. */
struct wishes {
    char *endpoint;
    char *region;
    char *style;
};

static int take_wish(struct wishes *w, const char *text, size_t len, struct err *e)
{
    const struct {
        const char *name;
        char **field;
    } known[] = {{"endpoint=", &w->endpoint}, {"region=", &w->region}, {"style=", &w->style}};

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        size_t name = strlen(known[i].name);
        if (len <= name || strncmp(text, known[i].name, name) != 0)
            continue;
        free(*known[i].field);
        *known[i].field = mem_strndup(text + name, len - name);
        return *known[i].field ? 0 : err_nomem(e, "URL");
    }
    err_set(e, ERR_INPUT, "'%.*s' says nothing", (int)(len < 40 ? len : 40), text);
    return err_hint(e, "an s3 URL may end with ?endpoint=URL&region=NAME&style=path");
}

static int take_wishes(struct wishes *w, const char *query, struct err *e)
{
    while (query && *query) {
        size_t len = strcspn(query, "&");

        if (take_wish(w, query, len, e) < 0)
            return -(int)e->class;
        query += len + (query[len] == '&');
    }
    if (w->style && strcmp(w->style, "path") != 0 && strcmp(w->style, "virtual") != 0)
        return err_set(e, ERR_INPUT, "style is path or virtual");
    return 0;
}

/* Where requests go: Amazon's own names, or an endpoint of one's own. */
static int build_base(struct object_place *p, const char *bucket, const char *prefix,
                      const char *style, struct err *e)
{
    bool own = p->login.endpoint != NULL;
    bool path = style ? strcmp(style, "path") == 0 : own;
    AUTO_FREE char *endpoint = own ? mem_strdup(p->login.endpoint)
                                   : mem_printf("https://s3.%s.amazonaws.com", p->login.region);

    if (!endpoint)
        return err_nomem(e, "URL");
    cut_slashes(endpoint);
    if (split(p, endpoint, e) < 0)
        return err_in(e, "S3 endpoint");
    const char *slash = *prefix ? "/" : "";
    const char *rest = strstr(endpoint, "://") + 3;
    if (path)
        p->base = mem_printf("%s/%s%s%s", endpoint, bucket, slash, prefix);
    else
        p->base = mem_printf("%.*s%s.%s%s%s", (int)(rest - endpoint), endpoint, bucket, rest, slash,
                             prefix);
    return p->base ? split(p, p->base, e) : err_nomem(e, "URL");
}

static int parse_s3(struct object_place *p, const char *url, struct wishes *w, struct err *e)
{
    const char *at = url + strlen("s3://");
    size_t bucket_len = strcspn(at, "/?");
    const char *query = strchr(at, '?');
    const char *rest = at + bucket_len;
    size_t rest_len = query ? (size_t)(query - rest) : strlen(rest);
    AUTO_FREE char *bucket = mem_strndup(at, bucket_len);
    AUTO_FREE char *prefix = mem_strndup(rest, rest_len);

    if (!bucket || !prefix)
        return err_nomem(e, "URL");
    cut_slashes(prefix);
    char *start = prefix + (*prefix == '/');
    if (bucket_len < 3 || bucket_len > 63 ||
        strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-.") != bucket_len)
        return err_set(e, ERR_INPUT, "'%s' is no bucket name", bucket);
    if (*start && !object_name_is_legal(start))
        return err_set(e, ERR_INPUT, "a prefix is made of letters, digits, '-', '_', '.' and '/'");
    p->s3 = true;
    p->name = mem_printf("s3://%s%s%s", bucket, *start ? "/" : "", start);
    if (!p->name)
        return err_nomem(e, "URL");
    if (take_wishes(w, query ? query + 1 : NULL, e) < 0)
        return -(int)e->class;
    p->login.endpoint = MOVE(w->endpoint);
    p->login.region = MOVE(w->region);
    if (s3_login_find(&p->login, e) < 0)
        return -(int)e->class;
    return build_base(p, bucket, start, w->style, e);
}

int object_place_parse(struct object_place *out, const char *url, struct err *e)
{
    struct object_place p = {0};
    struct wishes w = {0};
    int rc;

    if (strncmp(url, "s3://", 5) == 0) {
        rc = parse_s3(&p, url, &w, e);
    } else if (strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0) {
        rc = parse_http(&p, url, e);
    } else {
        err_set(e, ERR_INPUT, "not the URL of a remote store");
        rc = err_hint(e, "it begins with https://, http://, s3:// or oci://");
    }
    free(w.endpoint);
    free(w.region);
    free(w.style);
    if (rc < 0) {
        object_place_fini(&p);
        return rc;
    }
    *out = p;
    return 0;
}
