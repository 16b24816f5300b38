/* SPDX-License-Identifier: MIT */
/*
 * Characters, blanks, strings and keys of TOML 1.0.0.
 *
 * The text is judged once, up front, for what holds everywhere: UTF-8, no control characters but
 * tab and newline, CR only in CRLF. After that every function works on bytes and needs to look at
 * ASCII only. Every step goes through toml_scan_skip, which keeps line and column, so that an error
 * can say where it is without reading the text again.
 */
#include "manifests/internal.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

static const uint8_t byte_order_mark[] = {0xEF, 0xBB, 0xBF};

int toml_scan_fail(const struct toml_scan *s, struct toml_place place, struct err *e,
                   const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return err_set(e, ERR_INPUT, "%s:%u:%u: %s", s->name, place.line, place.column, text);
}

int toml_scan_peek(const struct toml_scan *s, size_t ahead)
{
    return ahead < s->len - s->pos ? s->text[s->pos + ahead] : -1;
}

void toml_scan_skip(struct toml_scan *s, size_t count)
{
    for (; count > 0 && s->pos < s->len; count--) {
        uint8_t byte = s->text[s->pos++];
        if (byte == '\n') {
            s->place.line++;
            s->place.column = 1;
        } else if ((byte & 0xC0) != 0x80) {
            s->place.column++;
        }
    }
}

int toml_digit_value(int byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    if (byte >= 'a' && byte <= 'f')
        return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F')
        return byte - 'A' + 10;
    return INT_MAX;
}

/* Checks the character at the reader; *len is its size. */
static int check_character(const struct toml_scan *s, size_t *len, struct err *e)
{
    uint8_t byte = s->text[s->pos];
    *len = utf8_sequence(s->text + s->pos, s->len - s->pos);
    if (*len == 0)
        return toml_scan_fail(s, s->place, e, "byte 0x%02X is not valid UTF-8 here", byte);
    if (byte == '\r' && toml_scan_peek(s, 1) != '\n')
        return toml_scan_fail(s, s->place, e, "a carriage return must be followed by a line feed");
    if ((byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F)
        return toml_scan_fail(s, s->place, e,
                              "control character U+%04X must be written as an escape", byte);
    return 0;
}

int toml_scan_init(struct toml_scan *s, const void *text, size_t len, const char *name,
                   struct err *e)
{
    *s = (struct toml_scan){.name = name, .text = text, .len = len, .place = {1, 1}};
    if (len > LIMIT_TASK_TOML)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes are more than the limit of %zu", name, len,
                       LIMIT_TASK_TOML);
    size_t start = 0;
    if (len >= sizeof(byte_order_mark) &&
        memcmp(text, byte_order_mark, sizeof(byte_order_mark)) == 0)
        start = sizeof(byte_order_mark);
    s->pos = start;
    while (s->pos < len) {
        size_t step;
        int rc = check_character(s, &step, e);
        if (rc < 0)
            return rc;
        toml_scan_skip(s, step);
    }
    s->pos = start;
    s->place = (struct toml_place){1, 1};
    return 0;
}

bool toml_scan_at_newline(const struct toml_scan *s)
{
    int byte = toml_scan_peek(s, 0);
    return byte == '\n' || byte == '\r';
}

void toml_scan_newline(struct toml_scan *s)
{
    toml_scan_skip(s, toml_scan_peek(s, 0) == '\r' ? 2 : 1);
}

void toml_scan_blank(struct toml_scan *s)
{
    while (toml_scan_peek(s, 0) == ' ' || toml_scan_peek(s, 0) == '\t')
        toml_scan_skip(s, 1);
}

void toml_scan_comment(struct toml_scan *s)
{
    if (toml_scan_peek(s, 0) != '#')
        return;
    while (s->pos < s->len && !toml_scan_at_newline(s))
        toml_scan_skip(s, 1);
}

void toml_scan_space(struct toml_scan *s)
{
    for (;;) {
        toml_scan_blank(s);
        toml_scan_comment(s);
        if (!toml_scan_at_newline(s))
            return;
        toml_scan_newline(s);
    }
}

const char *toml_scan_show(const struct toml_scan *s, char text[TOML_SHOW_MAX])
{
    if (s->pos >= s->len) {
        snprintf(text, TOML_SHOW_MAX, "the end of the file");
    } else if (toml_scan_at_newline(s)) {
        snprintf(text, TOML_SHOW_MAX, "the end of the line");
    } else {
        size_t len = utf8_sequence(s->text + s->pos, s->len - s->pos);
        snprintf(text, TOML_SHOW_MAX, "'%.*s'", (int)len, (const char *)s->text + s->pos);
    }
    return text;
}

/* ---- Strings ------------------------------------------------------------------------------- */

static int add_code_point(struct buf *out, uint32_t code, struct err *e)
{
    uint8_t bytes[4];
    size_t len = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0x00, 0x00, 0xC0, 0xE0, 0xF0};
    for (size_t i = len; i-- > 1;) {
        bytes[i] = (uint8_t)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    bytes[0] = (uint8_t)(lead[len] | code);
    return buf_add(out, bytes, len, e);
}

