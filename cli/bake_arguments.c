/* SPDX-License-Identifier: MIT */
/* The command line of a bake: a table of options, and what is looked up for them. */
#include "cli/bake_arguments.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/push_arguments.h"

void bake_arguments_fini(struct bake_arguments *a)
{
    for (size_t i = 0; i < a->owned.count; i++) {
        char *text;
        memcpy(&text, &a->owned.items[i], sizeof(text));
        free(text);
    }
    free(a->owned.items);
    free(a->names.items);
    free(a->excludes.items);
    free(a->update_names.items);
    free(a->secrets.items);
    free(a->recipe_path);
    image_arguments_fini(&a->images);
    server_access_fini(&a->server);
}

/* ---- What options take ---- */

int bake_arguments_keep(struct bake_arguments *a, struct text_list *list, char *text, struct err *e)
{
    int rc = text_list_add(&a->owned, text, e);
    if (rc < 0)
        free(text);
    return rc < 0 ? rc : text_list_add(list, text, e);
}

/* Cuts `text` at any of `separators` into the list. */
static int cut_text(struct bake_arguments *a, struct text_list *list, char *text,
                    const char *separators, struct err *e)
{
    int rc = text_list_add(&a->owned, text, e);
    if (rc < 0) {
        free(text);
        return rc;
    }
    for (char *at = text; rc == 0 && at;) {
        size_t len = strcspn(at, separators);
        char *end = at[len] ? at + len : NULL;
        if (end)
            *end++ = 0;
        if (*at)
            rc = text_list_add(list, at, e);
        at = end;
    }
    return rc;
}

/* Blanks in the place of lines that begin with #. */
static void drop_comments(char *text)
{
    for (char *at = text; *at;) {
        char *start = at + strspn(at, " \t\r");
        char *end = start + strcspn(start, "\n");
        if (*start == '#')
            memset(start, ' ', (size_t)(end - start));
        at = *end ? end + 1 : end;
    }
}

int bake_arguments_read(struct bake_arguments *a, struct text_list *list, const char *path,
                        struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TASK_MANIFEST);
    int rc = file_read(AT_FDCWD, path, &text, e);
    if (rc == -ERR_NOTFOUND)
        e->class = ERR_INPUT;
    if (rc < 0)
        return err_in(e, "list of tasks");
    char *copy = mem_strdup(buf_text(&text));
    if (!copy)
        return err_nomem(e, "list of tasks");
    drop_comments(copy);
    return cut_text(a, list, copy, "\n\r\t ", e);
}

/* NAME,... or @FILE */
static int take_names(struct bake_arguments *a, struct text_list *list, const char *option,
                      const char *value, struct err *e)
{
    size_t before = list->count;
    char *copy = value[0] == '@' ? NULL : mem_strdup(value);
    if (value[0] != '@' && !copy)
        return err_nomem(e, "task names");
    int rc = copy ? cut_text(a, list, copy, ",", e) : bake_arguments_read(a, list, value + 1, e);
    if (rc == 0 && list->count == before)
        return err_set(e, ERR_INPUT, "--%s names no task", option);
    return rc;
}

static int take_number(unsigned *out, const char *option, const char *value, struct err *e)
{
    char *end = NULL;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || number < 1 || number > 64)
        return err_set(e, ERR_INPUT, "--%s is a number from 1 to 64, not '%s'", option, value);
    *out = (unsigned)number;
    return 0;
}

int take_tasks_dir(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.tasks.tasks_dir = value;
    return 0;
}

static int take_task_list(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.tasks.task_list = value;
    return 0;
}

static int take_images(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.tasks.images = value;
    return 0;
}

int take_all(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->all = true;
    return 0;
}

int take_tasks(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return take_names(a, &a->names, "tasks", value, e);
}

int take_exclude(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return take_names(a, &a->excludes, "exclude", value, e);
}

