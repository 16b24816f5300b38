/* SPDX-License-Identifier: MIT */
/* What takes the room in a store, by kind; what each template takes is in measure.c. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "bake/guest/boot_image.h"
#include "bake/image/layer_store.h"
#include "bake/step/cache.h"
#include "bake/template.h"
#include "bake/template/kept.h"
#include "bake/template/record.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "base/file.h"
#include "base/log.h"

static const char *const names[DU_KIND_COUNT] = {
    [DU_STEPS] = "steps",       [DU_LAYERS] = "layers",       [DU_DISKS] = "disks",
    [DU_MEMORY] = "memory",     [DU_LOOSE] = "unreferenced",  [DU_INDEXES] = "indexes",
    [DU_MAPS] = "maps",         [DU_DOCUMENTS] = "documents", [DU_BLOBS] = "blobs",
    [DU_JOURNALS] = "journals", [DU_DEVICES] = "devices",     [DU_BOOTS] = "boot images",
};

const char *du_kind_name(enum du_kind kind)
{
    return names[kind];
}

/* Flags of maps and chunks: the first reason to be there. */
static void claim(const struct census *c, enum upkeep_kind kind, const struct digest *d,
                  enum du_kind reason)
{
    struct census_file *f = census_find(c, kind, d);
    if (f && (f->flags == 0 || f->flags > (uint32_t)reason + 1))
        f->flags = (uint32_t)reason + 1;
}

static bool give_up(const struct err *e)
{
    return e->class == ERR_NOMEM;
}

static int claim_boots(const struct census *c, struct store *s, struct err *e)
{
    const struct census_list *l = &c->lists[UPKEEP_BOOT];
    for (size_t i = 0; i < l->count; i++) {
        struct boot_image b;
        err_clear(e);
        if (boot_image_peek(&b, s, &l->files[i].digest, e) == 0) {
            claim(c, UPKEEP_MAP, &b.saved.memory, DU_BOOTS);
            claim(c, UPKEEP_MAP, &b.saved.state, DU_BOOTS);
        } else if (give_up(e)) {
            return -ERR_NOMEM;
        }
    }
    err_clear(e);
    return 0;
}

static void claim_template(const struct census *c, const struct template *t)
{
    claim(c, UPKEEP_MAP, &t->base_disk, DU_DISKS);
    claim(c, UPKEEP_MAP, &t->disk, DU_DISKS);
    claim(c, UPKEEP_MAP, &t->memory, DU_MEMORY);
    claim(c, UPKEEP_MAP, &t->state, DU_MEMORY);
}

static int claim_kept(const struct census *c, struct store *s, struct err *e)
{
    const struct census_list *l = &c->lists[UPKEEP_KEPT];
    for (size_t i = 0; i < l->count; i++) {
        AUTO_TEMPLATE struct template *t = NULL;
        err_clear(e);
        if (kept_peek_file(&t, s, l->files[i].name, e) == 0)
            claim_template(c, t);
        else if (give_up(e))
            return -ERR_NOMEM;
    }
    err_clear(e);
    return 0;
}

/* Damage is fsck's business: what cannot be read claims nothing. */
static int claim_maps(const struct census *c, struct store *s, struct err *e)
{
    const struct census_list *layers = &c->lists[UPKEEP_LAYER];
    const struct census_list *records = &c->lists[UPKEEP_RECORD];
    const struct census_list *steps = &c->lists[UPKEEP_STEP];
    for (size_t i = 0; i < layers->count; i++) {
        char path[CENSUS_PATH_MAX];
        struct digest region;
        err_clear(e);
        if (layer_inspect(s, census_path(UPKEEP_LAYER, &layers->files[i], path), &region, e) == 0)
            claim(c, UPKEEP_MAP, &region, DU_LAYERS);
        else if (give_up(e))
            return -ERR_NOMEM;
    }
    for (size_t i = 0; i < records->count; i++) {
        AUTO_TEMPLATE struct template *t = NULL;
        err_clear(e);
        if (template_peek(&t, s, &records->files[i].digest, e) == 0) {
            claim_template(c, t);
        } else if (give_up(e)) {
            return -ERR_NOMEM;
        }
    }
    for (size_t i = 0; i < steps->count; i++) {
        struct digest disk;
        err_clear(e);
        if (step_peek(&disk, s, &steps->files[i].digest, e) == 0)
            claim(c, UPKEEP_MAP, &disk, DU_STEPS);
        else if (give_up(e))
            return -ERR_NOMEM;
    }
    return claim_kept(c, s, e);
}

