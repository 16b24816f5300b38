/* SPDX-License-Identifier: MIT */
/* tb2-bake --tasks-dir DIR (--all | --tasks a,b,c): bakes. */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/ui.h"

struct arguments {
    struct bake_options bake;
    bool all;
    char *names;       /* the --tasks text, cut at its commas */
    const char **list; /* pointers into it */
    const char *recipe;
    char *recipe_path;
    const char **plain_http_hosts;
    size_t host_count;
    size_t host_capacity;
    char *api_key;
};

static void arguments_fini(struct arguments *a)
{
    free(a->names);
    free(a->list);
    free(a->recipe_path);
    free(a->plain_http_hosts);
    free(a->api_key);
}

static int cut_names(struct arguments *a, const char *text, struct err *e)
{
    free(a->names);
    free(a->list);
    a->names = mem_strdup(text);
    a->list = mem_array(strlen(text) / 2 + 1, sizeof(*a->list));
    if (!a->names || !a->list)
        return err_nomem(e, "task names");
    size_t count = 0;
    for (char *at = a->names; at;) {
        char *end = strchr(at, ',');
        if (end)
            *end++ = 0;
        if (*at)
            a->list[count++] = at;
        at = end;
    }
    if (count == 0)
        return err_set(e, ERR_INPUT, "--tasks names no task");
    a->bake.names = a->list;
    a->bake.name_count = count;
    return 0;
}

static int parse_jobs(struct arguments *a, const char *text, struct err *e)
{
    char *end = NULL;
    unsigned long jobs = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || jobs < 1 || jobs > 64)
        return err_set(e, ERR_INPUT, "--jobs is a number from 1 to 64, not '%s'", text);
    a->bake.jobs = (unsigned)jobs;
    return 0;
}

static int add_host(struct arguments *a, const char *host, struct err *e)
{
    int rc = mem_grow(&a->plain_http_hosts, &a->host_capacity, a->host_count + 2,
                      sizeof(*a->plain_http_hosts), e);
    if (rc < 0)
        return rc;
    a->plain_http_hosts[a->host_count++] = host;
    a->plain_http_hosts[a->host_count] = NULL;
    a->bake.plain_http_hosts = a->plain_http_hosts;
    return 0;
}

/* A path, or the name of a shipped recipe: installed, or beside the sources it was built from. */
static int find_recipe(struct arguments *a, struct err *e)
{
    static const char *const directories[] = {TB2_DATA_DIR "/recipes",
                                              TB2_SOURCE_DIR "/manifests/recipes"};
    const char *name = a->recipe ? a->recipe : "tb2";
    if (strchr(name, '/') || strchr(name, '.')) {
        a->bake.recipe_path = name;
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(directories); i++) {
        free(a->recipe_path);
        a->recipe_path = mem_printf("%s/%s.yaml", directories[i], name);
        if (!a->recipe_path)
            return err_nomem(e, "recipe");
        if (file_exists(AT_FDCWD, a->recipe_path)) {
            a->bake.recipe_path = a->recipe_path;
            return 0;
        }
    }
    err_set(e, ERR_INPUT, "no recipe named '%s' is shipped", name);
    return err_hint(e, "tb2 and demo are; a file of your own needs a path: --recipe ./my.yaml");
}

/* The key from the environment or a file, as the SDKs of the server read it. */
static int find_api_key(struct arguments *a, struct err *e)
{
    a->bake.e2b_api_url = getenv("E2B_API_URL");
    if (!a->bake.e2b_api_url || !*a->bake.e2b_api_url) {
        a->bake.e2b_api_url = NULL;
        return 0;
    }
    const char *key = getenv("E2B_API_KEY");
    const char *file = getenv("E2B_API_KEY_FILE");
    const char *home = getenv("HOME");
    if (key && *key) {
        a->api_key = mem_strdup(key);
    } else {
        AUTO_FREE char *path = file && *file
                                   ? mem_strdup(file)
                                   : mem_printf("%s/.config/e2b/api_key", home ? home : "");
        AUTO_BUF struct buf text;
        buf_init(&text, 4096);
        int rc = path ? file_read(AT_FDCWD, path, &text, e) : err_nomem(e, "API key");
        if (rc < 0) {
            err_in(e, "API key of the template server");
            return err_hint(e, "set E2B_API_KEY, or E2B_API_KEY_FILE to a file that holds it");
        }
        a->api_key = mem_strndup(buf_text(&text), strcspn(buf_text(&text), " \t\r\n"));
    }
    a->bake.e2b_api_key = a->api_key;
    return a->api_key ? 0 : err_nomem(e, "API key");
}

static int check_selection(const struct arguments *a, struct err *e)
{
    if (!a->bake.tasks_dir) {
        err_set(e, ERR_INPUT, "--tasks-dir is missing");
        return err_hint(e, "'tb2-bake bake --help' has the options");
    }
    if (a->all && a->bake.names)
        return err_set(e, ERR_INPUT, "--all and --tasks exclude each other");
    if (!a->all && !a->bake.names) {
        err_set(e, ERR_INPUT, "which tasks?");
        return err_hint(e, "give --all, or --tasks with names separated by commas");
    }
    return 0;
}

