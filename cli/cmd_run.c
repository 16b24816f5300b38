/* SPDX-License-Identifier: MIT */
/* tb2-bake run, exec, shell, kept: commands in copies of templates, and copies that are kept. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cmd.h"
#include "cli/options.h"
#include "cli/template_place.h"
#include "cli/terminal.h"

enum { STDIN_MAX = 16 << 20, WHY_SHOWN_MAX = 256 };

/* What run, exec and shell are told. */
struct session {
    struct template_place place;
    const char *keep; /* name to keep the copy under */
    bool cold, no_prefetch, tty;
    bool kept;    /* the alias is that of a kept copy */
    bool discard; /* which stays as it was */
};

static int take_cold(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct session *s = arguments;
    s->cold = true;
    return 0;
}

static int take_no_prefetch(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct session *s = arguments;
    s->no_prefetch = true;
    return 0;
}

static int take_tty(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct session *s = arguments;
    s->tty = true;
    return 0;
}

static int take_keep(void *arguments, const char *value, struct err *e UNUSED)
{
    struct session *s = arguments;
    s->keep = value;
    return 0;
}

static int take_kept(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct session *s = arguments;
    s->kept = true;
    return 0;
}

static int take_discard(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct session *s = arguments;
    s->discard = true;
    return 0;
}

#define NO_PREFETCH_ROW                                                                            \
    {                                                                                              \
        "no-prefetch", NULL, "take chunks from there only when they are read", take_no_prefetch    \
    }
#define KEEP_ROW                                                                                   \
    {                                                                                              \
        "keep", "NAME",                                                                            \
            "keep the copy, as the command leaves it, under this name, for exec and\n"             \
            "shell --kept",                                                                        \
            take_keep                                                                              \
    }
#define COLD_ROW                                                                                   \
    {                                                                                              \
        "cold", NULL,                                                                              \
            "boot the template's disk and start what the recipe starts, without\n"                 \
            "its memory: works with any QEMU and accelerator",                                     \
            take_cold                                                                              \
    }
#define TTY_ROW                                                                                    \
    {                                                                                              \
        "tty", NULL, "give the command a terminal, which this one is then", take_tty               \
    }
#define DISCARD_ROW                                                                                \
    {                                                                                              \
        "discard", NULL, "leave the kept copy as it was", take_discard                             \
    }

static const struct option_row run_rows[] = {
    REMOTE_ROW, NO_PREFETCH_ROW, TAP_ROW, KEEP_ROW, COLD_ROW, TTY_ROW, {NULL, NULL, NULL, NULL},
};

static const struct option_row exec_rows[] = {
    TAP_ROW,
    TTY_ROW,
    DISCARD_ROW,
    {NULL, NULL, NULL, NULL},
};

static const struct option_row shell_rows[] = {
    REMOTE_ROW,  NO_PREFETCH_ROW,
    TAP_ROW,     {"kept", NULL, "ALIAS is the name of a kept copy", take_kept},
    DISCARD_ROW, KEEP_ROW,
    COLD_ROW,    {NULL, NULL, NULL, NULL},
};

/* ---- Input and output ---- */

static int forward_output(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    (void)ctx;
    FILE *to = stream == 2 ? stderr : stdout;
    if (fwrite(data, 1, len, to) != len || fflush(to) != 0)
        return err_sys(e, "writing the command's output");
    return 0;
}

/* What is piped into the command: nothing when stdin is a terminal or closed. */
static int read_stdin(struct buf *out, const struct cancel *c, struct err *e)
{
    if (isatty(STDIN_FILENO))
        return 0;
    for (;;) {
        struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                               {.fd = c->fd, .events = POLLIN}};
        if (poll(fds, ARRAY_LEN(fds), -1) < 0 && errno != EINTR)
            return err_sys(e, "stdin");
        int rc = cancel_check(c, e);
        if (rc < 0)
            return rc;
        if (!fds[0].revents)
            continue;
        char piece[65536];
        ssize_t n = read(STDIN_FILENO, piece, sizeof(piece));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n == 0 || (n < 0 && errno == EBADF))
            return 0;
        rc = n < 0 ? err_sys(e, "reading") : buf_add(out, piece, (size_t)n, e);
        if (rc < 0)
            return err_in(e, "stdin");
    }
}

static int exit_status(const struct agent_result *r)
{
    return r->exited ? r->status : 128 + r->status;
}

/* ---- A session ---- */

/* Where it happens: a template's copy, or a kept one, which is locked. */
struct opened {
    struct store *store;
    struct remote *remote;
    struct template *template;
    int lock;
};

