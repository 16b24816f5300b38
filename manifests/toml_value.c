/* SPDX-License-Identifier: MIT */
/*
 * Booleans, numbers and date-times of TOML 1.0.0.
 *
 * A word is the longest run of characters that any of them can hold; what it is gets decided on the
 * whole word, so that "1979-05-27T" or "1__0" is one error at one place. Date-times keep their text
 * (with 'T' and 'Z' in upper case): nothing here needs to calculate with them.
 */
#include "manifests/internal.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(int byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= 'a' && byte <= 'z') || byte == '+' || byte == '-' || byte == '_' ||
           byte == '.' || byte == ':';
}

/* ---- Numbers ------------------------------------------------------------------------------- */

/* Length of a run of digits of `base` in which each underscore stands between two digits. */
static size_t digits_len(const char *text, int base)
{
    size_t len = 0;
    while (toml_digit_value(text[len]) < base ||
           (len > 0 && text[len] == '_' && text[len - 1] != '_' &&
            toml_digit_value(text[len + 1]) < base))
        len++;
    return len;
}

/* Value of a run that digits_len accepted. False when it is more than `limit`. */
static bool digits_value(const char *text, size_t len, unsigned base, uint64_t limit, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '_')
            continue;
        uint64_t digit = (uint64_t)toml_digit_value(text[i]);
        if (value > (limit - digit) / base)
            return false;
        value = value * base + digit;
    }
    *out = value;
    return true;
}

static int integer_range(const struct toml_scan *s, const struct toml *t, const char *word,
                         struct err *e)
{
    return toml_scan_fail(s, t->place, e, "%.80s does not fit into 64 bits", word);
}

static int malformed(const struct toml_scan *s, const struct toml *t, const char *word,
                     struct err *e)
{
    return toml_scan_fail(s, t->place, e,
                          "'%.80s' is not a value (strings need quotes; numbers, dates, true and "
                          "false have one spelling)",
                          word);
}

/* 0x, 0o and 0b integers; they take no sign. */
static int parse_prefixed(const struct toml_scan *s, struct toml *t, const char *word,
                          struct err *e)
{
    int base = word[1] == 'x' ? 16 : word[1] == 'o' ? 8 : 2;
    size_t len = digits_len(word + 2, base);
    uint64_t value;
    if (len == 0 || word[2 + len] != '\0')
        return malformed(s, t, word, e);
    if (!digits_value(word + 2, len, (unsigned)base, INT64_MAX, &value))
        return integer_range(s, t, word, e);
    t->type = TOML_INTEGER;
    t->integer = (int64_t)value;
    return 0;
}

/* Length of "[eE][+-]digits" at `text`, 0 if there is none. */
static size_t exponent_len(const char *text)
{
    if (text[0] != 'e' && text[0] != 'E')
        return 0;
    size_t sign = text[1] == '+' || text[1] == '-' ? 1 : 0;
    size_t digits = digits_len(text + 1 + sign, 10);
    return digits > 0 ? 1 + sign + digits : 0;
}

static int parse_float(struct toml *t, const char *word, struct err *e)
{
    char plain[TOML_WORD_MAX + 1];
    size_t len = 0;
    for (const char *at = word; *at; at++) {
        if (*at != '_')
            plain[len++] = *at;
    }
    plain[len] = '\0';
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale)
        return err_nomem(e, "locale");
    t->type = TOML_FLOAT;
    t->real = strtod_l(plain, NULL, c_locale);
    freelocale(c_locale);
    return 0;
}

static int parse_decimal(const struct toml_scan *s, struct toml *t, const char *word, struct err *e)
{
    bool negative = word[0] == '-';
    const char *digits = word + (word[0] == '-' || word[0] == '+' ? 1 : 0);
    if (strcmp(digits, "inf") == 0 || strcmp(digits, "nan") == 0) {
        t->type = TOML_FLOAT;
        t->real =
            copysign(digits[0] == 'i' ? (double)INFINITY : (double)NAN, negative ? -1.0 : 1.0);
        return 0;
    }
    size_t len = digits_len(digits, 10);
    if (len == 0)
        return malformed(s, t, word, e);
    if (len > 1 && digits[0] == '0')
        return toml_scan_fail(s, t->place, e, "'%.80s': a number must not start with 0", word);
    const char *rest = digits + len;
    if (*rest == '\0') {
        uint64_t value;
        uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
        if (!digits_value(digits, len, 10, limit, &value))
            return integer_range(s, t, word, e);
        t->type = TOML_INTEGER;
        t->integer = negative ? (int64_t)(0 - value) : (int64_t)value;
        return 0;
    }
    if (*rest == '.') {
        size_t fraction = digits_len(rest + 1, 10);
        if (fraction == 0)
            return malformed(s, t, word, e);
        rest += 1 + fraction;
    }
    rest += exponent_len(rest);
    return *rest == '\0' ? parse_float(t, word, e) : malformed(s, t, word, e);
}

/* ---- Dates and times (RFC 3339, section 5.6; a space may stand for the T) ------------------ */

