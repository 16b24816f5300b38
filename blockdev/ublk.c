/* SPDX-License-Identifier: MIT */
/*
 * A device served as /dev/ublkbN.
 *
 * To appear: ADD_DEV makes the character device /dev/ublkcN, SET_PARAMS says what the disk is, the
 * queues ask for requests, START_DEV makes the disk. To take over what a dead server left (the kernel
 * keeps it, QUIESCED, with its waiting requests): START_USER_RECOVERY, the queues,
 * END_USER_RECOVERY; the parameters are the kernel's already and may not be set again.
 *
 * Whatever fails on the way, what ADD_DEV made is removed again. The cookie goes into a field that
 * the kernel keeps for the server, so that a device can be told from one that got its number later.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"
#include "blockdev/ublk_internal.h"

enum { NODE_TIMEOUT_MS = 10 * 1000, RECOVERY_TIMEOUT_MS = 10 * 1000, PAUSE_MS = 20 };

/* Discards are not split below this; a sector count must fit 32 bits. */
#define DISCARD_MAX ((uint64_t)1 << 30)

struct ublk_server {
    struct bdev *device;
    struct ublk_control *control;
    uint32_t number;
    bool added;
    bool live;
    int fd; /* /dev/ublkcN */
    struct ublk_workers workers;
    bool workers_started;
    struct ublk_queue queues[UBLK_QUEUES_MAX];
    unsigned queue_count;
};

int ublk_probe(struct err *e)
{
    AUTO_UBLK_CONTROL struct ublk_control *c = NULL;
    return ublk_control_open(&c, e);
}

static int kernel_error(struct err *e, int rc, const char *what)
{
    if (rc == -ETIMEDOUT) {
        err_set(e, ERR_TIMEOUT, "ublk: %s: the kernel does not answer", what);
        return err_hint(e, "some kernels are known to hang here: serve the disk over NBD");
    }
    if (rc == -ENODEV)
        return err_set(e, ERR_NOTFOUND, "ublk: %s: there is no such device", what);
    return err_sysno(e, -rc, "ublk: %s", what);
}

/* ---- Steps ---- */

static int add_device(struct ublk_server *u, const struct ublk_options *o, struct err *e)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint16_t queues = (uint16_t)(cores < 1 ? 1 : cores > UBLK_QUEUES_MAX ? UBLK_QUEUES_MAX : cores);
    struct ublk_device_info info = {
        .queues = queues,
        .depth = UBLK_DEPTH,
        .max_io_bytes = UBLK_IO_MAX,
        .device = UINT32_MAX, /* any */
        .flags = UBLK_USER_RECOVERY | UBLK_USER_RECOVERY_REISSUE | UBLK_IOCTL_ENCODING |
                 UBLK_USER_COPY | ublk_control_privilege(u->control),
        .server_flags = o->cookie,
    };
    struct ublk_command command = {.opcode = UBLK_ADD_DEV,
                                   .device = UINT32_MAX,
                                   .data = &info,
                                   .len = sizeof(info),
                                   .out = true};
    int rc = ublk_control_run(u->control, &command);
    if (rc < 0)
        return kernel_error(e, rc, "making a device");
    u->number = info.device;
    u->added = true;
    u->queue_count = info.queues;
    return 0;
}

static int set_parameters(struct ublk_server *u, struct err *e)
{
    uint64_t max_sectors = DISCARD_MAX / UBLK_SECTOR;
    struct bdev *d = u->device;
    struct ublk_parameters p = {
        .len = sizeof(p),
        .types = UBLK_PARAMETERS_BASIC | (d->ops->write ? UBLK_PARAMETERS_DISCARD : 0),
        .attributes =
            (d->ops->write ? 0 : UBLK_READ_ONLY) | (d->ops->flush ? UBLK_VOLATILE_CACHE : 0),
        .logical_block_shift = 12,
        .physical_block_shift = 12,
        .optimal_io_shift = 12,
        .minimal_io_shift = 12,
        .max_sectors = UBLK_IO_MAX / UBLK_SECTOR,
        .device_sectors = d->size / UBLK_SECTOR,
        .discard_granularity = BLOCK_SIZE,
        .max_discard_sectors = (uint32_t)max_sectors,
        .max_write_zeroes_sectors = (uint32_t)max_sectors,
        .max_discard_segments = 1,
    };
    struct ublk_command command = {
        .opcode = UBLK_SET_PARAMS, .device = u->number, .data = &p, .len = sizeof(p)};
    int rc = ublk_control_run(u->control, &command);
    return rc < 0 ? kernel_error(e, rc, "describing the disk") : 0;
}

/* Waits for a node that the kernel, or udev, makes; *fd is open on it. Anything else of that name is
 * left alone. */
