/* SPDX-License-Identifier: MIT */
/* Private to bake/guest: guests before they run and after they were stopped. A guest is used by one thread at a time. */
#ifndef TB2_BAKE_GUEST_INTERNAL_H
#define TB2_BAKE_GUEST_INTERNAL_H

#include "bake/guest/boot_image.h"
#include "bake/guest/guest.h"

/* Kernel start to the agent's hello; seconds even under TCG. */
enum { GUEST_BOOT_TIMEOUT_MS = 180000, GUEST_RESTORE_TIMEOUT_MS = 60000 };

/* Directory and disk, no machine yet. */
int guest_new(struct guest **out, const struct machine_room *r, const struct guest_options *o,
              struct err *e) MUST_USE;
struct vm_options guest_vm_options(const struct guest *g, const struct guest_options *o);
/* Gives the guest's card the addresses of what it is connected to now. */
int guest_connect_network(struct guest *g, const struct guest_options *o, struct err *e) MUST_USE;
/* Starts the machine from a snapshot. */
int guest_load(struct guest *g, const struct guest_options *o, const struct guest_saved *s,
               struct err *e) MUST_USE;

/* ---- What a stopped guest leaves (take.c) ---- */

/* Stores the chunks of a file of the guest's directory and removes it; *size: its bytes. */
int guest_take_file(struct guest *g, const char *path, struct block_map **out, uint64_t *size,
                    struct err *e) MUST_USE;

/* Stores the guest's memory, which shares what it can with the boot image and the disk, and removes the
 * file; `disk` is what the guest's disk became. */
int guest_take_memory(struct guest *g, const struct block_map *disk, struct block_map **out,
                      struct err *e) MUST_USE;

/* ---- Boot images (boot_image.c) ---- */

/* The boot image for such guests: from the store, else made, once whoever asks, also in other
 * processes. `bad` (may be NULL) is one that did not do: it is made again. */
int boot_image_get(struct boot_image *out, const struct machine_room *r,
                   const struct guest_options *o, const struct boot_image *bad,
                   struct err *e) MUST_USE;

/* Boots from the kernel until the agent has answered; with `mounted`, as guest_boot does. */
int guest_boot_cold(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                    bool mounted, struct err *e) MUST_USE;

/* ---- Its parts ---- */

/* The disk of a guest that is being made, and its end (disk.c). */
int guest_disk_start(struct guest *g, const struct block_map *disk, struct err *e) MUST_USE;
void guest_disk_stop(struct guest *g);
/* Of a block device or a file, for vm_options.disk_path; NULL with NBD. */
const char *guest_disk_path(const struct guest *g);
/* Brings what the guest changed into `disk`, which a VMM that writes to a file of its own does not.
 * Before bdev_cow_seal, while the guest's disk is frozen or the guest is gone. */
int guest_disk_settle(struct guest *g, struct err *e) MUST_USE;
/* Removes devices that killed processes left. */
void guest_disk_sweep(const struct machine_room *r);
/* Sets the guest's clock and makes sure that it is right within a second (clock.c). */
int guest_set_clock(struct guest *g, struct err *e) MUST_USE;
/* Appends the console log to the file of guest_options.console; none where there is none (console_log.c). */
void guest_keep_console(const struct guest *g);

#endif
