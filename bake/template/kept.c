/* SPDX-License-Identifier: MIT */
/*
 * Kept copies: machines that a person goes on with, kept/NAME.json in the store. The document is that of
 * a template's record, so that a copy restores like a template does; but it is a person's own, so it may
 * be replaced, belongs to no key and is registered nowhere. Whoever goes on with a copy locks its file
 * until the new state has replaced it.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/guest/guest.h"
#include "bake/template.h"
#include "bake/template/kept.h"
#include "bake/template/record.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

static const char directory[] = "kept";
static const char suffix[] = ".json";

static char *kept_path(const char *name, struct err *e)
{
    char *path = NULL;
    if (!alias_is_legal(name))
        err_set(e, ERR_INPUT, "'%s' cannot be the name of a copy: letters, digits, '-' and '_'",
                name);
    else if (!(path = mem_printf("%s/%s%s", directory, name, suffix)))
        err_nomem(e, "kept copy");
    return path;
}

/* The document without its seal, which json_each gives member by member. */
static int copy_member(void *ctx, const char *key, struct json *value, struct err *e)
{
    (void)e;
    if (strcmp(key, "check") != 0)
        json_set(ctx, key, json_clone(value));
    return 0;
}

static int seal(struct json **out, const struct json *document, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    int rc = json_each(document, copy_member, j, e);
    if (rc == 0)
        rc = catalog_seal(j, e);
    if (rc == 0)
        *out = MOVE(j);
    return rc;
}

/* The bytes must be the one encoding of the sealed document; an older one has no seal. */
static int check_seal(const struct json *document, const struct buf *bytes, struct err *e)
{
    AUTO_JSON struct json *sealed = NULL;
    AUTO_FREE char *whole = NULL;
    if (!json_member(document, "check"))
        return 0;
    int rc = seal(&sealed, document, e);
    if (rc == 0)
        rc = json_print(sealed, 0, &whole, e);
    if (rc == 0 && (bytes->len != strlen(whole) || memcmp(bytes->data, whole, bytes->len) != 0))
        rc = err_set(e, ERR_CORRUPT, "it is not what was written");
    return rc;
}

int kept_put(struct store *s, const char *name, const struct json *document, struct err *e)
{
    AUTO_FREE char *path = kept_path(name, e);
    AUTO_FREE char *text = NULL;
    AUTO_JSON struct json *sealed = NULL;
    if (!path)
        return -(int)e->class;
    int rc = file_make_dirs(store_dir(s), directory, e);
    if (rc == 0)
        rc = seal(&sealed, document, e);
    if (rc == 0)
        rc = json_print(sealed, 0, &text, e);
    AUTO_FILE_TMP struct file_tmp tmp = {.fd = -1};
    if (rc == 0)
        rc = file_tmp_open(&tmp, store_tmp_dir(s), e);
    if (rc == 0)
        rc = file_write_full(tmp.fd, text, strlen(text), e);
    return rc < 0 ? rc : file_tmp_commit(&tmp, store_dir(s), path, true, e);
}

static int no_such_copy(const char *name, struct err *e)
{
    err_set(e, ERR_NOTFOUND, "there is no kept copy '%s'", name);
    return err_hint(e,
                    "'tb2-bake kept' lists them; 'tb2-bake run --keep NAME' and a bake with --keep "
                    "make them");
}

/* Locks the file that has the name when the lock is there: another may have replaced it meanwhile. */
static int lock_file(int *out, struct store *s, const char *path, const char *name, struct err *e)
{
    for (;;) {
        AUTO_FD int fd = -1;
        struct stat ours;
        struct stat named;
        int rc = file_open(&fd, store_dir(s), path, O_RDONLY, 0, e);
        if (rc == -ERR_NOTFOUND)
            return no_such_copy(name, e);
        if (rc < 0)
            return rc;
        if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
            err_set(e, ERR_BUSY, "somebody is in the kept copy '%s'", name);
            return err_hint(e, "wait until that command has ended");
        }
        if (fstat(fd, &ours) < 0)
            return err_sys(e, "%s", path);
        if (fstatat(store_dir(s), path, &named, 0) == 0 && ours.st_ino == named.st_ino) {
            *out = fd;
            fd = -1;
            return 0;
        }
    }
}

