/* SPDX-License-Identifier: MIT */
/*
 * Keys, region and endpoint of S3, from where Amazon's own tools take them ("AWS SDKs and Tools
 * Reference Guide"): the environment, then ~/.aws/credentials and ~/.aws/config. Keys that those
 * tools get from a program, a single sign-on or the machine's metadata service are not looked for.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "registry/internal.h"
#include "registry/object_internal.h"

enum { FILE_SIZE_MAX = 1 << 20 };

void s3_login_fini(struct s3_login *l)
{
    free(l->access_key);
    secret_free(l->secret_key);
    secret_free(l->token);
    free(l->region);
    free(l->endpoint);
    *l = (struct s3_login){0};
}

/* Sets *field to a copy of the first of the variables that is set, unless it has a value. */
static int from_environment(char **field, const char *const names[], struct err *e)
{
    for (size_t i = 0; !*field && names[i]; i++) {
        const char *value = getenv(names[i]);

        if (!value || !*value)
            continue;
        *field = mem_strdup(value);
        if (!*field)
            return err_nomem(e, "S3 settings");
    }
    return 0;
}

/* ---- Files ------------------------------------------------------------------------------ */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The line without blanks around it. */
static void trim(const char **line, size_t *len)
{
    while (*len > 0 && is_blank(**line)) {
        (*line)++;
        (*len)--;
    }
    while (*len > 0 && is_blank((*line)[*len - 1]))
        (*len)--;
}

static bool is_section(const char *line, size_t len, const char *section)
{
    if (len < 2 || line[len - 1] != ']')
        return false;
    line++;
    len -= 2;
    trim(&line, &len);
    return len == strlen(section) && memcmp(line, section, len) == 0;
}

int ini_find(char **out, const char *text, const char *section, const char *name, struct err *e)
{
    bool inside = false;

    *out = NULL;
    for (const char *at = text; *at;) {
        size_t whole = strcspn(at, "\n");
        const char *line = at;
        size_t len = whole;
        bool nested = whole > 0 && is_blank(*at); /* belongs to the setting above */

        at += whole + (at[whole] == '\n');
        trim(&line, &len);
        if (len == 0 || *line == '#' || *line == ';' || nested)
            continue;
        if (*line == '[') {
            inside = is_section(line, len, section);
            continue;
        }
        const char *equal = memchr(line, '=', len);
        if (!inside || !equal)
            continue;
        const char *value = equal + 1;
        size_t value_len = len - (size_t)(value - line);
        size_t name_len = (size_t)(equal - line);
        trim(&line, &name_len);
        trim(&value, &value_len);
        if (name_len != strlen(name) || memcmp(line, name, name_len) != 0)
            continue;
        *out = mem_strndup(value, value_len);
        return *out ? 0 : err_nomem(e, "S3 settings");
    }
    return 0;
}

/* Text of a file: the one that `variable` names, else the one in ~/.aws. One that was not named
 * need not be there. */
static int read_settings(struct buf *out, const char *variable, const char *usual, struct err *e)
{
    const char *named = getenv(variable);
    const char *home = getenv("HOME");
    AUTO_FREE char *path = NULL;

    if (named && *named)
        path = mem_strdup(named);
    else if (home && *home)
        path = mem_printf("%s/.aws/%s", home, usual);
    else
        return 0;
    if (!path)
        return err_nomem(e, "S3 settings");
    if (file_read(AT_FDCWD, path, out, e) == 0)
        return 0;
    if (e->class == ERR_NOTFOUND && (!named || !*named)) {
        err_clear(e);
        return 0;
    }
    e->class = e->class == ERR_NOMEM ? ERR_NOMEM : ERR_INPUT;
    return err_in(e, "S3 settings: %s", path);
}

struct setting {
    char **field;
    const char *name;
};

static int from_file(const struct setting *settings, size_t count, const char *text,
                     const char *section, struct err *e)
{
    for (size_t i = 0; i < count; i++) {
        if (!*settings[i].field &&
            ini_find(settings[i].field, text, section, settings[i].name, e) < 0)
            return -(int)e->class;
    }
    return 0;
}

static int from_files(struct s3_login *l, bool keys, struct err *e)
{
    const char *profile = getenv("AWS_PROFILE");
    AUTO_BUF struct buf credentials;
    AUTO_BUF struct buf config;
    const struct setting secrets[] = {{&l->access_key, "aws_access_key_id"},
                                      {&l->secret_key, "aws_secret_access_key"},
                                      {&l->token, "aws_session_token"}};
    const struct setting places[] = {{&l->region, "region"}, {&l->endpoint, "endpoint_url"}};

    profile = profile && *profile ? profile : "default";
    buf_init(&credentials, FILE_SIZE_MAX);
    buf_init(&config, FILE_SIZE_MAX);
    /* In the config file every section but "default" is called "profile NAME". */
    AUTO_FREE char *section =
        strcmp(profile, "default") == 0 ? mem_strdup(profile) : mem_printf("profile %s", profile);
    if (!section)
        return err_nomem(e, "S3 settings");
    int rc = read_settings(&config, "AWS_CONFIG_FILE", "config", e);
    if (rc == 0)
        rc = from_file(places, ARRAY_LEN(places), buf_text(&config), section, e);
    if (rc == 0 && keys) {
        rc = read_settings(&credentials, "AWS_SHARED_CREDENTIALS_FILE", "credentials", e);
        if (rc == 0)
            rc = from_file(secrets, ARRAY_LEN(secrets), buf_text(&credentials), profile, e);
        if (rc == 0)
            rc = from_file(secrets, ARRAY_LEN(secrets), buf_text(&config), section, e);
        if (credentials.data)
            explicit_bzero(credentials.data, credentials.len);
    }
    return rc;
}

/* Keys become header values: no byte may end a line. */
static bool is_clean(const char *text)
{
    for (; text && *text; text++) {
        if ((unsigned char)*text < 0x21 || (unsigned char)*text > 0x7e)
            return false;
    }
    return true;
}

int s3_login_find(struct s3_login *l, struct err *e)
{
    static const char *const access[] = {"AWS_ACCESS_KEY_ID", NULL};
    static const char *const secret[] = {"AWS_SECRET_ACCESS_KEY", NULL};
    static const char *const token[] = {"AWS_SESSION_TOKEN", NULL};
    static const char *const region[] = {"AWS_REGION", "AWS_DEFAULT_REGION", NULL};
    static const char *const endpoint[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL};

    if (from_environment(&l->access_key, access, e) < 0 ||
        from_environment(&l->secret_key, secret, e) < 0 ||
        from_environment(&l->region, region, e) < 0 ||
        from_environment(&l->endpoint, endpoint, e) < 0)
        return -(int)e->class;
    bool keys = !l->access_key || !l->secret_key;
    /* A session's token belongs to the keys beside it. */
    if (!keys && from_environment(&l->token, token, e) < 0)
        return -(int)e->class;
    if (from_files(l, keys, e) < 0)
        return -(int)e->class;
    if (!l->region)
        l->region = mem_strdup("us-east-1");
    if (!l->region)
        return err_nomem(e, "S3 settings");
    if (!l->access_key || !l->secret_key) {
        err_set(e, ERR_DENIED, "no S3 keys found");
        return err_hint(e, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or have a profile in "
                           "~/.aws/credentials (AWS_PROFILE names another than 'default')");
    }
    if (!is_clean(l->access_key) || !is_clean(l->secret_key) || !is_clean(l->token) ||
        !is_clean(l->region))
        return err_set(e, ERR_INPUT, "S3 keys or region hold characters that have no place there");
    return 0;
}
