/* SPDX-License-Identifier: MIT */
/* One look each at what a bake needs of this machine, and of what it speaks to. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bake/kernel.h"
#include "bake/vm.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/blockdev.h"
#include "cli/doctor.h"
#include "cli/server_access.h"

enum { ROOM_BAD_MB = 2048, ROOM_NOTE_MB = 20480, MEMORY_GUEST_MB = 2048, FILES_NEEDED = 1024 };

static void found(struct doctor_finding *f, enum doctor_state state, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static void found(struct doctor_finding *f, enum doctor_state state, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    f->state = state;
    vsnprintf(f->found, sizeof(f->found), fmt, args);
    va_end(args);
}

static void explain(struct doctor_finding *f, const char *cost, const char *fix)
{
    snprintf(f->cost, sizeof(f->cost), "%s", cost);
    snprintf(f->fix, sizeof(f->fix), "%s", fix);
}

/* An error as a finding: its hint is the fix where it has one. */
static void found_error(struct doctor_finding *f, enum doctor_state state, const struct err *e,
                        const char *cost, const char *fix)
{
    found(f, state, "%.*s", (int)strcspn(e->text, "\n"), e->text);
    explain(f, cost, e->hint[0] ? e->hint : fix);
}

static bool in_path(const char *program)
{
    const char *path = getenv("PATH");
    for (const char *at = path ? path : ""; *at;) {
        size_t len = strcspn(at, ":");
        AUTO_FREE char *file = mem_printf("%.*s/%s", (int)len, at, program);
        if (file && access(file, X_OK) == 0)
            return true;
        at += len + (at[len] == ':');
    }
    return false;
}

/* ---- The machine ---- */

static void look_at_kernel(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    struct utsname u;
    if (uname(&u) < 0) {
        found(f, DOCTOR_NOTE, "the kernel does not say what it is");
        return;
    }
    bool fits = strcmp(u.machine, "x86_64") == 0;
    found(f, fits ? DOCTOR_GOOD : DOCTOR_BAD, "%s %s, %s", u.sysname, u.release, u.machine);
    if (!fits)
        explain(f, "templates are of x86-64 guests, which nothing here runs",
                "use an x86-64 machine");
}

/* Guest kernel and QEMU are known to be there when this boots. */
static void probe_kvm(const struct doctor *d, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    struct guest_kernel kernel = {0};
    struct vm_accel_answer answer;
    const struct global_options *g = d->globals;
    int rc = guest_kernel_get(&kernel, g->cache_dir, g->cancel, &e);
    const struct vm_probe probe = {
        .driver = &vm_qemu, .kernel = &kernel, .cache_dir = g->cache_dir, .cancel = g->cancel};
    if (rc == 0)
        rc = vm_accel_probe(&answer, &probe, &e);
    guest_kernel_fini(&kernel);
    if (rc < 0)
        found_error(f, DOCTOR_NOTE, &e, "whether KVM works is not known", "");
    else
        found(f, answer.accel == VM_ACCEL_KVM ? DOCTOR_GOOD : DOCTOR_NOTE, "%s", answer.reason);
}

static void look_at_kvm(const struct doctor *d, struct doctor_finding *f)
{
    static const char cost[] =
        "guests are emulated: boots and steps take ten times as long or more";
    AUTO_FD int fd = -1;
    struct err e = ERR_INIT;
    int rc = file_open(&fd, AT_FDCWD, "/dev/kvm", O_RDWR, 0, &e);
    if (rc == -ERR_NOTFOUND) {
        found(f, DOCTOR_NOTE, "there is no /dev/kvm");
        explain(f, cost,
                "turn virtualization on in the firmware, or take a machine that has it (bare "
                "metal, or nested virtualization); modprobe kvm_intel or kvm_amd");
        return;
    }
    if (rc < 0) {
        found_error(f, DOCTOR_NOTE, &e, cost, "join the group that may: adduser $USER kvm");
        return;
    }
    found(f, DOCTOR_GOOD,
          "/dev/kvm opens; that it runs a guest is seen by the first bake, or with --probe");
    if (d->probe)
        probe_kvm(d, f);
    if (f->state != DOCTOR_GOOD && !f->cost[0])
        explain(f, cost, "take a machine whose KVM runs guests");
}

static void look_at_ublk(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    if (ublk_probe(&e) == 0)
        found(f, DOCTOR_GOOD, "this kernel makes disks of templates devices");
    else
        found_error(f, DOCTOR_NOTE, &e, "'attach' serves NBD instead; bakes do not need it",
                    "Linux 6.0 or newer, modprobe ublk_drv, and root");
}

