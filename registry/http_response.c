/* SPDX-License-Identifier: MIT */
/*
 * Answers: header fields as they arrive, and what a status means. Fields come from outside: each is
 * bounded, and one that does not parse counts as absent.
 */
#include "registry/internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

/* Longest header value that is kept, and longest Retry-After, a week. */
enum { VALUE_MAX = 16 << 10, RETRY_AFTER_MAX_SECONDS = 7 * 24 * 3600 };

void http_response_fini(struct http_response *r)
{
    free(r->content_type);
    free(r->content_digest);
    free(r->authenticate);
    free(r->location);
    free(r->etag);
    free(r->encoding);
    free(r->redirected);
    free(r->next_token);
    http_response_init(r);
}

void http_response_init(struct http_response *r)
{
    *r = (struct http_response){.retry_after_ms = -1};
}

/* Decimal digits at `*text`, which moves behind them. */
static bool take_number(const char **text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = *text;

    for (; *at >= '0' && *at <= '9'; at++) {
        if (mem_mul_u64(value, 10, &value) || mem_add_u64(value, (uint64_t)(*at - '0'), &value))
            return false;
    }
    if (at == *text)
        return false;
    *text = at;
    *out = value;
    return true;
}

bool http_parse_taken(struct http_response *r, const char *text)
{
    uint64_t first = 0;
    uint64_t last = 0;
    const char *at = strncmp(text, "bytes=", 6) == 0 ? text + 6 : text;

    if (!take_number(&at, &first) || first != 0 || *at++ != '-' || !take_number(&at, &last) ||
        *at != '\0' || last == UINT64_MAX)
        return false;
    r->has_taken = true;
    r->taken = last > 0 ? last + 1 : 0;
    return true;
}

int64_t http_parse_retry_after(const char *text, int64_t now_seconds)
{
    struct tm parts = {0};
    uint64_t seconds = 0;
    const char *at = text;

    if (take_number(&at, &seconds)) {
        if (*at != '\0')
            return -1;
    } else {
        const char *end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
        if (!end || *end != '\0')
            return -1;
        int64_t when = (int64_t)timegm(&parts);
        seconds = when > now_seconds ? (uint64_t)(when - now_seconds) : 0;
    }
    if (seconds > RETRY_AFTER_MAX_SECONDS)
        seconds = RETRY_AFTER_MAX_SECONDS;
    return (int64_t)seconds * 1000;
}

bool http_parse_rate(const char *text, uint64_t *out)
{
    uint64_t value = 0;

    if (!take_number(&text, &value) || (*text != '\0' && !strchr(",; \t", *text)))
        return false;
    *out = value;
    return true;
}

bool http_parse_content_range(struct http_response *r, const char *text)
{
    uint64_t first = 0;
    uint64_t last = 0;
    uint64_t total = 0;

    if (strncasecmp(text, "bytes ", strlen("bytes ")) != 0)
        return false;
    text += strlen("bytes ");
    if (!take_number(&text, &first) || *text++ != '-' || !take_number(&text, &last) ||
        *text++ != '/' || last < first)
        return false;
    bool star = strcmp(text, "*") == 0;
    if (!star && (!take_number(&text, &total) || *text != '\0' || total <= last))
        return false;
    r->has_range = true;
    r->range_first = first;
    r->range_last = last;
    r->has_range_total = !star;
    r->range_total = total;
    return true;
}

static int replace(char **field, const char *value, struct err *e)
{
    char *copy = mem_strdup(value);

    if (!copy)
        return err_nomem(e, "answer");
    free(*field);
    *field = copy;
    return 0;
}

/* Fields of one name may be joined by commas (RFC 9110, section 5.3). */
static int join(char **field, const char *value, struct err *e)
{
    if (!*field)
        return replace(field, value, e);
    if (strlen(*field) + strlen(value) > VALUE_MAX)
        return 0;
    char *both = mem_printf("%s, %s", *field, value);
    if (!both)
        return err_nomem(e, "answer");
    free(*field);
    *field = both;
    return 0;
}

