/* SPDX-License-Identifier: MIT */
/* Private to cli: the command line of a bake. */
#ifndef TB2_CLI_BAKE_ARGUMENTS_H
#define TB2_CLI_BAKE_ARGUMENTS_H

#include "cli/cmd.h"
#include "cli/image_arguments.h"
#include "cli/report.h"
#include "cli/server_access.h"

struct bake_arguments {
    struct image_arguments images;
    struct bake_options bake; /* points into the rest */
    struct report_files reports;
    bool all;
    bool changed;         /* say nothing of tasks that are up to date */
    bool detailed_status; /* EXIT_NOTHING where there was nothing to do */
    struct text_list names;
    struct text_list excludes;
    struct text_list update_names;
    struct text_list secrets;
    struct text_list owned; /* texts that the lists point into */
    const char *recipe;
    char *recipe_path;
    struct server_access server;
};

/* One row per option: a new one needs nothing else but the function that takes it. */
extern const struct option_row bake_option_rows[];

/* Reads the whole line of a command that has bake_option_rows; returns as options_read. */
int bake_arguments_parse(struct bake_arguments *a, const struct command *c,
                         struct global_options *g, int argc, char **argv) MUST_USE;
void bake_arguments_fini(struct bake_arguments *a);

/* For commands whose arguments begin with a struct bake_arguments. */

int take_tasks_dir(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_all(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_tasks(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_exclude(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_shard(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_vm_jobs(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_memory(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_recipe(void *bake_arguments, const char *value, struct err *e) MUST_USE;
extern const char stage_timeout_help[];
int take_stage_timeout(void *bake_arguments, const char *value, struct err *e) MUST_USE;
int take_remote(void *bake_arguments, const char *value, struct err *e) MUST_USE;

#define SELECTION_OPTION_ROWS                                                                      \
    {"all", NULL, "every one", take_all},                                                          \
        {"tasks", "NAME,...", "only these; * ? [ab] match; @FILE reads names from a file",         \
         take_tasks},                                                                              \
        {"exclude", "NAME,...", "not these; the same forms", take_exclude},                        \
    {                                                                                              \
        "shard", "I/N", "share I of N of them, the same split on every machine", take_shard        \
    }

/* Looks at what the rows above took, and makes it bake.tasks. */
int bake_arguments_select(struct bake_arguments *a, struct err *e) MUST_USE;
/* A path, or the name of a shipped recipe: installed, or beside the sources it was built from. */
int bake_arguments_find_recipe(struct bake_arguments *a, struct err *e) MUST_USE;
/* Names from a file, a line each; blanks around and lines that begin with # mean nothing. */
int bake_arguments_read(struct bake_arguments *a, struct text_list *list, const char *path,
                        struct err *e) MUST_USE;
/* Adds a text, which is taken over (also on failure), to the list. */
int bake_arguments_keep(struct bake_arguments *a, struct text_list *list, char *text,
                        struct err *e) MUST_USE;

#endif
