/* SPDX-License-Identifier: MIT */
/*
 * Shared by the .c files of manifests/ and their unit tests only: the TOML scanner and tree, the
 * bounded YAML tree, small text helpers.
 */
#ifndef TB2_MANIFESTS_INTERNAL_H
#define TB2_MANIFESTS_INTERNAL_H

#include "base/buf.h"
#include "base/hash.h"
#include "base/text.h"
#include "manifests/manifest.h"

/* ---- TOML: scanner (toml_scan.c) ---------------------------------------------------------- */

enum {
    TOML_DEPTH_MAX = 100,         /* tables and arrays in each other, key parts included */
    TOML_VALUE_MAX = 1024 * 1024, /* values in one document */
    TOML_WORD_MAX = 4096          /* characters of a number, date-time or bare word */
};

/* Where a thing starts: 1-based, columns count code points. */
struct toml_place {
    unsigned line;
    unsigned column;
};

/*
 * A reader over a document that toml_scan_init has found to be UTF-8 without forbidden control
 * characters and without a CR outside CRLF. `text[len]` is never read.
 */
struct toml_scan {
    const char *name; /* stands in errors */
    const uint8_t *text;
    size_t len;
    size_t pos;
    struct toml_place place;
};

/* Skips a byte order mark and checks the whole text's characters. */
int toml_scan_init(struct toml_scan *s, const void *text, size_t len, const char *name,
                   struct err *e) MUST_USE;

/* Sets ERR_INPUT "name:line:column: …" and returns it. */
int toml_scan_fail(const struct toml_scan *s, struct toml_place place, struct err *e,
                   const char *fmt, ...) PRINTF_LIKE(4, 5);

/* The byte `ahead` of the reader, -1 past the end. A CRLF shows as CR, LF. */
int toml_scan_peek(const struct toml_scan *s, size_t ahead);
void toml_scan_skip(struct toml_scan *s, size_t count);
bool toml_scan_at_newline(const struct toml_scan *s);
void toml_scan_newline(struct toml_scan *s); /* steps over LF or CRLF */
void toml_scan_blank(struct toml_scan *s);   /* spaces and tabs */
void toml_scan_comment(struct toml_scan *s); /* a comment, if one starts here, up to its newline */
void toml_scan_space(struct toml_scan *s);   /* blanks, comments and newlines */

/* Value of a digit up to base 16; INT_MAX for anything else. */
int toml_digit_value(int byte);

/* What stands here, for messages: "end of line", "'x'"; returns `text`. */
enum { TOML_SHOW_MAX = 32 };
const char *toml_scan_show(const struct toml_scan *s, char text[TOML_SHOW_MAX]);

/* Reads a string that starts with a quote. Multi-line forms only with `multi_line`. The bytes are
 * appended to `out`, newlines of the text as LF. */
int toml_scan_string(struct toml_scan *s, struct buf *out, bool multi_line, struct err *e) MUST_USE;

/* Reads one part of a key, bare or quoted, into the emptied `out`. */
int toml_scan_key_part(struct toml_scan *s, struct buf *out, struct err *e) MUST_USE;

/* ---- TOML: tree (toml.c) and scalars (toml_value.c) ---------------------------------------- */

/* How a table or array came to be: decides what may still be added to it. */
enum toml_origin {
    TOML_ORIGIN_VALUE,    /* scalar, array or inline table: complete */
    TOML_ORIGIN_IMPLICIT, /* table above a [header], not written down itself yet */
    TOML_ORIGIN_HEADER,   /* table of a [header], element of an array of tables, the document */
    TOML_ORIGIN_DOTTED,   /* table made by a dotted key */
    TOML_ORIGIN_TABLES    /* array of tables */
};

struct toml {
    enum toml_type type;
    enum toml_origin origin;
    unsigned depth;
    struct toml_place place;
    char *text; /* string, or date-time in RFC 3339 spelling */
    size_t text_len;
    int64_t integer;
    double real;
    bool boolean;
    /* Array elements, or table members in the order of the text. */
    struct toml **items;
    struct toml_key *keys; /* tables only */
    size_t count;
    size_t items_capacity, keys_capacity;
    uint32_t *index; /* open addressing: position + 1, 0 = free; NULL while small */
    size_t index_capacity;
    struct hash_key index_key; /* drawn with the first index */
};

struct toml_key {
    char *text;
    size_t len;
};

/* Reads a boolean, number or date-time that starts here into `t` (type, place and value). */
int toml_value_word(struct toml_scan *s, struct toml *t, struct err *e) MUST_USE;

/* ---- Quantities (quantity.c) --------------------------------------------------------------- */

/* All of them take a plain decimal number: up to nine digits, perhaps a point and up to nine more;
 * blanks around the text are skipped. False for anything else. */
bool decimal_parse(const char *text, size_t len, double *out) MUST_USE;

/* Whole megabytes (1024 KB), rounded up, of a number and a unit K, M or G in either case: "2G",
 * "1.5g", " 512M ". */
bool size_parse_mb(const char *text, size_t len, uint64_t *out) MUST_USE;

/* Milliseconds, rounded up, of a number of seconds or a number and a unit ms, s, m or h. */
bool duration_parse_ms(const char *text, size_t len, uint64_t *out) MUST_USE;

/* ---- Recipe values (recipe_value.c) -------------------------------------------------------- */

/* More typed reads. */
int node_port(uint16_t *out, const char *path, const char *key, const struct node *node,
              struct err *e) MUST_USE;
struct range {
    unsigned from, to; /* both included */
};
int node_number(unsigned *out, const char *path, const char *key, const struct node *node,
                struct range range, struct err *e) MUST_USE;
/* A list of at least one text, NULL-terminated; free with argv_free. */
/* What makes a glob match nothing, or something else than it says (glob.c); NULL: it is well formed. */
const char *glob_fault(const char *pattern);
int node_argv(char ***out, const char *path, const char *key, const struct node *node,
              struct err *e) MUST_USE;
/* A mapping of names to texts, sorted by name. Values may be empty if quoted. Free with
 * env_free. */
int node_env(struct env_pair **out, size_t *count, const char *path, const struct node *node,
             struct err *e) MUST_USE;
void argv_free(char **argv);

/* ---- Sets (task_set.c) --------------------------------------------------------------------- */

/* Adds an entry; borrowed until the next one. ERR_LIMIT past what a set may hold. */
int task_set_add(struct task_set *set, const char *name, struct task_entry **out,
                 struct err *e) MUST_USE;
void task_set_sort(struct task_set *set);

/* ---- Helpers (text.c) ---------------------------------------------------------------------- */

/* Text from a file as it may stand in a message: control characters as '?', long text cut. */
enum { TEXT_SHOW_MAX = 64 };
const char *text_show(const char *text, size_t len, char shown[TEXT_SHOW_MAX]);

/* Name of an environment variable: not empty, no '='. */
bool env_name_is_valid(const char *name);
void env_sort(struct env_pair *env, size_t count);
void env_free(struct env_pair *env, size_t count);

#endif