/* Two digits at `*at` not above `high`; steps over them. */
static bool two_digits(const char **at, unsigned high, unsigned *out)
{
    const char *text = *at;
    if (!is_digit(text[0]) || !is_digit(text[1]))
        return false;
    *out = (unsigned)(text[0] - '0') * 10 + (unsigned)(text[1] - '0');
    *at = text + 2;
    return *out <= high;
}

static bool one(const char **at, char c)
{
    if (**at != c)
        return false;
    (*at)++;
    return true;
}

static unsigned days_in_month(unsigned year, unsigned month)
{
    static const unsigned days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return month == 2 && leap ? 29 : days[month - 1];
}

static bool full_date(const char **at)
{
    unsigned century;
    unsigned year;
    unsigned month;
    unsigned day;
    if (!two_digits(at, 99, &century) || !two_digits(at, 99, &year) || !one(at, '-') ||
        !two_digits(at, 12, &month) || !one(at, '-') || !two_digits(at, 31, &day))
        return false;
    year += century * 100;
    return year > 0 && month > 0 && day > 0 && day <= days_in_month(year, month);
}

static bool partial_time(const char **at)
{
    unsigned part;
    if (!two_digits(at, 23, &part) || !one(at, ':') || !two_digits(at, 59, &part) ||
        !one(at, ':') || !two_digits(at, 60, &part)) /* 60: a leap second */
        return false;
    if (!one(at, '.'))
        return true;
    if (!is_digit(**at))
        return false;
    while (is_digit(**at))
        (*at)++;
    return true;
}

static bool time_offset(const char **at)
{
    unsigned part;
    if (one(at, 'Z') || one(at, 'z'))
        return true;
    return (one(at, '+') || one(at, '-')) && two_digits(at, 23, &part) && one(at, ':') &&
           two_digits(at, 59, &part);
}

static bool looks_like_date(const char *word)
{
    for (int i = 0; i < 4; i++) {
        if (!is_digit(word[i]))
            return false;
    }
    return word[4] == '-';
}

static bool looks_like_time(const char *word)
{
    return is_digit(word[0]) && is_digit(word[1]) && word[2] == ':';
}

/* True if the whole word is a date-time; sets t->type. */
static bool classify_datetime(struct toml *t, const char *word)
{
    const char *at = word;
    if (looks_like_time(word)) {
        t->type = TOML_LOCAL_TIME;
        return partial_time(&at) && *at == '\0';
    }
    t->type = TOML_LOCAL_DATE;
    if (!full_date(&at))
        return false;
    if (*at == '\0')
        return true;
    t->type = TOML_LOCAL_DATETIME;
    if (!(one(&at, 'T') || one(&at, 't') || one(&at, ' ')) || !partial_time(&at))
        return false;
    if (*at == '\0')
        return true;
    t->type = TOML_OFFSET_DATETIME;
    return time_offset(&at) && *at == '\0';
}

static int parse_datetime(const struct toml_scan *s, struct toml *t, const char *word,
                          struct err *e)
{
    if (!classify_datetime(t, word))
        return toml_scan_fail(s, t->place, e, "'%.80s' is not a valid date or time", word);
    t->text = mem_strdup(word);
    if (!t->text)
        return err_nomem(e, "date-time");
    t->text_len = strlen(word);
    for (char *at = t->text; *at; at++) {
        if (*at == 't' || *at == ' ')
            *at = 'T';
        if (*at == 'z')
            *at = 'Z';
    }
    return 0;
}

/* ---- Words --------------------------------------------------------------------------------- */

/* Length of the word at the reader; a space inside "date time" belongs to it. */
static size_t word_len(const struct toml_scan *s)
{
    enum { DATE_LEN = 10 };
    size_t len = 0;
    while (is_word(toml_scan_peek(s, len)))
        len++;
    int next = toml_scan_peek(s, len + 1);
    if (len == DATE_LEN && toml_scan_peek(s, 4) == '-' && toml_scan_peek(s, len) == ' ' &&
        next >= '0' && next <= '9') {
        len++;
        while (is_word(toml_scan_peek(s, len)))
            len++;
    }
    return len;
}

static int parse_word(const struct toml_scan *s, struct toml *t, const char *word, struct err *e)
{
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) {
        t->type = TOML_BOOL;
        t->boolean = word[0] == 't';
        return 0;
    }
    if (looks_like_date(word) || looks_like_time(word))
        return parse_datetime(s, t, word, e);
    if (word[0] == '0' && (word[1] == 'x' || word[1] == 'o' || word[1] == 'b'))
        return parse_prefixed(s, t, word, e);
    return parse_decimal(s, t, word, e);
}

int toml_value_word(struct toml_scan *s, struct toml *t, struct err *e)
{
    char word[TOML_WORD_MAX + 1];
    size_t len = word_len(s);
    t->place = s->place;
    if (len == 0) {
        char shown[TOML_SHOW_MAX];
        return toml_scan_fail(s, s->place, e, "a value is expected, not %s",
                              toml_scan_show(s, shown));
    }
    if (len > TOML_WORD_MAX)
        return toml_scan_fail(s, s->place, e, "a number of %zu characters is too long", len);
    memcpy(word, s->text + s->pos, len);
    word[len] = '\0';
    toml_scan_skip(s, len);
    return parse_word(s, t, word, e);
}
