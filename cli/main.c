/* SPDX-License-Identifier: MIT */
/* Command table, options that all commands share, exit status. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/cmd.h"

#ifndef TB2_VERSION
#define TB2_VERSION "unknown"
#endif

static const struct command *const commands[] = {
    &command_bake, &command_ls, &command_show, &command_run, &command_verify, &command_disk,
};

/* Set before the signal handlers are, never changed after: what they act on. */
static struct cancel interrupt = {.fd = -1};

static void on_signal(int number)
{
    if (cancel_is_set(&interrupt))
        _exit(128 + number); /* the second one: at once; the VMs die with their starter */
    cancel_set(&interrupt);
}

static void catch_signals(void)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL); /* a closed stdout ends nothing half way */
}

/* A stream that is closed would give its number to the next file that is opened, and what is printed
 * would end up in that file. */
static void fill_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            openat(AT_FDCWD, "/dev/null", O_RDWR) != fd) /* stays open over exec, as they do */
            _exit(EXIT_ENVIRONMENT);
    }
}

static char *default_path(const char *own, const char *xdg, const char *below_home,
                          const char *without_home)
{
    const char *value = getenv(own);
    if (value && *value)
        return mem_strdup(value);
    value = getenv(xdg);
    if (value && value[0] == '/')
        return mem_printf("%s/tb2-bake", value);
    value = getenv("HOME");
    if (value && value[0] == '/')
        return mem_printf("%s/%s/tb2-bake", value, below_home);
    return mem_strdup(without_home);
}

/* The cache directory is given to programs that run elsewhere, so it must be absolute. */
static char *absolute(char *path)
{
    if (!path || path[0] == '/')
        return path;
    AUTO_FREE char *relative = path;
    AUTO_FREE char *cwd = getcwd(NULL, 0);
    return cwd ? mem_printf("%s/%s", cwd, relative) : NULL;
}

static int parse_accel(struct global_options *g, const char *value)
{
    static const char *const names[] = {
        [VM_ACCEL_AUTO] = "auto", [VM_ACCEL_KVM] = "kvm", [VM_ACCEL_TCG] = "tcg"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(value, names[i]) == 0) {
            g->accel = (enum vm_accel)i;
            return -1;
        }
    }
    fprintf(stderr, "tb2-bake: --accel is auto, kvm or tcg, not '%s'\n", value);
    return EXIT_USAGE;
}

int option_global(struct global_options *g, const struct command *c, int option, const char *value)
{
    switch (option) {
    case 's':
    case 'c': {
        char **field = option == 's' ? &g->store_path : &g->cache_dir;
        char *copy = mem_strdup(value);
        if (!copy)
            return EXIT_ENVIRONMENT;
        free(*field);
        *field = copy;
        return -1;
    }
    case 'a':
        return parse_accel(g, value);
    case 'j':
        g->json = true;
        return -1;
    case 'v':
        g->verbose = true;
        return -1;
    case 'h':
        return usage(c, true);
    default:
        fprintf(stderr, "Try 'tb2-bake %s --help'.\n", c->name);
        return EXIT_USAGE;
    }
}

int usage(const struct command *c, bool wanted)
{
    FILE *to = wanted ? stdout : stderr;
    fprintf(to, "usage: tb2-bake %s%s%s\n\n%s\n", strcmp(c->name, "bake") == 0 ? "[bake]" : c->name,
            c->arguments[0] ? " " : "", c->arguments, c->summary);
    fputs("\nFor all commands:\n"
          "  --store DIR    chunks, disks, templates, catalog (default: $TB2_BAKE_STORE or\n"
          "                 ~/.local/share/tb2-bake)\n"
          "  --cache DIR    guest kernel (default: $TB2_BAKE_CACHE or ~/.cache/tb2-bake)\n"
          "  --accel WHICH  auto, kvm or tcg (default: auto)\n"
          "  --json         results for machines, on stdout\n"
          "  --verbose      say more\n"
          "  --help         this text\n",
          to);
    return wanted ? EXIT_ALL_READY : EXIT_USAGE;
}

static int overview(bool wanted)
{
    FILE *to = wanted ? stdout : stderr;
    fputs("usage: tb2-bake --tasks-dir DIR (--all | --tasks NAME,...) [options]\n"
          "       tb2-bake COMMAND [options] [arguments]\n\ncommands:\n",
          to);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        fprintf(to, "  %-8s %.*s\n", commands[i]->name, (int)strcspn(commands[i]->summary, "\n"),
                commands[i]->summary);
    }
    fputs("\n'tb2-bake COMMAND --help' has the options of each.\n", to);
    return wanted ? EXIT_ALL_READY : EXIT_USAGE;
}

int report_error(const struct err *e)
{
    struct err shown = *e;
    fprintf(stderr, "tb2-bake: %s\n", text_make_harmless(shown.text));
    if (shown.hint[0])
        fprintf(stderr, "  %s\n", text_make_harmless(shown.hint));
    if (e->class == ERR_INPUT)
        return EXIT_USAGE;
    if (e->class == ERR_BUSY)
        return EXIT_BUSY;
    return e->class == ERR_CANCELLED ? EXIT_INTERRUPTED : EXIT_ENVIRONMENT;
}

int open_store(struct store **out, const struct global_options *g, struct err *e)
{
    return store_open(out, g->store_path, e);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

static int dispatch(struct global_options *g, int argc, char **argv)
{
    if (argc < 2)
        return overview(false);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)
        return overview(true);
    if (strcmp(argv[1], "--version") == 0) {
        puts("tb2-bake " TB2_VERSION);
        return EXIT_ALL_READY;
    }
    /* Without a command word the line is a bake, as the script that this program replaces. */
    if (argv[1][0] == '-')
        return command_bake.run(g, argc, argv);
    const struct command *c = find_command(argv[1]);
    if (!c) {
        fprintf(stderr, "tb2-bake: there is no command '%s'\n\n", argv[1]);
        return overview(false);
    }
    return c->run(g, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    struct err e = ERR_INIT;
    struct global_options g = {
        .store_path =
            default_path("TB2_BAKE_STORE", "XDG_DATA_HOME", ".local/share", "/var/lib/tb2-bake"),
        .cache_dir = absolute(
            default_path("TB2_BAKE_CACHE", "XDG_CACHE_HOME", ".cache", "/var/cache/tb2-bake")),
        .cancel = &interrupt,
    };
    if (!g.store_path || !g.cache_dir || cancel_init(&interrupt, &e) < 0) {
        fputs("tb2-bake: out of memory\n", stderr);
        return EXIT_ENVIRONMENT;
    }
    catch_signals();
    int status = dispatch(&g, argc, argv);
    errno = 0; /* of an earlier write that failed nothing is known but that it did */
    bool flushed = fflush(stdout) == 0 && !ferror(stdout);
    if (!flushed && status == EXIT_ALL_READY) {
        fprintf(stderr, "tb2-bake: writing the result: %s\n",
                errno ? strerror(errno) : "not all of it could be written");
        status = EXIT_ENVIRONMENT;
    }
    free(g.store_path);
    free(g.cache_dir);
    return status;
}
