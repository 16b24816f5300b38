/* SPDX-License-Identifier: MIT */
/* tb2-bake attach, detach, devices: disks as devices of this machine. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/image_arguments.h"

/* Room on the disk of an image that is attached without a task: the suite's default. */
#define DEFAULT_FREE_SIZE ((uint64_t)10240 << 20)

enum { TRIES = 3 };

struct arguments {
    struct image_arguments images;
    const char *what; /* alias, image or disk */
    bool writable;
    bool foreground;
    bool ublk; /* asked for: no other will do */
    const char *socket;
    const char *tcp;
    const char *remote;
    bool complete;
    bool has_template; /* it is a template's disk */
    struct digest template;
};

static int take_rw(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->writable = true;
    return 0;
}

static int take_ublk(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->ublk = true;
    return 0;
}

static int take_nbd(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->socket = value;
    return 0;
}

static int take_nbd_tcp(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->tcp = value;
    return 0;
}

static int take_foreground(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->foreground = true;
    return 0;
}

static int take_remote(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->remote = value;
    return 0;
}

static int take_complete(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->complete = true;
    return 0;
}

static const struct option_row attach_rows[] = {
    {"rw", NULL, "writable: what is written is kept until it is detached", take_rw},
    {"ublk", NULL, "/dev/ublkbN and nothing else; needs root and Linux 6.5 or later", take_ublk},
    {"nbd", "SOCKET", "an NBD server on a unix socket", take_nbd},
    {"nbd-tcp", "HOST:PORT", "an NBD server for everyone who can connect", take_nbd_tcp},
    {"foreground", NULL, "serve in this process, until interrupted or detached", take_foreground},
    {"remote", "URL", "a remote store that gives what is not here (default: $TB2_BAKE_REMOTE)",
     take_remote},
    {"complete", NULL, "fetch all of it from there in the background", take_complete},
    {NULL, NULL, "Of an IMAGE:", NULL},
    IMAGE_OPTION_ROWS,
    PLATFORM_OPTION_ROW,
    {NULL, NULL, NULL, NULL},
};

/* An exit status, or -1 to go on. */
static int parse_attach(struct arguments *a, struct global_options *g, int argc, char **argv)
{
    int status = options_read(&command_attach, g, a, argc, argv);
    if (status >= 0)
        return status;
    if (a->ublk + !!a->socket + !!a->tcp > 1)
        return usage_error(&command_attach, "--ublk, --nbd and --nbd-tcp exclude one another");
    return options_operand(&a->what, &command_attach,
                           "which disk? An alias, an image or a disk is missing", argc, argv);
}

/* A disk by its digest, a template's by alias, else the image's, assembled now. */
static int find_disk(struct digest *out, struct store *s, struct remote *remote,
                     struct arguments *a, const struct global_options *g, struct err *e)
{
    const char *what = a->what;
    if (strncmp(what, "sha256:", 7) == 0) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        if (digest_parse(out, what, e) < 0)
            return err_set(e, ERR_INPUT, "'%s' is no digest", what);
        return store_get_map(s, out, &m, e);
    }
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = template_load(&t, s, what, e);
    if (rc == -ERR_NOTFOUND && remote && !strpbrk(what, "/:")) {
        err_clear(e);
        rc = remote_pull_template(remote, what, e);
        if (rc == 0)
            rc = template_load(&t, s, what, e);
    }
    if (rc == 0) {
        *out = t->disk;
        a->template = t->record;
        a->has_template = true;
    }
    if (rc != -ERR_NOTFOUND || !strpbrk(what, "/:"))
        return rc;
    err_clear(e);
    rc = image_arguments_open(&a->images, g, e);
    if (rc < 0)
        return rc;
    struct disk_options options = {
        .free_size = DEFAULT_FREE_SIZE, .images = a->images.options, .cancel = g->cancel};
    return disk_assemble(out, s, what, &options, e);
}

