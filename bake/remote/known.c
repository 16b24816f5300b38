/* SPDX-License-Identifier: MIT */
/* Chunks that a remote store is known to have: a table with open addressing. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bake/remote/internal.h"
#include "base/hash.h"
#include "base/mem.h"

struct remote_known {
    pthread_mutex_t lock;
    struct hash_key
        key; /* digests come from the far end, which may choose them so that they collide */
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
    int rc = k->places ? hash_key_draw(&k->key, e) : err_nomem(e, "remote store");
    if (rc < 0)
        remote_known_free(k);
    else
        *out = k;
    return rc;
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
static struct remote_place *slot_of(const struct remote_known *k, struct remote_place *places,
                                    size_t capacity, const struct digest *d)
{
    size_t at = (size_t)hash_bytes(&k->key, 0, d->bytes, DIGEST_SHA256_LEN) & (capacity - 1);
    while (places[at].chunk.algorithm && !digest_equal(&places[at].chunk, d))
        at = (at + 1) & (capacity - 1);
    return &places[at];
}

bool remote_known_find(struct remote_known *k, const struct digest *d, struct remote_place *out)
{
    pthread_mutex_lock(&k->lock);
    const struct remote_place *slot = slot_of(k, k->places, k->capacity, d);
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
            *slot_of(k, bigger, k->capacity * 2, &k->places[i].chunk) = k->places[i];
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
        struct remote_place *slot = slot_of(k, k->places, k->capacity, &place->chunk);
        if (!slot->chunk.algorithm) {
            *slot = *place;
            k->count++;
        }
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}
