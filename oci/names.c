/* SPDX-License-Identifier: MIT */
/*
 * The names of a tree that is being merged. They hang in sibling lists and in one hash table keyed
 * by (directory, name), so a directory of 100,000 files costs no more than 100,000 directories.
 * Names come from outside, so the hash has a key; nothing that leaves this file depends on its
 * order.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"
#include "oci/tree_internal.h"

enum { FIRST_BUCKETS = 1024 };

/* ---- Hashing ---- */

/* Of a directory's number and a name. */
static uint32_t hash_of(const struct oci_names *t, uint32_t parent, const char *text, size_t len)
{
    return (uint32_t)hash_bytes(&t->key, parent, text, len);
}

uint32_t oci_names_find(const struct oci_names *t, uint32_t parent, const char *text, size_t len)
{
    uint32_t hash = hash_of(t, parent, text, len);
    uint32_t at = t->buckets[hash & (t->bucket_count - 1)];
    while (at != OCI_NAME_NONE) {
        const struct oci_name *n = &t->items[at];
        if (n->hash == hash && n->parent == parent && n->len == len &&
            memcmp(n->text, text, len) == 0)
            break;
        at = n->chain;
    }
    return at;
}

static void hash_name(struct oci_names *t, uint32_t name)
{
    struct oci_name *n = &t->items[name];
    uint32_t *bucket = &t->buckets[n->hash & (t->bucket_count - 1)];
    n->chain = *bucket;
    *bucket = name;
}

static void unhash_name(struct oci_names *t, uint32_t name)
{
    struct oci_name *n = &t->items[name];
    uint32_t *at = &t->buckets[n->hash & (t->bucket_count - 1)];
    while (*at != name)
        at = &t->items[*at].chain;
    *at = n->chain;
    n->parent = OCI_NAME_NONE;
}

static int set_buckets(struct oci_names *t, size_t count, struct err *e)
{
    uint32_t *buckets = mem_array(count, sizeof(*buckets));
    if (!buckets)
        return err_nomem(e, "tree");
    memset(buckets, 0xff, count * sizeof(*buckets)); /* OCI_NAME_NONE everywhere */
    free(t->buckets);
    t->buckets = buckets;
    t->bucket_count = count;
    for (size_t i = 1; i < t->count; i++)
        if (t->items[i].parent != OCI_NAME_NONE)
            hash_name(t, (uint32_t)i);
    return 0;
}

/* ---- Names ---- */

int oci_names_add(struct oci_names *t, uint32_t *out, uint32_t parent, const char *text,
                  uint32_t inode, struct err *e)
{
    size_t len = strlen(text);
    if (t->count >= OCI_NAME_NONE - 1)
        return err_set(e, ERR_LIMIT, "more than %u names", OCI_NAME_NONE - 1);
    size_t path_len = t->items[parent].path_len + (parent == OCI_NAME_ROOT ? 0 : 1) + len;
    if (path_len >= LIMIT_PATH)
        return err_set(e, ERR_LIMIT, "its path in the image has %zu bytes, at most %zu can be used",
                       path_len, LIMIT_PATH - 1);
    int rc = mem_grow(&t->items, &t->capacity, t->count + 1, sizeof(*t->items), e);
    if (rc == 0 && t->count >= t->bucket_count)
        rc = set_buckets(t, t->bucket_count * 2, e);
    if (rc < 0)
        return rc;
    uint32_t name = (uint32_t)t->count++;
    struct oci_name *p = &t->items[parent];
    t->items[name] = (struct oci_name){.text = text,
                                       .len = (uint32_t)len,
                                       .path_len = (uint32_t)path_len,
                                       .parent = parent,
                                       .first_child = OCI_NAME_NONE,
                                       .last_child = OCI_NAME_NONE,
                                       .next = OCI_NAME_NONE,
                                       .previous = p->last_child,
                                       .hash = hash_of(t, parent, text, len),
                                       .inode = inode};
    if (p->last_child == OCI_NAME_NONE)
        p->first_child = name;
    else
        t->items[p->last_child].next = name;
    p->last_child = name;
    hash_name(t, name);
    *out = name;
    return 0;
}

/* Deepest first. */
void oci_names_remove_children(struct oci_names *t, uint32_t directory)
{
    uint32_t at = t->items[directory].first_child;
    while (at != OCI_NAME_NONE && at != directory) {
        struct oci_name *n = &t->items[at];
        if (n->first_child != OCI_NAME_NONE) {
            at = n->first_child;
            continue;
        }
        uint32_t parent = n->parent;
        uint32_t next = n->next;
        unhash_name(t, at);
        t->items[parent].first_child = next;
        at = next != OCI_NAME_NONE ? next : parent;
    }
    t->items[directory].first_child = OCI_NAME_NONE;
    t->items[directory].last_child = OCI_NAME_NONE;
}

void oci_names_remove(struct oci_names *t, uint32_t name)
{
    oci_names_remove_children(t, name);
    struct oci_name *n = &t->items[name];
    struct oci_name *p = &t->items[n->parent];
    if (n->previous == OCI_NAME_NONE)
        p->first_child = n->next;
    else
        t->items[n->previous].next = n->next;
    if (n->next == OCI_NAME_NONE)
        p->last_child = n->previous;
    else
        t->items[n->next].previous = n->previous;
    unhash_name(t, name);
}

/* ---- Life ---- */

int oci_names_init(struct oci_names *t, uint32_t root_inode, struct err *e)
{
    *t = (struct oci_names){.items = NULL};
    int rc = hash_key_draw(&t->key, e);
    if (rc == 0)
        rc = mem_grow(&t->items, &t->capacity, 1, sizeof(*t->items), e);
    if (rc < 0)
        return rc;
    t->items[OCI_NAME_ROOT] = (struct oci_name){.text = "",
                                                .parent = OCI_NAME_ROOT,
                                                .first_child = OCI_NAME_NONE,
                                                .last_child = OCI_NAME_NONE,
                                                .next = OCI_NAME_NONE,
                                                .previous = OCI_NAME_NONE,
                                                .chain = OCI_NAME_NONE,
                                                .inode = root_inode};
    t->count = 1;
    return set_buckets(t, FIRST_BUCKETS, e);
}

void oci_names_fini(struct oci_names *t)
{
    free(t->items);
    free(t->buckets);
    *t = (struct oci_names){.items = NULL};
}
