/* SPDX-License-Identifier: MIT */
/*
 * task.toml to struct task (docs/formats/task-toml.md).
 *
 * Only [environment] is looked at: other tables use the same key names for other machines. One
 * table names the known keys; what it does not name is ignored, since harnesses add keys all the
 * time. Each amount is read as written first and raised to the floor last, so that two spellings of
 * it are compared before the floor can hide a difference.
 */
#include "manifests/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

enum { CPUS_MAX = 1024, SIZE_MB_MAX = 16 * 1024 * 1024, SECONDS_MAX = 30 * 24 * 3600 };

/* An amount that has two spellings: memory_mb = 2048, memory = "2G". */
struct amount {
    const char *mb_key;
    const char *text_key;
    const struct toml *mb_value; /* NULL: not given */
    const struct toml *text_value;
    double mb;
    uint64_t text_mb;
};

struct reader {
    const char *path;
    struct task *task;
    double cpus;
    struct amount memory;
    struct amount storage;
    const struct toml *internet_value;
};

/* A string value as it may stand in a message. */
static const char *show(const struct toml *value, char shown[TEXT_SHOW_MAX])
{
    size_t len;
    const char *text = toml_string(value, &len);
    return text_show(text, len, shown);
}

/* A number of read_number, to the next whole one. */
static uint64_t round_up(double number)
{
    uint64_t whole = (uint64_t)number;
    return (double)whole < number ? whole + 1 : whole;
}

/* ---- Values -------------------------------------------------------------------------------- */

/* A finite number from 0 to `high`. */
static int read_number(const struct reader *r, const char *key, const struct toml *value,
                       double high, double *out, struct err *e)
{
    double number;
    if (toml_type(value) == TOML_INTEGER)
        number = (double)toml_integer(value);
    else if (toml_type(value) == TOML_FLOAT)
        number = toml_float(value);
    else
        return toml_fail(value, r->path, ERR_INPUT, e, "%s must be a number", key);
    if (!(number >= 0 && number <= high))
        return toml_fail(value, r->path, ERR_INPUT, e, "%s must be from 0 to %.0f", key, high);
    *out = number;
    return 0;
}

static int read_text(const struct reader *r, const char *key, const struct toml *value,
                     const char **out, struct err *e)
{
    size_t len;
    if (toml_type(value) != TOML_STRING)
        return toml_fail(value, r->path, ERR_INPUT, e, "%s must be a string", key);
    const char *text = toml_string(value, &len);
    if (strlen(text) != len)
        return toml_fail(value, r->path, ERR_INPUT, e, "%s holds a NUL character", key);
    *out = text;
    return 0;
}

static int read_image(struct reader *r, const struct toml *value, struct err *e)
{
    const char *text;
    int rc = read_text(r, "docker_image", value, &text, e);
    if (rc < 0)
        return rc;
    if (text[strspn(text, " \t\r\n")] == '\0')
        return toml_fail(value, r->path, ERR_INPUT, e, "docker_image is empty");
    r->task->image = mem_strdup(text);
    return r->task->image ? 0 : err_nomem(e, "docker_image");
}

static int read_cpus(struct reader *r, const struct toml *value, struct err *e)
{
    size_t len;
    char shown[TEXT_SHOW_MAX];
    if (toml_type(value) != TOML_STRING)
        return read_number(r, "cpus", value, CPUS_MAX, &r->cpus, e);
    const char *text = toml_string(value, &len);
    if (!decimal_parse(text, len, &r->cpus) || r->cpus > CPUS_MAX)
        return toml_fail(value, r->path, ERR_INPUT, e,
                         "cpus = \"%s\" must be a number from 0 to %d", show(value, shown),
                         CPUS_MAX);
    return 0;
}

