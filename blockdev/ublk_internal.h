/* SPDX-License-Identifier: MIT */
/*
 * What the files of the ublk front end share. The numbers are those of Linux 6.12's
 * include/uapi/linux/ublk_cmd.h; the header that a distribution installs may be older than the
 * kernel that runs, so what is used stands here.
 */
#ifndef TB2_BLOCKDEV_UBLK_INTERNAL_H
#define TB2_BLOCKDEV_UBLK_INTERNAL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "blockdev/blockdev.h"

/* Payload of a control command; the kernel reads it from the second half of a 128 byte entry. */
struct ublk_control_payload {
    uint32_t device;
    uint16_t queue; /* UINT16_MAX: none */
    uint16_t len;   /* bytes at `address` */
    uint64_t address;
    uint64_t value;
    uint16_t path_len; /* unprivileged: the first so many bytes at `address` are the node's path */
    uint16_t pad;
    uint32_t reserved;
};

/* Payload of a command on a queue. */
struct ublk_io_payload {
    uint16_t queue;
    uint16_t tag;
    int32_t result;
    uint64_t address; /* 0 with UBLK_USER_COPY */
};

struct ublk_device_info {
    uint16_t queues;
    uint16_t depth;
    uint16_t state;
    uint16_t pad0;
    uint32_t max_io_bytes;
    uint32_t device;
    int32_t server_pid;
    uint32_t pad1;
    uint64_t flags;
    uint64_t server_flags; /* kept for the server, not looked at by the kernel: our cookie */
    uint32_t owner_uid, owner_gid;
    uint64_t reserved1, reserved2;
};

/* A request, written by the kernel into memory that the queue maps. */
struct ublk_io_request {
    uint32_t operation_and_flags; /* low byte: operation */
    uint32_t sectors;
    uint64_t start_sector;
    uint64_t address;
};

struct ublk_parameters {
    uint32_t len;
    uint32_t types;
    /* UBLK_PARAMETERS_BASIC */
    uint32_t attributes;
    uint8_t logical_block_shift, physical_block_shift, optimal_io_shift, minimal_io_shift;
    uint32_t max_sectors, chunk_sectors;
    uint64_t device_sectors, virtual_boundary_mask;
    /* UBLK_PARAMETERS_DISCARD */
    uint32_t discard_alignment, discard_granularity;
    uint32_t max_discard_sectors, max_write_zeroes_sectors;
    uint16_t max_discard_segments, reserved;
    uint32_t pad;
};

enum { UBLK_PARAMETERS_BASIC = 1, UBLK_PARAMETERS_DISCARD = 2 };
enum { UBLK_READ_ONLY = 1 << 0, UBLK_VOLATILE_CACHE = 1 << 2 }; /* attributes */

#define UBLK_GET_QUEUE_AFFINITY _IOR('u', 0x01, struct ublk_control_payload)
#define UBLK_GET_DEV_INFO _IOR('u', 0x02, struct ublk_control_payload)
#define UBLK_ADD_DEV _IOWR('u', 0x04, struct ublk_control_payload)
#define UBLK_DEL_DEV _IOWR('u', 0x05, struct ublk_control_payload)
#define UBLK_START_DEV _IOWR('u', 0x06, struct ublk_control_payload)
#define UBLK_STOP_DEV _IOWR('u', 0x07, struct ublk_control_payload)
#define UBLK_SET_PARAMS _IOWR('u', 0x08, struct ublk_control_payload)
#define UBLK_START_USER_RECOVERY _IOWR('u', 0x10, struct ublk_control_payload)
#define UBLK_END_USER_RECOVERY _IOWR('u', 0x11, struct ublk_control_payload)
#define UBLK_GET_DEV_INFO2 _IOR('u', 0x12, struct ublk_control_payload) /* takes a path */
#define UBLK_GET_FEATURES _IOR('u', 0x13, struct ublk_control_payload)
#define UBLK_DEL_DEV_ASYNC _IOR('u', 0x14, struct ublk_control_payload) /* Linux 6.9 */
#define UBLK_IO_FETCH _IOWR('u', 0x20, struct ublk_io_payload)
#define UBLK_IO_COMMIT_AND_FETCH _IOWR('u', 0x21, struct ublk_io_payload)

/* Flags of a device, and features of a kernel. */
#define UBLK_USER_RECOVERY (UINT64_C(1) << 3)
#define UBLK_USER_RECOVERY_REISSUE (UINT64_C(1) << 4)
#define UBLK_UNPRIVILEGED (UINT64_C(1) << 5)
#define UBLK_IOCTL_ENCODING (UINT64_C(1) << 6)
#define UBLK_USER_COPY (UINT64_C(1) << 7)

