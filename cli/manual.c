/* SPDX-License-Identifier: MIT */
/* tb2-bake(1), in the man(7) macros. */
#include "cli/manual.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- Options ---- */

void each_option(const struct command *c, void (*visit)(void *ctx, const struct shown_option *o),
                 void *ctx)
{
    for (const struct option_row *row = c->options; row && row->help; row++)
        visit(ctx, &(struct shown_option){row->name, row->argument, row->help});
}

/* ---- roff ---- */

/* Text of one line; a backslash, a hyphen and what begins a request are escaped. */
static void put_line(const char *text, size_t len)
{
    if (len > 0 && (text[0] == '.' || text[0] == '\''))
        fputs("\\&", stdout);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\\')
            fputs("\\e", stdout);
        else if (text[i] == '-')
            fputs("\\-", stdout);
        else
            putchar(text[i]);
    }
    putchar('\n');
}

/* Paragraphs are filled; lines that are set in stay as they are. */
static void put_text(const char *text)
{
    bool kept = false;
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        bool set_in = line[0] == ' ';
        if (set_in != kept)
            puts(set_in ? ".PP\n.nf" : ".fi");
        kept = set_in;
        if (len == 0)
            puts(".PP");
        else
            put_line(line, len);
        line += len + (line[len] == '\n');
    }
    if (kept)
        puts(".fi");
}

static void put_option(void *ctx, const struct shown_option *o)
{
    (void)ctx;
    if (!o->name) {
        fputs(".PP\n", stdout);
        put_line(o->help, strlen(o->help));
        return;
    }
    fputs(".TP\n.B ", stdout);
    char name[128];
    bool optional = o->argument && o->argument[0] == '[';
    snprintf(name, sizeof(name), "--%s%s%s", o->name, o->argument && !optional ? " " : "",
             o->argument ? o->argument : "");
    put_line(name, strlen(name));
    put_text(o->help);
}

static void put_command(const struct command *c)
{
    printf(".SS %s\n.B tb2\\-bake %s\n", c->name, c->name);
    if (c->arguments[0])
        put_line(c->arguments, strlen(c->arguments));
    puts(".PP");
    const char *rest = strstr(c->summary, "\n\n");
    put_line(c->summary, strcspn(c->summary, "\n"));
    each_option(c, put_option, NULL);
    if (rest) {
        puts(".PP");
        put_text(rest + 2);
    }
    if (c->notes) {
        puts(".PP");
        put_text(c->notes);
    }
}

static void put_environment(void)
{
    static const struct {
        const char *name;
        const char *help;
    } variables[] = {
        {"TB2_BAKE_STORE", "the store, where --store does not say"},
        {"TB2_BAKE_CACHE", "the cache, where --cache does not say"},
        {"TB2_BAKE_REGISTRIES",
         "mirrors and limits of registries, where --registries does not say"},
        {"TB2_BAKE_REMOTE", "the remote store, where --remote does not say"},
        {"TB2_BAKE_REMOTE_LEASE", "seconds after which a baker that is silent has lost its claims"},
        {"E2B_API_URL", "a template server that templates are registered with"},
        {"E2B_API_KEY", "its key"},
        {"E2B_API_KEY_FILE", "a file that holds its key"},
        {"REGISTRY_AUTH_FILE, DOCKER_CONFIG", "where logins for registries are"},
        {"HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "proxies"},
    };
    puts(".SH ENVIRONMENT");
    for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
        printf(".TP\n.B %s\n", variables[i].name);
        put_line(variables[i].help, strlen(variables[i].help));
    }
}

void manual_print(const struct command_list *commands)
{
    puts(
        ".TH TB2\\-BAKE 1 \"\" tb2\\-bake \"User Commands\"\n.SH NAME\n"
        "tb2\\-bake \\- turn tasks and their images into warm sandbox templates\n.SH SYNOPSIS\n"
        ".B tb2\\-bake\n\\-\\-tasks\\-dir DIR (\\-\\-all | \\-\\-tasks NAME,...) [options]\n.br\n"
        ".B tb2\\-bake\nCOMMAND [options] [arguments]\n.br\n.B tb2\\-bake help\n[COMMAND | "
        "\\-\\-man | \\-\\-completion SHELL]\n.SH DESCRIPTION\n"
        "For each task of a set, tb2\\-bake pulls the OCI image, makes a disk of it, boots that in "
        "a\n"
        "microVM, runs a recipe, and keeps a snapshot that starts from memory. Work that tasks "
        "share\n"
        "is done once, and again only for what changed. Without a command it bakes.\n.SH COMMANDS");
    for (size_t i = 0; i < commands->count; i++)
        put_command(commands->all[i]);
    puts(".SH COMMON OPTIONS");
    for (const struct option_row *row = global_rows; row->help; row++)
        put_option(NULL, &(struct shown_option){row->name, row->argument, row->help});
    puts(".SH EXIT STATUS\n0 done, all ready; 1 a task failed; 2 wrong usage or input; 3 the "
         "machine, the\n"
         "store or the far end would not let it; 4 another process holds what it needs; 5 nothing "
         "to do\n"
         "(with \\-\\-detailed\\-status); 6 failed for nothing but rate limits; 130 cancelled. "
         "\\fBrun\\fR "
         "exits\nwith its command's status, or 125.");
    put_environment();
    puts(".SH FILES\n.TP\n.I ~/.local/share/tb2\\-bake\nthe store; without HOME, "
         "/var/lib/tb2\\-bake\n"
         ".TP\n.I ~/.cache/tb2\\-bake\nthe cache; without HOME, /var/cache/tb2\\-bake\n"
         ".TP\n.I ~/.config/tb2\\-bake/registries.yaml, /etc/tb2\\-bake/registries.yaml\n"
         "mirrors, certificates and limits of registries");
}
