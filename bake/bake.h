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

#include <stddef.h>
#include <stdint.h>

#include "bake/vm.h"
#include "base/cancel.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "blockdev/blockdev.h"
#include "oci/oci.h"

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

/* ---- Registries ---------------------------------------------------------------------------- */

struct registry_network; /* registry/registry.h, which has the fini too */

/* Reads registries.yaml (docs/registries.md), a registries.conf if the name ends so, or a directory
 * of hosts.toml files. ERR_INPUT with file, line and column. */
int registries_load(struct registry_network *out, const char *path, struct err *e) MUST_USE;
/* The same from text, which is no directory's. */
int registries_parse(struct registry_network *out, const char *path, const void *text, size_t len,
                     struct err *e) MUST_USE;

/* ---- Images -------------------------------------------------------------------------------- */

/* Where images may come from; all zero is fine. Pointers are borrowed as long as the options are. */
struct image_options {
    const char *docker_config;              /* see registry_options.config_path */
    const struct registry_network *network; /* NULL: nothing known */
    const char *const *plain_http_hosts;
    bool offline;         /* make no request: images in files, and what the store has */
    const char *platform; /* "os/architecture[/variant]"; NULL: this machine's */
};

/* For looking at an image without making anything of it. */
struct image_look {
    struct image_options images;
    const struct cancel *cancel;
};

/*
 * What an image says of itself; only its documents are fetched. *out, for json_free, has: reference
 * (in full), digest, config_digest, os, architecture, size (bytes of all layers as they are pulled),
 * layers (bottom first: digest, media_type, size, diff_id, ingested, and of the step that made it
 * created_by and comment), and as the config has them, if it has: variant, created, author, config,
 * history.
 */
int image_inspect(struct json **out, struct store *s, const char *reference,
                  const struct image_look *look, struct err *e) MUST_USE;

/* The merged tree as text (docs/formats/tree.md). Blobs of layers that the store lacks are pulled;
 * what they become is not stored. ERR_BUSY when that is needed while a bake works in the store. */
int image_tree(struct store *s, const char *reference, const struct image_look *look,
               const struct sink *out, struct err *e) MUST_USE;

/* Receives the differences of two trees, content included, in order; none: they are the same. As
 * image_tree otherwise. */
typedef int image_difference_sink(void *ctx, const struct oci_difference *d, struct err *e);
int image_diff(struct store *s, const char *const references[2], const struct image_look *look,
               image_difference_sink *sink, void *ctx, struct err *e) MUST_USE;

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

/* Tags held to digests. */
struct bake_pins {
    const char *lock_path; /* NULL: no lock file */
    bool frozen;           /* an image that is not in it is an error; it is not written */
    bool update;           /* ask the registries anew: for all, or for these tasks */
    const char *const *update_names;
    size_t update_name_count;
    const char *since_path; /* a lock file to compare with; NULL: that of lock_path as it was */
};

/* How much at once; 0: from this machine. */
struct bake_limits {
    unsigned cpu;       /* images turned into disks */
    unsigned vm;        /* machines */
    unsigned network;   /* requests to registries, and transfers */
    unsigned server;    /* builds on the template server */
    uint64_t memory_mb; /* of all machines together */
};

