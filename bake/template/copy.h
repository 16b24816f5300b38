/* SPDX-License-Identifier: MIT */
/* Copies of templates, and the proof that they are right. */
#ifndef TB2_BAKE_TEMPLATE_COPY_H
#define TB2_BAKE_TEMPLATE_COPY_H

#include <stddef.h>
#include <stdint.h>

#include "bake/template.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"

struct block_map;
struct guest;
struct machine_room;
struct store;

/* The room for a template: with the VMM that made it, unless another is asked for. */
int template_open_room(struct machine_room *room, const struct template *t, struct store *s,
                       const struct template_use *use, struct err *e) MUST_USE;

/* A running copy; the guest borrows `disk`. */
struct template_copy {
    struct block_map *disk;
    struct guest *guest;
};
/* template_copy_fini, whatever the result. */
int template_open_copy(struct template_copy *out, const struct template *t,
                       const struct machine_room *r, struct err *e) MUST_USE;
void template_copy_fini(struct template_copy *c); /* a zeroed one is fine */
/* Waits for the template's own ready check. */
int template_check_ready(struct guest *g, const struct template *t, struct err *e) MUST_USE;

/* Restores what the record says twice and finds it right, or an error says what is not. What was
 * found and read is noted in `document` (NULL: nowhere). */
int prove_template(const struct template *t, const struct machine_room *r, struct json *document,
                   struct proof *out, struct err *e) MUST_USE;
/* ERR_CORRUPT when two blocks of 16 bytes are the same; sorts them. */
int prove_random(void *bytes, size_t len, struct err *e) MUST_USE;
/* ERR_CORRUPT unless e2fsck finds the disk (a map's name) clean; *orphans counts deleted files that are
 * open, which are no fault. ERR_NOTFOUND with a hint: no e2fsck. */
int disk_check(const struct digest *disk, const struct machine_room *r, uint32_t *orphans,
               struct err *e) MUST_USE;

#endif
