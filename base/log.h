/* SPDX-License-Identifier: MIT */
/*
 * Logging. Libraries never print: they send events to the one sink, which cli installs; without a
 * sink, events vanish. A failure is either returned or logged, not both. No secret reaches the
 * sink. Levels by frequency: error = once, the run failed; warn = once per damaged thing; info =
 * once per step; debug = once per object. Thread-safe.
 */
#ifndef TB2_BASE_LOG_H
#define TB2_BASE_LOG_H

#include "base/attr.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Receives one event; called from any thread, one call at a time. It must not log itself. */
typedef void log_sink(void *ctx, enum log_level level, const char *module, const char *message);

/* Installs the sink and the most detailed level it wants. Call before threads start. */
void log_set_sink(log_sink *sink, void *ctx, enum log_level most_detailed);

/* `module` is the folder's name ("registry"). The message is one line without a final newline:
 * longer than 2 KiB it is cut, made one line and harmless (base/text.h). */
void log_event(enum log_level level, const char *module, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
