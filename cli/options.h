/* SPDX-License-Identifier: MIT */
/* Private to cli: options as a table, from which they are read and --help is printed. */
#ifndef TB2_CLI_OPTIONS_H
#define TB2_CLI_OPTIONS_H

#include "cli/cmd.h"

/* One option, or with `name` NULL a heading that stands before those that follow. A row of zeros
 * ends a table. */
struct option_row {
    const char *name;     /* without the dashes */
    const char *argument; /* as --help shows it; NULL: none; in brackets: may be left out */
    const char *help;     /* lines parted by newlines; of a heading, the heading */
    /* Takes the option; `value` is NULL without an argument and lives as long as argv. */
    int (*take)(void *arguments, const char *value, struct err *e);
};

/* Options of one command at most, with the common ones. */
enum { OPTIONS_MAX = 96 };

struct parsing {
    const struct command *command;
    struct global_options *globals;
    int status; /* -1, or what the program must end with at once: help was asked for, or getopt has
                   said what is wrong */
};

/* Reads the options of a command: those of its table (command.options), and the common ones.
 * `optind` is then the first word that is none. */
int options_parse(struct parsing *p, void *arguments, int argc, char **argv,
                  struct err *e) MUST_USE;
/* The same, and reports what is wrong. Returns -1 to go on, else the exit status. */
int options_read(const struct command *c, struct global_options *g, void *arguments, int argc,
                 char **argv) MUST_USE;
/* After that: the command's only operand, which `question` asks for where it is missing. Returns as
 * options_read. */
int options_operand(const char **out, const struct command *c, const char *question, int argc,
                    char **argv) MUST_USE;
/* Operands beyond the first `count` are an error. Returns as options_read. */
int options_end(const struct command *c, int count, int argc, char **argv) MUST_USE;

/* What every command takes, for --help alone: option_global takes them. */
extern const struct option_row global_rows[];

/* The table as --help shows it. */
void options_print(const struct option_row *rows);

#endif
