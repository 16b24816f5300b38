/* SPDX-License-Identifier: MIT */
/* Options as a table: getopt_long gets its list from it, and people their help. */
#include "cli/options.h"

#include <assert.h>
#include <getopt.h>
#include <string.h>

enum {
    OPTION_FIRST = 256, /* values of getopt_long from here on are rows */
    NAME_WIDTH_MAX = 26 /* a longer one has its help on the next line */
};

const struct option_row global_rows[] = {
    {"store", "DIR",
     "chunks, disks, templates, catalog (default: $TB2_BAKE_STORE or\n~/.local/share/tb2-bake)",
     NULL},
    {"cache", "DIR", "guest kernel (default: $TB2_BAKE_CACHE or ~/.cache/tb2-bake)", NULL},
    {"registries", "FILE",
     "mirrors and limits of registries (default: $TB2_BAKE_REGISTRIES,\n"
     "~/.config/tb2-bake/registries.yaml, /etc/tb2-bake/registries.yaml)",
     NULL},
    {"ca", "FILE", "CA certificates to trust beside the system's", NULL},
    {"vmm", "WHICH", "auto, firecracker or qemu (default: auto, which says with --verbose why)",
     NULL},
    {"cpu-template", "NAME", "processor that Firecracker gives to guests, such as T2 or T2A", NULL},
    {"accel", "WHICH", "auto, kvm or tcg: KVM or emulation (default: auto, KVM if it works)", NULL},
    {"json", NULL, "results for machines, on stdout", NULL},
    {"verbose", NULL, "say more", NULL},
    {"help", NULL, "this text; -h is the same", NULL},
    {NULL, NULL, NULL, NULL},
};

static int argument_kind(const struct option_row *row)
{
    if (!row->argument)
        return no_argument;
    return row->argument[0] == '[' ? optional_argument : required_argument;
}

/* The common options, then the table's. */
static void fill_list(struct option list[OPTIONS_MAX], const struct command *c)
{
    const struct option common[] = {GLOBAL_LONG_OPTIONS};
    size_t count = 0;
    for (size_t i = 0; i < ARRAY_LEN(common); i++)
        list[count++] = common[i];
    for (size_t i = 0; c->options && c->options[i].help; i++) {
        const struct option_row *row = &c->options[i];
        assert(count + 1 < OPTIONS_MAX);
        if (row->name)
            list[count++] =
                (struct option){row->name, argument_kind(row), NULL, OPTION_FIRST + (int)i};
    }
    list[count] = (struct option){NULL, 0, NULL, 0};
}

int options_parse(struct parsing *p, void *arguments, int argc, char **argv, struct err *e)
{
    const struct command *c = p->command;
    struct option list[OPTIONS_MAX];
    const char *short_options =
        c->operands_end_options ? "+" GLOBAL_SHORT_OPTIONS : GLOBAL_SHORT_OPTIONS;
    fill_list(list, c);
    p->status = -1;
    int option;
    int rc = 0;
    while (rc == 0 && p->status < 0 &&
           (option = getopt_long(argc, argv, short_options, list, NULL)) != -1) {
        if (option >= OPTION_FIRST)
            rc = c->options[option - OPTION_FIRST].take(arguments, optarg, e);
        else
            p->status = option_global(p->globals, c, option, optarg);
    }
    return rc;
}

int options_read(const struct command *c, struct global_options *g, void *arguments, int argc,
                 char **argv)
{
    struct err e = ERR_INIT;
    struct parsing p = {.command = c, .globals = g};
    return options_parse(&p, arguments, argc, argv, &e) < 0 ? report_error(&e) : p.status;
}

int options_end(const struct command *c, int count, int argc, char **argv)
{
    if (optind + count < argc)
        return usage_error(c, "'%s' is not expected here", argv[optind + count]);
    return -1;
}

int options_operand(const char **out, const struct command *c, const char *question, int argc,
                    char **argv)
{
    if (optind == argc)
        return usage_error(c, "%s", question);
    *out = argv[optind];
    return options_end(c, 1, argc, argv);
}

/* "--name ARGUMENT", "--name[=ARGUMENT]" */
static int print_name(const struct option_row *row, char *text, size_t len)
{
    const char *argument = row->argument ? row->argument : "";
    const char *between = !row->argument || argument[0] == '[' ? "" : " ";
    return snprintf(text, len, "--%s%s%s", row->name, between, argument);
}

static int names_width(const struct option_row *rows)
{
    int width = 0;
    char name[128];
    for (size_t i = 0; rows[i].help; i++) {
        int len = rows[i].name ? print_name(&rows[i], name, sizeof(name)) : 0;
        if (len > width && len <= NAME_WIDTH_MAX)
            width = len;
    }
    return width;
}

static void print_row(const struct option_row *row, int width)
{
    char name[128];
    int len = print_name(row, name, sizeof(name));
    printf("  %-*s", width, name);
    if (len > width)
        printf("\n  %*s", width, "");
    const char *at = row->help;
    for (;;) {
        size_t line = strcspn(at, "\n");
        printf("  %.*s\n", (int)line, at);
        if (!at[line])
            return;
        at += line + 1;
        printf("  %*s", width, "");
    }
}

void options_print(const struct option_row *rows)
{
    int width = names_width(rows);
    for (size_t i = 0; rows[i].help; i++) {
        if (rows[i].name)
            print_row(&rows[i], width);
        else
            printf("%s%s\n", i > 0 ? "\n" : "", rows[i].help);
    }
}
