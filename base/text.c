/* SPDX-License-Identifier: MIT */
/* Text of unknown origin: see text.h. */
#include "base/text.h"

#include <string.h>

size_t utf8_sequence(const uint8_t *at, size_t left)
{
    uint8_t lead = at[0];
    if (lead < 0x80)
        return 1;
    size_t len = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || left < len)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f) ||
        (lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f))
        return 0;
    return len;
}

bool text_is_control(const uint8_t *at, size_t len)
{
    if (len == 2)
        return at[0] == 0xc2 && at[1] < 0xa0; /* C1: a terminal may take U+009B for ESC [ */
    return len == 1 && (at[0] < 0x20 || at[0] == 0x7f);
}

char *text_make_harmless(char *text)
{
    size_t left = strlen(text);
    for (uint8_t *at = (uint8_t *)text; left > 0;) {
        size_t len = utf8_sequence(at, left);
        size_t step = len > 0 ? len : 1;
        bool layout = *at == '\n' || *at == '\t';
        if (len == 0 || (text_is_control(at, len) && !layout))
            memset(at, '?', step);
        at += step;
        left -= step;
    }
    return text;
}

char *text_make_line(char *text)
{
    for (char *at = text; *at; at++) {
        if (*at == '\n')
            *at = ' ';
    }
    return text_make_harmless(text);
}

char *text_cut_word(char **at)
{
    char *word = *at + strspn(*at, " \t\r");
    char *end = word + strcspn(word, " \t\r");
    *at = *end ? end + 1 : end;
    *end = 0;
    return word;
}
