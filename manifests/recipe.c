/* SPDX-License-Identifier: MIT */
/*
 * Recipe YAML to struct recipe (docs/formats/recipe.md). Each kind of mapping has one table of its
 * keys; what a table does not name is an error at its line, so that a misspelt key cannot be lost.
 */
#include "manifests/recipe_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"

enum {
    NAME_MAX_LEN = 64,
    HTTP_PATH_MAX = 1024,
    READY_INTERVAL_MS = 500,
    READY_TIMEOUT_MS = 60 * 1000,
    READY_TRY_TIMEOUT_MS = 10 * 1000
};

/* "a, b, c" into `text`; returns `text`. */
static const char *list_keys(const struct key *keys, size_t count, char *text, size_t room)
{
    size_t len = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && len < room; i++)
        len += (size_t)snprintf(text + len, room - len, "%s%s", i > 0 ? ", " : "", keys[i].name);
    return text;
}

int recipe_read_mapping(struct decoder *d, const struct node *node, const char *what,
                        const struct key *keys, size_t count, struct err *e)
{
    if (node->kind != NODE_MAPPING)
        return node_fail(d->path, node, e, "%s must be a mapping", what);
    for (size_t i = 0; i + 1 < node->count; i += 2) {
        const struct node *name = node->items[i];
        size_t found = 0;
        while (found < count && strcmp(keys[found].name, name->text) != 0)
            found++;
        if (found == count) {
            char known[512];
            char shown[TEXT_SHOW_MAX];
            node_fail(d->path, name, e, "%s has no key '%s'", what,
                      text_show(name->text, name->len, shown));
            return err_hint(e, "its keys are: %s", list_keys(keys, count, known, sizeof(known)));
        }
        int rc = keys[found].read(d, node->items[i + 1], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- Ready check --------------------------------------------------------------------------- */

static int read_ready_command(struct decoder *d, const struct node *value, struct err *e)
{
    d->recipe->ready.kind = RECIPE_READY_COMMAND;
    return node_text(&d->recipe->ready.command, d->path, "ready", value, e);
}

static int read_ready_port(struct decoder *d, const struct node *value, struct err *e)
{
    d->recipe->ready.kind = RECIPE_READY_PORT;
    return node_port(&d->recipe->ready.port, d->path, "port", value, e);
}

static int read_http_path(struct decoder *d, const struct node *value, struct err *e)
{
    int rc = node_text(&d->recipe->ready.http_path, d->path, "path", value, e);
    if (rc < 0)
        return rc;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-._~/?&=%:@+,;!*";
    if (value->text[0] == '/' && value->len < HTTP_PATH_MAX &&
        strspn(value->text, letters) == value->len)
        return 0;
    return node_fail(d->path, value, e,
                     "path must begin with '/', be shorter than %d and as in a URL", HTTP_PATH_MAX);
}

static int read_http_status(struct decoder *d, const struct node *value, struct err *e)
{
    return node_number(&d->recipe->ready.http_status, d->path, "status", value,
                       (struct range){100, 599}, e);
}

static const struct key http_keys[] = {
    {"port", read_ready_port},
    {"path", read_http_path},
    {"status", read_http_status},
};

static int read_ready_http(struct decoder *d, const struct node *value, struct err *e)
{
    struct recipe_ready *ready = &d->recipe->ready;
    int rc = recipe_read_mapping(d, value, "http", http_keys, ARRAY_LEN(http_keys), e);
    if (rc == 0 && ready->port == 0)
        return node_fail(d->path, value, e, "http needs a port");
    ready->kind = RECIPE_READY_HTTP;
    if (rc == 0 && !ready->http_path) {
        ready->http_path = mem_strdup("/");
        rc = ready->http_path ? 0 : err_nomem(e, "recipe");
    }
    return rc;
}

static int read_ready_interval(struct decoder *d, const struct node *value, struct err *e)
{
    return node_duration(&d->recipe->ready.interval_ms, d->path, "interval", value, e);
}

static int read_ready_timeout(struct decoder *d, const struct node *value, struct err *e)
{
    return node_duration(&d->recipe->ready.timeout_ms, d->path, "timeout", value, e);
}

static int read_ready_try_timeout(struct decoder *d, const struct node *value, struct err *e)
{
    return node_duration(&d->recipe->ready.try_timeout_ms, d->path, "try_timeout", value, e);
}

static const struct key ready_keys[] = {
    {"command", read_ready_command}, {"port", read_ready_port},
    {"http", read_ready_http},       {"interval", read_ready_interval},
    {"timeout", read_ready_timeout}, {"try_timeout", read_ready_try_timeout},
};

static int read_ready(struct decoder *d, const struct node *value, struct err *e)
{
    if (value->kind == NODE_SCALAR)
        return read_ready_command(d, value, e);
    int rc = recipe_read_mapping(d, value, "ready", ready_keys, ARRAY_LEN(ready_keys), e);
    int checks = (node_get(value, "command") != NULL) + (node_get(value, "port") != NULL) +
                 (node_get(value, "http") != NULL);
    if (rc == 0 && checks != 1)
        return node_fail(d->path, value, e,
                         "ready must have exactly one of command, port and http");
    return rc;
}

/* ---- The recipe ---------------------------------------------------------------------------- */

static int read_name(struct decoder *d, const struct node *value, struct err *e)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789._-";
    int rc = node_text(&d->recipe->name, d->path, "name", value, e);
    if (rc == 0 && (value->len > NAME_MAX_LEN || strspn(value->text, letters) != value->len))
        return node_fail(d->path, value, e,
                         "name must be at most %d of the characters a-z, 0-9, '.', '_' and '-'",
                         NAME_MAX_LEN);
    return rc;
}

static const char *const network_names[] = {
    [RECIPE_NETWORK_NONE] = "none", [RECIPE_NETWORK_USER] = "user", [RECIPE_NETWORK_TAP] = "tap"};

const char *recipe_network_name(enum recipe_network network)
{
    return network_names[network];
}

static int read_network(struct decoder *d, const struct node *value, struct err *e)
{
    for (size_t i = 0; value->kind == NODE_SCALAR && i < ARRAY_LEN(network_names); i++) {
        if (strcmp(value->text, network_names[i]) == 0) {
            d->recipe->network = (enum recipe_network)i;
            return 0;
        }
    }
    return node_fail(d->path, value, e, "network must be none, user or tap");
}

static int read_pipefail(struct decoder *d, const struct node *value, struct err *e)
{
    return node_bool(&d->recipe->pipefail, d->path, "pipefail", value, e);
}

static int read_start(struct decoder *d, const struct node *value, struct err *e)
{
    return node_text(&d->recipe->start, d->path, "start", value, e);
}

static const struct key recipe_keys[] = {
    {"name", read_name},          {"network", read_network}, {"pipefail", read_pipefail},
    {"steps", recipe_read_steps}, {"start", read_start},     {"ready", read_ready},
};

int recipe_parse(struct recipe **out, const char *path, const void *text, size_t len, struct err *e)
{
    AUTO_NODE struct node *root = NULL;
    int rc = node_parse(&root, text, len, path, e);
    if (rc < 0)
        return rc;
    AUTO_RECIPE struct recipe *r = mem_zalloc(sizeof(*r));
    if (!r)
        return err_nomem(e, "recipe");
    r->network = RECIPE_NETWORK_USER;
    r->ready.interval_ms = READY_INTERVAL_MS;
    r->ready.timeout_ms = READY_TIMEOUT_MS;
    r->ready.try_timeout_ms = READY_TRY_TIMEOUT_MS;
    struct decoder d = {.path = path, .recipe = r};
    rc = recipe_read_mapping(&d, root, "a recipe", recipe_keys, ARRAY_LEN(recipe_keys), e);
    if (rc < 0)
        return rc;
    if (!r->name)
        return node_fail(path, root, e, "a recipe needs a name");
    *out = MOVE(r);
    return 0;
}

int recipe_load(struct recipe **out, const char *path, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_RECIPE);
    int rc = file_read(AT_FDCWD, path, &text, e);
    if (rc < 0)
        return err_in(e, "recipe");
    return recipe_parse(out, path, text.data, text.len, e);
}

void recipe_free(struct recipe *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->step_count; i++)
        recipe_step_fini(&r->steps[i]);
    free(r->steps);
    free(r->name);
    free(r->start);
    free(r->ready.command);
    free(r->ready.http_path);
    free(r);
}
