/* SPDX-License-Identifier: MIT */
/*
 * Lists of tasks without directories of their own (docs/formats/task-list.md): YAML or JSON with
 * the same words as task.toml, or plain lines of images.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "manifests/internal.h"

enum {
    CPUS_MAX = 1024,
    MB_MAX = 16 * 1024 * 1024,
    MEMORY_FLOOR_MB = 2048,
    STORAGE_FLOOR_MB = 10240
};

struct list_reader {
    const char *path;
    struct task *task;
};

typedef int key_reader(struct list_reader *r, const struct node *value, struct err *e);

/* ---- Values ---- */

static int read_name(struct list_reader *r, const struct node *value, struct err *e)
{
    int rc = node_text(&r->task->name, r->path, "name", value, e);
    if (rc == 0 && strpbrk(r->task->name, ",*?[]\n"))
        return node_fail(r->path, value, e, "a name has none of , * ? [ ]");
    return rc;
}

static int read_image(struct list_reader *r, const struct node *value, struct err *e)
{
    return node_text(&r->task->image, r->path, "image", value, e);
}

static int read_user(struct list_reader *r, const struct node *value, struct err *e)
{
    return node_text(&r->task->user, r->path, "user", value, e);
}

static int read_internet(struct list_reader *r, const struct node *value, struct err *e)
{
    return node_bool(&r->task->allow_internet, r->path, "internet", value, e);
}

static int read_env(struct list_reader *r, const struct node *value, struct err *e)
{
    return node_env(&r->task->env, &r->task->env_count, r->path, value, e);
}

static int read_cpus(struct list_reader *r, const struct node *value, struct err *e)
{
    double cpus = 0;
    if (value->kind != NODE_SCALAR || !decimal_parse(value->text, value->len, &cpus) ||
        cpus > CPUS_MAX)
        return node_fail(r->path, value, e, "cpus must be a number up to %d", CPUS_MAX);
    r->task->cpus = (uint32_t)cpus + ((double)(uint32_t)cpus < cpus);
    r->task->alias_cpus = (uint64_t)cpus;
    return 0;
}

/* "4G", or a number of megabytes. */
static int read_mb(struct list_reader *r, const char *key, const struct node *value, uint64_t *out,
                   struct err *e)
{
    double mb = 0;
    if (value->kind == NODE_SCALAR && size_parse_mb(value->text, value->len, out) && *out <= MB_MAX)
        return 0;
    if (value->kind != NODE_SCALAR || !decimal_parse(value->text, value->len, &mb) || mb > MB_MAX)
        return node_fail(r->path, value, e,
                         "%s must be a size such as 4G or 512M, or a number of megabytes", key);
    *out = (uint64_t)mb + ((double)(uint64_t)mb < mb);
    return 0;
}

static int read_memory(struct list_reader *r, const struct node *value, struct err *e)
{
    return read_mb(r, "memory", value, &r->task->memory_mb, e);
}

static int read_storage(struct list_reader *r, const struct node *value, struct err *e)
{
    return read_mb(r, "storage", value, &r->task->storage_mb, e);
}

static const struct {
    const char *name;
    key_reader *read;
    bool per_task; /* not among the defaults */
} keys[] = {
    {"name", read_name, true},          {"image", read_image, true},
    {"cpus", read_cpus, false},         {"memory", read_memory, false},
    {"storage", read_storage, false},   {"user", read_user, false},
    {"internet", read_internet, false}, {"env", read_env, false},
};

static int read_key(struct list_reader *r, const struct node *mapping, size_t at, bool is_default,
                    struct err *e)
{
    const struct node *key = mapping->items[at];
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strcmp(key->text, keys[i].name) == 0 && !(is_default && keys[i].per_task))
            return keys[i].read(r, mapping->items[at + 1], e);
    }
    char shown[TEXT_SHOW_MAX];
    return node_fail(r->path, key, e, "unknown key '%s'", text_show(key->text, key->len, shown));
}

/* ---- Tasks ---- */

static void settle(struct task *t)
{
    t->cpus = t->cpus > 0 ? t->cpus : 1;
    t->alias_cpus = t->alias_cpus > 0 ? t->alias_cpus : 1;
    t->memory_mb = t->memory_mb > MEMORY_FLOOR_MB ? t->memory_mb : MEMORY_FLOOR_MB;
    t->alias_memory_mb = t->memory_mb;
    t->storage_mb = t->storage_mb > STORAGE_FLOOR_MB ? t->storage_mb : STORAGE_FLOOR_MB;
}

static int apply(struct list_reader *r, const struct node *mapping, bool is_default,
                 const struct node *over, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && mapping && i + 1 < mapping->count; i += 2) {
        if (!over || !node_get(over, mapping->items[i]->text)) /* else the task's own counts */
            rc = read_key(r, mapping, i, is_default, e);
    }
    return rc;
}

/* Default name: the image's last part, with its tag unless that is latest. */
static char *name_of_image(const char *image)
{
    const char *slash = strrchr(image, '/');
    const char *last = slash ? slash + 1 : image;
    size_t len = strcspn(last, "@");
    if (len > 7 && strncmp(last + len - 7, ":latest", 7) == 0)
        len -= 7;
    char *name = mem_strndup(last, len);
    for (char *at = name; at && *at; at++)
        *at = *at == ':' ? '-' : *at;
    return name;
}

