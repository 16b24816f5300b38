/* SPDX-License-Identifier: MIT */
/*
 * Baking: from task directories to templates that were proved by restoring them.
 *
 * A bake takes each task through the stages below. Everything a stage produces is in the store
 * before the next one starts, under a name that depends on its inputs alone, so a run that is
 * killed is continued by the next, and a task whose key is unchanged is done at once.
 */
#ifndef TB2_BAKE_BAKE_H
#define TB2_BAKE_BAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/image.h"
#include "bake/push.h"
#include "bake/vm.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"
#include "blockdev/blockdev.h"

/* ---- Stages and events -------------------------------------------------------------------- */

enum bake_stage {
    STAGE_PLAN,     /* read task.toml and recipe */
    STAGE_RESOLVE,  /* image name to manifest and config */
    STAGE_PULL,     /* layer blobs */
    STAGE_INGEST,   /* layers to chunks and indexes */
    STAGE_ASSEMBLE, /* merged tree, ext4 metadata, block map */
    STAGE_BOOT,     /* microVM up to the agent's hello */
    STAGE_STEPS,    /* the recipe's steps */
    STAGE_READY,    /* start command and ready check */
    STAGE_SNAPSHOT, /* freeze, device state, memory, disk delta */
    STAGE_PROVE,    /* restore in a fresh VM, ready check again */
    STAGE_REGISTER, /* catalog, template server */
    STAGE_COUNT
};

/* "plan", "resolve", ... */
const char *bake_stage_name(enum bake_stage stage);

enum bake_outcome {
    OUTCOME_PENDING,
    OUTCOME_READY,     /* baked, proved, registered in this run */
    OUTCOME_UNCHANGED, /* the template was there already */
    OUTCOME_FAILED,
    OUTCOME_CANCELLED,
};

const char *bake_outcome_name(enum bake_outcome outcome);

/* What happened to one task. */
struct bake_task_result {
    const char *task;
    const char *alias; /* NULL until known */
    enum bake_outcome outcome;
    enum bake_stage stage;         /* where it is, or where it failed */
    struct err err;                /* of a failure */
    int64_t stage_ms[STAGE_COUNT]; /* wall time of each stage; 0 if it did not run */
    uint64_t pulled_size;  /* bytes fetched for this task (shared layers count for the first) */
    const char *image;     /* as the task names it; NULL until known */
    const char *why;       /* what of its inputs is new: "image, recipe"; NULL until known */
    uint64_t missing_size; /* bytes of layers that are not in the store */
    int64_t estimate_ms;   /* that the bake takes, from earlier runs; 0: not known */
    char manifest[DIGEST_TEXT_MAX]; /* digest of the image's manifest, "" until known */
    size_t steps_cached; /* of the steps that change the disk, those whose results were kept */
    size_t steps_run;    /* those that were run */
    size_t steps;        /* of a plan: of its recipe */
    size_t steps_kept;   /* of these, the first that would not be run: their results are kept */
    const char *pushed;  /* what the disk was pushed as, with its digest; NULL: it was not */
    const char
        *console; /* file of the store with what its machines said on their consoles; NULL: none */
    char base_disk[DIGEST_TEXT_MAX]; /* digest of the assembled disk, "" until known */
    char disk[DIGEST_TEXT_MAX];      /* digest of the template's disk */
};

enum bake_event_kind {
    EVENT_RUN_STARTED, /* `count` tasks */
    EVENT_STAGE_STARTED,
    EVENT_PROGRESS,     /* done of total bytes of the stage (total 0: unknown) */
    EVENT_OUTPUT,       /* a line that a step printed, in `text` */
    EVENT_STEP,         /* step `done` of `total` is done; `cached`: its result was there */
    EVENT_TASK_WAITING, /* between two stages, for a place; not in the journal */
    EVENT_TRAFFIC, /* how registries limit us is another now, in `traffic`; not in the journal */
    EVENT_TASK_RETRIED,  /* the stage failed, with the words in `text`, and will be tried again */
    EVENT_TASK_FINISHED, /* look at result->outcome */
    EVENT_RUN_FINISHED,  /* totals in `report` */
};

struct bake_report;

/* How registries limit a run. */
struct bake_traffic {
    bool has_quota; /* of the host that has the least left */
    uint64_t quota_remaining, quota_limit;
    int64_t limited_ms; /* until one that has refused us is asked again; 0: none has */
};

struct bake_event {
    enum bake_event_kind kind;
    const struct bake_task_result *result; /* NULL for run events */
    const struct bake_report *report;      /* of EVENT_RUN_FINISHED */
    const struct bake_traffic *traffic;    /* of EVENT_TRAFFIC */
    uint64_t done;
    uint64_t total;
    size_t count;
    bool cached;
    const char *text;
};

/* Receives events, one at a time, from any thread; must be quick. */
typedef void bake_event_sink(void *ctx, const struct bake_event *event);

/* An event as a JSON object (docs/formats/journal.md); the caller frees it. NULL when memory is
 * short. */
struct json *bake_event_json(const struct bake_event *event);

/* ---- A run --------------------------------------------------------------------------------- */

