/* SPDX-License-Identifier: MIT */
/*
 * Queues of a ublk device. Each has a thread, as the kernel wants it: commands of a queue are taken
 * from the one that first asked for a request. The thread asks for `depth` requests and, for each
 * that comes, answers and asks for the next in one command (COMMIT_AND_FETCH).
 *
 * The thread runs on the processors whose requests the queue gets: waking it is then cheap.
 *
 * What the device can answer at once is answered there. A read that must wait (for a chunk that is
 * not in memory) goes to the workers, so that one missing chunk does not hold the reads of all
 * others up; so does a large request that others wait behind. The worker hands the result back through `done` and an eventfd that the ring watches.
 *
 * Bytes go between our buffers and the kernel's by read and write of /dev/ublkcN (UBLK_USER_COPY),
 * which any thread may call: buffers belong to threads, not to requests, so a device costs what its
 * threads touch. A thread that is idle for a second gives a large buffer's pages back.
 *
 * The end: after STOP_DEV the kernel answers each command with an error, and the thread ends with
 * the last one. When the device could not be stopped the queue is abandoned: the thread ends at once,
 * and the kernel, which sees the ring go, keeps the device for recovery.
 */
#include <liburing.h>
#undef BLOCK_SIZE /* the kernel headers' own; ours is in blockdev.h */

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"
#include "blockdev/ublk_internal.h"

enum {
    IDLE_SECONDS = 1,
    SHARE_SIZE = 256 << 10, /* bytes from which on a request may go to a worker */
    KEEP_SIZE = 64 << 10,   /* bytes of a buffer that are not worth giving back */
};

#define WAKE_TAG UINT64_MAX /* user_data of the eventfd's read */

static uint8_t *buffer_map(void)
{
    void *at = mmap(NULL, UBLK_IO_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void buffer_unmap(uint8_t *buffer)
{
    if (buffer)
        (void)munmap(buffer, UBLK_IO_MAX);
}

/* ---- One request ---- */

/* All of a request's bytes to or from the kernel. */
static int copy(const struct ublk_queue *q, uint16_t tag, uint8_t *data, size_t len, bool to_kernel)
{
    off_t off = ublk_data_offset(q->number, tag);
    while (len > 0) {
        ssize_t n = to_kernel ? pwrite(q->fd, data, len, off) : pread(q->fd, data, len, off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        off += n;
        len -= (size_t)n;
    }
    return 0;
}

/* A read's bytes from where they lie, if they lie in memory: one copy less. */
static int copy_lent(const struct ublk_queue *q, uint16_t tag, size_t len, uint64_t off)
{
    struct bdev_loan loan;
    int rc = bdev_lend(q->device, &loan, len, off);
    if (rc < 0)
        return rc;
    off_t to = ublk_data_offset(q->number, tag);
    ssize_t n;
    do
        n = pwritev(q->fd, loan.parts, (int)loan.part_count, to);
    while (n < 0 && errno == EINTR);
    bdev_loan_end(&loan);
    return n == (ssize_t)len ? 0 : -EAGAIN; /* a part alone is not worth a case of its own */
}

static int copy_read(const struct ublk_queue *q, uint16_t tag, uint8_t *buffer, bool may_wait)
{
    uint64_t off = q->requests[tag].start_sector * UBLK_SECTOR;
    size_t len = (size_t)q->requests[tag].sectors * UBLK_SECTOR;
    int rc = may_wait ? bdev_read(q->device, buffer, len, off)
                      : bdev_read_now(q->device, buffer, len, off);
    return rc < 0 ? rc : copy(q, tag, buffer, len, true);
}

/* Result of a request for the kernel: bytes, or -errno. -EAGAIN: it must wait, and may not. */
static int32_t answer(const struct ublk_queue *q, uint16_t tag, uint8_t *buffer, bool may_wait)
{
    struct ublk_io_request request = q->requests[tag];
    uint64_t off = request.start_sector * UBLK_SECTOR;
    uint64_t len = (uint64_t)request.sectors * UBLK_SECTOR;
    unsigned operation = request.operation_and_flags & 0xff;
    bool carries_data = operation == UBLK_OP_READ || operation == UBLK_OP_WRITE;
    if (len > (carries_data ? UBLK_IO_MAX : INT32_MAX))
        return -EINVAL;
    int rc;
    switch (operation) {
    case UBLK_OP_READ:
        rc = copy_lent(q, tag, len, off);
        if (rc == -EAGAIN)
            rc = copy_read(q, tag, buffer, may_wait);
        break;
    case UBLK_OP_WRITE:
        rc = copy(q, tag, buffer, len, false);
        if (rc == 0)
            rc = bdev_write(q->device, buffer, len, off);
        break;
    case UBLK_OP_FLUSH:
        rc = bdev_flush(q->device);
        break;
    case UBLK_OP_DISCARD:
    case UBLK_OP_WRITE_ZEROES:
        rc = bdev_discard(q->device, len, off);
        break;
    default:
        rc = -EOPNOTSUPP;
    }
    return rc < 0 ? rc : carries_data ? (int32_t)len : 0;
}

/* ---- Workers ---- */

static void wake(const struct ublk_queue *q)
{
    uint64_t one = 1;
    ssize_t written;
    do
        written = write(q->wake, &one, sizeof(one));
    while (written < 0 && errno == EINTR);
}

static void job_submit(struct ublk_workers *w, struct ublk_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&w->mutex);
    *w->last = job;
    w->last = &job->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->mutex);
}

static void job_finish(struct ublk_job *job)
{
    struct ublk_queue *q = job->queue;
    pthread_mutex_lock(&q->mutex);
    job->next = q->done;
    q->done = job;
    pthread_mutex_unlock(&q->mutex);
    wake(q);
}

/* The next job; NULL at the end. An idle worker's buffer goes back. */
static struct ublk_job *job_take(struct ublk_workers *w, uint8_t *buffer)
{
    pthread_mutex_lock(&w->mutex);
    bool given_back = !buffer;
    while (!w->first && !w->ending) {
        if (given_back) {
            pthread_cond_wait(&w->more, &w->mutex);
        } else if (!cond_wait_until(&w->more, &w->mutex, clock_ms() + IDLE_SECONDS * 1000)) {
            (void)madvise(buffer, UBLK_IO_MAX, MADV_DONTNEED);
            given_back = true;
        }
    }
    struct ublk_job *job = w->first;
    if (job) {
        w->first = job->next;
        if (!w->first)
            w->last = &w->first;
    }
    pthread_mutex_unlock(&w->mutex);
    return job;
}

static void *worker_main(void *arg)
{
    struct ublk_workers *w = arg;
    uint8_t *buffer = NULL; /* made with the first job */
    struct ublk_job *job;
    while ((job = job_take(w, buffer))) {
        if (!buffer)
            buffer = buffer_map();
        job->result = buffer ? answer(job->queue, job->tag, buffer, true) : -ENOMEM;
        job_finish(job);
    }
    buffer_unmap(buffer);
    return NULL;
}

int ublk_workers_start(struct ublk_workers *w, struct err *e)
{
    *w = (struct ublk_workers){.last = &w->first};
    pthread_mutex_init(&w->mutex, NULL);
    (void)cond_init(&w->more);
    for (size_t i = 0; i < UBLK_WORKERS; i++) {
        int sys = device_thread_start(&w->threads[i], worker_main, w);
        if (sys != 0) {
            ublk_workers_stop(w);
            return err_sysno(e, sys, "ublk: starting a thread");
        }
        w->thread_count++;
    }
    return 0;
}

void ublk_workers_stop(struct ublk_workers *w)
{
    pthread_mutex_lock(&w->mutex);
    w->ending = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->mutex);
    for (size_t i = 0; i < w->thread_count; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->mutex);
}

