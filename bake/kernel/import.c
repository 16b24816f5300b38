/* SPDX-License-Identifier: MIT */
/*
 * From Debian's kernel package to what a guest needs. The package's modules.dep is made at
 * installation, so dependencies are read from each module's .modinfo ("depends="). modules.order,
 * which is in the package, says where each module's file is. The compressed kernel is taken out of
 * the bzImage: QEMU starts an ELF kernel by PVH, which saves the guest its own unpacking.
 */
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bake/kernel/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"

/* What the agent and the machines of qemu_arguments.c and firecracker.c use, the latter without PCI
 * and with a vsock; the rest is built into Debian's cloud kernel. */
static const char *const wanted[] = {"virtio_blk", "virtio_net", "virtio_rng", "virtio_mmio",
                                     "vmw_vsock_virtio_transport"};

enum {
    DEPTH_MAX = 8,
    NAME_LEN_MAX = 64,
    TOOL_TIMEOUT_MS = 300000,
    IMAGE_MAX = 256 << 20, /* bzImage and vmlinux, bytes */
    MODULE_MAX = 64 << 20, /* one module, bytes */
    LIST_MAX = 4 << 20     /* modules.order, modules.builtin */
};

struct import {
    int dir;  /* of the result */
    int tree; /* unpacked package */
    const char *release;
    const char *base; /* of modules, in the tree: "lib/modules/RELEASE" */
    const struct cancel *cancel;
    struct buf files;   /* modules.order */
    struct buf builtin; /* modules.builtin */
    struct buf order;   /* result: file names in load order */
};

/* ---- Kernel ---------------------------------------------------------------------------------- */

static uint32_t read_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

int kernel_payload(const void *image, size_t len, size_t *payload_off, size_t *payload_len,
                   struct err *e)
{
    enum { SETUP_SECTS = 0x1f1, MAGIC = 0x202, OFFSET = 0x248, LENGTH = 0x24c, HEADER_END = 0x250 };
    const uint8_t *bytes = image;
    if (len < HEADER_END || memcmp(bytes + MAGIC, "HdrS", 4) != 0)
        return err_set(e, ERR_CORRUPT, "not a bzImage");
    uint64_t setup = bytes[SETUP_SECTS] ? bytes[SETUP_SECTS] : 4;
    uint64_t off = (setup + 1) * 512 + read_u32(bytes + OFFSET);
    uint64_t size = read_u32(bytes + LENGTH);
    if (size < 8 || off + size > len)
        return err_set(e, ERR_CORRUPT, "the bzImage's payload lies outside of it");
    *payload_off = (size_t)off;
    *payload_len = (size_t)size;
    return 0;
}

/* Runs `argv` (a decompressor that writes to stdout) with a file as stdin and one as stdout. */
static int run_filter(const struct import *im, const char *const argv[], int input, int output,
                      struct err *e)
{
    struct proc p = {.pid = -1};
    int status = 0;
    int rc = proc_start(
        &p, argv, &(struct proc_setup){.stdin_fd = input, .stdout_fd = output, .stderr_fd = -1}, e);
    if (rc == 0)
        rc = proc_wait(&p, TOOL_TIMEOUT_MS, im->cancel, &status, e);
    proc_kill(&p);
    if (rc == 0 && status != 0)
        rc = err_set(e, ERR_CORRUPT, "%s -dc failed", argv[0]);
    return rc;
}

