/* SPDX-License-Identifier: MIT */
/* The merged tree as text, one line a node: docs/formats/tree.md. */
#include <inttypes.h>

#include "oci/internal.h"

int oci_tree_path(const struct oci_tree *t, size_t index, struct buf *line, struct err *e)
{
    char path[LIMIT_PATH + 1];
    size_t at = sizeof(path);
    for (size_t i = index; i != 0;) {
        struct oci_node node = oci_tree_node(t, i);
        size_t len = strlen(node.name);
        at -= len;
        memcpy(path + at, node.name, len);
        path[--at] = '/';
        i = node.parent;
    }
    if (index == 0)
        path[--at] = '/';
    return oci_text_escape(line, path + at, sizeof(path) - at, e);
}

const char *oci_type_name(enum oci_entry_type type)
{
    switch (type) {
    case OCI_FILE:
        return "file";
    case OCI_DIRECTORY:
        return "dir";
    case OCI_SYMLINK:
        return "symlink";
    case OCI_CHARACTER_DEVICE:
        return "char";
    case OCI_BLOCK_DEVICE:
        return "block";
    case OCI_FIFO:
        return "fifo";
    case OCI_HARDLINK:
    case OCI_WHITEOUT:
    case OCI_OPAQUE:
        break;
    }
    return "?"; /* no node has these */
}

static int add_details(const struct oci_entry *entry, struct buf *line, struct err *e)
{
    if (entry->type == OCI_FILE)
        return buf_printf(line, e, " size=%" PRIu64, entry->size);
    if (entry->type == OCI_CHARACTER_DEVICE || entry->type == OCI_BLOCK_DEVICE)
        return buf_printf(line, e, " device=%" PRIu32 ":%" PRIu32, entry->device_major,
                          entry->device_minor);
    if (entry->type != OCI_SYMLINK)
        return 0;
    int rc = buf_add_text(line, " target=", e);
    return rc < 0 ? rc : oci_text_escape(line, entry->target, strlen(entry->target), e);
}

static int add_xattr(const struct oci_xattr *x, struct buf *line, struct err *e)
{
    int rc = buf_add_text(line, " xattr=", e);
    if (rc == 0)
        rc = oci_text_escape(line, x->name, strlen(x->name), e);
    if (rc == 0)
        rc = buf_add_text(line, ":", e);
    for (size_t i = 0; rc == 0 && i < x->value_len; i++)
        rc = buf_printf(line, e, "%02x", x->value[i]);
    return rc;
}

int oci_tree_line(const struct oci_tree *t, size_t index, struct buf *line, struct err *e)
{
    struct oci_node node = oci_tree_node(t, index);
    const struct oci_entry *entry = node.entry;
    int rc = oci_tree_path(t, index, line, e);
    if (rc < 0)
        return rc;
    if (node.link_of != SIZE_MAX) {
        rc = buf_add_text(line, " link ", e);
        if (rc == 0)
            rc = oci_tree_path(t, node.link_of, line, e);
        return rc < 0 ? rc : buf_add_text(line, "\n", e);
    }
    rc = buf_printf(line, e, " %s %04" PRIo32 " %" PRIu32 ":%" PRIu32 " %" PRId64 ".%09" PRIu32,
                    oci_type_name(entry->type), entry->mode, entry->uid, entry->gid,
                    entry->mtime_seconds, entry->mtime_nanoseconds);
    if (rc == 0)
        rc = add_details(entry, line, e);
    for (size_t i = 0; rc == 0 && i < entry->xattr_count; i++)
        rc = add_xattr(&entry->xattrs[i], line, e);
    return rc < 0 ? rc : buf_add_text(line, "\n", e);
}

int oci_tree_dump(const struct oci_tree *t, const struct sink *out, struct err *e)
{
    AUTO_BUF struct buf line;
    buf_init(&line, OCI_LINE_MAX);
    for (size_t i = 0; i < oci_tree_count(t); i++) {
        buf_drop(&line, line.len);
        int rc = oci_tree_line(t, i, &line, e);
        if (rc == 0)
            rc = out->write(out->self, line.data, line.len, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}