int take_shard(void *arguments, const char *value, struct err *e)
{
    enum { SHARDS_MAX = 10000 };
    struct bake_arguments *a = arguments;
    char *end = NULL;
    char *end_count = NULL;
    unsigned long shard = strtoul(value, &end, 10);
    unsigned long count = *end == '/' ? strtoul(end + 1, &end_count, 10) : 0;
    bool digits = *value >= '0' && *value <= '9' && *end == '/' && end[1] >= '0' && end[1] <= '9';
    if (!digits || *end_count || shard < 1 || shard > count || count > SHARDS_MAX) {
        err_set(e, ERR_INPUT, "--shard is I/N, share I of N, not '%s'", value);
        return err_hint(e, "the shares of four machines are 1/4, 2/4, 3/4 and 4/4");
    }
    a->bake.tasks.shard = (unsigned)shard;
    a->bake.tasks.shard_count = (unsigned)count;
    return 0;
}

static int take_only_failed(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.tasks.only_failed = true;
    return 0;
}

static int take_changed(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->changed = true;
    return 0;
}

static int take_force(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.force = true;
    return 0;
}

static int take_lock(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.pins.lock_path = value;
    return 0;
}

static int take_update_lock(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    a->bake.pins.update = true;
    return value ? take_names(a, &a->update_names, "update-lock", value, e) : 0;
}

static int take_frozen(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.pins.frozen = true;
    return 0;
}

static int take_since(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.pins.since_path = value;
    return 0;
}

static int take_report(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->reports.html = value;
    return 0;
}

static int take_junit(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->reports.junit = value;
    return 0;
}

static int take_markdown(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->reports.markdown = value;
    return 0;
}

static int take_metrics(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->reports.metrics = value;
    return 0;
}

static int take_jobs(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    unsigned jobs = 0;
    int rc = take_number(&jobs, "jobs", value, e);
    a->bake.limits.cpu = jobs;
    a->bake.limits.vm = jobs;
    return rc;
}

static int take_net_jobs(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return take_number(&a->bake.limits.network, "net-jobs", value, e);
}

int take_vm_jobs(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return take_number(&a->bake.limits.vm, "vm-jobs", value, e);
}

static int take_server_jobs(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return take_number(&a->bake.limits.server, "server-jobs", value, e);
}

int take_memory(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    char *end = NULL;
    unsigned long long mb = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || mb < 1 || mb > 1U << 24)
        return err_set(e, ERR_INPUT, "--vm-memory is a number of MB, not '%s'", value);
    a->bake.limits.memory_mb = mb;
    return 0;
}

static int take_detailed_status(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->detailed_status = true;
    return 0;
}

static int take_level(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    char *end = NULL;
    unsigned long level = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || level < CHUNK_LEVEL_MIN || level > CHUNK_LEVEL_MAX)
        return err_set(e, ERR_INPUT, "--compression-level is a number from %d to %d, not '%s'",
                       CHUNK_LEVEL_MIN, CHUNK_LEVEL_MAX, value);
    a->bake.compression_level = (int)level;
    return 0;
}

int take_recipe(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->recipe = value;
    return 0;
}

int take_remote(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.remote_url = value;
    return 0;
}

static int take_push(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    const char *slash = strrchr(value, '/');
    a->bake.push_to = value;
    if (slash && slash[1] && !strpbrk(slash, ":@"))
        return 0;
    err_set(e, ERR_INPUT, "--push is a repository, HOST/NAME, not '%s'", value);
    return err_hint(e, "the tag is each template's alias");
}

static int take_push_format(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return push_format_parse(&a->bake.push_format, value, e);
}

static int take_push_compression(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return push_compression_parse(&a->bake.push_compression, value, e);
}

static int take_builder(void *arguments, const char *value, struct err *e)
{
    static const char *const names[] = {
        [BUILDER_AUTO] = "auto", [BUILDER_SERVER] = "server", [BUILDER_LOCAL] = "local"};
    struct bake_arguments *a = arguments;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(value, names[i]) == 0) {
            a->bake.builder = (enum bake_builder)i;
            return 0;
        }
    }
    return err_set(e, ERR_INPUT, "--builder is server, local or auto, not '%s'", value);
}

static int check_builder(const struct bake_arguments *a, struct err *e)
{
    if (a->bake.builder != BUILDER_LOCAL || a->bake.push_to)
        return 0;
    err_set(e, ERR_INPUT, "--builder local needs --push REPOSITORY");
    return err_hint(e, "the template server gets the disk from there");
}

