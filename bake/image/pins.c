/* SPDX-License-Identifier: MIT */
/*
 * Tags held to digests. Three lock files in memory: the one that was read, the one to compare with,
 * and what this run's images stand for. One mutex guards them: they are looked at once per task.
 */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bake/image.h"
#include "bake/image/pins.h"
#include "base/mem.h"
#include "manifests/manifest.h"

struct pins {
    const struct bake_pins *options;
    struct lock *held;    /* the lock file; empty without one */
    struct lock *since;   /* NULL: compare with `held` */
    struct lock *refresh; /* images to be asked for anew; digests mean nothing */
    struct lock *now;     /* images of this run */
    pthread_mutex_t lock;
};

static int load_or_empty(struct lock **out, const char *path, bool must_exist, struct err *e)
{
    int rc = path ? lock_load(out, path, e) : -ERR_NOTFOUND;
    if (path && rc == -ERR_NOTFOUND && must_exist) {
        err_set(e, ERR_INPUT, "there is no lock file %s", path);
        return err_hint(e, "a bake with --lock %s and without --frozen writes it", path);
    }
    if (rc != -ERR_NOTFOUND)
        return rc;
    err_clear(e);
    *out = mem_zalloc(sizeof(**out));
    return *out ? 0 : err_nomem(e, "lock file");
}

int pins_open(struct pins **out, const struct bake_pins *o, struct err *e)
{
    struct pins *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "lock file");
    p->options = o;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    int rc = load_or_empty(&p->held, o->lock_path, o->frozen, e);
    if (rc == 0 && o->since_path)
        rc = load_or_empty(&p->since, o->since_path, true, e);
    if (rc == 0)
        rc = load_or_empty(&p->refresh, NULL, false, e);
    if (rc == 0)
        rc = load_or_empty(&p->now, NULL, false, e);
    return rc;
}

void pins_free(struct pins *p)
{
    if (!p)
        return;
    lock_free(p->held);
    lock_free(p->since);
    lock_free(p->refresh);
    lock_free(p->now);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int pins_refresh(struct pins *p, const char *image, struct err *e)
{
    struct digest none = {0};
    return lock_set(p->refresh, image, &none, 0, e);
}

static const struct lock_entry *find_held(const struct pins *p, const char *image)
{
    return lock_find(p->refresh, image) ? NULL : lock_find(p->held, image);
}

int pins_find(struct pins *p, const char *image, bool *found, struct digest *out, struct err *e)
{
    *found = false;
    if (!p)
        return 0;
    const struct lock_entry *entry = find_held(p, image); /* not changed after the start */
    if (entry) {
        *found = true;
        *out = entry->digest;
    } else if (p->options->frozen) {
        err_set(e, ERR_INPUT, "the image is not in the lock file %s", p->options->lock_path);
        return err_hint(e, "add it with --update-lock");
    }
    return 0;
}

uint64_t pins_size(struct pins *p, const char *image)
{
    const struct lock_entry *entry = lock_find(p->held, image);
    return entry ? entry->size : 0;
}

int pins_note(struct pins *p, const char *image, const struct digest *digest, uint64_t size,
              struct err *e)
{
    const struct lock_entry *held = find_held(p, image);
    if (held && !digest_equal(&held->digest, digest)) {
        err_set(e, ERR_DIGEST, "it has moved since it was written to the lock file %s",
                p->options->lock_path);
        return err_hint(e, "--update-lock takes it as it is now");
    }
    pthread_mutex_lock(&p->lock);
    int rc = lock_set(p->now, image, digest, size, e);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* ---- At the end ---- */

static bool is_same(const struct lock *a, const struct lock *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        const struct lock_entry *x = &a->entries[i];
        const struct lock_entry *y = &b->entries[i];
        same = strcmp(x->image, y->image) == 0 && digest_equal(&x->digest, &y->digest) &&
               x->size == y->size;
    }
    return same;
}

int pins_save(struct pins *p, bool all, struct err *e)
{
    if (!p->options->lock_path || p->options->frozen)
        return 0;
    AUTO_LOCK struct lock *merged = NULL;
    pthread_mutex_lock(&p->lock);
    int rc = load_or_empty(&merged, NULL, false, e);
    for (size_t i = 0; rc == 0 && !all && i < p->held->count; i++) {
        const struct lock_entry *entry = &p->held->entries[i];
        rc = lock_set(merged, entry->image, &entry->digest, entry->size, e);
    }
    for (size_t i = 0; rc == 0 && i < p->now->count; i++) {
        const struct lock_entry *entry = &p->now->entries[i];
        rc = lock_set(merged, entry->image, &entry->digest, entry->size, e);
    }
    if (rc == 0 && !is_same(merged, p->held))
        rc = lock_save(merged, p->options->lock_path, e);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static int add_move(struct image_move **moves, size_t *capacity, size_t *count,
                    const struct lock_entry *now, const struct lock_entry *was, struct err *e)
{
    int rc = mem_grow(moves, capacity, *count + 1, sizeof(**moves), e);
    char *image = rc == 0 ? mem_strdup(now->image) : NULL;
    if (!image)
        return err_nomem(e, "moved images");
    struct image_move *move = &(*moves)[(*count)++];
    *move = (struct image_move){.image = image};
    digest_print(&now->digest, move->now);
    if (was)
        digest_print(&was->digest, move->was);
    return 0;
}

int pins_moves(struct pins *p, struct image_move **out, size_t *count, struct err *e)
{
    const struct lock *before = p->since ? p->since : p->held;
    size_t capacity = 0;
    int rc = 0;
    bool compares = p->since || p->options->update;
    for (size_t i = 0; rc == 0 && compares && i < p->now->count; i++) {
        const struct lock_entry *now = &p->now->entries[i];
        const struct lock_entry *was = lock_find(before, now->image);
        if (!was || !digest_equal(&was->digest, &now->digest))
            rc = add_move(out, &capacity, count, now, was, e);
    }
    return rc;
}