static int open_node(int *fd, const char *path, mode_t kind, int flags, struct err *e)
{
    int64_t until = clock_ms() + NODE_TIMEOUT_MS;
    while (true) {
        err_clear(e);
        int rc = file_open(fd, AT_FDCWD, path, flags | O_NOFOLLOW, 0, e);
        /* While a dead server's process is being taken down its node is still busy. */
        bool wait = rc < 0 && (e->class == ERR_NOTFOUND || e->sys == EBUSY || e->sys == EACCES);
        if (rc < 0 && (!wait || clock_ms() >= until))
            return err_in(e, "ublk");
        struct stat st;
        if (rc == 0 && fstat(*fd, &st) < 0)
            return err_sys(e, "ublk: %s", path);
        if (rc == 0 && (st.st_mode & S_IFMT) != kind)
            return err_set(e, ERR_UNSUPPORTED, "ublk: %s is no device", path);
        if (rc == 0)
            return 0;
        clock_sleep_ms(PAUSE_MS);
    }
}

/* Without an answer the scheduler decides. */
static void ask_processors(struct ublk_server *u, struct ublk_queue *q)
{
    struct ublk_command command = {.opcode = UBLK_GET_QUEUE_AFFINITY,
                                   .device = u->number,
                                   .value = q->number,
                                   .data = &q->processors,
                                   .len = sizeof(q->processors),
                                   .out = true};
    if (ublk_control_run(u->control, &command) < 0)
        CPU_ZERO(&q->processors);
}

static int start_queues(struct ublk_server *u, uint16_t depth, struct err *e)
{
    char path[32];
    snprintf(path, sizeof(path), "/dev/ublkc%u", u->number);
    int rc = open_node(&u->fd, path, S_IFCHR, O_RDWR, e);
    if (rc == 0)
        rc = ublk_workers_start(&u->workers, e);
    if (rc < 0)
        return rc;
    u->workers_started = true;
    for (unsigned i = 0; rc == 0 && i < u->queue_count; i++) {
        struct ublk_queue *q = &u->queues[i];
        q->device = u->device;
        q->workers = &u->workers;
        q->fd = u->fd;
        q->number = (uint16_t)i;
        q->depth = depth;
        ask_processors(u, q);
        rc = ublk_queue_start(q, e);
    }
    return rc;
}

/* START_DEV or END_USER_RECOVERY: both name the process, and end when all queues have asked. */
static int go_live(struct ublk_server *u, unsigned opcode, struct err *e)
{
    struct ublk_command command = {
        .opcode = opcode, .device = u->number, .value = (uint64_t)getpid()};
    int rc = ublk_control_run(u->control, &command);
    if (rc < 0)
        return kernel_error(e, rc, "starting the disk");
    u->live = true;
    char path[32];
    AUTO_FD int fd = -1;
    return open_node(&fd, ublk_path(u, path), S_IFBLK, O_RDONLY, e);
}

static int start_recovery(struct ublk_server *u, const struct ublk_options *o, uint16_t *depth,
                          struct err *e)
{
    struct ublk_device_info info;
    int rc = ublk_control_info(u->control, (uint32_t)o->recover, &info);
    if (rc < 0)
        return kernel_error(e, rc, "looking at the device");
    if (info.server_flags != o->cookie)
        return err_set(e, ERR_NOTFOUND, "ublk: device %d is somebody else's now", o->recover);
    if (info.queues == 0 || info.queues > UBLK_QUEUES_MAX || info.depth == 0 ||
        info.depth > UBLK_DEPTH_MAX)
        return err_set(e, ERR_UNSUPPORTED, "ublk: device %d has %u queues of %u requests",
                       o->recover, info.queues, info.depth);
    u->number = (uint32_t)o->recover;
    u->queue_count = info.queues;
    *depth = info.depth;
    /* The kernel may still be busy with the old server's end. */
    struct ublk_command command = {.opcode = UBLK_START_USER_RECOVERY, .device = u->number};
    int64_t until = clock_ms() + RECOVERY_TIMEOUT_MS;
    while ((rc = ublk_control_run(u->control, &command)) == -EBUSY && clock_ms() < until)
        clock_sleep_ms(PAUSE_MS);
    return rc < 0 ? kernel_error(e, rc, "recovering the device") : 0;
}

static int start(struct ublk_server *u, const struct ublk_options *o, struct err *e)
{
    uint16_t depth = UBLK_DEPTH;
    int rc = ublk_control_open(&u->control, e);
    if (rc < 0)
        return rc;
    if (o->recover >= 0) {
        rc = start_recovery(u, o, &depth, e);
        if (rc == 0)
            rc = start_queues(u, depth, e);
        return rc < 0 ? rc : go_live(u, UBLK_END_USER_RECOVERY, e);
    }
    rc = add_device(u, o, e);
    if (rc == 0)
        rc = set_parameters(u, e);
    if (rc == 0)
        rc = start_queues(u, depth, e);
    return rc < 0 ? rc : go_live(u, UBLK_START_DEV, e);
}

/* ---- The end ---- */

