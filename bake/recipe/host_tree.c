/* SPDX-License-Identifier: MIT */
/*
 * Listing and reading files of the host. Every step goes from a descriptor to a name in it, without
 * following links: whoever exchanges a directory for a link meanwhile leads nowhere.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/recipe/host_tree.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

enum { READ_LEN = 128 << 10 };

/* Which file an entry is, to find those with several names. */
struct identity {
    dev_t device;
    ino_t inode;
    size_t entry;
};

struct walk {
    struct host_tree *tree;
    const struct host_tree_options *options;
    struct identity *shared; /* files with several names */
    size_t shared_count;
    size_t shared_capacity;
};

/* ---- Names ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_excluded(const struct walk *w, const char *path)
{
    const char *const *excludes = w->options->excludes;
    for (size_t i = 0; excludes && excludes[i]; i++) {
        const char *pattern = excludes[i];
        const char *name = strchr(pattern, '/') ? path : last_part(path);
        while (*pattern == '/')
            pattern++;
        if (fnmatch(pattern, name, FNM_PATHNAME) == 0)
            return true;
    }
    return false;
}

static int bad_entry(const struct host_tree *t, const char *path, const char *what, struct err *e)
{
    AUTO_FREE char *shown = mem_strdup(path);
    return err_set(e, ERR_INPUT, "%s/%.400s: %s", t->path, shown ? text_make_harmless(shown) : "",
                   what);
}

/* ---- Listing ---- */

static uint32_t entry_mode(const struct host_tree_options *o, const struct stat *info)
{
    if (!o->has_mode)
        return info->st_mode & 07777;
    return S_ISDIR(info->st_mode) ? o->mode | (o->mode & 0444) >> 2 : o->mode;
}

static int add_entry(struct walk *w, char *path, const struct stat *info, struct err *e)
{
    struct host_tree *t = w->tree;
    int rc = t->count < HOST_ENTRIES_MAX
                 ? mem_grow(&t->entries, &t->capacity, t->count + 1, sizeof(*t->entries), e)
                 : err_set(e, ERR_LIMIT, "%s: more than %d entries", t->path, HOST_ENTRIES_MAX);
    if (rc < 0) {
        free(path);
        return rc;
    }
    struct host_entry *entry = &t->entries[t->count];
    *entry = (struct host_entry){.path = path, .mode = entry_mode(w->options, info)};
    if (S_ISREG(info->st_mode) && info->st_nlink > 1) {
        rc = mem_grow(&w->shared, &w->shared_capacity, w->shared_count + 1, sizeof(*w->shared), e);
        if (rc == 0)
            w->shared[w->shared_count++] = (struct identity){info->st_dev, info->st_ino, t->count};
    }
    t->count++;
    return rc;
}

static int read_target(const struct host_tree *t, int dir, const char *name,
                       struct host_entry *entry, struct err *e)
{
    char target[LIMIT_PATH];
    ssize_t len = readlinkat(dir, name, target, sizeof(target));
    if (len < 0)
        return err_sys(e, "%s/%s", t->path, entry->path);
    if (len == (ssize_t)sizeof(target))
        return bad_entry(t, entry->path, "the link is too long", e);
    entry->target = mem_strndup(target, (size_t)len);
    return entry->target ? 0 : err_nomem(e, "files of the host");
}

static int walk_directory(struct walk *w, int dir, const char *path, unsigned depth, struct err *e);

static int walk_below(struct walk *w, int dir, const char *name, const char *path, unsigned depth,
                      struct err *e)
{
    AUTO_FD int below = -1;
    if (depth >= HOST_DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "%s/%.400s: more than %d levels", w->tree->path, path,
                       HOST_DEPTH_MAX);
    int rc = file_open(&below, dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, e);
    return rc < 0 ? rc : walk_directory(w, below, path, depth + 1, e);
}

