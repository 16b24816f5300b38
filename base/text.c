/* SPDX-License-Identifier: MIT */
/* Text from outside: see text.h. */
#include "base/text.h"

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

void text_make_harmless(char *text, bool lines)
{
    for (char *at = text; *at; at++) {
        uint8_t byte = (uint8_t)*at;
        if (byte == '\t' || (byte == '\n' && lines))
            continue;
        if (byte < 0x20 || byte == 0x7F) {
            *at = ' ';
        } else if (byte == 0xC2 && (uint8_t)at[1] >= 0x80 && (uint8_t)at[1] <= 0x9F) {
            *at++ = ' ';
            *at = ' ';
        }
    }
}
