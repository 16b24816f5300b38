/* SPDX-License-Identifier: MIT */
/*
 * Two merged trees, name by name. Both are numbered depth first with children in the order of their
 * bytes, so one walk along both finds what either lacks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

enum { FIELDS_MAX = 128, VALUE_MAX = 64 };

struct side {
    const struct oci_tree *tree;
    size_t at;
    size_t count;
    struct oci_node node;      /* at `at` */
    char path[LIMIT_PATH + 1]; /* raw, "" for the root; '/' stands as a zero byte */
    size_t path_len;
};

struct walk {
    struct side a;
    struct side b;
    const struct oci_diff_ops *ops;
    struct buf line;
    struct buf path;
    struct buf fields;
    struct err *e;
};

/* The path, with zero bytes for slashes: compared as bytes these are in the order of the trees. */
static void load_side(struct side *s)
{
    if (s->at >= s->count)
        return;
    char path[LIMIT_PATH + 1];
    size_t at = sizeof(path);
    s->node = oci_tree_node(s->tree, s->at);
    struct oci_node node = s->node;
    for (size_t i = s->at; i != 0; i = node.parent, node = oci_tree_node(s->tree, i)) {
        size_t len = strlen(node.name);
        at -= len;
        memcpy(path + at, node.name, len);
        path[--at] = 0;
    }
    s->path_len = sizeof(path) - at;
    memcpy(s->path, path + at, s->path_len);
}

static void advance(struct side *s)
{
    s->at++;
    load_side(s);
}

/* Which side's name comes first; one that has none left comes last. */
static int order(const struct side *a, const struct side *b)
{
    if (a->at >= a->count || b->at >= b->count)
        return (a->at >= a->count) - (b->at >= b->count);
    size_t len = a->path_len < b->path_len ? a->path_len : b->path_len;
    int result = len > 0 ? memcmp(a->path, b->path, len) : 0;
    return result ? result : (a->path_len > b->path_len) - (a->path_len < b->path_len);
}

/* ---- One difference ---- */

static int tell(struct walk *w, enum oci_change change, const struct side *s)
{
    buf_drop(&w->path, w->path.len);
    int rc = oci_tree_path(s->tree, s->at, &w->path, w->e);
    if (rc < 0)
        return rc;
    struct oci_difference d = {change, buf_text(&w->path), buf_text(&w->fields),
                               buf_text(&w->line)};
    return w->ops->difference(w->ops->ctx, &d, w->e);
}

static int only_in(struct walk *w, enum oci_change change, const struct side *s)
{
    buf_drop(&w->fields, w->fields.len);
    buf_drop(&w->line, w->line.len);
    int rc = buf_add_text(&w->line, change == OCI_REMOVED ? "- " : "+ ", w->e);
    if (rc == 0)
        rc = oci_tree_line(s->tree, s->at, &w->line, w->e);
    return rc < 0 ? rc : tell(w, change, s);
}

static int add_field(struct walk *w, const char *name)
{
    int rc = buf_printf(&w->fields, w->e, "%s%s", w->fields.len ? " " : "", name);
    return rc < 0 ? rc : buf_printf(&w->line, w->e, " %s", name);
}

static int add_values(struct walk *w, const char *name, const char *before, const char *after)
{
    int rc = add_field(w, name);
    if (rc == 0)
        rc = buf_add_text(&w->line, "=", w->e);
    if (rc == 0)
        rc = oci_text_escape(&w->line, before, strlen(before), w->e);
    if (rc == 0)
        rc = buf_add_text(&w->line, ">", w->e);
    return rc < 0 ? rc : oci_text_escape(&w->line, after, strlen(after), w->e);
}

static void print_mode(const struct oci_entry *entry, char text[VALUE_MAX])
{
    snprintf(text, VALUE_MAX, "%04" PRIo32, entry->mode);
}

static void print_owner(const struct oci_entry *entry, char text[VALUE_MAX])
{
    snprintf(text, VALUE_MAX, "%" PRIu32 ":%" PRIu32, entry->uid, entry->gid);
}

static void print_time(const struct oci_entry *entry, char text[VALUE_MAX])
{
    snprintf(text, VALUE_MAX, "%" PRId64 ".%09" PRIu32, entry->mtime_seconds,
             entry->mtime_nanoseconds);
}

static void print_size(const struct oci_entry *entry, char text[VALUE_MAX])
{
    snprintf(text, VALUE_MAX, "%" PRIu64, entry->type == OCI_FILE ? entry->size : 0);
}

static void print_device(const struct oci_entry *entry, char text[VALUE_MAX])
{
    bool is_device = entry->type == OCI_CHARACTER_DEVICE || entry->type == OCI_BLOCK_DEVICE;
    snprintf(text, VALUE_MAX, "%" PRIu32 ":%" PRIu32, is_device ? entry->device_major : 0,
             is_device ? entry->device_minor : 0);
}

