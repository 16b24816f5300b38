/* SPDX-License-Identifier: MIT */
/*
 * The merged tree: what an image looks like after all its layers (image-spec layer.md, section
 * Applying Changesets), worked out from layer indexes alone.
 *
 * A layer is applied in passes. Its whiteouts and opaque markers are looked up in the tree that the
 * layers below made, then they act on it, then the layer's entries are placed in tar order. So a
 * marker never touches its own layer, wherever it stands in the tar, and creates nothing (but an
 * opaque marker implies its directory). A link of the layers below that this layer removes, or
 * replaces by something else, leads no marker anywhere: what is listed below it belongs to what
 * came in its place.
 *
 * Names and inodes are apart: a hard link is one more name for an inode, and replacing a name
 * leaves the inode's other names alone (names.c holds the names).
 *
 * Parents of an entry are looked up through symbolic links as a process chrooted into the image
 * would: absolute targets start at the image's root and ".." stops there. The last component is
 * never followed. Missing parents appear as 0755 0:0 with time 0.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "oci/internal.h"
#include "oci/tree_internal.h"

/* Text that no entry holds: names of implied directories. */
struct text_block {
    struct text_block *next;
    size_t len;
    char bytes[4096];
};

struct oci_tree {
    struct oci_node *nodes;
    size_t count;
    struct oci_entry implied; /* the entry of every directory that no layer lists */
    struct text_block *text;
};

struct inode {
    const struct oci_entry *entry;
    size_t layer;
    size_t first_number; /* of its names in the finished tree; SIZE_MAX before there is one */
};

/* What to do where a directory is missing on the way. */
enum on_missing {
    LOOK,         /* there is no such directory */
    LOOK_LASTING, /* neither is there through a link that this layer takes away */
    MAKE,         /* make it; something else in the way is an error */
    MAKE_IF_FREE, /* make it; something else in the way means that there is none */
};

struct merge {
    struct oci_tree *tree;
    const struct cancel *cancel;
    struct oci_names names;
    struct inode *inodes;
    size_t inode_count;
    size_t inode_capacity;
    /* The layer in hand. */
    size_t layer;
    uint32_t first_placed;
    uint32_t placed;
    size_t duplicates;
    struct removal_list *removals;
    struct lower_list *lower;
    struct waiting_list *waiting;
    /* The last parent directory found; dropped when a directory or link goes away. */
    const char *parent_path;
    size_t parent_len;
    uint32_t parent;
    /* Two texts for paths that symbolic links rewrite. */
    char walk[2][2 * LIMIT_PATH];
};

static void merge_free(struct merge *m)
{
    if (!m)
        return;
    oci_tree_free(m->tree);
    oci_names_fini(&m->names);
    free(m->inodes);
    free(m);
}
DEFINE_AUTO(merge, merge_free)
#define AUTO_MERGE CLEANUP(merge_free_auto_)

/* ---- Text that no entry holds ---- */

static int keep_text(struct oci_tree *t, const char **out, const char *text, size_t len,
                     struct err *e)
{
    struct text_block *block = t->text;
    if (!block || sizeof(block->bytes) - block->len < len + 1) {
        block = mem_zalloc(sizeof(*block));
        if (!block)
            return err_nomem(e, "tree");
        block->next = t->text;
        t->text = block;
    }
    char *kept = block->bytes + block->len;
    memcpy(kept, text, len);
    kept[len] = 0;
    block->len += len + 1;
    *out = kept;
    return 0;
}

/* ---- Names and inodes ---- */

static const struct oci_entry *entry_of(const struct merge *m, uint32_t name)
{
    return m->inodes[m->names.items[name].inode].entry;
}

static bool is_directory(const struct merge *m, uint32_t name)
{
    return entry_of(m, name)->type == OCI_DIRECTORY;
}

