/* SPDX-License-Identifier: MIT */
#include "memdev.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

struct memdev {
    struct bdev device;
    uint8_t *bytes;
    atomic_int fail;
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool shut;
    atomic_uint waiting;
};

static struct memdev *memdev_of(struct bdev *d)
{
    return (struct memdev *)(void *)d;
}

static int memdev_read(struct bdev *d, void *data, size_t len, uint64_t off)
{
    struct memdev *m = memdev_of(d);
    pthread_mutex_lock(&m->mutex);
    atomic_fetch_add(&m->waiting, 1);
    while (m->shut)
        pthread_cond_wait(&m->opened, &m->mutex);
    atomic_fetch_sub(&m->waiting, 1);
    pthread_mutex_unlock(&m->mutex);
    if (atomic_load(&m->fail))
        return -atomic_load(&m->fail);
    memcpy(data, m->bytes + off, len);
    return 0;
}

static int memdev_write(struct bdev *d, const void *data, size_t len, uint64_t off)
{
    struct memdev *m = memdev_of(d);
    if (atomic_load(&m->fail))
        return -atomic_load(&m->fail);
    memcpy(m->bytes + off, data, len);
    return 0;
}

static int memdev_flush(struct bdev *d)
{
    return -atomic_load(&memdev_of(d)->fail);
}

static void memdev_close(struct bdev *d)
{
    struct memdev *m = memdev_of(d);
    pthread_cond_destroy(&m->opened);
    pthread_mutex_destroy(&m->mutex);
    free(m->bytes);
    free(m);
}

static const struct bdev_ops writable_ops = {
    .read = memdev_read, .write = memdev_write, .flush = memdev_flush, .close = memdev_close};
static const struct bdev_ops read_only_ops = {.read = memdev_read, .close = memdev_close};

struct bdev *memdev_new(uint64_t size, bool writable)
{
    struct memdev *m = mem_zalloc(sizeof(*m));
    if (!m || !(m->bytes = mem_zalloc((size_t)size)))
        abort();
    m->device.ops = writable ? &writable_ops : &read_only_ops;
    m->device.size = size;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->opened, NULL);
    return &m->device;
}

uint8_t *memdev_bytes(struct bdev *d)
{
    return memdev_of(d)->bytes;
}

void memdev_fail(struct bdev *d, int sys)
{
    atomic_store(&memdev_of(d)->fail, sys);
}

void memdev_close_gate(struct bdev *d)
{
    struct memdev *m = memdev_of(d);
    pthread_mutex_lock(&m->mutex);
    m->shut = true;
    pthread_mutex_unlock(&m->mutex);
}

void memdev_open_gate(struct bdev *d)
{
    struct memdev *m = memdev_of(d);
    pthread_mutex_lock(&m->mutex);
    m->shut = false;
    pthread_cond_broadcast(&m->opened);
    pthread_mutex_unlock(&m->mutex);
}

unsigned memdev_waiting(struct bdev *d)
{
    return atomic_load(&memdev_of(d)->waiting);
}