/* \uXXXX or \UXXXXXXXX: the reader stands on the first digit. */
static int scan_unicode_escape(struct toml_scan *s, struct buf *out, size_t digits,
                               struct toml_place start, struct err *e)
{
    uint32_t code = 0;
    for (size_t i = 0; i < digits; i++) {
        int value = toml_digit_value(toml_scan_peek(s, 0));
        if (value > 15)
            return toml_scan_fail(s, start, e, "the escape needs %zu hexadecimal digits", digits);
        code = code << 4 | (uint32_t)value;
        toml_scan_skip(s, 1);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return toml_scan_fail(s, start, e, "U+%04X is not a Unicode character", (unsigned)code);
    return add_code_point(out, code, e);
}

/* A backslash before the end of a line: drops all blanks and newlines up to the next character. */
static bool scan_line_ending_backslash(struct toml_scan *s)
{
    struct toml_scan saved = *s;
    toml_scan_blank(s);
    if (!toml_scan_at_newline(s)) {
        *s = saved;
        return false;
    }
    while (toml_scan_at_newline(s)) {
        toml_scan_newline(s);
        toml_scan_blank(s);
    }
    return true;
}

/* The reader stands on the backslash. */
static int scan_escape(struct toml_scan *s, struct buf *out, bool multi_line, struct err *e)
{
    static const char names[] = "btnfr\"\\";
    static const char values[] = "\b\t\n\f\r\"\\";
    struct toml_place start = s->place;
    toml_scan_skip(s, 1);
    if (multi_line && scan_line_ending_backslash(s))
        return 0;
    int name = toml_scan_peek(s, 0);
    const char *found = name > 0 ? strchr(names, name) : NULL;
    if (found) {
        toml_scan_skip(s, 1);
        return buf_add(out, &values[found - names], 1, e);
    }
    if (name == 'u' || name == 'U') {
        toml_scan_skip(s, 1);
        return scan_unicode_escape(s, out, name == 'u' ? 4 : 8, start, e);
    }
    char shown[TOML_SHOW_MAX];
    return toml_scan_fail(s, start, e, "a backslash followed by %s is not an escape",
                          toml_scan_show(s, shown));
}

static bool at_three(const struct toml_scan *s, int quote)
{
    return toml_scan_peek(s, 0) == quote && toml_scan_peek(s, 1) == quote &&
           toml_scan_peek(s, 2) == quote;
}

/* The reader stands behind the opening quote. */
static int scan_single_line(struct toml_scan *s, struct buf *out, int quote,
                            struct toml_place start, struct err *e)
{
    for (;;) {
        int byte = toml_scan_peek(s, 0);
        if (byte < 0 || toml_scan_at_newline(s))
            return toml_scan_fail(s, start, e, "the string is not closed on its line");
        if (byte == quote)
            break;
        int rc;
        if (byte == '\\' && quote == '"') {
            rc = scan_escape(s, out, false, e);
        } else {
            rc = buf_add(out, &s->text[s->pos], 1, e);
            toml_scan_skip(s, 1);
        }
        if (rc < 0)
            return rc;
    }
    toml_scan_skip(s, 1);
    return 0;
}

/* The reader stands behind the opening quotes. */
static int scan_multi_line(struct toml_scan *s, struct buf *out, int quote, struct toml_place start,
                           struct err *e)
{
    if (toml_scan_at_newline(s))
        toml_scan_newline(s);
    while (!at_three(s, quote)) {
        int byte = toml_scan_peek(s, 0);
        int rc;
        if (byte < 0)
            return toml_scan_fail(s, start, e, "the multi-line string is not closed");
        if (byte == '\\' && quote == '"') {
            rc = scan_escape(s, out, true, e);
        } else if (toml_scan_at_newline(s)) {
            toml_scan_newline(s);
            rc = buf_add(out, "\n", 1, e);
        } else {
            rc = buf_add(out, &s->text[s->pos], 1, e);
            toml_scan_skip(s, 1);
        }
        if (rc < 0)
            return rc;
    }
    /* Up to two quotes may stand right before the closing three. */
    for (int extra = 0; extra < 2 && toml_scan_peek(s, 3) == quote; extra++) {
        int rc = buf_add(out, &s->text[s->pos], 1, e);
        if (rc < 0)
            return rc;
        toml_scan_skip(s, 1);
    }
    toml_scan_skip(s, 3);
    return 0;
}

int toml_scan_string(struct toml_scan *s, struct buf *out, bool multi_line, struct err *e)
{
    struct toml_place start = s->place;
    int quote = toml_scan_peek(s, 0);
    if (!at_three(s, quote)) {
        toml_scan_skip(s, 1);
        return scan_single_line(s, out, quote, start, e);
    }
    if (!multi_line)
        return toml_scan_fail(s, start, e, "a key cannot be a multi-line string");
    toml_scan_skip(s, 3);
    return scan_multi_line(s, out, quote, start, e);
}

static bool is_bare_key(int byte)
{
    return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') ||
           (byte >= '0' && byte <= '9') || byte == '-' || byte == '_';
}

int toml_scan_key_part(struct toml_scan *s, struct buf *out, struct err *e)
{
    buf_drop(out, out->len);
    int byte = toml_scan_peek(s, 0);
    if (byte == '"' || byte == '\'')
        return toml_scan_string(s, out, false, e);
    size_t len = 0;
    while (is_bare_key(toml_scan_peek(s, len)))
        len++;
    if (len == 0) {
        char shown[TOML_SHOW_MAX];
        return toml_scan_fail(s, s->place, e, "a key is expected, not %s",
                              toml_scan_show(s, shown));
    }
    int rc = buf_add(out, s->text + s->pos, len, e);
    toml_scan_skip(s, len);
    return rc;
}
