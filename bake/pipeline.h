/* SPDX-License-Identifier: MIT */
/* Private to bake: what the stages of a run share. */
#ifndef TB2_BAKE_PIPELINE_H
#define TB2_BAKE_PIPELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "bake/bake.h"
#include "bake/history.h"
#include "bake/machine_host.h"
#include "bake/memory.h"
#include "bake/remote.h"
#include "bake/schedule.h"
#include "bake/secrets.h"
#include "bake/tap.h"
#include "bake/trace.h"
#include "bake/vm.h"
#include "base/cancel.h"
#include "blockdev/blockdev.h"
#include "manifests/manifest.h"
#include "oci/oci.h"
#include "registry/registry.h"

/* Bumped when the same inputs would give other bytes: part of every key. */
enum { FORMAT_VERSION = 2 };

/* ---- Work that several tasks want and one does --------------------------------------------- */

/* A failure that may pass (err_retryable) is only remembered for this long: then the next caller
 * tries again. */
enum { ONCE_FAILURE_MS = 4000 };

struct once;
int once_new(struct once **out, struct err *e) MUST_USE;
void once_free(struct once *o);
void once_set_failure_ms(struct once *o, int64_t ms); /* instead of ONCE_FAILURE_MS */
/*
 * The first caller for `key` gets *mine = true, does the work and calls once_end. The others wait
 * for that and get *mine = false with its value, or its error.
 */
int once_begin(struct once *o, const char *key, bool *mine, struct digest *value,
               struct err *e) MUST_USE;
/* `rc` and `e` are the work's result; `value` may be NULL. */
void once_end(struct once *o, const char *key, int rc, const struct digest *value,
              const struct err *e);

/* ---- Places ---------------------------------------------------------------------------------- */

/* A number of places, of which each is taken for as long as some work goes on. */
struct slots {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    unsigned count;
    unsigned used;
};
void slots_init(struct slots *s, unsigned count);
void slots_fini(struct slots *s);
/* NULL: there are places enough. */
int slots_enter(struct slots *s, const struct cancel *c, struct err *e) MUST_USE;
void slots_leave(struct slots *s);

/* ---- Tags held to digests (pins.c) ----------------------------------------------------------- */

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

/* ---- Room for layers that are ingested ------------------------------------------------------- */

/* Layers of all tasks pass through one gate: `workers` threads hash and compress for all of them, and
 * only a few are read at once. Thread-safe. */
struct ingest_gate;
int ingest_gate_new(struct ingest_gate **out, size_t workers, struct err *e) MUST_USE;
void ingest_gate_free(struct ingest_gate *g);             /* when nobody is inside */
void ingest_gate_enter(struct ingest_gate *g, bool wide); /* wide: may take OCI_WINDOW_MAX */
void ingest_gate_leave(struct ingest_gate *g, bool wide);
struct crew *ingest_gate_crew(struct ingest_gate *g);

/* ---- The machine room: what any VM of this process needs ------------------------------------ */

struct machine_room {
    struct store *store;
    const struct tap *tap; /* for guests with one; NULL: they get a user-mode network */
    struct chunk_cache *cache;
    struct memory_room *memory;
    struct guest_kernel kernel;
    char *cache_dir;
    char *cpu_template;       /* NULL: none */
    enum vm_accel accel;      /* resolved: KVM or TCG */
    struct machine_host host; /* with KVM alone */
    const struct vm_driver *driver;
    char *vmm;          /* vm_version */
    struct once *boots; /* boot images that are made; NULL: guests boot from their kernel */
    const struct cancel *cancel;
};
/* What guests are wanted to run in; borrowed for the call. */
struct machine_wants {
    const char *cache_dir;
    const struct vm_driver *driver; /* NULL: the one that fits best */
    enum vm_accel accel;
    const char *made_by;      /* VMM of the template that is to be restored; NULL: none is */
    bool user_network;        /* some guest needs a user-mode network card */
    const char *cpu_template; /* vm_options; NULL: none */
    const struct cancel *cancel;
};
/* Finds kernel, VMM and accelerator, and logs why these; ERR_NOTFOUND with a hint when something is
 * missing, ERR_UNSUPPORTED when what is asked for cannot be had. */