static int read_document(struct template **out, struct store *s, const char *path, struct err *e)
{
    AUTO_BUF struct buf bytes;
    AUTO_JSON struct json *j = NULL;
    buf_init(&bytes, LIMIT_RECORD);
    int rc = file_read(store_dir(s), path, &bytes, e);
    if (rc == 0)
        rc = json_parse(&j, bytes.data, bytes.len, path, e);
    if (rc < 0)
        return rc;
    rc = check_seal(j, &bytes, e);
    if (rc == 0)
        rc = template_from_document(out, j, e);
    return rc < 0 ? err_in(e, "%s", path) : 0;
}

int kept_open(struct template **out, int *lock, struct store *s, const char *name, struct err *e)
{
    AUTO_FREE char *path = kept_path(name, e);
    if (!path)
        return -(int)e->class;
    int rc = lock_file(lock, s, path, name, e);
    return rc < 0 ? rc : read_document(out, s, path, e);
}

int kept_remove(struct store *s, const char *name, struct err *e)
{
    AUTO_FD int lock = -1;
    AUTO_FREE char *path = kept_path(name, e);
    int rc = path ? lock_file(&lock, s, path, name, e) : -(int)e->class;
    if (rc == 0 && unlinkat(store_dir(s), path, 0) < 0)
        rc = err_sys(e, "removing %s", path);
    return rc;
}

/* ---- All of them ---- */

static int compare_names(const void *a, const void *b)
{
    char *const *x = a;
    char *const *y = b;
    return strcmp(*x, *y);
}

static int add_name(char ***names, size_t *count, size_t *capacity, const char *file, struct err *e)
{
    size_t len = strlen(file);
    if (len <= sizeof(suffix) - 1 || strcmp(file + len - (sizeof(suffix) - 1), suffix) != 0)
        return 0;
    int rc = mem_grow(names, capacity, *count + 1, sizeof(**names), e);
    char *name = rc == 0 ? mem_strndup(file, len - (sizeof(suffix) - 1)) : NULL;
    if (!name)
        return rc < 0 ? rc : err_nomem(e, "kept copies");
    (*names)[(*count)++] = name;
    return 0;
}

void kept_names_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

int kept_list(char ***out, size_t *count, struct store *s, struct err *e)
{
    int fd = -1;
    *out = NULL;
    *count = 0;
    int rc = file_open(&fd, store_dir(s), directory, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == -ERR_NOTFOUND) {
        err_clear(e);
        return 0;
    }
    DIR *list = rc == 0 ? fdopendir(fd) : NULL;
    if (!list)
        return rc < 0 ? rc : err_sys(e, "listing kept copies");
    size_t capacity = 0;
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(list)))
        rc = add_name(out, count, &capacity, entry->d_name, e);
    closedir(list);
    if (rc < 0) {
        kept_names_free(*out, *count);
        *out = NULL;
        *count = 0;
        return rc;
    }
    if (*count > 0)
        qsort(*out, *count, sizeof(**out), compare_names);
    return 0;
}

int kept_peek(struct template **out, struct store *s, const char *name, struct err *e)
{
    AUTO_FREE char *path = kept_path(name, e);
    int rc = path ? read_document(out, s, path, e) : -(int)e->class;
    return rc == -ERR_NOTFOUND ? no_such_copy(name, e) : rc;
}

int kept_peek_file(struct template **out, struct store *s, const char *file_name, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/%s", directory, file_name);
    return path ? read_document(out, s, path, e) : err_nomem(e, file_name);
}

/* ---- Making one ---- */

int kept_snapshot(struct guest *g, const struct block_map *base, const struct json *document,
                  const struct kept_reason *why, struct err *e)
{
    AUTO_JSON struct json *j = json_clone(document);
    char now[CLOCK_TEXT_MAX];
    struct json *kept = json_new_object();
    json_set(kept, "why", json_new_string(why->text));
    json_set(kept, "since", json_new_string(clock_print(clock_wall_ns() / 1000000000, now)));
    json_set(j, "kept", kept);
    int rc = guest_snapshot(g, base, why->secrets, j, e);
    if (rc == 0)
        rc = kept_put(g->room->store, why->name, j, e);
    return rc < 0 ? err_in(e, "keeping the copy '%s'", why->name) : 0;
}
