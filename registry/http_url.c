/* SPDX-License-Identifier: MIT */
/* URLs, read by libcurl: the transport must judge them as it does. */
#include "registry/http_internal.h"

#include <curl/curl.h>
#include <strings.h>

#include "base/mem.h"

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

void origin_fini(struct origin *o)
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

int origin_of(struct origin *out, const char *text, struct err *e)
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