int machine_room_open(struct machine_room *r, struct store *s, const struct machine_wants *w,
                      struct err *e) MUST_USE;
void machine_room_close(struct machine_room *r); /* a zeroed one is fine */
/* A snapshot fits only the machine it was made with: ERR_UNSUPPORTED naming the field that differs.
 * Before anything is loaded. */
int machine_room_fits(const struct machine_room *r, const struct template *t,
                      struct err *e) MUST_USE;
struct guest_options;
/* Adds to a key what guests with these options are made with: kernel, VMM, accelerator, size, network. */
void machine_room_note(struct json *key, const struct machine_room *r,
                       const struct guest_options *o);
/* Processors of this machine, at least 1: how many threads work on one layer or one file. */
size_t machine_cores(void);

/* ---- A guest: VM, its disk and the channel to its agent -------------------------------------- */

struct guest_options {
    const struct block_map *disk; /* borrowed for the guest's life */
    uint32_t cpus;
    uint64_t memory_mb;
    bool network;
    bool tap;            /* on the room's tap device */
    bool cold;           /* a boot from the kernel, whatever there is */
    bool scrub;          /* a boot: the guest's kernel clears memory as it is freed */
    bool snapshot_again; /* of a restore: guest_snapshot can be made of it */
    const char *console; /* file of the store that gets the console log at the end; NULL: none */
    const struct secret_set
        *secrets; /* masked in that file; borrowed for the guest's life; NULL: none */
    /* Chunks that will be read, borrowed for the call: fetched ahead where the store has a source, and
     * unpacked ahead where they are here. */
    const struct digest *ahead;
    size_t ahead_count;
};

struct guest {
    const struct machine_room *room;
    char *console; /* see guest_options */
    const struct secret_set *secrets;
    char *dir;                   /* sockets, console log, memory; removed with the guest */
    char *memory_path;           /* a file of its own, of a boot or a copied memory */
    struct memory_image *memory; /* of a restore; NULL: booted */
    struct bdev *leaf;           /* the map; belongs to `disk` */
    struct bdev *disk;           /* copy-on-write over it */
    struct guest_disk *front;    /* what a VMM without NBD has as its disk; NULL: `nbd` */
    struct prefetch *ahead;      /* NULL: nothing is fetched ahead */
    struct nbd_server *nbd;
    const struct block_map *booted; /* the map of its disk, as it began; borrowed */
    struct block_map *boot_memory;  /* of the boot image that it began as; NULL: none */
    struct digest boot_image;       /* its key */
    struct vm *vm;
    struct agent *agent; /* NULL before connect and after disconnect */
    uint64_t memory_mb;
    int64_t clock_error_ns;         /* of its clock when it was set, at most */
    struct agent_packages packages; /* as they were when the steps began */
};

/* The disk of a guest that is being made, and its end (guest_disk.c). */
int guest_disk_start(struct guest *g, const struct block_map *disk, struct err *e) MUST_USE;
void guest_disk_stop(struct guest *g);
/* Of a block device or a file, for vm_options.disk_path; NULL with NBD. */
const char *guest_disk_path(const struct guest *g);
/* Brings what the guest changed into `disk`, which a VMM that writes to a file of its own does not.
 * Before bdev_cow_seal, while the guest's disk is frozen or the guest is gone. */
int guest_disk_settle(struct guest *g, struct err *e) MUST_USE;
/* Stores what was changed of the disk since it was `base`, which is how it was at the last seal, or booted.
 * The same conditions. */
int guest_seal(struct guest *g, const struct block_map *base, struct block_map **out,
               struct err *e) MUST_USE;
/* Removes devices that killed processes left. */
void guest_disk_sweep(const struct machine_room *r);

/* Boots from a boot image or from the kernel; returns when the agent has answered, has the right time
 * and a random generator of its own, and the disk is mounted. */
int guest_boot(struct guest **out, const struct machine_room *r, const struct guest_options *o,
               struct err *e) MUST_USE;
/* Restores: memory and device state from maps; returns when the guest runs, has the right time, a
 * reseeded random generator and a thawed disk. */
