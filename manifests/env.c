/* SPDX-License-Identifier: MIT */
/* Lists of environment variables, as tasks and recipes hold them. */
#include "manifests/internal.h"

#include <stdlib.h>

bool env_name_is_valid(const char *name)
{
    return name[0] != '\0' && !strchr(name, '=');
}

static int compare(const void *a, const void *b)
{
    const struct env_pair *left = a;
    const struct env_pair *right = b;
    return strcmp(left->name, right->name);
}

void env_sort(struct env_pair *env, size_t count)
{
    if (count > 1)
        qsort(env, count, sizeof(*env), compare);
}

void env_free(struct env_pair *env, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(env[i].name);
        free(env[i].value);
    }
    free(env);
}
