/* SPDX-License-Identifier: MIT */
/*
 * JSON over jansson. `struct json` is json_t under another name: the pointer is only ever converted
 * here, so no caller depends on the library. A builder whose memory ran short marks nothing: its
 * NULL travels into json_set/json_append, which then poison the container, and json_print reports
 * it.
 */
#include "base/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

/*
 * A text that marks what holds it as incomplete: it is no UTF-8, so it comes from no text that was
 * parsed, and jansson prints nothing that holds it.
 */
static const char poison[] = "\xff";

static json_t *in(const struct json *j)
{
    json_t *out;
    memcpy(&out, &j, sizeof(out)); /* jansson's getters take non-const pointers */
    return out;
}

static struct json *wrap(json_t *j)
{
    return (struct json *)(void *)j;
}

int json_parse(struct json **out, const void *text, size_t len, const char *what, struct err *e)
{
    json_error_t error;
    if (len == 0)
        return err_set(e, ERR_CORRUPT, "%s: it is empty", what);
    json_t *j = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!j && json_error_code(&error) == json_error_out_of_memory)
        return err_nomem(e, what);
    if (!j)
        return err_set(e, ERR_CORRUPT, "%s: line %d, column %d: %s", what, error.line, error.column,
                       error.text);
    *out = wrap(j);
    return 0;
}

void json_free(struct json *j)
{
    json_decref(in(j));
}

enum json_kind json_kind(const struct json *j)
{
    switch (json_typeof(in(j))) {
    case JSON_OBJECT:
        return JSON_KIND_OBJECT;
    case JSON_ARRAY:
        return JSON_KIND_ARRAY;
    case JSON_STRING:
        return JSON_KIND_STRING;
    case JSON_INTEGER:
        return JSON_KIND_INTEGER;
    case JSON_REAL:
        return JSON_KIND_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_KIND_BOOL;
    case JSON_NULL:
        break;
    }
    return JSON_KIND_NULL;
}

struct json *json_member(const struct json *j, const char *key)
{
    return wrap(json_object_get(in(j), key));
}

static const char *kind_name(enum json_kind kind)
{
    static const char *const names[] = {"an object",     "an array",  "a string", "an integer",
                                        "a real number", "a boolean", "null"};
    return names[kind];
}

/* The member, which must be of the kind wanted; absent or null gives NULL, if `optional`. */
static int member_of_kind(const struct json *j, const char *key, enum json_kind kind, bool optional,
                          struct json **out, struct err *e)
{
    if (!j || json_kind(j) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "an object with '%s' was expected", key);
    struct json *member = json_member(j, key);
    if (!member || json_kind(member) == JSON_KIND_NULL) {
        *out = NULL;
        return optional ? 0 : err_set(e, ERR_CORRUPT, "'%s' is missing", key);
    }
    if (json_kind(member) != kind)
        return err_set(e, ERR_CORRUPT, "'%s' is %s, not %s", key, kind_name(json_kind(member)),
                       kind_name(kind));
    *out = member;
    return 0;
}

int json_get_object(const struct json *j, const char *key, struct json **out, struct err *e)
{
    return member_of_kind(j, key, JSON_KIND_OBJECT, false, out, e);
}

int json_get_array(const struct json *j, const char *key, struct json **out, struct err *e)
{
    return member_of_kind(j, key, JSON_KIND_ARRAY, false, out, e);
}

int json_get_object_opt(const struct json *j, const char *key, struct json **out, struct err *e)
{
    return member_of_kind(j, key, JSON_KIND_OBJECT, true, out, e);
}

int json_get_array_opt(const struct json *j, const char *key, struct json **out, struct err *e)
{
    return member_of_kind(j, key, JSON_KIND_ARRAY, true, out, e);
}

int json_get_string(const struct json *j, const char *key, const char **out, struct err *e)
{
    struct json *member;
    int rc = member_of_kind(j, key, JSON_KIND_STRING, false, &member, e);
    if (rc == 0)
        *out = json_as_string(member);
    return rc;
}

int json_get_string_opt(const struct json *j, const char *key, const char **out, struct err *e)
{
    struct json *member;
    int rc = member_of_kind(j, key, JSON_KIND_STRING, true, &member, e);
    if (rc == 0)
        *out = member ? json_as_string(member) : NULL;
    return rc;
}

static int to_u64(const struct json *member, const char *key, uint64_t *out, struct err *e)
{
    int64_t value = json_as_integer(member);
    if (value < 0)
        return err_set(e, ERR_CORRUPT, "'%s' is negative", key);
    *out = (uint64_t)value;
    return 0;
}

int json_get_u64(const struct json *j, const char *key, uint64_t *out, struct err *e)
{
    struct json *member;
    int rc = member_of_kind(j, key, JSON_KIND_INTEGER, false, &member, e);
    return rc < 0 ? rc : to_u64(member, key, out, e);
}

