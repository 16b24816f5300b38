/* SPDX-License-Identifier: MIT */
/*
 * Work that several tasks want and one does: a list of keys with their state under one mutex. A run
 * has a few entries per task, looked up a few times each, so a list with a hash per entry is
 * enough.
 */
#include "bake/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct once_entry {
    char *key;
    uint64_t hash;
    bool finished;
    int rc;
    struct digest value;
    struct err err;
};

struct once {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    struct once_entry **entries;
    size_t count;
    size_t capacity;
};

int once_new(struct once **out, struct err *e)
{
    struct once *o = mem_zalloc(sizeof(*o));
    if (!o)
        return err_nomem(e, "work list");
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->finished, NULL);
    *out = o;
    return 0;
}

void once_free(struct once *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < o->count; i++) {
        free(o->entries[i]->key);
        free(o->entries[i]);
    }
    free(o->entries);
    pthread_cond_destroy(&o->finished);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* FNV-1a, 64 bits: only spares string comparisons. */
static uint64_t hash_key(const char *key)
{
    uint64_t hash = 0xcbf29ce484222325U;
    for (; *key; key++)
        hash = (hash ^ (uint8_t)*key) * 0x100000001b3U;
    return hash;
}

static struct once_entry *find_entry(struct once *o, const char *key)
{
    uint64_t hash = hash_key(key);
    for (size_t i = 0; i < o->count; i++) {
        if (o->entries[i]->hash == hash && strcmp(o->entries[i]->key, key) == 0)
            return o->entries[i];
    }
    return NULL;
}

static int add_entry(struct once *o, const char *key, struct err *e)
{
    int rc = mem_grow(&o->entries, &o->capacity, o->count + 1, sizeof(*o->entries), e);
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
    entry->hash = hash_key(key);
    o->entries[o->count++] = entry;
    return 0;
}

int once_begin(struct once *o, const char *key, bool *mine, struct digest *value, struct err *e)
{
    pthread_mutex_lock(&o->lock);
    struct once_entry *entry = find_entry(o, key);
    int rc = 0;
    *mine = !entry;
    if (!entry) {
        rc = add_entry(o, key, e);
    } else {
        while (!entry->finished)
            pthread_cond_wait(&o->finished, &o->lock);
        rc = entry->rc;
        if (rc < 0)
            *e = entry->err;
        else if (value)
            *value = entry->value;
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

void once_end(struct once *o, const char *key, int rc, const struct digest *value,
              const struct err *e)
{
    pthread_mutex_lock(&o->lock);
    struct once_entry *entry = find_entry(o, key);
    entry->finished = true;
    entry->rc = rc;
    if (rc < 0)
        entry->err = *e;
    else if (value)
        entry->value = *value;
    pthread_cond_broadcast(&o->finished);
    pthread_mutex_unlock(&o->lock);
}