static int read_amount_mb(struct reader *r, struct amount *a, const struct toml *value,
                          struct err *e)
{
    if (toml_type(value) == TOML_STRING)
        return toml_fail(value, r->path, ERR_INPUT, e,
                         "%s must be a number of megabytes; sizes with a unit go into %s",
                         a->mb_key, a->text_key);
    a->mb_value = value;
    return read_number(r, a->mb_key, value, SIZE_MB_MAX, &a->mb, e);
}

static int read_amount_text(struct reader *r, struct amount *a, const struct toml *value,
                            struct err *e)
{
    size_t len = 0;
    char shown[TEXT_SHOW_MAX];
    const char *text = toml_type(value) == TOML_STRING ? toml_string(value, &len) : NULL;
    if (!text)
        return toml_fail(
            value, r->path, ERR_INPUT, e,
            "%s must be a string with a unit, such as \"2G\"; plain megabytes go into %s",
            a->text_key, a->mb_key);
    if (!size_parse_mb(text, len, &a->text_mb))
        return toml_fail(value, r->path, ERR_INPUT, e,
                         "%s = \"%s\" must be a number followed by K, M or G, such as \"2G\", "
                         "\"1.5G\" or \"512M\"",
                         a->text_key, show(value, shown));
    if (a->text_mb > SIZE_MB_MAX)
        return toml_fail(value, r->path, ERR_INPUT, e, "%s = \"%s\" is more than %d MB",
                         a->text_key, show(value, shown), SIZE_MB_MAX);
    a->text_value = value;
    return 0;
}

static int read_memory_mb(struct reader *r, const struct toml *value, struct err *e)
{
    return read_amount_mb(r, &r->memory, value, e);
}

static int read_memory(struct reader *r, const struct toml *value, struct err *e)
{
    return read_amount_text(r, &r->memory, value, e);
}

static int read_storage_mb(struct reader *r, const struct toml *value, struct err *e)
{
    return read_amount_mb(r, &r->storage, value, e);
}

static int read_storage(struct reader *r, const struct toml *value, struct err *e)
{
    return read_amount_text(r, &r->storage, value, e);
}

static int read_timeout(struct reader *r, const struct toml *value, struct err *e)
{
    double seconds;
    int rc = read_number(r, "build_timeout_sec", value, SECONDS_MAX, &seconds, e);
    if (rc < 0)
        return rc;
    r->task->build_timeout_ms = round_up(seconds * 1000);
    if (r->task->build_timeout_ms == 0)
        return toml_fail(value, r->path, ERR_INPUT, e, "build_timeout_sec must be more than 0");
    return 0;
}

static int set_internet(struct reader *r, const struct toml *value, bool allowed, struct err *e)
{
    if (r->internet_value && r->task->allow_internet != allowed)
        return toml_fail(
            value, r->path, ERR_INPUT, e,
            "allow_internet and network_mode say different things; the other is in line %u",
            toml_line(r->internet_value));
    r->internet_value = value;
    r->task->allow_internet = allowed;
    return 0;
}

static int read_internet(struct reader *r, const struct toml *value, struct err *e)
{
    if (toml_type(value) != TOML_BOOL)
        return toml_fail(value, r->path, ERR_INPUT, e, "allow_internet must be true or false");
    return set_internet(r, value, toml_bool(value), e);
}

static int read_network_mode(struct reader *r, const struct toml *value, struct err *e)
{
    const char *text;
    int rc = read_text(r, "network_mode", value, &text, e);
    if (rc < 0)
        return rc;
    if (strcmp(text, "public") == 0 || strcmp(text, "no-network") == 0)
        return set_internet(r, value, text[0] == 'p', e);
    char shown[TEXT_SHOW_MAX];
    return toml_fail(value, r->path, ERR_UNSUPPORTED, e,
                     "network_mode = \"%s\" is not supported, only \"public\" and \"no-network\"",
                     show(value, shown));
}

