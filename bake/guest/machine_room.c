/* SPDX-License-Identifier: MIT */
/*
 * What any VM of this process needs: guest kernel, VMM, accelerator, the shared chunk cache.
 *
 * Which VMM: the one that is asked for; for a template the one that made it, since its snapshot fits
 * no other; else Firecracker where it can do all that is wanted, and QEMU where it cannot. Why is
 * logged.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/common/once.h"
#include "bake/guest/boot_image.h"
#include "bake/guest/internal.h"
#include "bake/guest/machine_room.h"
#include "bake/guest/memory.h"
#include "bake/kernel.h"
#include "bake/template.h"
#include "bake/vm.h"
#include "bake/vm/host.h"
#include "base/log.h"
#include "base/mem.h"

/* Plain chunks kept in memory, shared by all devices of the process. */
enum { CHUNK_CACHE_SIZE = 256 << 20 };

static const char *accel_name(enum vm_accel accel)
{
    return accel == VM_ACCEL_KVM ? "KVM" : "emulation (TCG)";
}

/* ---- The VMM ---- */

static bool made_by(const char *vmm, const struct vm_driver *d)
{
    size_t len = strlen(vm_driver_name(d));
    return vmm && strncmp(vmm, vm_driver_name(d), len) == 0 && vmm[len] == ' ';
}

static int find_accel(struct machine_room *r, const struct machine_wants *w,
                      struct vm_accel_answer *answer, struct err *e)
{
    *answer = (struct vm_accel_answer){.accel = w->accel};
    if (w->accel == VM_ACCEL_TCG)
        return 0;
    const struct vm_probe probe = {.driver = r->driver,
                                   .kernel = &r->kernel,
                                   .cache_dir = r->cache_dir,
                                   .insist = w->accel == VM_ACCEL_KVM,
                                   .cancel = r->cancel};
    int rc = vm_accel_probe(answer, &probe, e);
    if (rc < 0 || !probe.insist || answer->accel == VM_ACCEL_KVM)
        return rc;
    (void)err_set(e, ERR_UNSUPPORTED, "--accel kvm: %s", answer->reason);
    return err_hint(
        e, "--accel auto or tcg emulates guests, many times slower; tb2-bake doctor has more");
}

static int take_driver(struct machine_room *r, const struct machine_wants *w,
                       const struct vm_driver *d, struct err *e)
{
    struct vm_accel_answer answer;
    r->driver = d;
    int rc = vm_version(d, &r->vmm, e);
    if (rc == 0)
        rc = find_accel(r, w, &answer, e);
    if (rc < 0)
        return rc;
    r->accel = answer.accel;
    if (r->accel != VM_ACCEL_KVM && !vm_driver_can(d)->emulation) {
        (void)err_set(e, ERR_UNSUPPORTED, "%s runs guests with KVM alone%s%s", r->vmm,
                      answer.reason[0] ? ": " : "", answer.reason);
        return err_hint(e, "use QEMU (--vmm qemu)");
    }
    if (w->user_network && !vm_driver_can(d)->user_network) {
        (void)err_set(e, ERR_UNSUPPORTED, "%s has no user-mode network", r->vmm);
        return err_hint(e, "use the recipe's network none, or QEMU (--vmm qemu)");
    }
    if (answer.reason[0])
        log_event(LOG_INFO, "bake", "%s: %s", accel_name(r->accel), answer.reason);
    return 0;
}

/* Why Firecracker is not for this, or an empty text. */
static void judge_firecracker(const struct machine_room *r, const struct machine_wants *w,
                              char *why, size_t len)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *version = NULL;
    why[0] = 0;
    if (w->accel == VM_ACCEL_TCG)
        snprintf(why, len, "Firecracker does not emulate");
    else if (w->user_network)
        snprintf(why, len, "a recipe wants network user, which Firecracker has not");
    else if (!r->kernel.vsock)
        snprintf(why, len, "the guest kernel in the cache has no vsock modules");
    else if (access("/dev/kvm", R_OK | W_OK) < 0)
        snprintf(why, len, "Firecracker needs /dev/kvm");
    else if (vm_version(&vm_firecracker, &version, &e) < 0)
        snprintf(why, len, "%s", e.text);
}

