/* SPDX-License-Identifier: MIT */
/*
 * Which steps are being run by the tasks of this process, so that tasks with the same image and the
 * same first steps run these once: who comes later waits for the result, and goes on from there. Who
 * has run a step claims the next one before the last is let go, so the one ahead stays ahead.
 */

#include <pthread.h>
#include <stdlib.h>

#include "bake/step/cache.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/mem.h"

enum { LOOK_MS = 200 }; /* at the run's cancel flag, while waiting */

struct step_claim {
    struct digest key;
    struct step_claim *next;
};

void step_claims_init(struct step_claims *c)
{
    c->first = NULL;
    pthread_mutex_init(&c->lock, NULL);
    (void)cond_init(&c->released);
}

void step_claims_fini(struct step_claims *c)
{
    while (c->first) {
        struct step_claim *next = c->first->next;
        free(c->first);
        c->first = next;
    }
    pthread_cond_destroy(&c->released);
    pthread_mutex_destroy(&c->lock);
}

static struct step_claim **find(struct step_claims *c, const struct digest *key)
{
    struct step_claim **at = &c->first;
    while (*at && !digest_equal(&(*at)->key, key))
        at = &(*at)->next;
    return at;
}

int step_claim(struct step_claims *c, const struct digest *key, bool *mine, struct err *e)
{
    struct step_claim *claim = mem_zalloc(sizeof(*claim));
    if (!claim)
        return err_nomem(e, "step");
    claim->key = *key;
    pthread_mutex_lock(&c->lock);
    struct step_claim **at = find(c, key);
    *mine = *at == NULL;
    if (*mine)
        *at = MOVE(claim);
    pthread_mutex_unlock(&c->lock);
    free(claim);
    return 0;
}

void step_release(struct step_claims *c, const struct digest *key)
{
    pthread_mutex_lock(&c->lock);
    struct step_claim **at = find(c, key);
    struct step_claim *claim = *at;
    if (claim)
        *at = claim->next;
    pthread_cond_broadcast(&c->released);
    pthread_mutex_unlock(&c->lock);
    free(claim);
}

int step_wait(struct step_claims *c, const struct digest *key, const struct cancel *cancel,
              struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    while (rc == 0 && *find(c, key)) {
        (void)cond_wait_until(&c->released, &c->lock, clock_ms() + LOOK_MS);
        rc = cancel_check(cancel, e);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}
