/* SPDX-License-Identifier: MIT */
/*
 * The proof that a template is right (docs/decisions/0027-proof.md). A first copy must have the right
 * time before anything runs in it, answer the ready check, and carry bytes both ways unchanged; the
 * disk alone must be clean; a second copy must give other random numbers than the first.
 */

#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/guest/trace.h"
#include "bake/template/copy.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    ECHO_SIZE = 256 << 10,
    RANDOM_READS = 2, /* in each copy */
    RANDOM_COPIES = 2,
    RANDOM_BLOCK = 16, /* two equal ones are no accident */
};

struct random_bytes {
    uint8_t bytes[RANDOM_COPIES][RANDOM_READS][AGENT_RANDOM_SIZE];
};

static int read_random(struct guest *g, struct random_bytes *r, size_t copy, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < RANDOM_READS; i++)
        rc = agent_random(g->agent, r->bytes[copy][i], e);
    return rc;
}

static int compare_blocks(const void *a, const void *b)
{
    return memcmp(a, b, RANDOM_BLOCK);
}

int prove_random(void *bytes, size_t len, struct err *e)
{
    uint8_t *blocks = bytes;
    size_t count = len / RANDOM_BLOCK;
    qsort(blocks, count, RANDOM_BLOCK, compare_blocks);
    for (size_t i = 1; i < count; i++) {
        if (memcmp(blocks + (i - 1) * RANDOM_BLOCK, blocks + i * RANDOM_BLOCK, RANDOM_BLOCK) == 0)
            return err_set(e, ERR_CORRUPT, "two restored copies have the same random numbers");
    }
    return 0;
}

static int first_copy(const struct template *t, const struct machine_room *r, struct proof *out,
                      struct random_bytes *random, struct json *document, struct err *e)
{
    struct template_copy c = {0};
    int64_t start_ms = clock_ms();
    int rc = template_open_copy(&c, t, r, e);
    if (rc == 0)
        rc = template_check_ready(c.guest, t, e);
    if (rc == 0) {
        out->ready_ms = clock_ms() - start_ms;
        out->clock_error_ms = c.guest->clock_error_ns / 1000000;
        rc = document ? trace_note(document, TRACE_RESTORE, c.guest, e) : 0;
    }
    if (rc == 0)
        rc = read_random(c.guest, random, 0, e);
    if (rc == 0)
        rc = agent_echo(c.guest->agent, ECHO_SIZE, e);
    template_copy_fini(&c);
    return rc < 0 ? err_in(e, "restoring the template") : 0;
}

static int second_copy(const struct template *t, const struct machine_room *r, struct proof *out,
                       struct random_bytes *random, struct err *e)
{
    struct template_copy c = {0};
    int rc = template_open_copy(&c, t, r, e);
    if (rc == 0)
        rc = read_random(c.guest, random, 1, e);
    if (rc == 0 && c.guest->clock_error_ns / 1000000 > out->clock_error_ms)
        out->clock_error_ms = c.guest->clock_error_ns / 1000000;
    template_copy_fini(&c);
    return rc < 0 ? err_in(e, "restoring a second time") : 0;
}

static void describe(struct json *document, const struct proof *p)
{
    struct json *j = json_new_object();
    json_set(j, "clock_error_ms", json_new_integer(p->clock_error_ms));
    json_set(j, "echoed_bytes", json_new_integer(ECHO_SIZE));
    json_set(j, "random_bytes", json_new_integer((int64_t)sizeof(struct random_bytes)));
    json_set(j, "orphan_inodes", json_new_integer(p->orphans));
    json_set(document, "proof", j);
    json_set(document, "warm_ready_ms", json_new_integer(p->ready_ms));
}

int prove_template(const struct template *t, const struct machine_room *r, struct json *document,
                   struct proof *out, struct err *e)
{
    struct random_bytes random;
    *out = (struct proof){0};
    int rc = first_copy(t, r, out, &random, document, e);
    if (rc == 0)
        rc = disk_check(&t->disk, r, &out->orphans, e);
    if (rc == 0)
        rc = second_copy(t, r, out, &random, e);
    if (rc == 0)
        rc = prove_random(&random, sizeof(random), e);
    explicit_bzero(&random, sizeof(random));
    if (rc == 0 && document)
        describe(document, out);
    return rc;
}
