/* SPDX-License-Identifier: MIT */
/*
 * The front door of every block device. A request passes here on its way in, at each level of a
 * stack, so devices themselves check no ranges and keep no counts. The counters are independent
 * relaxed atomics: each is exact, a snapshot of several is only nearly of one moment.
 *
 * Errors have no text on this path. The first of each kind and operation on a device goes to the
 * log, the rest are counted; a device inside another one leaves the log to the outer one.
 */
#include "blockdev/blockdev.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"

enum operation { OP_READ, OP_WRITE, OP_FLUSH, OP_DISCARD };

static const char *const operation_names[] = {"read", "write", "flush", "discard"};

/* Kinds of error that are logged separately. */
enum { KIND_COUNT = 6 };

static unsigned error_kind(int rc)
{
    switch (-rc) {
    case EINVAL:
        return 0;
    case EROFS:
        return 1;
    case ENOSPC:
        return 2;
    case EIO:
        return 3;
    case ENOMEM:
        return 4;
    default:
        return 5;
    }
}

static int failed(struct bdev *d, enum operation operation, uint64_t len, uint64_t off, int rc)
{
    atomic_fetch_add_explicit(&d->errors, 1, memory_order_relaxed);
    uint32_t bit = UINT32_C(1) << ((unsigned)operation * KIND_COUNT + error_kind(rc));
    if (!d->nested && !(atomic_fetch_or(&d->errors_logged, bit) & bit))
        log_event(LOG_WARN, "blockdev",
                  "%s of %" PRIu64 " bytes at %" PRIu64
                  ": %s (more of this kind on this disk are only counted)",
                  operation_names[operation], len, off, strerror(-rc));
    return rc;
}

static bool in_range(const struct bdev *d, uint64_t len, uint64_t off)
{
    return off <= d->size && len <= d->size - off;
}

static void count(atomic_uint_fast64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

int bdev_read(struct bdev *d, void *data, size_t len, uint64_t off)
{
    count(&d->reads, 1);
    int rc = 0;
    if (!in_range(d, len, off))
        rc = -EINVAL;
    else if (len > 0)
        rc = d->ops->read(d, data, len, off);
    if (rc < 0)
        return failed(d, OP_READ, len, off, rc);
    count(&d->bytes_read, len);
    return 0;
}

int bdev_read_now(struct bdev *d, void *data, size_t len, uint64_t off)
{
    int rc = -EAGAIN;
    if (!in_range(d, len, off))
        rc = -EINVAL;
    else if (len == 0)
        rc = 0;
    else if (d->ops->read_now)
        rc = d->ops->read_now(d, data, len, off);
    if (rc == -EAGAIN)
        return rc;
    count(&d->reads, 1);
    if (rc < 0)
        return failed(d, OP_READ, len, off, rc);
    count(&d->bytes_read, len);
    return 0;
}

int bdev_lend(struct bdev *d, struct bdev_loan *loan, size_t len, uint64_t off)
{
    *loan = (struct bdev_loan){.part_count = 0};
    if (!d->ops->lend || len == 0 || !in_range(d, len, off))
        return -EAGAIN;
    int rc = d->ops->lend(d, loan, len, off);
    if (rc < 0)
        return rc;
    count(&d->reads, 1);
    count(&d->bytes_read, len);
    return 0;
}

int bdev_write(struct bdev *d, const void *data, size_t len, uint64_t off)
{
    count(&d->writes, 1);
    int rc = 0;
    if (!d->ops->write)
        rc = -EROFS;
    else if (!in_range(d, len, off))
        rc = -EINVAL;
    else if (len > 0)
        rc = d->ops->write(d, data, len, off);
    if (rc < 0)
        return failed(d, OP_WRITE, len, off, rc);
    count(&d->bytes_written, len);
    return 0;
}

int bdev_flush(struct bdev *d)
{
    count(&d->flushes, 1);
    int rc = d->ops->flush ? d->ops->flush(d) : 0;
    return rc < 0 ? failed(d, OP_FLUSH, 0, 0, rc) : 0;
}

static int write_zeros(struct bdev *d, uint64_t len, uint64_t off)
{
    static const uint8_t zeros[64 << 10];
    while (len > 0) {
        size_t n = len < sizeof(zeros) ? (size_t)len : sizeof(zeros);
        int rc = d->ops->write(d, zeros, n, off);
        if (rc < 0)
            return rc;
        off += n;
        len -= n;
    }
    return 0;
}

int bdev_discard(struct bdev *d, uint64_t len, uint64_t off)
{
    count(&d->discards, 1);
    int rc = 0;
    if (!d->ops->write)
        rc = -EROFS;
    else if (!in_range(d, len, off))
        rc = -EINVAL;
    else if (len > 0)
        rc = d->ops->discard ? d->ops->discard(d, len, off) : write_zeros(d, len, off);
    return rc < 0 ? failed(d, OP_DISCARD, len, off, rc) : 0;
}

enum bdev_content bdev_content(struct bdev *d, uint64_t len, uint64_t off, uint64_t *run)
{
    if (d->ops->content)
        return d->ops->content(d, len, off, run);
    *run = len;
    return BDEV_DATA;
}

struct bdev_stats bdev_stats(const struct bdev *d)
{
    return (struct bdev_stats){
        .reads = atomic_load_explicit(&d->reads, memory_order_relaxed),
        .writes = atomic_load_explicit(&d->writes, memory_order_relaxed),
        .flushes = atomic_load_explicit(&d->flushes, memory_order_relaxed),
        .discards = atomic_load_explicit(&d->discards, memory_order_relaxed),
        .bytes_read = atomic_load_explicit(&d->bytes_read, memory_order_relaxed),
        .bytes_written = atomic_load_explicit(&d->bytes_written, memory_order_relaxed),
        .errors = atomic_load_explicit(&d->errors, memory_order_relaxed),
    };
}

void bdev_close(struct bdev *d)
{
    if (d)
        d->ops->close(d);
}
