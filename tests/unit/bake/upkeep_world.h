/* SPDX-License-Identifier: MIT */
/* A store with templates, layers and documents in it, made without a VM. */
#ifndef TB2_TESTS_BAKE_UPKEEP_WORLD_H
#define TB2_TESTS_BAKE_UPKEEP_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/digest.h"
#include "base/err.h"

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s", e.text);                                                                \
    } while (0)

struct world {
    char path[64];
    struct store *store;
};

void world_open(struct world *w);
void world_close(struct world *w); /* removes it all */

/* Numbers that depend on `state` alone. */
uint64_t next_number(uint64_t *state);

/* A map of `count` chunks of the given seeds, stored. Half of a chunk compresses. */
int put_map(struct store *s, struct digest *out, const uint64_t *seeds, size_t count,
            struct err *e);
/* A chunk alone. */
struct digest put_chunk(struct store *s, uint64_t seed);

/* A template whose chunks have the seeds `seed` to `seed` + 5; seed + 4 and 5 are memory and device
 * state. `manifest` may be NULL. */
int put_template(struct store *s, const char *alias, uint64_t seed, const struct digest *manifest,
                 struct err *e);

/* The same, made over the result of a step. */
int put_template_of(struct store *s, const char *alias, uint64_t seed,
                    const struct digest *manifest, const struct digest *step, struct err *e);
/* A kept copy with such maps. */
int put_kept(struct store *s, const char *name, uint64_t seed, struct err *e);
/* A step's result: a disk of three chunks, seeds `seed` to `seed` + 2; its key. */
struct digest put_step(struct store *s, const char *name, uint64_t seed);

/* A layer with one file of `size` bytes; its diff_id. */
struct digest put_layer(struct store *s, uint64_t seed, size_t size);
/* Manifest and config of an image with these layers, as blobs; the digest of the manifest. */
struct digest put_image(struct store *s, const struct digest *layers, size_t count);

/* What a push made and noted: a blob, whose digest it returns, and the record at `path`. */
struct digest put_pushed(struct store *s, uint64_t seed, char path[96]);

/* Sets the time of last use of everything in the store back. */
void age_all(struct world *w, int64_t seconds);
/* Of one file. */
void age(struct world *w, const char *path, int64_t seconds);

/* Reads all chunks of the template; negative when something is missing or damaged. */
int read_template(struct store *s, const char *alias, struct err *e);

/* Calls `visit` with the path, relative to the store, and the size of each file but locks and
 * temporaries; sorted. */
struct file_list {
    char **paths;
    uint64_t *sizes;
    size_t count;
};
void list_files(struct file_list *out, struct world *w);
void file_list_fini(struct file_list *l);

#endif
