/* SPDX-License-Identifier: MIT */
/*
 * Sizes and times written as text, calculated in integers: "1.1G" is the same on every machine. K,
 * M and G are binary, as the harness that defined task.toml reads them.
 */
#include "manifests/internal.h"

#include <strings.h>

enum { DIGITS_MAX = 9 }; /* before and behind the point; keeps every product below 2^63 */

struct decimal {
    uint64_t whole;
    uint64_t fraction; /* in units of 1/scale */
    uint64_t scale;
};

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void trim(const char **text, size_t *len)
{
    while (*len > 0 && is_blank(**text)) {
        (*text)++;
        (*len)--;
    }
    while (*len > 0 && is_blank((*text)[*len - 1]))
        (*len)--;
}

/* Reads digits from *text up to *len; false if there are none or too many. */
static bool read_digits(const char **text, size_t *len, uint64_t *value, uint64_t *scale)
{
    size_t count = 0;
    *value = 0;
    *scale = 1;
    for (; *len > 0 && **text >= '0' && **text <= '9'; (*text)++, (*len)--, count++) {
        if (count == DIGITS_MAX)
            return false;
        *value = *value * 10 + (uint64_t)(**text - '0');
        *scale *= 10;
    }
    return count > 0;
}

static bool read_decimal(const char **text, size_t *len, struct decimal *out)
{
    uint64_t unused;
    *out = (struct decimal){.scale = 1};
    if (!read_digits(text, len, &out->whole, &unused))
        return false;
    if (*len == 0 || **text != '.')
        return true;
    (*text)++;
    (*len)--;
    return read_digits(text, len, &out->fraction, &out->scale);
}

static uint64_t divide_up(uint64_t value, uint64_t divisor)
{
    return value / divisor + (value % divisor != 0 ? 1 : 0);
}

bool decimal_parse(const char *text, size_t len, double *out)
{
    struct decimal number;
    trim(&text, &len);
    if (!read_decimal(&text, &len, &number) || len != 0)
        return false;
    *out = (double)number.whole + (double)number.fraction / (double)number.scale;
    return true;
}

struct unit {
    const char *name; /* lower case */
    uint64_t factor;
};

/* The number times the factor of its unit, rounded up. */
static bool read_with_unit(const char *text, size_t len, const struct unit *units, size_t count,
                           uint64_t *out)
{
    struct decimal number;
    trim(&text, &len);
    if (!read_decimal(&text, &len, &number))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (strlen(units[i].name) != len || strncasecmp(units[i].name, text, len) != 0)
            continue;
        *out = number.whole * units[i].factor +
               divide_up(number.fraction * units[i].factor, number.scale);
        return true;
    }
    return false;
}

bool size_parse_mb(const char *text, size_t len, uint64_t *out)
{
    static const struct unit units_kb[] = {{"k", 1}, {"m", 1024}, {"g", 1024 * 1024}};
    uint64_t kb;
    if (!read_with_unit(text, len, units_kb, ARRAY_LEN(units_kb), &kb))
        return false;
    *out = divide_up(kb, 1024);
    return true;
}

bool duration_parse_ms(const char *text, size_t len, uint64_t *out)
{
    static const struct unit units_ms[] = {
        {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};
    return read_with_unit(text, len, units_ms, ARRAY_LEN(units_ms), out);
}
