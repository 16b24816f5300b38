/* SPDX-License-Identifier: MIT */
/*
 * Tells whoever watches a run how registries limit it: a thread looks at the client's counters now
 * and then. The client itself tells nobody, since it serves threads that must not wait for a screen.
 */

#include <pthread.h>
#include <stdlib.h>

#include "bake/bake.h"
#include "bake/run/events.h"
#include "bake/run/run.h"
#include "base/mem.h"

enum { LOOK_MS = 500 };

struct traffic_watch {
    struct run *run;
    struct cancel stop;
    pthread_t thread;
    bool runs;
};

static bool is_same(const struct bake_traffic *a, const struct bake_traffic *b)
{
    return a->has_quota == b->has_quota && a->quota_remaining == b->quota_remaining &&
           a->quota_limit == b->quota_limit && (a->limited_ms > 0) == (b->limited_ms > 0);
}

static void *look(void *self)
{
    struct traffic_watch *w = self;
    struct bake_traffic told = {0};
    struct err ended = ERR_INIT;
    while (cancel_sleep_ms(&w->stop, LOOK_MS, &ended) == 0) {
        struct registry_stats stats = registry_stats(w->run->images.registry);
        struct bake_traffic now = {.has_quota = stats.has_quota,
                                   .quota_remaining = stats.quota_remaining,
                                   .quota_limit = stats.quota_limit,
                                   .limited_ms = stats.limited_ms};
        if (is_same(&now, &told))
            continue;
        told = now;
        run_event(w->run, &(struct bake_event){.kind = EVENT_TRAFFIC, .traffic = &now});
    }
    return NULL;
}

int traffic_watch_start(struct traffic_watch **out, struct run *run, struct err *e)
{
    if (!run->images.registry || !run->options->events)
        return 0;
    struct traffic_watch *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "run");
    w->run = run;
    *out = w;
    int rc = cancel_init(&w->stop, e);
    int sys = rc == 0 ? pthread_create(&w->thread, NULL, look, w) : 0;
    w->runs = rc == 0 && sys == 0;
    return sys != 0 ? err_sysno(e, sys, "starting a thread") : rc;
}

void traffic_watch_stop(struct traffic_watch *w)
{
    if (!w)
        return;
    if (w->runs) {
        cancel_set(&w->stop);
        pthread_join(w->thread, NULL);
    }
    cancel_fini(&w->stop);
    free(w);
}