static int read_gpus(struct reader *r, const struct toml *value, struct err *e)
{
    double count;
    int rc = read_number(r, "gpus", value, 1e6, &count, e);
    if (rc == 0 && count > 0)
        return toml_fail(value, r->path, ERR_UNSUPPORTED, e,
                         "the task asks for gpus = %g; microVMs have no GPU", count);
    return rc;
}

static int read_os(struct reader *r, const struct toml *value, struct err *e)
{
    const char *text;
    char shown[TEXT_SHOW_MAX];
    int rc = read_text(r, "os", value, &text, e);
    if (rc == 0 && strcmp(text, "linux") != 0)
        return toml_fail(value, r->path, ERR_UNSUPPORTED, e,
                         "os = \"%s\" is not supported, only \"linux\"", show(value, shown));
    return rc;
}

/* ---- [environment.env] --------------------------------------------------------------------- */

/* "${NAME}" or "${NAME:-default}", as a whole. */
static bool is_host_reference(const char *text)
{
    size_t len = strlen(text);
    if (len < 4 || text[0] != '$' || text[1] != '{' || text[len - 1] != '}')
        return false;
    size_t name = strcspn(text + 2, ":}");
    return name > 0 && (2 + name == len - 1 || strncmp(text + 2 + name, ":-", 2) == 0);
}

static int add_host_env(struct task *t, const char *name, struct err *e)
{
    char *copy = mem_strdup(name);
    if (!copy)
        return err_nomem(e, "environment");
    t->host_env[t->host_env_count++] = copy;
    return 0;
}

static int add_env(struct task *t, const char *name, const char *value, struct err *e)
{
    if (is_host_reference(value))
        return add_host_env(t, name, e);
    struct env_pair *pair = &t->env[t->env_count++];
    pair->name = mem_strdup(name);
    pair->value = mem_strdup(value);
    return pair->name && pair->value ? 0 : err_nomem(e, "environment");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int read_env(struct reader *r, const struct toml *value, struct err *e)
{
    struct task *t = r->task;
    if (toml_type(value) != TOML_TABLE)
        return toml_fail(value, r->path, ERR_INPUT, e,
                         "environment.env must be a table of strings");
    size_t count = toml_length(value);
    t->env = mem_array(count, sizeof(*t->env));
    t->host_env = mem_array(count, sizeof(*t->host_env));
    if (!t->env || !t->host_env)
        return err_nomem(e, "environment");
    for (size_t i = 0; i < count; i++) {
        const char *name = toml_key_at(value, i);
        const char *text;
        char shown[TEXT_SHOW_MAX];
        if (!env_name_is_valid(name) || strlen(name) != value->keys[i].len)
            return toml_fail(toml_at(value, i), r->path, ERR_INPUT, e,
                             "environment.env: '%s' cannot name a variable",
                             text_show(name, strlen(name), shown));
        int rc = read_text(r, "a value of environment.env", toml_at(value, i), &text, e);
        if (rc == 0)
            rc = add_env(t, name, text, e);
        if (rc < 0)
            return rc;
    }
    env_sort(t->env, t->env_count);
    if (t->host_env_count > 1)
        qsort(t->host_env, t->host_env_count, sizeof(*t->host_env), compare_names);
    return 0;
}

/* ---- [environment] ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*read)(struct reader *r, const struct toml *value, struct err *e);
} keys[] = {
    {"docker_image", read_image},
    {"cpus", read_cpus},
    {"memory_mb", read_memory_mb},
    {"memory", read_memory},
    {"storage_mb", read_storage_mb},
    {"storage", read_storage},
    {"build_timeout_sec", read_timeout},
    {"allow_internet", read_internet},
    {"network_mode", read_network_mode},
    {"gpus", read_gpus},
    {"os", read_os},
    {"env", read_env},
};

static int read_key(struct reader *r, const struct toml_key *key, const struct toml *value,
                    struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        size_t len = strlen(keys[i].name); /* a quoted key may hold NUL */
        if (key->len == len && memcmp(keys[i].name, key->text, len) == 0)
            return keys[i].read(r, value, e);
    }
    log_event(LOG_DEBUG, "manifests", "%s:%u: environment.%s is ignored", r->path, toml_line(value),
              key->text);
    return 0;
}

