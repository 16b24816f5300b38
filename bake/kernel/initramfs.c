/* SPDX-License-Identifier: MIT */
/*
 * Initramfs in the "newc" cpio form (Linux Documentation/driver-api/early-userspace/
 * buffer-format.rst): per member a header of 8-digit hexadecimal fields, the name with its NUL, the
 * data, each padded to 4 bytes. Inode numbers count from 1, owner is root and times are zero, so
 * the bytes depend on the members alone. It stays uncompressed: it is 2 MB, and unpacking it in an
 * emulated guest costs more than reading it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "bake/kernel/internal.h"

enum { CPIO_ALIGN = 4, CPIO_BLOCK = 512 };

struct member {
    const char *name;
    uint32_t mode;
    uint32_t rdev_major;
    uint32_t rdev_minor;
    const void *data;
    size_t len;
};

struct cpio {
    struct buf *out;
    size_t base;    /* of the archive in the buffer: padding counts from here */
    uint32_t inode; /* of the last member */
};

static int pad(struct cpio *c, size_t unit, struct err *e)
{
    static const uint8_t zeros[CPIO_BLOCK];
    size_t over = (c->out->len - c->base) % unit;
    return over ? buf_add(c->out, zeros, unit - over, e) : 0;
}

static int add(struct cpio *c, const struct member *m, struct err *e)
{
    if (m->len > UINT32_MAX)
        return err_set(e, ERR_LIMIT, "%s is too big for an initramfs", m->name);
    uint32_t links = S_ISDIR(m->mode) ? 2 : 1;
    int rc = buf_printf(c->out, e, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
                        ++c->inode, m->mode, 0U, 0U, links, 0U, (unsigned)m->len, 0U, 0U,
                        m->rdev_major, m->rdev_minor, (unsigned)strlen(m->name) + 1, 0U);
    if (rc == 0)
        rc = buf_add(c->out, m->name, strlen(m->name) + 1, e);
    if (rc == 0)
        rc = pad(c, CPIO_ALIGN, e);
    if (rc == 0 && m->len > 0)
        rc = buf_add(c->out, m->data, m->len, e);
    return rc == 0 ? pad(c, CPIO_ALIGN, e) : rc;
}

static int add_modules(struct cpio *c, const struct initramfs_module *modules, size_t count,
                       struct err *e)
{
    AUTO_BUF struct buf order;
    buf_init(&order, LIMIT_MANIFEST);
    for (size_t i = 0; i < count; i++) {
        char name[128];
        int n = snprintf(name, sizeof(name), "modules/%s", modules[i].name);
        if (n < 0 || (size_t)n >= sizeof(name))
            return err_set(e, ERR_LIMIT, "the module name %s is too long", modules[i].name);
        struct member m = {
            .name = name, .mode = S_IFREG | 0644, .data = modules[i].data, .len = modules[i].len};
        int rc = add(c, &m, e);
        if (rc == 0)
            rc = buf_printf(&order, e, "%s\n", modules[i].name);
        if (rc < 0)
            return rc;
    }
    struct member list = {
        .name = "modules/order", .mode = S_IFREG | 0644, .data = order.data, .len = order.len};
    return add(c, &list, e);
}

int initramfs_build(struct buf *out, const void *agent, size_t agent_len,
                    const struct initramfs_module *modules, size_t count, struct err *e)
{
    struct cpio c = {.out = out, .base = out->len, .inode = 0};
    const struct member head[] = {
        {.name = "dev", .mode = S_IFDIR | 0755},
        /* The kernel opens it before /init runs: the agent's stdin, stdout and stderr. */
        {.name = "dev/console", .mode = S_IFCHR | 0600, .rdev_major = 5, .rdev_minor = 1},
        {.name = "init", .mode = S_IFREG | 0755, .data = agent, .len = agent_len},
        {.name = "modules", .mode = S_IFDIR | 0755},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(head); i++)
        rc = add(&c, &head[i], e);
    if (rc == 0)
        rc = add_modules(&c, modules, count, e);
    const struct member end = {.name = "TRAILER!!!"};
    if (rc == 0)
        rc = add(&c, &end, e);
    if (rc == 0)
        rc = pad(&c, CPIO_BLOCK, e);
    return rc < 0 ? err_in(e, "making the guest's initramfs") : 0;
}