/* What entries of one type may differ in, and fits a short text. */
static const struct {
    const char *name;
    void (*print)(const struct oci_entry *entry, char text[VALUE_MAX]);
} short_fields[] = {
    {"mode", print_mode}, {"owner", print_owner},   {"time", print_time},
    {"size", print_size}, {"device", print_device},
};

static bool same_xattrs(const struct oci_entry *a, const struct oci_entry *b)
{
    if (a->xattr_count != b->xattr_count)
        return false;
    for (size_t i = 0; i < a->xattr_count; i++) {
        const struct oci_xattr *x = &a->xattrs[i];
        const struct oci_xattr *y = &b->xattrs[i];
        if (strcmp(x->name, y->name) != 0 || x->value_len != y->value_len ||
            (x->value_len > 0 && memcmp(x->value, y->value, x->value_len) != 0))
            return false;
    }
    return true;
}

/* Different types have only that in common. */
static int compare_entries(struct walk *w)
{
    const struct oci_entry *a = w->a.node.entry;
    const struct oci_entry *b = w->b.node.entry;
    if (a->type != b->type)
        return add_values(w, "type", oci_type_name(a->type), oci_type_name(b->type));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(short_fields); i++) {
        char before[VALUE_MAX];
        char after[VALUE_MAX];
        short_fields[i].print(a, before);
        short_fields[i].print(b, after);
        if (strcmp(before, after) != 0)
            rc = add_values(w, short_fields[i].name, before, after);
    }
    if (rc == 0 && a->type == OCI_SYMLINK && strcmp(a->target, b->target) != 0)
        rc = add_values(w, "target", a->target, b->target);
    if (rc == 0 && !same_xattrs(a, b))
        rc = add_field(w, "xattrs");
    if (rc < 0 || a == b || a->type != OCI_FILE || a->size != b->size || a->size == 0)
        return rc;
    bool same = false;
    rc = w->ops->same_content(w->ops->ctx, &w->a.node, &w->b.node, &same, w->e);
    return rc < 0 || same ? rc : add_field(w, "content");
}

/* Further names of an inode tell nothing but whose they are; "-" is one of its own. */
static int compare_links(struct walk *w, bool *done)
{
    const struct side *sides[2] = {&w->a, &w->b};
    AUTO_BUF struct buf a;
    AUTO_BUF struct buf b;
    buf_init(&a, OCI_LINE_MAX);
    buf_init(&b, OCI_LINE_MAX);
    struct buf *texts[2] = {&a, &b};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < 2; i++) {
        size_t of = sides[i]->node.link_of;
        rc = of == SIZE_MAX ? buf_add_text(texts[i], "-", w->e)
                            : oci_tree_path(sides[i]->tree, of, texts[i], w->e);
    }
    if (rc < 0)
        return rc;
    bool same = strcmp(buf_text(&a), buf_text(&b)) == 0;
    *done = same && w->a.node.link_of != SIZE_MAX;
    if (same)
        return 0;
    rc = add_field(w, "link");
    return rc < 0 ? rc : buf_printf(&w->line, w->e, "=%s>%s", buf_text(&a), buf_text(&b));
}

static int in_both(struct walk *w)
{
    bool done = false;
    buf_drop(&w->fields, w->fields.len);
    buf_drop(&w->line, w->line.len);
    int rc = buf_add_text(&w->line, "~ ", w->e);
    if (rc == 0)
        rc = oci_tree_path(w->a.tree, w->a.at, &w->line, w->e);
    if (rc == 0)
        rc = compare_links(w, &done);
    if (rc == 0 && !done)
        rc = compare_entries(w);
    if (rc < 0 || w->fields.len == 0)
        return rc;
    rc = buf_add_text(&w->line, "\n", w->e);
    return rc < 0 ? rc : tell(w, OCI_CHANGED, &w->a);
}

static int walk_both(struct walk *w)
{
    int rc = 0;
    load_side(&w->a);
    load_side(&w->b);
    while (rc == 0 && (w->a.at < w->a.count || w->b.at < w->b.count)) {
        int first = order(&w->a, &w->b);
        if (first < 0)
            rc = only_in(w, OCI_REMOVED, &w->a);
        else if (first > 0)
            rc = only_in(w, OCI_ADDED, &w->b);
        else
            rc = in_both(w);
        if (first <= 0)
            advance(&w->a);
        if (first >= 0)
            advance(&w->b);
    }
    return rc;
}

int oci_tree_diff(const struct oci_tree *a, const struct oci_tree *b,
                  const struct oci_diff_ops *ops, struct err *e)
{
    struct walk *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "comparison");
    w->a = (struct side){.tree = a, .count = oci_tree_count(a)};
    w->b = (struct side){.tree = b, .count = oci_tree_count(b)};
    w->ops = ops;
    w->e = e;
    buf_init(&w->line, 2 * (size_t)OCI_LINE_MAX);
    buf_init(&w->path, OCI_LINE_MAX);
    buf_init(&w->fields, FIELDS_MAX);
    int rc = walk_both(w);
    buf_fini(&w->line);
    buf_fini(&w->path);
    buf_fini(&w->fields);
    free(w);
    return rc;
}
