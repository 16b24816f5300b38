/* SPDX-License-Identifier: MIT */
/* Recipes: what parses has a canonical form. */
#include "base/mem.h"
#include "fuzz.h"
#include "manifests/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *recipe = NULL;
    int rc = recipe_parse(&recipe, "fuzz.yaml", data, size, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return 0;
    AUTO_JSON struct json *canonical = recipe_canonical(recipe);
    AUTO_FREE char *text = NULL;
    PROMISE(json_print(canonical, 0, &text, &e) == 0);
    return 0;
}