enum { UBLK_DEAD = 0, UBLK_LIVE = 1, UBLK_QUIESCED = 2 }; /* state */

enum {
    UBLK_OP_READ = 0,
    UBLK_OP_WRITE = 1,
    UBLK_OP_FLUSH = 2,
    UBLK_OP_DISCARD = 3,
    UBLK_OP_WRITE_ZEROES = 5
};

enum {
    UBLK_SECTOR = 512,
    UBLK_DEPTH_MAX = 4096, /* of the kernel: distance of the queues' requests in its mapping */
    UBLK_DEPTH = 64,
    UBLK_QUEUES_MAX = 4,
    UBLK_WORKERS = 4,
    UBLK_IO_MAX = 1 << 20, /* bytes of one request */
};

/* Where the bytes of a request are read and written in /dev/ublkcN. */
static inline int64_t ublk_data_offset(uint16_t queue, uint16_t tag)
{
    return INT64_C(0x80000000) + ((int64_t)queue << 41) + ((int64_t)tag << 25);
}

/* ---- Control (ublk_control.c) ------------------------------------------------------------- */

struct ublk_control;

int ublk_control_open(struct ublk_control **out, struct err *e) MUST_USE;
void ublk_control_close(struct ublk_control *c);
DEFINE_AUTO(ublk_control, ublk_control_close)
#define AUTO_UBLK_CONTROL CLEANUP(ublk_control_close_auto_)

/* What the kernel can. */
uint64_t ublk_control_features(const struct ublk_control *c);
/* Flag to add to a new device's: UBLK_UNPRIVILEGED or 0. */
uint64_t ublk_control_privilege(const struct ublk_control *c);

/* Runs a command with `len` bytes at `data` in and, `out` set, out. 0, or -errno of the kernel;
 * -ETIMEDOUT when it gave no answer in time: the control is then useless. */
struct ublk_command {
    unsigned opcode;
    uint32_t device;
    uint64_t value;
    void *data;
    uint16_t len;
    bool out;
};
int ublk_control_run(struct ublk_control *c, const struct ublk_command *command) MUST_USE;

int ublk_control_info(struct ublk_control *c, uint32_t device,
                      struct ublk_device_info *info) MUST_USE;

/* Deletes a stopped device; its number is free again when nobody has the disk open any more, which
 * is not waited for where the kernel is new enough. -ENODEV is success. */
int ublk_control_delete(struct ublk_control *c, uint32_t device) MUST_USE;

/* ---- Queues (ublk_queue.c) ---------------------------------------------------------------- */

/* A request whose data must be waited for, on its way through the workers. */
struct ublk_job {
    struct ublk_queue *queue;
    uint16_t tag;
    int32_t result;
    struct ublk_job *next;
};

/* Threads that answer what a queue's thread would have to wait for. */
struct ublk_workers {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct ublk_job *first, **last;
    bool ending;
    pthread_t threads[UBLK_WORKERS];
    size_t thread_count;
};

struct ublk_queue {
    struct bdev *device;          /* borrowed */
    struct ublk_workers *workers; /* borrowed */
    int fd;                       /* borrowed: /dev/ublkcN */
    uint16_t number;
    uint16_t depth;
    cpu_set_t processors; /* that the kernel takes its requests from; empty: any */
    pthread_t thread;
    bool started;
    int wake; /* eventfd: `done` has something, or `abandoned` */
    atomic_bool abandoned;
    pthread_mutex_t mutex; /* done, ready, failure */
    pthread_cond_t changed;
    struct ublk_job *done;
    bool ready; /* all requests are asked for, or it failed */
    int failure;
    struct ublk_job *jobs; /* one a tag */
    const struct ublk_io_request *requests;
    size_t mapped_len;
    uint8_t *buffer; /* UBLK_IO_MAX bytes, of the queue's thread */
};

int ublk_workers_start(struct ublk_workers *w, struct err *e) MUST_USE;
void ublk_workers_stop(struct ublk_workers *w);

/* Starts the queue's thread; returns once it has asked the kernel for requests. Fields device to
 * depth are set. */
int ublk_queue_start(struct ublk_queue *q, struct err *e) MUST_USE;
/* Ends it, with what it waits for: only after the device was stopped, or when that failed. */
void ublk_queue_stop(struct ublk_queue *q, bool abandon);

#endif
