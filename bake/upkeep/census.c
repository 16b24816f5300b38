/* SPDX-License-Identifier: MIT */
/* A store's files by kind, from its directories alone, and what its documents name. */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bake/common/document.h"
#include "bake/image/image.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "base/file.h"
#include "base/mem.h"

/* How the objects of a kind are named (docs/formats/store.md). */
static const struct kind_form {
    const char *name;
    const char *directory;
    const char *suffix;
    enum { HEX, DASHED, TEXT } form; /* hex of a digest; algorithm-hex; something else */
} forms[UPKEEP_STORE_KINDS] = {
    [UPKEEP_CHUNK] = {"chunk", "chunks", "", HEX},
    [UPKEEP_MAP] = {"block map", "disks", "", HEX},
    [UPKEEP_LAYER] = {"layer", "layers", "", HEX},
    [UPKEEP_RECORD] = {"record", "templates", ".json", HEX},
    [UPKEEP_KEY] = {"key", "keys", ".json", HEX},
    [UPKEEP_ALIAS] = {"catalog entry", "catalog", ".json", TEXT},
    [UPKEEP_BLOB] = {"blob", "blobs", "", DASHED},
    [UPKEEP_PARTIAL] = {"partial blob", "blobs/partial", "", DASHED},
    [UPKEEP_STEP] = {"step", "steps", ".json", HEX},
    [UPKEEP_PUSHED] = {"pushed layer", "pushed", ".json", HEX},
    [UPKEEP_JOURNAL] = {"journal", "runs", ".jsonl", TEXT},
    [UPKEEP_TAG] = {"tag record", "refs", "", HEX},
    [UPKEEP_BOOT] = {"boot image", "boots", ".json", HEX},
    [UPKEEP_CONSOLE] = {"console log", "runs", ".log", TEXT},
    [UPKEEP_KEPT] = {"kept copy", "kept", ".json", TEXT},
};

const char *upkeep_kind_name(enum upkeep_kind kind)
{
    return kind < UPKEEP_STORE_KINDS ? forms[kind].name : "cache file";
}

/* ---- Listing ---- */

/* The digest that a file name without its suffix spells. */
static bool parse_name(struct digest *out, const struct kind_form *f, const char *name, size_t len)
{
    char text[DIGEST_TEXT_MAX];
    struct err ignored = ERR_INIT;
    const char *algorithm = len == 2 * (size_t)DIGEST_SHA256_LEN ? "sha256:" : "sha512:";
    if (len >= sizeof(text) - 8)
        return false;
    snprintf(text, sizeof(text), "%s%.*s", f->form == HEX ? algorithm : "", (int)len, name);
    if (f->form == DASHED) {
        char *dash = strchr(text, '-');
        if (!dash)
            return false;
        *dash = ':';
    }
    return digest_parse(out, text, &ignored) == 0;
}

static int add_file(struct census_list *l, const struct kind_form *f, int dir, const char *name,
                    struct err *e)
{
    struct census_file file = {0};
    size_t len = strlen(name);
    size_t suffix = strlen(f->suffix);
    if (name[0] == '.' || len <= suffix || strcmp(name + len - suffix, f->suffix) != 0 ||
        (f->form != TEXT && !parse_name(&file.digest, f, name, len - suffix)))
        return 0;
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    file.size = (uint64_t)st.st_size;
    file.used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    file.regular = S_ISREG(st.st_mode);
    if (f->form == TEXT && !(file.name = mem_strdup(name)))
        return err_nomem(e, "list of files");
    int rc = mem_grow(&l->files, &l->capacity, l->count + 1, sizeof(*l->files), e);
    if (rc < 0) {
        free(file.name);
        return rc;
    }
    l->files[l->count++] = file;
    return 0;
}

static int list_directory(struct census_list *l, const struct kind_form *f, struct store *s,
                          const char *path, struct err *e)
{
    int fd = -1;
    int rc = file_open(&fd, store_dir(s), path, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0) {
        if (rc == -ERR_NOTFOUND)
            err_clear(e);
        return rc == -ERR_NOTFOUND ? 0 : rc;
    }
    DIR *list = fdopendir(fd);
    if (!list) {
        file_close(&fd);
        return err_sys(e, "listing %s", path);
    }
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(list)))
        rc = add_file(l, f, dirfd(list), entry->d_name, e);
    closedir(list);
    return rc;
}

static int compare_files(const void *a, const void *b)
{
    const struct census_file *x = a;
    const struct census_file *y = b;
    if (x->name && y->name)
        return strcmp(x->name, y->name);
    int order = digest_compare(&x->digest, &y->digest);
    return order != 0 ? order
                      : (x->digest.algorithm > y->digest.algorithm) -
                            (x->digest.algorithm < y->digest.algorithm);
}

