/* SPDX-License-Identifier: MIT */
/*
 * Files of the host that a recipe lays in a guest: listed in an order that depends on their names
 * alone, bounded, without following a link. What is listed is all that is laid: types, permission
 * bits, targets of links, bytes; no owners, no times, no attributes.
 *
 * A tree is used by one thread at a time.
 */
#ifndef TB2_BAKE_RECIPE_HOST_TREE_H
#define TB2_BAKE_RECIPE_HOST_TREE_H

#include <stdint.h>
#include <time.h>

#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"

enum { HOST_ENTRIES_MAX = 262144, HOST_DEPTH_MAX = 64 };
#define HOST_SIZE_MAX ((uint64_t)64 << 30)

/* What all files laid have as their time: the first day that every time zone has in 1980, before
 * which zip archives know no time. Seconds since 1970. */
#define HOST_TREE_TIME ((int64_t)315619200)

enum host_type { HOST_FILE, HOST_DIRECTORY, HOST_SYMLINK, HOST_LINK };

struct host_entry {
    char *path; /* below the root, without a slash at either end; of a single file: its name */
    enum host_type type;
    uint32_t mode;         /* permission bits, those of the options if they have some */
    uint64_t size;         /* of a file */
    char *target;          /* of a symbolic link */
    size_t link;           /* HOST_LINK: the entry before it that is the same file */
    struct digest content; /* of a file, once it was read */
};

struct host_tree_options {
    const char *path;            /* a directory, or a file; a link to one is followed */
    const char *const *excludes; /* NULL-terminated, or NULL (docs/formats/recipe.md) */
    bool has_mode;
    uint32_t mode; /* of files; directories add x where it has r */
    const struct cancel *cancel;
};

struct host_tree {
    char *path;                 /* for messages */
    bool single;                /* one file */
    uint32_t root_mode;         /* of the directory */
    struct host_entry *entries; /* sorted by the bytes of their paths: parents come first */
    size_t count;
    size_t capacity;
    uint64_t size; /* of all files */
    int root;      /* descriptor of the directory; of a single file, its parent's */
    const struct cancel *cancel;
};

/* Lists. ERR_NOTFOUND when there is nothing; ERR_INPUT for a socket, pipe or device; ERR_LIMIT. */
int host_tree_open(struct host_tree **out, const struct host_tree_options *o,
                   struct err *e) MUST_USE;
void host_tree_free(struct host_tree *t);
DEFINE_AUTO(host_tree, host_tree_free)
#define AUTO_HOST_TREE CLEANUP(host_tree_free_auto_)

/* Reads file `n` to its end; `to` may be NULL. Its digest is then in the entry. ERR_INPUT when it is not
 * what was listed any more. */
int host_tree_read(struct host_tree *t, size_t n, const struct sink *to, struct err *e) MUST_USE;
/* Digest over all that is listed; every file has been read. */
int host_tree_digest(const struct host_tree *t, struct digest *out, struct err *e) MUST_USE;
/* Reads all files, for their digests. */
int host_tree_read_all(struct host_tree *t, struct err *e) MUST_USE;

#endif