int guest_restore(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                  const struct template *t, struct err *e) MUST_USE;
/* Sets the guest's clock and makes sure that it is right within a second (guest_clock.c). */
int guest_set_clock(struct guest *g, struct err *e) MUST_USE;
/* Notes the state of the image's packages before the steps. */
int guest_note_packages(struct guest *g, struct err *e) MUST_USE;
/* False when packages are half installed now that were not so before. */
bool packages_are_whole(const struct agent_packages *before, const struct agent_packages *now);
/* Before a snapshot: waits a while for package managers to end. ERR_STEP, naming them, when they do not,
 * or when packages are half installed that were not so when they were noted (quiesce.c). */
int guest_quiesce(struct guest *g, struct err *e) MUST_USE;
/* Appends the console log to the file of guest_options.console; none where there is none (guest_console.c). */
void guest_keep_console(const struct guest *g);
/* Restores write the guest's memory to a file: they need that much disk. */
bool guest_memory_is_copied(const struct machine_room *r);
void guest_free(struct guest *g);
DEFINE_AUTO(guest, guest_free)
#define AUTO_GUEST CLEANUP(guest_free_auto_)

/* ---- What runs in a guest -------------------------------------------------------------------- */

/* Environment, work directory and user, as steps change them. */
struct guest_context {
    char **env; /* NULL-terminated, sorted by name */
    size_t env_count;
    size_t env_capacity;
    char *workdir;
    char *user;
};
/* Sets or replaces a variable. */
int guest_context_set(struct guest_context *c, const char *name, const char *value,
                      struct err *e) MUST_USE;
int guest_context_set_pair(struct guest_context *c, const char *pair, struct err *e) MUST_USE;
void guest_context_fini(struct guest_context *c);

/* Receives what guest commands print. */
struct output_tap {
    void (*line)(void *ctx, const char *line);
    void *ctx;
};

/* Reads what copy steps and grafts of directories and tarballs lay, for their digests (has_content): before
 * recipe_canonical. ERR_INPUT with the step's line. */
int recipe_read_files(struct recipe *r, const struct cancel *c, struct err *e) MUST_USE;
/* Lays files of the host in the guest's tree, as docs/formats/recipe.md says of `copy`; a `to` that is relative
 * starts from `workdir`. ERR_STEP when they are not those of f->content any more. */
int guest_lay_files(struct guest *g, const struct recipe_files *f, const char *workdir,
                    struct err *e) MUST_USE;

/* A recipe's steps in one guest: what they need, and what they leave for each other. */
struct step_run {
    const struct recipe *recipe;
    struct guest_context *context;    /* as the steps so far have left it */
    const struct output_tap *tap;     /* may be NULL */
    const struct secret_set *secrets; /* values; NULL: none was given */
    struct image_room *images;        /* for grafts; NULL: there are none */
    struct buf earlier; /* ends of what earlier steps printed to stderr; zeroed at first */
};
void step_run_fini(struct step_run *run);

/* Runs one step; run->context is updated. Errors name the step and its last output. */
int guest_run_step(struct guest *g, struct step_run *run, size_t index, struct err *e) MUST_USE;
/* For a step whose effects on the guest are there already: updates run->context alone. */
int guest_skip_step(struct step_run *run, size_t index, struct err *e) MUST_USE;
/* Runs all steps. */
int guest_run_steps(struct guest *g, struct step_run *run, struct err *e) MUST_USE;

/* ERR_STEP, naming the secret, where a value is in what the guest has written to its disk. */
int guest_search_disk(struct guest *g, const struct secret_set *set, struct err *e) MUST_USE;
/* The same, and of its memory and its device state, when the machine has stopped. `set` may be NULL. */
int guest_search_all(struct guest *g, const char *state_path, const struct secret_set *set,
                     struct err *e) MUST_USE;

/* Starts the start command (*process = 0: there is none). */
int guest_start(struct guest *g, const struct recipe *r, const struct guest_context *context,
                uint64_t *process, struct err *e) MUST_USE;

/* Fails when the start command (0: there is none) has ended with a failure; an end with status 0 is
 * fine: it may have left a daemon behind. */
int guest_check_started(struct guest *g, uint64_t process, struct err *e) MUST_USE;

