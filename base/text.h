/* SPDX-License-Identifier: MIT */
/* Text of unknown origin. */
#ifndef TB2_BASE_TEXT_H
#define TB2_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Length of the UTF-8 sequence at `at` (1..4), 0 if it is malformed (RFC 3629, section 4). */
size_t utf8_sequence(const uint8_t *at, size_t left);

/* Makes text safe to show on a terminal, in place: what could drive one (C0 but newline and tab, DEL,
 * C1) and what is not UTF-8 becomes question marks. Returns `text`. */
char *text_make_harmless(char *text);

#endif
