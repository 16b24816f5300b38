/* SPDX-License-Identifier: MIT */
/* Tags held to digests, from a lock file. Thread-safe where it does not say otherwise. */
#ifndef TB2_BAKE_IMAGE_PINS_H
#define TB2_BAKE_IMAGE_PINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"

struct bake_pins;
struct image_move;

struct pins;
/* From the lock file, if there is one; also what to compare with. */
int pins_open(struct pins **out, const struct bake_pins *o, struct err *e) MUST_USE;
void pins_free(struct pins *p);
/* The image is to be asked for anew. Before threads use the pins. */
int pins_refresh(struct pins *p, const char *image, struct err *e) MUST_USE;
/* *found with the digest that the image is held to. ERR_INPUT when it has none and must have one. */
int pins_find(struct pins *p, const char *image, bool *found, struct digest *out,
              struct err *e) MUST_USE;
/* Bytes of the image's layers, from the lock file; 0: not known. */
uint64_t pins_size(struct pins *p, const char *image);
/* What the image stands for. ERR_DIGEST when it is held to something else. */
int pins_note(struct pins *p, const char *image, const struct digest *digest, uint64_t size,
              struct err *e) MUST_USE;
/* Writes the lock file if it is another now. With `all`, images that nobody asked for leave it. */
int pins_save(struct pins *p, bool all, struct err *e) MUST_USE;
/* What moved, sorted; the caller frees it. */
int pins_moves(struct pins *p, struct image_move **out, size_t *count, struct err *e) MUST_USE;

#endif
