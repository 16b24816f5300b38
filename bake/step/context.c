/* SPDX-License-Identifier: MIT */
/* Environment, work directory and user of what runs in a guest. */

#include <stdlib.h>
#include <string.h>

#include "bake/step/context.h"
#include "base/mem.h"

void guest_context_fini(struct guest_context *c)
{
    for (size_t i = 0; i < c->env_count; i++)
        free(c->env[i]);
    free(c->env);
    free(c->workdir);
    free(c->user);
    *c = (struct guest_context){0};
}

/* Order of NAME=value texts: by the bytes of the name. */
static int compare_pairs(const char *a, const char *b)
{
    size_t left = strcspn(a, "=");
    size_t right = strcspn(b, "=");
    int order = memcmp(a, b, left < right ? left : right);
    return order != 0 ? order : (left > right) - (left < right);
}

int guest_context_set_pair(struct guest_context *c, const char *pair, struct err *e)
{
    size_t at = 0;
    while (at < c->env_count && compare_pairs(c->env[at], pair) < 0)
        at++;
    int rc = mem_grow(&c->env, &c->env_capacity, c->env_count + 2, sizeof(*c->env), e);
    char *copy = rc == 0 ? mem_strdup(pair) : NULL;
    if (!copy)
        return err_nomem(e, "environment");
    if (at < c->env_count && compare_pairs(c->env[at], pair) == 0) {
        free(c->env[at]);
    } else {
        memmove(c->env + at + 1, c->env + at, (c->env_count - at) * sizeof(*c->env));
        c->env_count++;
    }
    c->env[at] = copy;
    c->env[c->env_count] = NULL;
    return 0;
}

int guest_context_set(struct guest_context *c, const char *name, const char *value, struct err *e)
{
    AUTO_FREE char *pair = mem_printf("%s=%s", name, value);
    return pair ? guest_context_set_pair(c, pair, e) : err_nomem(e, "environment");
}