static void look_at_fuse(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    AUTO_BDEV_FILES struct bdev_files *files = NULL;
    if (bdev_files_start(&files, &e) == 0)
        found(f, DOCTOR_GOOD, "restores read the guest's memory when it is touched");
    else
        found_error(f, DOCTOR_NOTE, &e, "each restore copies the guest's memory to a file: slower",
                    "root, or user namespaces and a /dev/fuse for everybody");
}

static void look_at_qemu(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *version = NULL;
    if (vm_version(&vm_qemu, &version, &e) == 0)
        found(f, DOCTOR_GOOD, "%s", version);
    else
        found_error(f, DOCTOR_BAD, &e, "no guest boots: nothing can be baked, restored or verified",
                    "apt-get install qemu-system-x86");
}

static void look_at_firecracker(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *version = NULL;
    int rc = vm_version(&vm_firecracker, &version, &e);
    if (rc == -ERR_NOTFOUND)
        found(f, DOCTOR_GOOD, "not in PATH, and not needed: QEMU runs the guests");
    else if (rc < 0)
        found_error(f, DOCTOR_NOTE, &e, "QEMU runs the guests", "use another version of it");
    else if (access("/dev/kvm", R_OK | W_OK) < 0)
        found(f, DOCTOR_GOOD, "%s in PATH, and not used: it needs /dev/kvm", version);
    else
        found(f, DOCTOR_GOOD, "%s in PATH, used where KVM works and no recipe wants network user",
              version);
}

static void look_at_guest_kernel(const struct doctor *d, struct doctor_finding *f)
{
    static const char *const tools[] = {"apt-get", "dpkg-deb", "xz", "zstd"};
    struct err e = ERR_INIT;
    if (guest_kernel_check(d->globals->cache_dir, &e) == 0) {
        found(f, DOCTOR_GOOD, "in %s", d->globals->cache_dir);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(tools); i++) {
        if (in_path(tools[i]))
            continue;
        found(f, DOCTOR_BAD, "not in %s yet, and there is no %s to fetch it with",
              d->globals->cache_dir, tools[i]);
        explain(f, "no guest boots",
                "apt-get install apt dpkg xz-utils zstd, or copy the cache of a "
                "machine that has baked");
        return;
    }
    found(f, DOCTOR_GOOD, "not in %s yet: the first bake fetches it from Debian's archive",
          d->globals->cache_dir);
}

static void look_at_inflate(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    if (TB2_ISAL) {
        found(f, DOCTOR_GOOD, "ISA-L");
        return;
    }
    found(f, DOCTOR_NOTE, "zlib");
    explain(f, "gzip layers are read at a fraction of the speed",
            "install libisal-dev and build anew");
}

/* ---- Room ---- */

/* The nearest directory above that is there. */
static bool free_room(const char *path, uint64_t *mb)
{
    AUTO_FREE char *place = mem_strdup(path);
    struct statvfs v;
    while (place && statvfs(*place ? place : ".", &v) < 0) {
        char *slash = strrchr(place, '/');
        if (!*place || (slash == place && !place[1]))
            return false;
        if (slash == place)
            slash++; /* the root */
        *(slash ? slash : place) = 0;
    }
    if (!place)
        return false;
    *mb = (uint64_t)v.f_bavail * (uint64_t)v.f_frsize >> 20;
    return true;
}

static void look_at_room(struct doctor_finding *f, const char *path)
{
    uint64_t mb = 0;
    char size[SIZE_TEXT_MAX];
    if (!free_room(path, &mb)) {
        found(f, DOCTOR_BAD, "%s: there is no such place", path);
        explain(f, "nothing can be stored", "name another one with --store and --cache");
        return;
    }
    found(f,
          mb < ROOM_BAD_MB    ? DOCTOR_BAD
          : mb < ROOM_NOTE_MB ? DOCTOR_NOTE
                              : DOCTOR_GOOD,
          "%s free for %s", print_size(mb << 20, size), path);
    if (f->state != DOCTOR_GOOD)
        explain(f, "a bake ends when the disk is full (what is done stays done)",
                "'tb2-bake store gc' removes what nothing needs; or a larger disk, --store DIR");
}

static void look_at_store(const struct doctor *d, struct doctor_finding *f)
{
    look_at_room(f, d->globals->store_path);
}

static void look_at_cache(const struct doctor *d, struct doctor_finding *f)
{
    look_at_room(f, d->globals->cache_dir);
    if (f->state == DOCTOR_NOTE) { /* a kernel and its modules: 100 MB */
        f->state = DOCTOR_GOOD;
        explain(f, "", "");
    }
}

