/* SPDX-License-Identifier: MIT */
/*
 * A snapshot made under KVM holds processor state: registers, CPUID, the rate of the time stamp
 * counter. On another kind of processor the guest may use instructions that are not there, and with
 * another rate its clock is wrong. So what matters is in the record, and compared before a restore.
 * Firecracker itself only warns (src/vmm/src/persist.rs, validate_cpu_vendor).
 */

#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "bake/vm/host.h"
#include "base/file.h"
#include "base/mem.h"

enum {
    CPUINFO_MAX = 4 << 20,
    TSC_PARTS = 4000 /* rates within one part of these are the same: 250 ppm, as KVM has it */
};

/* The value of a field of /proc/cpuinfo's first processor. */
static void cpu_field(const char *text, const char *name, char *out, size_t len)
{
    const char *at = strstr(text, name);
    const char *colon = at ? strchr(at, ':') : NULL;
    out[0] = 0;
    if (!colon)
        return;
    colon += strspn(colon, ": \t");
    snprintf(out, len, "%.*s", (int)strcspn(colon, "\n"), colon);
}

static void find_cpu(struct machine_host *h)
{
    char vendor[32];
    char family[16];
    char model[16];
    AUTO_BUF struct buf text;
    buf_init(&text, CPUINFO_MAX);
    struct err ignored = ERR_INIT;
    if (file_read(AT_FDCWD, "/proc/cpuinfo", &text, &ignored) < 0)
        return;
    cpu_field(buf_text(&text), "vendor_id", vendor, sizeof(vendor));
    cpu_field(buf_text(&text), "cpu family", family, sizeof(family));
    cpu_field(buf_text(&text), "model\t", model, sizeof(model));
    if (vendor[0])
        snprintf(h->cpu, sizeof(h->cpu), "%s %s %s", vendor, family, model);
}

/* Linux, Documentation/virt/kvm/api.rst, KVM_GET_TSC_KHZ: asked of a virtual processor. */
static void find_tsc(struct machine_host *h)
{
    AUTO_FD int kvm = openat(AT_FDCWD, "/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        return;
    h->tsc_scales = ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_TSC_CONTROL) > 0;
    AUTO_FD int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    AUTO_FD int cpu = vm >= 0 ? ioctl(vm, KVM_CREATE_VCPU, 0) : -1;
    int khz = cpu >= 0 ? ioctl(cpu, KVM_GET_TSC_KHZ, 0) : -1;
    h->tsc_khz = khz > 0 ? (uint64_t)khz : 0;
}

void machine_host_find(struct machine_host *out)
{
    *out = (struct machine_host){0};
    long page = sysconf(_SC_PAGESIZE);
    out->page_size = page > 0 ? (uint64_t)page : 0;
    find_cpu(out);
    find_tsc(out);
}

void machine_host_note(struct json *document, const struct machine_host *h,
                       const char *cpu_template)
{
    struct json *j = json_new_object();
    json_set(j, "cpu", json_new_string(h->cpu));
    json_set(j, "cpu_template", json_new_string(cpu_template ? cpu_template : "none"));
    json_set(j, "tsc_khz", json_new_integer((int64_t)h->tsc_khz));
    json_set(j, "page_size", json_new_integer((int64_t)h->page_size));
    json_set(document, "host", j);
}

static int differ(struct err *e, const char *what, const char *recorded, const char *here)
{
    (void)err_set(e, ERR_UNSUPPORTED, "it was made with %s %s, here is %s", what, recorded, here);
    return err_hint(e, "bake the task again on this machine");
}

static int check_cpu(const char *recorded, const char *here, bool vendor_only, struct err *e)
{
    size_t len = vendor_only ? strcspn(recorded, " ") + 1 : strlen(recorded) + 1;
    if (!recorded[0] || !here[0] || strncmp(recorded, here, len) == 0)
        return 0;
    return differ(e, "a processor", recorded, here);
}

static int check_tsc(uint64_t recorded, const struct machine_host *h, struct err *e)
{
    char made[32];
    char here[32];
    uint64_t gap = recorded > h->tsc_khz ? recorded - h->tsc_khz : h->tsc_khz - recorded;
    if (recorded == 0 || h->tsc_khz == 0 || h->tsc_scales || gap <= recorded / TSC_PARTS)
        return 0;
    snprintf(made, sizeof(made), "%llu kHz", (unsigned long long)recorded);
    snprintf(here, sizeof(here), "%llu kHz", (unsigned long long)h->tsc_khz);
    return differ(e, "a time stamp counter of", made, here);
}

int machine_host_check(const struct json *document, const struct machine_host *h,
                       const char *cpu_template, struct err *e)
{
    struct json *j = NULL;
    const char *cpu = NULL;
    const char *template = NULL;
    uint64_t tsc_khz = 0;
    uint64_t page_size = 0;
    int rc = json_get_object_opt(document, "host", &j, e);
    if (rc < 0 || !j)
        return rc;
    rc = json_get_string(j, "cpu", &cpu, e);
    if (rc == 0)
        rc = json_get_string(j, "cpu_template", &template, e);
    if (rc == 0)
        rc = json_get_u64(j, "tsc_khz", &tsc_khz, e);
    if (rc == 0)
        rc = json_get_u64(j, "page_size", &page_size, e);
    if (rc < 0)
        return rc;
    if (cpu_template && strcmp(template, cpu_template) != 0)
        return differ(e, "the CPU template", template, cpu_template);
    if (page_size != h->page_size) {
        char made[32];
        char here[32];
        snprintf(made, sizeof(made), "%llu bytes", (unsigned long long)page_size);
        snprintf(here, sizeof(here), "%llu", (unsigned long long)h->page_size);
        return differ(e, "pages of", made, here);
    }
    rc = check_cpu(cpu, h->cpu, strcmp(template, "none") != 0, e);
    return rc == 0 ? check_tsc(tsc_khz, h, e) : rc;
}
