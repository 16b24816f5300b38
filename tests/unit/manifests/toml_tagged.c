/* SPDX-License-Identifier: MIT */
#include "toml_tagged.h"

#include "manifests/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *type_name(enum toml_type type)
{
    switch (type) {
    case TOML_STRING:
        return "string";
    case TOML_INTEGER:
        return "integer";
    case TOML_FLOAT:
        return "float";
    case TOML_BOOL:
        return "bool";
    case TOML_OFFSET_DATETIME:
        return "datetime";
    case TOML_LOCAL_DATETIME:
        return "datetime-local";
    case TOML_LOCAL_DATE:
        return "date-local";
    case TOML_LOCAL_TIME:
        return "time-local";
    case TOML_ARRAY:
    case TOML_TABLE:
        break;
    }
    return "?";
}

static struct json *scalar_value(const struct toml *t)
{
    char text[64];
    if (toml_type(t) == TOML_INTEGER)
        snprintf(text, sizeof(text), "%" PRId64, toml_integer(t));
    else if (toml_type(t) == TOML_FLOAT && isnan(toml_float(t)))
        snprintf(text, sizeof(text), "nan");
    else if (toml_type(t) == TOML_FLOAT)
        snprintf(text, sizeof(text), "%.17g", toml_float(t));
    else if (toml_type(t) == TOML_BOOL)
        snprintf(text, sizeof(text), "%s", toml_bool(t) ? "true" : "false");
    else
        return json_bytes(t->text, t->text_len);
    return json_new_string(text);
}

struct json *toml_tagged(const struct toml *t)
{
    if (toml_type(t) == TOML_ARRAY) {
        struct json *array = json_new_array();
        for (size_t i = 0; array && i < toml_length(t); i++)
            json_append(array, toml_tagged(toml_at(t, i)));
        return array;
    }
    struct json *object = json_new_object();
    if (!object)
        return NULL;
    if (toml_type(t) == TOML_TABLE) {
        for (size_t i = 0; i < toml_length(t); i++) {
            AUTO_JSON struct json *key = json_bytes(t->keys[i].text, t->keys[i].len);
            if (key)
                json_set(object, json_as_string(key), toml_tagged(toml_at(t, i)));
        }
        return object;
    }
    json_set(object, "type", json_new_string(type_name(toml_type(t))));
    json_set(object, "value", scalar_value(t));
    return object;
}
