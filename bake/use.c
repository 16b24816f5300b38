/* SPDX-License-Identifier: MIT */
/* Using a template: run, verify. All restore a copy and throw it away. */
#include "bake/steps_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* ---- The ready check in the record ---- */

static const char *const ready_kinds[] = {
    [RECIPE_READY_NONE] = "none",
    [RECIPE_READY_COMMAND] = "command",
    [RECIPE_READY_PORT] = "port",
    [RECIPE_READY_HTTP] = "http",
};

struct json *ready_encode(const struct recipe_ready *r)
{
    struct json *j = json_new_object();
    json_set(j, "kind", json_new_string(ready_kinds[r->kind]));
    if (r->kind == RECIPE_READY_COMMAND)
        json_set(j, "command", json_new_string(r->command));
    if (r->kind == RECIPE_READY_PORT || r->kind == RECIPE_READY_HTTP)
        json_set(j, "port", json_new_integer(r->port));
    if (r->kind == RECIPE_READY_HTTP) {
        json_set(j, "path", json_new_string(r->http_path));
        json_set(j, "status", json_new_integer(r->http_status));
    }
    json_set(j, "interval_ms", json_new_integer((int64_t)r->interval_ms));
    json_set(j, "timeout_ms", json_new_integer((int64_t)r->timeout_ms));
    json_set(j, "try_timeout_ms", json_new_integer((int64_t)r->try_timeout_ms));
    return j;
}

void ready_fini(struct recipe_ready *r)
{
    free(r->command);
    free(r->http_path);
    *r = (struct recipe_ready){0};
}

static int decode_kind(struct recipe_ready *r, const struct json *j, struct err *e)
{
    const char *kind = NULL;
    int rc = json_get_string(j, "kind", &kind, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(ready_kinds); i++) {
        if (strcmp(kind, ready_kinds[i]) == 0) {
            r->kind = (enum recipe_ready_kind)i;
            return 0;
        }
    }
    return err_set(e, ERR_CORRUPT, "ready check of unknown kind '%.40s'", kind);
}

/* Takes in what else the kind needs, all of it in ranges that a recipe may have. */
static int decode_target(struct recipe_ready *r, const struct json *j, struct err *e)
{
    const char *command = NULL;
    const char *path = NULL;
    uint64_t port = 0;
    uint64_t status = 0;
    int rc = json_get_string_opt(j, "command", &command, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "port", 0, &port, e);
    if (rc == 0)
        rc = json_get_string_opt(j, "path", &path, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "status", 0, &status, e);
    if (rc < 0)
        return rc;
    if (port > UINT16_MAX || status > 599 || (r->kind == RECIPE_READY_COMMAND && !command) ||
        (r->kind == RECIPE_READY_HTTP && !path))
        return err_set(e, ERR_CORRUPT, "ready check is incomplete");
    r->port = (uint16_t)port;
    r->http_status = (unsigned)status;
    r->command = command ? mem_strdup(command) : NULL;
    r->http_path = path ? mem_strdup(path) : NULL;
    return (command && !r->command) || (path && !r->http_path) ? err_nomem(e, "ready check") : 0;
}

int ready_decode(struct recipe_ready *out, const struct json *document, struct err *e)
{
    struct recipe_ready r = {0};
    struct json *j = NULL;
    int rc = json_get_object(document, "ready", &j, e);
    if (rc == 0)
        rc = decode_kind(&r, j, e);
    if (rc == 0)
        rc = json_get_u64(j, "interval_ms", &r.interval_ms, e);
    if (rc == 0)
        rc = json_get_u64(j, "timeout_ms", &r.timeout_ms, e);
    if (rc == 0)
        rc = json_get_u64(j, "try_timeout_ms", &r.try_timeout_ms, e);
    if (rc == 0)
        rc = decode_target(&r, j, e);
    if (rc < 0) {
        ready_fini(&r);
        return rc;
    }
    *out = r;
    return 0;
}

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
        return err_in(e, "disk");
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
static int connect_card(struct machine_room *room, struct tap *tap, const struct template *t,
                        const struct template_use *use, struct err *e)
{
    if (use->tap && !t->tap) {
        (void)err_set(e, ERR_INPUT, "its network was not a tap device");
        return err_hint(e, "leave --tap away");
    }
    if (use->tap) {
        room->tap = tap;
        return tap_open(tap, use->tap, e);
    }
    if (!t->tap || vm_driver_can(room->driver)->user_network)
        return 0;
    (void)err_set(e, ERR_UNSUPPORTED,
                  "its network was a tap device, none is given, and %s has no other", room->vmm);
    return err_hint(e, "--tap NAME says which one");
}