static void opened_fini(struct opened *o)
{
    template_free(o->template);
    file_close(&o->lock);
    remote_close(o->remote);
    store_close(o->store);
}
#define AUTO_OPENED CLEANUP(opened_fini)

static int open_session(struct opened *o, struct session *s, struct err *e)
{
    if (!s->kept)
        return open_template(&o->template, &o->store, &o->remote, &s->place, e);
    int rc = open_existing_store(&o->store, s->place.g, e);
    if (rc == 0)
        rc = kept_open(&o->template, &o->lock, o->store, s->place.alias, e);
    if (rc == 0 && !s->discard)
        s->keep = s->place.alias;
    return rc;
}

/* Why the copy is kept: what it has been said of it, if it was kept before. */
static const char *why_kept(const struct template *t)
{
    const struct json *kept = json_member(t->document, "kept");
    const char *why = kept ? json_as_string(json_member(kept, "why")) : NULL;
    return why ? why : "run --keep";
}

/* With a terminal on both ends, or with what is piped in as it comes. */
static int run_interactive(const struct opened *o, const struct template_use *use,
                           const struct template_command *command, bool tty,
                           struct agent_result *result, struct err *e)
{
    struct template_command own = *command;
    struct terminal *terminal = NULL;
    struct agent_live live = {.input_fd = STDIN_FILENO, .resize_fd = -1};
    int rc = 0;
    if (tty)
        rc = terminal_open(&terminal, &live, e);
    own.live = &live;
    own.term = tty ? terminal_type() : NULL;
    if (rc == 0)
        rc = template_run(o->template, o->store, use, &own, result, e);
    terminal_close(terminal);
    return rc;
}

/* Runs the command (argv NULL: a shell); returns the exit status. */
static int run_session(struct session *s, const char *const *argv)
{
    struct err e = ERR_INIT;
    struct agent_result result = {0};
    struct global_options *g = s->place.g;
    AUTO_OPENED struct opened o = {.lock = -1};
    AUTO_BUF struct buf input;
    buf_init(&input, STDIN_MAX);
    int rc = open_session(&o, s, &e);
    struct template_use use = template_use_of(&s->place);
    use.cold = s->cold;
    use.keep = s->keep;
    use.no_prefetch = s->no_prefetch;
    struct template_command command = {.argv = argv, .output = forward_output};
    if (rc == 0 && s->keep)
        use.why = why_kept(o.template);
    if (rc == 0 && (s->tty || !argv)) {
        rc = run_interactive(&o, &use, &command, s->tty, &result, &e);
    } else if (rc == 0) {
        rc = read_stdin(&input, g->cancel, &e);
        command.input = input.data;
        command.input_len = input.len;
        if (rc == 0)
            rc = template_run(o.template, o.store, &use, &command, &result, &e);
    }
    if (rc < 0) {
        report_error(&e);
        return e.class == ERR_CANCELLED ? EXIT_INTERRUPTED : EXIT_TOOL_FAILED;
    }
    return exit_status(&result);
}

/* ALIAS [--] COMMAND: an exit status, or -1 to go on with `optind` at the command. */
static int parse_command(struct session *s, const struct command *c, const char *question, int argc,
                         char **argv)
{
    int status = options_read(c, s->place.g, s, argc, argv);
    if (status >= 0)
        return status;
    if (optind >= argc || strcmp(argv[optind - 1], "--") == 0)
        return usage_error(c, "%s", question);
    s->place.alias = argv[optind++];
    if (optind < argc && strcmp(argv[optind], "--") == 0)
        optind++;
    if (optind >= argc)
        return usage_error(c, "which command? It stands after the alias");
    return -1;
}

static int check_session(const struct session *s, const struct command *c)
{
    if (s->cold && (s->keep || s->kept))
        return usage_error(c, "a copy is kept with its memory: not with --cold");
    if (s->kept && s->keep)
        return usage_error(c, "a kept copy is kept under the name that it has: --kept or --keep");
    if (s->tty && !isatty(STDIN_FILENO))
        return usage_error(c, "--tty needs a terminal on stdin");
    return -1;
}

static int run_run(struct global_options *g, int argc, char **argv)
{
    struct session s = {.place = {.g = g}};
    int status =
        parse_command(&s, &command_run, "which template? Its alias is missing", argc, argv);
    if (status < 0)
        status = check_session(&s, &command_run);
    return status >= 0 ? status : run_session(&s, (const char *const *)argv + optind);
}

#define STATUS_NOTES                                                                               \
    "Exits with the command's status, 128 + n after signal n, 125 when the command could\n"        \
    "not be run."

