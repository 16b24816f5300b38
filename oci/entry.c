/* SPDX-License-Identifier: MIT */
/*
 * Names and entries of a layer.
 *
 * A name from a tar becomes a clean relative path once, here; whatever is not clean afterwards is
 * refused, so that nothing behind this file ever meets "..", an empty component or a marker name.
 * ".." is resolved by its spelling alone, as Docker and containerd do, and may not climb above the
 * root. Whiteouts (image-spec layer.md, section Whiteouts) are recognised by name, whatever the
 * type of the entry, since that is how every unpacker knows them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

#define MARKER_AUFS ".wh..wh." /* AUFS's own files, such as .wh..wh.plnk; not content */

void oci_entry_fini(struct oci_entry *entry)
{
    free(entry->path);
    free(entry->target);
    for (size_t i = 0; i < entry->xattr_count; i++) {
        free(entry->xattrs[i].name);
        free(entry->xattrs[i].value);
    }
    free(entry->xattrs);
    free(entry->extents);
    *entry = (struct oci_entry){0};
}

int oci_text_escape(struct buf *out, const void *bytes, size_t len, struct err *e)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *at = bytes;
    size_t plain = 0; /* printable bytes before `i` that are not yet written */
    for (size_t i = 0; i <= len; i++) {
        if (i < len && at[i] > ' ' && at[i] < 0x7f && at[i] != '\\')
            continue;
        int rc = buf_add(out, at + plain, i - plain, e);
        if (rc < 0)
            return rc;
        plain = i + 1;
        if (i == len)
            break;
        char code[4] = {'\\', 'x', digits[at[i] >> 4], digits[at[i] & 15]};
        rc = buf_add(out, code, sizeof(code), e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

const char *oci_text_quote(const char *bytes, char text[OCI_QUOTE_MAX])
{
    size_t at = 0;
    for (const unsigned char *p = (const unsigned char *)bytes; *p != 0; p++) {
        if (at + 8 > OCI_QUOTE_MAX) {
            memcpy(text + at, "...", 3);
            at += 3;
            break;
        }
        if (*p >= ' ' && *p < 0x7f && *p != '\\')
            text[at++] = (char)*p;
        else
            at += (size_t)snprintf(text + at, 5, "\\x%02x", (unsigned)*p);
    }
    text[at] = 0;
    return text;
}

size_t oci_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static bool is_dots(const char *name, size_t len)
{
    return (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.');
}

/*
 * Appends one component to the `*len` bytes at `out` (room for LIMIT_PATH), or takes one away for
 * "..". A path that is too long on its way is refused even if ".." would shorten it again: what can
 * be walked back is bounded, and so is the work.
 */
static int clean_component(char *out, size_t *len, const char *name, size_t name_len, struct err *e)
{
    if (name_len == 0 || (name_len == 1 && name[0] == '.'))
        return 0;
    if (name_len == 2 && is_dots(name, name_len)) {
        if (*len == 0)
            return err_set(e, ERR_CORRUPT, "the name leads out of the image");
        out[*len] = 0;
        size_t base = oci_path_base(out);
        *len = base > 0 ? base - 1 : 0;
        return 0;
    }
    if (name_len > OCI_MAX_NAME)
        return err_set(e, ERR_LIMIT, "a name of %zu bytes, at most %d can be stored", name_len,
                       OCI_MAX_NAME);
    size_t slash = *len > 0 ? 1 : 0;
    if (*len + slash + name_len >= LIMIT_PATH)
        return err_set(e, ERR_LIMIT, "a path of %zu bytes or more, at most %zu can be stored",
                       *len + slash + name_len, LIMIT_PATH - 1);
    if (slash > 0)
        out[(*len)++] = '/';
    memcpy(out + *len, name, name_len);
    *len += name_len;
    return 0;
}

static int clean_path(char **out, const char *raw, struct err *e)
{
    char path[LIMIT_PATH];
    size_t len = 0;
    for (const char *at = raw; *at != 0;) {
        size_t name_len = strcspn(at, "/");
        int rc = clean_component(path, &len, at, name_len, e);
        if (rc < 0)
            return rc;
        at += name_len;
        if (*at == '/')
            at++;
    }
    *out = mem_strndup(path, len);
    return *out ? 0 : err_nomem(e, "path");
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Looks for markers among the directories of the path. */
static int check_directories(const char *path, size_t base, bool *skip, struct err *e)
{
    for (const char *at = path; at < path + base; at += strcspn(at, "/") + 1) {
        if (has_prefix(at, MARKER_AUFS))
            *skip = true;
        else if (has_prefix(at, OCI_WHITEOUT_PREFIX))
            return err_set(e, ERR_CORRUPT, "an entry below a whiteout");
    }
    return 0;
}

int oci_entry_name(struct oci_entry *entry, bool *skip, const char *raw, struct err *e)
{
    AUTO_FREE char *path = NULL;
    int rc = clean_path(&path, raw, e);
    if (rc < 0)
        return rc;
    *skip = false;
    size_t base = oci_path_base(path);
    rc = check_directories(path, base, skip, e);
    if (rc < 0)
        return rc;
    char *name = path + base;
    if (strcmp(name, OCI_OPAQUE_NAME) == 0) {
        entry->type = OCI_OPAQUE;
        path[base > 0 ? base - 1 : 0] = 0;
    } else if (has_prefix(name, MARKER_AUFS)) {
        *skip = true;
    } else if (has_prefix(name, OCI_WHITEOUT_PREFIX)) {
        size_t len = strlen(name + strlen(OCI_WHITEOUT_PREFIX));
        if (len == 0 || is_dots(name + strlen(OCI_WHITEOUT_PREFIX), len))
            return err_set(e, ERR_CORRUPT, "a whiteout that names no file");
        entry->type = OCI_WHITEOUT;
        memmove(name, name + strlen(OCI_WHITEOUT_PREFIX), len + 1);
    }
    entry->path = MOVE(path);
    return 0;
}

int oci_entry_link(struct oci_entry *entry, const char *raw, struct err *e)
{
    AUTO_FREE char *target = NULL;
    int rc = clean_path(&target, raw, e);
    if (rc < 0)
        return err_in(e, "hard link target");
    if (*target == 0)
        return err_set(e, ERR_CORRUPT, "a hard link without a target");
    entry->target = MOVE(target);
    return 0;
}

static int compare_xattrs(const void *a, const void *b)
{
    const struct oci_xattr *x = a;
    const struct oci_xattr *y = b;
    return strcmp(x->name, y->name);
}

void oci_entry_sort_xattrs(struct oci_entry *entry)
{
    if (entry->xattr_count > 1)
        qsort(entry->xattrs, entry->xattr_count, sizeof(*entry->xattrs), compare_xattrs);
}

/* True for a path as clean_path makes it. */
static bool is_clean(const char *path)
{
    if (strlen(path) >= LIMIT_PATH)
        return false;
    if (*path == 0)
        return true;
    for (const char *at = path;; at++) {
        size_t len = strcspn(at, "/");
        if (len == 0 || len > OCI_MAX_NAME || is_dots(at, len))
            return false;
        at += len;
        if (*at == 0)
            return true;
    }
}

static bool xattrs_are_valid(const struct oci_entry *entry)
{
    size_t total = 0;
    for (size_t i = 0; i < entry->xattr_count; i++) {
        const struct oci_xattr *x = &entry->xattrs[i];
        size_t name_len = strlen(x->name);
        if (name_len == 0 || name_len > OCI_MAX_NAME)
            return false;
        if (i > 0 && strcmp(x[-1].name, x->name) >= 0)
            return false;
        if (x->value_len > LIMIT_XATTRS)
            return false;
        total += name_len + x->value_len;
        if (total > LIMIT_XATTRS)
            return false;
    }
    return true;
}

static bool extents_are_valid(const struct oci_entry *entry)
{
    uint64_t end = 0;
    for (size_t i = 0; i < entry->extent_count; i++) {
        const struct oci_extent *x = &entry->extents[i];
        uint64_t region_end;
        if (x->len == 0 || x->file_off < end || x->file_off > entry->size ||
            x->len > entry->size - x->file_off || mem_add_u64(x->region_off, x->len, &region_end))
            return false;
        end = x->file_off + x->len;
    }
    return true;
}

static bool target_is_valid(const struct oci_entry *entry)
{
    bool wants_target = entry->type == OCI_SYMLINK || entry->type == OCI_HARDLINK;
    if (!wants_target || !entry->target)
        return !wants_target && !entry->target;
    size_t len = strlen(entry->target);
    return len > 0 && len < LIMIT_PATH && (entry->type == OCI_SYMLINK || is_clean(entry->target));
}

int oci_entry_check(const struct oci_entry *entry, struct err *e)
{
    bool may_be_root = entry->type == OCI_DIRECTORY || entry->type == OCI_OPAQUE;
    if (!is_clean(entry->path) || (*entry->path == 0 && !may_be_root))
        return err_set(e, ERR_CORRUPT, "path is not clean");
    if (!target_is_valid(entry))
        return err_set(e, ERR_CORRUPT, "link target is not valid");
    if ((entry->mode & ~07777u) != 0 || entry->mtime_nanoseconds >= 1000000000)
        return err_set(e, ERR_CORRUPT, "mode or time is out of range");
    if (entry->size > OCI_MAX_FILE || !extents_are_valid(entry))
        return err_set(e, ERR_CORRUPT, "extents are not valid");
    if (!xattrs_are_valid(entry))
        return err_set(e, ERR_CORRUPT, "extended attributes are not valid");
    return 0;
}