static void look_at_memory(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_size = sysconf(_SC_PAGESIZE);
    uint64_t mb = pages > 0 && page_size > 0 ? (uint64_t)pages * (uint64_t)page_size >> 20 : 0;
    char size[SIZE_TEXT_MAX];
    bool enough = mb * 3 / 4 >= MEMORY_GUEST_MB;
    found(f, enough ? DOCTOR_GOOD : DOCTOR_NOTE, "%s: %u machines at once",
          print_size(mb << 20, size), bake_default_jobs());
    if (!enough)
        explain(f, "a guest of the usual 2 GB does not fit beside the rest",
                "more memory, or swap");
}

static void look_at_limits(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    struct rlimit files = {0};
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur >= FILES_NEEDED) {
        found(f, DOCTOR_GOOD, "open files: enough");
        return;
    }
    found(f, DOCTOR_NOTE, "only %llu open files", (unsigned long long)files.rlim_cur);
    explain(f, "many tasks at once may run out of them",
            "ulimit -n 4096, or LimitNOFILE= in the service");
}

static void look_at_clock(const struct doctor *d UNUSED, struct doctor_finding *f)
{
    enum { BUILT_AFTER = 1735689600 }; /* 2025 */
    char now[CLOCK_TEXT_MAX];
    struct timex t = {.modes = 0};
    int64_t seconds = clock_wall_ns() / 1000000000;
    int state = adjtimex(&t);
    clock_print(seconds, now);
    if (seconds < BUILT_AFTER) {
        found(f, DOCTOR_BAD, "%s cannot be", now);
        explain(f, "certificates do not verify, guests start in the past",
                "set the clock; use NTP");
    } else if (state == TIME_ERROR || (t.status & STA_UNSYNC)) {
        found(f, DOCTOR_NOTE, "%s, and nothing keeps it right", now);
        explain(f, "wrong by minutes, logins, S3 and claims of other bakers fail",
                "systemd-timesyncd or chrony");
    } else {
        found(f, DOCTOR_GOOD, "%s, kept by NTP", now);
    }
}

/* ---- Far ends ---- */

static void look_at_registries(const struct doctor *d, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    struct registry_network network = {0};
    if (open_network(&network, d->globals, &e) < 0)
        found_error(f, DOCTOR_BAD, &e, "no image can be pulled", "");
    else
        found(f, DOCTOR_GOOD,
              "%zu with settings of their own; IMAGE on this command line looks one up",
              network.host_count);
    registry_network_fini(&network);
}

static void look_at_server(const struct doctor *d, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    struct server_access a = {0};
    AUTO_E2B struct e2b *server = NULL;
    struct e2b_entry *entries = NULL;
    size_t count = 0;
    int rc = server_access_find(&a, false, &e);
    bool none = rc == 0 && !a.api_url;
    if (rc == 0 && !none)
        rc = server_access_open(&server, d->globals, &e);
    if (rc == 0 && !none)
        rc = e2b_list(server, &entries, &count, &e);
    if (none)
        found(f, DOCTOR_GOOD, "none: E2B_API_URL is not set, templates stay in the local catalog");
    else if (rc < 0)
        found_error(f, DOCTOR_BAD, &e, "tasks fail where they are registered",
                    "look at E2B_API_URL and E2B_API_KEY");
    else
        found(f, DOCTOR_GOOD, "it answers, with %zu templates", count);
    e2b_entries_free(entries, count);
    server_access_fini(&a);
}

static void look_at_image(const struct doctor *d, struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_JSON struct json *image = NULL;
    const struct image_look look = {.images = d->images.options, .cancel = d->globals->cancel};
    int rc = open_store(&s, d->globals, &e);
    if (rc == 0)
        rc = image_inspect(&image, s, d->image, &look, &e);
    if (rc < 0) {
        found_error(f, DOCTOR_BAD, &e, "tasks of this image fail",
                    "look at the name, the login and the network");
        return;
    }
    const char *digest = json_as_string(json_member(image, "digest"));
    found(f, DOCTOR_GOOD, "%s is %s", d->image, digest ? digest : "there");
}

const struct doctor_check doctor_checks[] = {
    {"kernel", look_at_kernel},
    {"kvm", look_at_kvm},
    {"qemu", look_at_qemu},
    {"firecracker", look_at_firecracker},
    {"guest kernel", look_at_guest_kernel},
    {"fuse", look_at_fuse},
    {"ublk", look_at_ublk},
    {"gzip", look_at_inflate},
    {"memory", look_at_memory},
    {"store", look_at_store},
    {"cache", look_at_cache},
    {"limits", look_at_limits},
    {"clock", look_at_clock},
    {"registries", look_at_registries},
    {"server", look_at_server},
    {NULL, NULL},
};
const struct doctor_check doctor_image_check = {"image", look_at_image};
