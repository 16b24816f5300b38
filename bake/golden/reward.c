/* SPDX-License-Identifier: MIT */
/*
 * Rewards that a guest wrote. Harbor reads reward.txt as one number, and reward.json as an object of
 * numbers; what it takes beyond plain decimal numbers (nan, inf, 1_0) is refused here.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bake/golden/internal.h"
#include "base/mem.h"

enum { NUMBER_MAX = 64 /* characters */ };

/* Digits, perhaps a point and digits, perhaps an exponent, with a sign perhaps; the whole text. */
static bool is_number(const char *text)
{
    static const char digits[] = "0123456789";
    text += *text == '+' || *text == '-';
    size_t whole = strspn(text, digits);
    text += whole;
    size_t part = 0;
    if (*text == '.') {
        part = strspn(++text, digits);
        text += part;
    }
    if (whole + part == 0)
        return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '+' || *text == '-';
        size_t power = strspn(text, digits);
        if (power == 0)
            return false;
        text += power;
    }
    return *text == 0;
}

static const char blanks[] = " \t\r\n";

int golden_reward_text(double *out, const void *text, size_t len, struct err *e)
{
    const char *at = text;
    while (len > 0 && strchr(blanks, at[0]) && at[0])
        at++, len--;
    while (len > 0 && strchr(blanks, at[len - 1]) && at[len - 1])
        len--;
    char number[NUMBER_MAX + 1];
    if (len == 0)
        return err_set(e, ERR_CORRUPT, "the reward file is empty");
    if (len > NUMBER_MAX || memchr(at, 0, len))
        return err_set(e, ERR_CORRUPT, "the reward is no number");
    memcpy(number, at, len);
    number[len] = 0;
    if (!is_number(number))
        return err_set(e, ERR_CORRUPT, "the reward is no number");
    double value = strtod(number, NULL);
    if (!isfinite(value))
        return err_set(e, ERR_CORRUPT, "the reward is too large a number");
    *out = value;
    return 0;
}

int golden_reward_json(double *out, bool *found, const void *text, size_t len, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    *found = false;
    int rc = json_parse(&j, text, len, "reward.json", e);
    if (rc < 0)
        return rc;
    if (json_kind(j) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "reward.json: not an object");
    *found = json_as_number(json_member(j, "reward"), out);
    return 0;
}
