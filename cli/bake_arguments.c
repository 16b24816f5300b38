/* SPDX-License-Identifier: MIT */
/* The command line of a bake: a table of options, and what is looked up for them. */
#include "cli/bake_arguments.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

void bake_arguments_fini(struct bake_arguments *a)
{
    free(a->names);
    free(a->list);
    free(a->recipe_path);
    image_arguments_fini(&a->images);
    free(a->api_key);
}

/* ---- What options take ---- */

static int take_tasks_dir(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.tasks_dir = value;
    return 0;
}

static int take_all(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->all = true;
    return 0;
}

static int take_tasks(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    free(a->names);
    free(a->list);
    a->names = mem_strdup(value);
    a->list = mem_array(strlen(value) / 2 + 1, sizeof(*a->list));
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

static int take_force(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.force = true;
    return 0;
}

static int take_jobs(void *arguments, const char *value, struct err *e)
{
    struct bake_arguments *a = arguments;
    char *end = NULL;
    unsigned long jobs = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || jobs < 1 || jobs > 64)
        return err_set(e, ERR_INPUT, "--jobs is a number from 1 to 64, not '%s'", value);
    a->bake.jobs = (unsigned)jobs;
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

static int take_recipe(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->recipe = value;
    return 0;
}

static int take_remote(void *arguments, const char *value, struct err *e UNUSED)
{
    struct bake_arguments *a = arguments;
    a->bake.remote_url = value;
    return 0;
}

const struct option_row bake_option_rows[] = {
    {"tasks-dir", "DIR", "directory of task directories, each with a task.toml", take_tasks_dir},
    {"all", NULL, "every task of the directory", take_all},
    {"tasks", "NAME,...", "only these", take_tasks},
    {"force", NULL, "bake also what is unchanged", take_force},
    {"jobs", "N", "tasks at once (default: from cores and memory)", take_jobs},
    {"compression-level", "N", "of what is stored anew, 1 (fast) to 19 (small); default: 3",
     take_level},
    {"recipe", "FILE", "recipe, or the name of a shipped one: tb2, demo (default: tb2)",
     take_recipe},
    {"remote", "URL",
     "share layers and templates with other bakers through this store\n"
     "(default: $TB2_BAKE_REMOTE; 'tb2-bake remote --help' has the URLs)",
     take_remote},
    IMAGE_OPTION_ROWS,
    {NULL, NULL, NULL, NULL},
};

/* ---- What is looked up ---- */

/* A path, or the name of a shipped recipe: installed, or beside the sources it was built from. */
static int find_recipe(struct bake_arguments *a, struct err *e)
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
static int find_api_key(struct bake_arguments *a, struct err *e)
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

static int check_selection(const struct bake_arguments *a, struct err *e)
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

int bake_arguments_parse(struct bake_arguments *a, const struct command *c,
                         struct global_options *g, int argc, char **argv, int *status,
                         struct err *e)
{
    int rc = options_parse(a, c, g, argc, argv, status, e);
    if (rc < 0 || *status >= 0)
        return rc;
    if (optind < argc) {
        err_set(e, ERR_INPUT, "'%s' is not expected here", argv[optind]);
        return is_command(argv[optind])
                   ? err_hint(e, "the command comes first: tb2-bake %s ...", argv[optind])
                   : -ERR_INPUT;
    }
    a->bake.remote_url = remote_url(a->bake.remote_url);
    rc = check_selection(a, e);
    if (rc == 0)
        rc = find_recipe(a, e);
    if (rc == 0)
        rc = remote_lease(&a->bake.remote_lease_ms, e);
    if (rc == 0)
        rc = find_api_key(a, e);
    return rc;
}
