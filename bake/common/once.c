/* SPDX-License-Identifier: MIT */
/*
 * Work that several tasks want and one does: a hash table of keys with their state under one mutex.
 */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bake/common/once.h"
#include "base/clock.h"
#include "base/mem.h"

struct once_entry {
    char *key;
    uint64_t hash;
    bool finished;
    int rc;
    struct digest value;
    struct err *err; /* of a failure; NULL when memory was short */
    int64_t failed_ms;
};

struct once {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    struct once_entry **table; /* open addressing, at most half full; NULL: free */
    size_t size;               /* a power of two */
    size_t count;
    int64_t failure_ms;
};

enum { FIRST_SIZE = 256 };

int once_new(struct once **out, struct err *e)
{
    struct once *o = mem_zalloc(sizeof(*o));
    if (!o)
        return err_nomem(e, "work list");
    o->table = mem_array(FIRST_SIZE, sizeof(struct once_entry *));
    if (!o->table) {
        free(o);
        return err_nomem(e, "work list");
    }
    o->size = FIRST_SIZE;
    o->failure_ms = ONCE_FAILURE_MS;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->finished, NULL);
    *out = o;
    return 0;
}

void once_set_failure_ms(struct once *o, int64_t ms)
{
    o->failure_ms = ms;
}

void once_free(struct once *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < o->size; i++) {
        if (!o->table[i])
            continue;
        free(o->table[i]->key);
        free(o->table[i]->err);
        free(o->table[i]);
    }
    free(o->table);
    pthread_cond_destroy(&o->finished);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* FNV-1a, 64 bits. Keys that were made to collide would only make a run slower. */
static uint64_t hash_key(const char *key)
{
    uint64_t hash = 0xcbf29ce484222325U;
    for (; *key; key++)
        hash = (hash ^ (uint8_t)*key) * 0x100000001b3U;
    return hash;
}

/* Where the key is, or would be put. */
static struct once_entry **find_place(struct once_entry **table, size_t size, const char *key,
                                      uint64_t hash)
{
    size_t at = (size_t)hash & (size - 1);
    while (table[at] && (table[at]->hash != hash || strcmp(table[at]->key, key) != 0))
        at = (at + 1) & (size - 1);
    return &table[at];
}

static int make_room(struct once *o, struct err *e)
{
    if (o->count < o->size / 2)
        return 0;
    size_t size = o->size * 2;
    struct once_entry **table = mem_array(size, sizeof(struct once_entry *));
    if (!table)
        return err_nomem(e, "work list");
    for (size_t i = 0; i < o->size; i++) {
        if (o->table[i])
            *find_place(table, size, o->table[i]->key, o->table[i]->hash) = o->table[i];
    }
    free(o->table);
    o->table = table;
    o->size = size;
    return 0;
}

static int add_entry(struct once *o, const char *key, uint64_t hash, struct err *e)
{
    int rc = make_room(o, e);
    if (rc < 0)
        return rc;
    struct once_entry *entry = mem_zalloc(sizeof(*entry));
    char *copy = mem_strdup(key);
    if (!entry || !copy) {
        free(entry);
        free(copy);
        return err_nomem(e, "work list");
    }
    entry->key = copy;
    entry->hash = hash;
    *find_place(o->table, o->size, key, hash) = entry;
    o->count++;
    return 0;
}

/* A failure that may have passed by now. */
static bool is_worth_a_try(const struct once *o, const struct once_entry *entry)
{
    return entry->finished && entry->rc < 0 && (!entry->err || err_retryable(entry->err)) &&
           clock_ms() - entry->failed_ms >= o->failure_ms;
}

static int take_result(const struct once_entry *entry, const char *key, struct digest *value,
                       struct err *e)
{
    if (entry->rc == 0 && value)
        *value = entry->value;
    if (entry->rc < 0 && entry->err)
        *e = *entry->err;
    else if (entry->rc < 0)
        return err_nomem(e, key);
    return entry->rc;
}

int once_begin(struct once *o, const char *key, bool *mine, struct digest *value, struct err *e)
{
    uint64_t hash = hash_key(key);
    int rc = 0;
    pthread_mutex_lock(&o->lock);
    struct once_entry *entry = *find_place(o->table, o->size, key, hash);
    *mine = !entry || is_worth_a_try(o, entry);
    if (!entry) {
        rc = add_entry(o, key, hash, e);
    } else if (*mine) {
        entry->finished = false;
        free(MOVE(entry->err));
    } else {
        while (!entry->finished)
            pthread_cond_wait(&o->finished, &o->lock);
        rc = take_result(entry, key, value, e);
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

void once_end(struct once *o, const char *key, int rc, const struct digest *value,
              const struct err *e)
{
    pthread_mutex_lock(&o->lock);
    struct once_entry *entry = *find_place(o->table, o->size, key, hash_key(key));
    entry->finished = true;
    entry->rc = rc;
    if (rc < 0) {
        entry->err = mem_dup(e, sizeof(*e));
        entry->failed_ms = clock_ms();
    } else if (value) {
        entry->value = *value;
    }
    pthread_cond_broadcast(&o->finished);
    pthread_mutex_unlock(&o->lock);
}