/* The store must be closed again before a server is forked, which opens it for itself. */
static int resolve(struct digest *out, const struct global_options *g, struct arguments *a,
                   struct err *e)
{
    AUTO_STORE struct store *s = NULL;
    AUTO_REMOTE struct remote *remote = NULL;
    int rc = open_remote(&remote, &s, g, a->remote, e);
    if (rc == 0 && !s)
        rc = open_store(&s, g, e);
    return rc < 0 ? rc : find_disk(out, s, remote, a, g, e);
}

/* ---- The server ---- */

static void tell_ready(void *ctx)
{
    const int *pipe_fd = ctx;
    ssize_t ignored = write(*pipe_fd, "r", 1);
    (void)ignored;
}

/* In the child: nothing of the caller's is kept, neither its terminal nor its streams. */
static int server_main(const struct global_options *g, int ready_fd)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *log = mem_printf("%s/devices/server.log", g->store_path);
    AUTO_FD int log_fd = -1;
    AUTO_FD int null_fd = -1;
    int rc = log ? file_open(&log_fd, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600, &e) : -1;
    if (rc == 0)
        rc = file_open(&null_fd, AT_FDCWD, "/dev/null", O_RDWR, 0, &e);
    /* An interrupt of the one who attached is none of the server's. */
    cancel_fini(g->cancel);
    if (rc == 0)
        rc = cancel_init(g->cancel, &e);
    if (rc < 0 || setsid() < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(null_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0)
        return EXIT_ENVIRONMENT;
    struct device_serve_options o = {.cancel = g->cancel, .ready = tell_ready, .ctx = &ready_fd};
    rc = device_serve(g->store_path, &o, &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

/* Starts a server and waits until it takes requests; one that finds another at work is fine. */
static int start_server(const struct global_options *g, struct err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(e, "starting the devices' server");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        _exit(server_main(g, ends[1]));
    }
    close(ends[1]);
    char byte;
    ssize_t got = pid < 0 ? -1 : read(ends[0], &byte, 1);
    close(ends[0]);
    if (pid < 0)
        return err_sys(e, "starting the devices' server");
    int status;
    if (got == 1 ||
        (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_BUSY))
        return 0;
    err_set(e, ERR_SYS, "the devices' server did not start");
    return err_hint(e, "why is in %s/devices/server.log", g->store_path);
}

static int attach(char **path, const struct global_options *g, const struct device_request *r,
                  struct err *e)
{
    bool no_server = true;
    int rc = 0;
    for (int i = 0; i < TRIES && no_server; i++) {
        if (i > 0)
            rc = start_server(g, e);
        if (rc < 0)
            return rc;
        err_clear(e);
        rc = device_attach(path, &no_server, g->store_path, r, e);
    }
    return rc;
}

/* ---- attach ---- */

/* Without a wish: ublk, or, where the kernel has none, NBD on a socket in the store. */
static int choose_front(struct device_request *r, const struct arguments *a,
                        const struct global_options *g, char **address, struct err *e)
{
    if (a->tcp) {
        r->front = DEVICE_NBD_TCP;
        r->address = a->tcp;
        return 0;
    }
    int rc = a->socket ? -1 : ublk_probe(e);
    if (rc == 0 || a->ublk)
        return rc;
    r->front = DEVICE_NBD;
    if (!a->socket) {
        fprintf(stderr, "tb2-bake: %s%s%s; the disk is served over NBD instead\n", e->text,
                e->hint[0] ? "; " : "", e->hint);
        err_clear(e);
        AUTO_FREE char *store = realpath(g->store_path, NULL);
        *address = store ? mem_printf("%s/devices/nbd-%d.sock", store, (int)getpid()) : NULL;
    } else if (a->socket[0] == '/') {
        *address = mem_strdup(a->socket);
    } else {
        AUTO_FREE char *here = getcwd(NULL, 0);
        *address = here ? mem_printf("%s/%s", here, a->socket) : NULL;
    }
    r->address = *address;
    return *address ? 0 : err_nomem(e, "address");
}

static int print_attached(const struct global_options *g, const char *path, const struct digest *d,
                          struct err *e)
{
    if (!g->json) {
        puts(path);
        return 0;
    }
    char text[DIGEST_TEXT_MAX];
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "device", json_new_string(path));
    json_set(j, "disk", json_new_string(digest_print(d, text)));
    return print_json(j, e);
}