/* Waits for the ready check to pass; fails at once when the start command has ended with a
 * failure. */
int guest_wait_ready(struct guest *g, const struct recipe_ready *ready,
                     const struct guest_context *context, uint64_t process, struct err *e) MUST_USE;

/* ---- The step cache (step_cache.c, step_claims.c; docs/decisions/0026-step-cache.md) ---------------- */

/* Keys of results, each of what comes before it: of an assembled disk in a machine, then of one step
 * after another, with the context that it runs in. */
int step_key_begin(struct digest *key, const struct machine_room *r, const struct guest_options *o,
                   const struct digest *base_disk, struct err *e) MUST_USE;
int step_key_next(struct digest *key, const struct recipe *r, const struct recipe_step *step,
                  const struct guest_context *c, struct err *e) MUST_USE;

/* The disk as it was after the step with this key, if the store has all that it changed of `base`;
 * else *out is NULL. */
int step_find(struct block_map **out, struct store *s, const struct digest *key,
              const struct block_map *base, struct err *e) MUST_USE;
/* Keeps it; not durably. */
int step_put(struct store *s, const struct digest *key, const struct block_map *disk,
             struct err *e) MUST_USE;
void step_forget(struct store *s, const struct digest *key);

/* Steps that tasks of this process are running. Thread-safe. */
struct step_claim;
struct step_claims {
    pthread_mutex_t lock;
    pthread_cond_t released;
    struct step_claim *first;
};
void step_claims_init(struct step_claims *c);
void step_claims_fini(struct step_claims *c);
/* *mine: nobody was running it, and now the caller is, until step_release. */
int step_claim(struct step_claims *c, const struct digest *key, bool *mine, struct err *e) MUST_USE;
void step_release(struct step_claims *c, const struct digest *key);
/* Returns when nobody is running it. */
int step_wait(struct step_claims *c, const struct digest *key, const struct cancel *cancel,
              struct err *e) MUST_USE;

/* ---- Images and disks ------------------------------------------------------------------------ */

/* What an image's layer is to bakers who share a remote store. */
enum layer_share {
    SHARE_NONE,
    SHARE_PUBLISH,   /* ours to send, once the store has it */
    SHARE_ELSEWHERE, /* someone else makes it: not to be pulled or ingested now */
};
struct image_source;

struct image {
    char *text; /* the reference as written */
    struct oci_ref ref;
    const struct image_source *source;
    struct oci_layout *layout; /* of images in files */
    struct digest root;        /* what the reference stands for: an index or a manifest */
    struct oci_manifest manifest;
    struct oci_config config;
    enum layer_share *shares; /* one per layer; NULL: nothing is shared */
    struct oci_descriptor at; /* of the manifest */
    /* A native image: its layers are here, bottom first, and none is in manifest and config. */
    bool native;
    struct oci_descriptor *native_layers;
    size_t native_count;
    struct image_work *work; /* layers on their way into the store, between pull and ingest */
    /* Layers of a recipe's grafts, bottom first; the first graft_count of them are laid over it when it
     * is assembled. */
    struct digest *grafts;
    size_t graft_count, graft_total;
};

/* Archives that are open, by their paths. */
struct open_archive;
struct image_archives {
    bool ready;
    pthread_mutex_t lock;
    struct open_archive *first;
};
void image_archives_init(struct image_archives *a);
void image_archives_fini(struct image_archives *a); /* a zeroed one is fine */

/* Where images come from: shared by the tasks of a run. */
struct image_room {
    struct store *store;
    struct registry *registry; /* NULL when offline */
    struct once *once;
    struct remote *remote;  /* borrowed; NULL: none */
    atomic_size_t ingested; /* layers */
    struct pins *pins;      /* NULL: none */
    struct slots *network;  /* transfers at once; NULL: any number */
    struct ingest_gate *ingest;
    struct image_archives archives;
    bool offline;
    struct oci_platform platform; /* that is wanted */
    char platform_text[OCI_PLATFORM_MAX];
    const struct cancel *cancel;
};

int image_room_open(struct image_room *r, struct store *s, const struct image_options *o,
                    const struct cancel *c, struct err *e) MUST_USE;
void image_room_close(struct image_room *r); /* a zeroed one is fine */