static int choose_driver(struct machine_room *r, const struct machine_wants *w, struct err *e)
{
    char why[256] = "it is asked for";
    const struct vm_driver *d = w->driver;
    if (!d && made_by(w->made_by, &vm_firecracker))
        d = &vm_firecracker;
    if (!d && w->made_by)
        d = &vm_qemu;
    if (!w->driver && w->made_by)
        snprintf(why, sizeof(why), "the template was made with %s", w->made_by);
    if (d) {
        int rc = take_driver(r, w, d, e);
        if (rc == 0)
            log_event(LOG_INFO, "bake", "%s: %s", r->vmm, why);
        return rc;
    }
    judge_firecracker(r, w, why, sizeof(why));
    if (!why[0] && take_driver(r, w, &vm_firecracker, e) == 0) {
        log_event(LOG_INFO, "bake", "%s: it can do all that is wanted", r->vmm);
        return 0;
    }
    if (!why[0] && (e->class == ERR_CANCELLED || e->class == ERR_NOMEM))
        return -(int)e->class;
    if (!why[0])
        snprintf(why, sizeof(why), "%s", e->text);
    err_clear(e);
    free(MOVE(r->vmm));
    int rc = take_driver(r, w, &vm_qemu, e);
    if (rc == -ERR_NOTFOUND)
        return err_in(e, "Firecracker is not used (%s), and QEMU", why);
    if (rc == 0)
        log_event(LOG_INFO, "bake", "%s: %s", r->vmm, why);
    return rc;
}

/* Some VMM is there: what is missing is said before a kernel is fetched. */
static int find_program(const struct machine_wants *w, struct err *e)
{
    AUTO_FREE char *version = NULL;
    struct err ignored = ERR_INIT;
    int rc = vm_version(w->driver ? w->driver : &vm_qemu, &version, e);
    if (rc < 0 && !w->driver && vm_version(&vm_firecracker, &version, &ignored) == 0) {
        err_clear(e);
        rc = 0;
    }
    return rc;
}

/* ---- The room ---- */

int machine_room_open(struct machine_room *r, struct store *s, const struct machine_wants *w,
                      struct err *e)
{
    *r = (struct machine_room){.store = s, .cancel = w->cancel};
    r->cache_dir = mem_strdup(w->cache_dir);
    r->cpu_template = w->cpu_template ? mem_strdup(w->cpu_template) : NULL;
    int rc = r->cache_dir && (r->cpu_template || !w->cpu_template) ? 0 : err_nomem(e, "machines");
    if (rc == 0)
        rc = find_program(w, e);
    if (rc == 0)
        rc = guest_kernel_get(&r->kernel, r->cache_dir, r->cancel, e);
    if (rc == 0)
        rc = choose_driver(r, w, e);
    if (rc == 0)
        rc = chunk_cache_new(&r->cache, s, CHUNK_CACHE_SIZE, e);
    if (rc == 0)
        rc = memory_room_new(&r->memory, s, r->cache, e);
    if (rc < 0) {
        machine_room_close(r);
        return rc;
    }
    if (r->accel == VM_ACCEL_KVM)
        machine_host_find(&r->host);
    if (!vm_driver_can(r->driver)->nbd_disk)
        guest_disk_sweep(r);
    return 0;
}

int machine_room_use_boot_images(struct machine_room *r, struct err *e)
{
    if (vm_driver_can(r->driver)->boot_images)
        return r->boots ? 0 : once_new(&r->boots, e);
    log_event(LOG_DEBUG, "bake", "guests boot from their kernel: no boot images with %s", r->vmm);
    return 0;
}

void machine_room_close(struct machine_room *r)
{
    once_free(r->boots);
    memory_room_free(r->memory);
    chunk_cache_free(r->cache);
    guest_kernel_fini(&r->kernel);
    free(r->vmm);
    free(r->cache_dir);
    free(r->cpu_template);
    *r = (struct machine_room){0};
}

void machine_room_note(struct json *key, const struct machine_room *r,
                       const struct guest_options *o)
{
    json_set(key, "kernel", json_digest(&r->kernel.digest));
    json_set(key, "vmm", json_new_string(r->vmm));
    json_set(key, "accel", json_new_string(vm_accel_name(r->accel)));
    json_set(key, "cpus", json_new_integer(o->cpus));
    json_set(key, "memory_mb", json_new_integer((int64_t)o->memory_mb));
    json_set(key, "network", json_new_bool(o->network));
}

int machine_room_fits(const struct machine_room *r, const struct template *t, struct err *e)
{
    char kernel[DIGEST_TEXT_MAX];
    digest_print(&r->kernel.digest, kernel);
    const struct {
        const char *what;
        const char *recorded;
        const char *here;
    } fields[] = {{"VMM", t->vmm, r->vmm},
                  {"accelerator", t->accel, vm_accel_name(r->accel)},
                  {"kernel", t->kernel, kernel}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (strcmp(fields[i].recorded, fields[i].here) == 0)
            continue;
        err_set(e, ERR_UNSUPPORTED, "template %s was made with %s %s, here is %s", t->alias,
                fields[i].what, fields[i].recorded, fields[i].here);
        return err_hint(e, "bake the task again on this machine");
    }
    int rc = r->accel == VM_ACCEL_KVM
                 ? machine_host_check(t->document, &r->host, r->cpu_template, e)
                 : 0;
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}
