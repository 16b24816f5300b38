/* SPDX-License-Identifier: MIT */
/* Text from outside: what is UTF-8, and what a terminal may be shown. Thread-safe. */
#ifndef TB2_BASE_TEXT_H
#define TB2_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the UTF-8 character that starts at `at`, 0 if it is none (RFC 3629, section 4). `left`,
 * at least 1, is how many bytes there are. */
size_t utf8_len(const uint8_t *at, size_t left);

/*
 * Makes a text harmless in place: what a terminal would obey becomes spaces, that is the control
 * characters U+0000 to U+001F, U+007F and U+0080 to U+009F. Tabs stay, and with `lines` newlines.
 * Bytes that are not UTF-8 become question marks.
 */
void text_make_harmless(char *text, bool lines);

#endif
