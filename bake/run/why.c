/* SPDX-License-Identifier: MIT */
/* Why a task is baked: what its last template was made of, compared with what there is now. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/run/run.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "bake/vm.h"
#include "base/mem.h"

/* The catalog by task: {task: {record, time_ns}}. Read once, when the first task asks. */
static int load_past(struct run *run, struct err *e)
{
    char **aliases = NULL;
    size_t count = 0;
    int rc = template_list(&aliases, &count, run->store, e);
    struct json *past = json_new_object();
    for (size_t i = 0; i < count; i++) {
        struct err ignored = ERR_INIT;
        if (rc == 0)
            (void)!catalog_note(run->store, aliases[i], past, &ignored);
        free(aliases[i]);
    }
    free(aliases);
    run->past = past;
    return rc == 0 && !past ? err_nomem(e, "catalog") : rc;
}

static int past_template(struct baking *b, struct template **out, struct err *e)
{
    struct run *run = b->run;
    struct digest record;
    pthread_mutex_lock(&run->past_lock);
    int rc = run->past ? 0 : load_past(run, e);
    const struct json *entry = rc == 0 ? json_member(run->past, b->task->name) : NULL;
    const char *text = entry ? json_as_string(json_member(entry, "record")) : NULL;
    bool found = text && digest_parse(&record, text, e) == 0;
    pthread_mutex_unlock(&run->past_lock);
    struct err ignored = ERR_INIT;
    if (found && template_load_record(out, run->store, &record, &ignored) == -ERR_NOMEM)
        return err_nomem(e, "template");
    return rc;
}

static bool same_number(const struct json *document, const char *key, uint64_t now)
{
    return json_as_integer(json_member(document, key)) == (int64_t)now;
}

static bool same_text(const struct json *document, const char *key, const char *now)
{
    const char *text = json_as_string(json_member(document, key));
    return text && strcmp(text, now) == 0;
}

static bool same_json(const struct json *a, const struct json *b)
{
    struct err ignored = ERR_INIT;
    AUTO_FREE char *left = NULL;
    AUTO_FREE char *right = NULL;
    return a && b && json_print(a, 0, &left, &ignored) == 0 &&
           json_print(b, 0, &right, &ignored) == 0 && strcmp(left, right) == 0;
}

static int compare(struct baking *b, const struct template *t, struct buf *out, struct err *e)
{
    const struct json *d = t->document;
    const struct run *run = b->run;
    char manifest[DIGEST_TEXT_MAX];
    char kernel[DIGEST_TEXT_MAX];
    digest_print(&b->image->manifest.digest, manifest);
    digest_print(&run->machines.kernel.digest, kernel);
    const bool network = b->task->allow_internet && b->recipe->network != RECIPE_NETWORK_NONE;
    const struct {
        const char *name;
        bool same;
    } inputs[] = {
        {"image", same_text(d, "manifest", manifest)},
        {"recipe", same_json(json_member(d, "recipe"), b->recipe_json)},
        {"cpus", same_number(d, "cpus", b->task->cpus)},
        {"memory", same_number(d, "memory_mb", b->task->memory_mb)},
        {"storage", same_number(d, "storage_mb", b->task->storage_mb)},
        {"network", t->network == network},
        {"guest kernel", same_text(d, "kernel", kernel)},
        {"VMM", same_text(d, "vmm", run->machines.vmm)},
        {"accelerator", same_text(d, "accel", vm_accel_name(run->machines.accel))},
        {"format", same_number(d, "format", FORMAT_VERSION)},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(inputs); i++) {
        if (!inputs[i].same)
            rc = buf_printf(out, e, "%s%s", out->len > 0 ? ", " : "", inputs[i].name);
    }
    if (rc == 0 && out->len == 0) /* what a record does not hold */
        rc = buf_add_text(out, digest_equal(&t->key, &b->key) ? "template" : "environment", e);
    return rc;
}

int task_why(struct baking *b, char **out, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, 1024);
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = 0;
    if (b->run->options->force)
        rc = buf_add_text(&text, "forced", e);
    else
        rc = past_template(b, &t, e);
    if (rc == 0 && t)
        rc = compare(b, t, &text, e);
    else if (rc == 0 && text.len == 0)
        rc = buf_add_text(&text, "new", e);
    if (rc < 0)
        return rc;
    *out = buf_take(&text);
    return *out ? 0 : err_nomem(e, "task");
}
