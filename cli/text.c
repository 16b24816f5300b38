/* SPDX-License-Identifier: MIT */
/* Sizes, durations, log messages and JSON as people and machines read them. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
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

void print_log(void *ctx, enum log_level level, const char *module, const char *message)
{
    static const char *const names[] = {"error", "warning", "note", "debug"};
    (void)ctx;
    fprintf(stderr, "%s: %s: %s\n", names[level], module, message);
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
