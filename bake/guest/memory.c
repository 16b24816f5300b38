/* SPDX-License-Identifier: MIT */
/*
 * Guest memory is not copied out for a restore: it is read from the store's chunks when the guest
 * touches it (docs/decisions/0024-lazy-memory.md). All restores of one template in this process share
 * one image, and with it the kernel's pages of its file.
 *
 * The last few images that nobody uses are kept: a template is often restored again at once (two
 * copies to prove it, trials one after another), and then finds its pages in memory.
 */

#include <pthread.h>
#include <stdlib.h>

#include "bake/guest/memory.h"
#include "base/log.h"
#include "base/mem.h"

enum { IDLE_MAX = 2 };

struct memory_image {
    struct memory_room *room;
    struct digest digest; /* of the map */
    struct block_map *map;
    struct bdev *device;
    struct bdev_file *file; /* NULL: nobody asked for it yet, or there can be none */
    size_t users;
    struct memory_image *next; /* used less recently */
};

struct memory_room {
    struct store *store;
    struct chunk_cache *cache;
    pthread_mutex_t lock; /* the rest, and `file`, `users`, `next` of the images */
    struct memory_image *first;
    bool tried; /* to start `files` */
    struct bdev_files *files;
};

int memory_room_new(struct memory_room **out, struct store *s, struct chunk_cache *c, struct err *e)
{
    struct memory_room *r = mem_zalloc(sizeof(*r));
    if (!r)
        return err_nomem(e, "guest memory");
    r->store = s;
    r->cache = c;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return 0;
}

static void image_free(struct memory_image *m)
{
    if (!m)
        return;
    bdev_file_remove(m->file);
    bdev_close(m->device);
    block_map_free(m->map);
    free(m);
}
DEFINE_AUTO(memory_image, image_free)
#define AUTO_MEMORY_IMAGE CLEANUP(image_free_auto_)

void memory_room_free(struct memory_room *r)
{
    if (!r)
        return;
    for (struct memory_image *next, *m = r->first; m; m = next) {
        next = m->next;
        image_free(m);
    }
    bdev_files_stop(r->files);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* Takes the image out of the list; NULL: it is not there. Called with the lock held. */
static struct memory_image *take(struct memory_room *r, const struct digest *digest)
{
    struct memory_image **at = &r->first;
    while (*at && !digest_equal(&(*at)->digest, digest))
        at = &(*at)->next;
    struct memory_image *m = *at;
    if (m)
        *at = m->next;
    return m;
}

/* One more user; the image becomes the one that was used last. Called with the lock held. */
static struct memory_image *use(struct memory_room *r, struct memory_image *m)
{
    if (m) {
        m->users++;
        m->next = r->first;
        r->first = m;
    }
    return m;
}

static int image_load(struct memory_image **out, struct memory_room *r, const struct digest *map,
                      struct err *e)
{
    AUTO_MEMORY_IMAGE struct memory_image *m = mem_zalloc(sizeof(*m));
    if (!m)
        return err_nomem(e, "guest memory");
    m->room = r;
    m->digest = *map;
    int rc = store_get_map(r->store, map, &m->map, e);
    if (rc == 0)
        rc = bdev_open_map(&m->device, m->map, r->cache, e);
    if (rc == 0)
        *out = MOVE(m);
    return rc;
}

int memory_open(struct memory_image **out, struct memory_room *r, const struct digest *map,
                uint64_t size, struct err *e)
{
    pthread_mutex_lock(&r->lock);
    struct memory_image *m = use(r, take(r, map));
    pthread_mutex_unlock(&r->lock);
    if (!m) {
        AUTO_MEMORY_IMAGE struct memory_image *loaded = NULL;
        int rc = image_load(&loaded, r, map, e);
        if (rc < 0)
            return rc;
        pthread_mutex_lock(&r->lock);
        struct memory_image *other = take(r, map); /* somebody may have been faster */
        m = use(r, other ? other : MOVE(loaded));
        pthread_mutex_unlock(&r->lock);
    }
    if (m->device->size != size) {
        err_set(e, ERR_CORRUPT, "the memory's map is of %llu bytes, not %llu",
                (unsigned long long)m->device->size, (unsigned long long)size);
        memory_close(m);
        return -ERR_CORRUPT;
    }
    *out = m;
    return 0;
}

/* Cuts off the idle images beyond the first IDLE_MAX. Called with the lock held. */
static struct memory_image *drop_idle(struct memory_room *r)
{
    struct memory_image *dropped = NULL;
    size_t idle = 0;
    for (struct memory_image **at = &r->first; *at;) {
        struct memory_image *m = *at;
        if (m->users > 0 || ++idle <= IDLE_MAX) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->next = dropped;
        dropped = m;
    }
    return dropped;
}

void memory_close(struct memory_image *m)
{
    if (!m)
        return;
    struct memory_room *r = m->room;
    pthread_mutex_lock(&r->lock);
    m->users--;
    struct memory_image *dropped = drop_idle(r);
    pthread_mutex_unlock(&r->lock);
    for (struct memory_image *next; dropped; dropped = next) {
        next = dropped->next;
        image_free(dropped);
    }
}

const struct block_map *memory_map(const struct memory_image *m)
{
    return m->map;
}

struct bdev *memory_device(const struct memory_image *m)
{
    return m->device;
}

/* Called with the lock held. */
static bool start_files(struct memory_room *r)
{
    struct err e = ERR_INIT;
    if (!r->tried && bdev_files_start(&r->files, &e) < 0)
        log_event(LOG_INFO, "bake", "each restore copies the guest's memory to a file: %s%s%s",
                  e.text, e.hint[0] ? "; " : "", e.hint);
    r->tried = true;
    return r->files != NULL;
}

bool memory_has_files(struct memory_room *r)
{
    pthread_mutex_lock(&r->lock);
    bool has = start_files(r);
    pthread_mutex_unlock(&r->lock);
    return has;
}

int memory_file(struct memory_image *m, const char **path, struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&m->room->lock);
    if (!m->file && start_files(m->room))
        rc = bdev_file_add(&m->file, m->room->files, m->device, e);
    *path = m->file ? bdev_file_path(m->file) : NULL;
    pthread_mutex_unlock(&m->room->lock);
    return rc;
}
