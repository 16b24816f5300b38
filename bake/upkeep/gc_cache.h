/* SPDX-License-Identifier: MIT */
/* Private to bake/upkeep: what gc removes from the cache directory. */
#ifndef TB2_BAKE_UPKEEP_GC_CACHE_H
#define TB2_BAKE_UPKEEP_GC_CACHE_H

#include "bake/upkeep.h"

/* Removes initramfs files older than the newest of their kernel, answers of the accelerator probe
 * from other boots of the host, and left-over temporaries, where they were last written before
 * `cutoff_ns`. */
int gc_cache(struct gc_report *out, const struct gc_options *o, int64_t cutoff_ns,
             struct err *e) MUST_USE;

#endif