/* One name of a directory. `path` is taken over. */
static int walk_entry(struct walk *w, int dir, char *path, unsigned depth, struct err *e)
{
    struct host_tree *t = w->tree;
    const char *name = last_part(path);
    struct stat info;
    size_t n = t->count;
    if (fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) < 0) {
        int rc = err_sys(e, "%s/%s", t->path, path);
        free(path);
        return rc;
    }
    int rc = add_entry(w, path, &info, e);
    if (rc < 0)
        return rc;
    struct host_entry *entry = &t->entries[n];
    switch (info.st_mode & S_IFMT) {
    case S_IFREG:
        entry->type = HOST_FILE;
        entry->size = (uint64_t)info.st_size;
        if (mem_add_u64(t->size, entry->size, &t->size) || t->size > HOST_SIZE_MAX)
            return err_set(e, ERR_LIMIT, "%s: more than %llu GiB", t->path,
                           (unsigned long long)(HOST_SIZE_MAX >> 30));
        return 0;
    case S_IFLNK:
        entry->type = HOST_SYMLINK;
        entry->mode = 0777;
        return read_target(t, dir, name, entry, e);
    case S_IFDIR:
        entry->type = HOST_DIRECTORY;
        return walk_below(w, dir, name, path, depth, e);
    default:
        bad_entry(t, path, "neither file, directory nor link", e);
        return err_hint(e, "leave it out with exclude");
    }
}

static int take_name(struct walk *w, int dir, const char *parent, const char *name, unsigned depth,
                     struct err *e)
{
    char *path = parent[0] ? mem_printf("%s/%s", parent, name) : mem_strdup(name);
    if (!path)
        return err_nomem(e, "files of the host");
    bool too_long = strlen(path) >= LIMIT_PATH;
    if (too_long || is_excluded(w, path)) {
        int rc = too_long ? bad_entry(w->tree, path, "the path is too long", e) : 0;
        free(path);
        return rc;
    }
    return walk_entry(w, dir, path, depth, e);
}

/* Stays as it is while `dir` is read. */
static int walk_directory(struct walk *w, int dir, const char *path, unsigned depth, struct err *e)
{
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    DIR *stream = copy < 0 ? NULL : fdopendir(copy);
    if (!stream) {
        int rc = err_sys(e, "%s/%s", w->tree->path, path);
        file_close(&copy);
        return rc;
    }
    int rc = 0;
    struct dirent *found;
    while (rc == 0 && (errno = 0, found = readdir(stream))) {
        if (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0)
            continue;
        rc = cancel_check(w->tree->cancel, e);
        if (rc == 0)
            rc = take_name(w, dir, path, found->d_name, depth, e);
    }
    if (rc == 0 && errno != 0)
        rc = err_sys(e, "%s/%s", w->tree->path, path);
    closedir(stream);
    return rc;
}

/* ---- Order ---- */

static int compare_entries(const void *a, const void *b)
{
    const struct host_entry *left = a;
    const struct host_entry *right = b;
    return strcmp(left->path, right->path);
}

/* What is to be sorted with the entries: whose place changes. */
struct ranked {
    struct host_entry entry;
    size_t was;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *left = a;
    const struct ranked *right = b;
    return compare_entries(&left->entry, &right->entry);
}

static int compare_identities(const void *a, const void *b)
{
    const struct identity *left = a;
    const struct identity *right = b;
    if (left->device != right->device)
        return left->device < right->device ? -1 : 1;
    if (left->inode != right->inode)
        return left->inode < right->inode ? -1 : 1;
    return (left->entry > right->entry) - (left->entry < right->entry);
}

/* Further names of a file become links to its first, in the order of the names. */
static void link_names(struct walk *w)
{
    struct host_tree *t = w->tree;
    if (w->shared_count > 1)
        qsort(w->shared, w->shared_count, sizeof(*w->shared), compare_identities);
    for (size_t i = 1, first = 0; i < w->shared_count; i++) {
        const struct identity *one = &w->shared[first];
        const struct identity *other = &w->shared[i];
        if (one->device != other->device || one->inode != other->inode) {
            first = i;
            continue;
        }
        struct host_entry *entry = &t->entries[other->entry];
        t->size -= entry->size;
        entry->type = HOST_LINK;
        entry->link = one->entry;
        entry->size = 0;
    }
}

