/* SPDX-License-Identifier: MIT */
/* Time: see clock.h. */
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t clock_wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void clock_sleep_ms(int64_t ms)
{
    if (ms <= 0)
        return;
    struct timespec wait = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

const char *clock_print(int64_t seconds, char text[CLOCK_TEXT_MAX])
{
    time_t when = (time_t)seconds;
    struct tm utc;
    if (!gmtime_r(&when, &utc) || strftime(text, CLOCK_TEXT_MAX, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        snprintf(text, CLOCK_TEXT_MAX, "unknown");
    return text;
}

int64_t clock_parse(const char *text)
{
    struct tm utc = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (!end || *end != 0)
        return -1;
    return (int64_t)timegm(&utc);
}
