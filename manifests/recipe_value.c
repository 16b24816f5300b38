/* SPDX-License-Identifier: MIT */
/*
 * Typed values of a recipe. Scalars are judged by the YAML 1.2 core schema, not by libyaml's older
 * one: only true and false are booleans, so that "no" can be a country and "on" a command.
 */
#include "manifests/internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

enum { DURATION_MAX_MS = 24 * 3600 * 1000 };

int node_fail(const char *path, const struct node *node, struct err *e, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return err_set(e, ERR_INPUT, "%s:%u:%u: %s", path, node->line, node->column, text);
}

const struct node *node_get(const struct node *mapping, const char *key)
{
    for (size_t i = 0; mapping->kind == NODE_MAPPING && i + 1 < mapping->count; i += 2) {
        if (strcmp(mapping->items[i]->text, key) == 0)
            return mapping->items[i + 1];
    }
    return NULL;
}

static bool is_one_of(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, words[i]) == 0)
            return true;
    }
    return false;
}

static bool is_null(const struct node *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    return node->plain && is_one_of(node->text, words, ARRAY_LEN(words));
}

/* A scalar that is not null; an empty one only if `may_be_empty`. */
static int check_text(const char *path, const char *key, const struct node *node, bool may_be_empty,
                      struct err *e)
{
    if (node->kind != NODE_SCALAR)
        return node_fail(path, node, e, "%s must be text, not a %s", key,
                         node->kind == NODE_MAPPING ? "mapping" : "list");
    if (is_null(node))
        return node_fail(path, node, e, "%s has no value", key);
    if (node->len == 0 && !may_be_empty)
        return node_fail(path, node, e, "%s is empty", key);
    return 0;
}

static int copy_text(char **out, const struct node *node, struct err *e)
{
    char *copy = mem_strndup(node->text, node->len);
    if (!copy)
        return err_nomem(e, "recipe");
    *out = copy;
    return 0;
}

int node_text(char **out, const char *path, const char *key, const struct node *node, struct err *e)
{
    int rc = check_text(path, key, node, false, e);
    return rc < 0 ? rc : copy_text(out, node, e);
}

int node_bool(bool *out, const char *path, const char *key, const struct node *node, struct err *e)
{
    static const char *const yes[] = {"true", "True", "TRUE"};
    static const char *const no[] = {"false", "False", "FALSE"};
    bool scalar = node->kind == NODE_SCALAR && node->plain;
    if (scalar && is_one_of(node->text, yes, ARRAY_LEN(yes)))
        *out = true;
    else if (scalar && is_one_of(node->text, no, ARRAY_LEN(no)))
        *out = false;
    else
        return node_fail(path, node, e, "%s must be true or false", key);
    return 0;
}

int node_duration(uint64_t *out_ms, const char *path, const char *key, const struct node *node,
                  struct err *e)
{
    uint64_t ms;
    if (node->kind != NODE_SCALAR || !duration_parse_ms(node->text, node->len, &ms))
        return node_fail(path, node, e,
                         "%s must be a number of seconds, or a number with ms, s, m or h", key);
    if (ms == 0 || ms > DURATION_MAX_MS)
        return node_fail(path, node, e, "%s must be more than 0 and at most 24h", key);
    *out_ms = ms;
    return 0;
}

/* False for anything but a plain number in the range. */
static bool read_number(unsigned *out, const struct node *node, struct range range)
{
    size_t digits = node->kind == NODE_SCALAR ? strspn(node->text, "0123456789") : 0;
    if (digits == 0 || digits > 9 || digits != node->len)
        return false;
    *out = (unsigned)strtoul(node->text, NULL, 10);
    return *out >= range.from && *out <= range.to;
}

int node_number(unsigned *out, const char *path, const char *key, const struct node *node,
                struct range range, struct err *e)
{
    if (read_number(out, node, range))
        return 0;
    return node_fail(path, node, e, "%s must be a number from %u to %u", key, range.from, range.to);
}

int node_port(uint16_t *out, const char *path, const char *key, const struct node *node,
              struct err *e)
{
    unsigned port = 0;
    if (!read_number(&port, node, (struct range){1, UINT16_MAX}))
        return node_fail(path, node, e, "%s must be a TCP port, from 1 to 65535", key);
    *out = (uint16_t)port;
    return 0;
}

void argv_free(char **argv)
{
    for (size_t i = 0; argv && argv[i]; i++)
        free(argv[i]);
    free(argv);
}

int node_argv(char ***out, const char *path, const char *key, const struct node *node,
              struct err *e)
{
    if (node->kind != NODE_SEQUENCE || node->count == 0)
        return node_fail(path, node, e, "%s must be text or a list of at least one text", key);
    char **argv = mem_array(node->count + 1, sizeof(*argv));
    if (!argv)
        return err_nomem(e, "recipe");
    for (size_t i = 0; i < node->count; i++) {
        int rc = check_text(path, key, node->items[i], i > 0, e);
        if (rc == 0)
            rc = copy_text(&argv[i], node->items[i], e);
        if (rc < 0) {
            argv_free(argv);
            return rc;
        }
    }
    *out = argv;
    return 0;
}

static int read_pair(struct env_pair *out, const char *path, const struct node *name,
                     const struct node *value, struct err *e)
{
    char shown[TEXT_SHOW_MAX];
    text_show(name->text, name->len, shown);
    if (!env_name_is_valid(name->text))
        return node_fail(path, name, e, "'%s' cannot name an environment variable", shown);
    int rc = check_text(path, shown, value, true, e);
    if (rc == 0)
        rc = copy_text(&out->name, name, e);
    if (rc == 0)
        rc = copy_text(&out->value, value, e);
    return rc;
}

int node_env(struct env_pair **out, size_t *count, const char *path, const struct node *node,
             struct err *e)
{
    if (node->kind != NODE_MAPPING)
        return node_fail(path, node, e, "env must be a mapping of names to values");
    size_t pairs = node->count / 2;
    struct env_pair *env = mem_array(pairs, sizeof(*env));
    if (!env)
        return err_nomem(e, "recipe");
    for (size_t i = 0; i < pairs; i++) {
        int rc = read_pair(&env[i], path, node->items[2 * i], node->items[2 * i + 1], e);
        if (rc < 0) {
            env_free(env, pairs);
            return rc;
        }
    }
    env_sort(env, pairs);
    *out = env;
    *count = pairs;
    return 0;
}