static int set_content_type(struct http_response *r, const char *value, struct err *e)
{
    size_t len = strcspn(value, "; \t");

    free(r->content_type);
    r->content_type = mem_strndup(value, len);
    if (!r->content_type)
        return err_nomem(e, "answer");
    for (char *at = r->content_type; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    return 0;
}

static int set_field(struct http_response *r, const char *name, const char *value, struct err *e)
{
    const char *at = value;
    uint64_t length = 0;

    if (strcasecmp(name, "Content-Type") == 0)
        return set_content_type(r, value, e);
    if (strcasecmp(name, "Docker-Content-Digest") == 0)
        return replace(&r->content_digest, value, e);
    if (strcasecmp(name, "WWW-Authenticate") == 0)
        return join(&r->authenticate, value, e);
    if (strcasecmp(name, "Location") == 0)
        return replace(&r->location, value, e);
    if (strcasecmp(name, "ETag") == 0)
        return replace(&r->etag, value, e);
    if (strcasecmp(name, "Content-Encoding") == 0 && strcasecmp(value, "identity") != 0)
        return replace(&r->encoding, value, e);
    if (strcasecmp(name, "x-next-token") == 0)
        return replace(&r->next_token, value, e);
    if (strcasecmp(name, "Retry-After") == 0)
        r->retry_after_ms = http_parse_retry_after(value, clock_wall_ns() / 1000000000);
    if (strcasecmp(name, "Content-Range") == 0)
        (void)http_parse_content_range(r, value);
    if (strcasecmp(name, "Range") == 0)
        (void)http_parse_taken(r, value);
    if (strcasecmp(name, "RateLimit-Remaining") == 0 && http_parse_rate(value, &r->rate_remaining))
        r->has_remaining = true;
    if (strcasecmp(name, "RateLimit-Limit") == 0)
        (void)http_parse_rate(value, &r->rate_limit);
    if (strcasecmp(name, "Content-Length") == 0 && take_number(&at, &length) && *at == '\0') {
        r->has_length = true;
        r->length = length;
    }
    return 0;
}

int http_response_line(struct http_response *r, const char *line, size_t len, struct err *e)
{
    while (len > 0 && isspace((unsigned char)line[len - 1]))
        len--;
    if (len == 0 || len > VALUE_MAX || memchr(line, '\0', len))
        return 0;
    AUTO_FREE char *copy = mem_strndup(line, len);
    if (!copy)
        return err_nomem(e, "answer");
    if (strncmp(copy, "HTTP/", strlen("HTTP/")) == 0) {
        const char *at = copy + strcspn(copy, " ");
        uint64_t status = 0;

        http_response_fini(r); /* an interim answer came before */
        at += strspn(at, " ");
        if (take_number(&at, &status) && status < 1000)
            r->status = (int)status;
        return 0;
    }
    char *colon = strchr(copy, ':');
    if (!colon)
        return 0;
    *colon = '\0';
    return set_field(r, copy, colon + 1 + strspn(colon + 1, " \t"), e);
}

int http_status_error(struct err *e, const struct http_response *r, const char *detail)
{
    int status = r->status;
    enum err_class class = ERR_UNSUPPORTED;
    const char *what = "";

    if (status == 401 || status == 403) {
        class = ERR_DENIED;
        what = "access denied, ";
    } else if (status == 404 || status == 410) {
        class = ERR_NOTFOUND;
        what = "not found, ";
    } else if (status == 429) {
        class = ERR_RATE;
        what = "rate limit reached, ";
    } else if (status == 408 || (status >= 500 && status != 501)) {
        class = ERR_NET;
    }
    err_set(e, class, "%sstatus %d%s%s%s", what, status, detail ? " (" : "", detail ? detail : "",
            detail ? ")" : "");
    e->retry_after_ms = (long)r->retry_after_ms;
    return -(int)e->class;
}

/* ---- Plain HTTP ------------------------------------------------------------------------- */

/* Length of the host in "host:port" or "[v6]:port". */
static size_t host_len(const char *host)
{
    if (host[0] == '[') {
        const char *end = strchr(host, ']');
        return end ? (size_t)(end - host) + 1 : strlen(host);
    }
    return strcspn(host, ":");
}

bool http_host_is_loopback(const char *host)
{
    char name[INET6_ADDRSTRLEN];
    size_t len = host_len(host);
    bool bracketed = host[0] == '[';
    struct in_addr v4;
    struct in6_addr v6;

    if (bracketed) {
        host++;
        len -= len >= 2 ? 2 : 0;
    }
    if (len >= sizeof(name))
        return false;
    memcpy(name, host, len);
    name[len] = '\0';
    if (bracketed)
        return inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
    if (strcasecmp(name, "localhost") == 0)
        return true;
    return inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

bool http_plain_allowed(const char *host, const char *const *plain_http_hosts)
{
    if (http_host_is_loopback(host))
        return true;
    for (size_t i = 0; plain_http_hosts && plain_http_hosts[i]; i++) {
        const char *listed = plain_http_hosts[i];
        size_t len = host_len(listed);
        bool any_port = listed[len] == '\0';

        if (any_port ? len == host_len(host) && strncasecmp(host, listed, len) == 0
                     : strcasecmp(host, listed) == 0)
            return true;
    }
    return false;
}
