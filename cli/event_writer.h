/* SPDX-License-Identifier: MIT */
/*
 * Private to cli: lines to stdout from a thread of its own, so that who reads them slowly does not
 * hold a run back. What is only of passing interest is dropped when too much waits; the rest waits
 * however long, and is bounded by what a run has to tell.
 */
#ifndef TB2_CLI_EVENT_WRITER_H
#define TB2_CLI_EVENT_WRITER_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

struct event_writer;
/* `to` is borrowed. */
int event_writer_new(struct event_writer **out, FILE *to, struct err *e) MUST_USE;
/* Takes the line (from malloc, without a newline) over. `passing`: may be dropped; what was dropped
 * is told by {"event": "dropped", "count": N} before the next line. Thread-safe. */
void event_writer_put(struct event_writer *w, char *line, bool passing);
/* Writes what waits, then ends. */
void event_writer_free(struct event_writer *w);

#endif
