/* SPDX-License-Identifier: MIT */
/* Private to cli: the man page and the shells' completions, from the tables that --help is printed from. */
#ifndef TB2_CLI_MANUAL_H
#define TB2_CLI_MANUAL_H

#include "cli/options.h"

struct command_list {
    const struct command *const *all;
    size_t count;
};

/* An option as people see it. */
struct shown_option {
    const char *name;     /* NULL: a heading, in `help` */
    const char *argument; /* NULL: none; in brackets: may be left out */
    const char *help;     /* lines parted by newlines */
};

/* Calls `visit` for each option of a command's table, headings too; not for the common ones, which are
 * global_rows. */
void each_option(const struct command *c, void (*visit)(void *ctx, const struct shown_option *o),
                 void *ctx);

/* tb2-bake(1), to stdout. */
void manual_print(const struct command_list *commands);
/* For "bash", "zsh" or "fish", to stdout; false: another shell. */
bool completion_print(const struct command_list *commands, const char *shell);

#endif