static int import_kernel(const struct import *im, struct err *e)
{
    static const uint8_t zstd_magic[4] = {0x28, 0xb5, 0x2f, 0xfd}; /* RFC 8878, section 3.1.1 */
    static const char *const argv[] = {"zstd", "-dqc", NULL};
    AUTO_FREE char *name = mem_printf("boot/vmlinuz-%s", im->release);
    if (!name)
        return err_nomem(e, im->release);
    AUTO_BUF struct buf image;
    buf_init(&image, IMAGE_MAX);
    size_t off = 0;
    size_t len = 0;
    int rc = file_read(im->tree, name, &image, e);
    if (rc == 0)
        rc = kernel_payload(image.data, image.len, &off, &len, e);
    if (rc == 0 && memcmp(image.data + off, zstd_magic, sizeof(zstd_magic)) != 0)
        rc = err_set(e, ERR_UNSUPPORTED, "the kernel is not compressed with zstd");
    AUTO_FD int input = -1;
    AUTO_FD int output = -1;
    if (rc == 0)
        rc = file_open(&input, im->dir, "payload", O_RDWR | O_CREAT | O_EXCL, 0666, e);
    if (rc == 0) /* the build appends the plain size, 4 bytes */
        rc = file_pwrite_full(input, image.data + off, len - 4, 0, e);
    if (rc == 0)
        rc = file_open(&output, im->dir, "vmlinux", O_WRONLY | O_CREAT | O_EXCL, 0666, e);
    if (rc == 0)
        rc = run_filter(im, argv, input, output, e);
    if (rc == 0 && unlinkat(im->dir, "payload", 0) < 0)
        rc = err_sys(e, "removing the packed guest kernel, payload");
    return rc < 0 ? err_in(e, "%s", name) : 0;
}

/* ---- Modules --------------------------------------------------------------------------------- */

/* Module names mean the same with '-' and '_'. */
static bool same_name(const char *a, const char *b, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char x = a[i] == '-' ? '_' : a[i];
        char y = b[i] == '-' ? '_' : b[i];
        if (x != y)
            return false;
    }
    return true;
}

/* Looks `name` up in a list of paths ("kernel/drivers/block/virtio_blk.ko" a line); the line's
 * length, 0 if it is not there. */
static size_t find_line(const struct buf *list, const char *name, const char **line)
{
    size_t len = strlen(name);
    const char *at = buf_text(list);
    while (*at) {
        size_t line_len = strcspn(at, "\n");
        size_t tail = len + 4; /* '/' and ".ko" */
        if (line_len > tail && at[line_len - tail] == '/' &&
            same_name(at + line_len - len - 3, name, len)) {
            *line = at;
            return line_len;
        }
        at += line_len + (at[line_len] ? 1 : 0);
    }
    return 0;
}

/* The value of "depends=" in .modinfo, whose strings end in NUL; NULL when there is none. A plain
 * search is enough: each string of the section follows the NUL of the one before. */
static const char *find_depends(const struct buf *module)
{
    static const char mark[] = "\0depends=";
    const char *at = memmem(module->data, module->len, mark, sizeof(mark) - 1);
    return at ? at + sizeof(mark) - 1 : NULL;
}

static int import_module(struct import *im, const char *name, unsigned depth, struct err *e);

static int import_depends(struct import *im, const struct buf *module, unsigned depth,
                          struct err *e)
{
    const char *at = find_depends(module);
    int rc = 0;
    while (rc == 0 && at && *at) {
        size_t len = strcspn(at, ",");
        char name[NAME_LEN_MAX];
        if (len == 0 || len >= sizeof(name))
            return err_set(e, ERR_CORRUPT, "malformed list of dependencies");
        memcpy(name, at, len);
        name[len] = 0;
        rc = import_module(im, name, depth + 1, e);
        at += len + (at[len] ? 1 : 0);
    }
    return rc;
}

