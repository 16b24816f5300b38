/* SPDX-License-Identifier: MIT */
/* Trying templates of a server out, several at a time. */

#include <pthread.h>
#include <stdatomic.h>

#include "bake/smoke.h"
#include "bake/template/ready.h"
#include "base/mem.h"

enum { JOBS_MAX = 64 };

struct work {
    struct e2b *server;
    struct smoke_item *items;
    size_t count;
    atomic_size_t next;
};

static void *work_thread(void *self)
{
    struct work *w = self;
    for (size_t n; (n = atomic_fetch_add(&w->next, 1)) < w->count;) {
        struct smoke_item *item = &w->items[n];
        struct e2b_smoke smoke = {.alias = item->alias, .command = item->command};
        if (e2b_smoke(w->server, &smoke, &item->result, &item->err) == 0)
            err_clear(&item->err);
    }
    return NULL;
}

void smoke_all(struct e2b *server, struct smoke_item *items, size_t count, unsigned jobs)
{
    struct work w = {.server = server, .items = items, .count = count};
    pthread_t threads[JOBS_MAX];
    size_t wanted = jobs < JOBS_MAX ? jobs : JOBS_MAX;
    size_t started = 0;
    while (started + 1 < wanted && started + 1 < count &&
           pthread_create(&threads[started], NULL, work_thread, &w) == 0)
        started++;
    work_thread(&w);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* A status line that begins with HTTP and has the wanted status, or one from 200 to 399. */
static char *http_command(const struct recipe_ready *ready)
{
    AUTO_FREE char *status =
        ready->http_status ? mem_printf("%u", ready->http_status) : mem_strdup("[23][0-9][0-9]");
    return status ? mem_printf("exec 3<>/dev/tcp/127.0.0.1/%u && "
                               "printf 'GET %%s HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' '%s' "
                               ">&3 && read -r version status rest <&3 && "
                               "case $version-$status in HTTP/1.*-%s) ;; *) exit 1 ;; esac",
                               (unsigned)ready->port, ready->http_path, status)
                  : NULL;
}

char *smoke_command(const struct recipe_ready *ready)
{
    switch (ready->kind) {
    case RECIPE_READY_COMMAND:
        return mem_strdup(ready->command);
    case RECIPE_READY_PORT:
        return mem_printf("exec 3<>/dev/tcp/127.0.0.1/%u", (unsigned)ready->port);
    case RECIPE_READY_HTTP:
        return http_command(ready);
    case RECIPE_READY_NONE:
        break;
    }
    return mem_strdup("true");
}

int smoke_template_command(char **out, const struct template *t, struct err *e)
{
    struct recipe_ready ready = {.kind = RECIPE_READY_NONE};
    int rc = ready_decode(&ready, t->document, e);
    if (rc == 0) {
        *out = smoke_command(&ready);
        rc = *out ? 0 : err_nomem(e, "ready check");
    }
    ready_fini(&ready);
    return rc;
}

const char *smoke_stage_name(enum e2b_smoke_stage stage)
{
    static const char *const names[E2B_SMOKE_STAGES] = {
        [E2B_SMOKE_RESOLVE] = "resolve",
        [E2B_SMOKE_CREATE] = "create",
        [E2B_SMOKE_EXEC] = "exec",
        [E2B_SMOKE_DESTROY] = "destroy",
    };
    return names[stage];
}
