/* SPDX-License-Identifier: MIT */
/*
 * Layers of an image and a remote store: what it has is taken over, what nobody has is claimed, what
 * someone else is at is left until the rest is done. A baker never waits while it holds a claim that
 * it has not worked off, so two of them cannot wait for each other.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/image/remote_layers.h"
#include "bake/remote/remote.h"
#include "base/log.h"
#include "base/mem.h"

/* File data must lie in the region: what is beyond it belongs to another layer. */
static int check_extents(const struct oci_layer *l, const struct block_map *region, struct err *e)
{
    uint64_t size = block_map_virtual_size(region);
    for (size_t i = 0; i < oci_layer_count(l); i++) {
        const struct oci_entry *entry = oci_layer_entry(l, i);
        for (size_t n = 0; n < entry->extent_count; n++) {
            const struct oci_extent *x = &entry->extents[n];
            if (x->region_off > size || x->len > size - x->region_off)
                return err_set(e, ERR_CORRUPT, "data of %s lies outside the layer's region",
                               entry->path);
        }
    }
    return 0;
}

static int take_layer(struct remote *r, const char *path, struct err *e)
{
    AUTO_BUF struct buf file;
    AUTO_OCI_LAYER struct oci_layer *layer = NULL;
    AUTO_BLOCK_MAP struct block_map *region = NULL;
    struct digest map;
    buf_init(&file, LIMIT_LAYER_INDEX + 128);
    int rc = remote_fetch_file(r, path, NULL, &file, e);
    if (rc == 0)
        rc = layer_decode_file(&file, &map, &layer, e);
    if (rc == 0)
        rc = remote_take_map(r, &map, &region, e);
    if (rc == 0)
        rc = check_extents(layer, region, e);
    if (rc < 0)
        return rc;
    return remote_keep_file(r, path, &file, e);
}

int remote_take_layer(struct remote *r, const struct digest *diff_id, struct err *e)
{
    char hex[DIGEST_TEXT_MAX];
    char path[REMOTE_PATH_MAX];
    snprintf(path, sizeof(path), "layers/%s", digest_hex(diff_id, hex));
    int rc = r->ops->find(r->self, REMOTE_LAYER, hex, e);
    if (rc == 0)
        rc = take_layer(r, path, e);
    if (rc < 0)
        return err_in(e, "layer %s", hex);
    atomic_fetch_add(&r->layers_taken, 1);
    log_event(LOG_INFO, "bake", "layer %s: taken over from %s", hex, r->name);
    return 0;
}

static bool remote_has(struct remote *r, const char *hex)
{
    bool there = false;
    struct err ignored = ERR_INIT;
    /* Finding it tells where its chunks are, which this store may lack. */
    return r->ops->has(r->self, REMOTE_LAYER, hex, &there, &ignored) == 0 && there &&
           r->ops->find(r->self, REMOTE_LAYER, hex, &ignored) == 0;
}

static int begin_layer(struct remote *r, const struct digest *diff_id, enum layer_share *share,
                       struct err *e)
{
    char hex[DIGEST_TEXT_MAX];
    bool taken = false;
    bool mine = false;
    digest_hex(diff_id, hex);
    *share = SHARE_NONE;
    if (layer_has(r->store, diff_id)) {
        *share = r->writable && !remote_has(r, hex) ? SHARE_PUBLISH : SHARE_NONE;
        return 0;
    }
    if (remote_claims_held(r->claims, REMOTE_LAYER, hex))
        return 0; /* another task of this run is at it, and publishes it */
    int rc = remote_taken(remote_take_layer(r, diff_id, e), &taken, e);
    if (rc < 0 || taken || !r->writable)
        return rc;
    rc = remote_claims_try(r->claims, REMOTE_LAYER, hex, &mine, e);
    if (rc < 0)
        return rc;
    *share = mine ? SHARE_PUBLISH : SHARE_ELSEWHERE;
    /* It may have been published, and its claim given back, since we looked. */
    if (mine && r->claims)
        rc = remote_taken(remote_take_layer(r, diff_id, e), &taken, e);
    if (!taken)
        return rc;
    *share = SHARE_NONE;
    remote_claims_drop(r->claims, REMOTE_LAYER, hex);
    return rc;
}

int remote_image_begin(struct remote *r, struct image *i, bool *waiting, struct err *e)
{
    *waiting = false;
    if (!r)
        return 0;
    size_t count = i->config.diff_id_count;
    if (!i->shares)
        i->shares = mem_array(count, sizeof(*i->shares));
    if (!i->shares)
        return err_nomem(e, "layers");
    for (size_t n = 0; n < count; n++) {
        int rc = begin_layer(r, &i->config.diff_ids[n], &i->shares[n], e);
        if (rc == -ERR_CANCELLED || rc == -ERR_NOMEM || rc == -ERR_SYS)
            return rc;
        if (rc < 0) { /* a remote store that is down slows a bake, and does not stop it */
            log_event(LOG_WARN, "bake", "done without the remote store: %s", e->text);
            err_clear(e);
        }
        *waiting |= i->shares[n] == SHARE_ELSEWHERE;
    }
    return 0;
}

static int publish_layer(struct remote *r, const struct digest *diff_id, const char *hex,
                         struct err *e)
{
    struct remote_unit u = {.kind = REMOTE_LAYER};
    struct digest region;
    int rc = layer_region(r->store, diff_id, &region, e);
    snprintf(u.name, sizeof(u.name), "%s", hex);
    if (rc == 0)
        rc = remote_unit_add_map(&u, r->store, &region, e);
    if (rc == 0)
        rc = remote_unit_add_file(&u, e, "layers/%s", hex);
    remote_unit_sort(&u);
    if (rc == 0)
        rc = remote_publish(r, &u, e);
    remote_unit_fini(&u);
    return rc;
}

int remote_image_end(struct remote *r, const struct image *i, int result, struct err *e)
{
    for (size_t n = 0; r && i->shares && n < i->config.diff_id_count; n++) {
        const struct digest *diff_id = &i->config.diff_ids[n];
        char hex[DIGEST_TEXT_MAX];
        struct err why = ERR_INIT;
        digest_hex(diff_id, hex);
        if (i->shares[n] != SHARE_PUBLISH)
            continue;
        bool publishes = layer_has(r->store, diff_id) && !cancel_is_set(r->cancel);
        if (publishes && publish_layer(r, diff_id, hex, &why) < 0)
            log_event(LOG_WARN, "bake", "%s", why.text);
        remote_claims_drop(r->claims, REMOTE_LAYER, hex);
    }
    return result < 0 ? -(int)e->class : 0;
}

bool remote_has_layer(struct remote *r, const struct digest *diff_id)
{
    char hex[DIGEST_TEXT_MAX];
    return r && remote_has(r, digest_hex(diff_id, hex));
}
