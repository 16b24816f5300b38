/* SPDX-License-Identifier: MIT */
/*
 * Templates: a record is an immutable JSON document named by its digest; keys/ and catalog/ hold
 * small pointers to records that are replaced atomically. So a template that is being baked anew
 * stays usable until the moment its pointer moves.
 */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bake/common/document.h"
#include "bake/guest/machine_room.h"
#include "bake/image/image.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "bake/vm.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"
#include "manifests/manifest.h"

enum { OBJECT_PATH_MAX = 16 + DIGEST_TEXT_MAX };

static void object_path(char path[OBJECT_PATH_MAX], const char *directory, const struct digest *d)
{
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, OBJECT_PATH_MAX, "%s/%s.json", directory, digest_hex(d, hex));
}

/* An alias becomes a file name: only what aliases are made of, no dots, no slashes. */
bool alias_is_legal(const char *alias)
{
    size_t len = strlen(alias);
    return len > 0 && len <= 200 &&
           strspn(alias, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == len;
}

/* ---- Keys ---- */

static struct json *json_env(const struct env_pair *env, size_t count)
{
    struct json *object = json_new_object();
    for (size_t i = 0; i < count; i++)
        json_set(object, env[i].name, json_new_string(env[i].value));
    return object;
}

static struct json *key_document(const struct key_inputs *in)
{
    struct json *j = json_new_object();
    json_set(j, "format", json_new_integer(FORMAT_VERSION));
    json_set(j, "manifest", json_digest(&in->image->manifest.digest));
    json_set(j, "config", json_digest(&in->image->manifest.config.digest));
    json_set(j, "recipe", json_clone(in->recipe));
    json_set(j, "cpus", json_new_integer(in->task->cpus));
    json_set(j, "memory_mb", json_new_integer((int64_t)in->task->memory_mb));
    json_set(j, "storage_mb", json_new_integer((int64_t)in->task->storage_mb));
    json_set(j, "internet", json_new_bool(in->task->allow_internet));
    json_set(j, "env", json_env(in->task->env, in->task->env_count));
    if (in->task->user) /* root leaves it out, as before there was a choice */
        json_set(j, "user", json_new_string(in->task->user));
    json_set(j, "kernel", json_digest(&in->room->kernel.digest));
    json_set(j, "vmm", json_new_string(in->room->vmm));
    json_set(j, "accel", json_new_string(vm_accel_name(in->room->accel)));
    if (in->room->cpu_template)
        json_set(j, "cpu_template", json_new_string(in->room->cpu_template));
    return j;
}

int template_key(struct digest *out, const struct key_inputs *in, struct err *e)
{
    AUTO_JSON struct json *j = key_document(in);
    return json_hash(out, j, e);
}

/* ---- Reading ---- */

static int read_json(struct store *s, const char *path, struct json **out, struct digest *digest,
                     struct err *e)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_RECORD);
    int rc = file_read(store_dir(s), path, &bytes, e);
    if (rc < 0)
        return rc;
    if (digest)
        digest_bytes(digest, bytes.data, bytes.len);
    return json_parse(out, bytes.data, bytes.len, path, e);
}

int template_find_key(struct store *s, const struct digest *key, bool *found, struct digest *record,
                      struct err *e)
{
    char path[OBJECT_PATH_MAX];
    object_path(path, "keys", key);
    AUTO_JSON struct json *pointer = NULL;
    *found = false;
    if (!file_exists(store_dir(s), path))
        return 0;
    int rc = read_json(s, path, &pointer, NULL, e);
    if (rc == 0)
        rc = json_get_digest(pointer, "record", record, e);
    if (rc == -ERR_NOMEM)
        return rc;
    if (rc < 0) {
        log_event(LOG_WARN, "bake", "baking again: %s: %s", path, e->text);
        err_clear(e);
        return 0;
    }
    object_path(path, "templates", record);
    *found = store_use(s, path);
    return 0;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    free(t->alias);
    free(t->task);
    for (size_t i = 0; t->env && t->env[i]; i++)
        free(t->env[i]);
    free(t->env);
    json_free(t->document);
    free(t);
}