static int add_inode(struct merge *m, uint32_t *out, const struct oci_entry *entry, struct err *e)
{
    int rc = mem_grow(&m->inodes, &m->inode_capacity, m->inode_count + 1, sizeof(*m->inodes), e);
    if (rc < 0)
        return rc;
    m->inodes[m->inode_count] =
        (struct inode){.entry = entry, .layer = m->layer, .first_number = SIZE_MAX};
    *out = (uint32_t)m->inode_count++;
    return 0;
}

/* Both forget the parent found last too: its path may have led through what goes. */
static void remove_children(struct merge *m, uint32_t directory)
{
    oci_names_remove_children(&m->names, directory);
    m->parent_path = NULL;
}

static void remove_name(struct merge *m, uint32_t name)
{
    oci_names_remove(&m->names, name);
    m->parent_path = NULL;
}

/* ---- Finding directories ---- */

struct walk {
    uint32_t at;
    const char *rest; /* of the path, not yet walked */
    size_t rest_len;
    unsigned links; /* followed so far */
};

static bool only_looks(enum on_missing missing)
{
    return missing == LOOK || missing == LOOK_LASTING;
}

/* Puts the target of a symbolic link in front of what is left of the path. Where a process would
 * get no further, there is nothing to be seen, and nothing can be made. */
static int follow(struct merge *m, struct walk *w, const char *target, enum on_missing missing,
                  struct err *e)
{
    size_t target_len = strlen(target);
    bool too_many = ++w->links > OCI_MAX_LINKS;
    if (too_many || target_len + 1 + w->rest_len > sizeof(m->walk[0])) {
        w->at = OCI_NAME_NONE;
        if (only_looks(missing))
            return 0;
        if (too_many)
            return err_set(e, ERR_CORRUPT, "more than %d symbolic links on its way", OCI_MAX_LINKS);
        return err_set(e, ERR_CORRUPT, "symbolic links make its path too long");
    }
    char *text = m->walk[w->links % 2];
    memcpy(text, target, target_len);
    text[target_len] = '/';
    memcpy(text + target_len + 1, w->rest, w->rest_len);
    if (*target == '/')
        w->at = OCI_NAME_ROOT;
    w->rest = text;
    w->rest_len += target_len + 1;
    return 0;
}

static int make_directory(struct merge *m, uint32_t *at, const char *text, size_t len,
                          struct err *e)
{
    if (len > OCI_MAX_NAME)
        return err_set(e, ERR_LIMIT, "a directory on its way has a name of %zu bytes", len);
    const char *kept;
    uint32_t inode;
    int rc = keep_text(m->tree, &kept, text, len, e);
    if (rc == 0)
        rc = add_inode(m, &inode, &m->tree->implied, e);
    return rc < 0 ? rc : oci_names_add(&m->names, at, *at, kept, inode, e);
}

/* Takes one component; w->at becomes OCI_NAME_NONE when the way ends. */
static int step(struct merge *m, struct walk *w, enum on_missing missing, struct err *e)
{
    const char *text = w->rest;
    const char *slash = memchr(text, '/', w->rest_len);
    size_t len = slash ? (size_t)(slash - text) : w->rest_len;
    size_t taken = slash ? len + 1 : len;
    w->rest += taken;
    w->rest_len -= taken;
    if (len == 0 || (len == 1 && text[0] == '.'))
        return 0;
    if (len == 2 && text[0] == '.' && text[1] == '.') {
        w->at = m->names.items[w->at].parent;
        return 0;
    }
    uint32_t child = oci_names_find(&m->names, w->at, text, len);
    if (child == OCI_NAME_NONE && !only_looks(missing))
        return make_directory(m, &w->at, text, len, e);
    if (child != OCI_NAME_NONE && entry_of(m, child)->type == OCI_SYMLINK &&
        !(missing == LOOK_LASTING && m->names.items[child].doomed == m->layer + 1))
        return follow(m, w, entry_of(m, child)->target, missing, e);
    if (child != OCI_NAME_NONE && !is_directory(m, child)) {
        char name[OCI_QUOTE_MAX];
        if (missing == MAKE)
            return err_set(e, ERR_CORRUPT, "%s on its way is not a directory",
                           oci_text_quote(m->names.items[child].text, name));
        child = OCI_NAME_NONE;
    }
    w->at = child;
    return 0;
}

