/* SPDX-License-Identifier: MIT */
/*
 * Completions for bash, zsh and fish. What an option takes is told from the word that --help has for it:
 * FILE and SOCKET are files, DIR is a directory, others are left to the person.
 */
#include <stdio.h>
#include <string.h>

#include "cli/manual.h"

enum value_kind { VALUE_NONE, VALUE_FILE, VALUE_DIRECTORY, VALUE_OTHER };

static enum value_kind kind_of(const struct shown_option *o)
{
    if (!o->argument)
        return VALUE_NONE;
    if (strstr(o->argument, "FILE") || strstr(o->argument, "SOCKET"))
        return VALUE_FILE;
    return strcmp(o->argument, "DIR") == 0 ? VALUE_DIRECTORY : VALUE_OTHER;
}

/* A single-quoted word of a shell, on one line; zsh's brackets and colons are escaped. */
static void put_quoted(const char *text, size_t len, bool zsh)
{
    for (size_t i = 0; i < len; i++) {
        char c = text[i] == '\n' ? ' ' : text[i];
        if (c == '\'')
            fputs("'\\''", stdout);
        else if (zsh && strchr("[]:\\", c))
            printf("\\%c", c);
        else
            putchar(c);
    }
}

static size_t first_line(const char *text)
{
    return strcspn(text, "\n");
}

/* A shell's way to have all options of one command. */
struct writer {
    const char *command;
    enum value_kind kind; /* bash: only these */
    void (*put)(void *writer, const struct shown_option *o);
};

static void put_all(struct writer *w, const struct command *c)
{
    w->command = c->name;
    each_option(c, w->put, w);
    for (const struct option_row *row = global_rows; row->help; row++)
        w->put(w, &(struct shown_option){row->name, row->argument, row->help});
}

/* ---- bash ---- */

static void put_bash_name(void *writer, const struct shown_option *o)
{
    (void)writer;
    if (o->name)
        printf(" --%s", o->name);
}

static void put_bash_pattern(void *writer, const struct shown_option *o)
{
    const struct writer *w = writer;
    if (o->name && kind_of(o) == w->kind && o->argument[0] != '[')
        printf("|%s:--%s", w->command, o->name);
}

static void put_bash(const struct command_list *commands)
{
    static const struct {
        enum value_kind kind;
        const char *answer;
    } answers[] = {{VALUE_FILE, "COMPREPLY=($(compgen -f -- \"$cur\"))"},
                   {VALUE_DIRECTORY, "COMPREPLY=($(compgen -d -- \"$cur\"))"},
                   {VALUE_OTHER, ":"}};
    fputs(
        "# bash completion of tb2-bake; made by 'tb2-bake help --completion bash'\n"
        "_tb2_bake()\n{\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
        "    local command=bake words\n    case ${COMP_WORDS[1]} in\n    help",
        stdout);
    for (size_t i = 0; i < commands->count; i++)
        printf("|%s", commands->all[i]->name);
    fputs(") [ $COMP_CWORD -gt 1 ] && command=${COMP_WORDS[1]} ;;\n    esac\n    COMPREPLY=()\n"
          "    case $command:$prev in\n",
          stdout);
    for (size_t n = 0; n < ARRAY_LEN(answers); n++) {
        struct writer w = {.kind = answers[n].kind, .put = put_bash_pattern};
        fputs("    -", stdout);
        for (size_t i = 0; i < commands->count; i++)
            put_all(&w, commands->all[i]);
        printf(")\n        %s\n        return ;;\n", answers[n].answer);
    }
    puts("    esac\n    case $command in");
    struct writer w = {.put = put_bash_name};
    for (size_t i = 0; i < commands->count; i++) {
        printf("    %s) words='", commands->all[i]->name);
        put_all(&w, commands->all[i]);
        puts("' ;;");
    }
    fputs("    esac\n    [ $COMP_CWORD -gt 1 ] || words+=' help", stdout);
    for (size_t i = 0; i < commands->count; i++)
        printf(" %s", commands->all[i]->name);
    puts(" --version'\n    [ \"$command\" = bake ] || [[ $cur == -* ]] || COMPREPLY=($(compgen -f "
         "-- \"$cur\"))\n"
         "    COMPREPLY+=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
         "complete -o filenames -F _tb2_bake tb2-bake");
}

