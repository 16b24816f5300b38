/* SPDX-License-Identifier: MIT */
/* Private to cli: the command line of a bake. */
#ifndef TB2_CLI_BAKE_ARGUMENTS_H
#define TB2_CLI_BAKE_ARGUMENTS_H

#include "cli/cmd.h"
#include "cli/image_arguments.h"

struct bake_arguments {
    struct image_arguments images;
    struct bake_options bake; /* points into the rest */
    bool all;
    bool changed;         /* say nothing of tasks that are up to date */
    bool detailed_status; /* EXIT_NOTHING where there was nothing to do */
    struct text_list names;
    struct text_list excludes;
    struct text_list update_names;
    struct text_list owned; /* texts that the lists point into */
    const char *recipe;
    char *recipe_path;
    char *api_key;
};

/* One row per option: a new one needs nothing else but the function that takes it. */
extern const struct option_row bake_option_rows[];

/* Reads the whole line, as options_parse does. The command has bake_option_rows. */
int bake_arguments_parse(struct bake_arguments *a, struct parsing *p, int argc, char **argv,
                         struct err *e) MUST_USE;
void bake_arguments_fini(struct bake_arguments *a);

#endif
