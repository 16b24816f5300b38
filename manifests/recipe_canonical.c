/* SPDX-License-Identifier: MIT */
/*
 * The part of a recipe that decides what a finished template holds. The name and the limits on time
 * are not in it: they decide whether a bake succeeds, not what it makes.
 */
#include "manifests/internal.h"

static struct json *env_object(const struct env_pair *env, size_t count)
{
    struct json *object = json_new_object();
    for (size_t i = 0; object && i < count; i++)
        json_set(object, env[i].name, json_new_string(env[i].value));
    return object;
}

static struct json *argv_array(char *const *argv)
{
    struct json *array = json_new_array();
    for (size_t i = 0; array && argv[i]; i++)
        json_append(array, json_new_string(argv[i]));
    return array;
}

/* The names alone: a value is no input that may be kept. */
static struct json *secrets_array(const struct recipe_step *step)
{
    struct json *array = json_new_array();
    for (size_t i = 0; array && i < step->secret_count; i++) {
        struct json *secret = json_new_object();
        if (!secret) {
            json_free(array);
            return NULL;
        }
        json_set(secret, "name", json_new_string(step->secrets[i].name));
        if (step->secrets[i].env)
            json_set(secret, "env", json_new_string(step->secrets[i].env));
        json_append(array, secret);
    }
    return array;
}

static struct json *files_object(const struct recipe_step *step)
{
    static const char *const names[] = {[RECIPE_SOURCE_DIRECTORY] = "directory",
                                        [RECIPE_SOURCE_TARBALL] = "tarball",
                                        [RECIPE_SOURCE_IMAGE] = "image"};
    const struct recipe_files *f = step->files;
    bool copy = step->kind == RECIPE_COPY;
    char text[DIGEST_TEXT_MAX];
    struct json *object = json_new_object();
    if (!object)
        return NULL;
    json_set(object, copy ? "from" : names[f->source],
             json_new_string(f->has_content ? digest_print(&f->content, text) : f->from));
    json_set(object, copy ? "to" : "at", json_new_string(f->to));
    if (f->owner)
        json_set(object, "owner", json_new_string(f->owner));
    if (f->has_mode)
        json_set(object, "mode", json_new_integer(f->mode));
    if (f->excludes && !f->has_content)
        json_set(object, "exclude", argv_array(f->excludes));
    return object;
}

static struct json *run_object(const struct recipe_step *step)
{
    struct json *object = json_new_object();
    if (!object)
        return NULL;
    json_set(object, "run", step->argv ? argv_array(step->argv) : json_new_string(step->text));
    if (step->user)
        json_set(object, "user", json_new_string(step->user));
    if (step->workdir)
        json_set(object, "workdir", json_new_string(step->workdir));
    if (step->env_count > 0)
        json_set(object, "env", env_object(step->env, step->env_count));
    if (step->no_network)
        json_set(object, "network", json_new_string("none"));
    if (step->secret_count > 0)
        json_set(object, "secrets", secrets_array(step));
    return object;
}

struct json *recipe_step_canonical(const struct recipe_step *step)
{
    struct json *object = step->kind == RECIPE_RUN ? run_object(step) : json_new_object();
    if (!object)
        return NULL;
    switch (step->kind) {
    case RECIPE_RUN:
        break;
    case RECIPE_ENV:
        json_set(object, "env", env_object(step->env, step->env_count));
        break;
    case RECIPE_WORKDIR:
        json_set(object, "workdir", json_new_string(step->text));
        break;
    case RECIPE_USER:
        json_set(object, "user", json_new_string(step->text));
        break;
    case RECIPE_COPY:
        json_set(object, "copy", files_object(step));
        break;
    case RECIPE_GRAFT:
        json_set(object, "graft", files_object(step));
        break;
    }
    return object;
}

static struct json *ready_object(const struct recipe_ready *ready)
{
    struct json *object = json_new_object();
    if (!object)
        return NULL;
    if (ready->kind == RECIPE_READY_COMMAND)
        json_set(object, "command", json_new_string(ready->command));
    if (ready->kind == RECIPE_READY_PORT)
        json_set(object, "port", json_new_integer(ready->port));
    if (ready->kind == RECIPE_READY_HTTP) {
        struct json *http = json_new_object();
        json_set(http, "port", json_new_integer(ready->port));
        json_set(http, "path", json_new_string(ready->http_path));
        if (ready->http_status != 0)
            json_set(http, "status", json_new_integer(ready->http_status));
        json_set(object, "http", http);
    }
    return object;
}

struct json *recipe_canonical(const struct recipe *r)
{
    struct json *object = json_new_object();
    struct json *steps = json_new_array();
    if (!object || !steps) {
        json_free(object);
        json_free(steps);
        return NULL;
    }
    for (size_t i = 0; i < r->step_count; i++)
        json_append(steps, recipe_step_canonical(&r->steps[i]));
    json_set(object, "steps", steps);
    json_set(object, "network", json_new_string(recipe_network_name(r->network)));
    json_set(object, "pipefail", json_new_bool(r->pipefail));
    if (r->start)
        json_set(object, "start", json_new_string(r->start));
    if (r->ready.kind != RECIPE_READY_NONE)
        json_set(object, "ready", ready_object(&r->ready));
    return object;
}
