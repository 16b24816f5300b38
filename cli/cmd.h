/* SPDX-License-Identifier: MIT */
/* Private to cli: the command table and what the commands share. */
#ifndef TB2_CLI_CMD_H
#define TB2_CLI_CMD_H

#include <stdbool.h>
#include <stdio.h>

#include "bake/bake.h"
#include "bake/disk.h"
#include "bake/remote.h"
#include "bake/template.h"
#include "base/cancel.h"
#include "base/err.h"
#include "base/log.h"
#include "registry/registry.h"

/* Exit statuses; docs/errors.md has them for people. */
enum {
    EXIT_ALL_READY = 0,
    EXIT_SOME_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_ENVIRONMENT = 3,
    EXIT_BUSY = 4,
    EXIT_NOTHING = 5, /* nothing to do; only where --detailed-status asks for it */
    EXIT_RATE_LIMITED =
        6, /* a far end limits how often it may be asked; of a bake: nothing else failed */
    EXIT_TOOL_FAILED = 125, /* `run`: the tool failed, not the command */
    EXIT_INTERRUPTED = 130,
};

/* Options of every command, after the command word. */
struct global_options {
    char *store_path;            /* absolute or relative; never NULL after parsing */
    char *cache_dir;             /* absolute */
    const struct vm_driver *vmm; /* NULL: chosen */
    const char *cpu_template;    /* NULL: none */
    enum vm_accel accel;
    bool json;
    bool verbose;
    const char *registries; /* --registries; NULL: the usual places */
    const char *ca_file;    /* --ca */
    struct cancel *cancel;
    struct cancel *drain; /* see drain_first */
};

struct option_row;

struct command {
    const char *name;
    const char *arguments; /* for the usage line */
    const char *summary;
    /* Table of its own options (cli/options.h), up to a row of zeros; NULL: it has none. */
    const struct option_row *options;
    bool operands_end_options; /* what follows the first operand is for another program */
    const char *notes;         /* what --help says after the table; NULL: nothing */
    /* argv[0] is the command's name. Returns the exit status. */
    int (*run)(struct global_options *g, int argc, char **argv);
};

extern const struct command command_bake;
extern const struct command command_plan;
extern const struct command command_golden;
extern const struct command command_recipe;
extern const struct command command_ls;
extern const struct command command_show;
extern const struct command command_run;
extern const struct command command_exec;
extern const struct command command_shell;
extern const struct command command_kept;
extern const struct command command_verify;
extern const struct command command_disk;
extern const struct command command_push;
extern const struct command command_remote;
extern const struct command command_store;
extern const struct command command_image;
extern const struct command command_attach;
extern const struct command command_detach;
extern const struct command command_devices;
extern const struct command command_report;
extern const struct command command_doctor;
extern const struct command command_smoke;
extern const struct command command_server;

/* Long options that every command takes; `option_global` handles them. */
#define GLOBAL_LONG_OPTIONS                                                                        \
    {"store", required_argument, NULL, 's'}, {"cache", required_argument, NULL, 'c'},              \
        {"vmm", required_argument, NULL, 'm'}, {"cpu-template", required_argument, NULL, 'T'},     \
        {"accel", required_argument, NULL, 'a'}, {"json", no_argument, NULL, 'j'},                 \
        {"registries", required_argument, NULL, 'N'}, {"ca", required_argument, NULL, 'C'},        \
        {"verbose", no_argument, NULL, 'v'},                                                       \
    {                                                                                              \
        "help", no_argument, NULL, 'h'                                                             \
    }
/* The short ones. */
#define GLOBAL_SHORT_OPTIONS "h"

/* Takes one of the options above. Returns -1 when done, an exit status when the program must end
 * (help: 0, wrong value: EXIT_USAGE). */
int option_global(struct global_options *g, const struct command *c, int option, const char *value);

/* Prints an error ("tb2-bake: text", then the hint) to stderr; returns the exit status that
 * fits. */
int report_error(const struct err *e);

/* Prints what is wrong with a command line, and how the command is called; returns EXIT_USAGE. */
int usage_error(const struct command *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Opens the store of the options, making it where there is none. */
int open_store(struct store **out, const struct global_options *g, struct err *e) MUST_USE;
/* For commands that read it: ERR_NOTFOUND where there is none. */
int open_existing_store(struct store **out, const struct global_options *g, struct err *e) MUST_USE;

/* The remote store's URL: `given`, else $TB2_BAKE_REMOTE, else NULL. */
const char *remote_url(const char *given);
/* $TB2_BAKE_REMOTE_LEASE, seconds, as remote_options.lease_ms. */
int remote_lease(int64_t *lease_ms, struct err *e) MUST_USE;
/* Opens the store (made where there is none) and the remote store with remote_url(url), which it
 * takes chunks from; neither where no URL is set. */
int open_remote(struct remote **out, struct store **s, const struct global_options *g,
                const char *url, struct err *e) MUST_USE;
/* From now on the first SIGINT sets global_options.drain, the next one global_options.cancel. */
void drain_first(void);

/* Reads --registries, or the file in the usual place that is there, and --ca; for
 * registry_network_fini. */
int open_network(struct registry_network *out, const struct global_options *g,
                 struct err *e) MUST_USE;

/* True if `name` is a command's. */
bool is_command(const char *name);

/* Prints an error's text, which may end with lines that a guest printed, and its hint, each line
 * after `indent` and all but the first further right; the hint after an arrow where there are such. */
void show_error(FILE *to, const char *indent, const struct err *e);

/* "1.5 GB", in 1000s as disks and registries count; returns `text`. */
enum { SIZE_TEXT_MAX = 24 };
const char *print_size(uint64_t size, char text[SIZE_TEXT_MAX]);
/* "4.2 s", "3 m 20 s", "5 h", "2 d"; returns `text`. */
const char *print_duration(int64_t ms, char text[SIZE_TEXT_MAX]);

struct amount_unit {
    const char *name;
    uint64_t factor;
};
/* A whole number and one of the units; without a unit the first counts. ERR_INPUT: it is no `what`. */
int parse_amount(uint64_t *out, const char *value, const struct amount_unit *units, size_t count,
                 const char *what, struct err *e) MUST_USE;
/* "90s", "30m", "12h", "7d"; a number alone is seconds. */
int parse_duration(int64_t *ms, const char *value, struct err *e) MUST_USE;

/* Copies text of a guest so that it cannot drive a terminal: control characters (C1 too) and bytes
 * that are no UTF-8 become spaces. Cut at a character where `to` is too small. */
void text_harmless(char *to, size_t to_len, const char *text);
/* How many bytes of the text fit into so many columns of a terminal, and the columns they take at
 * most. */
size_t text_fit(const char *text, size_t columns, size_t *width);
/* A log_sink: a line to the FILE that `ctx` is; NULL: stderr. */
void print_log(void *ctx, enum log_level level, const char *module, const char *message);
/* Makes print_log the sink, for warnings; with `verbose` for everything. */
void log_to_stderr(bool verbose);

/* Prints JSON to stdout, indented, with a newline. */
int print_json(const struct json *j, struct err *e) MUST_USE;

#endif
