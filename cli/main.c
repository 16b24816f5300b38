/* SPDX-License-Identifier: MIT */
/* Command table, options that all commands share, exit status. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/manual.h"
#include "cli/options.h"

#ifndef TB2_VERSION
#define TB2_VERSION "unknown"
#endif

static const struct command *const commands[] = {
    &command_bake,    &command_plan,   &command_ls,     &command_show,   &command_run,
    &command_exec,    &command_shell,  &command_kept,   &command_verify, &command_golden,
    &command_recipe,  &command_push,   &command_smoke,  &command_server, &command_remote,
    &command_image,   &command_disk,   &command_store,  &command_attach, &command_detach,
    &command_devices, &command_report, &command_doctor,
};

/* Set before the signal handlers are, never changed after: what they act on. */
static struct cancel interrupt = {.fd = -1};

static struct cancel drain = {.fd = -1};
static volatile sig_atomic_t drains; /* 1 once a command has asked for it */

void drain_first(void)
{
    drains = 1;
}

static void on_signal(int number)
{
    if (number == SIGINT && drains && !cancel_is_set(&drain) && !cancel_is_set(&interrupt)) {
        cancel_set(&drain);
        return;
    }
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

static int parse_accel(struct global_options *g, const struct command *c, const char *value)
{
    static const char *const names[] = {
        [VM_ACCEL_AUTO] = "auto", [VM_ACCEL_KVM] = "kvm", [VM_ACCEL_TCG] = "tcg"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(value, names[i]) == 0) {
            g->accel = (enum vm_accel)i;
            return -1;
        }
    }
    return usage_error(c, "--accel is auto, kvm or tcg, not '%s'", value);
}

static int parse_vmm(struct global_options *g, const struct command *c, const char *value)
{
    const struct vm_driver *const drivers[] = {&vm_qemu, &vm_firecracker};
    g->vmm = NULL;
    if (strcmp(value, "auto") == 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(drivers); i++) {
        if (strcmp(value, vm_driver_name(drivers[i])) != 0)
            continue;
        g->vmm = drivers[i];
        return -1;
    }
    return usage_error(c, "--vmm is auto, firecracker or qemu, not '%s'", value);
}

/* The names are Firecracker's (swagger, CpuTemplate). */
static int parse_cpu_template(struct global_options *g, const struct command *c, const char *value)
{
    static const char *const names[] = {"C3", "T2", "T2S", "T2CL", "T2A", "V1N1"};
    g->cpu_template = NULL;
    if (strcmp(value, "none") == 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(value, names[i]) != 0)
            continue;
        g->cpu_template = names[i];
        return -1;
    }
    return usage_error(c, "--cpu-template is none, C3, T2, T2S, T2CL, T2A or V1N1, not '%s'",
                       value);
}

static int help(const struct command *c);

int option_global(struct global_options *g, const struct command *c, int option, const char *value)
{
    switch (option) {
    case 's':
    case 'c': {
        char **field = option == 's' ? &g->store_path : &g->cache_dir;
        if (!*value)
            return usage_error(c, "--%s names no directory", option == 's' ? "store" : "cache");
        char *copy = option == 's' ? mem_strdup(value) : absolute(mem_strdup(value));
        if (!copy) {
            fprintf(stderr, "tb2-bake: --%s %s: the path cannot be completed: %s\n",
                    option == 's' ? "store" : "cache", value, strerror(errno));
            return EXIT_ENVIRONMENT;
        }
        free(*field);
        *field = copy;
        return -1;
    }
    case 'a':
        return parse_accel(g, c, value);
    case 'm':
        return parse_vmm(g, c, value);
    case 'T':
        return parse_cpu_template(g, c, value);
    case 'j':
        g->json = true;
        return -1;
    case 'v':
        g->verbose = true;
        log_to_stderr(true);
        return -1;
    case 'N':
        g->registries = value;
        return -1;
    case 'C':
        g->ca_file = value;
        return -1;
    case 'h':
        return help(c);
    default:
        fprintf(stderr, "Try 'tb2-bake %s --help'.\n", c->name);
        return EXIT_USAGE;
    }
}

static void print_usage(FILE *to, const struct command *c)
{
    fprintf(to, "usage: tb2-bake %s%s%s\n", strcmp(c->name, "bake") == 0 ? "[bake]" : c->name,
            c->arguments[0] ? " " : "", c->arguments);
}