static int claim_chunks(const struct census *c, struct store *s, struct err *e)
{
    const struct census_list *maps = &c->lists[UPKEEP_MAP];
    for (size_t i = 0; i < maps->count; i++) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        uint32_t flags = maps->files[i].flags;
        enum du_kind reason = flags ? (enum du_kind)(flags - 1) : DU_DISKS; /* an image's disk */
        err_clear(e);
        if (store_peek_map(s, &maps->files[i].digest, &m, e) < 0) {
            if (give_up(e))
                return -ERR_NOMEM;
            continue;
        }
        for (size_t n = 0; n < block_map_count(m); n++)
            claim(c, UPKEEP_CHUNK, &block_map_extent(m, n)->chunk, reason);
    }
    err_clear(e);
    return 0;
}

static enum du_kind kind_of(enum upkeep_kind kind, const struct census_file *f)
{
    static const enum du_kind kinds[UPKEEP_STORE_KINDS] = {
        [UPKEEP_MAP] = DU_MAPS,         [UPKEEP_LAYER] = DU_INDEXES,
        [UPKEEP_RECORD] = DU_DOCUMENTS, [UPKEEP_KEY] = DU_DOCUMENTS,
        [UPKEEP_ALIAS] = DU_DOCUMENTS,  [UPKEEP_BLOB] = DU_BLOBS,
        [UPKEEP_PUSHED] = DU_DOCUMENTS, [UPKEEP_PARTIAL] = DU_BLOBS,
        [UPKEEP_STEP] = DU_DOCUMENTS,   [UPKEEP_JOURNAL] = DU_JOURNALS,
        [UPKEEP_TAG] = DU_DOCUMENTS,    [UPKEEP_CONSOLE] = DU_JOURNALS,
        [UPKEEP_KEPT] = DU_DOCUMENTS,   [UPKEEP_BOOT] = DU_DOCUMENTS,
    };
    if (kind != UPKEEP_CHUNK)
        return kinds[kind];
    return f->flags ? (enum du_kind)(f->flags - 1) : DU_LOOSE;
}

/* Uppers are sparse: their room is what the file system gave them. */
static int count_devices(struct du_report *out, struct store *s, struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, store_dir(s), "devices", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == -ERR_NOTFOUND) {
        err_clear(e);
        return 0;
    }
    if (rc < 0)
        return rc;
    DIR *list = fdopendir(fd);
    if (!list)
        return err_sys(e, "listing devices");
    fd = -1;
    const struct dirent *entry;
    while ((entry = readdir(list))) {
        struct stat st;
        if (fstatat(dirfd(list), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(st.st_mode))
            continue;
        uint64_t size = (uint64_t)st.st_blocks * 512;
        out->kinds[DU_DEVICES].count++;
        out->kinds[DU_DEVICES].size += size;
        out->total += size;
    }
    closedir(list);
    return 0;
}

int store_du(struct du_report *out, struct store *s, struct err *e)
{
    *out = (struct du_report){0};
    struct census c = {0};
    int rc = census_take(&c, s, (1U << UPKEEP_STORE_KINDS) - 1, e);
    if (rc == 0)
        rc = claim_maps(&c, s, e);
    if (rc == 0)
        rc = claim_boots(&c, s, e);
    if (rc == 0)
        rc = claim_chunks(&c, s, e);
    for (enum upkeep_kind kind = 0; rc == 0 && kind < UPKEEP_STORE_KINDS; kind++) {
        const struct census_list *l = &c.lists[kind];
        for (size_t i = 0; i < l->count; i++) {
            struct upkeep_count *at = &out->kinds[kind_of(kind, &l->files[i])];
            at->count++;
            at->size += l->files[i].size;
            out->total += l->files[i].size;
        }
    }
    census_fini(&c);
    return rc < 0 ? rc : count_devices(out, s, e);
}
