/* SPDX-License-Identifier: MIT */
/*
 * The guest kernel's cache: CACHE/kernel/RELEASE/{vmlinux, modules/NAME.ko, modules/order,
 * initramfs-DIGEST.cpio}. A release is complete or not there: it is made in CACHE/kernel/.fetch,
 * under a lock, and renamed. What is in the cache is used as it is, whatever Debian publishes
 * later, so that keys do not change by themselves; removing the directory fetches the newest. A
 * person without apt can put an unpacked release there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bake/channel/console.h"
#include "bake/kernel.h"
#include "bake/kernel/internal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"

#define KERNEL_PACKAGE "linux-image-6.12-cloud-amd64"
#define FETCH_DIR ".fetch"

enum {
    TOOL_TIMEOUT_MS = 300000,
    DOWNLOAD_TIMEOUT_MS = 1800000,
    MODULES_MAX = 64,
    RELEASE_MAX = 128,
    MODULE_MAX = 64 << 20 /* bytes */
};

/* Where a fetch happens. */
struct fetch {
    int dir;          /* CACHE/kernel/.fetch */
    const char *path; /* the same, absolute */
    const struct cancel *cancel;
};

/* ---- Fetching ------------------------------------------------------------------------------ */

/* Runs a program in the fetch directory; its last words become the error. */
static int run_tool(const struct fetch *f, const char *const argv[], int64_t timeout_ms,
                    struct err *e)
{
    AUTO_FD int log = -1;
    int rc = file_open(&log, f->dir, "tool.log", O_RDWR | O_CREAT | O_TRUNC, 0666, e);
    if (rc < 0)
        return rc;
    struct proc p = {.pid = -1};
    int status = 0;
    rc = proc_start(
        &p, argv,
        &(struct proc_setup){.cwd = f->path, .stdin_fd = -1, .stdout_fd = log, .stderr_fd = log},
        e);
    if (rc == 0)
        rc = proc_wait(&p, timeout_ms, f->cancel, &status, e);
    proc_kill(&p);
    if (rc < 0)
        return err_in(e, "%s", argv[0]);
    if (status == 0)
        return 0;
    char text[2048] = "";
    ssize_t n = pread(log, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (!text[0]) /* a full disk takes its words too */
        return err_set(e, ERR_NET, "%s failed without a word; is there room in %s?", argv[0],
                       f->path);
    char summary[512];
    console_summary(text, 4, summary, sizeof(summary));
    return err_set(e, ERR_NET, "%s failed: %s", argv[0], summary);
}

/* The versioned package that the meta package depends on, from `apt-cache depends`. Its labels are
 * in the user's language; names are not. */
static int parse_depends(const char *text, char out[RELEASE_MAX], struct err *e)
{
    static const char mark[] = " linux-image-";
    for (const char *at = strstr(text, mark); at; at = strstr(at, mark)) {
        at++;
        size_t len = strcspn(at, " \n");
        if (len >= RELEASE_MAX || memchr(at, '/', len))
            continue;
        memcpy(out, at, len);
        out[len] = 0;
        return 0;
    }
    return err_set(e, ERR_NOTFOUND, "apt knows no package %s", KERNEL_PACKAGE);
}

static int resolve_package(const struct fetch *f, char out[RELEASE_MAX], struct err *e)
{
    static const char *const argv[] = {"apt-cache", "depends", KERNEL_PACKAGE, NULL};
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    int status;
    int rc = proc_run(
        argv, &(struct proc_io){.out = &text, .timeout_ms = TOOL_TIMEOUT_MS, .cancel = f->cancel},
        &status, e);
    return rc == 0 ? parse_depends(buf_text(&text), out, e) : rc;
}

/* The one file that apt-get left in the directory. */
static int find_package(const struct fetch *f, char out[NAME_MAX + 1], struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, f->dir, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *d = fdopendir(fd);
    if (!d)
        return err_sys(e, "listing %s", f->path);
    fd = -1;
    rc = err_set(e, ERR_NOTFOUND, "apt-get download left no package");
    for (const struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
        size_t len = strlen(entry->d_name);
        if (len < 4 || strcmp(entry->d_name + len - 4, ".deb") != 0)
            continue;
        memcpy(out, entry->d_name, len + 1);
        rc = 0;
    }
    closedir(d);
    return rc;
}

/* Downloads and unpacks the package into DIR/tree. */
static int download(const struct fetch *f, const char *package, struct err *e)
{
    /* As root, apt-get would drop to a user who cannot write here, and warn about it. */
    const char *const get[] = {"apt-get",  "-q",    "-o", "APT::Sandbox::User=root",
                               "download", package, NULL};
    int rc = run_tool(f, get, DOWNLOAD_TIMEOUT_MS, e);
    char deb[NAME_MAX + 1];
    if (rc == 0)
        rc = find_package(f, deb, e);
    if (rc < 0)
        return rc;
    const char *const unpack[] = {"dpkg-deb", "-x", deb, "tree", NULL};
    return run_tool(f, unpack, TOOL_TIMEOUT_MS, e);
}

static int fetch_release(const struct fetch *f, int kernels, struct err *e)
{
    char package[RELEASE_MAX];
    int rc = resolve_package(f, package, e);
    if (rc == 0)
        rc = download(f, package, e);
    if (rc < 0)
        return rc;
    const char *release = package + strlen("linux-image-");
    AUTO_FD int tree = -1;
    AUTO_FD int made = -1;
    rc = file_open(&tree, f->dir, "tree", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = file_open_dir(&made, f->dir, "made/modules", e);
    file_close(&made);
    if (rc == 0)
        rc = file_open(&made, f->dir, "made", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = kernel_import(made, tree, release, f->cancel, e);
    if (rc == 0)
        rc = file_remove_tree(kernels, release, e); /* an incomplete one */
    if (rc < 0)
        return rc;
    if (syncfs(made) < 0 || renameat(f->dir, "made", kernels, release) < 0 || fsync(kernels) < 0)
        return err_sys(e, "kernel %s", release);
    return 0;
}

static int fetch(int kernels, const char *kernels_path, const struct cancel *c, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/" FETCH_DIR, kernels_path);
    if (!path)
        return err_nomem(e, FETCH_DIR);
    log_event(LOG_INFO, "bake", "fetching the guest kernel into %s, once", kernels_path);
    int rc = file_remove_tree(kernels, FETCH_DIR, e); /* of a process that was killed */
    AUTO_FD int dir = -1;
    if (rc == 0)
        rc = file_open_dir(&dir, kernels, FETCH_DIR, e);
    if (rc < 0)
        return rc;
    struct fetch f = {.dir = dir, .path = path, .cancel = c};
    rc = fetch_release(&f, kernels, e);
    struct err left = ERR_INIT;
    if (file_remove_tree(kernels, FETCH_DIR, &left) < 0)
        log_event(LOG_WARN, "bake", "%s stays behind: %s", path, left.text);
    if (rc == 0)
        return 0;
    rc = err_in(e, "fetching the guest kernel (package %s)", KERNEL_PACKAGE);
    if (rc == -ERR_NOTFOUND || rc == -ERR_NET)
        return err_hint(e,
                        "needs the network once, Debian 12's apt-get with its security archive "
                        "(run apt-get update), dpkg-deb, xz and zstd; or unpack a release into "
                        "%s/RELEASE yourself",
                        kernels_path);
    return rc;
}

/* ---- Reading the cache ----------------------------------------------------------------------- */

struct loaded {
    struct buf order;
    struct buf modules[MODULES_MAX];
    struct initramfs_module list[MODULES_MAX];
    size_t count;
};

static void loaded_fini(struct loaded *l)
{
    buf_fini(&l->order);
    for (size_t i = 0; i < l->count; i++)
        buf_fini(&l->modules[i]);
}
#define AUTO_LOADED CLEANUP(loaded_fini)

/* Reads the modules in the order of modules/order, cutting its lines in place. */
static int load_modules(struct loaded *l, int release, struct err *e)
{
    buf_init(&l->order, LIMIT_TOKEN);
    int rc = file_read(release, "modules/order", &l->order, e);
    char *rest = (char *)l->order.data;
    while (rc == 0 && rest && *rest) {
        char *name = strsep(&rest, "\n");
        if (!*name)
            continue;
        if (l->count == MODULES_MAX || strchr(name, '/') || name[0] == '.')
            return err_set(e, ERR_CORRUPT, "modules/order is not a list of module files");
        AUTO_FREE char *path = mem_printf("modules/%s", name);
        if (!path)
            return err_nomem(e, name);
        struct buf *b = &l->modules[l->count];
        buf_init(b, MODULE_MAX);
        l->count++;
        rc = file_read(release, path, b, e);
        l->list[l->count - 1] =
            (struct initramfs_module){.name = name, .data = b->data, .len = b->len};
    }
    return rc;
}

/* The highest release that is complete in the cache; empty text when there is none. */
static int newest(int kernels, char out[RELEASE_MAX], struct err *e)
{
    out[0] = 0;
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, kernels, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *d = fdopendir(fd);
    if (!d)
        return err_sys(e, "listing the kernel cache");
    fd = -1;
    for (const struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
        char probe[NAME_MAX + 32];
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= RELEASE_MAX)
            continue;
        snprintf(probe, sizeof(probe), "%s/vmlinux", entry->d_name);
        bool complete = file_exists(kernels, probe);
        snprintf(probe, sizeof(probe), "%s/modules/order", entry->d_name);
        if (!complete || !file_exists(kernels, probe) || strverscmp(entry->d_name, out) <= 0)
            continue;
        memcpy(out, entry->d_name, strlen(entry->d_name) + 1);
    }
    closedir(d);
    return 0;
}

static int file_digest(int dir, const char *path, struct digest *out, struct err *e)
{
    AUTO_FD int fd = -1;
    AUTO_HASHER struct hasher *h = NULL;
    int rc = file_open(&fd, dir, path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc < 0)
        return rc;
    for (;;) {
        uint8_t piece[65536];
        ssize_t n = read(fd, piece, sizeof(piece));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, "reading %s", path);
        if (n == 0)
            break;
        hasher_add(h, piece, (size_t)n);
    }
    hasher_finish(h, out);
    return 0;
}

/* Puts the initramfs beside the kernel under a name made of its digest, unless it is there,
 * whole. */
static int put_initramfs(int release, const struct buf *bytes, char name[64], struct digest *out,
                         struct err *e)
{
    digest_bytes(out, bytes->data, bytes->len);
    char hex[DIGEST_TEXT_MAX];
    snprintf(name, 64, "initramfs-%.16s.cpio", digest_hex(out, hex));
    struct digest there;
    struct err ignored = ERR_INIT;
    if (file_digest(release, name, &there, &ignored) == 0 && digest_equal(&there, out))
        return 0;
    return file_put(release, release, name, bytes->data, bytes->len, e);
}

static int build_initramfs(int release, char name[64], struct digest *out, struct err *e)
{
    AUTO_LOADED struct loaded l = {.count = 0};
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_INITRAMFS);
    int rc = load_modules(&l, release, e);
    if (rc == 0)
        rc = initramfs_build(&bytes, tb2_agent_start, (size_t)(tb2_agent_end - tb2_agent_start),
                             l.list, l.count, e);
    return rc == 0 ? put_initramfs(release, &bytes, name, out, e) : rc;
}

