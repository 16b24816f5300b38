/* SPDX-License-Identifier: MIT */
/* What guests read of their disks and memory, as a template's record keeps it. */
#ifndef TB2_BAKE_GUEST_TRACE_H
#define TB2_BAKE_GUEST_TRACE_H

#include "base/digest.h"
#include "base/json.h"
#include "blockdev/blockdev.h"

struct guest;
struct template;

/* Members of a template's record: extents of base_disk that a boot read until it was ready, and of
 * disk that a restore read. */
#define TRACE_BOOT "boot_trace"
#define TRACE_RESTORE "restore_trace"
/* Extents of memory, the first of each chunk, that a restore read; with them `memory_read`, the bytes of
 * memory that were read then. */
#define TRACE_MEMORY "memory_trace"

enum { TRACE_DELTA_MAX = 512 }; /* extents that steps changed and a boot fetches ahead */

/* Notes what has been read of the guest's disk so far; with TRACE_RESTORE also of its memory, unless that was
 * copied to a file. */
int trace_note(struct json *document, const char *member, const struct guest *g,
               struct err *e) MUST_USE;
/* The same for a boot from `from`, in numbers of `base`; what base has not is left out. */
int trace_note_boot(struct json *document, const struct guest *g, const struct block_map *from,
                    const struct block_map *base, struct err *e) MUST_USE;
/* The chunks of a noted trace, for free(); none where the record has no such member. TRACE_RESTORE stands for
 * all that a restore reads: device state, memory, disk. */
int trace_chunks(struct digest **out, size_t *count, const struct template *t, struct store *s,
                 const char *member, struct err *e) MUST_USE;

#endif
