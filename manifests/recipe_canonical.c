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
    return object;
}

static struct json *step_object(const struct recipe_step *step)
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
        json_append(steps, step_object(&r->steps[i]));
    json_set(object, "steps", steps);
    json_set(object, "network",
             json_new_string(r->network == RECIPE_NETWORK_NONE ? "none" : "user"));
    json_set(object, "pipefail", json_new_bool(r->pipefail));
    if (r->start)
        json_set(object, "start", json_new_string(r->start));
    if (r->ready.kind != RECIPE_READY_NONE)
        json_set(object, "ready", ready_object(&r->ready));
    return object;
}
