/* SPDX-License-Identifier: MIT */
/*
 * Logins, as `docker login` leaves them.
 *
 * The keys of config.json are loose: with or without a scheme, a path, a port, and docker.io has
 * several names. Each is brought to the form host[:port][/namespace]; the longest one that covers
 * the repository wins, and a key without a port never covers a host with one. Secrets are wiped
 * before they are freed and reach neither log nor argv: helpers talk over pipes.
 */
#include "registry/internal.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/wait.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"

/* The server name that Docker Hub's logins are stored under. */
#define HUB_SERVER "https://index.docker.io/v1/"

#define LIMIT_DOCKER_CONFIG ((size_t)4 << 20)

void secret_free(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

static void secret_buf_fini(struct buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->len);
    buf_fini(b);
}

void credential_fini(struct credential *c)
{
    free(c->user);
    secret_free(c->secret);
    *c = (struct credential){0};
}

/* ---- Base64 (RFC 4648, section 4) ------------------------------------------------------- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *base64_encode(const char *text)
{
    size_t len = strlen(text);
    char *out = mem_zalloc((len + 2) / 3 * 4 + 1);
    char *at = out;

    for (size_t i = 0; out && i < len; i += 3) {
        uint32_t group = 0;
        size_t count = len - i < 3 ? len - i : 3;

        for (size_t k = 0; k < 3; k++)
            group = group << 8 | (k < count ? (uint8_t)text[i + k] : 0U);
        for (size_t k = 0; k < 4; k++)
            *at++ = k <= count ? alphabet[group >> (18 - 6 * k) & 63U] : '=';
    }
    return out;
}

/* NULL when it is no base64 (or memory is short). */
static char *base64_decode(const char *text)
{
    size_t len = strcspn(text, "= \t\r\n");
    char *out = mem_zalloc(len / 4 * 3 + 4);
    char *at = out;
    uint32_t group = 0;
    unsigned bits = 0;

    for (size_t i = 0; out && i < len; i++) {
        const char *digit = strchr(alphabet, text[i]);

        if (!digit) {
            secret_free(out);
            return NULL;
        }
        group = (group << 6 | (uint32_t)(digit - alphabet)) & 0xffffffU;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            *at++ = (char)(group >> bits & 0xffU);
        }
    }
    return out;
}

char *credential_basic(const struct credential *c)
{
    char *both = mem_printf("%s:%s", c->user, c->secret);
    char *encoded = both ? base64_encode(both) : NULL;
    char *header = encoded ? mem_printf("Basic %s", encoded) : NULL;

    secret_free(both);
    secret_free(encoded);
    return header;
}

/* ---- Keys ------------------------------------------------------------------------------- */

static bool is_hub(const char *host, size_t len)
{
    static const char *const names[] = {"docker.io", "index.docker.io", "registry-1.docker.io"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i]) == len && strncasecmp(names[i], host, len) == 0)
            return true;
    }
    return false;
}

/*
 * How much of host/repository a key covers: 0 for another host, else the more the higher.
 * "https://host/v1/" and "host/v2" are old spellings of "host".
 */
static size_t key_cover(const char *key, const char *host, const char *repository)
{
    const char *scheme_end = strstr(key, "://");
    if (scheme_end)
        key = scheme_end + strlen("://");
    size_t len = strcspn(key, "/");
    bool same = strlen(host) == len && strncasecmp(key, host, len) == 0;

    if (!same && !(is_hub(key, len) && is_hub(host, strlen(host))))
        return 0;
    const char *space = key + len;
    space += strspn(space, "/");
    size_t space_len = strlen(space);
    while (space_len > 0 && space[space_len - 1] == '/')
        space_len--;
    if (space_len == 0 ||
        (space_len == 2 && space[0] == 'v' && (space[1] == '1' || space[1] == '2')))
        return 1;
    if (strncmp(space, repository, space_len) == 0 &&
        (repository[space_len] == '/' || repository[space_len] == '\0'))
        return 1 + space_len;
    return 0;
}

/* The member of an object whose key covers the most. */
struct best {
    const char *host;
    const char *repository;
    size_t cover;
    const char *key; /* borrowed from the document */
    struct json *value;
};

static int visit_key(void *ctx, const char *key, struct json *value, struct err *e UNUSED)
{
    struct best *best = ctx;
    size_t cover = key_cover(key, best->host, best->repository);

    if (cover > best->cover) {
        best->cover = cover;
        best->key = key;
        best->value = value;
    }
    return 0;
}

/* ---- Helpers ---------------------------------------------------------------------------- */

