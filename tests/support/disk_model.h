/* SPDX-License-Identifier: MIT */
/*
 * Random requests against a disk and a plain memory model of it. Several threads work on ranges
 * that are disjoint but share blocks at their edges, so that a lost read-modify-write shows.
 */
#ifndef TB2_TESTS_DISK_MODEL_H
#define TB2_TESTS_DISK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One thread's way to the disk; calls return 0 on success. */
struct disk_port {
    int (*read)(void *ctx, void *data, size_t len, uint64_t off);
    int (*write)(void *ctx, const void *data, size_t len, uint64_t off);
    int (*zero)(void *ctx, uint64_t len, uint64_t off);
    int (*flush)(void *ctx);
    void *ctx;
};

/* Seed of the run: TB2_SEED, else `fallback`. */
uint64_t disk_model_seed(uint64_t fallback);

/* Requests of a run: TB2_STEPS, else `fallback`. */
size_t disk_model_steps(size_t fallback);

/* `steps` requests on each of `count` ports at once, applied to `model` (`size` bytes) too. False
 * once a read differs: what and the seed are printed. */
bool disk_model_exercise(const struct disk_port *ports, size_t count, uint8_t *model, size_t size,
                         size_t steps, uint64_t seed);

/* The whole disk, read through one port, equals the model. */
bool disk_model_equal(const struct disk_port *port, const uint8_t *model, size_t size);

#endif