enum image_document { IMAGE_MANIFEST /* or an index */, IMAGE_CONFIG };

/* A kind of place that images come from. */
struct image_source {
    /* The descriptor that the reference stands for; its size may be 0 when that is not known. For
     * oci_descriptor_fini, whatever the result. */
    int (*start)(struct image *i, struct image_room *r, struct oci_descriptor *out, struct err *e);
    /* A document, verified, appended to `out` (whose ceiling is set). */
    int (*document)(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    enum image_document what, struct buf *out, struct err *e);
    /* A layer's blob as it is, for source_close; called from several threads. */
    int (*layer)(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                 struct source *out, struct err *e);
    bool is_local; /* see image_is_local */
};
extern const struct image_source image_from_registry;
extern const struct image_source image_from_files;
/* ERR_DIGEST when the bytes are not those of the digest. */
int image_check_document(const struct digest *d, const struct buf *bytes, struct err *e) MUST_USE;
/* ERR_NOTFOUND with a hint: `what` is missing, and may not be asked for. */
int image_missing_offline(struct err *e, const char *what);

int image_resolve(struct image **out, struct image_room *r, const char *text,
                  struct err *e) MUST_USE;
void image_free(struct image *i);
DEFINE_AUTO(image, image_free)
#define AUTO_IMAGE CLEANUP(image_free_auto_)

/* Name of a blob in the store: DIRECTORY/ALGORITHM-HEX. */
enum { BLOB_PATH_MAX = 24 + DIGEST_TEXT_MAX };
void image_blob_path(char path[BLOB_PATH_MAX], const char *directory, const struct digest *d);

/* True where the blobs are read from where they are (a layout, an archive): none is pulled, none is
 * dropped. */
bool image_is_local(const struct image *i);
/* The compressed blob of layer `n`, which image_pull has seen to, for source_close. */
int image_open_layer(struct image *i, struct image_room *r, size_t n, struct source *out,
                     struct err *e) MUST_USE;

/* Forgets what the store has of the image's layers and is damaged. Before image_pull. */
int image_drop_damaged(struct image *i, struct image_room *r, struct err *e) MUST_USE;

/*
 * Gets the blobs of the layers that are not in the store and begins to ingest them as they arrive,
 * several at once; returns when all have arrived. Nothing is fetched of a local image. What several
 * images share is done once, by whichever comes first. `progress` is called by one thread at a time.
 * An error of a blob that did not arrive; those of ingesting it are image_ingest's. Of several layers
 * that fail, the lowest is reported.
 */
int image_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
               struct err *e) MUST_USE;
/* After image_pull: waits until all layers are in the store, as chunks and indexes. */
int image_ingest(struct image *i, struct image_room *r, struct err *e) MUST_USE;
/* Ends what image_pull began and image_ingest did not wait for. */
void image_work_free(struct image_work *w);
/* The disk of the image with `free_size` bytes of free room, as a stored map. */
int image_assemble(struct image *i, struct image_room *r, uint64_t free_size,
                   struct block_map **out, struct digest *digest, struct err *e) MUST_USE;

/* Gets one blob of an image in a registry into blobs/, unless it is there. */
int image_pull_blob(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    const struct registry_progress *progress, struct err *e) MUST_USE;

/* The same steps for native images (native.c), called by those above. */
int native_take_layers(struct image *i, struct err *e) MUST_USE;
int native_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
                struct err *e) MUST_USE;
int native_assemble(struct image *i, struct image_room *r, struct block_map **out,
                    struct digest *digest, struct err *e) MUST_USE;

/* Layers as the store keeps them (docs/formats/store.md). */
bool layer_has(struct store *s, const struct digest *diff_id);
/* Forgets the layer if its file is damaged or chunks of it are missing, so that it is made again.
 * `elsewhere`: a remote store has the layer, and with it chunks that are missing here. */
