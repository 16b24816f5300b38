/* SPDX-License-Identifier: MIT */
/*
 * tb2.lock (docs/formats/lock.md): a line per image, sorted, so that a review shows which images
 * moved and nothing else.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "manifests/internal.h"

static const char first_line[] = "# tb2-bake lock 1";

static int compare_entries(const void *a, const void *b)
{
    const struct lock_entry *left = a;
    const struct lock_entry *right = b;
    return strcmp(left->image, right->image);
}

const struct lock_entry *lock_find(const struct lock *l, const char *image)
{
    struct lock_entry wanted;
    memset(&wanted, 0, sizeof(wanted));
    AUTO_FREE char *copy = mem_strdup(image);
    wanted.image = copy;
    if (!copy || l->count == 0)
        return NULL;
    return bsearch(&wanted, l->entries, l->count, sizeof(*l->entries), compare_entries);
}

static bool image_is_writable(const char *image)
{
    if (!*image || *image == '#')
        return false;
    for (const char *at = image; *at; at++) {
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            return false;
    }
    return true;
}

int lock_set(struct lock *l, const char *image, const struct digest *digest, uint64_t size,
             struct err *e)
{
    if (!image_is_writable(image))
        return err_set(e, ERR_INPUT, "the image name '%s' cannot stand in a lock file", image);
    const struct lock_entry *found = lock_find(l, image);
    if (found) {
        struct lock_entry *entry = &l->entries[found - l->entries];
        entry->digest = *digest;
        entry->size = size;
        return 0;
    }
    int rc = mem_grow(&l->entries, &l->capacity, l->count + 1, sizeof(*l->entries), e);
    char *copy = rc == 0 ? mem_strdup(image) : NULL;
    if (!copy)
        return err_nomem(e, "lock file");
    size_t at = l->count++;
    for (; at > 0 && strcmp(l->entries[at - 1].image, image) > 0; at--)
        l->entries[at] = l->entries[at - 1];
    l->entries[at] = (struct lock_entry){.image = copy, .digest = *digest, .size = size};
    return 0;
}

void lock_free(struct lock *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->count; i++)
        free(l->entries[i].image);
    free(l->entries);
    free(l);
}

static int parse_line(struct lock *l, char *line, struct err *e)
{
    char *at = line;
    const char *image = text_cut_word(&at);
    if (!*image || *image == '#')
        return 0;
    const char *digest_word = text_cut_word(&at);
    const char *size_word = text_cut_word(&at);
    struct digest digest;
    if (!*digest_word)
        return err_set(e, ERR_INPUT, "image %s has no digest", image);
    if (digest_parse(&digest, digest_word, e) < 0) {
        e->class = ERR_INPUT;
        return -ERR_INPUT;
    }
    uint64_t size = 0;
    for (const char *digit = size_word; *digit; digit++) {
        if (*digit < '0' || *digit > '9' || size > UINT64_MAX / 100)
            return err_set(e, ERR_INPUT, "'%s' is no size in bytes", size_word);
        size = size * 10 + (uint64_t)(*digit - '0');
    }
    if (*text_cut_word(&at))
        return err_set(e, ERR_INPUT, "more than image, digest and size");
    if (lock_find(l, image))
        return err_set(e, ERR_INPUT, "image %s stands there twice", image);
    return lock_set(l, image, &digest, size, e);
}

int lock_parse(struct lock **out, const char *text, const char *name, struct err *e)
{
    AUTO_LOCK struct lock *l = mem_zalloc(sizeof(*l));
    AUTO_FREE char *copy = mem_strdup(text);
    if (!l || !copy)
        return err_nomem(e, "lock file");
    if (strncmp(copy, first_line, strlen(first_line)) != 0) {
        err_set(e, ERR_INPUT, "%s: the first line of a lock file is '%s'", name, first_line);
        return err_hint(e, "is it the right file? What a bake writes begins with that line");
    }
    unsigned number = 1;
    for (char *line = copy; line; number++) {
        char *end = strchr(line, '\n');
        if (end)
            *end++ = 0;
        if (parse_line(l, line, e) < 0)
            return err_in(e, "%s:%u", name, number);
        line = end;
    }
    *out = MOVE(l);
    return 0;
}

int lock_load(struct lock **out, const char *path, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_LOCK_FILE);
    int rc = file_read(AT_FDCWD, path, &text, e);
    if (rc < 0)
        return rc;
    if (memchr(text.data ? text.data : (const uint8_t *)"", 0, text.len))
        return err_set(e, ERR_INPUT, "%s: holds a NUL byte", path);
    return lock_parse(out, buf_text(&text), path, e);
}

int lock_print(const struct lock *l, char **out, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_LOCK_FILE);
    int rc = buf_printf(&text, e, "%s: image, digest, bytes of its layers\n", first_line);
    for (size_t i = 0; rc == 0 && i < l->count; i++) {
        char digest[DIGEST_TEXT_MAX];
        rc = buf_printf(&text, e, "%s %s %" PRIu64 "\n", l->entries[i].image,
                        digest_print(&l->entries[i].digest, digest), l->entries[i].size);
    }
    if (rc < 0)
        return rc;
    *out = buf_take(&text);
    return *out ? 0 : err_nomem(e, "lock file");
}

int lock_save(const struct lock *l, const char *path, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int rc = lock_print(l, &text, e);
    if (rc < 0)
        return rc;
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *parent =
        slash ? mem_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : mem_strdup(".");
    if (!parent)
        return err_nomem(e, "lock file");
    AUTO_FD int dir = -1;
    rc = file_open(&dir, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = file_put(dir, dir, slash ? slash + 1 : path, text, strlen(text), e);
    return rc < 0 ? err_in(e, "lock file %s", path) : 0;
}