/* A helper's name becomes part of a program name that is looked up in PATH. */
static bool helper_name_is_legal(const char *name)
{
    if (*name == '\0')
        return false;
    for (; *name; name++) {
        bool alnum = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
                     (*name >= '0' && *name <= '9');
        if (!alnum && !strchr("-_.", *name))
            return false;
    }
    return true;
}

static int read_helper_reply(struct credential *out, bool *found, const struct buf *reply,
                             struct err *e)
{
    AUTO_JSON struct json *doc = NULL;
    const char *user = NULL;
    const char *secret = NULL;

    if (json_parse(&doc, reply->data, reply->len, "reply", e) < 0) /* never quote it */
        return e->class == ERR_NOMEM ? -ERR_NOMEM : err_set(e, ERR_CORRUPT, "its reply is no JSON");
    if (json_get_string(doc, "Username", &user, e) < 0 ||
        json_get_string(doc, "Secret", &secret, e) < 0)
        return -(int)e->class;
    struct credential c = {.identity_token = strcmp(user, "<token>") == 0};
    c.user = mem_strdup(user);
    c.secret = mem_strdup(secret);
    if (!c.user || !c.secret) {
        credential_fini(&c);
        return err_nomem(e, "login");
    }
    *out = c;
    *found = true;
    return 0;
}