/* The amount in whole megabytes, not below `floor_mb`. */
static int settle_amount(const struct reader *r, const struct amount *a, uint64_t floor_mb,
                         uint64_t *out, struct err *e)
{
    uint64_t mb = a->mb_value ? round_up(a->mb) : a->text_value ? a->text_mb : 0;
    char shown[TEXT_SHOW_MAX];
    if (a->mb_value && a->text_value && mb != a->text_mb)
        return toml_fail(a->text_value, r->path, ERR_INPUT, e,
                         "%s = \"%s\" is %" PRIu64 " MB, but %s = %g in line %u: keep one of them",
                         a->text_key, show(a->text_value, shown), a->text_mb, a->mb_key, a->mb,
                         toml_line(a->mb_value));
    *out = mb > floor_mb ? mb : floor_mb;
    return 0;
}

static int settle(struct reader *r, struct err *e)
{
    enum { MEMORY_FLOOR_MB = 2048, STORAGE_FLOOR_MB = 10240 };
    struct task *t = r->task;
    t->cpus = r->cpus > 1 ? (uint32_t)round_up(r->cpus) : 1;
    t->alias_cpus = r->cpus > 1 ? (uint64_t)r->cpus : 1;
    int rc = settle_amount(r, &r->memory, MEMORY_FLOOR_MB, &t->memory_mb, e);
    if (rc == 0)
        rc = settle_amount(r, &r->storage, STORAGE_FLOOR_MB, &t->storage_mb, e);
    t->alias_memory_mb = MEMORY_FLOOR_MB;
    if (r->memory.mb_value && r->memory.mb > MEMORY_FLOOR_MB)
        t->alias_memory_mb = (uint64_t)r->memory.mb;
    return rc;
}

static int read_environment(struct reader *r, const struct toml *document, struct err *e)
{
    const struct toml *environment = toml_get(document, "environment");
    if (environment && toml_type(environment) != TOML_TABLE)
        return toml_fail(environment, r->path, ERR_INPUT, e, "environment must be a table");
    for (size_t i = 0; environment && i < toml_length(environment); i++) {
        int rc = read_key(r, &environment->keys[i], toml_at(environment, i), e);
        if (rc < 0)
            return rc;
    }
    if (!r->task->image) {
        err_set(e, ERR_INPUT, "%s: [environment] has no docker_image", r->path);
        return err_hint(e, "name the task's image there: docker_image = \"registry/name:tag\"");
    }
    return settle(r, e);
}

int task_parse(struct task **out, const char *name, const char *path, const void *text, size_t len,
               struct err *e)
{
    AUTO_TOML struct toml *document = NULL;
    int rc = toml_parse(&document, text, len, path, e);
    if (rc < 0)
        return rc;
    AUTO_TASK struct task *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "task");
    t->name = mem_strdup(name);
    if (!t->name)
        return err_nomem(e, "task");
    t->allow_internet = true;
    t->build_timeout_ms = 600000;
    struct reader r = {.path = path,
                       .task = t,
                       .memory = {.mb_key = "memory_mb", .text_key = "memory"},
                       .storage = {.mb_key = "storage_mb", .text_key = "storage"}};
    rc = read_environment(&r, document, e);
    if (rc < 0)
        return rc;
    *out = MOVE(t);
    return 0;
}

void task_free(struct task *t)
{
    if (!t)
        return;
    env_free(t->env, t->env_count);
    for (size_t i = 0; i < t->host_env_count; i++)
        free(t->host_env[i]);
    free(t->host_env);
    free(t->name);
    free(t->directory);
    free(t->image);
    free(t->user);
    free(t);
}