const struct command command_run = {
    .name = "run",
    .arguments = "[options] ALIAS -- COMMAND [ARGUMENT...]",
    .summary = "Restore a template, run a command in it, throw the copy away.",
    .options = run_rows,
    .operands_end_options = true,
    .notes =
        "The command's stdin is what is piped in, which is read to its end first; nothing from a\n"
        "terminal, unless --tty is given.\n\n" STATUS_NOTES,
    .run = run_run,
};

static int run_exec(struct global_options *g, int argc, char **argv)
{
    struct session s = {.place = {.g = g}, .kept = true};
    int status =
        parse_command(&s, &command_exec, "which kept copy? Its name is missing", argc, argv);
    if (status < 0)
        status = check_session(&s, &command_exec);
    return status >= 0 ? status : run_session(&s, (const char *const *)argv + optind);
}

const struct command command_exec = {
    .name = "exec",
    .arguments = "[options] NAME -- COMMAND [ARGUMENT...]",
    .summary = "Run a command in a kept copy, which goes on from there.",
    .options = exec_rows,
    .operands_end_options = true,
    .notes = "Copies are kept by 'bake --keep' when a task fails, and by 'run --keep NAME'; their\n"
             "programs stand still between two commands. stdin is as with 'run'.\n\n" STATUS_NOTES,
    .run = run_exec,
};

static int run_shell(struct global_options *g, int argc, char **argv)
{
    struct session s = {.place = {.g = g}};
    int status = options_read(&command_shell, g, &s, argc, argv);
    if (status < 0)
        status = options_operand(&s.place.alias, &command_shell,
                                 "which template? Its alias is missing", argc, argv);
    s.tty = isatty(STDIN_FILENO);
    if (status < 0)
        status = check_session(&s, &command_shell);
    return status >= 0 ? status : run_session(&s, NULL);
}

const struct command command_shell = {
    .name = "shell",
    .arguments = "[options] ALIAS",
    .summary = "A shell in a copy of a template, which is thrown away after it.",
    .options = shell_rows,
    .notes =
        "bash if it runs there, else sh, as the template's user in its work directory. Without a\n"
        "terminal on stdin, commands are read from there. A kept copy goes on from where the "
        "shell\n"
        "leaves it.\n\n" STATUS_NOTES,
    .run = run_shell,
};

/* ---- kept ---- */

static int list_kept(const struct global_options *g, struct store *s, struct err *e)
{
    char **names = NULL;
    size_t count = 0;
    AUTO_JSON struct json *list = json_new_array();
    int rc = kept_list(&names, &count, s, e);
    if (rc == 0 && count == 0 && !g->json)
        fprintf(stderr, "no kept copies in %s\n", g->store_path);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        AUTO_TEMPLATE struct template *t = NULL;
        struct err damage = ERR_INIT;
        if (kept_peek(&t, s, names[i], &damage) < 0) {
            fprintf(stderr, "tb2-bake: %s: %s\n", names[i], damage.text);
            continue;
        }
        const char *why = why_kept(t);
        if (g->json) {
            struct json *j = json_new_object();
            json_set(j, "name", json_new_string(names[i]));
            json_set(j, "task", json_new_string(t->task));
            json_set(j, "why", json_new_string(why));
            json_append(list, j);
        } else {
            char shown[WHY_SHOWN_MAX]; /* words of a guest may be in it */
            snprintf(shown, sizeof(shown), "%.*s", (int)strcspn(why, "\n"), why);
            printf("%s  %s  %s\n", names[i], t->task, text_make_harmless(shown));
        }
    }
    kept_names_free(names, count);
    return rc == 0 && g->json ? print_json(list, e) : rc;
}

static int run_kept(struct global_options *g, int argc, char **argv)
{
    int status = options_read(&command_kept, g, NULL, argc, argv);
    if (status >= 0)
        return status;
    bool remove = optind < argc && strcmp(argv[optind], "rm") == 0;
    if (optind < argc && !remove && strcmp(argv[optind], "ls") != 0)
        return usage_error(&command_kept, "'%s' is neither ls nor rm", argv[optind]);
    optind += optind < argc;
    if (remove && optind == argc)
        return usage_error(&command_kept, "which copies? Their names are missing");
    if (!remove && (status = options_end(&command_kept, 0, argc, argv)) >= 0)
        return status;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    int rc = open_existing_store(&s, g, &e);
    if (rc == 0 && !remove)
        rc = list_kept(g, s, &e);
    for (; rc == 0 && remove && optind < argc; optind++)
        rc = kept_remove(s, argv[optind], &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

const struct command command_kept = {
    .name = "kept",
    .arguments = "[ls | rm NAME...]",
    .summary = "List the kept copies, or remove some.",
    .notes = "'store gc' leaves them alone, and frees what removed ones took.",
    .run = run_kept,
};