/* *out is the directory that the first `len` bytes of `path` lead to, or OCI_NAME_NONE. */
static int find_directory(struct merge *m, uint32_t *out, const char *path, size_t len,
                          enum on_missing missing, struct err *e)
{
    struct walk w = {.at = OCI_NAME_ROOT, .rest = path, .rest_len = len};
    while (w.rest_len > 0 && w.at != OCI_NAME_NONE) {
        int rc = step(m, &w, missing, e);
        if (rc < 0)
            return rc;
    }
    *out = w.at;
    return 0;
}

/* The directory that a path lies in; neighbours in a tar mostly share it. */
static int find_parent(struct merge *m, uint32_t *out, const char *path, enum on_missing missing,
                       struct err *e)
{
    size_t base = oci_path_base(path);
    size_t len = base > 0 ? base - 1 : 0;
    if (m->parent_path && m->parent_len == len && memcmp(m->parent_path, path, len) == 0) {
        *out = m->parent;
        return 0;
    }
    int rc = find_directory(m, out, path, len, missing, e);
    if (rc == 0 && *out != OCI_NAME_NONE) {
        m->parent_path = path;
        m->parent_len = len;
        m->parent = *out;
    }
    return rc;
}

/* Asked at every entry, looked at now and then: it is a system call. */
static int check_cancel(const struct merge *m, size_t entry, struct err *e)
{
    enum { EVERY = 4096 };
    return entry % EVERY == 0 ? cancel_check(m->cancel, e) : 0;
}

/* ---- Applying a layer ---- */

struct removal {
    uint32_t name;
    bool children_only; /* of an opaque marker */
};

struct removal_list {
    struct removal *items;
    size_t count;
    size_t capacity;
};

/* The name that an entry stands for in the tree as it is, or OCI_NAME_NONE. */
static int find_name(struct merge *m, uint32_t *out, const char *path, enum on_missing missing,
                     struct err *e)
{
    int rc = find_parent(m, out, path, missing, e);
    const char *base = path + oci_path_base(path);
    if (rc == 0 && *out != OCI_NAME_NONE)
        *out = oci_names_find(&m->names, *out, base, strlen(base));
    return rc;
}

/* What a hard link of the layer leads to below it, before the layer's markers act. */
struct lower_target {
    const struct oci_entry *entry;
    uint32_t inode;
};

/* In tar order, and so they are asked for. */
struct lower_list {
    struct lower_target *items;
    size_t count;
    size_t capacity;
    size_t next;
};

/* The name that a hard link leads to, or OCI_NAME_NONE. */
static int find_target(struct merge *m, uint32_t *out, const struct oci_entry *entry, struct err *e)
{
    const char *base = entry->target + oci_path_base(entry->target);
    int rc = find_directory(m, out, entry->target, (size_t)(base - entry->target), LOOK, e);
    if (rc == 0 && *out != OCI_NAME_NONE)
        *out = oci_names_find(&m->names, *out, base, strlen(base));
    return rc;
}

static int note_target(struct merge *m, const struct oci_entry *entry, struct err *e)
{
    uint32_t target;
    struct lower_list *list = m->lower;
    int rc = find_target(m, &target, entry, e);
    if (rc < 0 || target == OCI_NAME_NONE || is_directory(m, target))
        return rc;
    rc = mem_grow(&list->items, &list->capacity, list->count + 1, sizeof(*list->items), e);
    if (rc == 0)
        list->items[list->count++] =
            (struct lower_target){.entry = entry, .inode = m->names.items[target].inode};
    return rc;
}