/* ---- The queue's thread ---- */

struct loop {
    struct ublk_queue *q;
    struct io_uring ring;
    uint64_t wake_count; /* the eventfd's read goes here */
    unsigned active;     /* requests that are asked for, or being answered */
    bool dirty;          /* much of the buffer was used since it was given back */
};

/* There is an entry for every tag and one for the eventfd, so this cannot run dry. */
static void command(struct loop *l, unsigned opcode, uint16_t tag, int32_t result)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&l->ring);
    struct ublk_io_payload payload = {.queue = l->q->number, .tag = tag, .result = result};
    io_uring_prep_rw(IORING_OP_URING_CMD, entry, l->q->fd, NULL, 0, 0);
    entry->off = opcode;
    memcpy((uint8_t *)entry + offsetof(struct io_uring_sqe, addr3), &payload, sizeof(payload));
    entry->user_data = tag;
}

static void watch_wake(struct loop *l)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&l->ring);
    io_uring_prep_read(entry, l->q->wake, &l->wake_count, sizeof(l->wake_count), 0);
    entry->user_data = WAKE_TAG;
}

/* `more`: other requests wait behind this one. */
static void on_request(struct loop *l, uint16_t tag, bool more)
{
    struct ublk_queue *q = l->q;
    uint64_t size = (uint64_t)q->requests[tag].sectors * UBLK_SECTOR;
    /* Large copies are worth another processor. */
    bool here = !more || size < SHARE_SIZE;
    if (here && size > KEEP_SIZE)
        l->dirty = true;
    int32_t result = here ? answer(q, tag, q->buffer, false) : -EAGAIN;
    if (result != -EAGAIN) {
        command(l, UBLK_IO_COMMIT_AND_FETCH, tag, result);
        return;
    }
    struct ublk_job *job = &q->jobs[tag];
    job->queue = q;
    job->tag = tag;
    job_submit(q->workers, job);
}

static void on_wake(struct loop *l)
{
    pthread_mutex_lock(&l->q->mutex);
    struct ublk_job *job = l->q->done;
    l->q->done = NULL;
    pthread_mutex_unlock(&l->q->mutex);
    for (; job; job = job->next)
        command(l, UBLK_IO_COMMIT_AND_FETCH, job->tag, job->result);
    watch_wake(l);
}