void layer_drop_damaged(struct store *s, const struct digest *diff_id, bool elsewhere);
/* A blob that is to become a layer of the store. */
struct layer_blob {
    const struct source *source;
    const struct oci_descriptor *descriptor;
    const struct digest *diff_id; /* NULL: not known */
};
/* What a layer's file holds. */
struct layer_made {
    struct oci_layer *layer;
    struct digest region; /* name of its region's map, which is in the store */
};
void layer_made_fini(struct layer_made *m);
/* Where file data go while a layer is read: `ctx` is a region writer. */
extern const struct oci_data_ops layer_region_ops;
/* As layer_ingest, but it gets no name. */
int layer_read_blob(struct layer_made *out, struct store *s, const struct layer_blob *blob,
                    struct ingest_gate *g, const struct cancel *c, struct err *e) MUST_USE;
/* Gives it one, with the promises of layer_ingest. */
int layer_put(struct store *s, const struct digest *diff_id, const struct layer_made *made,
              struct err *e) MUST_USE;
/* Waits for a place in the gate first. A layer is not made durable: one that a power cut damages is
 * made again, and the map of a disk that needs it syncs it (docs/decisions/0012-ingest.md). */
int layer_ingest(struct store *s, const struct layer_blob *blob, struct ingest_gate *g,
                 const struct cancel *c, struct err *e) MUST_USE;
/* A layer's file, decoded; *region is the name of its region's map. The bytes may come from anywhere:
 * ERR_CORRUPT. */
int layer_decode_file(const struct buf *file, struct digest *region, struct oci_layer **layer,
                      struct err *e) MUST_USE;
/* Name of the region's map of a layer that the store has. */
int layer_region(struct store *s, const struct digest *diff_id, struct digest *region,
                 struct err *e) MUST_USE;
int layer_load(struct store *s, const struct digest *diff_id, struct oci_layer **layer,
               struct block_map **region, struct err *e) MUST_USE;
/* Checks the file of a layer, without marking it as used; *region is its region's map. */
int layer_inspect(struct store *s, const char *path, struct digest *region, struct err *e) MUST_USE;

/* ---- Grafts (graft.c, graft_fit.c, graft_lay.c) ------------------------------------------------ */

/* Finds out what grafts of images stand for, for their digests (has_content): before
 * recipe_canonical. */
int graft_resolve(struct recipe *r, struct image_room *room, struct pins *pins,
                  struct err *e) MUST_USE;
/* Steps from the first on whose grafts are laid when the disk is assembled, without a guest. `native`: the
 * image is. */
size_t graft_head(const struct recipe *r, bool native);
/* The layers that the graft of a step becomes, in order, for free(): made unless the store has them.
 * Several tasks make them once. */
int graft_make(struct digest **ids, size_t *count, struct image_room *room,
               const struct recipe_files *f, struct err *e) MUST_USE;
/* Bytes of the graft's own path in the paths of its layers' entries. */
size_t graft_path_len(const struct recipe_files *f);
/* Makes the layers of all grafts, and sets image->grafts. */
int graft_prepare(struct image *i, struct image_room *room, const struct recipe *r,
                  struct err *e) MUST_USE;
/* Takes out of a graft's layer the directories that are there in `below` by way of a link. ERR_INPUT
 * where a file would replace a directory, or the other way round. */
int graft_fit(struct oci_layer *graft, const struct oci_tree *below, struct err *e) MUST_USE;
/* Lays a graft in a running guest; ERR_UNSUPPORTED for what the agent cannot lay: devices, pipes,
 * extended attributes. */
int graft_lay(struct guest *g, struct image_room *room, const struct recipe_files *f,
              struct err *e) MUST_USE;

/* ---- Templates ------------------------------------------------------------------------------- */

/* Everything that can change the result of a task. */
struct key_inputs {
    const struct task *task;
    const struct image *image;
    const struct json *recipe; /* canonical */
    const struct machine_room *room;
};
int template_key(struct digest *out, const struct key_inputs *in, struct err *e) MUST_USE;

/* *found if a template with this key is in the store; *record is then its record. */
int template_find_key(struct store *s, const struct digest *key, bool *found, struct digest *record,
                      struct err *e) MUST_USE;
int template_load_record(struct template **out, struct store *s, const struct digest *record,
                         struct err *e) MUST_USE;
/* The same without marking the record as used. */
int template_peek(struct template **out, struct store *s, const struct digest *record,
                  struct err *e) MUST_USE;
