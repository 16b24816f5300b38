/* SPDX-License-Identifier: MIT */
/* tb2-bake recipe: what a recipe says, before anything is baked with it. */
#include <getopt.h>
#include <string.h>

#include "bake/recipe.h"
#include "cli/cmd.h"
#include "cli/options.h"

static int run(struct global_options *g, int argc, char **argv)
{
    struct err e = ERR_INIT;
    int status = options_read(&command_recipe, g, NULL, argc, argv);
    if (status >= 0)
        return status;
    if (optind == argc || strcmp(argv[optind], "check") != 0)
        return usage_error(&command_recipe, "check?");
    if (optind + 1 == argc)
        return usage_error(&command_recipe, "which file?");
    int rc = 0;
    for (int i = optind + 1; rc == 0 && i < argc; i++) {
        AUTO_JSON struct json *canonical = NULL;
        rc = recipe_inspect(&canonical, argv[i], g->cancel, &e);
        if (rc == 0)
            rc = print_json(canonical, &e);
    }
    if (rc == -ERR_NOTFOUND) /* a name that a person gave */
        e.class = ERR_INPUT;
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

const struct command command_recipe = {
    .name = "recipe",
    .arguments = "check FILE...",
    .summary = "Check recipes without baking.",
    .notes = "check  reads them, the files that they lay and what is in tarballs, and prints as "
             "JSON what of each can "
             "change a\n"
             "       template: two that print the same make the same. Exit status 2: something is "
             "wrong\n"
             "       with one; the error has its line and column\n"
             "\n"
             "docs/formats/recipe.md says what a recipe may hold, docs/formats/recipe.schema.json "
             "the same\n"
             "for editors.",
    .run = run,
};
