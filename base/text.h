/* SPDX-License-Identifier: MIT */
/* Text of unknown origin. Thread-safe. */
#ifndef TB2_BASE_TEXT_H
#define TB2_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the UTF-8 sequence at `at` (1..4), 0 if it is malformed (RFC 3629, section 4). `left`,
 * at least 1, is how many bytes there are. */
size_t utf8_sequence(const uint8_t *at, size_t left);

/* True for a sequence of `len` bytes that a terminal may obey: C0 (newline and tab, too), DEL, C1. */
bool text_is_control(const uint8_t *at, size_t len);

/* Makes text safe to show on a terminal, in place: what could drive one (C0 but newline and tab,
 * DEL, C1) and what is not UTF-8 becomes question marks. Returns `text`. */
char *text_make_harmless(char *text);

/* The same, and on one line: newlines become spaces. */
char *text_make_line(char *text);

/* Cuts the next word, parted by blanks, out of a line and moves *at behind it. Returns the word, which
 * lies in the line; "" at its end. */
char *text_cut_word(char **at);

#endif
