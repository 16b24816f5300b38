/* SPDX-License-Identifier: MIT */
/* tb2-bake smoke ALIAS...: templates of the template server tried out in sandboxes. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "bake/smoke.h"
#include "base/mem.h"
#include "cli/options.h"
#include "cli/server_access.h"

enum { JOBS_DEFAULT = 4, JOBS_MAX = 64 };

struct arguments {
    const char *command; /* NULL: each template's own ready check */
    unsigned jobs;
};

static int take_command(void *arguments, const char *value, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->command = value;
    return 0;
}

static int take_jobs(void *arguments, const char *value, struct err *e)
{
    char *end = NULL;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || number < 1 || number > JOBS_MAX)
        return err_set(e, ERR_INPUT, "--server-jobs is a number from 1 to %d, not '%s'", JOBS_MAX,
                       value);
    ((struct arguments *)arguments)->jobs = (unsigned)number;
    return 0;
}

static const struct option_row rows[] = {
    {"command", "TEXT", "shell text that must succeed (default: the ready check)", take_command},
    {"server-jobs", "N", "sandboxes at once (default: 4)", take_jobs},
    {NULL, NULL, NULL, NULL},
};

/* The ready check of the template that this store has under the alias; "true" where it has none. */
static int find_command(char **out, struct store *s, const char *alias, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    struct err why = ERR_INIT;
    if (s && template_load(&t, s, alias, &why) == 0)
        return smoke_template_command(out, t, e);
    *out = mem_strdup("true");
    return *out ? 0 : err_nomem(e, "ready check");
}

static int fill(struct smoke_item *items, char **aliases, size_t count, const struct arguments *a,
                struct store *s, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        items[i] = (struct smoke_item){.alias = aliases[i], .err = ERR_INIT};
        if (!a->command) {
            rc = find_command(&items[i].command, s, aliases[i], e);
            continue;
        }
        items[i].command = mem_strdup(a->command);
        rc = items[i].command ? 0 : err_nomem(e, "command");
    }
    return rc;
}

static int print_document(const struct smoke_item *items, size_t count, struct err *e)
{
    AUTO_JSON struct json *list = json_new_array();
    for (size_t i = 0; i < count; i++) {
        const struct smoke_item *item = &items[i];
        struct json *j = json_new_object();
        struct json *times = json_new_object();
        bool good = item->err.class == ERR_NONE;
        json_set(j, "alias", json_new_string(item->alias));
        json_set(j, "outcome", json_new_string(good ? "works" : "failed"));
        for (int n = 0; n < E2B_SMOKE_STAGES; n++)
            json_set(times, smoke_stage_name((enum e2b_smoke_stage)n),
                     json_new_integer(item->result.stage_ms[n]));
        json_set(j, "stage_ms", times);
        if (item->result.exit_status >= 0)
            json_set(j, "exit_status", json_new_integer(item->result.exit_status));
        if (!good) {
            json_set(j, "stage", json_new_string(smoke_stage_name(item->result.stage)));
            json_set(j, "error_class", json_new_string(err_class_name(item->err.class)));
            json_set(j, "error", json_new_string(item->err.text));
        }
        json_append(list, j);
    }
    return print_json(list, e);
}

static void print_table(const struct smoke_item *items, size_t count)
{
    int width = 5;
    for (size_t i = 0; i < count; i++)
        width = (int)strlen(items[i].alias) > width ? (int)strlen(items[i].alias) : width;
    printf("%-*s  %-7s  %8s  %8s  %8s  %8s\n", width, "ALIAS", "OUTCOME", "RESOLVE", "CREATE",
           "EXEC", "DESTROY");
    for (size_t i = 0; i < count; i++) {
        char times[E2B_SMOKE_STAGES][SIZE_TEXT_MAX];
        for (int n = 0; n < E2B_SMOKE_STAGES; n++)
            print_duration(items[i].result.stage_ms[n], times[n]);
        printf("%-*s  %-7s  %8s  %8s  %8s  %8s\n", width, items[i].alias,
               items[i].err.class == ERR_NONE ? "works" : "failed", times[0], times[1], times[2],
               times[3]);
    }
    fflush(stdout);
    for (size_t i = 0; i < count; i++) {
        if (items[i].err.class == ERR_NONE)
            continue;
        fprintf(stderr, "\n%s: %s: ", items[i].alias, smoke_stage_name(items[i].result.stage));
        show_error(stderr, "", &items[i].err);
    }
}

static int smoke(struct global_options *g, const struct arguments *a, char **aliases, size_t count)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_E2B struct e2b *server = NULL;
    AUTO_FREE struct smoke_item *items = mem_array(count, sizeof(*items));
    if (!items)
        return report_error((err_nomem(&e, "templates"), &e));
    int rc = server_access_open(&server, g, &e);
    struct err none = ERR_INIT;
    if (rc == 0 && open_existing_store(&s, g, &none) < 0)
        s = NULL; /* aliases are enough */
    if (rc == 0)
        rc = fill(items, aliases, count, a, s, &e);
    int status = EXIT_ALL_READY;
    if (rc == 0) {
        smoke_all(server, items, count, a->jobs);
        if (g->json)
            rc = print_document(items, count, &e);
        else
            print_table(items, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (items[i].err.class != ERR_NONE)
            status = EXIT_SOME_FAILED;
        free(items[i].command);
    }
    if (rc < 0)
        return report_error(&e);
    return cancel_is_set(g->cancel) ? EXIT_INTERRUPTED : status;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {.jobs = JOBS_DEFAULT};
    int status = options_read(&command_smoke, g, &a, argc, argv);
    if (status >= 0)
        return status;
    if (optind == argc)
        return usage_error(&command_smoke, "which templates? Their aliases are missing");
    return smoke(g, &a, argv + optind, (size_t)(argc - optind));
}

const struct command command_smoke = {
    .name = "smoke",
    .arguments = "[options] ALIAS...",
    .summary = "Try templates of the template server out.\n\n"
               "A sandbox is started from each, its ready check run there, and the sandbox killed.",
    .options = rows,
    .notes =
        "The ready check is that of this store's template under the alias; where there is none,\n"
        "the sandbox must start and run 'true'. The server is that of E2B_API_URL or E2B_DOMAIN.\n"
        "Exit status: 0 all work, 1 one does not.",
    .run = run,
};