static int help(const struct command *c)
{
    print_usage(stdout, c);
    printf("\n%s\n", c->summary);
    if (c->options) {
        putchar('\n');
        options_print(c->options);
    }
    if (c->notes)
        printf("\n%s\n", c->notes);
    puts("\nFor all commands:");
    options_print(global_rows);
    return EXIT_ALL_READY;
}

int usage_error(const struct command *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("tb2-bake: ", stderr);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    print_usage(stderr, c);
    fprintf(stderr, "Try 'tb2-bake %s --help'.\n", c->name);
    return EXIT_USAGE;
}

static int overview(bool wanted)
{
    FILE *to = wanted ? stdout : stderr;
    fputs("usage: tb2-bake --tasks-dir DIR (--all | --tasks NAME,...) [options]\n"
          "       tb2-bake COMMAND [options] [arguments]\n"
          "       tb2-bake --version\n\ncommands:\n",
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
    fputs("tb2-bake: ", stderr);
    show_error(stderr, "", e);
    if (e->class == ERR_INPUT)
        return EXIT_USAGE;
    if (e->class == ERR_RATE)
        return EXIT_RATE_LIMITED;
    if (e->class == ERR_BUSY)
        return EXIT_BUSY;
    return e->class == ERR_CANCELLED ? EXIT_INTERRUPTED : EXIT_ENVIRONMENT;
}

int open_store(struct store **out, const struct global_options *g, struct err *e)
{
    return store_open(out, g->store_path, e);
}

int open_existing_store(struct store **out, const struct global_options *g, struct err *e)
{
    if (!file_exists(AT_FDCWD, g->store_path)) {
        err_set(e, ERR_NOTFOUND, "there is no store at %s", g->store_path);
        return err_hint(e, "a bake makes it; --store DIR names another");
    }
    return open_store(out, g, e);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

bool is_command(const char *name)
{
    return find_command(name) != NULL;
}

/* help [COMMAND], and what packages are made from: help --man, help --completion SHELL */
static int help_on(int argc, char **argv)
{
    const struct command_list list = {commands, ARRAY_LEN(commands)};
    if (argc == 0)
        return overview(true);
    if (strcmp(argv[0], "--man") == 0) {
        manual_print(&list);
        return EXIT_ALL_READY;
    }
    if (strcmp(argv[0], "--completion") == 0) {
        if (argc > 1 && completion_print(&list, argv[1]))
            return EXIT_ALL_READY;
        fputs("tb2-bake: --completion is for bash, zsh or fish\n", stderr);
        return EXIT_USAGE;
    }
    const struct command *c = find_command(argv[0]);
    if (c)
        return help(c);
    fprintf(stderr, "tb2-bake: there is no command '%s'\n\n", argv[0]);
    return overview(false);
}

static int dispatch(struct global_options *g, int argc, char **argv)
{
    static char name[] = "tb2-bake"; /* for getopt's messages */
    if (argc < 2)
        return overview(false);
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return overview(true);
    if (strcmp(word, "help") == 0)
        return help_on(argc - 2, argv + 2);
    if (strcmp(word, "--version") == 0) {
        puts("tb2-bake " TB2_VERSION);
        return EXIT_ALL_READY;
    }
    /* Without a command word the line is a bake, as the script that this program replaces. */
    if (word[0] == '-') {
        argv[0] = name;
        return command_bake.run(g, argc, argv);
    }
    const struct command *c = find_command(word);
    if (!c) {
        fprintf(stderr, "tb2-bake: there is no command '%s'\n\n", word);
        return overview(false);
    }
    argv[1] = name;
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
        .drain = &drain,
    };
    if (!g.store_path || !g.cache_dir || cancel_init(&interrupt, &e) < 0 ||
        cancel_init(&drain, &e) < 0) {
        fputs("tb2-bake: out of memory\n", stderr);
        return EXIT_ENVIRONMENT;
    }
    catch_signals();
    log_to_stderr(false);
    int status = dispatch(&g, argc, argv);
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == EXIT_ALL_READY) {
        fprintf(stderr, "tb2-bake: writing the result: %s\n",
                errno ? strerror(errno) : "not all of it could be written");
        status = EXIT_ENVIRONMENT;
    }
    free(g.store_path);
    free(g.cache_dir);
    return status;
}