static void end_queues(struct ublk_server *u, bool abandon)
{
    for (unsigned i = 0; i < u->queue_count; i++)
        ublk_queue_stop(&u->queues[i], abandon);
    if (u->workers_started)
        ublk_workers_stop(&u->workers);
    u->workers_started = false;
    file_close(&u->fd);
}

/* The character device is closed before it is deleted: old kernels wait for that. */
static int end(struct ublk_server *u, struct err *e)
{
    struct ublk_command stop = {.opcode = UBLK_STOP_DEV, .device = u->number};
    int rc = u->added || u->live ? ublk_control_run(u->control, &stop) : 0;
    end_queues(u, rc < 0 || !u->live);
    if (rc == 0 && (u->added || u->live))
        rc = ublk_control_delete(u->control, u->number);
    return rc < 0 && rc != -ENODEV ? kernel_error(e, rc, "removing the device") : 0;
}

static void server_free(struct ublk_server *u)
{
    if (!u)
        return;
    ublk_control_close(u->control);
    free(u);
}
DEFINE_AUTO(ublk_server, server_free)

int ublk_start(struct ublk_server **out, struct bdev *d, const struct ublk_options *o,
               struct err *e)
{
    if (d->size == 0 || d->size % BLOCK_SIZE != 0)
        return err_set(e, ERR_INPUT, "ublk: a disk of %llu bytes is not one of whole blocks",
                       (unsigned long long)d->size);
    CLEANUP(server_free_auto_) struct ublk_server *u = mem_zalloc(sizeof(*u));
    if (!u)
        return err_nomem(e, "ublk");
    u->device = d;
    u->fd = -1;
    int rc = start(u, o, e);
    if (rc < 0) {
        struct err ignored = ERR_INIT;
        if (u->control && end(u, &ignored) < 0)
            log_event(LOG_WARN, "blockdev", "device %u stays behind: %s", u->number, ignored.text);
        return rc;
    }
    *out = MOVE(u);
    return 0;
}

int ublk_stop(struct ublk_server *u, struct err *e)
{
    if (!u)
        return 0;
    int rc = end(u, e);
    server_free(u);
    return rc;
}

void ublk_leave(struct ublk_server *u)
{
    if (u)
        end_queues(u, true);
    server_free(u);
}

uint32_t ublk_number(const struct ublk_server *u)
{
    return u->number;
}

const char *ublk_path(const struct ublk_server *u, char path[32])
{
    snprintf(path, 32, "/dev/ublkb%u", u->number);
    return path;
}

/* ---- Devices without a server ---- */

int ublk_look(uint32_t number, uint64_t cookie, bool *live, struct err *e)
{
    AUTO_UBLK_CONTROL struct ublk_control *c = NULL;
    int rc = ublk_control_open(&c, e);
    if (rc < 0)
        return rc;
    struct ublk_device_info info;
    rc = ublk_control_info(c, number, &info);
    if (rc < 0)
        return kernel_error(e, rc, "looking at the device");
    if (info.server_flags != cookie)
        return err_set(e, ERR_NOTFOUND, "ublk: device %u is not ours", number);
    *live = info.state == UBLK_LIVE;
    return 0;
}

int ublk_find(uint64_t cookie, uint32_t *number, struct err *e)
{
    AUTO_UBLK_CONTROL struct ublk_control *c = NULL;
    int rc = ublk_control_open(&c, e);
    if (rc < 0)
        return rc;
    AUTO_FD int fd = -1;
    rc = file_open(&fd, AT_FDCWD, "/sys/class/ublk-char", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *list = fdopendir(fd);
    if (!list)
        return err_sys(e, "listing ublk devices");
    fd = -1;
    rc = err_set(e, ERR_NOTFOUND, "ublk: no device of ours");
    const struct dirent *entry;
    while (rc < 0 && (entry = readdir(list))) {
        unsigned candidate;
        struct ublk_device_info info;
        if (sscanf(entry->d_name, "ublkc%u", &candidate) != 1 ||
            ublk_control_info(c, candidate, &info) < 0 || info.server_flags != cookie)
            continue;
        *number = candidate;
        rc = 0;
    }
    closedir(list);
    return rc;
}

int ublk_remove(uint32_t number, uint64_t cookie, struct err *e)
{
    AUTO_UBLK_CONTROL struct ublk_control *c = NULL;
    int rc = ublk_control_open(&c, e);
    if (rc < 0)
        return rc;
    struct ublk_device_info info;
    rc = ublk_control_info(c, number, &info);
    if (rc == -ENODEV || (rc == 0 && info.server_flags != cookie))
        return 0;
    struct ublk_command stop = {.opcode = UBLK_STOP_DEV, .device = number};
    if (rc == 0)
        rc = ublk_control_run(c, &stop);
    if (rc == 0)
        rc = ublk_control_delete(c, number);
    return rc < 0 && rc != -ENODEV ? kernel_error(e, rc, "removing the device") : 0;
}
