/* SPDX-License-Identifier: MIT */
/* The steps of a recipe: what decides between a run step and the others is the key `run`. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "manifests/recipe_internal.h"

enum {
    STEPS_MAX = 1000,
    STEP_TIMEOUT_MS = 600 * 1000,
    RETRIES_MAX = 10,
    BACKOFF_MS = 1000,
    SECRETS_MAX = 32,
    SECRET_NAME_MAX = 64
};

static int read_path(char **out, const struct decoder *d, const struct node *value, struct err *e)
{
    int rc = node_text(out, d->path, "workdir", value, e);
    if (rc == 0 && ((*out)[0] != '/' || value->len >= LIMIT_PATH))
        return node_fail(d->path, value, e, "workdir must be an absolute path");
    return rc;
}

/* A number up to a colon that no account has; also behind one. */
static bool is_beyond(const char *account)
{
    account += *account == ':';
    size_t digits = strspn(account, "0123456789");
    return digits > 0 && (!account[digits] || account[digits] == ':') &&
           strtoull(account, NULL, 10) > LIMIT_ACCOUNT;
}

int recipe_read_account(char **out, const struct decoder *d, const char *key,
                        const struct node *value, struct err *e)
{
    int rc = node_text(out, d->path, key, value, e);
    if (rc == 0 && (strpbrk(*out, " \t\r\n") || (*out)[0] == '-' || (*out)[0] == ':'))
        return node_fail(d->path, value, e, "%s must be an account's name or number", key);
    if (rc == 0 && (is_beyond(*out) || is_beyond(*out + strcspn(*out, ":"))))
        return node_fail(d->path, value, e, "%s has a number above %u", key, LIMIT_ACCOUNT);
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
    return recipe_read_account(&d->step->user, d, "user", value, e);
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

/* A step's own network can only be none: what there is to be had is the recipe's. */
static int read_run_network(struct decoder *d, const struct node *value, struct err *e)
{
    if (value->kind != NODE_SCALAR || strcmp(value->text, "none") != 0)
        return node_fail(d->path, value, e, "network of a step can only be none");
    d->step->no_network = true;
    return 0;
}

static int read_run_retries(struct decoder *d, const struct node *value, struct err *e)
{
    return node_number(&d->step->retries, d->path, "retries", value, (struct range){0, RETRIES_MAX},
                       e);
}

static int read_run_backoff(struct decoder *d, const struct node *value, struct err *e)
{
    return node_duration(&d->step->backoff_ms, d->path, "backoff", value, e);
}

bool recipe_secret_name_is_valid(const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strlen(name);
    return len > 0 && len <= SECRET_NAME_MAX && name[0] != '.' && strspn(name, letters) == len;
}

/* `NAME`, or {name: NAME, env: VARIABLE}. */
static int read_secret(struct recipe_secret *out, const struct decoder *d, const struct node *node,
                       struct err *e)
{
    const struct node *name = node->kind == NODE_MAPPING ? node_get(node, "name") : node;
    const struct node *env = node_get(node, "env");
    if (!name || (node->kind == NODE_MAPPING && node->count != (env ? 4 : 2)))
        return node_fail(d->path, node, e,
                         "a secret must be a name, or a mapping of name and perhaps env");
    int rc = node_text(&out->name, d->path, "name of a secret", name, e);
    if (rc == 0 && !recipe_secret_name_is_valid(out->name))
        return node_fail(d->path, name, e,
                         "a secret's name must be at most %d letters, digits, '_', '-' and '.'",
                         SECRET_NAME_MAX);
    if (rc == 0 && env)
        rc = node_text(&out->env, d->path, "env of a secret", env, e);
    if (rc == 0 && env && !env_name_is_valid(out->env))
        return node_fail(d->path, env, e, "env of a secret must be the name of a variable");
    return rc;
}

static int compare_secrets(const void *a, const void *b)
{
    const struct recipe_secret *left = a;
    const struct recipe_secret *right = b;
    return strcmp(left->name, right->name);
}

/* Two secrets of one step have neither name nor variable in common. */
static int check_distinct(const struct decoder *d, size_t index, const struct node *node,
                          struct err *e)
{
    const struct recipe_secret *own = &d->step->secrets[index];
    for (size_t i = 0; i < index; i++) {
        const struct recipe_secret *other = &d->step->secrets[i];
        if (strcmp(other->name, own->name) == 0)
            return node_fail(d->path, node, e, "secret %s is there twice", own->name);
        if (other->env && own->env && strcmp(other->env, own->env) == 0)
            return node_fail(d->path, node, e, "the variable %s has secret %s already", own->env,
                             other->name);
    }
    return 0;
}

static int read_run_secrets(struct decoder *d, const struct node *value, struct err *e)
{
    struct recipe_step *step = d->step;
    if (value->kind != NODE_SEQUENCE)
        return node_fail(d->path, value, e, "secrets must be a list");
    if (value->count > SECRETS_MAX)
        return node_fail(d->path, value, e, "more than %d secrets", SECRETS_MAX);
    step->secrets = mem_array(value->count, sizeof(*step->secrets));
    if (!step->secrets)
        return err_nomem(e, "recipe");
    step->secret_count = value->count;
    for (size_t i = 0; i < value->count; i++) {
        int rc = read_secret(&step->secrets[i], d, value->items[i], e);
        if (rc == 0)
            rc = check_distinct(d, i, value->items[i], e);
        if (rc < 0)
            return rc;
    }
    qsort(step->secrets, step->secret_count, sizeof(*step->secrets), compare_secrets);
    return 0;
}

static int read_set_workdir(struct decoder *d, const struct node *value, struct err *e)
{
    d->step->kind = RECIPE_WORKDIR;
    return read_path(&d->step->text, d, value, e);
}

static int read_set_user(struct decoder *d, const struct node *value, struct err *e)
{
    d->step->kind = RECIPE_USER;
    return recipe_read_account(&d->step->text, d, "user", value, e);
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
    {"network", read_run_network},
    {"retries", read_run_retries},
    {"backoff", read_run_backoff},
    {"secrets", read_run_secrets},
};

static const struct key set_keys[] = {
    {"env", read_set_env},      {"workdir", read_set_workdir}, {"user", read_set_user},
    {"copy", recipe_read_copy}, {"graft", recipe_read_graft},
};

static int read_step(struct decoder *d, const struct node *node, struct err *e)
{
    if (node_get(node, "run"))
        return recipe_read_mapping(d, node, "a run step", run_keys, ARRAY_LEN(run_keys), e);
    if (node->kind == NODE_MAPPING && node->count != 2)
        return node_fail(d->path, node, e,
                         "a step without run must have exactly one of env, workdir, user, copy "
                         "and graft");
    return recipe_read_mapping(d, node, "a step without run", set_keys, ARRAY_LEN(set_keys), e);
}

int recipe_read_steps(struct decoder *d, const struct node *value, struct err *e)
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
        d->step->backoff_ms = BACKOFF_MS;
        int rc = read_step(d, value->items[i], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void recipe_step_fini(struct recipe_step *step)
{
    env_free(step->env, step->env_count);
    argv_free(step->argv);
    for (size_t i = 0; i < step->secret_count; i++) {
        free(step->secrets[i].name);
        free(step->secrets[i].env);
    }
    free(step->secrets);
    recipe_files_free(step->files);
    free(step->text);
    free(step->user);
    free(step->workdir);
}

bool recipe_has_secrets(const struct recipe *r)
{
    for (size_t i = 0; i < r->step_count; i++) {
        if (r->steps[i].secret_count > 0)
            return true;
    }
    return false;
}
