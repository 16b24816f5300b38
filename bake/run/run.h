/* SPDX-License-Identifier: MIT */
/* A run and its tasks: what goes from stage to stage. */
#ifndef TB2_BAKE_RUN_RUN_H
#define TB2_BAKE_RUN_RUN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/bake.h"
#include "bake/common/slots.h"
#include "bake/guest/machine_room.h"
#include "bake/image/image.h"
#include "bake/step/cache.h"
#include "bake/vm/tap.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "manifests/manifest.h"

struct e2b;
struct history;
struct pins;
struct provider;
struct push;
struct remote;
struct schedule_next;
struct secret_set;

struct run {
    const struct bake_options *options;
    struct cancel cancel; /* that of the options; a lane's threads have limits (stage_limit.c) */
    struct store *store;
    struct recipe *recipe;
    struct json *recipe_json;
    struct secret_set *secrets; /* NULL: none was given */
    struct tap tap;
    struct provider *provider; /* NULL: all tasks have the recipe above */
    struct image_room images;
    struct machine_room machines;
    struct remote *remote;     /* NULL: none */
    struct bake_limits limits; /* settled */
    struct slots network;
    struct slots cpu;
    struct step_claims step_claims;
    struct pins *pins;
    struct history *history;
    struct task_set *set;
    bool whole_set;     /* every task of it was selected */
    struct json *past;  /* what the catalog has of tasks: name to record, once it was needed */
    struct push *push;  /* NULL: nothing is pushed */
    struct e2b *server; /* NULL: local catalog only */
    bool plan_only;
    struct baking *bakings; /* one per result */
    size_t count;
    atomic_size_t unresolved; /* tasks whose image is not known yet */
    atomic_int retries_left;
    atomic_size_t vm_tasks;
    pthread_mutex_t event_lock;
    pthread_mutex_t past_lock;
    int journal_fd;
    const char *journal; /* its name in the store, borrowed; NULL: there is none */
};

/* The kinds of work that are limited separately. */
enum lane { LANE_RESOLVE, LANE_DISK, LANE_VM, LANE_SERVER, LANE_COUNT };

/* A task under way: what it takes from one lane to the next. Everything else is found again in the
 * store, so a task that waits takes little memory. */
struct baking {
    struct run *run;
    struct bake_task_result *result;
    struct task *task;           /* NULL: it could not be read */
    const struct recipe *recipe; /* the run's, or the task's own */
    const struct json *recipe_json;
    struct recipe *own_recipe; /* from a provider; NULL: the run's */
    struct json *own_recipe_json;
    char *given_alias; /* from a provider; NULL: by the rule */
    enum lane lane;    /* that it is in, or waits for */
    unsigned attempts; /* failed tries in this lane */
    bool resolved;     /* its image was known, or could not be */
    bool put_off;      /* another baker is at it */
    bool unchanged;    /* the template was there */
    struct digest key;
    struct digest base;        /* map of the assembled disk */
    struct digest record;      /* of the template */
    struct image *image;       /* while it is worked on */
    struct template *template; /* the same */
    int64_t stage_start_ms;    /* 0: in no stage */
    uint64_t transfer_total;
};

/* The tasks of a run (choose_tasks.c): finds the set, selects, reads, names aliases. ERR_INPUT when two
 * tasks have the same alias. */
int run_choose_tasks(struct run *run, struct bake_report *out, struct err *e) MUST_USE;

/* Which entries of a set are meant; every one costs the same. */
struct task_selection bake_task_selection(const struct bake_selection *s);

/* What is 0 becomes what fits this machine. */
struct bake_limits bake_settle_limits(const struct bake_limits *l);
/* MB that are free where the guests' memory files and deltas go. */
uint64_t bake_free_mb(const struct store *s);

/* For the scheduler (task.c): the first lane of a task, its work in the lane it is in, its end when
 * the run was told to stop. */
struct schedule_next task_first(void *run, size_t index);
struct schedule_next task_work(void *run, size_t index);
void task_drop(void *run, size_t index);

/* What of a task's inputs is new since its last template (why.c); free with free(). */
int task_why(struct baking *b, char **out, struct err *e) MUST_USE;

/* Which steps a bake would take from the cache, for the result. */
int warm_plan(struct baking *b, struct err *e) MUST_USE;
/* Boot, steps, ready, snapshot: the template's document. */
int warm_task(struct baking *b, const struct block_map *disk, const struct digest *base_disk,
              const struct digest *key, struct json **document, struct err *e) MUST_USE;

int register_template(struct baking *b, const struct template *t, struct err *e) MUST_USE;

#endif