static int decode_env(struct template *t, struct err *e)
{
    struct json *list = NULL;
    int rc = json_get_array(t->document, "env", &list, e);
    if (rc < 0)
        return rc;
    size_t count = json_length(list);
    t->env = mem_array(count + 1, sizeof(char *));
    for (size_t i = 0; t->env && i < count; i++) {
        const char *pair = json_as_string(json_element(list, i));
        if (!pair)
            return err_set(e, ERR_CORRUPT, "'env' holds something that is no string");
        t->env[i] = mem_strdup(pair);
        if (!t->env[i])
            return err_nomem(e, "template");
    }
    return t->env ? 0 : err_nomem(e, "template");
}

static int decode_digests(struct template *t, struct err *e)
{
    static const struct {
        const char *key;
        size_t offset;
    } fields[] = {
        {"key", offsetof(struct template, key)},
        {"disk", offsetof(struct template, disk)},
        {"base_disk", offsetof(struct template, base_disk)},
        {"memory", offsetof(struct template, memory)},
        {"state", offsetof(struct template, state)},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(fields); i++) {
        struct digest d;
        rc = json_get_digest(t->document, fields[i].key, &d, e);
        if (rc == 0)
            memcpy((char *)t + fields[i].offset, &d, sizeof(d));
    }
    return rc;
}

static int decode_texts(struct template *t, struct err *e)
{
    const struct {
        const char *key;
        const char **out;
    } fields[] = {
        {"vmm", &t->vmm},         {"accel", &t->accel}, {"kernel", &t->kernel},
        {"created", &t->created}, {"user", &t->user},   {"workdir", &t->workdir},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(fields); i++)
        rc = json_get_string(t->document, fields[i].key, fields[i].out, e);
    return rc;
}

static int decode_record(struct template *t, struct err *e)
{
    const char *alias = NULL;
    const char *task = NULL;
    uint64_t cpus = 0;
    int rc = decode_digests(t, e);
    if (rc == 0)
        rc = decode_texts(t, e);
    if (rc == 0)
        rc = json_get_string(t->document, "alias", &alias, e);
    if (rc == 0)
        rc = json_get_string(t->document, "task", &task, e);
    if (rc == 0)
        rc = json_get_u64(t->document, "state_size", &t->state_size, e);
    if (rc == 0)
        rc = json_get_u64(t->document, "memory_mb", &t->memory_mb, e);
    if (rc == 0)
        rc = json_get_u64(t->document, "cpus", &cpus, e);
    if (rc == 0)
        rc = json_get_bool_opt(t->document, "network", false, &t->network, e);
    if (rc == 0)
        rc = json_get_bool_opt(t->document, "tap", false, &t->tap, e);
    if (rc == 0)
        rc = decode_env(t, e);
    if (rc < 0)
        return rc;
    if (cpus == 0 || cpus > 255 || t->memory_mb == 0 || t->memory_mb > (1U << 24))
        return err_set(e, ERR_CORRUPT, "resources are out of range");
    t->cpus = (uint32_t)cpus;
    t->alias = mem_strdup(alias);
    t->task = mem_strdup(task);
    return t->alias && t->task ? 0 : err_nomem(e, "template");
}

int template_rename(struct template *t, const char *alias, const char *task, struct err *e)
{
    AUTO_FREE char *new_alias = mem_strdup(alias);
    AUTO_FREE char *new_task = mem_strdup(task);
    if (!new_alias || !new_task)
        return err_nomem(e, "template");
    json_set(t->document, "alias", json_new_string(alias));
    json_set(t->document, "task", json_new_string(task));
    free(t->alias);
    free(t->task);
    t->alias = MOVE(new_alias);
    t->task = MOVE(new_task);
    return 0;
}

int template_from_document(struct template **out, const struct json *document, struct err *e)
{
    AUTO_TEMPLATE struct template *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "template");
    t->document = json_clone(document);
    int rc = t->document ? decode_record(t, e) : err_nomem(e, "template");
    if (rc < 0)
        return rc;
    *out = MOVE(t);
    return 0;
}