/* The inode that was noted for the entry; false when there is none. */
static bool noted_target(struct merge *m, const struct oci_entry *entry, uint32_t *inode)
{
    struct lower_list *list = m->lower;
    while (list->next < list->count && list->items[list->next].entry < entry)
        list->next++;
    if (list->next == list->count || list->items[list->next].entry != entry)
        return false;
    *inode = list->items[list->next].inode;
    return true;
}

/* Looks at the layers below as they are: marks a link that this layer removes or replaces, notes
 * what its hard links lead to. */
static int look_below(struct merge *m, const struct oci_entry *entry, struct err *e)
{
    uint32_t name;
    if (entry->type == OCI_OPAQUE || *entry->path == 0)
        return 0;
    if (entry->type == OCI_HARDLINK && note_target(m, entry, e) < 0)
        return -(int)e->class;
    int rc = find_name(m, &name, entry->path, LOOK, e);
    if (rc < 0 || name == OCI_NAME_NONE || entry_of(m, name)->type != OCI_SYMLINK)
        return rc;
    bool stays =
        entry->type == OCI_SYMLINK && strcmp(entry->target, entry_of(m, name)->target) == 0;
    if (!stays)
        m->names.items[name].doomed = (uint32_t)m->layer + 1;
    return 0;
}

static int find_removal(struct merge *m, const struct oci_entry *entry, struct err *e)
{
    uint32_t name;
    bool opaque = entry->type == OCI_OPAQUE;
    int rc = opaque ? find_directory(m, &name, entry->path, strlen(entry->path), LOOK_LASTING, e)
                    : find_name(m, &name, entry->path, LOOK_LASTING, e);
    if (rc < 0 || name == OCI_NAME_NONE)
        return rc;
    struct removal_list *list = m->removals;
    rc = mem_grow(&list->items, &list->capacity, list->count + 1, sizeof(*list->items), e);
    if (rc == 0)
        list->items[list->count++] = (struct removal){.name = name, .children_only = opaque};
    return rc;
}

static void remove_found(struct merge *m)
{
    for (size_t i = 0; i < m->removals->count; i++) {
        const struct removal *removal = &m->removals->items[i];
        if (m->names.items[removal->name].parent == OCI_NAME_NONE)
            continue; /* an earlier one took it along */
        if (removal->children_only)
            remove_children(m, removal->name);
        else
            remove_name(m, removal->name);
    }
}

/* Gives a name to an inode, whatever the name stood for before. */
static int bind_name(struct merge *m, uint32_t parent, const char *text, uint32_t inode,
                     struct err *e)
{
    size_t len = strlen(text);
    uint32_t name = oci_names_find(&m->names, parent, text, len);
    if (name == OCI_NAME_NONE) {
        int rc = oci_names_add(&m->names, &name, parent, text, inode, e);
        if (rc < 0)
            return rc;
    } else {
        if (m->names.items[name].placed >= m->first_placed)
            m->duplicates++;
        enum oci_entry_type before = entry_of(m, name)->type;
        if (before == OCI_DIRECTORY || before == OCI_SYMLINK)
            remove_children(m, name); /* paths led through it */
        m->names.items[name].inode = inode;
    }
    m->names.items[name].placed = m->placed;
    return 0;
}

static int place(struct merge *m, const struct oci_entry *entry, struct err *e)
{
    uint32_t parent;
    int rc = find_parent(m, &parent, entry->path, MAKE, e);
    if (rc < 0)
        return rc;
    const char *base = entry->path + oci_path_base(entry->path);
    if (entry->type == OCI_DIRECTORY) {
        uint32_t name =
            *base == 0 ? OCI_NAME_ROOT : oci_names_find(&m->names, parent, base, strlen(base));
        if (name != OCI_NAME_NONE && is_directory(m, name)) {
            struct inode *inode = &m->inodes[m->names.items[name].inode];
            inode->entry = entry;
            inode->layer = m->layer;
            m->names.items[name].placed = m->placed;
            return 0;
        }
    }
    uint32_t inode;
    rc = add_inode(m, &inode, entry, e);
    return rc < 0 ? rc : bind_name(m, parent, base, inode, e);
}

