/* SPDX-License-Identifier: MIT */
/* Copies of a template: restored or booted cold, a command run in one, thrown away or kept. */

#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/guest/machine_room.h"
#include "bake/guest/trace.h"
#include "bake/step/context.h"
#include "bake/step/steps.h"
#include "bake/template.h"
#include "bake/template/copy.h"
#include "bake/template/kept.h"
#include "bake/template/ready.h"
#include "bake/vm/tap.h"
#include "base/clock.h"
#include "base/mem.h"

/* ---- Restoring ---- */

static int template_context(struct guest_context *c, const struct template *t, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && t->env[i]; i++)
        rc = guest_context_set_pair(c, t->env[i], e);
    if (rc < 0)
        return rc;
    c->workdir = mem_strdup(t->workdir);
    c->user = mem_strdup(t->user);
    return c->workdir && c->user ? 0 : err_nomem(e, "template");
}

int template_check_ready(struct guest *g, const struct template *t, struct err *e)
{
    struct recipe_ready ready = {0};
    struct guest_context context = {0};
    uint64_t process = 0;
    int rc = ready_decode(&ready, t->document, e);
    if (rc == 0)
        rc = json_get_u64_opt(t->document, "start_process", 0, &process, e);
    if (rc == 0)
        rc = template_context(&context, t, e);
    if (rc == 0)
        rc = guest_wait_ready(g, &ready, &context, process, e);
    guest_context_fini(&context);
    ready_fini(&ready);
    return rc;
}

void template_copy_fini(struct template_copy *c)
{
    guest_free(c->guest);
    block_map_free(c->disk);
    *c = (struct template_copy){0};
}
#define AUTO_COPY CLEANUP(template_copy_fini)

static int open_copy(struct template_copy *c, const struct template *t,
                     const struct machine_room *r, const struct template_use *use, struct err *e)
{
    AUTO_FREE struct digest *ahead = NULL;
    size_t ahead_count = 0;
    int rc = store_get_map(r->store, &t->disk, &c->disk, e);
    if (rc < 0)
        return err_in(e, "reading the map of the template's disk");
    if (!use->no_prefetch && (!use->cold || store_has_source(r->store)))
        rc = trace_chunks(&ahead, &ahead_count, t, r->store, use->cold ? TRACE_BOOT : TRACE_RESTORE,
                          e);
    if (rc < 0)
        return rc;
    struct guest_options options = {.disk = c->disk,
                                    .snapshot_again = use->keep,
                                    .cpus = t->cpus,
                                    .memory_mb = t->memory_mb,
                                    .network = t->network,
                                    .cold = use->cold,
                                    .tap = t->tap,
                                    .ahead = ahead,
                                    .ahead_count = ahead_count};
    return use->cold ? guest_boot(&c->guest, r, &options, e)
                     : guest_restore(&c->guest, r, &options, t, e);
}

int template_open_copy(struct template_copy *out, const struct template *t,
                       const struct machine_room *r, struct err *e)
{
    return open_copy(out, t, r, &(struct template_use){0}, e);
}

/* A disk that was booted: what the recipe starts is started, and must be ready. */
static int start_cold(struct guest *g, const struct template *t, struct err *e)
{
    AUTO_FREE char *start = NULL;
    const char *text = NULL;
    const struct json *recipe = json_member(t->document, "recipe");
    struct recipe_ready ready = {0};
    struct guest_context context = {0};
    uint64_t process = 0;
    int rc = recipe ? json_get_string_opt(recipe, "start", &text, e) : 0;
    if (rc == 0 && text && !(start = mem_strdup(text)))
        rc = err_nomem(e, "template");
    const struct recipe starting = {.start = start};
    if (rc == 0)
        rc = ready_decode(&ready, t->document, e);
    if (rc == 0)
        rc = template_context(&context, t, e);
    if (rc == 0)
        rc = guest_start(g, &starting, &context, &process, e);
    if (rc == 0)
        rc = guest_wait_ready(g, &ready, &context, process, e);
    guest_context_fini(&context);
    ready_fini(&ready);
    return rc;
}

/* The command's environment: the template's, and the terminal that it is on. */
static int command_env(struct guest_context *c, const struct template *t,
                       const struct template_command *command, struct err *e)
{
    int rc = template_context(c, t, e);
    if (rc == 0 && command->term)
        rc = guest_context_set(c, "TERM", command->term, e);
    return rc;
}

static int run_command(struct guest *g, const struct template *t,
                       const struct template_command *command, struct agent_result *result,
                       struct err *e)
{
    static const char *const no_env[] = {NULL};
    const char *shell[] = {NULL, NULL};
    struct guest_context context = {0};
    int rc = command_env(&context, t, command, e);
    if (rc == 0 && !command->argv)
        rc = find_shell(g, &shell[0], e);
    if (rc == 0) {
        struct agent_exec exec = {.argv = command->argv ? command->argv : shell,
                                  .env = context.env ? (const char *const *)context.env : no_env,
                                  .workdir = t->workdir,
                                  .user = t->user,
                                  .input = command->input,
                                  .input_len = command->input_len,
                                  .live = command->live};
        rc = agent_run(g->agent, &exec, command->output, command->ctx, result, e);
    }
    guest_context_fini(&context);
    return rc;
}

static int run_in_copy(const struct template *t, const struct machine_room *r,
                       const struct template_use *use, const struct template_command *command,
                       struct agent_result *result, struct err *e)
{
    AUTO_COPY struct template_copy c = {0};
    int rc = open_copy(&c, t, r, use, e);
    if (rc == 0 && use->cold)
        rc = start_cold(c.guest, t, e);
    if (rc == 0)
        rc = run_command(c.guest, t, command, result, e);
    if (rc < 0 || !use->keep)
        return rc;
    const struct kept_reason reason = {.name = use->keep, .text = use->why};
    return kept_snapshot(c.guest, c.disk, t->document, &reason, e);
}

/* The template's card has something to be on. */
static int connect_card(struct machine_room *room, const struct template *t,
                        const struct template_use *use, struct err *e)
{
    if (use->tap && !t->tap) {
        (void)err_set(e, ERR_INPUT, "the network of %s was not a tap device", t->alias);
        return err_hint(e, "leave --tap away");
    }
    if (use->tap) {
        room->tap = &room->own_tap;
        return tap_open(&room->own_tap, use->tap, e);
    }
    if (!t->tap || vm_driver_can(room->driver)->user_network)
        return 0;
    (void)err_set(e, ERR_UNSUPPORTED,
                  "the network of %s was a tap device, none is given, and %s has no other",
                  t->alias, room->vmm);
    return err_hint(e, "--tap NAME says which one");
}

int template_open_room(struct machine_room *room, const struct template *t, struct store *s,
                       const struct template_use *use, struct err *e)
{
    const struct machine_wants wants = {.cache_dir = use->cache_dir,
                                        .driver = use->vmm,
                                        .accel = use->accel,
                                        .made_by = t->vmm,
                                        .cpu_template = use->cpu_template,
                                        .cancel = use->cancel};
    int rc = machine_room_open(room, s, &wants, e);
    if (rc < 0)
        return rc;
    rc = connect_card(room, t, use, e);
    if (rc < 0)
        machine_room_close(room);
    return rc;
}

int template_run(const struct template *t, struct store *s, const struct template_use *use,
                 const struct template_command *command, struct agent_result *result, struct err *e)
{
    struct machine_room room;
    int rc = template_open_room(&room, t, s, use, e);
    if (rc < 0)
        return rc;
    rc = run_in_copy(t, &room, use, command, result, e);
    machine_room_close(&room);
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}
