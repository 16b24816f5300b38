/* SPDX-License-Identifier: MIT */
/*
 * Boot images: a guest kernel booted once for each kind of machine, up to its agent's hello, and kept
 * in the store like a template's snapshot (docs/formats/store.md, "Boot images";
 * docs/decisions/0030-boot-images.md). Nothing in it has looked at the disk, so it is the same for
 * all tasks.
 *
 * Whoever needs one that is missing makes it; the others wait: in this process by `once`, in others
 * by a lock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/channel.h"
#include "bake/common/document.h"
#include "bake/common/once.h"
#include "bake/guest/boot_image.h"
#include "bake/guest/guest.h"
#include "bake/guest/internal.h"
#include "bake/guest/machine_room.h"
#include "bake/vm.h"
#include "bake/vm/host.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    BOOT_PATH_MAX = 16 + DIGEST_TEXT_MAX,
    BOOT_FORMAT = 1,
    NO_DISK_SIZE = 1 << 20, /* of the disk that nobody looks at */
};

static void boot_path(char path[BOOT_PATH_MAX], const struct digest *key)
{
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, BOOT_PATH_MAX, "boots/%s.json", digest_hex(key, hex));
}

/* ---- The key ---- */

static int boot_key(struct digest *out, const struct machine_room *r, const struct guest_options *o,
                    struct err *e)
{
    struct digest machine;
    struct vm_options options = {.driver = r->driver,
                                 .cpus = o->cpus,
                                 .memory_mb = o->memory_mb,
                                 .network = o->network,
                                 .tap = o->tap ? "tap" : NULL, /* whichever device it is */
                                 .scrub = o->scrub,
                                 .accel = r->accel,
                                 .cpu_template = r->cpu_template};
    int rc = vm_machine(&machine, &options, e);
    if (rc < 0)
        return rc;
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "format", json_new_integer(BOOT_FORMAT));
    machine_room_note(j, r, o);
    json_set(j, "machine", json_digest(&machine));
    if (r->accel == VM_ACCEL_KVM)
        machine_host_note(j, &r->host, r->cpu_template);
    return json_hash(out, j, e);
}

/* ---- The record ---- */

static int encode(const struct boot_image *b, char **text, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "key", json_digest(&b->key));
    json_set(j, "memory", json_digest(&b->saved.memory));
    json_set(j, "state", json_digest(&b->saved.state));
    json_set(j, "state_size", json_new_integer((int64_t)b->saved.state_size));
    int rc = catalog_seal(j, e);
    return rc < 0 ? rc : json_print(j, 0, text, e);
}

int boot_image_peek(struct boot_image *out, struct store *s, const struct digest *key,
                    struct err *e)
{
    char path[BOOT_PATH_MAX];
    AUTO_BUF struct buf bytes;
    AUTO_JSON struct json *j = NULL;
    AUTO_FREE char *canonical = NULL;
    struct boot_image b = {0};
    boot_path(path, key);
    buf_init(&bytes, LIMIT_RECORD);
    int rc = file_read(store_dir(s), path, &bytes, e);
    if (rc == 0)
        rc = json_parse(&j, bytes.data, bytes.len, path, e);
    if (rc == 0)
        rc = json_get_digest(j, "key", &b.key, e);
    if (rc == 0)
        rc = json_get_digest(j, "memory", &b.saved.memory, e);
    if (rc == 0)
        rc = json_get_digest(j, "state", &b.saved.state, e);
    if (rc == 0)
        rc = json_get_u64(j, "state_size", &b.saved.state_size, e);
    if (rc == 0)
        rc = encode(&b, &canonical, e);
    if (rc < 0)
        return err_in(e, "%s", path);
    size_t len = strlen(canonical);
    if (!digest_equal(&b.key, key) || bytes.len != len || memcmp(canonical, bytes.data, len) != 0)
        return err_set(e, ERR_CORRUPT, "%s is not what was written", path);
    *out = b;
    return 0;
}

/* Fails unless all chunks of the map are there, which then stay. */
static int check_whole(struct store *s, const struct digest *map, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    char text[DIGEST_TEXT_MAX];
    int rc = store_get_map(s, map, &m, e);
    for (size_t i = 0; rc == 0 && i < block_map_count(m); i++) {
        const struct digest *chunk = &block_map_extent(m, i)->chunk;
        if (!store_has_chunk(s, chunk))
            rc = err_set(e, ERR_NOTFOUND, "chunk %s is not there", digest_print(chunk, text));
    }
    return rc;
}

