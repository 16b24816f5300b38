/* SPDX-License-Identifier: MIT */
/* UTF-8; quoting for messages; lists of environment variables, as tasks and recipes hold them. */
#include "manifests/internal.h"

#include <stdlib.h>

size_t utf8_len(const uint8_t *at, size_t left)
{
    uint8_t first = at[0];
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    size_t len;
    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first <= 0xDF) {
        len = 2;
    } else if (first >= 0xE0 && first <= 0xEF) {
        len = 3;
        low = first == 0xE0 ? 0xA0 : low;   /* overlong */
        high = first == 0xED ? 0x9F : high; /* surrogates */
    } else if (first >= 0xF0 && first <= 0xF4) {
        len = 4;
        low = first == 0xF0 ? 0x90 : low;   /* overlong */
        high = first == 0xF4 ? 0x8F : high; /* past U+10FFFF */
    } else {
        return 0;
    }
    if (left < len || at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++) {
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    }
    return len;
}

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