static int list_kind(struct census *c, enum upkeep_kind kind, struct store *s, struct err *e)
{
    struct census_list *l = &c->lists[kind];
    int rc = 0;
    for (unsigned prefix = 0; rc == 0 && kind == UPKEEP_CHUNK && prefix < 256; prefix++) {
        char path[sizeof("chunks/ab")];
        snprintf(path, sizeof(path), "chunks/%02x", prefix);
        rc = list_directory(l, &forms[kind], s, path, e);
    }
    if (kind != UPKEEP_CHUNK)
        rc = list_directory(l, &forms[kind], s, forms[kind].directory, e);
    if (rc == 0 && l->count > 1)
        qsort(l->files, l->count, sizeof(*l->files), compare_files);
    return rc;
}

int census_take(struct census *c, struct store *s, unsigned kinds, struct err *e)
{
    int rc = 0;
    for (enum upkeep_kind kind = 0; rc == 0 && kind < UPKEEP_STORE_KINDS; kind++) {
        if (kinds & 1U << kind)
            rc = list_kind(c, kind, s, e);
    }
    return rc;
}

void census_fini(struct census *c)
{
    for (size_t kind = 0; kind < UPKEEP_STORE_KINDS; kind++) {
        for (size_t i = 0; i < c->lists[kind].count; i++)
            free(c->lists[kind].files[i].name);
        free(c->lists[kind].files);
    }
    *c = (struct census){0};
}

static struct census_file *find(const struct census_list *l, const struct census_file *wanted)
{
    return l->count > 0 ? bsearch(wanted, l->files, l->count, sizeof(*l->files), compare_files)
                        : NULL;
}

struct census_file *census_find(const struct census *c, enum upkeep_kind kind,
                                const struct digest *d)
{
    struct census_file wanted = {.digest = *d};
    return find(&c->lists[kind], &wanted);
}

