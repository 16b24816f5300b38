/* SPDX-License-Identifier: MIT */
/*
 * Where registries are, as other programs have it: registries.conf of podman and its kin
 * (containers-registries.conf(5), version 2) and the directory of hosts.toml files of containerd
 * (docs/hosts.md there). Both can say more than is read here; what would change who is asked is read
 * or refused, the rest is passed over.
 */

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "bake/image/registries.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "manifests/manifest.h"

enum { HOSTS_MAX = 1000 };

/* A text of a table; *out is NULL when there is none. */
static int get_text(const char **out, const char *path, const struct toml *table, const char *key,
                    struct err *e)
{
    const struct toml *value = toml_get(table, key);
    size_t len = 0;

    *out = NULL;
    if (!value)
        return 0;
    if (toml_type(value) != TOML_STRING)
        return toml_fail(value, path, ERR_INPUT, e, "this must be a text");
    const char *text = toml_string(value, &len);
    if (len == 0 || strlen(text) != len)
        return toml_fail(value, path, ERR_INPUT, e, "this must be a text");
    *out = text;
    return 0;
}

static int get_bool(bool *out, const char *path, const struct toml *table, const char *key,
                    struct err *e)
{
    const struct toml *value = toml_get(table, key);

    if (value && toml_type(value) != TOML_BOOL)
        return toml_fail(value, path, ERR_INPUT, e, "this must be true or false");
    *out = value && toml_bool(value);
    return 0;
}

/* The tables of an array of tables; NULL when there is none. */
static int get_tables(const struct toml **out, const char *path, const struct toml *table,
                      const char *key, struct err *e)
{
    const struct toml *value = toml_get(table, key);

    *out = value;
    if (!value)
        return 0;
    bool tables = toml_type(value) == TOML_ARRAY;
    for (size_t i = 0; tables && i < toml_length(value); i++)
        tables = toml_type(toml_at(value, i)) == TOML_TABLE;
    return tables ? 0 : toml_fail(value, path, ERR_INPUT, e, "this must be a list of tables");
}

/* Takes over `url`. */
static int add_mirror(struct registry_host *host, const char *path, const struct toml *at,
                      char *url, bool digests_only, struct err *e)
{
    AUTO_FREE char *held = url;
    struct err reason = ERR_INIT;
    size_t capacity = host->mirror_count;

    if (!held)
        return err_nomem(e, path);
    if (registry_mirror_check(held, &reason) < 0)
        return toml_fail(at, path, ERR_INPUT, e, "%s", reason.text);
    int rc = mem_grow(&host->mirrors, &capacity, host->mirror_count + 1, sizeof(*host->mirrors), e);
    if (rc < 0)
        return rc;
    host->mirrors[host->mirror_count++] =
        (struct registry_mirror){.url = MOVE(held), .digests_only = digests_only};
    return 0;
}

static int add_host(struct registry_network *n, struct registry_host **out, const char *name,
                    struct err *e)
{
    size_t capacity = n->host_count;
    int rc = mem_grow(&n->hosts, &capacity, n->host_count + 1, sizeof(*n->hosts), e);

    if (rc < 0)
        return rc;
    struct registry_host *host = &n->hosts[n->host_count++];
    *host = (struct registry_host){.name = mem_strdup(name)};
    *out = host;
    return host->name ? 0 : err_nomem(e, name);
}

/* ---- registries.conf ---- */

static char *location_url(const char *location, bool insecure)
{
    return mem_printf("%s://%s", insecure ? "http" : "https", location);
}

static int conf_mirror(struct registry_host *host, const char *path, const struct toml *t,
                       bool digests_only, struct err *e)
{
    const char *location = NULL;
    const char *pull = NULL;
    bool insecure = false;

    if (get_text(&location, path, t, "location", e) < 0 ||
        get_bool(&insecure, path, t, "insecure", e) < 0 ||
        get_text(&pull, path, t, "pull-from-mirror", e) < 0)
        return -(int)e->class;
    if (!location)
        return toml_fail(t, path, ERR_INPUT, e, "the mirror has no location");
    if (pull && strcmp(pull, "tag-only") == 0)
        return toml_fail(toml_get(t, "pull-from-mirror"), path, ERR_INPUT, e,
                         "mirrors for tags alone are not supported");
    digests_only = digests_only || (pull && strcmp(pull, "digest-only") == 0);
    return add_mirror(host, path, t, location_url(location, insecure), digests_only, e);
}

