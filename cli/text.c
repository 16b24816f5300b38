/* SPDX-License-Identifier: MIT */
/* Sizes, durations, foreign text, log messages and JSON as people and machines read them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/cmd.h"

const char *print_size(uint64_t size, char text[SIZE_TEXT_MAX])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)size;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < ARRAY_LEN(units)) {
        value /= 1000;
        unit++;
    }
    snprintf(text, SIZE_TEXT_MAX, unit == 0 || value >= 99.95 ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return text;
}

const char *print_duration(int64_t ms, char text[SIZE_TEXT_MAX])
{
    long long seconds = ms / 1000;
    if (ms < 10000)
        snprintf(text, SIZE_TEXT_MAX, "%.1f s", (double)ms / 1000);
    else if (seconds < 60)
        snprintf(text, SIZE_TEXT_MAX, "%lld s", seconds);
    else if (seconds < 3600)
        snprintf(text, SIZE_TEXT_MAX, "%lld m %lld s", seconds / 60, seconds % 60);
    else if (seconds < 48 * 3600)
        snprintf(text, SIZE_TEXT_MAX, "%lld h", seconds / 3600);
    else
        snprintf(text, SIZE_TEXT_MAX, "%lld d", seconds / 86400);
    return text;
}

int parse_amount(uint64_t *out, const char *value, const struct amount_unit *units, size_t count,
                 const char *what, struct err *e)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || errno)
        return err_set(e, ERR_INPUT, "'%s' is no %s", value, what);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) != 0 && !(i == 0 && !*end))
            continue;
        if (number > (uint64_t)INT64_MAX / units[i].factor)
            return err_set(e, ERR_INPUT, "'%s' is too much", value);
        *out = number * units[i].factor;
        return 0;
    }
    return err_set(e, ERR_INPUT, "'%s' is no %s", value, what);
}

int parse_duration(int64_t *ms, const char *value, struct err *e)
{
    static const struct amount_unit units[] = {
        {"s", 1000}, {"m", 60 * 1000}, {"h", 60 * 60 * 1000}, {"d", 24 * 60 * 60 * 1000}};
    uint64_t parsed = 0;
    int rc = parse_amount(&parsed, value, units, ARRAY_LEN(units), "time: 90s, 30m, 12h, 7d", e);
    *ms = (int64_t)parsed;
    return rc;
}

/* Bytes of the UTF-8 character at `text`, which has not ended; 0 for what is none. */
static size_t character_len(const unsigned char *text)
{
    return utf8_sequence(text, strnlen((const char *)text, 4));
}

void text_harmless(char *to, size_t to_len, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t len = 0;
    while (*at) {
        size_t n = character_len(at);
        bool control = n == 0 || text_is_control(at, n);
        if (len + (control ? 1 : n) >= to_len)
            break;
        if (control)
            to[len++] = ' ';
        for (size_t i = 0; !control && i < n; i++)
            to[len++] = (char)at[i];
        at += n ? n : 1;
    }
    to[len] = 0;
}

size_t text_fit(const char *text, size_t columns, size_t *width)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t len = 0;
    *width = 0;
    while (at[len]) {
        size_t n = character_len(at + len);
        size_t wide = n > 2 ? 2 : 1; /* some of three bytes take one; too much never wraps */
        if (*width + wide > columns)
            break;
        *width += wide;
        len += n ? n : 1;
    }
    return len;
}

static void print_lines(FILE *to, const char *indent, const char *text)
{
    const char *further = "";
    while (*text) {
        size_t len = strcspn(text, "\n");
        char line[ERR_TEXT_MAX];
        snprintf(line, sizeof(line), "%.*s", (int)len, text);
        char shown[ERR_TEXT_MAX];
        text_harmless(shown, sizeof(shown), line);
        fprintf(to, "%s%s%s\n", indent, further, shown);
        text += len + (text[len] == '\n');
        further = "  ";
    }
}

void show_error(FILE *to, const char *indent, const struct err *e)
{
    print_lines(to, indent, e->text);
    /* Below lines that a guest printed, what is ours must not look like one of them. */
    if (e->hint[0])
        fprintf(to, "%s  %s%s\n", indent, strchr(e->text, '\n') ? "-> " : "", e->hint);
}

void print_log(void *ctx, enum log_level level, const char *module, const char *message)
{
    static const char *const names[] = {"error", "warning", "note", "debug"};
    fprintf(ctx ? ctx : stderr, "%s: %s: %s\n", names[level], module, message);
}

void log_to_stderr(bool verbose)
{
    log_set_sink(print_log, NULL, verbose ? LOG_DEBUG : LOG_WARN);
}

int print_json(const struct json *j, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int rc = json_print(j, 2, &text, e);
    if (rc == 0)
        puts(text);
    return rc;
}
