/* SPDX-License-Identifier: MIT */
/*
 * What task.toml says of running the task's own solution and tests (docs/formats/task-toml.md): time
 * limits, users and variables of [agent], [solution] and [verifier]. Keys that are not named here are
 * ignored, but those that ask for another course of things than one script after the other are
 * refused: a pass would say nothing.
 */
#include "manifests/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"

enum { SECONDS_MAX = 30 * 24 * 3600, TIMEOUT_DEFAULT_MS = 600000, VARIABLES_MAX = 1000 };

/* *out is NULL where the document has no such table. */
static int find_table(const char *path, const struct toml *document, const char *name,
                      const struct toml **out, struct err *e)
{
    const struct toml *table = toml_get(document, name);
    if (table && toml_type(table) != TOML_TABLE)
        return toml_fail(table, path, ERR_INPUT, e, "%s must be a table", name);
    *out = table;
    return 0;
}

static int read_text(const char *path, const struct toml *value, const char *what, const char **out,
                     struct err *e)
{
    size_t len = 0;
    const char *text = toml_type(value) == TOML_STRING ? toml_string(value, &len) : NULL;
    if (!text || strlen(text) != len)
        return toml_fail(value, path, ERR_INPUT, e, "%s must be a string without NUL", what);
    *out = text;
    return 0;
}

static int read_timeout(const char *path, const struct toml *table, uint64_t *out_ms, struct err *e)
{
    const struct toml *value = table ? toml_get(table, "timeout_sec") : NULL;
    double seconds = 0;
    if (!value)
        return 0;
    if (toml_type(value) == TOML_INTEGER)
        seconds = (double)toml_integer(value);
    else if (toml_type(value) == TOML_FLOAT)
        seconds = toml_float(value);
    if (!(seconds > 0 && seconds <= SECONDS_MAX))
        return toml_fail(value, path, ERR_INPUT, e,
                         "timeout_sec must be a number above 0, of at most %d", SECONDS_MAX);
    double ms = seconds * 1000;
    *out_ms = (uint64_t)ms;
    *out_ms += (double)*out_ms < ms;
    return 0;
}

static int read_user(const char *path, const struct toml *table, char **out, struct err *e)
{
    const struct toml *value = table ? toml_get(table, "user") : NULL;
    if (!value)
        return 0;
    if (toml_type(value) == TOML_INTEGER && toml_integer(value) >= 0) {
        *out = mem_printf("%lld", (long long)toml_integer(value));
    } else {
        const char *text = NULL;
        int rc = read_text(path, value, "user", &text, e);
        if (rc < 0)
            return rc;
        *out = mem_strdup(text);
    }
    return *out ? 0 : err_nomem(e, "task");
}

/* ---- Variables ---- */

static void variables_free(struct trial_variable *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(list[i].name);
        free(list[i].value);
        free(list[i].host);
    }
    free(list);
}

/* "${NAME}" and "${NAME:-default}", as a whole; anything else is literal. */
static int set_value(struct trial_variable *v, const char *text, struct err *e)
{
    size_t len = strlen(text);
    bool whole = len >= 4 && strncmp(text, "${", 2) == 0 && text[len - 1] == '}';
    size_t name = whole ? strcspn(text + 2, ":}") : 0;
    if (name == 0 || (2 + name != len - 1 && strncmp(text + 2 + name, ":-", 2) != 0)) {
        v->value = mem_strdup(text);
        return v->value ? 0 : err_nomem(e, "task");
    }
    v->host = mem_strndup(text + 2, name);
    if (2 + name != len - 1)
        v->value = mem_strndup(text + 4 + name, len - 5 - name);
    return v->host && (v->value || 2 + name == len - 1) ? 0 : err_nomem(e, "task");
}