/* `tap` outlives the room. */
static int open_room(struct machine_room *room, struct tap *tap, const struct template *t,
                     struct store *s, const struct template_use *use, struct err *e)
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
    rc = connect_card(room, tap, t, use, e);
    if (rc < 0)
        machine_room_close(room);
    return rc;
}

int template_run(const struct template *t, struct store *s, const struct template_use *use,
                 const struct template_command *command, struct agent_result *result, struct err *e)
{
    struct machine_room room;
    struct tap tap;
    int rc = open_room(&room, &tap, t, s, use, e);
    if (rc == 0) {
        rc = run_in_copy(t, &room, use, command, result, e);
        machine_room_close(&room);
    }
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}

/* ---- Verifying ---- */

static int compare_digests(const void *a, const void *b)
{
    return digest_compare(a, b);
}

/* All chunks that the maps refer to, sorted, each once. */
static int collect_chunks(struct digest **out, size_t *count, struct store *s,
                          const struct digest *maps, size_t map_count, struct err *e)
{
    struct digest *all = NULL;
    size_t used = 0;
    size_t capacity = 0;
    int rc = 0;
    for (size_t n = 0; rc == 0 && n < map_count; n++) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        rc = store_get_map(s, &maps[n], &m, e);
        size_t extents = rc == 0 ? block_map_count(m) : 0;
        if (rc == 0)
            rc = mem_grow(&all, &capacity, used + extents, sizeof(*all), e);
        for (size_t i = 0; rc == 0 && i < extents; i++)
            all[used++] = block_map_extent(m, i)->chunk;
    }
    if (rc < 0) {
        free(all);
        return rc;
    }
    if (used > 0)
        qsort(all, used, sizeof(*all), compare_digests);
    size_t kept = 0;
    for (size_t i = 0; i < used; i++) {
        if (kept == 0 || !digest_equal(&all[kept - 1], &all[i]))
            all[kept++] = all[i];
    }
    *out = all;
    *count = kept;
    return 0;
}

static int read_chunks(struct store *s, const struct digest *chunks, size_t count,
                       const struct cancel *c, struct verify_report *out, struct err *e)
{
    AUTO_FREE void *data = mem_zalloc(CHUNK_SIZE_MAX);
    if (!data)
        return err_nomem(e, "chunk");
    for (size_t i = 0; i < count; i++) {
        size_t len = 0;
        int rc = cancel_check(c, e);
        if (rc == 0)
            rc = store_get_chunk(s, &chunks[i], data, &len, e);
        if (rc < 0)
            return rc;
        out->chunks++;
        out->size += len;
    }
    return 0;
}

int template_verify(const struct template *t, struct store *s, const struct template_use *use,
                    struct verify_report *out, struct err *e)
{
    *out = (struct verify_report){0};
    const struct digest maps[] = {t->disk, t->base_disk, t->memory, t->state};
    AUTO_FREE struct digest *chunks = NULL;
    size_t count = 0;
    int rc = collect_chunks(&chunks, &count, s, maps, ARRAY_LEN(maps), e);
    if (rc == 0)
        rc = read_chunks(s, chunks, count, use->cancel, out, e);
    struct machine_room room;
    struct tap tap;
    if (rc == 0)
        rc = open_room(&room, &tap, t, s, use, e);
    if (rc == 0) {
        rc = prove_template(t, &room, NULL, &out->proof, e);
        machine_room_close(&room);
    }
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}
