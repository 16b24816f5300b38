/* SPDX-License-Identifier: MIT */
/*
 * The merged tree: what an image looks like after all its layers (image-spec layer.md, section
 * Applying Changesets), worked out from layer indexes alone.
 *
 * A layer is applied in two passes. First its whiteouts and opaque markers act on the tree that
 * the layers below made; then its entries are placed in tar order. So a marker never touches its
 * own layer, wherever it stands in the tar, and creates nothing (but an opaque marker implies its
 * directory).
 *
 * Names and inodes are apart: a hard link is one more name for an inode, and replacing a name
 * leaves the inode's other names alone. Names hang in sibling lists and in one hash table keyed by
 * (directory, name), so a directory of 100,000 files costs no more than 100,000 directories. The
 * hash is SipHash with a key drawn per tree, since names come from outside; nothing that leaves this
 * file depends on its order.
 *
 * Parents of an entry are looked up through symbolic links as a process chrooted into the image
 * would: absolute targets start at the image's root and ".." stops there. The last component is
 * never followed. Missing parents appear as 0755 0:0 with time 0.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/mem.h"
#include "oci/internal.h"

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

enum { ROOT = 0, FIRST_BUCKETS = 1024 };
#define NONE UINT32_MAX

struct name {
    const char *text; /* in an entry's path, or in the tree's own text */
    uint32_t len;
    uint32_t path_len; /* of the whole path, bounded by LIMIT_PATH */
    uint32_t parent;
    uint32_t first_child;
    uint32_t last_child;
    uint32_t next; /* sibling */
    uint32_t previous;
    uint32_t chain; /* next in the hash bucket */
    uint32_t hash;
    uint32_t inode;
    uint32_t placed; /* when: numbers rise with each entry of each layer; 0 for implied ones */
    uint32_t number; /* in the finished tree */
};

struct inode {
    const struct oci_entry *entry;
    size_t layer;
    size_t first_number; /* of its names in the finished tree; SIZE_MAX before there is one */
};

/* What to do where a directory is missing on the way. */
enum on_missing {
    LOOK,         /* there is no such directory */
    MAKE,         /* make it; something else in the way is an error */
    MAKE_IF_FREE, /* make it; something else in the way means that there is none */
};

