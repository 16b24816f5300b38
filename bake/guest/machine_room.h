/* SPDX-License-Identifier: MIT */
/* What any VM of this process needs: guest kernel, VMM, accelerator, what of its memory is shared. */
#ifndef TB2_BAKE_GUEST_MACHINE_ROOM_H
#define TB2_BAKE_GUEST_MACHINE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/host.h"
#include "bake/vm/tap.h"
#include "base/cancel.h"
#include "base/err.h"

struct chunk_cache;
struct json;
struct memory_room;
struct once;
struct store;
struct template;

struct machine_room {
    struct store *store;
    const struct tap *tap; /* for guests with one; NULL: they get a user-mode network */
    struct tap own_tap;    /* what it points to, in a room for one template */
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

#endif
