/* SPDX-License-Identifier: MIT */
/* The serial console of a machine, bounded: what a guest says that has no channel yet. */
#ifndef TB2_BAKE_CHANNEL_CONSOLE_H
#define TB2_BAKE_CHANNEL_CONSOLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

enum {
    CONSOLE_FILE_MAX = 1 << 20, /* bytes of the log file */
    CONSOLE_TAIL_LEN = 64 << 10 /* bytes kept in memory, and the least that the file goes back */
};

/* Copies what a pipe gives into a file that never grows past CONSOLE_FILE_MAX, on a thread of
 * its own. */
struct console;
/* Takes `input` (the reading end of a pipe) over, also on failure. */
int console_start(struct console **out, int input, int dir, const char *path,
                  struct err *e) MUST_USE;
/* Waits at most `timeout_ms` for the end of the input, so that the tail is complete. */
void console_drain(struct console *c, int64_t timeout_ms);
/* Copies the last bytes into `out` (terminated, `len` > 0); returns how many. */
size_t console_tail(struct console *c, char *out, size_t len);
void console_free(struct console *c);
DEFINE_AUTO(console, console_free)
#define AUTO_CONSOLE CLEANUP(console_free_auto_)

/* The last `lines` lines of `text` in one line, " | " between them, unprintable bytes as '?'. */
void console_summary(const char *text, unsigned lines, char *out, size_t len);

#endif