static int sort_entries(struct walk *w, struct err *e)
{
    struct host_tree *t = w->tree;
    AUTO_FREE struct ranked *ranked = mem_array(t->count, sizeof(*ranked));
    AUTO_FREE size_t *place = mem_array(t->count, sizeof(*place));
    if (!ranked || !place)
        return err_nomem(e, "files of the host");
    for (size_t i = 0; i < t->count; i++)
        ranked[i] = (struct ranked){.entry = t->entries[i], .was = i};
    if (t->count > 1)
        qsort(ranked, t->count, sizeof(*ranked), compare_ranked);
    for (size_t i = 0; i < t->count; i++) {
        t->entries[i] = ranked[i].entry;
        place[ranked[i].was] = i;
    }
    for (size_t i = 0; i < w->shared_count; i++)
        w->shared[i].entry = place[w->shared[i].entry];
    link_names(w);
    return 0;
}

/* ---- Opening ---- */

/* A single file: its directory's descriptor, and one entry. */
static int take_file(struct walk *w, const char *path, const struct stat *info, struct err *e)
{
    struct host_tree *t = w->tree;
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *parent =
        slash ? mem_strndup(path, (size_t)(slash - path) + 1) : mem_strdup(".");
    char *name = mem_strdup(last_part(path));
    if (!parent || !name) {
        free(name);
        return err_nomem(e, "files of the host");
    }
    t->single = true;
    int rc = add_entry(w, name, info, e);
    if (rc < 0)
        return rc;
    t->entries[0].size = t->size = (uint64_t)info->st_size;
    w->shared_count = 0;
    return file_open(&t->root, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY, 0, e);
}

static int walk_root(struct walk *w, struct err *e)
{
    struct host_tree *t = w->tree;
    const char *path = w->options->path;
    struct stat info;
    if (fstatat(AT_FDCWD, path, &info, 0) < 0)
        return errno == ENOENT ? err_set(e, ERR_NOTFOUND, "%s does not exist", path)
                               : err_sys(e, "%s", path);
    if (S_ISREG(info.st_mode))
        return take_file(w, path, &info, e);
    if (!S_ISDIR(info.st_mode))
        return err_set(e, ERR_INPUT, "%s: neither file nor directory", path);
    t->root_mode = entry_mode(w->options, &info);
    int rc = file_open(&t->root, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = walk_directory(w, t->root, "", 0, e);
    return rc < 0 ? rc : sort_entries(w, e);
}

int host_tree_open(struct host_tree **out, const struct host_tree_options *o, struct err *e)
{
    AUTO_HOST_TREE struct host_tree *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "files of the host");
    t->root = -1;
    t->cancel = o->cancel;
    t->path = mem_strdup(o->path);
    if (!t->path)
        return err_nomem(e, "files of the host");
    struct walk w = {.tree = t, .options = o};
    int rc = walk_root(&w, e);
    free(w.shared);
    if (rc < 0)
        return rc;
    *out = MOVE(t);
    return 0;
}

void host_tree_free(struct host_tree *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->count; i++) {
        free(t->entries[i].path);
        free(t->entries[i].target);
    }
    free(t->entries);
    file_close(&t->root);
    free(t->path);
    free(t);
}

/* ---- Reading ---- */

static int changed(const struct host_tree *t, const struct host_entry *entry, struct err *e)
{
    return bad_entry(t, entry->path, "it was changed while it was read", e);
}

/* Opens what an entry names, from directory to directory. A single file may be a link, as its name was
 * followed before. */
