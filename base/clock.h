/* SPDX-License-Identifier: MIT */
/* Time. Monotonic milliseconds for time-outs and durations; wall-clock text for records only. */
#ifndef TB2_BASE_CLOCK_H
#define TB2_BASE_CLOCK_H

#include <stdint.h>

/* Milliseconds of CLOCK_MONOTONIC. */
int64_t clock_ms(void);

/* Nanoseconds of CLOCK_REALTIME since the epoch. */
int64_t clock_wall_ns(void);

/* Sleeps; returns early when a signal arrives. */
void clock_sleep_ms(int64_t ms);

enum { CLOCK_TEXT_MAX = 32 };

/* UTC as RFC 3339 ("2026-01-02T03:04:05Z") for `seconds` since the epoch; returns `text`. */
const char *clock_print(int64_t seconds, char text[CLOCK_TEXT_MAX]);

/* Parses what clock_print prints; -1 when it is something else. */
int64_t clock_parse(const char *text);

#endif