struct merge {
    struct oci_tree *tree;
    struct name *names;
    size_t name_count;
    size_t name_capacity;
    struct inode *inodes;
    size_t inode_count;
    size_t inode_capacity;
    uint32_t *buckets;
    size_t bucket_count; /* a power of two */
    uint64_t key[2];
    /* The layer in hand. */
    size_t layer;
    uint32_t first_placed;
    uint32_t placed;
    size_t duplicates;
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
    free(m->names);
    free(m->inodes);
    free(m->buckets);
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

/* ---- The hash table ---- */

static inline uint64_t rotate(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* SipHash-1-3 (Aumasson, Bernstein) of the directory's number and the name. */
static uint32_t hash_of(const struct merge *m, uint32_t parent, const char *text, size_t len)
{
    uint64_t v[4] = {m->key[0] ^ 0x736f6d6570736575, m->key[1] ^ 0x646f72616e646f6d,
                     m->key[0] ^ 0x6c7967656e657261, m->key[1] ^ 0x7465646279746573};
    uint64_t word = parent | (uint64_t)len << 32;
    for (size_t at = 0;;) {
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
        if (at >= len)
            break;
        size_t part = len - at < sizeof(word) ? len - at : sizeof(word);
        word = 0;
        memcpy(&word, text + at, part);
        at += part;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

static uint32_t find_child(const struct merge *m, uint32_t parent, const char *text, size_t len)
{
    uint32_t hash = hash_of(m, parent, text, len);
    uint32_t at = m->buckets[hash & (m->bucket_count - 1)];
    while (at != NONE) {
        const struct name *n = &m->names[at];
        if (n->hash == hash && n->parent == parent && n->len == len &&
            memcmp(n->text, text, len) == 0)
            break;
        at = n->chain;
    }
    return at;
}

static void hash_name(struct merge *m, uint32_t name)
{
    struct name *n = &m->names[name];
    uint32_t *bucket = &m->buckets[n->hash & (m->bucket_count - 1)];
    n->chain = *bucket;
    *bucket = name;
}

static void unhash_name(struct merge *m, uint32_t name)
{
    struct name *n = &m->names[name];
    uint32_t *at = &m->buckets[n->hash & (m->bucket_count - 1)];
    while (*at != name)
        at = &m->names[*at].chain;
    *at = n->chain;
    n->parent = NONE;
}

static int set_buckets(struct merge *m, size_t count, struct err *e)
{
    uint32_t *buckets = mem_array(count, sizeof(*buckets));
    if (!buckets)
        return err_nomem(e, "tree");
    memset(buckets, 0xff, count * sizeof(*buckets)); /* NONE everywhere */
    free(m->buckets);
    m->buckets = buckets;
    m->bucket_count = count;
    for (size_t i = 1; i < m->name_count; i++)
        if (m->names[i].parent != NONE)
            hash_name(m, (uint32_t)i);
    return 0;
}

/* ---- Names and inodes ---- */

static const struct oci_entry *entry_of(const struct merge *m, uint32_t name)
{
    return m->inodes[m->names[name].inode].entry;
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

/* Adds a name that its directory does not have yet. `text` must live as long as the tree. */
static int add_name(struct merge *m, uint32_t *out, uint32_t parent, const char *text,
                    uint32_t inode, struct err *e)
{
    size_t len = strlen(text);
    if (m->name_count >= NONE - 1)
        return err_set(e, ERR_LIMIT, "more than %u names", NONE - 1);
    size_t path_len = m->names[parent].path_len + (parent == ROOT ? 0 : 1) + len;
    if (path_len >= LIMIT_PATH)
        return err_set(e, ERR_LIMIT, "its path in the image has %zu bytes, at most %zu can be used",
                       path_len, LIMIT_PATH - 1);
    int rc = mem_grow(&m->names, &m->name_capacity, m->name_count + 1, sizeof(*m->names), e);
    if (rc == 0 && m->name_count >= m->bucket_count)
        rc = set_buckets(m, m->bucket_count * 2, e);
    if (rc < 0)
        return rc;
    uint32_t name = (uint32_t)m->name_count++;
    struct name *p = &m->names[parent];
    m->names[name] = (struct name){.text = text,
                                   .len = (uint32_t)len,
                                   .path_len = (uint32_t)path_len,
                                   .parent = parent,
                                   .first_child = NONE,
                                   .last_child = NONE,
                                   .next = NONE,
                                   .previous = p->last_child,
                                   .hash = hash_of(m, parent, text, len),
                                   .inode = inode};
    if (p->last_child == NONE)
        p->first_child = name;
    else
        m->names[p->last_child].next = name;
    p->last_child = name;
    hash_name(m, name);
    *out = name;
    return 0;
}

/* Forgets all that lies below a directory, deepest first, and the parent found last. */
static void remove_children(struct merge *m, uint32_t directory)
{
    uint32_t at = m->names[directory].first_child;
    while (at != NONE && at != directory) {
        struct name *n = &m->names[at];
        if (n->first_child != NONE) {
            at = n->first_child;
            continue;
        }
        uint32_t parent = n->parent;
        uint32_t next = n->next;
        unhash_name(m, at);
        m->names[parent].first_child = next;
        at = next != NONE ? next : parent;
    }
    m->names[directory].first_child = NONE;
    m->names[directory].last_child = NONE;
    m->parent_path = NULL;
}

static void remove_name(struct merge *m, uint32_t name)
{
    remove_children(m, name);
    struct name *n = &m->names[name];
    struct name *p = &m->names[n->parent];
    if (n->previous == NONE)
        p->first_child = n->next;
    else
        m->names[n->previous].next = n->next;
    if (n->next == NONE)
        p->last_child = n->previous;
    else
        m->names[n->next].previous = n->previous;
    unhash_name(m, name);
}

/* ---- Finding directories ---- */

struct walk {
    uint32_t at;
    const char *rest; /* of the path, not yet walked */
    size_t rest_len;
    unsigned links; /* followed so far */
};

/* Puts the target of a symbolic link in front of what is left of the path. */
static int follow(struct merge *m, struct walk *w, const char *target, struct err *e)
{
    if (++w->links > OCI_MAX_LINKS)
        return err_set(e, ERR_CORRUPT, "more than %d symbolic links on its way", OCI_MAX_LINKS);
    size_t target_len = strlen(target);
    if (target_len + 1 + w->rest_len > sizeof(m->walk[0]))
        return err_set(e, ERR_CORRUPT, "symbolic links make its path too long");
    char *text = m->walk[w->links % 2];
    memcpy(text, target, target_len);
    text[target_len] = '/';
    memcpy(text + target_len + 1, w->rest, w->rest_len);
    if (*target == '/')
        w->at = ROOT;
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
    return rc < 0 ? rc : add_name(m, at, *at, kept, inode, e);
}

/* Takes one component; w->at becomes NONE when the way ends. */
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
        w->at = m->names[w->at].parent;
        return 0;
    }
    uint32_t child = find_child(m, w->at, text, len);
    if (child == NONE && missing != LOOK)
        return make_directory(m, &w->at, text, len, e);
    if (child != NONE && entry_of(m, child)->type == OCI_SYMLINK)
        return follow(m, w, entry_of(m, child)->target, e);
    if (child != NONE && !is_directory(m, child)) {
        char name[OCI_QUOTE_MAX];
        if (missing == MAKE)
            return err_set(e, ERR_CORRUPT, "%s on its way is not a directory",
                           oci_text_quote(m->names[child].text, name));
        child = NONE;
    }
    w->at = child;
    return 0;
}

/* *out is the directory that the first `len` bytes of `path` lead to, or NONE. */
static int find_directory(struct merge *m, uint32_t *out, const char *path, size_t len,
                          enum on_missing missing, struct err *e)
{
    struct walk w = {.at = ROOT, .rest = path, .rest_len = len};
    while (w.rest_len > 0 && w.at != NONE) {
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
    if (rc == 0 && *out != NONE) {
        m->parent_path = path;
        m->parent_len = len;
        m->parent = *out;
    }
    return rc;
}

/* ---- Applying a layer ---- */

static int apply_removal(struct merge *m, const struct oci_entry *entry, struct err *e)
{
    uint32_t at;
    if (entry->type == OCI_OPAQUE) {
        int rc = find_directory(m, &at, entry->path, strlen(entry->path), LOOK, e);
        if (rc == 0 && at != NONE)
            remove_children(m, at);
        return rc;
    }
    int rc = find_parent(m, &at, entry->path, LOOK, e);
    if (rc < 0 || at == NONE)
        return rc;
    const char *base = entry->path + oci_path_base(entry->path);
    at = find_child(m, at, base, strlen(base));
    if (at != NONE)
        remove_name(m, at);
    return 0;
}

/* Gives a name to an inode, whatever the name stood for before. */
static int bind_name(struct merge *m, uint32_t parent, const char *text, uint32_t inode,
                     struct err *e)
{
    size_t len = strlen(text);
    uint32_t name = find_child(m, parent, text, len);
    if (name == NONE) {
        int rc = add_name(m, &name, parent, text, inode, e);
        if (rc < 0)
            return rc;
    } else {
        if (m->names[name].placed >= m->first_placed)
            m->duplicates++;
        enum oci_entry_type before = entry_of(m, name)->type;
        if (before == OCI_DIRECTORY || before == OCI_SYMLINK)
            remove_children(m, name); /* paths led through it */
        m->names[name].inode = inode;
    }
    m->names[name].placed = m->placed;
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
        uint32_t name = *base == 0 ? ROOT : find_child(m, parent, base, strlen(base));
        if (name != NONE && is_directory(m, name)) {
            struct inode *inode = &m->inodes[m->names[name].inode];
            inode->entry = entry;
            inode->layer = m->layer;
            m->names[name].placed = m->placed;
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
    *found = false;
    const char *base = entry->target + oci_path_base(entry->target);
    int rc = find_directory(m, &target, entry->target, (size_t)(base - entry->target), LOOK, e);
    if (rc == 0 && target != NONE)
        target = find_child(m, target, base, strlen(base));
    if (rc < 0 || target == NONE)
        return rc;
    if (is_directory(m, target)) {
        char name[OCI_QUOTE_MAX];
        return err_set(e, ERR_CORRUPT, "a hard link to the directory %s",
                       oci_text_quote(entry->target, name));
    }
    *found = true;
    uint32_t parent;
    rc = find_parent(m, &parent, entry->path, MAKE, e);
    if (rc < 0)
        return rc;
    const char *text = entry->path + oci_path_base(entry->path);
    return bind_name(m, parent, text, m->names[target].inode, e);
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
    if (name != NONE)
        name = find_child(m, name, text, strlen(text));
    bool done = name != NONE && m->names[name].placed > w->placed;
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

/*
 * Links may point forward in their layer. Once through in tar order and once against it finds the
 * targets of all chains that run one way; more passes would let a hostile layer cost quadratic time.
 */
static int apply_waiting(struct merge *m, struct waiting_list *list, struct err *e)
{
    uint32_t last = m->placed;
    for (size_t i = 0; i < 2 * list->count; i++) {
        size_t at = i < list->count ? i : 2 * list->count - 1 - i;
        const struct oci_entry *entry = list->items[at].entry;
        int rc = entry ? retry_link(m, &list->items[at], e) : 0;
        if (rc < 0)
            return entry_failure(entry, e);
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

static int apply_entry(struct merge *m, const struct oci_entry *entry, struct waiting_list *list,
                       struct err *e)
{
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

static int apply_entries(struct merge *m, const struct oci_layer *layer, struct waiting_list *list,
                         struct err *e)
{
    for (size_t i = 0; i < oci_layer_count(layer); i++) {
        const struct oci_entry *entry = oci_layer_entry(layer, i);
        bool removes = entry->type == OCI_WHITEOUT || entry->type == OCI_OPAQUE;
        if (removes && apply_removal(m, entry, e) < 0)
            return entry_failure(entry, e);
    }
    m->parent_path = NULL;
    for (size_t i = 0; i < oci_layer_count(layer); i++) {
        const struct oci_entry *entry = oci_layer_entry(layer, i);
        if (apply_entry(m, entry, list, e) < 0)
            return entry_failure(entry, e);
    }
    return apply_waiting(m, list, e);
}

static int apply_layer(struct merge *m, const struct oci_layer *layer, struct err *e)
{
    if (oci_layer_count(layer) >= NONE - 1 - m->placed)
        return err_set(e, ERR_LIMIT, "more than %u entries", NONE - 1);
    struct waiting_list list = {0};
    m->first_placed = m->placed + 1;
    m->duplicates = 0;
    int rc = apply_entries(m, layer, &list, e);
    free(list.items);
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
    const struct name *names = ctx;
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
    for (uint32_t at = m->names[name].first_child; at != NONE; at = m->names[at].next)
        stack[depth++] = at;
    qsort_r(stack + start, depth - start, sizeof(*stack), compare_names, m->names);
    return depth;
}

static void number_name(struct merge *m, uint32_t at)
{
    struct oci_tree *t = m->tree;
    struct name *n = &m->names[at];
    struct inode *inode = &m->inodes[n->inode];
    n->number = (uint32_t)t->count;
    t->nodes[t->count] = (struct oci_node){.name = n->text,
                                           .parent = m->names[n->parent].number,
                                           .link_of = inode->first_number,
                                           .layer = inode->layer,
                                           .entry = inode->entry};
    if (inode->first_number == SIZE_MAX)
        inode->first_number = t->count;
    t->count++;
}

static int number_names(struct merge *m, struct err *e)
{
    uint32_t *stack = mem_array(m->name_count, sizeof(*stack));
    m->tree->nodes = mem_array(m->name_count, sizeof(*m->tree->nodes));
    if (!stack || !m->tree->nodes) {
        free(stack);
        return err_nomem(e, "tree");
    }
    stack[0] = ROOT;
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
    if (getrandom(m->key, sizeof(m->key), 0) != (ssize_t)sizeof(m->key))
        return err_sys(e, "random key");
    int rc = mem_grow(&m->names, &m->name_capacity, 1, sizeof(*m->names), e);
    uint32_t inode = 0;
    if (rc == 0)
        rc = add_inode(m, &inode, implied, e);
    if (rc < 0)
        return rc;
    m->names[ROOT] = (struct name){.text = "",
                                   .parent = ROOT,
                                   .first_child = NONE,
                                   .last_child = NONE,
                                   .next = NONE,
                                   .previous = NONE,
                                   .chain = NONE,
                                   .inode = inode};
    m->name_count = 1;
    return set_buckets(m, FIRST_BUCKETS, e);
}

int oci_tree_merge(struct oci_tree **out, struct oci_layer *const *layers, size_t layer_count,
                   struct err *e)
{
    AUTO_MERGE struct merge *m = mem_zalloc(sizeof(*m));
    if (!m)
        return err_nomem(e, "tree");
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
