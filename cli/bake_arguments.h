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
    char *names;       /* the --tasks text, cut at its commas */
    const char **list; /* pointers into it */
    const char *recipe;
    char *recipe_path;
    char *api_key;
};

/* One row per option: a new one needs nothing else but the function that takes it. */
extern const struct option_row bake_option_rows[];

/* Reads the whole line; *status as options_parse says. `c` has bake_option_rows. */
int bake_arguments_parse(struct bake_arguments *a, const struct command *c,
                         struct global_options *g, int argc, char **argv, int *status,
                         struct err *e) MUST_USE;
void bake_arguments_fini(struct bake_arguments *a);

#endif