static int read_variables(const char *path, const struct toml *table, struct trial_variable **out,
                          size_t *count, struct err *e)
{
    const struct toml *env = table ? toml_get(table, "env") : NULL;
    if (!env)
        return 0;
    if (toml_type(env) != TOML_TABLE || toml_length(env) > VARIABLES_MAX)
        return toml_fail(env, path, ERR_INPUT, e, "env must be a table of at most %d strings",
                         VARIABLES_MAX);
    *out = mem_array(toml_length(env) + 1, sizeof(**out));
    if (!*out)
        return err_nomem(e, "task");
    for (size_t i = 0; i < toml_length(env); i++) {
        struct trial_variable *v = &(*out)[(*count)++];
        const char *name = toml_key_at(env, i);
        const char *text = NULL;
        if (!env_name_is_valid(name) || strlen(name) != env->keys[i].len)
            return toml_fail(toml_at(env, i), path, ERR_INPUT, e,
                             "a key of env cannot name a variable");
        int rc = read_text(path, toml_at(env, i), "a value of env", &text, e);
        if (rc < 0)
            return rc;
        v->name = mem_strdup(name);
        if (!v->name)
            return err_nomem(e, "task");
        rc = set_value(v, text, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- The document ---- */

static int check_course(const char *path, const struct toml *document, const struct toml *verifier,
                        struct err *e)
{
    const struct toml *steps = toml_get(document, "steps");
    if (steps && toml_length(steps) > 0)
        return toml_fail(steps, path, ERR_UNSUPPORTED, e,
                         "a task of several [[steps]] cannot be replayed");
    const struct toml *mode = verifier ? toml_get(verifier, "environment_mode") : NULL;
    const char *text = mode ? toml_string(mode, NULL) : NULL;
    if (mode && (!text || strcmp(text, "shared") != 0))
        return toml_fail(mode, path, ERR_UNSUPPORTED, e,
                         "a task whose tests run in a machine of their own cannot be replayed");
    const struct toml *collect = verifier ? toml_get(verifier, "collect") : NULL;
    if (collect && toml_length(collect) > 0)
        return toml_fail(collect, path, ERR_UNSUPPORTED, e,
                         "a task with [[verifier.collect]] cannot be replayed");
    return 0;
}

int task_trial_parse(struct task_trial **out, const char *path, const void *text, size_t len,
                     struct err *e)
{
    AUTO_TOML struct toml *document = NULL;
    AUTO_TASK_TRIAL struct task_trial *t = mem_zalloc(sizeof(*t));
    const struct toml *agent = NULL;
    const struct toml *solution = NULL;
    const struct toml *verifier = NULL;
    const struct toml *environment = NULL;
    if (!t)
        return err_nomem(e, "task");
    t->solve.timeout_ms = TIMEOUT_DEFAULT_MS;
    t->test.timeout_ms = TIMEOUT_DEFAULT_MS;
    int rc = toml_parse(&document, text, len, path, e);
    if (rc == 0)
        rc = find_table(path, document, "agent", &agent, e);
    if (rc == 0)
        rc = find_table(path, document, "solution", &solution, e);
    if (rc == 0)
        rc = find_table(path, document, "verifier", &verifier, e);
    if (rc == 0)
        rc = find_table(path, document, "environment", &environment, e);
    if (rc == 0)
        rc = check_course(path, document, verifier, e);
    if (rc == 0)
        rc = read_timeout(path, agent, &t->solve.timeout_ms, e);
    if (rc == 0)
        rc = read_timeout(path, verifier, &t->test.timeout_ms, e);
    if (rc == 0)
        rc = read_user(path, agent, &t->solve.user, e);
    if (rc == 0)
        rc = read_user(path, verifier, &t->test.user, e);
    if (rc == 0)
        rc = read_variables(path, solution, &t->solve.env, &t->solve.env_count, e);
    if (rc == 0)
        rc = read_variables(path, verifier, &t->test.env, &t->test.env_count, e);
    if (rc == 0)
        rc = read_variables(path, environment, &t->env, &t->env_count, e);
    if (rc == 0)
        *out = MOVE(t);
    return rc;
}

int task_trial_load(struct task_trial **out, const char *directory, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/task.toml", directory);
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TASK_TOML);
    if (!path)
        return err_nomem(e, "task");
    int rc = file_read(AT_FDCWD, path, &text, e);
    return rc < 0 ? rc : task_trial_parse(out, path, text.data, text.len, e);
}

void task_trial_free(struct task_trial *t)
{
    if (!t)
        return;
    free(t->solve.user);
    free(t->test.user);
    variables_free(t->solve.env, t->solve.env_count);
    variables_free(t->test.env, t->test.env_count);
    variables_free(t->env, t->env_count);
    free(t);
}