/* What disks are pushed as (bake/push.h). */
enum push_format {
    PUSH_OVERLAYBD, /* the disk, one layer per region and one on top (docs/formats/overlaybd.md) */
    PUSH_OCI,       /* a plain image: of a template, its image's layers and one of what baking
                       changed; an image as it is */
};
enum push_compression {
    PUSH_COMPRESSION_DEFAULT, /* zstd; of plain images gzip, which all read */
    PUSH_ZSTD,
    PUSH_LZ4, /* not for plain images */
    PUSH_GZIP /* for plain images alone */
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
    const char *recipe_from;    /* command that says what each task is built from (bake/provider.c);
                                NULL: the recipe */
    const char *tap;            /* for recipes with such a network (tap_open); NULL: none */
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

/* An image that stands for something else than it did. */
struct image_move {
    char *image;
    char was[DIGEST_TEXT_MAX]; /* "": it is new */
    char now[DIGEST_TEXT_MAX];
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

/* Reads a recipe and the files that it lays; *canonical, for json_free, is all of it that can change a
 * template. Nothing of an image that it grafts is looked at. */
int recipe_inspect(struct json **canonical, const char *path, const struct cancel *c,
                   struct err *e) MUST_USE;

/* True if tasks failed, and all of them since a registry or server limits how often it may be asked:
 * the same run later goes on from there. */
bool bake_is_rate_limited(const struct bake_report *r);

/* The default for machines at once on this one. */
unsigned bake_default_jobs(void);

/* ---- Templates ------------------------------------------------------------------------------ */

/*
 * A finished template: catalog/<alias>.json points to the record, an immutable object under
 * templates/; formats in docs/formats/template.md.
 */
struct template
{
    char *alias;
    char *task;
    struct digest key;       /* digest over everything that can change the result */
    struct digest record;    /* digest of the record's bytes */
    struct json *document;   /* the record */
    struct digest disk;      /* map of the disk as it was at the snapshot */
    struct digest base_disk; /* map of the assembled disk before the boot */
    struct digest memory;    /* map of guest memory */
    struct digest state;     /* map of the device state, padded to blocks */
    uint64_t state_size;     /* its true size, bytes */
    uint64_t memory_mb;
    uint32_t cpus;
    bool network;
    bool tap;            /* its network was a tap device */
    const char *vmm;     /* "qemu 7.2.22"; borrowed from document, as are the rest */
    const char *accel;   /* "tcg" or "kvm" */
    const char *kernel;  /* digest of the guest kernel and initramfs, as text */
    const char *created; /* RFC 3339 */
    const char *user;
    const char *workdir;
    char **env; /* NULL-terminated NAME=value */
};

/* Looks a template up by alias, or by task name when just one template has it. ERR_NOTFOUND with a
 * hint. */
int template_load(struct template **out, struct store *s, const char *alias,
                  struct err *e) MUST_USE;
void template_free(struct template *t);
DEFINE_AUTO(template, template_free)
#define AUTO_TEMPLATE CLEANUP(template_free_auto_)

/* Aliases in the catalog, sorted; free each and the list. */
int template_list(char ***aliases, size_t *count, struct store *s, struct err *e) MUST_USE;

/* Sizes for people: what a template's maps refer to. */
struct template_sizes {
    uint64_t disk_size;   /* virtual */
    uint64_t disk_data;   /* bytes of the disk that the map covers */
    uint64_t memory_data; /* bytes of memory that are not zero */
    uint64_t stored;      /* stored bytes of all its chunks */
    uint64_t unique;      /* of these, in no other template of the catalog */
    bool damaged; /* a map cannot be read or a chunk is not there: what is missing is not counted */
};
/* Sizes of `count` templates at once (uniqueness is counted among these). Damage is no error: what
 * it is goes to the log, once per template. */
int template_measure(struct template_sizes *out, struct template *const *templates, size_t count,
                     struct store *s, struct err *e) MUST_USE;

/* ---- Using a template ------------------------------------------------------------------------ */

struct template_use {
    const char *cache_dir;
    const struct vm_driver *vmm; /* NULL: the one that made the template */
    const char *cpu_template;    /* that the template must have; NULL: whichever it has */
    enum vm_accel accel;
    const char *tap; /* as bake_options.tap, for a template with one; NULL: a user-mode network */
    const struct cancel *cancel;
    bool
        cold; /* template_run: boot the disk and start what the recipe starts, without the memory */
    const char
        *keep; /* template_run: name to keep the copy under when the command has ended; NULL: it is
                         thrown away. Not with `cold` */
    const char *why;  /* with `keep`: for people */
    bool no_prefetch; /* chunks that are elsewhere come when they are read, and not before */
};

/* A command for a copy of the template: its user, work directory and environment apply. */
struct template_command {
    const char *const *argv; /* NULL-terminated; NULL: a shell, the best that the image has */
    const void *input;       /* stdin */
    size_t input_len;
    const struct agent_live *live; /* instead of these two; NULL: none */
    const char *term;     /* with a terminal: the variable TERM; NULL: as the template has it */
    agent_output *output; /* receives stdout and stderr as they come */
    void *ctx;
};

/* Restores a copy of the template, runs the command in it, and throws the copy away or keeps it. */
int template_run(const struct template *t, struct store *s, const struct template_use *use,
                 const struct template_command *command, struct agent_result *result,
                 struct err *e) MUST_USE;

/* ---- Kept copies (bake/kept.c) ---------------------------------------------------------------- */

/* Copies that a person goes on with, by name: of a failed task, or of template_use.keep. */

/* Names, sorted; for kept_names_free. */
int kept_list(char ***names, size_t *count, struct store *s, struct err *e) MUST_USE;
void kept_names_free(char **names, size_t count);
/* A copy as something that template_run can go on with; its document says in `kept`: `why`, `since`.
 * ERR_NOTFOUND with a hint. */
int kept_peek(struct template **out, struct store *s, const char *name, struct err *e) MUST_USE;
/* The same for one who goes on with it: ERR_BUSY while another does, until *lock is closed. */
int kept_open(struct template **out, int *lock, struct store *s, const char *name,
              struct err *e) MUST_USE;
int kept_remove(struct store *s, const char *name, struct err *e) MUST_USE;

/* What was found when a template was proved right (bake/prove.c). */
struct proof {
    int64_t ready_ms;       /* start of the VMM to ready */
    int64_t clock_error_ms; /* at most; of the worst copy */
    uint32_t orphans;       /* deleted files of its disk that were open at the snapshot */
};

struct verify_report {
    uint64_t chunks; /* distinct, each read and verified */
    uint64_t size;   /* their plain bytes */
    struct proof proof;
};

/* Reads every chunk of disk, memory and device state, then proves the template again as a bake does:
 * two copies, ready check, clock, random numbers, channel, e2fsck. */
int template_verify(const struct template *t, struct store *s, const struct template_use *use,
                    struct verify_report *out, struct err *e) MUST_USE;

/* ---- Disks ----------------------------------------------------------------------------------- */

/* Room on the disk of an image that is looked at without a task: the suite's default. */
#define DISK_FREE_SIZE ((uint64_t)10240 << 20)

struct disk_options {
    uint64_t free_size; /* bytes that must be free on it */
    struct image_options images;
    const struct cancel *cancel;
};

/* Pulls, ingests and assembles an image without booting it; *out is the map of its disk. */
int disk_assemble(struct digest *out, struct store *s, const char *reference,
                  const struct disk_options *o, struct err *e) MUST_USE;

/* Writes the disk with this map as a sparse raw file at `path`, which must not exist. */
int disk_export(struct store *s, const struct digest *map, const char *path, const struct cancel *c,
                struct err *e) MUST_USE;
/* The same as qcow2; calls qemu-img, ERR_NOTFOUND where there is none. */
int disk_export_qcow2(struct store *s, const struct digest *map, const char *path,
                      const struct cancel *c, struct err *e) MUST_USE;

struct disk_difference {
    uint64_t ranges;         /* runs of blocks that differ */
    uint64_t different;      /* their bytes */
    uint64_t shared_stored;  /* stored bytes of the chunks that both have */
    uint64_t only_stored[2]; /* of those that one alone has */
};
struct disk_compare_options {
    void (*range)(void *ctx, uint64_t off, uint64_t size); /* told of each range; may be NULL */
    void *ctx;
    const struct cancel *cancel;
};
/* Compares two disks by content, whatever chunks they are made of; past the end of the smaller one
 * are zeros. */
int disk_compare(struct disk_difference *out, struct store *s, const struct digest maps[2],
                 const struct disk_compare_options *o, struct err *e) MUST_USE;

/* ---- Disks as devices of this machine -------------------------------------------------------- */

/*
 * Disks of a store, attached: served by one process per store, the devices' server, which holds any
 * number of them. What is written to a writable one is kept until it is detached, also when the
 * server dies (not when the machine does); then it is thrown away.
 */
enum device_front {
    DEVICE_UBLK,   /* /dev/ublkbN */
    DEVICE_NBD,    /* a unix socket */
    DEVICE_NBD_TCP /* HOST:PORT; whoever can connect can read, and write where it is writable */
};

enum device_state {
    DEVICE_SERVED,
    DEVICE_DEAD, /* its server died: the next server takes it over */
    DEVICE_LOST  /* the machine was started anew since: only the record is left */
};

struct device {
    char *path; /* "/dev/ublkb0", the socket, HOST:PORT: what it is called by */
    char *name; /* what was attached, as it was asked for */
    struct digest disk;
    bool writable;
    enum device_front front;
    enum device_state state;
};

struct device_list {
    struct device *all;
    size_t count;
};

/* Devices of a store, dead ones too. */
int device_list(struct device_list *out, const char *store_path, struct err *e) MUST_USE;
void device_list_fini(struct device_list *l);

struct device_request {
    const char *name; /* for people */
    const struct digest *disk;
    bool writable;
    enum device_front front;
    const char *address; /* NBD: absolute path of the socket, or HOST:PORT; ublk: NULL */
    const char *remote;  /* URL of the store that gives the chunks that are missing; NULL: none */
    bool complete;       /* fetch all of them in the background */
    const struct digest *template; /* its record, if it is a template's disk; else NULL */
};

/* Asks the store's server. *path is the device's, free with free(). *no_server: there is none, start
 * one (device_serve) and ask again. */
int device_attach(char **path, bool *no_server, const char *store_path,
                  const struct device_request *r, struct err *e) MUST_USE;

/* Removes a device, served or not; ERR_BUSY when it is mounted, unless `force`; ERR_NOTFOUND. */
int device_detach(const char *store_path, const char *path, bool force, struct err *e) MUST_USE;

struct device_serve_options {
    const struct cancel *cancel; /* required: ends the server, which removes its devices */
    void (*ready)(void *ctx);    /* called once requests are taken; may be NULL */
    void *ctx;
};

/* Serves until the last device is detached: takes over what a dead server left, then requests.
 * ERR_BUSY when another process serves this store's devices. */
int device_serve(const char *store_path, const struct device_serve_options *o,
                 struct err *e) MUST_USE;

#endif