int template_load_record(struct template **out, struct store *s, const struct digest *record,
                         struct err *e)
{
    char path[OBJECT_PATH_MAX];
    object_path(path, "templates", record);
    store_use(s, path); /* reading says whether it is there */
    return template_peek(out, s, record, e);
}

int template_peek(struct template **out, struct store *s, const struct digest *record,
                  struct err *e)
{
    char path[OBJECT_PATH_MAX];
    object_path(path, "templates", record);
    AUTO_TEMPLATE struct template *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "template");
    int rc = read_json(s, path, &t->document, &t->record, e);
    if (rc < 0)
        return rc;
    if (!digest_equal(&t->record, record)) {
        err_set(e, ERR_DIGEST, "%s does not match its name", path);
        return err_hint(e, "bake the task again with --force");
    }
    rc = decode_record(t, e);
    if (rc < 0)
        return err_in(e, "%s", path);
    *out = MOVE(t);
    return 0;
}

static int load_entry(struct template **out, struct store *s, const char *alias, struct err *e)
{
    if (!alias_is_legal(alias))
        return err_set(e, ERR_NOTFOUND, "'%s' is no template alias", alias);
    AUTO_FREE char *path = mem_printf("catalog/%s.json", alias);
    if (!path)
        return err_nomem(e, "catalog");
    AUTO_JSON struct json *pointer = NULL;
    struct digest record;
    const char *task = NULL;
    int rc = read_json(s, path, &pointer, NULL, e);
    if (rc == -ERR_NOTFOUND)
        return err_set(e, ERR_NOTFOUND, "no template '%s' in the catalog of %s", alias,
                       store_path(s));
    if (rc == 0)
        rc = json_get_digest(pointer, "record", &record, e);
    if (rc == 0)
        rc = json_get_string(pointer, "task", &task, e);
    if (rc < 0) {
        err_in(e, "%s", path);
        return err_hint(e, "bake the task again: the entry is then made anew");
    }
    AUTO_TEMPLATE struct template *t = NULL;
    rc = template_load_record(&t, s, &record, e);
    if (rc == 0)
        rc = template_rename(t, alias, task, e);
    if (rc == 0)
        *out = MOVE(t);
    return rc;
}

/* The entry may have moved on between the look at it and that at its record. */
static int load_alias(struct template **out, struct store *s, const char *alias, struct err *e)
{
    int rc = load_entry(out, s, alias, e);
    if (rc != -ERR_NOTFOUND)
        return rc;
    err_clear(e);
    return load_entry(out, s, alias, e);
}

/* The only template whose task has this name. */
static int load_by_task(struct template **out, struct store *s, const char *task, struct err *e)
{
    char **aliases = NULL;
    size_t count = 0;
    int rc = template_list(&aliases, &count, s, e);
    AUTO_TEMPLATE struct template *found = NULL;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        AUTO_TEMPLATE struct template *t = NULL;
        struct err ignored = ERR_INIT; /* a damaged neighbour is not what was asked for */
        if (load_alias(&t, s, aliases[i], &ignored) < 0 || strcmp(t->task, task) != 0)
            continue;
        if (found) {
            err_set(e, ERR_INPUT, "task %s has several templates", task);
            rc = err_hint(e, "name one by its alias: see 'tb2-bake ls'");
        } else {
            found = MOVE(t);
        }
    }
    for (size_t i = 0; i < count; i++)
        free(aliases[i]);
    free(aliases);
    if (rc < 0)
        return rc;
    if (!found) {
        err_set(e, ERR_NOTFOUND, "no template '%s' in the catalog of %s", task, store_path(s));
        return err_hint(e, "'tb2-bake ls' lists what is there");
    }
    *out = MOVE(found);
    return 0;
}

int template_load(struct template **out, struct store *s, const char *alias, struct err *e)
{
    int rc = load_alias(out, s, alias, e);
    return rc == -ERR_NOTFOUND ? load_by_task(out, s, alias, e) : rc;
}

