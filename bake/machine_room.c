/* SPDX-License-Identifier: MIT */
/* What any VM of this process needs: guest kernel, accelerator, VMM, the shared chunk cache. */
#include "bake/pipeline.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

/* Plain chunks kept in memory, shared by all devices of the process. */
enum { CHUNK_CACHE_SIZE = 256 << 20 };

size_t machine_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 1 ? (size_t)cores : 1;
}

int machine_room_open(struct machine_room *r, struct store *s, const char *cache_dir,
                      enum vm_accel accel, const struct cancel *c, struct err *e)
{
    *r = (struct machine_room){.store = s, .driver = &vm_qemu, .cancel = c};
    struct vm_accel_answer answer = {.accel = accel};
    int rc = vm_version(r->driver, &r->vmm, e);
    if (rc == 0)
        rc = guest_kernel_get(&r->kernel, cache_dir, c, e);
    if (rc == 0 && accel == VM_ACCEL_AUTO)
        rc = vm_accel_probe(&answer, &r->kernel, cache_dir, c, e);
    if (rc == 0)
        rc = chunk_cache_new(&r->cache, s, CHUNK_CACHE_SIZE, e);
    if (rc < 0) {
        machine_room_close(r);
        return rc;
    }
    r->accel = answer.accel;
    if (answer.reason[0])
        log_event(LOG_INFO, "bake", "%s: %s", r->accel == VM_ACCEL_KVM ? "KVM" : "emulation (TCG)",
                  answer.reason);
    return 0;
}

void machine_room_close(struct machine_room *r)
{
    chunk_cache_free(r->cache);
    guest_kernel_fini(&r->kernel);
    free(r->vmm);
    *r = (struct machine_room){0};
}
