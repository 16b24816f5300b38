/* SPDX-License-Identifier: MIT */
/*
 * How a graft fits on what is below it. Laid as a layer is, a directory would take the place of a link
 * of the same name (bin of a merged image, which leads to usr/bin), and a file that of a whole directory.
 * A graft is laid as `copy` lays files: directories that are there by way of a link are left alone, so
 * that what is in them goes where the link leads, and a file and a directory of one name are an error.
 */
#include <stdlib.h>
#include <string.h>

#include "bake/image/graft.h"
#include "base/mem.h"
#include "oci/oci.h"

enum { LINKS_MAX = 40 }; /* path_resolution(7) */

/* A tree's nodes by their parents. */
struct lookup {
    const struct oci_tree *tree;
    size_t *first; /* of each node: where its children begin in `children`; one more: the end */
    size_t *children;
};

static void lookup_fini(struct lookup *l)
{
    free(l->first);
    free(l->children);
}

/* Children follow one another in the order of their names, as the nodes do. */
static int lookup_init(struct lookup *l, const struct oci_tree *t, struct err *e)
{
    size_t count = oci_tree_count(t);
    l->tree = t;
    l->first = mem_array(count + 2, sizeof(size_t));
    l->children = mem_array(count, sizeof(size_t));
    if (!l->first || !l->children)
        return err_nomem(e, "graft");
    for (size_t n = 1; n < count; n++)
        l->first[oci_tree_node(t, n).parent + 2]++;
    for (size_t n = 2; n < count + 2; n++)
        l->first[n] += l->first[n - 1];
    for (size_t n = 1; n < count; n++)
        l->children[l->first[oci_tree_node(t, n).parent + 1]++] = n;
    return 0;
}

/* SIZE_MAX: there is none. */
static size_t child(const struct lookup *l, size_t parent, const char *name, size_t len)
{
    size_t low = l->first[parent];
    size_t high = l->first[parent + 1];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *found = oci_tree_node(l->tree, l->children[middle]).name;
        int order = strncmp(found, name, len);
        if (order == 0 && found[len] == 0)
            return l->children[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

static enum oci_entry_type type_of(const struct lookup *l, size_t node)
{
    return oci_tree_node(l->tree, node).entry->type;
}

/* The node that a path from `at` leads to; the last part is followed only with `follow`. SIZE_MAX: none,
 * or round in circles. */
static size_t walk(const struct lookup *l, size_t at, const char *path, bool follow,
                   unsigned *links)
{
    if (*path == '/')
        at = 0;
    for (path += strspn(path, "/"); *path; path += strspn(path, "/")) {
        size_t len = strcspn(path, "/");
        bool last = path[len + strspn(path + len, "/")] == 0;
        size_t next = at;
        if (len == 2 && strncmp(path, "..", 2) == 0)
            next = oci_tree_node(l->tree, at).parent;
        else if (len != 1 || *path != '.')
            next = child(l, at, path, len);
        if (next == SIZE_MAX)
            return SIZE_MAX;
        if (type_of(l, next) == OCI_SYMLINK && (!last || follow)) {
            if (++*links > LINKS_MAX)
                return SIZE_MAX;
            next = walk(l, at, oci_tree_node(l->tree, next).entry->target, true, links);
        }
        if (next == SIZE_MAX)
            return SIZE_MAX;
        at = next;
        path += len;
    }
    return at;
}

static bool is_directory(const struct lookup *l, size_t node)
{
    return node != SIZE_MAX && type_of(l, node) == OCI_DIRECTORY;
}

static int fit(const struct lookup *l, const struct oci_entry *entry, bool *drop, struct err *e)
{
    unsigned links = 0;
    size_t there = walk(l, 0, entry->path, false, &links);
    *drop = false;
    if (there == SIZE_MAX)
        return 0;
    if (entry->type != OCI_DIRECTORY)
        return is_directory(l, there)
                   ? err_set(e, ERR_INPUT, "/%s: a file would replace a directory", entry->path)
                   : 0;
    if (is_directory(l, there))
        return 0;
    links = 0;
    *drop = is_directory(l, walk(l, 0, entry->path, true, &links));
    return *drop ? 0 : err_set(e, ERR_INPUT, "/%s: a directory would replace a file", entry->path);
}

int graft_fit(struct oci_layer *graft, const struct oci_tree *below, struct err *e)
{
    struct lookup l = {0};
    size_t count = oci_layer_count(graft);
    AUTO_FREE bool *marks = mem_array(count, sizeof(bool));
    int rc = marks || count == 0 ? lookup_init(&l, below, e) : err_nomem(e, "graft");
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = fit(&l, oci_layer_entry(graft, i), &marks[i], e);
    if (rc == 0 && count > 0)
        oci_layer_drop(graft, marks);
    lookup_fini(&l);
    return rc;
}