static int put_task(struct task_set *set, struct task **task, struct err *e)
{
    struct task *t = *task;
    if (!t->name)
        t->name = name_of_image(t->image);
    if (!t->name)
        return err_nomem(e, "task name");
    struct task_entry *entry = NULL;
    int rc = task_set_add(set, t->name, &entry, e);
    if (rc < 0)
        return rc;
    settle(t);
    entry->task = MOVE(*task);
    return 0;
}

static struct task *new_task(void)
{
    struct task *t = mem_zalloc(sizeof(*t));
    if (t) {
        t->allow_internet = true;
        t->build_timeout_ms = 600000;
    }
    return t;
}

static int read_task(struct task_set *set, const char *path, const struct node *defaults,
                     const struct node *node, struct err *e)
{
    if (node->kind != NODE_MAPPING)
        return node_fail(path, node, e, "a task must be a mapping with name and image");
    AUTO_TASK struct task *t = new_task();
    if (!t)
        return err_nomem(e, "task");
    struct list_reader r = {.path = path, .task = t};
    int rc = apply(&r, defaults, true, node, e);
    if (rc == 0)
        rc = apply(&r, node, false, NULL, e);
    if (rc == 0 && !t->image)
        rc = node_fail(path, node, e, "the task has no image");
    return rc < 0 ? rc : put_task(set, &t, e);
}

static int check_names(const struct task_set *set, struct err *e)
{
    for (size_t i = 1; i < set->count; i++) {
        const struct task_entry *entry = &set->entries[i];
        if (strcmp(entry[-1].name, entry->name) != 0)
            continue;
        err_set(e, ERR_INPUT, "%s: two tasks have the name '%s' (images %s and %s)", set->source,
                entry->name, entry[-1].task->image, entry->task->image);
        return err_hint(e, "give each a name of its own");
    }
    return 0;
}

static int new_set(struct task_set **out, const char *path, struct err *e)
{
    AUTO_TASK_SET struct task_set *set = mem_zalloc(sizeof(*set));
    char *source = set ? mem_strdup(path) : NULL;
    if (!source)
        return err_nomem(e, "task list");
    set->source = source;
    *out = MOVE(set);
    return 0;
}

static int finish_set(struct task_set **out, struct task_set **set, struct err *e)
{
    task_set_sort(*set);
    int rc = check_names(*set, e);
    if (rc == 0)
        *out = MOVE(*set);
    return rc;
}

int task_set_parse(struct task_set **out, const char *path, const void *text, size_t len,
                   struct err *e)
{
    AUTO_NODE struct node *document = NULL;
    AUTO_TASK_SET struct task_set *set = NULL;
    int rc = node_parse(&document, text, len, path, e);
    if (rc == 0)
        rc = new_set(&set, path, e);
    if (rc < 0)
        return rc;
    if (document->kind != NODE_MAPPING)
        return node_fail(path, document, e, "a task list is a mapping with the key tasks");
    for (size_t i = 0; i + 1 < document->count; i += 2) {
        const struct node *key = document->items[i];
        if (strcmp(key->text, "tasks") != 0 && strcmp(key->text, "defaults") != 0)
            return node_fail(path, key, e, "only tasks and defaults can stand here");
    }
    const struct node *defaults = node_get(document, "defaults");
    const struct node *tasks = node_get(document, "tasks");
    if (defaults && defaults->kind != NODE_MAPPING)
        return node_fail(path, defaults, e, "defaults must be a mapping");
    if (!tasks || tasks->kind != NODE_SEQUENCE)
        return node_fail(path, tasks ? tasks : document, e, "tasks must be a list");
    for (size_t i = 0; rc == 0 && i < tasks->count; i++)
        rc = read_task(set, path, defaults, tasks->items[i], e);
    return rc < 0 ? rc : finish_set(out, &set, e);
}

static int read_text(struct buf *text, const char *path, struct err *e)
{
    buf_init(text, LIMIT_TASK_MANIFEST);
    int rc = file_read(AT_FDCWD, path, text, e);
    return rc < 0 ? err_in(e, "task list") : 0;
}

int task_set_load(struct task_set **out, const char *path, struct err *e)
{
    AUTO_BUF struct buf text;
    int rc = read_text(&text, path, e);
    return rc < 0 ? rc : task_set_parse(out, path, text.data, text.len, e);
}

/* ---- Lists of images ---- */

static int read_line(struct task_set *set, char *line, struct err *e)
{
    char *at = line;
    const char *image = text_cut_word(&at);
    if (!*image || *image == '#')
        return 0;
    const char *name = text_cut_word(&at);
    if (*text_cut_word(&at))
        return err_set(e, ERR_INPUT, "more than an image and a name");
    AUTO_TASK struct task *t = new_task();
    if (!t)
        return err_nomem(e, "task");
    t->image = mem_strdup(image);
    t->name = *name ? mem_strdup(name) : NULL;
    if (!t->image || (*name && !t->name))
        return err_nomem(e, "task");
    return put_task(set, &t, e);
}

int task_set_load_images(struct task_set **out, const char *path, struct err *e)
{
    AUTO_BUF struct buf text;
    AUTO_TASK_SET struct task_set *set = NULL;
    int rc = read_text(&text, path, e);
    if (rc == 0)
        rc = new_set(&set, path, e);
    if (rc < 0)
        return rc;
    char *line = (char *)text.data; /* is followed by a NUL */
    for (unsigned number = 1; line; number++) {
        char *end = strchr(line, '\n');
        if (end)
            *end++ = 0;
        if (read_line(set, line, e) < 0)
            return err_in(e, "%s:%u", path, number);
        line = end;
    }
    return finish_set(out, &set, e);
}