/* ---- zsh ---- */

static void put_zsh_option(void *writer, const struct shown_option *o)
{
    static const char *const actions[] = {[VALUE_FILE] = "_files",
                                          [VALUE_DIRECTORY] = "_files -/",
                                          [VALUE_OTHER] = " ",
                                          [VALUE_NONE] = ""};
    (void)writer;
    if (!o->name)
        return;
    enum value_kind kind = kind_of(o);
    bool optional = kind != VALUE_NONE && o->argument[0] == '[';
    printf("            '*--%s%s[", o->name, kind == VALUE_NONE ? "" : optional ? "=-" : "=");
    put_quoted(o->help, strlen(o->help), true);
    putchar(']');
    if (kind != VALUE_NONE) {
        fputs(optional ? "::" : ":", stdout);
        put_quoted(o->argument, strlen(o->argument), true);
        printf(":%s", actions[kind]);
    }
    puts("' \\");
}

static void put_zsh(const struct command_list *commands)
{
    puts("#compdef tb2-bake\n# made by 'tb2-bake help --completion zsh'\n_tb2_bake()\n{\n"
         "    local -a commands\n    local command=bake\n    commands=(");
    for (size_t i = 0; i < commands->count; i++) {
        const struct command *c = commands->all[i];
        printf("        '%s:", c->name);
        put_quoted(c->summary, first_line(c->summary), true);
        puts("'");
    }
    puts("    )\n    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
         "        _describe command commands\n        return\n    fi\n"
         "    if [[ $words[2] != -* ]]; then\n        command=$words[2]\n        shift words\n"
         "        (( CURRENT-- ))\n    fi\n    case $command in");
    struct writer w = {.put = put_zsh_option};
    for (size_t i = 0; i < commands->count; i++) {
        printf("    %s)\n        _arguments \\\n", commands->all[i]->name);
        put_all(&w, commands->all[i]);
        puts("            '*:argument:_files'\n        ;;");
    }
    puts("    esac\n}\n_tb2_bake \"$@\"");
}

/* ---- fish ---- */

static void put_fish_option(void *writer, const struct shown_option *o)
{
    const struct writer *w = writer;
    if (!o->name)
        return;
    enum value_kind kind = kind_of(o);
    static const char *const takes[] = {[VALUE_NONE] = "",
                                        [VALUE_FILE] = " -r -F",
                                        [VALUE_DIRECTORY] =
                                            " -x -a '(__fish_complete_directories)'",
                                        [VALUE_OTHER] = " -x"};
    bool optional = kind != VALUE_NONE && o->argument[0] == '[';
    printf("complete -c tb2-bake -n '__tb2_bake_command %s' -l %s%s -d '", w->command, o->name,
           optional ? "" : takes[kind]);
    put_quoted(o->help, strlen(o->help), false);
    puts("'");
}

static void put_fish(const struct command_list *commands)
{
    fputs("# fish completion of tb2-bake; made by 'tb2-bake help --completion fish'\n"
          "function __tb2_bake_command\n    set -l words (commandline -opc)\n"
          "    set -l found bake\n    if contains -- \"$words[2]\"",
          stdout);
    for (size_t i = 0; i < commands->count; i++)
        printf(" %s", commands->all[i]->name);
    puts("\n        set found $words[2]\n    end\n    test $found = $argv[1]\nend");
    for (size_t i = 0; i < commands->count; i++) {
        const struct command *c = commands->all[i];
        printf("complete -c tb2-bake -n __fish_use_subcommand -f -a %s -d '", c->name);
        put_quoted(c->summary, first_line(c->summary), false);
        puts("'");
    }
    struct writer w = {.put = put_fish_option};
    for (size_t i = 0; i < commands->count; i++)
        put_all(&w, commands->all[i]);
}

bool completion_print(const struct command_list *commands, const char *shell)
{
    static const struct {
        const char *shell;
        void (*put)(const struct command_list *commands);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        if (strcmp(shells[i].shell, shell) == 0) {
            shells[i].put(commands);
            return true;
        }
    }
    return false;
}
