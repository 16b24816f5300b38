/* SPDX-License-Identifier: MIT */
/*
 * One task through all stages. What is done is found again by key: the template's record for the
 * whole, layer files and maps for the parts, so nothing here has to know how far an earlier run
 * got.
 */
#include "bake/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

static void task_progress(void *ctx, uint64_t bytes)
{
    struct baking *b = ctx;
    b->result->pulled_size += bytes;
    baking_progress(b, b->result->pulled_size, b->transfer_total);
}

static int plan(struct baking *b, struct err *e)
{
    AUTO_FREE char *directory = mem_printf("%s/%s", b->run->options->tasks_dir, b->result->task);
    if (!directory)
        return err_nomem(e, "task");
    int rc = task_load(&b->task, directory, e);
    if (rc < 0)
        return rc;
    const struct recipe *r = b->run->recipe;
    AUTO_FREE const char **commands = mem_array(r->step_count, sizeof(*commands));
    if (!commands)
        return err_nomem(e, "task");
    size_t count = 0;
    for (size_t i = 0; i < r->step_count; i++) {
        if (r->steps[i].kind == RECIPE_RUN && r->steps[i].text)
            commands[count++] = r->steps[i].text;
    }
    char *alias = NULL;
    rc = template_alias(&alias, b->task, "root", commands, count, e);
    if (rc == 0 && b->result->alias)
        free(alias); /* the task was put off before */
    else if (rc == 0)
        b->result->alias = alias;
    return rc;
}

/* The key, and whether a template with it is there and complete enough to be used. */
static int look_up(struct baking *b, struct digest *key, bool *unchanged, struct err *e)
{
    struct key_inputs in = {.task = b->task,
                            .image = b->image,
                            .recipe = b->run->recipe_json,
                            .room = &b->run->machines};
    bool found = false;
    struct digest record;
    *unchanged = false;
    int rc = template_key(key, &in, e);
    if (rc == 0 && !b->run->options->force)
        rc = template_find_key(b->run->store, key, &found, &record, e);
    if (rc < 0 || !found)
        return rc;
    struct err why = ERR_INIT;
    if (template_load_record(&b->template, b->run->store, &record, &why) < 0) {
        log_event(LOG_WARN, "bake", "task %s: baking again: %s", b->result->task, why.text);
        return 0;
    }
    *unchanged = true;
    return template_rename(b->template, b->result->alias, b->task->name, e);
}

static void note_disks(struct baking *b)
{
    digest_print(&b->template->base_disk, b->result->base_disk);
    digest_print(&b->template->disk, b->result->disk);
}

/* Pulls and ingests what is ours to do; *waiting: other bakers are at the rest. */
static int fetch_layers(struct baking *b, bool *waiting, struct err *e)
{
    struct image_room *room = &b->run->images;
    int rc = remote_image_begin(room->remote, b->image, waiting, e);
    if (rc == 0) {
        baking_stage(b, STAGE_PULL);
        rc = image_pull(b->image, room, &(struct registry_progress){task_progress, b}, e);
    }
    if (rc == 0) {
        baking_stage(b, STAGE_INGEST);
        rc = image_ingest(b->image, room, e);
    }
    return remote_image_end(room->remote, b->image, rc, e);
}

static int fetch_and_assemble(struct baking *b, struct block_map **disk, struct digest *base,
                              struct err *e)
{
    struct image_room *room = &b->run->images;
    int rc = image_drop_damaged(b->image, room, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < b->image->manifest.layer_count; i++) {
        if (!layer_has(b->run->store, &b->image->config.diff_ids[i]))
            b->transfer_total += b->image->manifest.layers[i].size;
    }
    unsigned round = 0;
    bool waiting = true;
    while (rc == 0 && waiting) {
        rc = fetch_layers(b, &waiting, e);
        if (rc == 0 && waiting)
            rc = remote_wait(room->remote, &round, e);
    }
    if (rc < 0)
        return rc;
    baking_stage(b, STAGE_ASSEMBLE);
    rc = image_assemble(b->image, room, b->task->storage_mb << 20, disk, base, e);
    if (rc == 0)
        digest_print(base, b->result->base_disk);
    return rc;
}

