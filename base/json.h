/* SPDX-License-Identifier: MIT */
/*
 * JSON: strict reading with typed getters that name the path at fault, and a canonical writer
 * (keys sorted, no spaces) whose bytes depend only on the value. A value tree has one owner and is
 * used by one thread at a time. base/json.c is the only file that includes jansson.
 */
#ifndef TB2_BASE_JSON_H
#define TB2_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct json; /* object, array, string, integer, real, true, false or null */

/* Names keep clear of jansson's own (json_type, JSON_OBJECT, json_string_value, ...). */
enum json_kind {
    JSON_KIND_OBJECT,
    JSON_KIND_ARRAY,
    JSON_KIND_STRING,
    JSON_KIND_INTEGER,
    JSON_KIND_REAL,
    JSON_KIND_BOOL,
    JSON_KIND_NULL
};

/* Parses a whole text (duplicate keys are refused, nesting is bounded). The result is the caller's;
 * free with json_free. Integers are of 64 bits. ERR_CORRUPT with line and column. `what` names the
 * text. */
int json_parse(struct json **out, const void *text, size_t len, const char *what,
               struct err *e) MUST_USE;

void json_free(struct json *j);
DEFINE_AUTO(json, json_free)
#define AUTO_JSON CLEANUP(json_free_auto_)

enum json_kind json_kind(const struct json *j);

/*
 * Getters. `j` is an object, `key` one of its members. The result is borrowed from the tree.
 * `*_opt` forms: absent or null gives the default (NULL, `fallback`) and success; a value of
 * another type is ERR_CORRUPT. Required forms: absent is ERR_CORRUPT naming the key.
 */
int json_get_object(const struct json *j, const char *key, struct json **out,
                    struct err *e) MUST_USE;
int json_get_array(const struct json *j, const char *key, struct json **out,
                   struct err *e) MUST_USE;
int json_get_string(const struct json *j, const char *key, const char **out,
                    struct err *e) MUST_USE;
int json_get_u64(const struct json *j, const char *key, uint64_t *out, struct err *e) MUST_USE;
int json_get_object_opt(const struct json *j, const char *key, struct json **out,
                        struct err *e) MUST_USE;
int json_get_array_opt(const struct json *j, const char *key, struct json **out,
                       struct err *e) MUST_USE;
int json_get_string_opt(const struct json *j, const char *key, const char **out,
                        struct err *e) MUST_USE;
int json_get_u64_opt(const struct json *j, const char *key, uint64_t fallback, uint64_t *out,
                     struct err *e) MUST_USE;
int json_get_bool_opt(const struct json *j, const char *key, bool fallback, bool *out,
                      struct err *e) MUST_USE;

/* Member whatever its type; NULL when absent. */
struct json *json_member(const struct json *j, const char *key);

/* Elements of an array (length 0 for anything else); borrowed, NULL past the end. */
size_t json_length(const struct json *j);
struct json *json_element(const struct json *j, size_t index);

/* Value of a string or integer node; NULL or 0 for other types. */
const char *json_as_string(const struct json *j);
int64_t json_as_integer(const struct json *j);
/* Value of an integer or real node; false, and *out untouched, for other types. */
bool json_as_number(const struct json *j, double *out) MUST_USE;

/*
 * Visits the members of an object, sorted by key; stops at the first negative result and returns
 * it.
 */
int json_each(const struct json *j,
              int (*visit)(void *ctx, const char *key, struct json *value, struct err *e),
              void *ctx, struct err *e) MUST_USE;

/* Builders: NULL when memory is short. The set/append calls take the value over, also on failure,
 * and accept NULL as a failed value, so that errors need checking once, at json_print. Strings that
 * are not UTF-8 are stored with each bad byte as U+FFFD; where bytes matter use json_bytes. Keys
 * must be UTF-8. */
struct json *json_new_object(void);
struct json *json_new_array(void);
struct json *json_new_string(const char *text);
struct json *json_new_integer(int64_t value);
struct json *json_new_number(double value); /* finite; one without a fraction becomes an integer */
struct json *json_new_bool(bool value);
struct json *json_clone(const struct json *j); /* deep */
/* A string in which bytes outside printable UTF-8, and '\\', stand as \xNN: reversible. */
struct json *json_bytes(const void *bytes, size_t len);
void json_set(struct json *object, const char *key, struct json *value);
void json_append(struct json *array, struct json *value);

/*
 * Text of a value, terminated, free with free(). `indent` 0 gives the canonical form. ERR_NOMEM
 * when memory is, or during building was, short.
 */
int json_print(const struct json *j, unsigned indent, char **out, struct err *e) MUST_USE;

#endif