/* *found is false when the link's target is not there (yet). */
static int place_link(struct merge *m, const struct oci_entry *entry, bool *found, struct err *e)
{
    uint32_t target;
    uint32_t inode = 0;
    *found = false;
    int rc = find_target(m, &target, entry, e);
    if (rc < 0 || (target == OCI_NAME_NONE && !noted_target(m, entry, &inode)))
        return rc;
    if (target != OCI_NAME_NONE && is_directory(m, target)) {
        char name[OCI_QUOTE_MAX];
        return err_set(e, ERR_CORRUPT, "a hard link to the directory %s",
                       oci_text_quote(entry->target, name));
    }
    if (target != OCI_NAME_NONE)
        inode = m->names.items[target].inode;
    *found = true;
    uint32_t parent;
    rc = find_parent(m, &parent, entry->path, MAKE, e);
    if (rc < 0)
        return rc;
    const char *text = entry->path + oci_path_base(entry->path);
    return bind_name(m, parent, text, inode, e);
}

/* A link that met no target when its turn came. */
struct waiting {
    const struct oci_entry *entry;
    uint32_t placed;
};

struct waiting_list {
    struct waiting *items;
    size_t count;
    size_t capacity;
};

/* Tries a link again, unless a later entry of the layer took its name. */
static int retry_link(struct merge *m, struct waiting *w, struct err *e)
{
    uint32_t name;
    int rc = find_parent(m, &name, w->entry->path, LOOK, e);
    if (rc < 0)
        return rc;
    const char *text = w->entry->path + oci_path_base(w->entry->path);
    if (name != OCI_NAME_NONE)
        name = oci_names_find(&m->names, name, text, strlen(text));
    bool done = name != OCI_NAME_NONE && m->names.items[name].placed > w->placed;
    if (!done) {
        m->placed = w->placed;
        rc = place_link(m, w->entry, &done, e);
    }
    if (rc == 0 && done)
        w->entry = NULL;
    return rc;
}

static int entry_failure(const struct oci_entry *entry, struct err *e)
{
    char name[OCI_QUOTE_MAX];
    return err_in(e, "entry %s", oci_text_quote(entry->path, name));
}

/* Tries all links that wait, in tar order or against it. */
static int retry_links(struct merge *m, struct waiting_list *list, bool forward, size_t *found,
                       struct err *e)
{
    *found = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct waiting *w = &list->items[forward ? i : list->count - 1 - i];
        const struct oci_entry *entry = w->entry;
        int rc = check_cancel(m, i, e);
        if (rc < 0)
            return rc;
        rc = entry ? retry_link(m, w, e) : 0;
        if (rc < 0)
            return entry_failure(entry, e);
        if (entry && !w->entry)
            ++*found;
    }
    return 0;
}

/*
 * Links may point forward in their layer. Once through in tar order and once against it finds the
 * targets of all chains that run one way; shuffled chains need a pass for every turn. The number
 * of passes has an end, so that no layer costs quadratic time.
 */
static int apply_waiting(struct merge *m, struct waiting_list *list, struct err *e)
{
    enum { PASSES = 64 };
    uint32_t last = m->placed;
    size_t left = list->count;
    size_t idle = 0; /* passes one after the other that found nothing: both ways, and it is over */
    for (size_t i = 0; i < PASSES && left > 0 && idle < 2; i++) {
        size_t found;
        int rc = retry_links(m, list, i % 2 == 0, &found, e);
        if (rc < 0)
            return rc;
        left -= found;
        idle = found > 0 ? 0 : idle + 1;
    }
    m->placed = last;
    for (size_t i = 0; i < list->count; i++) {
        const struct oci_entry *entry = list->items[i].entry;
        if (!entry)
            continue;
        char name[OCI_QUOTE_MAX];
        err_set(e, ERR_CORRUPT, "a hard link to %s, which neither this layer nor one below has",
                oci_text_quote(entry->target, name));
        return entry_failure(entry, e);
    }
    return 0;
}

