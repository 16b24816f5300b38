/* SPDX-License-Identifier: MIT */
/* Quoting for messages; lists of environment variables, as tasks and recipes hold them. */
#include "manifests/internal.h"

#include <stdlib.h>

const char *text_show(const char *text, size_t len, char shown[TEXT_SHOW_MAX])
{
    static const char more[] = "...";
    size_t room = TEXT_SHOW_MAX - sizeof(more);
    size_t count = len < room ? len : room;
    /* Never cut inside a UTF-8 sequence. */
    while (count > 0 && count < len && ((uint8_t)text[count] & 0xC0) == 0x80)
        count--;
    for (size_t i = 0; i < count; i++)
        shown[i] = (uint8_t)text[i] < 0x20 || text[i] == 0x7F ? '?' : text[i];
    memcpy(shown + count, count < len ? more : "", count < len ? sizeof(more) : 1);
    return shown;
}

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