static void on_completion(struct loop *l, const struct io_uring_cqe *completion, bool more)
{
    if (completion->user_data == WAKE_TAG)
        on_wake(l);
    else if (completion->res == 0)
        on_request(l, (uint16_t)completion->user_data, more);
    else
        l->active--;
}

/* Sends what is prepared and waits for something to happen. */
static int wait_for_more(struct loop *l)
{
    struct io_uring_cqe *completion;
    struct __kernel_timespec limit = {.tv_sec = IDLE_SECONDS};
    int rc =
        io_uring_submit_and_wait_timeout(&l->ring, &completion, 1, l->dirty ? &limit : NULL, NULL);
    if (rc == -ETIME) {
        (void)madvise(l->q->buffer, UBLK_IO_MAX, MADV_DONTNEED);
        l->dirty = false;
    }
    return rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY ? 0 : rc;
}

static void serve(struct loop *l)
{
    while (l->active > 0 && !atomic_load(&l->q->abandoned)) {
        int rc = wait_for_more(l);
        if (rc < 0) {
            log_event(LOG_ERROR, "blockdev", "ublk queue ends: %s", strerror(-rc));
            return;
        }
        struct io_uring_cqe *completion;
        unsigned head, count = 0, ready = io_uring_cq_ready(&l->ring);
        io_uring_for_each_cqe(&l->ring, head, completion)
        {
            count++;
            on_completion(l, completion, count < ready);
        }
        io_uring_cq_advance(&l->ring, count);
    }
}

static void tell_ready(struct ublk_queue *q, int failure)
{
    pthread_mutex_lock(&q->mutex);
    q->ready = true;
    q->failure = failure;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->mutex);
}

static void *queue_main(void *arg)
{
    struct loop l = {.q = arg};
    unsigned entries = l.q->depth + 1u;
    if (CPU_COUNT(&l.q->processors) > 0)
        (void)pthread_setaffinity_np(pthread_self(), sizeof(l.q->processors), &l.q->processors);
    int rc = io_uring_queue_init(entries, &l.ring,
                                 IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (rc < 0) {
        tell_ready(l.q, rc);
        return NULL;
    }
    for (uint16_t tag = 0; tag < l.q->depth; tag++)
        command(&l, UBLK_IO_FETCH, tag, -1);
    watch_wake(&l);
    l.active = l.q->depth;
    rc = io_uring_submit(&l.ring);
    tell_ready(l.q, rc < 0 ? rc : 0);
    if (rc >= 0)
        serve(&l);
    io_uring_queue_exit(&l.ring);
    return NULL;
}

/* ---- Start and stop ---- */

static int map_requests(struct ublk_queue *q)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t distance = mem_round_up(UBLK_DEPTH_MAX * sizeof(struct ublk_io_request), page);
    q->mapped_len = mem_round_up(q->depth * sizeof(struct ublk_io_request), page);
    void *at = mmap(NULL, q->mapped_len, PROT_READ, MAP_SHARED | MAP_POPULATE, q->fd,
                    (off_t)(q->number * distance));
    if (at == MAP_FAILED)
        return -errno;
    q->requests = at;
    return 0;
}

static void release(struct ublk_queue *q)
{
    if (q->requests)
        (void)munmap((void *)(uintptr_t)q->requests, q->mapped_len);
    buffer_unmap(q->buffer);
    free(q->jobs);
    file_close(&q->wake);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->mutex);
    q->started = false;
}

static int prepare(struct ublk_queue *q)
{
    q->wake = eventfd(0, EFD_CLOEXEC);
    if (q->wake < 0)
        return -errno;
    q->jobs = mem_array(q->depth, sizeof(*q->jobs));
    q->buffer = buffer_map();
    return q->jobs && q->buffer ? map_requests(q) : -ENOMEM;
}

int ublk_queue_start(struct ublk_queue *q, struct err *e)
{
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->changed, NULL);
    q->wake = -1;
    int rc = prepare(q);
    if (rc == 0)
        rc = -device_thread_start(&q->thread, queue_main, q);
    if (rc < 0) {
        release(q);
        return err_sysno(e, -rc, "ublk queue %u", q->number);
    }
    q->started = true;
    pthread_mutex_lock(&q->mutex);
    while (!q->ready)
        pthread_cond_wait(&q->changed, &q->mutex);
    rc = q->failure;
    pthread_mutex_unlock(&q->mutex);
    if (rc == 0)
        return 0;
    ublk_queue_stop(q, true);
    return err_sysno(e, -rc, "ublk queue %u", q->number);
}

void ublk_queue_stop(struct ublk_queue *q, bool abandon)
{
    if (!q->started)
        return;
    if (abandon) {
        atomic_store(&q->abandoned, true);
        wake(q);
    }
    pthread_join(q->thread, NULL);
    release(q);
}