static int take_tap(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.tap = value;
    return 0;
}

static int take_secret(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    return text_list_add(&a->secrets, value, e);
}

static int take_recipe_from(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.recipe_from = value;
    return 0;
}

static int take_keep(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.keep = true;
    return 0;
}

static int take_no_step_cache(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.no_step_cache = true;
    return 0;
}

static int take_no_boot_image(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.no_boot_image = true;
    return 0;
}

static int take_smoke(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.smoke = true;
    return 0;
}

const struct option_row bake_option_rows[] = {
    {NULL, NULL, "Tasks, from one of:", NULL},
    {"tasks-dir", "DIR", "directories that hold a task.toml, at any depth", take_tasks_dir},
    {"task-list", "FILE", "a YAML or JSON list of tasks and images", take_task_list},
    {"images", "FILE", "a list of images, one a line, perhaps with a name behind", take_images},
    {NULL, NULL, "Which of them:", NULL},
    SELECTION_OPTION_ROWS,
    {"only-failed", NULL, "of these, what failed in the store's last run", take_only_failed},
    {"changed", NULL, "say nothing of those that are up to date", take_changed},
    {"force", NULL, "bake also what is unchanged, and run all steps", take_force},
    {"keep", NULL, "keep the machines of tasks that fail, for 'shell --kept' and 'exec'",
     take_keep},
    {NULL, NULL, "Tags held to digests:", NULL},
    {"lock", "FILE", "bake what FILE says; new images are added to it", take_lock},
    {"update-lock", "[=NAME,...]", "ask registries anew, for all or for these, and rewrite it",
     take_update_lock},
    {"frozen", NULL, "an image that is not in it is an error; it is not written", take_frozen},
    {"since", "FILE", "tell which images are others than in this lock file", take_since},
    {NULL, NULL, "How:", NULL},
    {"compression-level", "N", "of what is stored anew, 1 (fast) to 19 (small); default: 3",
     take_level},
    {"recipe", "FILE", "recipe, or the name of a shipped one: tb2, demo (default: tb2)",
     take_recipe},
    {"remote", "URL",
     "share layers and templates with other bakers through this store\n"
     "(default: $TB2_BAKE_REMOTE; 'tb2-bake remote --help' has the URLs)",
     take_remote},
    {"tap", "NAME",
     "tap device for recipes with network: tap; NAME,ADDRESS/BITS,GATEWAY,NAMESERVER says what the "
     "guest gets, else its address is next to the device's",
     take_tap},
    {"secret", "NAME=FROM",
     "a secret that steps of the recipe name; FROM is env:VARIABLE or file:PATH; once for each",
     take_secret},
    {"no-step-cache", NULL, "neither take results of steps from the store nor keep them",
     take_no_step_cache},
    {"no-boot-image", NULL, "boot each guest from its kernel instead of a kept boot image",
     take_no_boot_image},
    {"recipe-from", "CMD",
     "ask CMD what tasks are built from, as JSON; with {}, once for each\n"
     "task's directory, else once for all",
     take_recipe_from},
    {"jobs", "N", "disks made, and machines, at once (default: from cores and memory)", take_jobs},
    {"vm-jobs", "N", "machines at once", take_vm_jobs},
    {"vm-memory", "MB", "memory of all machines together (default: 3/4 of this one's)",
     take_memory},
    {"net-jobs", "N", "requests to registries, and transfers, at once (default: 16)",
     take_net_jobs},
    {"smoke", NULL, "try each template out on the template server; what fails is taken back",
     take_smoke},
    {"server-jobs", "N", "builds on the template server at once (default: 4)", take_server_jobs},
    {"push", "REPOSITORY",
     "push each template's disk there, under its alias, as 'tb2-bake push' does", take_push},
    PUSH_OPTION_ROWS(take_push_format, take_push_compression),
    {"builder", "WHO",
     "of templates on a server: server (it runs the steps), local (it begins\n"
     "with what was pushed), auto (local with --push; the default)",
     take_builder},
    {"stage-timeout", "STAGE=TIME,...", stage_timeout_help, take_stage_timeout},
    IMAGE_OPTION_ROWS,
    {NULL, NULL, "What is told (a bake's files are written at its end, each at once):", NULL},
    {"report", "FILE", "HTML for people: times, bytes, failures with their output", take_report},
    {"junit", "FILE", "JUnit XML, a test case a task", take_junit},
    {"markdown", "FILE", "what happened and what failed, for summaries of CI systems",
     take_markdown},
    {"metrics", "FILE", "Prometheus text format", take_metrics},
    {"detailed-status", NULL, "exit with 5 where there was nothing to do", take_detailed_status},
    {NULL, NULL, NULL, NULL},
};

