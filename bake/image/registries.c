/* SPDX-License-Identifier: MIT */
/*
 * Where registries are, as people write it: registries.yaml, our own form (docs/registries.md). Keys
 * are known or refused: a misspelt "mirors" would send every pull to the registry.
 */

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bake/image.h"
#include "bake/image/registries.h"
#include "base/file.h"
#include "base/mem.h"

/* One key of a mapping: what to do with its value. The list ends with a name of NULL. */
struct known_key {
    const char *name;
    int (*read)(void *into, const char *path, const struct node *value, struct err *e);
};

/* Carries out each key's read. */
static int read_mapping(void *into, const char *path, const struct node *n, const char *what,
                        const struct known_key *keys, struct err *e)
{
    if (n->kind != NODE_MAPPING)
        return node_fail(path, n, e, "%s must be a mapping", what);
    for (size_t i = 0; i + 1 < n->count; i += 2) {
        const struct node *key = n->items[i];
        size_t k = 0;

        while (keys[k].name && strcmp(keys[k].name, key->text) != 0)
            k++;
        if (!keys[k].name)
            return node_fail(path, key, e, "%s has no key '%.60s'", what, key->text);
        int rc = keys[k].read(into, path, n->items[i + 1], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_count(unsigned *out, const char *path, const char *key, const struct node *n,
                      unsigned most, struct err *e)
{
    unsigned value = 0;

    if (n->kind == NODE_SCALAR && n->len > 0 && n->len <= 6 &&
        strspn(n->text, "0123456789") == n->len)
        value = (unsigned)strtoul(n->text, NULL, 10);
    if (value < 1 || value > most)
        return node_fail(path, n, e, "%s must be a number from 1 to %u", key, most);
    *out = value;
    return 0;
}

static int read_time(int64_t *out_ms, const char *path, const char *key, const struct node *n,
                     struct err *e)
{
    uint64_t ms = 0;
    int rc = node_duration(&ms, path, key, n, e);

    if (rc == 0)
        *out_ms = (int64_t)ms;
    return rc;
}

/* ---- Mirrors ---- */

static int mirror_url(void *into, const char *path, const struct node *n, struct err *e)
{
    struct registry_mirror *m = into;
    struct err reason = ERR_INIT;
    int rc = node_text(&m->url, path, "url", n, e);

    if (rc < 0)
        return rc;
    if (registry_mirror_check(m->url, &reason) == 0)
        return 0;
    node_fail(path, n, e, "%s", reason.text);
    return err_hint(e, "%s", reason.hint);
}

static int mirror_ca(void *into, const char *path, const struct node *n, struct err *e)
{
    return node_text(&((struct registry_mirror *)into)->ca_file, path, "ca", n, e);
}

static int mirror_timeout(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_time(&((struct registry_mirror *)into)->timeout_ms, path, "timeout", n, e);
}

static int mirror_digests(void *into, const char *path, const struct node *n, struct err *e)
{
    return node_bool(&((struct registry_mirror *)into)->digests_only, path, "digests_only", n, e);
}

/* A text is a url and nothing else. */
static int read_mirror(struct registry_mirror *m, const char *path, const struct node *n,
                       struct err *e)
{
    static const struct known_key keys[] = {{"url", mirror_url},
                                            {"ca", mirror_ca},
                                            {"timeout", mirror_timeout},
                                            {"digests_only", mirror_digests},
                                            {NULL, NULL}};

    if (n->kind == NODE_SCALAR)
        return mirror_url(m, path, n, e);
    int rc = read_mapping(m, path, n, "a mirror", keys, e);
    if (rc == 0 && !m->url)
        return node_fail(path, n, e, "the mirror has no url");
    return rc;
}

/* ---- One registry ---- */

static int host_mirrors(void *into, const char *path, const struct node *n, struct err *e)
{
    struct registry_host *host = into;

    if (n->kind != NODE_SEQUENCE)
        return node_fail(path, n, e, "mirrors must be a list");
    host->mirrors = mem_array(n->count + 1, sizeof(*host->mirrors));
    if (!host->mirrors)
        return err_nomem(e, path);
    for (size_t i = 0; i < n->count; i++) {
        int rc = read_mirror(&host->mirrors[host->mirror_count++], path, n->items[i], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int host_origin(void *into, const char *path, const struct node *n, struct err *e)
{
    bool origin = true;
    int rc = node_bool(&origin, path, "origin", n, e);

    ((struct registry_host *)into)->mirrors_only = !origin;
    return rc;
}

static int host_plain(void *into, const char *path, const struct node *n, struct err *e)
{
    return node_bool(&((struct registry_host *)into)->plain_http, path, "plain_http", n, e);
}

static int host_ca(void *into, const char *path, const struct node *n, struct err *e)
{
    return node_text(&((struct registry_host *)into)->ca_file, path, "ca", n, e);
}

static int read_host(struct registry_host *host, const char *path, const struct node *key,
                     const struct node *n, struct err *e)
{
    static const struct known_key keys[] = {{"mirrors", host_mirrors},
                                            {"origin", host_origin},
                                            {"plain_http", host_plain},
                                            {"ca", host_ca},
                                            {NULL, NULL}};

    if (key->len == 0 || strstr(key->text, "://"))
        return node_fail(path, key, e, "a registry is named as in images: docker.io, HOST:PORT");
    host->name = mem_strdup(key->text);
    if (!host->name)
        return err_nomem(e, path);
    return read_mapping(host, path, n, "a registry", keys, e);
}

/* ---- The document ---- */

static int all_registries(void *into, const char *path, const struct node *n, struct err *e)
{
    struct registry_network *net = into;

    if (n->kind != NODE_MAPPING)
        return node_fail(path, n, e, "registries must be a mapping");
    net->hosts = mem_array(n->count / 2 + 1, sizeof(*net->hosts));
    if (!net->hosts)
        return err_nomem(e, path);
    for (size_t i = 0; i + 1 < n->count; i += 2) {
        int rc = read_host(&net->hosts[net->host_count++], path, n->items[i], n->items[i + 1], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int all_ca(void *into, const char *path, const struct node *n, struct err *e)
{
    return node_text(&((struct registry_network *)into)->ca_file, path, "ca", n, e);
}

static int all_connect(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_time(&((struct registry_network *)into)->connect_timeout_ms, path,
                     "connect_timeout", n, e);
}

static int all_stall(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_time(&((struct registry_network *)into)->stall_timeout_ms, path, "stall_timeout", n,
                     e);
}

static int all_wait(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_time(&((struct registry_network *)into)->retry_wait_ms, path, "retry_wait", n, e);
}

static int all_rate(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_time(&((struct registry_network *)into)->rate_wait_ms, path, "rate_wait", n, e);
}

static int all_tries(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_count(&((struct registry_network *)into)->tries, path, "tries", n, 100, e);
}

static int all_cap(void *into, const char *path, const struct node *n, struct err *e)
{
    return read_count(&((struct registry_network *)into)->requests_per_minute, path,
                      "requests_per_minute", n, 60000, e);
}

static int parse_conf(struct registry_network *out, const char *path, const void *text, size_t len,
                      struct err *e)
{
    AUTO_TOML struct toml *document = NULL;
    int rc = toml_parse(&document, text, len, path, e);

    return rc < 0 ? rc : registries_read_conf(out, path, document, e);
}

static int parse_yaml(struct registry_network *out, const char *path, const void *text, size_t len,
                      struct err *e)
{
    static const struct known_key keys[] = {{"registries", all_registries},
                                            {"ca", all_ca},
                                            {"connect_timeout", all_connect},
                                            {"stall_timeout", all_stall},
                                            {"tries", all_tries},
                                            {"retry_wait", all_wait},
                                            {"rate_wait", all_rate},
                                            {"requests_per_minute", all_cap},
                                            {NULL, NULL}};
    AUTO_NODE struct node *document = NULL;

    int rc = node_parse(&document, text, len, path, e);
    if (rc == 0)
        rc = read_mapping(out, path, document, "registries.yaml", keys, e);
    return rc;
}

int registries_parse(struct registry_network *out, const char *path, const void *text, size_t len,
                     struct err *e)
{
    size_t path_len = strlen(path);
    bool conf =
        path_len > strlen(".conf") && strcmp(path + path_len - strlen(".conf"), ".conf") == 0;

    *out = (struct registry_network){0};
    int rc = conf ? parse_conf(out, path, text, len, e) : parse_yaml(out, path, text, len, e);
    if (rc < 0)
        registry_network_fini(out);
    return rc;
}

static int load_directory(struct registry_network *out, const char *path, struct err *e)
{
    *out = (struct registry_network){0};
    int rc = registries_read_directory(out, path, e);
    if (rc < 0) {
        registry_network_fini(out);
        return err_in(e, "registries");
    }
    return 0;
}

int registries_load(struct registry_network *out, const char *path, struct err *e)
{
    struct stat status;

    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode))
        return load_directory(out, path, e);
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_REGISTRIES);
    int rc = file_read(AT_FDCWD, path, &text, e);
    if (rc < 0) {
        if (e->class != ERR_NOMEM && e->class != ERR_CANCELLED)
            e->class = ERR_INPUT;
        return err_in(e, "registries");
    }
    return registries_parse(out, path, text.data ? text.data : (const uint8_t *)"", text.len, e);
}
