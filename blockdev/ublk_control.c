/* SPDX-License-Identifier: MIT */
/*
 * Control commands of ublk: io_uring commands on /dev/ublk-control, one at a time.
 *
 * Kernels have been seen that never answer, so every command has a deadline. After that the kernel
 * may still write to what the command points to: the control, which holds that memory, is then never
 * freed.
 */
#include <liburing.h>
#undef BLOCK_SIZE /* the kernel headers' own; ours is in blockdev.h */

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "blockdev/ublk_internal.h"

#define CONTROL_NODE "/dev/ublk-control"

enum { COMMAND_TIMEOUT_SECONDS = 20, DATA_MAX = 512, PATH_LEN = 32 };

_Static_assert(sizeof(struct ublk_control_payload) == 32, "as the kernel has it");
_Static_assert(sizeof(struct ublk_device_info) == 64, "as the kernel has it");
_Static_assert(sizeof(struct ublk_io_payload) == 16, "as the kernel has it");
_Static_assert(sizeof(struct ublk_io_request) == 24, "as the kernel has it");

struct ublk_control {
    int fd;
    struct io_uring ring;
    bool ring_open;
    bool unprivileged;
    bool stuck; /* a command was not answered */
    uint64_t features;
    uint8_t data[DATA_MAX]; /* of the command under way */
};

void ublk_control_close(struct ublk_control *c)
{
    if (!c || c->stuck)
        return;
    if (c->ring_open)
        io_uring_queue_exit(&c->ring);
    file_close(&c->fd);
    free(c);
}

/* Puts what the command points to into memory of the control. *len is how much that is. */
static int fill_data(struct ublk_control *c, const struct ublk_command *command, uint16_t *path_len,
                     uint16_t *len)
{
    *path_len = 0;
    *len = command->len;
    bool of_device = command->opcode != UBLK_ADD_DEV && command->opcode != UBLK_GET_FEATURES;
    if (c->unprivileged && of_device) {
        /* The length is fixed: the kernel takes the path up to its end, which is a NUL. */
        snprintf((char *)c->data, PATH_LEN, "/dev/ublkc%u", command->device);
        *path_len = PATH_LEN;
        *len = (uint16_t)(PATH_LEN + command->len);
    }
    if (*len > DATA_MAX)
        return -EINVAL;
    if (command->len > 0)
        memcpy(c->data + *path_len, command->data, command->len);
    return 0;
}

int ublk_control_run(struct ublk_control *c, const struct ublk_command *command)
{
    uint16_t path_len, len;
    int rc = c->stuck ? -ETIMEDOUT : fill_data(c, command, &path_len, &len);
    struct io_uring_sqe *entry = rc == 0 ? io_uring_get_sqe(&c->ring) : NULL;
    if (!entry)
        return rc < 0 ? rc : -EBUSY;
    struct ublk_control_payload payload = {.device = command->device,
                                           .queue = UINT16_MAX,
                                           .len = len,
                                           .address = len > 0 ? (uintptr_t)c->data : 0,
                                           .value = command->value,
                                           .path_len = path_len};
    io_uring_prep_rw(IORING_OP_URING_CMD, entry, c->fd, NULL, 0, 0);
    entry->off = command->opcode; /* cmd_op, and padding that must be zero */
    /* The entry has 128 bytes, whatever its type says. */
    memcpy((uint8_t *)entry + offsetof(struct io_uring_sqe, addr3), &payload, sizeof(payload));
    rc = io_uring_submit(&c->ring);
    if (rc < 0)
        return rc;
    struct __kernel_timespec limit = {.tv_sec = COMMAND_TIMEOUT_SECONDS};
    struct io_uring_cqe *completion;
    do
        rc = io_uring_wait_cqe_timeout(&c->ring, &completion, &limit);
    while (rc == -EINTR);
    if (rc < 0) {
        c->stuck = true;
        return rc == -ETIME ? -ETIMEDOUT : rc;
    }
    rc = completion->res;
    io_uring_cqe_seen(&c->ring, completion);
    if (rc >= 0 && command->out)
        memcpy(command->data, c->data + path_len, command->len);
    return rc < 0 ? rc : 0;
}