/* Everything about one release of the cache. */
static int open_release(struct guest_kernel *k, int kernels, const char *kernels_path,
                        const char *release, struct err *e)
{
    AUTO_FD int dir = -1;
    char initramfs[64];
    struct digest kernel_digest;
    struct digest initramfs_digest;
    int rc = file_open(&dir, kernels, release, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = file_digest(dir, "vmlinux", &kernel_digest, e);
    if (rc == 0)
        rc = build_initramfs(dir, initramfs, &initramfs_digest, e);
    if (rc < 0)
        return err_in(e, "guest kernel %s/%s", kernels_path, release);
    char text[2 * DIGEST_TEXT_MAX + 32];
    char one[DIGEST_TEXT_MAX];
    char two[DIGEST_TEXT_MAX];
    int len = snprintf(text, sizeof(text), "kernel %s\ninitramfs %s\n",
                       digest_print(&kernel_digest, one), digest_print(&initramfs_digest, two));
    digest_bytes(&k->digest, text, (size_t)len);
    k->vsock = file_exists(dir, "modules/vmw_vsock_virtio_transport.ko") &&
               file_exists(dir, "modules/virtio_mmio.ko");
    k->release = mem_strdup(release);
    k->kernel_path = mem_printf("%s/%s/vmlinux", kernels_path, release);
    k->initramfs_path = mem_printf("%s/%s/%s", kernels_path, release, initramfs);
    return k->release && k->kernel_path && k->initramfs_path ? 0 : err_nomem(e, release);
}

int guest_kernel_get(struct guest_kernel *out, const char *cache_dir, const struct cancel *c,
                     struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/kernel", cache_dir);
    if (!path)
        return err_nomem(e, "guest kernel");
    AUTO_FD int kernels = -1;
    AUTO_FD int lock = -1;
    char release[RELEASE_MAX];
    int rc = file_open_dir(&kernels, AT_FDCWD, path, e);
    if (rc == 0)
        rc = file_lock_wait(&lock, kernels, ".lock", c, e);
    if (rc == 0)
        rc = newest(kernels, release, e);
    if (rc == 0 && !release[0]) {
        rc = fetch(kernels, path, c, e);
        if (rc == 0)
            rc = newest(kernels, release, e);
    }
    if (rc < 0)
        return err_in(e, "guest kernel cache %s", path);
    struct guest_kernel k = {0};
    rc = open_release(&k, kernels, path, release, e);
    if (rc < 0) {
        guest_kernel_fini(&k);
        return rc;
    }
    *out = k;
    return 0;
}

int guest_kernel_check(const char *cache_dir, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/kernel", cache_dir);
    if (!path)
        return err_nomem(e, "guest kernel");
    AUTO_FD int kernels = -1;
    char release[RELEASE_MAX];
    int rc = file_open_dir(&kernels, AT_FDCWD, path, e);
    if (rc == 0)
        rc = newest(kernels, release, e);
    if (rc < 0 || release[0])
        return rc;
    err_set(e, ERR_NOTFOUND, "no guest kernel in %s, and --offline fetches none", path);
    return err_hint(e, "bake once without --offline, or copy the cache of a machine that has one");
}

void guest_kernel_fini(struct guest_kernel *k)
{
    free(k->kernel_path);
    free(k->initramfs_path);
    free(k->release);
    *k = (struct guest_kernel){0};
}