static int conf_registry(struct registry_network *n, const char *path, const struct toml *t,
                         struct err *e)
{
    struct registry_host *host = NULL;
    const struct toml *mirrors = NULL;
    const char *prefix = NULL;
    const char *location = NULL;
    bool insecure = false;
    bool blocked = false;
    bool digests_only = false;

    if (get_text(&prefix, path, t, "prefix", e) < 0 ||
        get_text(&location, path, t, "location", e) < 0 ||
        get_bool(&insecure, path, t, "insecure", e) < 0 ||
        get_bool(&blocked, path, t, "blocked", e) < 0 ||
        get_bool(&digests_only, path, t, "mirror-by-digest-only", e) < 0 ||
        get_tables(&mirrors, path, t, "mirror", e) < 0)
        return -(int)e->class;
    if (!prefix && !location)
        return toml_fail(t, path, ERR_INPUT, e, "the registry has neither prefix nor location");
    if (add_host(n, &host, prefix ? prefix : location, e) < 0)
        return -(int)e->class;
    host->plain_http = insecure;
    host->mirrors_only = blocked;
    for (size_t i = 0; mirrors && !blocked && i < toml_length(mirrors); i++) {
        if (conf_mirror(host, path, toml_at(mirrors, i), digests_only, e) < 0)
            return -(int)e->class;
    }
    /* It is really elsewhere. */
    if (blocked || !prefix || !location || strcmp(prefix, location) == 0)
        return 0;
    host->mirrors_only = true;
    return add_mirror(host, path, t, location_url(location, insecure), false, e);
}

int registries_read_conf(struct registry_network *n, const char *path, const struct toml *document,
                         struct err *e)
{
    const struct toml *list = NULL;

