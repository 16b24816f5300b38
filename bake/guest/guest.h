/* SPDX-License-Identifier: MIT */
/*
 * A guest: a VM, its disk and the channel to its agent. Used by one thread at a time.
 */
#ifndef TB2_BAKE_GUEST_GUEST_H
#define TB2_BAKE_GUEST_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/channel.h"
#include "bake/guest/machine_room.h"
#include "base/attr.h"
#include "base/digest.h"
#include "base/err.h"
#include "blockdev/blockdev.h"

struct guest_disk;
struct memory_image;
struct nbd_server;
struct prefetch;
struct secret_set;
struct template;
struct vm;

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

/* Stores what was changed of the disk since it was `base`, which is how it was at the last seal, or booted.
 * While the guest's disk is frozen or the guest is gone. */
int guest_seal(struct guest *g, const struct block_map *base, struct block_map **out,
               struct err *e) MUST_USE;

/* Boots from a boot image or from the kernel; returns when the agent has answered, has the right time
 * and a random generator of its own, and the disk is mounted. */
int guest_boot(struct guest **out, const struct machine_room *r, const struct guest_options *o,
               struct err *e) MUST_USE;

/* Restores: memory and device state from maps; returns when the guest runs, has the right time, a
 * reseeded random generator and a thawed disk. */
int guest_restore(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                  const struct template *t, struct err *e) MUST_USE;

/* Notes the state of the image's packages before the steps. */
int guest_note_packages(struct guest *g, struct err *e) MUST_USE;
/* False when packages are half installed now that were not so before. */
bool packages_are_whole(const struct agent_packages *before, const struct agent_packages *now);
/* Before a snapshot: waits a while for package managers to end. ERR_STEP, naming them, when they do not,
 * or when packages are half installed that were not so when they were noted (quiesce.c). */
int guest_quiesce(struct guest *g, struct err *e) MUST_USE;

/* Restores write the guest's memory to a file: they need that much disk. */
bool guest_memory_is_copied(const struct machine_room *r);

/* Syncs, freezes and snapshots a guest, whose disk lies over `base`: the digests of its maps go into the
 * document (snapshot.c). An error if a secret (NULL: there are none) is found in its memory. The guest can
 * only be freed after that, whatever the result. */
int guest_snapshot(struct guest *g, const struct block_map *base, const struct secret_set *secrets,
                   struct json *document, struct err *e) MUST_USE;

/* ERR_STEP, naming the secret, where a value is in what the guest has written to its disk. */
int guest_search_disk(struct guest *g, const struct secret_set *set, struct err *e) MUST_USE;
/* The same, and of its memory and its device state, when the machine has stopped. `set` may be NULL. */
int guest_search_all(struct guest *g, const char *state_path, const struct secret_set *set,
                     struct err *e) MUST_USE;

void guest_free(struct guest *g);
DEFINE_AUTO(guest, guest_free)
#define AUTO_GUEST CLEANUP(guest_free_auto_)

#endif