static int apply_entry(struct merge *m, const struct oci_entry *entry, struct err *e)
{
    struct waiting_list *list = m->waiting;
    bool found = true;
    int rc = 0;
    uint32_t ignored;
    m->placed++;
    switch (entry->type) {
    case OCI_WHITEOUT:
        break;
    case OCI_OPAQUE:
        rc = find_directory(m, &ignored, entry->path, strlen(entry->path), MAKE_IF_FREE, e);
        break;
    case OCI_HARDLINK:
        rc = place_link(m, entry, &found, e);
        break;
    case OCI_FILE:
    case OCI_DIRECTORY:
    case OCI_SYMLINK:
    case OCI_CHARACTER_DEVICE:
    case OCI_BLOCK_DEVICE:
    case OCI_FIFO:
        rc = place(m, entry, e);
        break;
    }
    if (rc < 0 || found)
        return rc;
    rc = mem_grow(&list->items, &list->capacity, list->count + 1, sizeof(*list->items), e);
    if (rc == 0)
        list->items[list->count++] = (struct waiting){.entry = entry, .placed = m->placed};
    return rc;
}

static bool is_marker(const struct oci_entry *entry)
{
    return entry->type == OCI_WHITEOUT || entry->type == OCI_OPAQUE;
}

/* Calls `act` for the entries of the layer, or for its markers alone. */
static int each_entry(struct merge *m, const struct oci_layer *layer, bool markers,
                      int (*act)(struct merge *, const struct oci_entry *, struct err *),
                      struct err *e)
{
    m->parent_path = NULL;
    for (size_t i = 0; i < oci_layer_count(layer); i++) {
        const struct oci_entry *entry = oci_layer_entry(layer, i);
        int rc = check_cancel(m, i, e);
        if (rc < 0)
            return rc;
        if ((!markers || is_marker(entry)) && act(m, entry, e) < 0)
            return entry_failure(entry, e);
    }
    m->parent_path = NULL;
    return 0;
}

static int apply_removals(struct merge *m, const struct oci_layer *layer, struct err *e)
{
    size_t i = 0;
    while (i < oci_layer_count(layer) && !is_marker(oci_layer_entry(layer, i)))
        i++;
    if (i == oci_layer_count(layer))
        return 0;
    struct removal_list list = {0};
    m->removals = &list;
    int rc = each_entry(m, layer, false, look_below, e);
    if (rc == 0)
        rc = each_entry(m, layer, true, find_removal, e);
    if (rc == 0)
        remove_found(m);
    free(list.items);
    m->removals = NULL;
    return rc;
}

static int apply_entries(struct merge *m, const struct oci_layer *layer, struct err *e)
{
    int rc = apply_removals(m, layer, e);
    if (rc == 0)
        rc = each_entry(m, layer, false, apply_entry, e);
    return rc < 0 ? rc : apply_waiting(m, m->waiting, e);
}

static int apply_layer(struct merge *m, const struct oci_layer *layer, struct err *e)
{
    if (oci_layer_count(layer) >= OCI_NAME_NONE - 1 - m->placed)
        return err_set(e, ERR_LIMIT, "more than %u entries", OCI_NAME_NONE - 1);
    struct waiting_list list = {0};
    struct lower_list lower = {0};
    m->first_placed = m->placed + 1;
    m->duplicates = 0;
    m->waiting = &list;
    m->lower = &lower;
    int rc = apply_entries(m, layer, e);
    m->waiting = NULL;
    m->lower = NULL;
    free(list.items);
    free(lower.items);
    if (rc == -ERR_CANCELLED)
        return rc;
    if (rc < 0)
        return err_in(e, "layer %zu", m->layer + 1);
    if (m->duplicates > 0)
        log_event(LOG_INFO, "oci", "layer %zu names %zu files more than once; the last one counts",
                  m->layer + 1, m->duplicates);
    return 0;
}