/* Tasks that have all in common but their names share a record: the catalog says which is meant. */
int template_rename(struct template *t, const char *alias, const char *task,
                    struct err *e) MUST_USE;
/* A template from a document that is not stored yet; copies it. */
int template_from_document(struct template **out, const struct json *document,
                           struct err *e) MUST_USE;
/* Stores the document as a record and the key's pointer to it. */
int template_put(struct store *s, const struct digest *key, const struct json *document,
                 struct digest *record, struct err *e) MUST_USE;
/* Notes in `past` ({task: {record, time_ns}}) what the alias stands for, if it is newer than what is
 * there. */
int catalog_note(struct store *s, const char *alias, struct json *past, struct err *e) MUST_USE;
/* Points the alias to the record. */
int catalog_put(struct store *s, const char *alias, const char *task, const struct digest *key,
                const struct digest *record, struct err *e) MUST_USE;

/* Adds the member `check` to a catalog entry: the digest of its canonical text without it. */
int catalog_seal(struct json *entry, struct err *e) MUST_USE;

/* A digest as a JSON string; NULL when memory is short. */
struct json *json_digest(const struct digest *d);
/* The digest of a document's canonical text. */
int json_hash(struct digest *out, const struct json *j, struct err *e) MUST_USE;
/* The digest that a required member holds. */
int json_get_digest(const struct json *j, const char *key, struct digest *out,
                    struct err *e) MUST_USE;

/* The ready check as the record keeps it. */
int ready_decode(struct recipe_ready *out, const struct json *document, struct err *e) MUST_USE;
struct json *ready_encode(const struct recipe_ready *r);
void ready_fini(struct recipe_ready *r);

/* ---- Remote stores (remote_layers.c, remote_template.c) --------------------------------------- */

/* In all of these `r` may be NULL: no remote store, nothing to do. A remote store that fails is
 * logged, and done without. */

/* Takes over the image's layers that the remote store has, claims those that nobody has; *waiting:
 * some are left to someone else (image->shares), and to be asked for again. */
int remote_image_begin(struct remote *r, struct image *i, bool *waiting, struct err *e) MUST_USE;
/* Publishes what was claimed and is in the store now, gives the claims back. `result` (with its error
 * in `e`) is that of the work in between; it is returned. */
int remote_image_end(struct remote *r, const struct image *i, int result, struct err *e) MUST_USE;
bool remote_has_layer(struct remote *r, const struct digest *diff_id);
/* Sleeps between two looks at what someone else does; *round counts them. */
int remote_wait(struct remote *r, unsigned *round, struct err *e) MUST_USE;

/* The template with this key: taken over (then the store has it), or claimed, or *busy: someone else
 * makes it. */
int remote_template_begin(struct remote *r, const struct digest *key, bool *busy,
                          struct err *e) MUST_USE;
/* Publishes a template unless the remote store has it, and its catalog entry; gives the claim back.
 * `image` may be NULL. */
void remote_template_publish(struct remote *r, const struct template *t, const struct image *image);
void remote_template_drop(struct remote *r, const struct digest *key);

/* ---- One task -------------------------------------------------------------------------------- */

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

/*
 * One run per store at a time: what two would do twice is done once. *fd holds the lock until it is
 * closed. Not the lock of store_open: others list and restore templates while a run goes on.
 * ERR_BUSY with a hint when another run holds it.
 */
int run_lock(int *fd, struct store *s, struct err *e) MUST_USE;

/* The tasks of a run (run_tasks.c): finds the set, selects, reads, names aliases. ERR_INPUT when two
 * tasks have the same alias. */
int run_choose_tasks(struct run *run, struct bake_report *out, struct err *e) MUST_USE;

/* Which entries of a set are meant; every one costs the same. */
struct task_selection bake_task_selection(const struct bake_selection *s);

/* What is 0 becomes what fits this machine. */
struct bake_limits bake_settle_limits(const struct bake_limits *l);
/* MB that are free where the guests' memory files and deltas go. */
uint64_t bake_free_mb(const struct store *s);

/* What a person named and is not there becomes ERR_INPUT with the hint; others stay. */
int run_blame_input(struct err *e, const char *hint);