int json_get_u64_opt(const struct json *j, const char *key, uint64_t fallback, uint64_t *out,
                     struct err *e)
{
    struct json *member;
    int rc = member_of_kind(j, key, JSON_KIND_INTEGER, true, &member, e);
    if (rc < 0)
        return rc;
    if (member)
        return to_u64(member, key, out, e);
    *out = fallback;
    return 0;
}

int json_get_bool_opt(const struct json *j, const char *key, bool fallback, bool *out,
                      struct err *e)
{
    struct json *member;
    int rc = member_of_kind(j, key, JSON_KIND_BOOL, true, &member, e);
    if (rc == 0)
        *out = member ? json_is_true(in(member)) : fallback;
    return rc;
}

size_t json_length(const struct json *j)
{
    return json_array_size(in(j));
}

struct json *json_element(const struct json *j, size_t index)
{
    return wrap(json_array_get(in(j), index));
}

const char *json_as_string(const struct json *j)
{
    return json_string_value(in(j));
}

int64_t json_as_integer(const struct json *j)
{
    return (int64_t)json_integer_value(in(j));
}

static int compare_keys(const void *a, const void *b)
{
    const char *const *left = a;
    const char *const *right = b;
    return strcmp(*left, *right);
}

int json_each(const struct json *j,
              int (*visit)(void *ctx, const char *key, struct json *value, struct err *e),
              void *ctx, struct err *e)
{
    size_t count = json_object_size(in(j));
    AUTO_FREE const char **keys = mem_array(count, sizeof(*keys));
    if (!keys)
        return err_nomem(e, "object");
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(in(j), key, value)
    {
        keys[n++] = key;
    }
    qsort(keys, n, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < n; i++) {
        int rc = visit(ctx, keys[i], json_member(j, keys[i]), e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

struct json *json_new_object(void)
{
    return wrap(json_object());
}

struct json *json_new_array(void)
{
    return wrap(json_array());
}

struct json *json_new_string(const char *text)
{
    json_t *plain = json_string(text);
    if (plain)
        return wrap(plain);
    size_t len = strlen(text);
    AUTO_FREE char *fixed = mem_array(len + 1, 3);
    if (!fixed)
        return NULL;
    size_t to = 0;
    for (size_t from = 0; from < len;) {
        size_t n = utf8_sequence((const uint8_t *)text + from, len - from);
        memcpy(fixed + to, n > 0 ? text + from : "\xef\xbf\xbd", n > 0 ? n : 3);
        to += n > 0 ? n : 3;
        from += n > 0 ? n : 1;
    }
    return wrap(json_stringn(fixed, to));
}

struct json *json_bytes(const void *bytes, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = bytes;
    AUTO_FREE char *text = mem_array(len + 1, 4);
    if (!text)
        return NULL;
    size_t to = 0;
    for (size_t i = 0; i < len;) {
        size_t n = utf8_sequence(from + i, len - i);
        if (n > 0 && from[i] >= 0x20 && from[i] != 0x7f && from[i] != '\\') {
            memcpy(text + to, from + i, n);
            to += n;
            i += n;
            continue;
        }
        const char escape[] = {'\\', 'x', digits[from[i] >> 4], digits[from[i] & 15]};
        memcpy(text + to, escape, sizeof(escape));
        to += sizeof(escape);
        i++;
    }
    return wrap(json_stringn(text, to));
}

bool json_as_number(const struct json *j, double *out)
{
    if (!json_is_number(in(j)))
        return false;
    *out = json_number_value(in(j));
    return true;
}

struct json *json_new_number(double value)
{
    double limit = 9007199254740992.0; /* 2^53: integers up to it are exact */
    if (value >= -limit && value <= limit && (double)(int64_t)value == value)
        return wrap(json_integer((int64_t)value));
    return wrap(json_real(value));
}

struct json *json_new_integer(int64_t value)
{
    return wrap(json_integer(value));
}

struct json *json_new_bool(bool value)
{
    return wrap(json_boolean(value));
}

struct json *json_clone(const struct json *j)
{
    return wrap(json_deep_copy(in(j)));
}

void json_set(struct json *object, const char *key, struct json *value)
{
    if (!object)
        json_free(value);
    else if (!value || json_object_set_new(in(object), key, in(value)) < 0)
        (void)json_object_set_new_nocheck(in(object), poison, json_string_nocheck(poison));
}

void json_append(struct json *array, struct json *value)
{
    if (!array)
        json_free(value);
    else if (!value || json_array_append_new(in(array), in(value)) < 0)
        (void)json_array_append_new(in(array), json_string_nocheck(poison));
}

int json_print(const struct json *j, unsigned indent, char **out, struct err *e)
{
    size_t flags = JSON_SORT_KEYS | JSON_ENCODE_ANY;
    flags |= indent > 0 ? JSON_INDENT(indent) : JSON_COMPACT;
    char *text = j ? json_dumps(in(j), flags) : NULL;
    if (!text)
        return err_nomem(e, "JSON text");
    *out = text;
    return 0;
}