struct census_file *census_find_name(const struct census *c, enum upkeep_kind kind,
                                     const char *name)
{
    const struct census_list *l = &c->lists[kind];
    size_t low = 0;
    size_t high = l->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(l->files[middle].name, name);
        if (order == 0)
            return &l->files[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const char *census_path(enum upkeep_kind kind, const struct census_file *f,
                        char path[CENSUS_PATH_MAX])
{
    const struct kind_form *form = &forms[kind];
    char hex[DIGEST_TEXT_MAX];
    if (form->form == TEXT) {
        snprintf(path, CENSUS_PATH_MAX, "%s/%s", form->directory, f->name);
    } else if (form->form == DASHED) {
        image_blob_path(path, form->directory, &f->digest);
    } else {
        digest_hex(&f->digest, hex);
        if (kind == UPKEEP_CHUNK)
            snprintf(path, CENSUS_PATH_MAX, "%s/%.2s/%s", form->directory, hex, hex);
        else
            snprintf(path, CENSUS_PATH_MAX, "%s/%s%s", form->directory, hex, form->suffix);
    }
    return path;
}

/* ---- Pointers ---- */

/* A document of at most LIMIT_RECORD bytes; *text is its bytes. */
static int read_document(struct json **out, struct buf *text, struct store *s, const char *path,
                         struct err *e)
{
    buf_init(text, LIMIT_RECORD);
    int rc = file_read(store_dir(s), path, text, e);
    return rc < 0 ? rc : json_parse(out, text->data, text->len, path, e);
}

/* The bytes must be the one encoding of the document. */
static int check_text(const struct json *j, const struct buf *text, struct err *e)
{
    AUTO_FREE char *canonical = NULL;
    int rc = json_print(j, 0, &canonical, e);
    if (rc < 0)
        return rc;
    if (text->len != strlen(canonical) || memcmp(text->data, canonical, text->len) != 0)
        return err_set(e, ERR_CORRUPT, "it is not what was written");
    return 0;
}

/* An entry made anew from its members has to be the one that is there, with or without a check. */
static int check_entry(const struct catalog_entry *c, const char *alias, bool checked,
                       const struct buf *text, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "alias", json_new_string(alias));
    json_set(j, "task", json_new_string(c->task));
    json_set(j, "key", json_digest(&c->key));
    json_set(j, "record", json_digest(&c->record));
    int rc = checked ? catalog_seal(j, e) : 0;
    return rc < 0 ? rc : check_text(j, text, e);
}

int catalog_peek(struct catalog_entry *out, struct store *s, const char *file_name, struct err *e)
{
    *out = (struct catalog_entry){0};
    AUTO_JSON struct json *j = NULL;
    AUTO_BUF struct buf text;
    AUTO_FREE char *path = mem_printf("catalog/%s", file_name);
    AUTO_FREE char *alias = mem_strndup(file_name, strlen(file_name) - strlen(".json"));
    const char *task = NULL;
    buf_init(&text, 0);
    if (!path || !alias)
        return err_nomem(e, "catalog");
    int rc = read_document(&j, &text, s, path, e);
    if (rc == 0)
        rc = json_get_digest(j, "key", &out->key, e);
    if (rc == 0)
        rc = json_get_digest(j, "record", &out->record, e);
    if (rc == 0)
        rc = json_get_string(j, "task", &task, e);
    if (rc == 0 && !(out->task = mem_strdup(task)))
        rc = err_nomem(e, "catalog");
    if (rc == 0)
        rc = check_entry(out, alias, json_member(j, "check") != NULL, &text, e);
    if (rc < 0) {
        free(out->task);
        out->task = NULL;
    }
    return rc;
}

int key_peek(struct digest *record, struct store *s, const struct digest *key, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    AUTO_BUF struct buf text;
    char path[CENSUS_PATH_MAX];
    struct census_file f = {.digest = *key};
    int rc = read_document(&j, &text, s, census_path(UPKEEP_KEY, &f, path), e);
    if (rc == 0)
        rc = json_get_digest(j, "record", record, e);
    if (rc < 0)
        return rc;
    AUTO_JSON struct json *whole = json_new_object();
    json_set(whole, "record", json_digest(record));
    return check_text(whole, &text, e);
}

int pushed_peek(struct json **out, struct store *s, const struct digest *key, struct err *e)
{
    static const char *const members[] = {"blob", "size", "diff_id", "host", "repository"};
    AUTO_JSON struct json *j = NULL;
    AUTO_JSON struct json *whole = json_new_object();
    AUTO_BUF struct buf text;
    char path[CENSUS_PATH_MAX];
    struct census_file f = {.digest = *key};
    int rc = read_document(&j, &text, s, census_path(UPKEEP_PUSHED, &f, path), e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(members); i++) {
        const struct json *value = json_member(j, members[i]);
        if (value)
            json_set(whole, members[i], json_clone(value));
    }
    if (rc == 0)
        rc = catalog_seal(whole, e);
    if (rc == 0)
        rc = check_text(whole, &text, e);
    if (rc < 0)
        return rc;
    *out = MOVE(j);
    return 0;
}

void template_maps(const struct template *t, struct digest maps[TEMPLATE_MAPS])
{
    maps[TEMPLATE_DISK] = t->disk;
    maps[TEMPLATE_BASE_DISK] = t->base_disk;
    maps[TEMPLATE_MEMORY] = t->memory;
    maps[TEMPLATE_STATE] = t->state;
}

/* ---- Images ---- */

/* A blob that is an image's document; absence and damage are no errors: *out stays NULL. */
static int peek_blob(struct json **out, struct store *s, const struct digest *d, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_CONFIG);
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    struct err why = ERR_INIT;
    if (file_read(store_dir(s), path, &text, &why) < 0 ||
        json_parse(out, text.data, text.len, path, &why) < 0)
        return why.class == ERR_NOMEM ? err_nomem(e, path) : 0;
    return 0;
}

int image_peek_layers(struct store *s, const struct digest *manifest,
                      void (*document)(void *ctx, const struct digest *blob),
                      void (*layer)(void *ctx, const struct digest *diff_id), void *ctx,
                      struct err *e)
{
    AUTO_JSON struct json *m = NULL;
    AUTO_JSON struct json *c = NULL;
    struct json *part = NULL;
    struct digest config;
    struct err no_such = ERR_INIT; /* of an image that came from elsewhere nothing is known */
    int rc = peek_blob(&m, s, manifest, e);
    if (rc < 0 || !m || json_get_object(m, "config", &part, &no_such) < 0 ||
        json_get_digest(part, "digest", &config, &no_such) < 0)
        return rc;
    document(ctx, manifest);
    document(ctx, &config);
    rc = peek_blob(&c, s, &config, e);
    if (rc < 0 || !c || json_get_object(c, "rootfs", &part, &no_such) < 0 ||
        json_get_array(part, "diff_ids", &part, &no_such) < 0)
        return rc;
    for (size_t i = 0; i < json_length(part); i++) {
        const char *text = json_as_string(json_element(part, i));
        struct digest diff_id;
        if (text && digest_parse(&diff_id, text, &no_such) == 0)
            layer(ctx, &diff_id);
    }
    return 0;
}
