/* SPDX-License-Identifier: MIT */
/* Templates: finished ones, what they take, copies of them. */
#ifndef TB2_BAKE_TEMPLATE_H
#define TB2_BAKE_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/channel.h"
#include "bake/vm.h"
#include "base/attr.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"

struct store;

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

/* ---- Kept copies (bake/template/kept.c) ---------------------------------------------------------------- */

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

/* What was found when a template was proved right (bake/template/prove.c). */
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

#endif
