/* SPDX-License-Identifier: MIT */
/*
 * From an assembled disk to a template: boot, steps, ready, snapshot; what comes out is the
 * template's document, which is proved before it becomes a record.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/bake.h"
#include "bake/common/document.h"
#include "bake/guest/guest.h"
#include "bake/guest/trace.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/recipe/secrets.h"
#include "bake/run/events.h"
#include "bake/run/run.h"
#include "bake/run/warming.h"
#include "bake/step/cache.h"
#include "bake/step/context.h"
#include "bake/step/steps.h"
#include "bake/template/kept.h"
#include "bake/template/ready.h"
#include "bake/vm.h"
#include "bake/vm/host.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

static const char default_path[] =
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/* What the image config says, then task.toml on top. */
static int initial_context(struct guest_context *c, const struct baking *b, struct err *e)
{
    const struct oci_config *config = &b->image->config;
    const struct task *task = b->task;
    int rc = guest_context_set_pair(c, default_path, e);
    for (size_t i = 0; rc == 0 && config->env && config->env[i]; i++)
        rc = guest_context_set_pair(c, config->env[i], e);
    for (size_t i = 0; rc == 0 && i < task->env_count; i++)
        rc = guest_context_set(c, task->env[i].name, task->env[i].value, e);
    if (rc < 0)
        return rc;
    c->workdir = mem_strdup(config->working_dir[0] ? config->working_dir : "/");
    c->user = mem_strdup(task->user ? task->user : "root");
    return c->workdir && c->user ? 0 : err_nomem(e, "guest");
}

static void describe_context(struct json *document, const struct guest_context *c)
{
    struct json *env = json_new_array();
    for (size_t i = 0; i < c->env_count; i++)
        json_append(env, json_new_string(c->env[i]));
    json_set(document, "env", env);
    json_set(document, "workdir", json_new_string(c->workdir));
    json_set(document, "user", json_new_string(c->user));
}

static void describe_task(struct json *document, const struct baking *b,
                          const struct guest_options *o)
{
    const struct machine_room *room = &b->run->machines;
    char created[CLOCK_TEXT_MAX];
    json_set(document, "alias", json_new_string(b->result->alias));
    json_set(document, "task", json_new_string(b->task->name));
    json_set(document, "image", json_new_string(b->task->image));
    json_set(document, "manifest", json_digest(&b->image->manifest.digest));
    json_set(document, "recipe", json_clone(b->recipe_json));
    json_set(document, "cpus", json_new_integer(o->cpus));
    json_set(document, "memory_mb", json_new_integer((int64_t)o->memory_mb));
    json_set(document, "storage_mb", json_new_integer((int64_t)b->task->storage_mb));
    json_set(document, "network", json_new_bool(o->network));
    if (o->tap)
        json_set(document, "tap", json_new_bool(true));
    json_set(document, "vmm", json_new_string(room->vmm));
    json_set(document, "accel", json_new_string(vm_accel_name(room->accel)));
    json_set(document, "kernel", json_digest(&room->kernel.digest));
    if (room->accel == VM_ACCEL_KVM)
        machine_host_note(document, &room->host, room->cpu_template);
    json_set(document, "created",
             json_new_string(clock_print(clock_wall_ns() / 1000000000, created)));
    json_set(document, "ready", ready_encode(&b->recipe->ready));
}

/* What a person may want to look into: a guest in which something of the recipe failed. The failure stays
 * the result. */
static void keep_failed(struct baking *b, struct guest *g, const struct block_map *disk,
                        struct json *document, const struct secret_set *secrets, struct err *e)
{
    struct err why = ERR_INIT;
    const char *name = b->result->alias;
    if (!b->run->options->keep || e->class != ERR_STEP || !g->agent)
        return;
    struct kept_reason reason = {.name = name, .text = e->text, .secrets = secrets};
    if (kept_snapshot(g, disk, document, &reason, &why) < 0) {
        log_event(LOG_WARN, "bake", "%s", why.text);
        return;
    }
    char hint[ERR_HINT_MAX];
    memcpy(hint, e->hint, sizeof(hint));
    err_hint(e, "%.380s%sits machine is kept: tb2-bake shell --kept %s", hint, hint[0] ? "; " : "",
             name);
}

/* Steps, start, ready in a booted guest, then its snapshot. */
static int warm_guest(struct warming *w, struct guest *g, struct json *document, struct err *e)
{
    struct baking *b = w->b;
    const struct recipe *recipe = b->recipe;
    uint64_t process = 0;
    baking_stage(b, STAGE_STEPS);
    int rc = guest_note_packages(g, e);
    if (rc == 0)
        rc = warming_run(w, g, e);
    if (rc == 0) {
        baking_stage(b, STAGE_READY);
        rc = guest_start(g, recipe, &w->context, &process, e);
    }
    if (rc == 0)
        rc = guest_wait_ready(g, &recipe->ready, &w->context, process, e);
    if (rc == 0)
        rc = trace_note_boot(document, g, w->boot, w->base, e);
    if (rc == 0) {
        baking_stage(b, STAGE_SNAPSHOT);
        rc = guest_quiesce(g, e);
    }
    if (rc == 0) /* it may have died meanwhile */
        rc = guest_check_started(g, process, e);
    describe_context(document, &w->context);
    json_set(document, "steps", MOVE(w->keys));
    if (process != 0)
        json_set(document, "start_process", json_new_integer((int64_t)process));
    bool is_ready = rc == 0;
    if (is_ready)
        rc = guest_snapshot(g, warming_disk(w), w->run.secrets, document, e);
    if (rc < 0)
        secret_mask_error(w->run.secrets, e);
    if (!is_ready)
        keep_failed(b, g, warming_disk(w), document, w->run.secrets, e);
    return rc;
}