/* ---- What is looked up ---- */

int bake_arguments_find_recipe(struct bake_arguments *a, struct err *e)
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

static int find_server(struct bake_arguments *a, struct err *e)
{
    int rc = server_access_find(&a->server, false, e);
    a->bake.e2b_api_url = a->server.api_url;
    a->bake.e2b_api_key = a->server.api_key;
    a->bake.e2b_sandbox_url = a->server.sandbox_url;
    if (rc == 0 && a->bake.smoke && !a->server.api_url) {
        err_set(e, ERR_INPUT, "--smoke needs a template server");
        return err_hint(e, "set E2B_API_URL");
    }
    return rc;
}

int bake_arguments_select(struct bake_arguments *a, struct err *e)
{
    struct bake_selection *s = &a->bake.tasks;
    int sources = (s->tasks_dir != NULL) + (s->task_list != NULL) + (s->images != NULL);
    if (sources == 0) {
        err_set(e, ERR_INPUT, "--tasks-dir is missing");
        return err_hint(e, "'tb2-bake bake --help' has the options");
    }
    if (sources > 1)
        return err_set(e, ERR_INPUT, "--tasks-dir, --task-list and --images exclude each other");
    if (a->all && a->names.count > 0)
        return err_set(e, ERR_INPUT, "--all and --tasks exclude each other");
    if (!a->all && a->names.count == 0) {
        err_set(e, ERR_INPUT, "which tasks?");
        return err_hint(e, "give --all, or --tasks with names separated by commas");
    }
    s->names = a->names.items;
    s->name_count = a->names.count;
    s->excludes = a->excludes.items;
    s->exclude_count = a->excludes.count;
    return 0;
}

static int check_pins(struct bake_arguments *a, struct err *e)
{
    struct bake_pins *p = &a->bake.pins;
    if ((p->frozen || p->update) && !p->lock_path)
        return err_set(e, ERR_INPUT, "'--%s' needs --lock FILE",
                       p->frozen ? "frozen" : "update-lock");
    if (p->frozen && p->update)
        return err_set(e, ERR_INPUT, "--frozen and --update-lock exclude each other");
    p->update_names = a->update_names.items;
    p->update_name_count = a->update_names.count;
    return 0;
}

/* After the options. */
static int settle(struct bake_arguments *a, int argc, char **argv, struct err *e)
{
    if (optind < argc) {
        err_set(e, ERR_INPUT, "'%s' is not expected here", argv[optind]);
        return is_command(argv[optind])
                   ? err_hint(e, "the command comes first: tb2-bake %s ...", argv[optind])
                   : -ERR_INPUT;
    }
    a->bake.secrets = a->secrets.items;
    a->bake.secret_count = a->secrets.count;
    a->bake.remote_url = remote_url(a->bake.remote_url);
    int rc = report_files_check(&a->reports, e);
    if (rc == 0)
        rc = check_pins(a, e);
    if (rc == 0)
        rc = check_builder(a, e);
    if (rc == 0)
        rc = bake_arguments_select(a, e);
    if (rc == 0)
        rc = bake_arguments_find_recipe(a, e);
    if (rc == 0)
        rc = remote_lease(&a->bake.remote_lease_ms, e);
    if (rc == 0)
        rc = find_server(a, e);
    return rc;
}

int bake_arguments_parse(struct bake_arguments *a, const struct command *c,
                         struct global_options *g, int argc, char **argv)
{
    struct err e = ERR_INIT;
    int status = options_read(c, g, a, argc, argv);
    if (status >= 0)
        return status;
    return settle(a, argc, argv, &e) < 0 ? report_error(&e) : -1;
}
