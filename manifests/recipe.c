/* SPDX-License-Identifier: MIT */
/*
 * Recipe YAML to struct recipe (docs/formats/recipe.md). Each kind of mapping has one table of its
 * keys; what a table does not name is an error at its line, so that a misspelt key cannot be lost.
 */
#include "manifests/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"

enum {
    STEPS_MAX = 1000,
    NAME_MAX_LEN = 64,
    STEP_TIMEOUT_MS = 600 * 1000,
    READY_INTERVAL_MS = 500,
    READY_TIMEOUT_MS = 60 * 1000,
    READY_TRY_TIMEOUT_MS = 10 * 1000
};

struct decoder {
    const char *path;
    struct recipe *recipe;
    struct recipe_step *step; /* the one being read */
};

struct key {
    const char *name;
    int (*read)(struct decoder *d, const struct node *value, struct err *e);
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

static int read_mapping(struct decoder *d, const struct node *node, const char *what,
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
            char known[256];
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

/* ---- Steps --------------------------------------------------------------------------------- */

static int read_path(char **out, const struct decoder *d, const struct node *value, struct err *e)
{
    int rc = node_text(out, d->path, "workdir", value, e);
    if (rc == 0 && ((*out)[0] != '/' || value->len >= LIMIT_PATH))
        return node_fail(d->path, value, e, "workdir must be an absolute path");
    return rc;
}

static int read_account(char **out, const struct decoder *d, const struct node *value,
                        struct err *e)
{
    int rc = node_text(out, d->path, "user", value, e);
    if (rc == 0 && (strpbrk(*out, " \t\r\n") || (*out)[0] == '-'))
        return node_fail(d->path, value, e, "user must be an account's name or number");
    return rc;
}

static int read_run(struct decoder *d, const struct node *value, struct err *e)
{
    if (value->kind == NODE_SCALAR)
        return node_text(&d->step->text, d->path, "run", value, e);
    return node_argv(&d->step->argv, d->path, "run", value, e);
}

static int read_run_user(struct decoder *d, const struct node *value, struct err *e)
{
    return read_account(&d->step->user, d, value, e);
}

static int read_run_workdir(struct decoder *d, const struct node *value, struct err *e)
{
    return read_path(&d->step->workdir, d, value, e);
}

static int read_run_timeout(struct decoder *d, const struct node *value, struct err *e)
{
    return node_duration(&d->step->timeout_ms, d->path, "timeout", value, e);
}

static int read_step_env(struct decoder *d, const struct node *value, struct err *e)
{
    return node_env(&d->step->env, &d->step->env_count, d->path, value, e);
}

static int read_set_workdir(struct decoder *d, const struct node *value, struct err *e)
{
    d->step->kind = RECIPE_WORKDIR;
    return read_path(&d->step->text, d, value, e);
}

static int read_set_user(struct decoder *d, const struct node *value, struct err *e)
{
    d->step->kind = RECIPE_USER;
    return read_account(&d->step->text, d, value, e);
}

static int read_set_env(struct decoder *d, const struct node *value, struct err *e)
{
    d->step->kind = RECIPE_ENV;
    return read_step_env(d, value, e);
}

static const struct key run_keys[] = {
    {"run", read_run},
    {"user", read_run_user},
    {"workdir", read_run_workdir},
    {"timeout", read_run_timeout},
    {"env", read_step_env},
};

static const struct key set_keys[] = {
    {"env", read_set_env},
    {"workdir", read_set_workdir},
    {"user", read_set_user},
};

static int read_step(struct decoder *d, const struct node *node, struct err *e)
{
    if (node_get(node, "run"))
        return read_mapping(d, node, "a run step", run_keys, ARRAY_LEN(run_keys), e);
    if (node->kind == NODE_MAPPING && node->count != 2)
        return node_fail(d->path, node, e,
                         "a step without run must have exactly one of env, workdir and user");
    return read_mapping(d, node, "a step without run", set_keys, ARRAY_LEN(set_keys), e);
}

static int read_steps(struct decoder *d, const struct node *value, struct err *e)
{
    struct recipe *r = d->recipe;
    if (value->kind != NODE_SEQUENCE)
        return node_fail(d->path, value, e, "steps must be a list");
    if (value->count > STEPS_MAX)
        return node_fail(d->path, value, e, "more than %d steps", STEPS_MAX);
    r->steps = mem_array(value->count, sizeof(*r->steps));
    if (!r->steps)
        return err_nomem(e, "recipe");
    r->step_count = value->count;
    for (size_t i = 0; i < value->count; i++) {
        d->step = &r->steps[i];
        d->step->kind = RECIPE_RUN;
        d->step->line = value->items[i]->line;
        d->step->timeout_ms = STEP_TIMEOUT_MS;
        int rc = read_step(d, value->items[i], e);
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
    {"command", read_ready_command},         {"port", read_ready_port},
    {"interval", read_ready_interval},       {"timeout", read_ready_timeout},
    {"try_timeout", read_ready_try_timeout},
};

static int read_ready(struct decoder *d, const struct node *value, struct err *e)
{
    if (value->kind == NODE_SCALAR)
        return read_ready_command(d, value, e);
    int rc = read_mapping(d, value, "ready", ready_keys, ARRAY_LEN(ready_keys), e);
    if (rc == 0 && (node_get(value, "command") != NULL) == (node_get(value, "port") != NULL))
        return node_fail(d->path, value, e, "ready must have exactly one of command and port");
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

static int read_network(struct decoder *d, const struct node *value, struct err *e)
{
    bool scalar = value->kind == NODE_SCALAR;
    if (scalar && strcmp(value->text, "none") == 0)
        d->recipe->network = RECIPE_NETWORK_NONE;
    else if (scalar && strcmp(value->text, "user") == 0)
        d->recipe->network = RECIPE_NETWORK_USER;
    else
        return node_fail(d->path, value, e, "network must be none or user");
    return 0;
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
    {"name", read_name},   {"network", read_network}, {"pipefail", read_pipefail},
    {"steps", read_steps}, {"start", read_start},     {"ready", read_ready},
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
    rc = read_mapping(&d, root, "a recipe", recipe_keys, ARRAY_LEN(recipe_keys), e);
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
    for (size_t i = 0; i < r->step_count; i++) {
        struct recipe_step *step = &r->steps[i];
        env_free(step->env, step->env_count);
        argv_free(step->argv);
        free(step->text);
        free(step->user);
        free(step->workdir);
    }
    free(r->steps);
    free(r->name);
    free(r->start);
    free(r->ready.command);
    free(r);
}
