/* SPDX-License-Identifier: MIT */
/*
 * WWW-Authenticate. The field is a list of challenges, whose parameters are a list too, with the
 * same comma in between: a name followed by '=' belongs to the challenge at hand, any other word
 * starts the next one (RFC 9110, section 11.6.1). Unknown schemes and parameters are passed over.
 */
#include "registry/internal.h"

#include <ctype.h>
#include <strings.h>

#include "base/mem.h"

/* The challenge whose parameters are being read. */
enum scheme { SCHEME_OTHER, SCHEME_BASIC, SCHEME_BEARER };

void challenge_fini(struct challenge *c)
{
    free(c->realm);
    free(c->service);
    free(c->scope);
    *c = (struct challenge){0};
}

static bool is_token_char(char c)
{
    return isalnum((unsigned char)c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t token_len(const char *at)
{
    size_t len = 0;

    while (is_token_char(at[len]))
        len++;
    return len;
}

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

/* A quoted string, its quotes and backslashes taken off, or a bare word up to a comma or space. */
static const char *take_value(const char *at, char **out, struct err *e)
{
    size_t len = 0;

    if (*at != '"') {
        len = strcspn(at, ", \t");
        *out = mem_strndup(at, len);
        if (!*out)
            (void)err_nomem(e, "challenge");
        return *out ? at + len : NULL;
    }
    char *text = mem_zalloc(strlen(at));
    if (!text) {
        (void)err_nomem(e, "challenge");
        return NULL;
    }
    for (at++; *at && *at != '"'; at++) {
        if (*at == '\\' && at[1])
            at++;
        text[len++] = *at;
    }
    if (*at != '"') {
        free(text);
        (void)err_set(e, ERR_CORRUPT, "WWW-Authenticate: a quoted string without an end");
        return NULL;
    }
    *out = text;
    return at + 1;
}

/* Takes the value over. The first bearer challenge counts. */
static void note_parameter(struct challenge *c, enum scheme scheme, const char *name, size_t len,
                           char *value)
{
    static const char *const names[] = {"realm", "service", "scope"};
    char **const fields[] = {&c->realm, &c->service, &c->scope};

    for (size_t i = 0; scheme == SCHEME_BEARER && i < ARRAY_LEN(names); i++) {
        if (strlen(names[i]) == len && strncasecmp(names[i], name, len) == 0 && !*fields[i]) {
            *fields[i] = value;
            return;
        }
    }
    free(value);
}

static enum scheme note_scheme(struct challenge *c, const char *name, size_t len)
{
    if (len == strlen("bearer") && strncasecmp(name, "bearer", len) == 0) {
        c->bearer = true;
        return SCHEME_BEARER;
    }
    if (len == strlen("basic") && strncasecmp(name, "basic", len) == 0) {
        c->basic = true;
        return SCHEME_BASIC;
    }
    return SCHEME_OTHER;
}

static int parse(struct challenge *c, const char *at, struct err *e)
{
    enum scheme scheme = SCHEME_OTHER;

    for (;;) {
        at += strspn(at, ", \t");
        if (*at == '\0')
            return 0;
        size_t len = token_len(at);
        if (len == 0)
            return err_set(e, ERR_CORRUPT, "WWW-Authenticate does not parse");
        const char *name = at;
        const char *next = skip_space(at + len);
        if (*next != '=') {
            scheme = note_scheme(c, name, len);
            at += len;
            continue;
        }
        next = skip_space(next + 1);
        if (*next == '=' || *next == ',' || *next == '\0') {
            at = next + strspn(next, "="); /* the padding of a token68 */
            continue;
        }
        char *value = NULL;
        at = take_value(next, &value, e);
        if (!at)
            return -(int)e->class;
        note_parameter(c, scheme, name, len, value);
    }
}

int challenge_parse(struct challenge *out, const char *header, struct err *e)
{
    struct challenge c = {0};

    if (parse(&c, header, e) < 0) {
        challenge_fini(&c);
        return -(int)e->class;
    }
    if (c.realm)
        c.realm[strcspn(c.realm, "#")] = '\0'; /* a fragment would hide the query from the server */
    if (c.bearer && (!c.realm || !*c.realm))
        c.bearer = false; /* nobody to ask for a token */
    *out = c;
    return 0;
}