/* Serves in this process until interrupted or detached: what a service manager wants. */
struct foreground {
    struct global_options *g;
    const struct device_request *request;
    pid_t asker;
};

static void attach_here(void *ctx)
{
    struct foreground *f = ctx;
    struct err e = ERR_INIT;
    fflush(NULL);
    f->asker = fork(); /* the server must be free to answer */
    if (f->asker != 0)
        return;
    char *path = NULL;
    bool no_server;
    int rc = device_attach(&path, &no_server, f->g->store_path, f->request, &e);
    if (rc == 0)
        rc = print_attached(f->g, path, f->request->disk, &e);
    fflush(stdout);
    _exit(rc < 0 ? report_error(&e) : EXIT_ALL_READY);
}

static int serve_here(struct global_options *g, const struct device_request *request)
{
    struct err e = ERR_INIT;
    struct foreground f = {.g = g, .request = request, .asker = -1};
    struct device_serve_options o = {.cancel = g->cancel, .ready = attach_here, .ctx = &f};
    int rc = device_serve(g->store_path, &o, &e);
    int status = 0;
    if (f.asker > 0)
        (void)waitpid(f.asker, &status, 0);
    if (rc < 0)
        return report_error(&e);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_ENVIRONMENT;
}

static int attach_one(struct arguments *a, struct global_options *g)
{
    struct err e = ERR_INIT;
    struct digest disk;
    AUTO_FREE char *address = NULL;
    AUTO_FREE char *path = NULL;
    struct device_request request = {.name = a->what,
                                     .disk = &disk,
                                     .writable = a->writable,
                                     .remote = remote_url(a->remote),
                                     .complete = a->complete};
    int rc = resolve(&disk, g, a, &e);
    if (a->has_template)
        request.template = &a->template;
    if (rc == 0)
        rc = choose_front(&request, a, g, &address, &e);
    if (rc == 0 && a->foreground)
        return serve_here(g, &request);
    if (rc == 0)
        rc = attach(&path, g, &request, &e);
    if (rc == 0)
        rc = print_attached(g, path, &disk, &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

static int run_attach(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    int status = parse_attach(&a, g, argc, argv);
    if (status < 0)
        status = attach_one(&a, g);
    image_arguments_fini(&a.images);
    return status;
}

/* ---- detach ---- */

static int take_flag(void *flag, const char *value UNUSED, struct err *e UNUSED)
{
    bool *set = flag;
    *set = true;
    return 0;
}

static const struct option_row detach_rows[] = {
    {"force", NULL, "also one that is mounted: its users get I/O errors", take_flag},
    {NULL, NULL, NULL, NULL},
};

static int run_detach(struct global_options *g, int argc, char **argv)
{
    struct err e = ERR_INIT;
    bool force = false;
    int status = options_read(&command_detach, g, &force, argc, argv);
    if (status >= 0)
        return status;
    if (optind == argc)
        return usage_error(&command_detach, "which device? Its name is missing");
    int worst = EXIT_ALL_READY;
    for (int i = optind; i < argc; i++) {
        err_clear(&e);
        if (device_detach(g->store_path, argv[i], force, &e) < 0)
            worst = report_error(&e);
    }
    return worst;
}

/* ---- devices ---- */

static const char *const state_names[] = {
    [DEVICE_SERVED] = "served", [DEVICE_DEAD] = "dead", [DEVICE_LOST] = "lost"};

static int print_devices_json(const struct device_list *l, struct err *e)
{
    AUTO_JSON struct json *list = json_new_array();
    for (size_t i = 0; i < l->count; i++) {
        const struct device *d = &l->all[i];
        char text[DIGEST_TEXT_MAX];
        struct json *j = json_new_object();
        json_set(j, "device", json_new_string(d->path));
        json_set(j, "name", json_new_string(d->name));
        json_set(j, "disk", json_new_string(digest_print(&d->disk, text)));
        json_set(j, "writable", json_new_bool(d->writable));
        json_set(j, "state", json_new_string(state_names[d->state]));
        json_append(list, j);
    }
    return print_json(list, e);
}

static void print_devices(const struct device_list *l)
{
    int width = 6;
    for (size_t i = 0; i < l->count; i++) {
        int len = (int)strlen(l->all[i].path);
        width = len > width ? len : width;
    }
    if (l->count > 0)
        printf("%-*s  %-6s  %-4s  %s\n", width, "DEVICE", "STATE", "MODE", "DISK");
    bool dead = false;
    for (size_t i = 0; i < l->count; i++) {
        const struct device *d = &l->all[i];
        printf("%-*s  %-6s  %-4s  %s\n", width, d->path, state_names[d->state],
               d->writable ? "rw" : "ro", d->name);
        dead = dead || d->state == DEVICE_DEAD;
    }
    if (dead)
        fputs("dead: the server died; 'tb2-bake devices --recover' takes over, 'detach' removes\n",
              stderr);
}

static int recover(const struct global_options *g, struct device_list *l, struct err *e)
{
    bool dead = false;
    for (size_t i = 0; i < l->count; i++)
        dead = dead || l->all[i].state == DEVICE_DEAD;
    if (!dead)
        return 0;
    int rc = start_server(g, e);
    device_list_fini(l);
    return rc < 0 ? rc : device_list(l, g->store_path, e);
}

static const struct option_row devices_rows[] = {
    {"recover", NULL, "take over what a dead server left", take_flag},
    {NULL, NULL, NULL, NULL},
};

static int run_devices(struct global_options *g, int argc, char **argv)
{
    struct err e = ERR_INIT;
    bool wants_recovery = false;
    int status = options_read(&command_devices, g, &wants_recovery, argc, argv);
    if (status < 0)
        status = options_end(&command_devices, 0, argc, argv);
    if (status >= 0)
        return status;
    struct device_list list = {0};
    AUTO_STORE struct store *s = NULL;
    int rc = open_existing_store(&s, g, &e);
    store_close(s); /* only to know that it is one; the server opens it for itself */
    s = NULL;
    if (rc == 0)
        rc = device_list(&list, g->store_path, &e);
    if (rc == 0 && wants_recovery)
        rc = recover(g, &list, &e);
    if (rc == 0 && g->json)
        rc = print_devices_json(&list, &e);
    else if (rc == 0)
        print_devices(&list);
    device_list_fini(&list);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

const struct command command_attach = {
    .name = "attach",
    .arguments = "(ALIAS | IMAGE | DISK) [--rw] [--ublk | --nbd SOCKET | --nbd-tcp HOST:PORT]\n"
                 "  [--remote URL [--complete]]",
    .summary = "Make a disk a device of this machine, and print the device's name.",
    .options = attach_rows,
    .notes = "Without a choice: ublk, or NBD where this machine has none. One process serves all\n"
             "devices of a store and ends with the last. A DISK is a digest, as `disk export`\n"
             "prints it; an IMAGE is pulled and assembled, not booted.",
    .run = run_attach,
};

const struct command command_detach = {
    .name = "detach",
    .arguments = "DEVICE... [--force]",
    .summary = "Remove devices, with what was written to them.",
    .options = detach_rows,
    .run = run_detach,
};

const struct command command_devices = {
    .name = "devices",
    .arguments = "[--recover]",
    .summary = "List attached devices: served, dead or lost.",
    .options = devices_rows,
    .notes =
        "A device is dead when its server died; lost when the machine was started anew since.\n"
        "'detach' removes either.",
    .run = run_devices,
};