static int run_helper(struct credential *out, bool *found, const char *name, const char *server,
                      const struct credential_options *options, struct err *e)
{
    CLEANUP(secret_buf_fini) struct buf reply;
    int status = 0;

    buf_init(&reply, LIMIT_TOKEN);
    if (!helper_name_is_legal(name))
        return err_set(e, ERR_INPUT, "not a legal name");
    AUTO_FREE char *program = mem_printf("docker-credential-%s", name);
    if (!program)
        return err_nomem(e, "login");
    const char *argv[] = {program, "get", NULL};
    if (proc_run(argv,
                 &(struct proc_io){.input = server,
                                   .out = &reply,
                                   .timeout_ms = options->helper_timeout_ms,
                                   .cancel = options->cancel},
                 &status, e) < 0)
        return -(int)e->class;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return read_helper_reply(out, found, &reply, e);
    if (strstr(buf_text(&reply), "credentials not found"))
        return 0;
    return err_set(e, ERR_INPUT, "it ended with status %d",
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* Asks a helper; one that fails leaves the pull to other logins, or to anonymity. */
static int ask_helper(struct credential *out, bool *found, const char *name, const char *server,
                      const struct credential_options *options, struct err *e)
{
    int rc = run_helper(out, found, name, server, options, e);

    if (rc == 0 || e->class == ERR_NOMEM || e->class == ERR_CANCELLED)
        return rc;
    log_event(LOG_WARN, "registry", "no login for %s from credential helper \"%.60s\": %s", server,
              name, e->text);
    err_clear(e);
    return 0;
}

/* ---- config.json ------------------------------------------------------------------------ */

static int read_auth_text(struct credential *c, const char *encoded, struct err *e)
{
    char *decoded = base64_decode(encoded);
    char *colon = decoded ? strchr(decoded, ':') : NULL;

    if (!colon) {
        secret_free(decoded);
        return err_set(e, ERR_INPUT, "'auth' is not the base64 of user:password");
    }
    *colon = '\0';
    c->user = mem_strdup(decoded);
    c->secret = mem_strdup(colon + 1);
    *colon = ':';
    secret_free(decoded);
    return c->user && c->secret ? 0 : err_nomem(e, "login");
}

/* An entry of "auths"; an empty one says only that a store has the login. */
static int read_inline(struct credential *out, bool *found, const struct json *entry, struct err *e)
{
    struct credential c = {0};
    const char *encoded = NULL;
    const char *token = NULL;
    const char *user = NULL;
    const char *password = NULL;
    int rc = 0;

    if (json_get_string_opt(entry, "auth", &encoded, e) < 0 ||
        json_get_string_opt(entry, "identitytoken", &token, e) < 0 ||
        json_get_string_opt(entry, "username", &user, e) < 0 ||
        json_get_string_opt(entry, "password", &password, e) < 0)
        return -(int)e->class;
    if (token && *token) {
        c.user = mem_strdup("<token>");
        c.secret = mem_strdup(token);
        c.identity_token = true;
        rc = c.user && c.secret ? 0 : err_nomem(e, "login");
    } else if (encoded && *encoded) {
        rc = read_auth_text(&c, encoded, e);
    } else if (user && password && *user) {
        c.user = mem_strdup(user);
        c.secret = mem_strdup(password);
        rc = c.user && c.secret ? 0 : err_nomem(e, "login");
    } else {
        return 0;
    }
    if (rc < 0) {
        credential_fini(&c);
        return rc;
    }
    *out = c;
    *found = true;
    return 0;
}

static int find_in_config(struct credential *out, bool *found,
                          const struct credential_options *options, const struct json *config,
                          const struct best *wanted, struct err *e)
{
    struct best helper = *wanted;
    struct best entry = *wanted;
    const char *host = wanted->host;
    struct json *helpers = NULL;
    struct json *auths = NULL;
    const char *store = NULL;
    const char *server = is_hub(host, strlen(host)) ? HUB_SERVER : host;

    if (json_get_object_opt(config, "credHelpers", &helpers, e) < 0 ||
        json_get_object_opt(config, "auths", &auths, e) < 0 ||
        json_get_string_opt(config, "credsStore", &store, e) < 0 ||
        (helpers && json_each(helpers, visit_key, &helper, e) < 0) ||
        (auths && json_each(auths, visit_key, &entry, e) < 0))
        return -(int)e->class;
    const char *name = json_as_string(helper.value);
    if (name && ask_helper(out, found, name, server, options, e) < 0)
        return -(int)e->class;
    if (!*found && store && *store && ask_helper(out, found, store, server, options, e) < 0)
        return -(int)e->class;
    if (!*found && entry.value && read_inline(out, found, entry.value, e) < 0)
        return err_in(e, "login of %s", entry.key);
    return 0;
}

enum { FILES_MAX = 4 };

/* The files to look into, in order. */
struct login_files {
    char *paths[FILES_MAX];
    size_t count;
};

static void login_files_fini(struct login_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->paths[i]);
}

/* The value of a variable; NULL when it is unset or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

static int add_path(struct login_files *files, const char *directory, const char *name,
                    struct err *e)
{
    if (!directory)
        return 0;
    char *path = mem_printf("%s%s", directory, name);
    if (!path)
        return err_nomem(e, "login");
    files->paths[files->count++] = path;
    return 0;
}

/* Docker's file, and where podman and buildah leave theirs (containers-auth.json(5)). */
static int list_files(struct login_files *files, const struct credential_options *options,
                      struct err *e)
{
    const char *home = variable("HOME");

    if (options->config_path)
        return add_path(files, options->config_path, "", e);
    if (variable("REGISTRY_AUTH_FILE"))
        return add_path(files, variable("REGISTRY_AUTH_FILE"), "", e);
    if (variable("DOCKER_CONFIG"))
        return add_path(files, variable("DOCKER_CONFIG"), "/config.json", e);
    if (add_path(files, variable("XDG_RUNTIME_DIR"), "/containers/auth.json", e) < 0 ||
        add_path(files, home, "/.config/containers/auth.json", e) < 0)
        return -(int)e->class;
    return add_path(files, home, "/.docker/config.json", e);
}

/* A file that is not there holds no login. */
static int find_in_file(struct credential *out, bool *found,
                        const struct credential_options *options, const char *path,
                        const struct best *wanted, struct err *e)
{
    CLEANUP(secret_buf_fini) struct buf text;
    AUTO_JSON struct json *config = NULL;

    buf_init(&text, LIMIT_DOCKER_CONFIG);
    if (file_read(AT_FDCWD, path, &text, e) < 0) {
        if (e->class != ERR_NOTFOUND)
            return -(int)e->class;
        err_clear(e);
        return 0;
    }
    /* A parser's message may quote what it stumbled over, so it is not passed on. */
    if (json_parse(&config, text.data, text.len, path, e) < 0)
        return e->class == ERR_NOMEM ? -ERR_NOMEM : err_set(e, ERR_INPUT, "%s: not JSON", path);
    if (json_kind(config) != JSON_KIND_OBJECT)
        return err_set(e, ERR_INPUT, "%s: not a JSON object", path);
    if (find_in_config(out, found, options, config, wanted, e) < 0) {
        if (e->class == ERR_CORRUPT)
            e->class = ERR_INPUT;
        return err_in(e, "%s", path);
    }
    return 0;
}

int credential_find(struct credential *out, bool *found, const struct credential_options *options,
                    const char *host, const char *repository, struct err *e)
{
    CLEANUP(login_files_fini) struct login_files files = {0};
    const struct best wanted = {.host = host, .repository = repository};

    *found = false;
    if (list_files(&files, options, e) < 0)
        return -(int)e->class;
    for (size_t i = 0; i < files.count && !*found; i++) {
        if (find_in_file(out, found, options, files.paths[i], &wanted, e) < 0)
            return -(int)e->class;
    }
    return 0;
}