/* Where tasks come from, one of the three, and which of them. */
struct bake_selection {
    const char *tasks_dir;    /* directories with a task.toml */
    const char *task_list;    /* a list of tasks (docs/formats/task-list.md) */
    const char *images;       /* a list of images */
    const char *const *names; /* names and globs; NULL: all */
    size_t name_count;
    const char *const *excludes;
    size_t exclude_count;
    unsigned shard; /* from 1; 0: everything */
    unsigned shard_count;
    bool only_failed; /* of these, what failed or was cancelled in the store's last run */
};

/* How much at once; 0: from this machine. */
struct bake_limits {
    unsigned cpu;       /* images turned into disks */
    unsigned vm;        /* machines */
    unsigned network;   /* requests to registries, and transfers */
    unsigned server;    /* builds on the template server */
    uint64_t memory_mb; /* of all machines together */
};

/* In place of a time: no limit. */
#define STAGE_UNLIMITED ((int64_t)-1)

/* How long a task may be in a stage, in milliseconds, unless the options say so; STAGE_UNLIMITED. */
int64_t bake_stage_limit_ms(enum bake_stage stage);

/* Who runs the recipe's steps for the template server. */
enum bake_builder {
    BUILDER_AUTO,   /* local where push_to is set */
    BUILDER_SERVER, /* the server, on the task's image */
    BUILDER_LOCAL   /* nobody: it begins with what was pushed */
};

struct bake_options {
    const char *cache_dir; /* guest kernel, probe results; absolute */
    struct bake_selection tasks;
    struct bake_pins pins;
    struct bake_limits limits;
    int64_t stage_limits_ms[STAGE_COUNT]; /* 0: bake_stage_limit_ms */
    const char *recipe_path;
    const char
        *recipe_from; /* command that says what each task is built from (bake/run/provider.c);
                                NULL: the recipe */
    const char *tap;  /* for recipes with such a network (tap_open); NULL: none */
    const char *const *secrets; /* NAME=env:VARIABLE, NAME=file:PATH: for steps that name them */
    size_t secret_count;
    bool force;         /* bake although the template is there, and run all steps */
    bool no_step_cache; /* neither use nor keep results of steps */
    bool no_boot_image; /* each guest boots from its kernel */
    bool keep;          /* a machine in which something of the recipe failed becomes a kept copy */
    int compression_level;       /* of new chunks, zstd's; 0: the store's default */
    const struct vm_driver *vmm; /* NULL: the one that fits best */
    const char *cpu_template;    /* vm_options; NULL: none */
    enum vm_accel accel;
    const char *remote_url;  /* remote store shared with other bakers (bake/remote.h); NULL: none */
    int64_t remote_lease_ms; /* see remote_options */
    struct image_options images;
    const char
        *push_to; /* repository for each template's disk (bake/push.h), without a tag; NULL: none */
    enum push_format push_format;
    enum push_compression push_compression;
    enum bake_builder builder;
    const char *e2b_api_url; /* NULL: local catalog only */
    const char *e2b_api_key;
    const char *e2b_sandbox_url; /* see e2b_options */
    bool smoke;                  /* a registered template must pass its ready check in a sandbox */
    bake_event_sink *events;     /* may be NULL */
    void *events_ctx;
    const struct cancel *drain; /* end what runs, begin nothing new; may be NULL */
    const struct cancel *cancel;
};

struct bake_report {
    struct bake_task_result *results; /* in the order of the task names */
    size_t count;
    int64_t wall_ms;
    uint64_t manifest_heads, manifest_gets, blob_gets, blob_bytes;
    uint64_t mirrored, rate_waits; /* as in registry_stats, as the rest */
    bool has_quota;
    uint64_t quota_remaining, quota_limit;
    size_t vm_tasks; /* tasks that started VMs */
    size_t layers_ingested;
    struct json *remote; /* what went over to and came from the remote store; NULL: there is none */
    struct store_stats store;
    char *journal;            /* path of the run's journal, relative to the store */
    struct image_move *moves; /* against the lock file; sorted by image */
    size_t move_count;
    unsigned vm_jobs; /* machines at once, as settled */
};

/*
 * Bakes. Success means that the run went through: what became of each task is in the report, which
 * the caller frees with bake_report_fini. An error is one that concerns all tasks (no such
 * directory, broken recipe, two tasks with one alias, no QEMU, store in use: ERR_BUSY); the report is
 * then empty. Success with no results: nothing was selected (tasks.only_failed, an empty shard).
 */
int bake_run(struct bake_report *out, struct store *s, const struct bake_options *o,
             struct err *e) MUST_USE;
/* report.moves as [{image, was, now}]; the caller frees it. NULL when memory is short. */
struct json *bake_moves_json(const struct bake_report *r);

/*
 * What bake_run would do: each task's outcome is OUTCOME_PENDING if it would be baked, with why and
 * how long it may take, OUTCOME_UNCHANGED or OUTCOME_FAILED. Bakes and pulls nothing but manifests
 * and configs, writes no journal, and a lock file only if it is to be updated; goes on beside a bake.
 */
int bake_plan(struct bake_report *out, struct store *s, const struct bake_options *o,
              struct err *e) MUST_USE;
void bake_report_fini(struct bake_report *r);

/* True if tasks failed, and all of them since a registry or server limits how often it may be asked:
 * the same run later goes on from there. */
bool bake_is_rate_limited(const struct bake_report *r);

/* The default for machines at once on this one. */
unsigned bake_default_jobs(void);

#endif