static int unpack_module(const struct import *im, const char *line, size_t line_len,
                         const char *file, struct buf *out, struct err *e)
{
    static const char *const argv[] = {"xz", "-dc", NULL};
    AUTO_FREE char *plain = mem_printf("%s/%.*s", im->base, (int)line_len, line);
    AUTO_FREE char *packed = mem_printf("%s/%.*s.xz", im->base, (int)line_len, line);
    if (!plain || !packed)
        return err_nomem(e, file);
    bool compressed = !file_exists(im->tree, plain);
    AUTO_FD int input = -1;
    int rc = file_open(&input, im->tree, compressed ? packed : plain, O_RDONLY, 0, e);
    if (rc < 0 || !compressed)
        return rc == 0 ? file_read(im->tree, plain, out, e) : rc;
    AUTO_FD int output = -1;
    rc = file_open(&output, im->dir, "unpacked", O_RDWR | O_CREAT | O_TRUNC, 0666, e);
    if (rc == 0)
        rc = run_filter(im, argv, input, output, e);
    if (rc == 0)
        rc = file_read(im->dir, "unpacked", out, e);
    if (rc == 0 && unlinkat(im->dir, "unpacked", 0) < 0)
        rc = err_sys(e, "removing the file unpacked of the guest kernel's package");
    return rc;
}

/* Imports what `name` depends on, then `name`; once each. Built-in modules need nothing. */
static int import_module(struct import *im, const char *name, unsigned depth, struct err *e)
{
    const char *line;
    size_t line_len = find_line(&im->files, name, &line);
    if (line_len == 0) {
        if (find_line(&im->builtin, name, &line) > 0)
            return 0;
        return err_set(e, ERR_NOTFOUND, "the package has no module %s", name);
    }
    char file[NAME_LEN_MAX];
    snprintf(file, sizeof(file), "%.*s", (int)strlen(name) + 3, line + line_len - strlen(name) - 3);
    AUTO_FREE char *path = mem_printf("modules/%s", file);
    if (!path)
        return err_nomem(e, name);
    if (file_exists(im->dir, path))
        return 0;
    if (depth > DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "module %s: dependencies are nested too deep", name);
    AUTO_BUF struct buf module;
    buf_init(&module, MODULE_MAX);
    int rc = unpack_module(im, line, line_len, file, &module, e);
    if (rc == 0)
        rc = import_depends(im, &module, depth, e);
    if (rc == 0)
        rc = file_put(im->dir, im->dir, path, module.data, module.len, e);
    if (rc == 0)
        rc = buf_printf(&im->order, e, "%s\n", file);
    return rc < 0 ? err_in(e, "module %s", file) : 0;
}

static int read_lists(struct import *im, struct err *e)
{
    AUTO_FREE char *order = mem_printf("%s/modules.order", im->base);
    AUTO_FREE char *builtin = mem_printf("%s/modules.builtin", im->base);
    if (!order || !builtin)
        return err_nomem(e, im->release);
    int rc = file_read(im->tree, order, &im->files, e);
    return rc == 0 ? file_read(im->tree, builtin, &im->builtin, e) : rc;
}

static int import_modules(struct import *im, struct err *e)
{
    int rc = read_lists(im, e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(wanted); i++)
        rc = import_module(im, wanted[i], 0, e);
    if (rc == 0)
        rc = file_put(im->dir, im->dir, "modules/order", im->order.data, im->order.len, e);
    return rc;
}

int kernel_import(int dir, int tree, const char *release, const struct cancel *c, struct err *e)
{
    AUTO_FREE char *base = mem_printf("lib/modules/%s", release);
    AUTO_FREE char *merged = mem_printf("usr/lib/modules/%s", release);
    if (!base || !merged)
        return err_nomem(e, release);
    struct import im = {.dir = dir,
                        .tree = tree,
                        .release = release,
                        .base = file_exists(tree, base) ? base : merged,
                        .cancel = c};
    buf_init(&im.files, LIST_MAX);
    buf_init(&im.builtin, LIST_MAX);
    buf_init(&im.order, LIST_MAX);
    int rc = import_kernel(&im, e);
    if (rc == 0)
        rc = import_modules(&im, e);
    buf_fini(&im.files);
    buf_fini(&im.builtin);
    buf_fini(&im.order);
    return rc < 0 ? err_in(e, "kernel %s", release) : 0;
}
