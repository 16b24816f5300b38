/* SPDX-License-Identifier: MIT */
/*
 * Secrets of a bake: values that steps may use and templates must not hold (docs/formats/recipe.md,
 * "Secrets"). Values are in memory of this process alone, and cleared when they are freed; nothing here
 * puts one into an error or the log.
 *
 * A set does not change once it is open: any number of threads may use it.
 */
#ifndef TB2_BAKE_RECIPE_SECRETS_H
#define TB2_BAKE_RECIPE_SECRETS_H

#include "base/buf.h"
#include "manifests/manifest.h"

/* Shorter ones could not be told from other bytes. */
enum { SECRET_LEN_MIN = 8, SECRET_LEN_MAX = 64 << 10, SECRETS_COUNT_MAX = 64 };

/* A text that is masked: the essence of a value, a line of it. */
struct secret_part {
    const char *text; /* in the value */
    size_t len;
};

struct secret {
    char *name;
    char *value; /* holds no NUL */
    size_t len;
    size_t essence; /* without line ends behind it: what must not be found anywhere */
    struct secret_part *parts;
    size_t part_count;
    size_t part_capacity;
};

struct secret_set {
    struct secret *all;
    size_t count;
};

/* Reads values for "NAME=env:VARIABLE" and "NAME=file:PATH". ERR_INPUT names the secret. */
int secrets_open(struct secret_set **out, const char *const *specs, size_t count,
                 struct err *e) MUST_USE;
void secrets_free(struct secret_set *s);
DEFINE_AUTO(secret_set, secrets_free)
#define AUTO_SECRETS CLEANUP(secrets_free_auto_)

/* NULL when there is none; `s` may be NULL. */
const struct secret *secrets_find(const struct secret_set *s, const char *name);
/* ERR_INPUT unless each secret that the recipe names has a value. */
int secrets_check(const struct secret_set *s, const struct recipe *r, struct err *e) MUST_USE;

/* ---- Searching ---- */

/* Looks for values in bytes that come piece by piece, also across pieces. */
struct secret_search {
    const struct secret_set *set; /* NULL: nothing is found */
    const char *found;            /* name of the first that was */
    struct buf kept;              /* end of the last piece */
};
void secret_search_init(struct secret_search *s, const struct secret_set *set);
void secret_search_fini(struct secret_search *s); /* clears what it kept */
int secret_search_add(struct secret_search *s, const void *data, size_t len,
                      struct err *e) MUST_USE;
/* What comes next has nothing to do with what came. */
void secret_search_part(struct secret_search *s);
/* The whole of a file; holes are passed over. */
int secret_search_file(struct secret_search *s, int fd, struct err *e) MUST_USE;

/* ---- Masking ---- */

/* Replaces values, and each of their lines of SECRET_LEN_MIN bytes or more, by "***" in a stream that
 * comes piece by piece. */
struct secret_mask {
    const struct secret_set *set; /* NULL: all passes as it is */
    struct buf held;              /* may be the beginning of a value */
};
void secret_mask_init(struct secret_mask *m, const struct secret_set *set);
void secret_mask_fini(struct secret_mask *m); /* clears what it held */
/* Appends to `out` what can be told by now; `end`: nothing comes after. */
int secret_mask_add(struct secret_mask *m, const void *data, size_t len, bool end, struct buf *out,
                    struct err *e) MUST_USE;
/* The whole of a text, appended to `out`. */
int secret_mask_whole(const struct secret_set *set, const void *data, size_t len, struct buf *out,
                      struct err *e) MUST_USE;
/* Message and hint of an error: a console's last words, or a program's, may be in it. */
void secret_mask_error(const struct secret_set *set, struct err *e);

#endif