    if (get_tables(&list, path, document, "registry", e) < 0)
        return -(int)e->class;
    if (toml_get(document, "registries"))
        return toml_fail(toml_get(document, "registries"), path, ERR_INPUT, e,
                         "version 1 of the format is not supported");
    for (size_t i = 0; list && i < toml_length(list); i++) {
        int rc = conf_registry(n, path, toml_at(list, i), e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- hosts.toml ---- */

static bool list_has(const struct toml *list, const char *word)
{
    for (size_t i = 0; i < toml_length(list); i++) {
        const char *text = toml_string(toml_at(list, i), NULL);
        if (text && strcmp(text, word) == 0)
            return true;
    }
    return false;
}

/* A file, or the first of a list of files, from the directory that hosts.toml is in. */
static int take_ca(struct registry_mirror *m, const char *path, const struct toml *t, struct err *e)
{
    const struct toml *ca = toml_get(t, "ca");

    if (ca && toml_type(ca) == TOML_ARRAY && toml_length(ca) > 0)
        ca = toml_at(ca, 0);
    if (!ca)
        return 0;
    const char *file = toml_string(ca, NULL);
    if (!file)
        return toml_fail(ca, path, ERR_INPUT, e, "this must be the name of a file");
    int directory_len = (int)(strrchr(path, '/') ? strrchr(path, '/') - path : 0);
    m->ca_file = file[0] == '/' || directory_len == 0
                     ? mem_strdup(file)
                     : mem_printf("%.*s/%s", directory_len, path, file);
    return m->ca_file ? 0 : err_nomem(e, path);
}

/* Without override_path, /v2 goes behind the path that is given. */
static char *host_url(const char *url, bool override_path)
{
    const char *scheme = strstr(url, "://") ? "" : "https://";
    size_t len = strlen(url);

    while (len > 0 && url[len - 1] == '/')
        len--;
    return mem_printf("%s%.*s%s", scheme, (int)len, url, override_path ? "" : "/v2");
}

static int hosts_mirror(struct registry_host *host, const char *path, const char *url,
                        const struct toml *t, struct err *e)
{
    bool override_path = false;
    bool skip_verify = false;

    if (toml_type(t) != TOML_TABLE)
        return toml_fail(t, path, ERR_INPUT, e, "this must be a table");
    const struct toml *can = toml_get(t, "capabilities");
    if (can && toml_type(can) != TOML_ARRAY)
        return toml_fail(can, path, ERR_INPUT, e, "this must be a list");
    if (get_bool(&override_path, path, t, "override_path", e) < 0 ||
        get_bool(&skip_verify, path, t, "skip_verify", e) < 0)
        return -(int)e->class;
    if (can && !list_has(can, "pull"))
        return 0;
    if (skip_verify)
        log_event(LOG_WARN, "registry", "%s: skip_verify is passed over: certificates are verified",
                  path);
    if (add_mirror(host, path, t, host_url(url, override_path), can && !list_has(can, "resolve"),
                   e) < 0)
        return -(int)e->class;
    return take_ca(&host->mirrors[host->mirror_count - 1], path, t, e);
}

/* True for the address that the registry has anyway. */
static bool is_itself(const char *server, const char *name)
{
    const char *host = strstr(server, "://") ? strstr(server, "://") + 3 : server;
    size_t len = strcspn(host, "/");
    bool hub = strcmp(name, "docker.io") == 0 && strncmp(host, "registry-1.docker.io", len) == 0;

    return (strlen(name) == len && strncmp(host, name, len) == 0) || hub;
}

int registries_read_hosts(struct registry_network *n, const char *path, const char *name,
                          const struct toml *document, struct err *e)
{
    const struct toml *hosts = toml_get(document, "host");
    struct registry_host *host = NULL;
    const char *server = NULL;

    if (get_text(&server, path, document, "server", e) < 0)
        return -(int)e->class;
    if (hosts && toml_type(hosts) != TOML_TABLE)
        return toml_fail(hosts, path, ERR_INPUT, e, "this must be a table");
    if (add_host(n, &host, strcmp(name, "_default") == 0 ? "*" : name, e) < 0)
        return -(int)e->class;
    for (size_t i = 0; hosts && i < toml_length(hosts); i++) {
        if (hosts_mirror(host, path, toml_key_at(hosts, i), toml_at(hosts, i), e) < 0)
            return -(int)e->class;
    }
    if (!server || is_itself(server, name))
        return 0;
    host->mirrors_only = true;
    return add_mirror(host, path, document, host_url(server, false), false, e);
}

static int read_one(struct registry_network *n, const char *directory, const char *name,
                    struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/%s/hosts.toml", directory, name);
    AUTO_TOML struct toml *document = NULL;
    AUTO_BUF struct buf text;

    buf_init(&text, LIMIT_REGISTRIES);
    if (!path)
        return err_nomem(e, directory);
    if (file_read(AT_FDCWD, path, &text, e) < 0) {
        bool absent = e->class == ERR_NOTFOUND || e->class == ERR_SYS; /* certificates alone */
        if (absent)
            err_clear(e);
        return absent ? 0 : -(int)e->class;
    }
    int rc = toml_parse(&document, buf_text(&text), text.len, path, e);
    return rc < 0 ? rc : registries_read_hosts(n, path, name, document, e);
}

static int read_all(struct registry_network *n, DIR *list, const char *path, struct err *e)
{
    const struct dirent *entry;
    int rc = 0;

    while (rc == 0 && (entry = readdir(list))) {
        if (entry->d_name[0] == '.')
            continue;
        if (n->host_count == HOSTS_MAX)
            return err_set(e, ERR_LIMIT, "%s: more than %d registries", path, HOSTS_MAX);
        rc = read_one(n, path, entry->d_name, e);
    }
    return rc;
}

int registries_read_directory(struct registry_network *n, const char *path, struct err *e)
{
    int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, e);

    if (rc < 0)
        return rc;
    DIR *list = fdopendir(fd);
    if (!list) {
        file_close(&fd);
        return err_nomem(e, path);
    }
    rc = read_all(n, list, path, e);
    closedir(list);
    return rc;
}
