/* SPDX-License-Identifier: MIT */
/*
 * What steps made of a disk, kept for the next bake (docs/decisions/0026-step-cache.md): steps/<key>
 * names the map of the disk as it was after a step. The key says all that the step could see, so
 * whoever has the same key may go on from that disk.
 *
 * An entry is a hint: it is not synced, one that is damaged or whose disk is not whole counts as
 * missing, and the step is run again.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/guest/guest.h"
#include "bake/guest/machine_room.h"
#include "bake/step/cache.h"
#include "bake/step/context.h"
#include "bake/vm.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "manifests/manifest.h"

enum { STEP_FORMAT = 1, STEP_PATH_MAX = 16 + DIGEST_TEXT_MAX };

static void step_path(char path[STEP_PATH_MAX], const struct digest *key)
{
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, STEP_PATH_MAX, "steps/%s.json", digest_hex(key, hex));
}

/* ---- Keys ---- */

int step_key_begin(struct digest *key, const struct machine_room *r, const struct guest_options *o,
                   const struct digest *base_disk, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "format", json_new_integer(STEP_FORMAT));
    json_set(j, "base_disk", json_digest(base_disk));
    machine_room_note(j, r, o);
    json_set(j, "tap", json_new_bool(o->tap));
    /* Steps see the processor; not its clock rate, which each start of the host measures anew. */
    if (r->accel == VM_ACCEL_KVM) {
        json_set(j, "cpu", json_new_string(r->host.cpu));
        if (r->cpu_template)
            json_set(j, "cpu_template", json_new_string(r->cpu_template));
    }
    return json_hash(key, j, e);
}

int step_key_next(struct digest *key, const struct recipe *r, const struct recipe_step *step,
                  const struct guest_context *c, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    struct json *env = json_new_array();
    for (size_t i = 0; i < c->env_count; i++)
        json_append(env, json_new_string(c->env[i]));
    json_set(j, "after", json_digest(key));
    json_set(j, "step", recipe_step_canonical(step));
    json_set(j, "pipefail", json_new_bool(r->pipefail));
    json_set(j, "env", env);
    json_set(j, "workdir", json_new_string(c->workdir));
    json_set(j, "user", json_new_string(c->user));
    return json_hash(key, j, e);
}

/* ---- Entries ---- */

static struct json *make_entry(const struct digest *disk, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "disk", json_digest(disk));
    if (catalog_seal(j, e) == 0)
        return j;
    json_free(j);
    return NULL;
}

int step_peek(struct digest *disk, struct store *s, const struct digest *key, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    AUTO_BUF struct buf text;
    char path[STEP_PATH_MAX];
    step_path(path, key);
    buf_init(&text, LIMIT_RECORD);
    int rc = file_read(store_dir(s), path, &text, e);
    if (rc == 0)
        rc = json_parse(&j, text.data, text.len, path, e);
    if (rc == 0)
        rc = json_get_digest(j, "disk", disk, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *whole = NULL;
    AUTO_JSON struct json *again = make_entry(disk, e);
    rc = again ? json_print(again, 0, &whole, e) : err_nomem(e, path);
    if (rc == 0 && (text.len != strlen(whole) || memcmp(text.data, whole, text.len) != 0))
        rc = err_set(e, ERR_CORRUPT, "%s is not what was written", path);
    return rc;
}

/* What the steps changed is here, all of it; the rest is the base disk's affair. */
static int check_changes(struct store *s, const struct block_map *base,
                         const struct block_map *disk, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *changed = NULL;
    AUTO_BLOCK_MAP struct block_map *gone = NULL;
    if (block_map_virtual_size(base) != block_map_virtual_size(disk))
        return err_set(e, ERR_CORRUPT, "the disk has another size");
    int rc = block_map_delta(&changed, &gone, base, disk, e);
    for (size_t i = 0; rc == 0 && i < block_map_count(changed); i++)
        rc = store_check_chunk(s, &block_map_extent(changed, i)->chunk, e);
    return rc;
}

int step_find(struct block_map **out, struct store *s, const struct digest *key,
              const struct block_map *base, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    struct digest map;
    char path[STEP_PATH_MAX];
    step_path(path, key);
    *out = NULL;
    if (!store_use(s, path))
        return 0;
    int rc = step_peek(&map, s, key, e);
    if (rc == 0)
        rc = store_get_map(s, &map, &disk, e);
    if (rc == 0)
        rc = check_changes(s, base, disk, e);
    if (rc == -ERR_NOMEM || rc == -ERR_CANCELLED)
        return rc;
    if (rc < 0) {
        log_event(LOG_WARN, "bake", "%s: the step is run again: %s", path, e->text);
        err_clear(e);
        return 0;
    }
    *out = MOVE(disk);
    return 0;
}

int step_put(struct store *s, const struct digest *key, const struct block_map *disk, struct err *e)
{
    struct digest map;
    char path[STEP_PATH_MAX];
    AUTO_FREE char *text = NULL;
    step_path(path, key);
    int rc = file_make_dirs(store_dir(s), "steps", e);
    if (rc == 0)
        rc = store_put_map_unsynced(s, disk, &map, e);
    AUTO_JSON struct json *j = rc == 0 ? make_entry(&map, e) : NULL;
    if (rc == 0)
        rc = j ? json_print(j, 0, &text, e) : -(int)e->class;
    if (rc < 0)
        return err_in(e, "%s", path);
    return file_put_unsynced(store_tmp_dir(s), store_dir(s), path, text, strlen(text), e);
}

void step_forget(struct store *s, const struct digest *key)
{
    char path[STEP_PATH_MAX];
    step_path(path, key);
    unlinkat(store_dir(s), path, 0);
}