static int open_entry(const struct host_tree *t, const struct host_entry *entry, int *out,
                      struct err *e)
{
    AUTO_FD int dir = -1;
    const char *at = entry->path;
    for (const char *slash; (slash = strchr(at, '/')); at = slash + 1) {
        AUTO_FREE char *name = mem_strndup(at, (size_t)(slash - at));
        int below = -1;
        if (!name)
            return err_nomem(e, "files of the host");
        int rc = file_open(&below, dir < 0 ? t->root : dir, name,
                           O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, e);
        if (rc < 0)
            return rc;
        file_close(&dir);
        dir = below;
    }
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | (t->single ? 0 : O_NOFOLLOW);
    return file_open(out, dir < 0 ? t->root : dir, at, flags, 0, e);
}

static int pass_on(struct host_tree *t, int fd, struct host_entry *entry, const struct sink *to,
                   struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    AUTO_FREE uint8_t *bytes = mem_zalloc(READ_LEN);
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc == 0 && !bytes)
        rc = err_nomem(e, "files of the host");
    for (uint64_t left = entry->size; rc == 0 && left > 0;) {
        rc = cancel_check(t->cancel, e);
        ssize_t got = rc == 0 ? read(fd, bytes, left < READ_LEN ? (size_t)left : READ_LEN) : 0;
        if (rc == 0 && got < 0 && errno != EINTR)
            rc = err_sys(e, "reading %s/%s", t->path, entry->path);
        else if (rc == 0 && got == 0)
            rc = changed(t, entry, e);
        if (rc < 0 || got < 0)
            continue;
        hasher_add(h, bytes, (size_t)got);
        left -= (uint64_t)got;
        rc = to ? to->write(to->self, bytes, (size_t)got, e) : 0;
    }
    if (rc == 0)
        hasher_finish(h, &entry->content);
    return rc;
}

int host_tree_read(struct host_tree *t, size_t n, const struct sink *to, struct err *e)
{
    struct host_entry *entry = &t->entries[n];
    AUTO_FD int fd = -1;
    struct stat info;
    int rc = open_entry(t, entry, &fd, e);
    if (rc < 0)
        return err_in(e, "%s", t->path);
    if (fstat(fd, &info) < 0)
        return err_sys(e, "%s/%s", t->path, entry->path);
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != entry->size)
        return changed(t, entry, e);
    return pass_on(t, fd, entry, to, e);
}

int host_tree_read_all(struct host_tree *t, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        if (t->entries[i].type == HOST_FILE)
            rc = host_tree_read(t, i, NULL, e);
    }
    return rc;
}

/* For each entry, the root first: type and mode, path, and what is behind it, each with its NUL. */
static int hash_entry(struct hasher *h, char letter, uint32_t mode, const char *path,
                      const char *behind, struct err *e)
{
    AUTO_FREE char *head = mem_printf("%c%o", letter, mode);
    if (!head)
        return err_nomem(e, "files of the host");
    hasher_add(h, head, strlen(head) + 1);
    hasher_add(h, path, strlen(path) + 1);
    hasher_add(h, behind, strlen(behind) + 1);
    return 0;
}

int host_tree_digest(const struct host_tree *t, struct digest *out, struct err *e)
{
    static const char letters[] = {
        [HOST_FILE] = 'f', [HOST_DIRECTORY] = 'd', [HOST_SYMLINK] = 'l', [HOST_LINK] = 'h'};
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc == 0 && !t->single)
        rc = hash_entry(h, 'r', t->root_mode, "", "", e);
    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        const struct host_entry *entry = &t->entries[i];
        char content[DIGEST_TEXT_MAX] = "";
        const char *behind = entry->target ? entry->target : content;
        if (entry->type == HOST_FILE)
            digest_print(&entry->content, content);
        if (entry->type == HOST_LINK)
            behind = t->entries[entry->link].path;
        rc = hash_entry(h, letters[entry->type], entry->mode, entry->path, behind, e);
    }
    if (rc == 0)
        hasher_finish(h, out);
    return rc;
}
