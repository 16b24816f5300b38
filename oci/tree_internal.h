/* SPDX-License-Identifier: MIT */
/* The name table of a merge (names.c), which tree.c fills. */
#ifndef TB2_OCI_TREE_INTERNAL_H
#define TB2_OCI_TREE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

#define OCI_NAME_ROOT UINT32_C(0)
#define OCI_NAME_NONE UINT32_MAX

/* One name, known by its number. Text is borrowed. */
struct oci_name {
    const char *text;
    uint32_t len;
    uint32_t path_len; /* of the whole path, bounded by LIMIT_PATH */
    uint32_t parent;   /* OCI_NAME_NONE once it was removed */
    uint32_t first_child;
    uint32_t last_child;
    uint32_t next; /* sibling */
    uint32_t previous;
    uint32_t chain; /* next in the hash bucket */
    uint32_t hash;
    /* For the owner of the table. */
    uint32_t inode;
    uint32_t placed; /* when: numbers rise with each entry of each layer; 0 for implied ones */
    uint32_t doomed; /* 0, or the number (from 1) of the last layer that takes this link away */
    uint32_t number; /* in the finished tree */
};

/* Numbers stay good while the table grows, pointers into `items` do not. One owner, one thread. */
struct oci_names {
    struct oci_name *items; /* removed ones keep their place */
    size_t count;
    size_t capacity;
    uint32_t *buckets;
    size_t bucket_count; /* a power of two */
    struct hash_key key;
};

/* A table with a root. After a failure too, finish it. */
int oci_names_init(struct oci_names *t, uint32_t root_inode, struct err *e) MUST_USE;
void oci_names_fini(struct oci_names *t);

/* The child of that name, or OCI_NAME_NONE. */
uint32_t oci_names_find(const struct oci_names *t, uint32_t parent, const char *text, size_t len);

/* Adds a name that its directory does not have yet. `text` must live as long as the table.
 * ERR_LIMIT when there are too many, or its path reaches LIMIT_PATH. */
int oci_names_add(struct oci_names *t, uint32_t *out, uint32_t parent, const char *text,
                  uint32_t inode, struct err *e) MUST_USE;

/* Forgets all that lies below a directory; a name and all that lies below it (not the root). */
void oci_names_remove_children(struct oci_names *t, uint32_t directory);
void oci_names_remove(struct oci_names *t, uint32_t name);

#endif