/* A boot image that is damaged or not whole counts as missing. */
static int find(struct boot_image *out, bool *found, struct store *s, const struct digest *key,
                struct err *e)
{
    char path[BOOT_PATH_MAX];
    struct err why = ERR_INIT;
    boot_path(path, key);
    *found = false;
    if (!store_use(s, path))
        return 0;
    int rc = boot_image_peek(out, s, key, &why);
    if (rc == 0)
        rc = check_whole(s, &out->saved.memory, &why);
    if (rc == 0)
        rc = check_whole(s, &out->saved.state, &why);
    if (rc == -ERR_NOMEM)
        return err_nomem(e, "boot image");
    if (rc < 0)
        log_event(LOG_WARN, "bake", "making a boot image again: %s", why.text);
    *found = rc == 0;
    return 0;
}

int boot_image_put(const struct boot_image *b, struct store *s, struct err *e)
{
    char path[BOOT_PATH_MAX];
    AUTO_FREE char *text = NULL;
    boot_path(path, &b->key);
    int rc = encode(b, &text, e);
    if (rc == 0)
        rc = file_make_dirs(store_dir(s), "boots", e);
    return rc < 0 ? rc : file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), e);
}

/* ---- Making one ---- */

static int save(struct boot_image *out, struct guest *g, struct err *e)
{
    AUTO_FREE char *state_path = mem_printf("%s/state", g->dir);
    AUTO_BLOCK_MAP struct block_map *memory = NULL;
    AUTO_BLOCK_MAP struct block_map *state = NULL;
    struct store *s = g->room->store;
    uint64_t memory_size;
    if (!state_path)
        return err_nomem(e, "boot image");
    agent_free(MOVE(g->agent));
    int rc = vm_snapshot(g->vm, state_path, e);
    if (rc < 0)
        return rc;
    vm_free(MOVE(g->vm));
    rc = guest_take_file(g, g->memory_path, &memory, &memory_size, e);
    if (rc == 0)
        rc = guest_take_file(g, state_path, &state, &out->saved.state_size, e);
    if (rc == 0)
        rc = store_put_map(s, memory, &out->saved.memory, e);
    if (rc == 0)
        rc = store_put_map(s, state, &out->saved.state, e);
    return rc;
}

static int make(struct boot_image *out, const struct machine_room *r, const struct guest_options *o,
                struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    AUTO_GUEST struct guest *g = NULL;
    log_event(LOG_INFO, "bake", "booting once for all guests of %u processors and %llu MB", o->cpus,
              (unsigned long long)o->memory_mb);
    int rc = block_map_new(&disk, NO_DISK_SIZE, e);
    if (rc < 0)
        return rc;
    struct guest_options options = {.disk = disk,
                                    .cpus = o->cpus,
                                    .memory_mb = o->memory_mb,
                                    .network = o->network,
                                    .tap = o->tap, /* a user-mode network has a state */
                                    .scrub = o->scrub};
    rc = guest_boot_cold(&g, r, &options, false, e);
    if (rc == 0)
        rc = save(out, g, e);
    guest_free(MOVE(g)); /* before the disk that it borrows */
    return rc == 0 ? boot_image_put(out, r->store, e) : rc;
}

static bool is_same(const struct boot_image *a, const struct boot_image *b)
{
    return digest_equal(&a->saved.memory, &b->saved.memory) &&
           digest_equal(&a->saved.state, &b->saved.state);
}

static int find_or_make(struct boot_image *out, const struct machine_room *r,
                        const struct guest_options *o, const struct boot_image *bad, struct err *e)
{
    AUTO_FD int lock = -1;
    bool found = false;
    int rc = file_make_dirs(store_dir(r->store), "boots", e);
    if (rc == 0)
        rc = file_lock_wait(&lock, store_dir(r->store), "boots/lock", r->cancel, e);
    if (rc == 0)
        rc = find(out, &found, r->store, &out->key, e);
    if (rc < 0 || (found && !(bad && is_same(out, bad))))
        return rc;
    if (bad) /* what is damaged in the store is not to be found there again */
        store_distrust(r->store);
    return make(out, r, o, e);
}

int boot_image_get(struct boot_image *out, const struct machine_room *r,
                   const struct guest_options *o, const struct boot_image *bad, struct err *e)
{
    bool mine = false;
    char hex[DIGEST_TEXT_MAX], bad_hex[DIGEST_TEXT_MAX];
    *out = (struct boot_image){0};
    int rc = boot_key(&out->key, r, o, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *name = mem_printf("%s %s", digest_hex(&out->key, hex),
                                      bad ? digest_hex(&bad->saved.memory, bad_hex) : "");
    if (!name)
        return err_nomem(e, "boot image");
    rc = once_begin(r->boots, name, &mine, NULL, e);
    if (rc == 0 && mine) {
        rc = find_or_make(out, r, o, bad, e);
        once_end(r->boots, name, rc, NULL, e);
    } else if (rc == 0) {
        rc = boot_image_peek(out, r->store, &out->key, e);
    }
    return rc < 0 ? err_in(e, "making a boot image") : 0;
}
