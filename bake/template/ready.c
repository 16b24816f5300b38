/* SPDX-License-Identifier: MIT */
/* The ready check as a record keeps it. */
#include <stdlib.h>
#include <string.h>

#include "bake/template/ready.h"
#include "base/mem.h"

static const char *const ready_kinds[] = {
    [RECIPE_READY_NONE] = "none",
    [RECIPE_READY_COMMAND] = "command",
    [RECIPE_READY_PORT] = "port",
    [RECIPE_READY_HTTP] = "http",
};

struct json *ready_encode(const struct recipe_ready *r)
{
    struct json *j = json_new_object();
    json_set(j, "kind", json_new_string(ready_kinds[r->kind]));
    if (r->kind == RECIPE_READY_COMMAND)
        json_set(j, "command", json_new_string(r->command));
    if (r->kind == RECIPE_READY_PORT || r->kind == RECIPE_READY_HTTP)
        json_set(j, "port", json_new_integer(r->port));
    if (r->kind == RECIPE_READY_HTTP) {
        json_set(j, "path", json_new_string(r->http_path));
        json_set(j, "status", json_new_integer(r->http_status));
    }
    json_set(j, "interval_ms", json_new_integer((int64_t)r->interval_ms));
    json_set(j, "timeout_ms", json_new_integer((int64_t)r->timeout_ms));
    json_set(j, "try_timeout_ms", json_new_integer((int64_t)r->try_timeout_ms));
    return j;
}

void ready_fini(struct recipe_ready *r)
{
    free(r->command);
    free(r->http_path);
    *r = (struct recipe_ready){0};
}

static int decode_kind(struct recipe_ready *r, const struct json *j, struct err *e)
{
    const char *kind = NULL;
    int rc = json_get_string(j, "kind", &kind, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(ready_kinds); i++) {
        if (strcmp(kind, ready_kinds[i]) == 0) {
            r->kind = (enum recipe_ready_kind)i;
            return 0;
        }
    }
    return err_set(e, ERR_CORRUPT, "ready check of unknown kind '%.40s'", kind);
}

/* Takes in what else the kind needs, all of it in ranges that a recipe may have. */
static int decode_target(struct recipe_ready *r, const struct json *j, struct err *e)
{
    const char *command = NULL;
    const char *path = NULL;
    uint64_t port = 0;
    uint64_t status = 0;
    int rc = json_get_string_opt(j, "command", &command, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "port", 0, &port, e);
    if (rc == 0)
        rc = json_get_string_opt(j, "path", &path, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "status", 0, &status, e);
    if (rc < 0)
        return rc;
    if (port > UINT16_MAX || status > 599 || (r->kind == RECIPE_READY_COMMAND && !command) ||
        (r->kind == RECIPE_READY_HTTP && !path))
        return err_set(e, ERR_CORRUPT, "ready check is incomplete");
    r->port = (uint16_t)port;
    r->http_status = (unsigned)status;
    r->command = command ? mem_strdup(command) : NULL;
    r->http_path = path ? mem_strdup(path) : NULL;
    return (command && !r->command) || (path && !r->http_path) ? err_nomem(e, "ready check") : 0;
}

int ready_decode(struct recipe_ready *out, const struct json *document, struct err *e)
{
    struct recipe_ready r = {0};
    struct json *j = NULL;
    int rc = json_get_object(document, "ready", &j, e);
    if (rc == 0)
        rc = decode_kind(&r, j, e);
    if (rc == 0)
        rc = json_get_u64(j, "interval_ms", &r.interval_ms, e);
    if (rc == 0)
        rc = json_get_u64(j, "timeout_ms", &r.timeout_ms, e);
    if (rc == 0)
        rc = json_get_u64(j, "try_timeout_ms", &r.try_timeout_ms, e);
    if (rc == 0)
        rc = decode_target(&r, j, e);
    if (rc < 0) {
        ready_fini(&r);
        return rc;
    }
    *out = r;
    return 0;
}
