/* SPDX-License-Identifier: MIT */
/* The log sink: the one mutable global of the program, set once by cli. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"

static struct {
    pthread_mutex_t lock;
    log_sink *sink;
    void *ctx;
    enum log_level most_detailed;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

void log_set_sink(log_sink *sink, void *ctx, enum log_level most_detailed)
{
    pthread_mutex_lock(&state.lock);
    state.sink = sink;
    state.ctx = ctx;
    state.most_detailed = most_detailed;
    pthread_mutex_unlock(&state.lock);
}

void log_event(enum log_level level, const char *module, const char *fmt, ...)
{
    char message[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    text_make_line(message);
    pthread_mutex_lock(&state.lock);
    if (state.sink && level <= state.most_detailed)
        state.sink(state.ctx, level, module, message);
    pthread_mutex_unlock(&state.lock);
}