/* One option. *status is set when the program must end. */
static int take_option(struct arguments *a, struct global_options *g, int option, int *status,
                       struct err *e)
{
    switch (option) {
    case 'd':
        a->bake.tasks_dir = optarg;
        return 0;
    case 'A':
        a->all = true;
        return 0;
    case 't':
        return cut_names(a, optarg, e);
    case 'f':
        a->bake.force = true;
        return 0;
    case 'J':
        return parse_jobs(a, optarg, e);
    case 'r':
        a->recipe = optarg;
        return 0;
    case 'p':
        return add_host(a, optarg, e);
    default:
        *status = option_global(g, &command_bake, option, optarg);
        return 0;
    }
}

static int parse(struct arguments *a, struct global_options *g, int argc, char **argv, int *status,
                 struct err *e)
{
    static const struct option options[] = {{"tasks-dir", required_argument, NULL, 'd'},
                                            {"all", no_argument, NULL, 'A'},
                                            {"tasks", required_argument, NULL, 't'},
                                            {"force", no_argument, NULL, 'f'},
                                            {"jobs", required_argument, NULL, 'J'},
                                            {"recipe", required_argument, NULL, 'r'},
                                            {"plain-http", required_argument, NULL, 'p'},
                                            GLOBAL_LONG_OPTIONS,
                                            {NULL, 0, NULL, 0}};
    *status = -1;
    int option;
    int rc = 0;
    while (rc == 0 && *status < 0 &&
           (option = getopt_long(argc, argv, GLOBAL_SHORT_OPTIONS, options, NULL)) != -1)
        rc = take_option(a, g, option, status, e);
    if (rc < 0 || *status >= 0)
        return rc;
    if (optind < argc) {
        err_set(e, ERR_INPUT, "'%s' is not expected here", argv[optind]);
        return is_command(argv[optind])
                   ? err_hint(e, "the command comes first: tb2-bake %s ...", argv[optind])
                   : -ERR_INPUT;
    }
    rc = check_selection(a, e);
    if (rc == 0)
        rc = find_recipe(a, e);
    if (rc == 0)
        rc = find_api_key(a, e);
    return rc;
}

static int report_status(const struct bake_report *r)
{
    int status = EXIT_ALL_READY;
    for (size_t i = 0; i < r->count; i++) {
        if (r->results[i].outcome == OUTCOME_CANCELLED)
            return EXIT_INTERRUPTED;
        if (r->results[i].outcome == OUTCOME_FAILED)
            status = EXIT_SOME_FAILED;
    }
    return status;
}

static int bake(struct arguments *a, struct global_options *g)
{
    const char *term = getenv("TERM");
    bool live = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    enum ui_mode mode = g->json ? UI_JSON : live ? UI_LIVE : UI_PLAIN;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    struct ui *ui = NULL;
    struct bake_report report = {0};
    AUTO_NETWORK struct registry_network network = {0};
    int rc = open_network(&network, g, &e);
    if (rc == 0)
        rc = open_store(&s, g, &e);
    if (rc == 0)
        rc = ui_new(&ui, mode, g->verbose, &e);
    if (rc < 0)
        return report_error(&e);
    a->bake.cache_dir = g->cache_dir;
    a->bake.network = &network;
    a->bake.accel = g->accel;
    a->bake.cancel = g->cancel;
    a->bake.events = ui_event;
    a->bake.events_ctx = ui;
    rc = bake_run(&report, s, &a->bake, &e);
    ui_free(ui);
    if (rc < 0)
        return report_error(&e);
    ui_report(&report, mode);
    int status = report_status(&report);
    bake_report_fini(&report);
    return status;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    struct err e = ERR_INIT;
    int status = -1;
    int rc = parse(&a, g, argc, argv, &status, &e);
    if (rc < 0)
        status = report_error(&e);
    else if (status < 0)
        status = bake(&a, g);
    arguments_fini(&a);
    return status;
}

const struct command command_bake = {
    .name = "bake",
    .arguments = "--tasks-dir DIR (--all | --tasks NAME,...) [options]",
    .summary =
        "Bake tasks into warm templates.\n\n"
        "  --tasks-dir DIR    directory of task directories, each with a task.toml\n"
        "  --all              every task of the directory\n"
        "  --tasks NAME,...   only these\n"
        "  --force            bake also what is unchanged\n"
        "  --jobs N           tasks at once (default: from cores and memory)\n"
        "  --recipe FILE      recipe, or the name of a shipped one: tb2, demo (default: tb2)\n"
        "  --plain-http HOST  speak plain HTTP to this registry (loopback: always)\n\n"
        "With E2B_API_URL set (and E2B_API_KEY, or E2B_API_KEY_FILE), templates are registered\n"
        "with that server too.\n\n"
        "The table's times: PULL resolve and pull, DISK ingest and assemble, WARM boot, steps and\n"
        "ready check, SNAPSHOT snapshot and proof. Exit status: 0 all ready, 1 a task failed,\n"
        "2 wrong usage or input, 3 nothing was begun, 4 the store is in use, 130 cancelled.",
    .run = run,
};
