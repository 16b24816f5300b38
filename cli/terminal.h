/* SPDX-License-Identifier: MIT */
/* Private to cli: the terminal on stdin, lent to a program in a guest. */
#ifndef TB2_CLI_TERMINAL_H
#define TB2_CLI_TERMINAL_H

#include "bake/channel.h"

struct terminal;
/* Makes the terminal raw, so that every key goes to the program, and fills in `live`. One at a time in a
 * process. */
int terminal_open(struct terminal **out, struct agent_live *live, struct err *e) MUST_USE;
/* The terminal is as it was. NULL is fine. */
void terminal_close(struct terminal *t);
/* $TERM, or what any terminal is. */
const char *terminal_type(void);

#endif
