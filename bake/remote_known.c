/* SPDX-License-Identifier: MIT */
/* Chunks that a remote store is known to have: a table with open addressing. */
#include <stdlib.h>
#include <string.h>

#include "bake/remote_internal.h"
#include "base/mem.h"

struct remote_known {
    pthread_mutex_t lock;
    struct remote_place *places; /* algorithm 0: free */
    size_t capacity;             /* a power of two */
    size_t count;
};

enum { FIRST_CAPACITY = 1024 };

int remote_known_new(struct remote_known **out, struct err *e)
{
    struct remote_known *k = mem_zalloc(sizeof(*k));
    if (!k)
        return err_nomem(e, "remote store");
    pthread_mutex_init(&k->lock, NULL);
    k->capacity = FIRST_CAPACITY;
    k->places = mem_array(k->capacity, sizeof(*k->places));
    if (!k->places) {
        remote_known_free(k);
        return err_nomem(e, "remote store");
    }
    *out = k;
    return 0;
}

void remote_known_free(struct remote_known *k)
{
    if (!k)
        return;
    pthread_mutex_destroy(&k->lock);
    free(k->places);
    free(k);
}

/* Where the digest is, or would go. */
static struct remote_place *slot_of(struct remote_place *places, size_t capacity,
                                    const struct digest *d)
{
    uint64_t hash;
    memcpy(&hash, d->bytes, sizeof(hash));
    size_t at = (size_t)hash & (capacity - 1);
    while (places[at].chunk.algorithm && !digest_equal(&places[at].chunk, d))
        at = (at + 1) & (capacity - 1);
    return &places[at];
}

bool remote_known_find(struct remote_known *k, const struct digest *d, struct remote_place *out)
{
    pthread_mutex_lock(&k->lock);
    const struct remote_place *slot = slot_of(k->places, k->capacity, d);
    bool found = slot->chunk.algorithm != 0;
    if (found && out)
        *out = *slot;
    pthread_mutex_unlock(&k->lock);
    return found;
}

static int grow(struct remote_known *k, struct err *e)
{
    if ((k->count + 1) * 4 < k->capacity * 3)
        return 0;
    struct remote_place *bigger = mem_array(k->capacity * 2, sizeof(*bigger));
    if (!bigger)
        return err_nomem(e, "remote store");
    for (size_t i = 0; i < k->capacity; i++) {
        if (k->places[i].chunk.algorithm)
            *slot_of(bigger, k->capacity * 2, &k->places[i].chunk) = k->places[i];
    }
    free(k->places);
    k->places = bigger;
    k->capacity *= 2;
    return 0;
}

int remote_known_add(struct remote_known *k, const struct remote_place *place, struct err *e)
{
    pthread_mutex_lock(&k->lock);
    int rc = grow(k, e);
    if (rc == 0) {
        struct remote_place *slot = slot_of(k->places, k->capacity, &place->chunk);
        if (!slot->chunk.algorithm) {
            *slot = *place;
            k->count++;
        }
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}