static int boot_and_warm(struct warming *w, struct json *document, struct err *e)
{
    struct baking *b = w->b;
    AUTO_GUEST struct guest *g = NULL;
    int64_t start_ms = clock_ms();
    w->options.disk = w->boot;
    int rc = guest_boot(&g, &b->run->machines, &w->options, e);
    if (rc < 0)
        return err_in(e, "booting");
    json_set(document, "boot_ms", json_new_integer(clock_ms() - start_ms));
    if (g->boot_memory)
        json_set(document, "boot_image", json_digest(&g->boot_image));
    rc = warm_guest(w, g, document, e);
    /* The snapshot stage began when the guest was ready. */
    json_set(document, "cold_ready_ms", json_new_integer(b->stage_start_ms - start_ms));
    return rc;
}

static void describe_grafts(struct json *document, const struct image *i)
{
    struct json *grafts = json_new_array();
    for (size_t n = 0; n < i->graft_total; n++)
        json_append(grafts, json_digest(&i->grafts[n]));
    json_set(document, "grafts", grafts);
}

/* With its image and recipe. */
static struct warming begin_warming(struct baking *b, const struct block_map *disk,
                                    const struct output_tap *tap)
{
    struct warming w = {
        .b = b,
        .base = disk,
        .head = graft_head(b->recipe, b->image->native),
        .options =
            {
                .cpus = b->task->cpus,
                .memory_mb = b->task->memory_mb,
                .scrub = recipe_has_secrets(b->recipe),
                .network = b->task->allow_internet && b->recipe->network != RECIPE_NETWORK_NONE,
            },
        .run = {.recipe = b->recipe,
                .tap = tap,
                .secrets = recipe_has_secrets(b->recipe) ? b->run->secrets : NULL,
                .images = &b->run->images},
        .initial = initial_context,
    };
    w.options.tap = w.options.network && b->recipe->network == RECIPE_NETWORK_TAP;
    return w;
}

/* The disk that the image becomes, if an earlier bake made it: NULL, or for block_map_free. */
static int find_disk(struct baking *b, struct block_map **disk, struct digest *digest,
                     struct err *e)
{
    struct digest key;
    struct err why = ERR_INIT;
    *disk = NULL;
    int rc = image_disk_key(&key, b->image, b->task->storage_mb << 20, e);
    if (rc < 0)
        return rc;
    rc = step_peek(digest, b->run->store, &key, &why);
    if (rc == 0)
        rc = store_get_map(b->run->store, digest, disk, &why);
    return rc == -ERR_NOMEM ? err_nomem(e, "disk") : 0;
}

int warm_plan(struct baking *b, struct err *e)
{
    const struct bake_options *o = b->run->options;
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    struct digest digest;
    b->result->steps = b->recipe->step_count;
    if (o->force || o->no_step_cache || b->recipe->step_count == 0)
        return 0;
    int rc = graft_name(b->image, &b->run->images, b->recipe, e);
    if (rc == 0)
        rc = find_disk(b, &disk, &digest, e);
    if (rc < 0 || !disk)
        return rc;
    AUTO_WARMING struct warming w = begin_warming(b, disk, NULL);
    w.run.context = &w.context;
    return warming_look(&w, &digest, &b->result->steps_kept, e);
}

int warm_task(struct baking *b, const struct block_map *disk, const struct digest *base_disk,
              const struct digest *key, struct json **document, struct err *e)
{
    const struct output_tap tap = {.line = baking_output, .ctx = b};
    AUTO_WARMING struct warming w = begin_warming(b, disk, &tap);
    w.run.context = &w.context;
    if (w.options.tap && !b->run->machines.tap) {
        err_set(e, ERR_INPUT, "the recipe wants a tap device, and none was given");
        return err_hint(e, "--tap NAME says which one");
    }
    AUTO_JSON struct json *j = json_new_object();
    baking_name_console(b);
    w.options.console = b->result->console;
    w.options.secrets = w.run.secrets;
    json_set(j, "format", json_new_integer(FORMAT_VERSION));
    json_set(j, "key", json_digest(key));
    json_set(j, "base_disk", json_digest(base_disk));
    describe_task(j, b, &w.options);
    describe_grafts(j, b->image);
    baking_stage(b, STAGE_BOOT);
    int rc = warming_begin(&w, base_disk, e);
    if (rc == 0)
        rc = boot_and_warm(&w, j, e);
    if (rc < 0)
        return rc;
    *document = MOVE(j);
    return 0;
}