int catalog_note(struct store *s, const char *alias, struct json *past, struct err *e)
{
    AUTO_FREE char *path = mem_printf("catalog/%s.json", alias);
    AUTO_JSON struct json *pointer = NULL;
    const char *task = NULL;
    struct digest record;
    struct stat st = {0};
    int rc = path ? read_json(s, path, &pointer, NULL, e) : err_nomem(e, "catalog");
    if (rc == 0)
        rc = json_get_digest(pointer, "record", &record, e);
    if (rc == 0)
        rc = json_get_string(pointer, "task", &task, e);
    if (rc < 0 || fstatat(store_dir(s), path, &st, 0) < 0)
        return rc;
    int64_t time_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    const struct json *other = json_member(past, task);
    if (other && json_as_integer(json_member(other, "time_ns")) > time_ns)
        return 0;
    struct json *entry = json_new_object();
    json_set(entry, "record", json_digest(&record));
    json_set(entry, "time_ns", json_new_integer(time_ns));
    json_set(past, task, entry);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    char *const *left = a;
    char *const *right = b;
    return strcmp(*left, *right);
}

int template_list(char ***aliases, size_t *count, struct store *s, struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, store_dir(s), "catalog", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == -ERR_NOTFOUND) {
        *aliases = NULL;
        *count = 0;
        return 0;
    }
    if (rc < 0)
        return rc;
    DIR *d = fdopendir(fd);
    if (!d)
        return err_sys(e, "listing the catalog");
    fd = -1;
    char **names = NULL;
    size_t used = 0;
    size_t capacity = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(d))) {
        size_t len = strlen(entry->d_name);
        if (len < 6 || strcmp(entry->d_name + len - 5, ".json") != 0)
            continue;
        rc = mem_grow(&names, &capacity, used + 1, sizeof(*names), e);
        if (rc == 0 && !(names[used++] = mem_strndup(entry->d_name, len - 5)))
            rc = err_nomem(e, "catalog");
    }
    closedir(d);
    if (rc < 0) {
        for (size_t i = 0; i < used; i++)
            free(names[i]);
        free(names);
        return rc;
    }
    if (used > 0)
        qsort(names, used, sizeof(*names), compare_names);
    *aliases = names;
    *count = used;
    return 0;
}

/* ---- Writing ---- */

static bool holds(struct store *s, const char *path, const char *text)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_RECORD);
    struct err ignored = ERR_INIT;
    return file_read(store_dir(s), path, &bytes, &ignored) == 0 && bytes.len == strlen(text) &&
           memcmp(bytes.data, text, bytes.len) == 0;
}

/* A pointer that says the same already stays: a run in which nothing changed writes, and syncs,
 * none. */
static int put_json(struct store *s, const char *path, const struct json *j, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int rc = json_print(j, 0, &text, e);
    if (rc < 0 || holds(s, path, text))
        return rc;
    return file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), e);
}

int template_put(struct store *s, const struct digest *key, const struct json *document,
                 struct digest *record, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int rc = file_make_dirs(store_dir(s), "keys", e);
    if (rc == 0)
        rc = json_print(document, 0, &text, e);
    if (rc < 0)
        return rc;
    digest_bytes(record, text, strlen(text));
    char path[OBJECT_PATH_MAX];
    AUTO_FD int lock = -1; /* a pointer to the key's older record may be being swept */
    rc = store_use_begin(&lock, s, e);
    if (rc < 0)
        return rc;
    object_path(path, "templates", record);
    rc = file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), e);
    if (rc < 0)
        return rc;
    AUTO_JSON struct json *pointer = json_new_object();
    json_set(pointer, "record", json_digest(record));
    object_path(path, "keys", key);
    return put_json(s, path, pointer, e);
}

int catalog_put(struct store *s, const char *alias, const char *task, const struct digest *key,
                const struct digest *record, struct err *e)
{
    if (!alias_is_legal(alias))
        return err_set(e, ERR_INPUT, "'%s' cannot be an alias", alias);
    AUTO_FREE char *path = mem_printf("catalog/%s.json", alias);
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "alias", json_new_string(alias));
    json_set(j, "task", json_new_string(task));
    json_set(j, "key", json_digest(key));
    json_set(j, "record", json_digest(record));
    int rc = path ? catalog_seal(j, e) : err_nomem(e, "catalog");
    return rc < 0 ? rc : put_json(s, path, j, e);
}
