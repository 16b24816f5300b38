/* SPDX-License-Identifier: MIT */
/* What of this host a snapshot that KVM made depends on. Thread-safe. */
#ifndef TB2_BAKE_VM_HOST_H
#define TB2_BAKE_VM_HOST_H

#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

enum { MACHINE_CPU_MAX = 96 };

struct machine_host {
    char cpu[MACHINE_CPU_MAX]; /* vendor, family, model: "AuthenticAMD 25 33"; "": not known */
    uint64_t tsc_khz;          /* rate of the time stamp counter of a guest; 0: not known */
    bool tsc_scales;           /* KVM can give a guest another rate */
    uint64_t page_size;
};

/* Never fails: what cannot be found stays empty. */
void machine_host_find(struct machine_host *out);

/* Adds the member `host` to a record. */
void machine_host_note(struct json *document, const struct machine_host *h,
                       const char *cpu_template);
/* ERR_UNSUPPORTED naming the field by which this host differs from the record's too much. What a
 * record does not have is not looked at. A guest with a CPU template needs the vendor alone.
 * `cpu_template`: the one that is asked for; NULL: whichever it has. */
int machine_host_check(const struct json *document, const struct machine_host *h,
                       const char *cpu_template, struct err *e) MUST_USE;

#endif