/* ---- Numbering ---- */

/* Descending, since the stack hands out the last one first. */
static int compare_names(const void *a, const void *b, void *ctx)
{
    const struct oci_name *names = ctx;
    uint32_t x;
    uint32_t y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return strcmp(names[y].text, names[x].text);
}

/* Appends the children of a name to the stack, sorted, the first one on top. */
static size_t push_children(struct merge *m, uint32_t *stack, size_t depth, uint32_t name)
{
    size_t start = depth;
    for (uint32_t at = m->names.items[name].first_child; at != OCI_NAME_NONE;
         at = m->names.items[at].next)
        stack[depth++] = at;
    qsort_r(stack + start, depth - start, sizeof(*stack), compare_names, m->names.items);
    return depth;
}

static void number_name(struct merge *m, uint32_t at)
{
    struct oci_tree *t = m->tree;
    struct oci_name *n = &m->names.items[at];
    struct inode *inode = &m->inodes[n->inode];
    n->number = (uint32_t)t->count;
    t->nodes[t->count] = (struct oci_node){.name = n->text,
                                           .parent = m->names.items[n->parent].number,
                                           .link_of = inode->first_number,
                                           .layer = inode->layer,
                                           .entry = inode->entry};
    if (inode->first_number == SIZE_MAX)
        inode->first_number = t->count;
    t->count++;
}

static int number_names(struct merge *m, struct err *e)
{
    uint32_t *stack = mem_array(m->names.count, sizeof(*stack));
    m->tree->nodes = mem_array(m->names.count, sizeof(*m->tree->nodes));
    if (!stack || !m->tree->nodes) {
        free(stack);
        return err_nomem(e, "tree");
    }
    stack[0] = OCI_NAME_ROOT;
    size_t depth = 1;
    while (depth > 0) {
        uint32_t at = stack[--depth];
        number_name(m, at);
        depth = push_children(m, stack, depth, at);
    }
    free(stack);
    return 0;
}

/* ---- The tree ---- */

static int start(struct merge *m, struct err *e)
{
    m->tree = mem_zalloc(sizeof(*m->tree));
    if (!m->tree)
        return err_nomem(e, "tree");
    struct oci_entry *implied = &m->tree->implied;
    *implied = (struct oci_entry){.type = OCI_DIRECTORY, .mode = 0755};
    implied->path = mem_strdup("");
    if (!implied->path)
        return err_nomem(e, "tree");
    uint32_t inode = 0;
    int rc = add_inode(m, &inode, implied, e);
    return rc < 0 ? rc : oci_names_init(&m->names, inode, e);
}

int oci_tree_merge(struct oci_tree **out, struct oci_layer *const *layers, size_t layer_count,
                   const struct cancel *cancel, struct err *e)
{
    AUTO_MERGE struct merge *m = mem_zalloc(sizeof(*m));
    if (!m)
        return err_nomem(e, "tree");
    m->cancel = cancel;
    int rc = start(m, e);
    for (m->layer = 0; rc == 0 && m->layer < layer_count; m->layer++)
        rc = apply_layer(m, layers[m->layer], e);
    if (rc == 0)
        rc = number_names(m, e);
    if (rc < 0)
        return rc;
    *out = MOVE(m->tree);
    return 0;
}

void oci_tree_free(struct oci_tree *t)
{
    if (!t)
        return;
    for (struct text_block *block = t->text; block;) {
        struct text_block *next = block->next;
        free(block);
        block = next;
    }
    oci_entry_fini(&t->implied);
    free(t->nodes);
    free(t);
}

size_t oci_tree_count(const struct oci_tree *t)
{
    return t->count;
}

struct oci_node oci_tree_node(const struct oci_tree *t, size_t index)
{
    return t->nodes[index];
}