/* ---- Recipe providers (provider.c) ------------------------------------------------------------ */

struct provider_options {
    const char *command; /* for sh; with {}, once for each task, else once for all */
    const struct task_set *set;
    const bool *marks; /* entries of the set that are selected */
    const struct cancel *cancel;
};
struct provider;
int provider_open(struct provider **out, const struct provider_options *o, struct err *e) MUST_USE;
void provider_free(struct provider *p);
DEFINE_AUTO(provider, provider_free)
#define AUTO_PROVIDER CLEANUP(provider_free_auto_)
/* Gives a task, which was read, the image, user, size, recipe and alias that it is told. */
int provider_apply(const struct provider *p, struct baking *b, struct err *e) MUST_USE;
/* Says so where a provider's alias is another than the rule's. */
void provider_compare_alias(const struct baking *b, const char *ours);

/* The calling thread's time for the stage that the task has begun. */
void stage_limit_begin(const struct baking *b);
/* It works on no task's stage any more. */
void stage_limit_end(const struct run *run);
/* Where the time was up, says so, and which option allows more. */
void stage_limit_explain(const struct baking *b, struct err *e);

/* For the scheduler (task.c): the first lane of a task, its work in the lane it is in, its end when
 * the run was told to stop. */
struct schedule_next task_first(void *run, size_t index);
struct schedule_next task_work(void *run, size_t index);
void task_drop(void *run, size_t index);

/* What of a task's inputs is new since its last template (why.c); free with free(). */
int task_why(struct baking *b, char **out, struct err *e) MUST_USE;

/* Boot, steps, ready, snapshot: the template's document. */
int warm_task(struct baking *b, const struct block_map *disk, const struct digest *base_disk,
              const struct digest *key, struct json **document, struct err *e) MUST_USE;

/* ---- Kept copies (kept.c) ---------------------------------------------------------------------- */

/* Syncs, freezes and snapshots a guest, whose disk lies over `base`: the digests of its maps go into the
 * document (warm.c). An error if a secret (NULL: there are none) is found in its memory. The guest can
 * only be freed after that, whatever the result. */
int guest_snapshot(struct guest *g, const struct block_map *base, const struct secret_set *secrets,
                   struct json *document, struct err *e) MUST_USE;

struct kept_reason {
    const char *name;                 /* of the copy; one that has it is replaced */
    const char *text;                 /* for people: why it is there */
    const struct secret_set *secrets; /* that must not be in it; NULL: none */
};
/* As guest_snapshot; then the copy is in the store, with a document made from this one. */
int kept_snapshot(struct guest *g, const struct block_map *base, const struct json *document,
                  const struct kept_reason *why, struct err *e) MUST_USE;
int kept_put(struct store *s, const char *name, const struct json *document,
             struct err *e) MUST_USE;
/* True for what may be an alias or the name of a copy. */
bool alias_is_legal(const char *name);

/* ---- Copies of templates, and the proof (use.c, prove.c, disk_check.c) ------------------------ */

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

int register_template(struct baking *b, const struct template *t, struct err *e) MUST_USE;

/* Events: stage changes, progress, output; also written to the journal. */
void baking_stage(struct baking *b, enum bake_stage stage);
void baking_progress(struct baking *b, uint64_t done, uint64_t total);
void baking_output(void *baking, const char *line);
void baking_finish(struct baking *b);
void baking_wait(struct baking *b);
void baking_retried(struct baking *b, const struct err *why);
void run_event(struct run *run, const struct bake_event *event);

/* Names the file for the console log of the task's machines, beside the run's journal. */
void baking_name_console(struct baking *b);

/* Events about what registries grant, while the run goes on and someone listens. */
struct traffic_watch;
int traffic_watch_start(struct traffic_watch **out, struct run *run, struct err *e) MUST_USE;
void traffic_watch_stop(struct traffic_watch *w);

/* Opens the run's journal; *path is its name in the store, free with free(). */
int journal_open(struct run *run, char **path, struct err *e) MUST_USE;

/* Hands over the disk of each attached device (its map). */
int device_disks(struct store *s, void (*each)(void *ctx, const struct digest *disk), void *ctx,
                 struct err *e) MUST_USE;

#endif
