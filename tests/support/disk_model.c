/* SPDX-License-Identifier: MIT */
#include "disk_model.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { REQUEST_MAX = 80 << 10, BLOCK = 4096, THREADS_MAX = 16 };

struct player {
    const struct disk_port *port;
    uint8_t *model;
    size_t first, end; /* its range */
    size_t steps;
    uint64_t seed, state;
    pthread_t thread;
    bool good;
};

/* splitmix64: any generator will do that gives the same numbers everywhere. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t disk_model_seed(uint64_t fallback)
{
    const char *text = getenv("TB2_SEED");
    return text ? strtoull(text, NULL, 0) : fallback;
}

size_t disk_model_steps(size_t fallback)
{
    const char *text = getenv("TB2_STEPS");
    return text ? strtoull(text, NULL, 0) : fallback;
}

/* A range within the player's: a third each block-aligned, small, any. */
static void pick(struct player *p, size_t *off, size_t *len)
{
    size_t size = p->end - p->first;
    uint64_t kind = next(&p->state) % 3;
    *len = 1 + (size_t)(next(&p->state) % (kind == 1 ? 600 : REQUEST_MAX));
    *off = p->first + (size_t)(next(&p->state) % size);
    if (kind == 0) {
        *off = (*off + BLOCK - 1) / BLOCK * BLOCK;
        *len = (*len + BLOCK - 1) / BLOCK * BLOCK;
    }
    if (*off >= p->end)
        *off = p->end - 1;
    if (*len > p->end - *off)
        *len = p->end - *off;
}

static void fill(struct player *p, uint8_t *data, size_t len)
{
    uint64_t kind = next(&p->state);
    if (kind % 4 == 0) {
        memset(data, 0, len);
        return;
    }
    uint8_t start = (uint8_t)(kind >> 8);
    uint8_t by = (uint8_t)(kind >> 16 | 1);
    for (size_t i = 0; i < len; i++, start = (uint8_t)(start + by))
        data[i] = start;
}

static bool complain(const struct player *p, const char *what, size_t step, size_t len, size_t off)
{
    fprintf(stderr, "%s at step %zu, %zu bytes at %zu; seed %" PRIu64 "\n", what, step, len, off,
            p->seed);
    return false;
}

static bool step(struct player *p, size_t number, uint8_t *data)
{
    const struct disk_port *port = p->port;
    size_t off, len;
    pick(p, &off, &len);
    uint64_t what = next(&p->state) % 16;
    if (what < 6) {
        fill(p, data, len);
        memcpy(p->model + off, data, len);
        return port->write(port->ctx, data, len, off) == 0 ||
               complain(p, "write fails", number, len, off);
    }
    if (what == 6) { /* the same bytes again: no change */
        memcpy(data, p->model + off, len);
        return port->write(port->ctx, data, len, off) == 0 ||
               complain(p, "write fails", number, len, off);
    }
    if (what < 10) {
        memset(p->model + off, 0, len);
        return port->zero(port->ctx, len, off) == 0 || complain(p, "zero fails", number, len, off);
    }
    if (what == 10)
        return port->flush(port->ctx) == 0 || complain(p, "flush fails", number, 0, 0);
    if (port->read(port->ctx, data, len, off) != 0)
        return complain(p, "read fails", number, len, off);
    return memcmp(data, p->model + off, len) == 0 || complain(p, "read differs", number, len, off);
}

static void *play(void *arg)
{
    struct player *p = arg;
    uint8_t *data = mem_zalloc(REQUEST_MAX + BLOCK);
    p->good = data != NULL;
    for (size_t i = 0; i < p->steps && p->good; i++)
        p->good = step(p, i, data);
    free(data);
    return NULL;
}

bool disk_model_exercise(const struct disk_port *ports, size_t count, uint8_t *model, size_t size,
                         size_t steps, uint64_t seed)
{
    struct player players[THREADS_MAX];
    if (count > THREADS_MAX)
        abort();
    for (size_t i = 0; i < count; i++) {
        players[i] = (struct player){
            .port = &ports[i],
            .model = model,
            /* Odd borders, so that neighbours meet inside a block. */
            .first = i == 0 ? 0 : size / count * i + 1234 * i % BLOCK,
            .end = i + 1 == count ? size : size / count * (i + 1) + 1234 * (i + 1) % BLOCK,
            .steps = steps,
            .seed = seed,
            .state = seed + i,
        };
        if (pthread_create(&players[i].thread, NULL, play, &players[i]) != 0)
            abort();
    }
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        pthread_join(players[i].thread, NULL);
        good &= players[i].good;
    }
    return good;
}

bool disk_model_equal(const struct disk_port *port, const uint8_t *model, size_t size)
{
    uint8_t data[4 * BLOCK];
    for (size_t off = 0; off < size; off += sizeof(data)) {
        size_t len = size - off < sizeof(data) ? size - off : sizeof(data);
        if (port->read(port->ctx, data, len, off) != 0)
            return false;
        for (size_t i = 0; i < len; i++) {
            if (data[i] == model[off + i])
                continue;
            fprintf(stderr, "byte %zu is %#x, not %#x\n", off + i, data[i], model[off + i]);
            return false;
        }
    }
    return true;
}