/* Boot to proof, holding one place for VMs throughout: the proof's VM starts when the first one is
 * gone. */
static int warm_and_prove(struct baking *b, const struct block_map *disk, const struct digest *base,
                          const struct digest *key, struct err *e)
{
    struct run *run = b->run;
    int rc = vm_gate_enter(&run->gate, b->task->memory_mb, run->options->cancel, e);
    if (rc < 0)
        return rc;
    AUTO_JSON struct json *document = NULL;
    struct digest record;
    rc = warm_task(b, disk, base, key, &document, e);
    if (rc == 0) {
        baking_stage(b, STAGE_PROVE);
        AUTO_TEMPLATE struct template *t = NULL;
        int64_t ready_ms = 0;
        rc = template_from_document(&t, document, e);
        if (rc == 0)
            rc = prove_template(t, &run->machines, &ready_ms, e);
        json_set(document, "warm_ready_ms", json_new_integer(ready_ms));
    }
    vm_gate_leave(&run->gate, b->task->memory_mb);
    if (rc == 0)
        rc = template_put(run->store, key, document, &record, e);
    return rc < 0 ? rc : template_load_record(&b->template, run->store, &record, e);
}

/* As look_up, in the remote store too: taken over from there it is as good as baked before, and if
 * nobody has it, nobody else will bake it now. *put_off: someone else does. */
static int look_around(struct baking *b, struct digest *key, bool *unchanged, bool *put_off,
                       struct err *e)
{
    struct remote *remote = b->run->remote;
    unsigned round = 0;
    int rc = look_up(b, key, unchanged, e);
    while (rc == 0 && remote && !*unchanged && !b->run->options->force) {
        bool busy = false;
        rc = remote_template_begin(remote, key, &busy, e);
        if (rc == 0)
            rc = look_up(b, key, unchanged, e);
        if (rc < 0 || !busy)
            break;
        if (!b->run->patient) {
            *put_off = true;
            break;
        }
        rc = remote_wait(remote, &round, e);
    }
    return rc;
}

static int bake_stages(struct baking *b, bool *put_off, struct err *e)
{
    baking_stage(b, STAGE_PLAN);
    int rc = plan(b, e);
    if (rc < 0)
        return rc;
    baking_stage(b, STAGE_RESOLVE);
    rc = image_resolve(&b->image, &b->run->images, b->task->image, e);
    struct digest key;
    bool unchanged = false;
    if (rc == 0)
        rc = look_around(b, &key, &unchanged, put_off, e);
    if (rc == 0 && *put_off)
        return 0;
    if (rc == 0 && !unchanged) {
        AUTO_BLOCK_MAP struct block_map *disk = NULL;
        struct digest base;
        rc = fetch_and_assemble(b, &disk, &base, e);
        if (rc == 0)
            rc = warm_and_prove(b, disk, &base, &key, e);
        if (rc < 0)
            remote_template_drop(b->run->remote, &key);
    }
    if (rc < 0)
        return rc;
    note_disks(b);
    baking_stage(b, STAGE_REGISTER);
    rc = register_template(b, b->template, e);
    remote_template_publish(b->run->remote, b->template, b->image);
    if (rc == 0)
        b->result->outcome = unchanged ? OUTCOME_UNCHANGED : OUTCOME_READY;
    return rc;
}

void bake_task(struct run *run, struct bake_task_result *result)
{
    struct baking b = {.run = run, .result = result};
    struct err *e = &result->err;
    err_clear(e);
    int rc = cancel_check(run->options->cancel, e);
    bool put_off = false;
    if (rc == 0)
        rc = bake_stages(&b, &put_off, e);
    if (rc < 0) {
        result->outcome = e->class == ERR_CANCELLED ? OUTCOME_CANCELLED : OUTCOME_FAILED;
        err_in(e, "task %s: %s", result->task, bake_stage_name(result->stage));
    }
    if (put_off)
        baking_output(&b, "another baker is at it: put off");
    else
        baking_finish(&b);
    template_free(b.template);
    image_free(b.image);
    task_free(b.task);
}