int ublk_control_info(struct ublk_control *c, uint32_t device, struct ublk_device_info *info)
{
    memset(info, 0, sizeof(*info));
    struct ublk_command command = {.opcode =
                                       c->unprivileged ? UBLK_GET_DEV_INFO2 : UBLK_GET_DEV_INFO,
                                   .device = device,
                                   .data = info,
                                   .len = sizeof(*info),
                                   .out = true};
    return ublk_control_run(c, &command);
}

int ublk_control_delete(struct ublk_control *c, uint32_t device)
{
    struct ublk_command command = {.opcode = UBLK_DEL_DEV_ASYNC, .device = device};
    int rc = ublk_control_run(c, &command);
    if (rc == -EOPNOTSUPP || rc == -EINVAL) {
        command.opcode = UBLK_DEL_DEV;
        rc = ublk_control_run(c, &command);
    }
    return rc == -ENODEV ? 0 : rc;
}

uint64_t ublk_control_features(const struct ublk_control *c)
{
    return c->features;
}

uint64_t ublk_control_privilege(const struct ublk_control *c)
{
    return c->unprivileged ? UBLK_UNPRIVILEGED : 0;
}

static int open_node(struct ublk_control *c, struct err *e)
{
    int rc = file_open(&c->fd, AT_FDCWD, CONTROL_NODE, O_RDWR, 0, e);
    if (rc == -ERR_NOTFOUND) {
        err_set(e, ERR_UNSUPPORTED, "ublk: there is no %s", CONTROL_NODE);
        return err_hint(e, "load it with 'modprobe ublk_drv'; it needs Linux 6.5 or later with "
                           "CONFIG_BLK_DEV_UBLK");
    }
    if (rc < 0 && (e->sys == EACCES || e->sys == EPERM || e->class == ERR_DENIED)) {
        err_set(e, ERR_DENIED, "ublk: %s may not be opened by this user", CONTROL_NODE);
        return err_hint(e, "run as root, or give this user access to ublk's nodes");
    }
    return rc < 0 ? err_in(e, "ublk") : 0;
}

/* io_uring has its own ways to be refused. */
static int ring_error(int rc, struct err *e)
{
    switch (-rc) {
    case EPERM:
    case EACCES:
        err_set(e, ERR_DENIED, "ublk: io_uring is refused");
        return err_hint(e, "a seccomp filter or the sysctl kernel.io_uring_disabled forbids it");
    case ENOMEM:
        err_set(e, ERR_NOMEM, "ublk: io_uring may not lock the memory it needs");
        return err_hint(e, "raise the limit of locked memory (ulimit -l)");
    case ENOSYS:
    case EINVAL:
        return err_set(e, ERR_UNSUPPORTED, "ublk: this kernel's io_uring is missing or too old");
    default:
        return err_sysno(e, -rc, "ublk: io_uring");
    }
}

static int read_features(struct ublk_control *c, struct err *e)
{
    struct ublk_command command = {
        .opcode = UBLK_GET_FEATURES, .data = &c->features, .len = sizeof(c->features), .out = true};
    int rc = ublk_control_run(c, &command);
    if (rc == -ETIMEDOUT)
        return err_set(e, ERR_TIMEOUT, "ublk: the kernel did not answer in %d s",
                       COMMAND_TIMEOUT_SECONDS);
    static const uint64_t needed = UBLK_IOCTL_ENCODING | UBLK_USER_COPY | UBLK_USER_RECOVERY;
    if (rc < 0 || (c->features & needed) != needed) {
        err_set(e, ERR_UNSUPPORTED, "ublk: this kernel lacks %s",
                rc < 0                                 ? "the command that tells its features"
                : !(c->features & UBLK_IOCTL_ENCODING) ? "ioctl-encoded commands"
                : !(c->features & UBLK_USER_COPY)      ? "copying by read and write"
                                                       : "recovery of a dead server's devices");
        return err_hint(e, "Linux 6.5 or later has it");
    }
    return 0;
}

int ublk_control_open(struct ublk_control **out, struct err *e)
{
    AUTO_UBLK_CONTROL struct ublk_control *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "ublk");
    c->fd = -1;
    c->unprivileged = geteuid() != 0;
    int rc = open_node(c, e);
    if (rc < 0)
        return rc;
    rc = io_uring_queue_init(4, &c->ring, IORING_SETUP_SQE128);
    if (rc < 0)
        return ring_error(rc, e);
    c->ring_open = true;
    rc = read_features(c, e);
    if (rc < 0)
        return rc;
    *out = MOVE(c);
    return 0;
}
