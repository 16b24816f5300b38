/* SPDX-License-Identifier: MIT */
/* Text from outside: see text.h. */
#include "base/text.h"

#include <string.h>

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

/* What a terminal obeys: C0, DEL, and C1, of which U+009B is as good as ESC [. */
static bool is_control(const uint8_t *at, size_t len)
{
    if (len == 2)
        return at[0] == 0xC2 && at[1] < 0xA0;
    return len == 1 && (at[0] < 0x20 || at[0] == 0x7F);
}

void text_make_harmless(char *text, bool lines)
{
    size_t left = strlen(text);
    for (uint8_t *at = (uint8_t *)text; left > 0;) {
        size_t len = utf8_len(at, left);
        size_t step = len > 0 ? len : 1;
        bool kept = *at == '\t' || (*at == '\n' && lines);
        if (len == 0)
            *at = '?';
        else if (!kept && is_control(at, len))
            memset(at, ' ', step);
        at += step;
        left -= step;
    }
}
