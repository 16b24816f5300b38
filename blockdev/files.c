/* SPDX-License-Identifier: MIT */
/*
 * Devices as files: a FUSE file system of this process (files_mount.c) with one read-only file for
 * each device, whose pages are read when they are first touched. For programs that want a file to
 * map, which is how QEMU takes a guest's memory.
 *
 * Whoever maps a file waits in a page fault for each first touch, so what counts is how long one
 * small read takes and that many go on at once: FILES_WORKERS threads read requests from the one
 * connection, and each sends the bytes from where the chunk cache has them. The descriptor does not
 * block; a worker that finds nothing sleeps in an epoll of its own, of which the kernel wakes one for
 * a request (EPOLLEXCLUSIVE) and all when the end is announced. A read that must fetch a chunk holds
 * one worker for that long; the others go on.
 *
 * What the kernel has read it keeps (FOPEN_KEEP_CACHE, attributes that never expire): a device's
 * bytes do not change, and everybody who maps the file shares the pages.
 *
 * This process never opens the files itself, nor asks the mount for anything: killed while it waits for an
 * answer, or while its own end closes such a file (which sends FLUSH), it would wait for itself for ever,
 * with the connection still open, where not even SIGKILL helps. The top directory's descriptor is one of
 * fsmount, whose closing sends nothing; others reach the files through it.
 *
 * A file's device is looked up under the lock and counted while it is read, so that removing a file
 * waits for the reads under way.
 */
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/files_mount.h"
#include "blockdev/internal.h"

enum {
    FILES_WORKERS = 8,
    FILES_READ_MAX =
        128 << 10, /* of one request; a longer read-ahead becomes several, side by side */
    FILES_BACKGROUND_MAX = 64, /* read-aheads under way at once */
    FIRST_NUMBER = FUSE_ROOT_ID + 1,
};
#define FOREVER 1e9 /* seconds that attributes and names stay good */

struct bdev_file {
    struct bdev_files *owner;
    struct bdev *device; /* borrowed */
    fuse_ino_t number;   /* never used again; its text is the file's name */
    char name[24];
    char path[64];
    size_t readers;
    struct bdev_file *next;
};

/* A buffer of FILES_READ_MAX bytes that no read uses now. */
struct idle_buffer {
    struct idle_buffer *next;
};

struct worker {
    struct bdev_files *files;
    int poll; /* epoll: the connection, and `stop` */
    pthread_t thread;
    bool started;
};

struct bdev_files {
    struct fuse_session *session;
    int device; /* /dev/fuse: the session's, once there is one */
    int root;
    int stop;             /* eventfd: the workers are to end */
    pthread_mutex_t lock; /* the rest */
    pthread_cond_t idle;  /* a file's last reader left */
    struct bdev_file *first;
    fuse_ino_t next_number;
    struct idle_buffer *buffers;
    struct worker workers[FILES_WORKERS];
};

/* ---- Files ---- */

/* Counts a reader; NULL: there is no such file. */
static struct bdev_file *file_hold(struct bdev_files *f, fuse_ino_t number)
{
    pthread_mutex_lock(&f->lock);
    struct bdev_file *x = f->first;
    while (x && x->number != number)
        x = x->next;
    if (x)
        x->readers++;
    pthread_mutex_unlock(&f->lock);
    return x;
}

static void file_release(struct bdev_file *x)
{
    struct bdev_files *f = x->owner;
    pthread_mutex_lock(&f->lock);
    if (--x->readers == 0)
        pthread_cond_broadcast(&f->idle);
    pthread_mutex_unlock(&f->lock);
}

static void *take_buffer(struct bdev_files *f)
{
    pthread_mutex_lock(&f->lock);
    struct idle_buffer *buffer = f->buffers;
    if (buffer)
        f->buffers = buffer->next;
    pthread_mutex_unlock(&f->lock);
    return buffer ? buffer : mem_zalloc(FILES_READ_MAX);
}

static void give_buffer(struct bdev_files *f, void *bytes)
{
    struct idle_buffer *buffer = bytes;
    pthread_mutex_lock(&f->lock);
    buffer->next = f->buffers;
    f->buffers = buffer;
    pthread_mutex_unlock(&f->lock);
}

/* ---- Requests ---- */

static struct stat describe(fuse_ino_t number, mode_t mode, uint64_t size)
{
    return (struct stat){.st_ino = number,
                         .st_mode = mode,
                         .st_nlink = 1,
                         .st_uid = geteuid(),
                         .st_gid = getegid(),
                         .st_size = (off_t)size,
                         .st_blksize = BLOCK_SIZE};
}

/* Whoever maps privately must be able to open for writing too; nothing is ever written. */
static struct stat describe_file(const struct bdev_file *x)
{
    return describe(x->number, S_IFREG | 0600, x->device->size);
}

static void on_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct bdev_files *f = fuse_req_userdata(request);
    struct fuse_entry_param entry = {.attr_timeout = FOREVER, .entry_timeout = FOREVER};
    pthread_mutex_lock(&f->lock);
    struct bdev_file *x = parent == FUSE_ROOT_ID ? f->first : NULL;
    while (x && strcmp(x->name, name) != 0)
        x = x->next;
    if (x) {
        entry.ino = x->number;
        entry.attr = describe_file(x);
    }
    pthread_mutex_unlock(&f->lock);
    (void)(entry.ino ? fuse_reply_entry(request, &entry) : fuse_reply_err(request, ENOENT));
}

static void on_getattr(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *info UNUSED)
{
    struct bdev_files *f = fuse_req_userdata(request);
    struct bdev_file *x = file_hold(f, number);
    struct stat st = x ? describe_file(x) : describe(number, S_IFDIR | 0700, 0);
    if (x)
        file_release(x);
    if (x || number == FUSE_ROOT_ID)
        (void)fuse_reply_attr(request, &st, FOREVER);
    else
        (void)fuse_reply_err(request, ENOENT);
}

static void on_open(fuse_req_t request, fuse_ino_t number UNUSED, struct fuse_file_info *info)
{
    info->keep_cache = 1;
    info->noflush = 1; /* there is nothing to flush, and closing is faster */
    (void)fuse_reply_open(request, info);
}

static void reply_copied(fuse_req_t request, struct bdev_file *x, size_t len, uint64_t off)
{
    /* To answer less than was asked for would move the file's end. */
    void *bytes = len <= FILES_READ_MAX ? take_buffer(x->owner) : NULL;
    int rc = bytes ? bdev_read(x->device, bytes, len, off) : -ENOMEM;
    if (rc == 0)
        (void)fuse_reply_buf(request, bytes, len);
    else
        (void)fuse_reply_err(request, -rc);
    if (bytes)
        give_buffer(x->owner, bytes);
}

static void on_read(fuse_req_t request, fuse_ino_t number, size_t size, off_t off,
                    struct fuse_file_info *info UNUSED)
{
    struct bdev_file *x = file_hold(fuse_req_userdata(request), number);
    if (!x) {
        (void)fuse_reply_err(request, EIO);
        return;
    }
    uint64_t at = (uint64_t)off;
    uint64_t left = at < x->device->size ? x->device->size - at : 0;
    size_t len = size < left ? size : (size_t)left;
    struct bdev_loan loan = {.part_count = 0};
    int rc = bdev_lend(x->device, &loan, len, at);
    if (rc == 0)
        (void)fuse_reply_iov(request, loan.parts, (int)loan.part_count);
    else if (rc == -EAGAIN)
        reply_copied(request, x, len, at);
    else
        (void)fuse_reply_err(request, -rc);
    bdev_loan_end(&loan);
    file_release(x);
}

/* Bytes go by write: they lie in the middle of chunks, where no page can be moved from. */
static void on_init(void *files UNUSED, struct fuse_conn_info *connection)
{
    connection->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE);
    connection->max_write = FILES_READ_MAX; /* the limit of reads follows from it */
    connection->max_background = FILES_BACKGROUND_MAX;
    connection->congestion_threshold = FILES_BACKGROUND_MAX;
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = on_lookup,
    .getattr = on_getattr,
    .open = on_open,
    .read = on_read,
};

/* ---- Workers ---- */

/* False: it is time to end. */
static bool await_request(struct worker *w)
{
    struct epoll_event event = {.events = 0};
    int n = epoll_wait(w->poll, &event, 1, -1);
    return n == 0 || (n < 0 && errno == EINTR) || (n > 0 && event.data.fd != w->files->stop);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct fuse_session *session = w->files->session;
    struct fuse_buf request = {.fd = -1};
    bool going = true;
    while (going) {
        int n = fuse_session_receive_buf(session, &request);
        if (n > 0)
            fuse_session_process_buf(session, &request);
        else if (n == -EAGAIN)
            going = await_request(w);
        else
            going = n == -EINTR; /* else the connection is gone */
    }
    free(request.mem);
    return NULL;
}

static int worker_start(struct worker *w, struct err *e)
{
    struct bdev_files *f = w->files;
    struct epoll_event request = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = f->device};
    struct epoll_event stop = {.events = EPOLLIN, .data.fd = f->stop};
    w->poll = epoll_create1(EPOLL_CLOEXEC);
    if (w->poll < 0 || epoll_ctl(w->poll, EPOLL_CTL_ADD, f->device, &request) < 0 ||
        epoll_ctl(w->poll, EPOLL_CTL_ADD, f->stop, &stop) < 0)
        return err_sys(e, "waiting for requests of FUSE");
    int sys = device_thread_start(&w->thread, worker_main, w);
    if (sys != 0)
        return err_sysno(e, sys, "starting a thread for FUSE");
    w->started = true;
    return 0;
}

/* ---- Start and stop ---- */

/* What the library has to say of single requests. */
PRINTF_LIKE(2, 0)
static void take_message(enum fuse_log_level level UNUSED, const char *format, va_list arguments)
{
    char text[256];
    vsnprintf(text, sizeof(text), format, arguments);
    text[strcspn(text, "\n")] = 0;
    log_event(LOG_DEBUG, "blockdev", "%s", text);
}

static int open_session(struct bdev_files *f, struct err *e)
{
    char name[] = "tb2-bake";
    char *argv[] = {name, NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(1, argv);
    char device[32];
    int rc = files_mount(&f->device, &f->root, e);
    if (rc < 0)
        return rc;
    int flags = fcntl(f->device, F_GETFL);
    if (flags < 0 || fcntl(f->device, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_sys(e, "setting up the connection to FUSE");
    fuse_set_log_func(take_message);
    f->session = fuse_session_new(&arguments, &operations, sizeof(operations), f);
    fuse_opt_free_args(&arguments);
    if (!f->session)
        return err_nomem(e, "FUSE session");
    /* A descriptor that is mounted already: fuse_session_mount takes it over under this name. */
    snprintf(device, sizeof(device), "/dev/fd/%d", f->device);
    if (fuse_session_mount(f->session, device) != 0)
        return err_set(e, ERR_UNSUPPORTED, "this libfuse takes no connection that is mounted");
    return 0;
}

int bdev_files_start(struct bdev_files **out, struct err *e)
{
    struct bdev_files *f = mem_zalloc(sizeof(*f));
    if (!f)
        return err_nomem(e, "FUSE");
    f->device = f->root = -1;
    f->next_number = FIRST_NUMBER;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->idle, NULL);
    for (size_t i = 0; i < FILES_WORKERS; i++)
        f->workers[i] = (struct worker){.files = f, .poll = -1};
    f->stop = eventfd(0, EFD_CLOEXEC);
    int rc = f->stop < 0 ? err_sys(e, "FUSE") : open_session(f, e);
    for (size_t i = 0; rc == 0 && i < FILES_WORKERS; i++)
        rc = worker_start(&f->workers[i], e);
    if (rc < 0) {
        bdev_files_stop(f);
        return rc;
    }
    *out = f;
    return 0;
}

void bdev_files_stop(struct bdev_files *f)
{
    if (!f)
        return;
    while (f->first)
        bdev_file_remove(f->first);
    /* The workers end first: from then on nobody answers, so the mount must not be asked any more. */
    uint64_t one = 1;
    if (f->stop >= 0 && write(f->stop, &one, sizeof(one)) < 0)
        log_event(LOG_WARN, "blockdev", "FUSE: workers cannot be told to end");
    for (size_t i = 0; i < FILES_WORKERS; i++) {
        if (f->workers[i].started)
            pthread_join(f->workers[i].thread, NULL);
        file_close(&f->workers[i].poll);
    }
    if (f->session)
        fuse_session_destroy(
            f->session); /* closes the connection, which ends the mount's requests */
    else
        file_close(&f->device);
    file_close(&f->root);
    file_close(&f->stop);
    for (struct idle_buffer *next, *b = f->buffers; b; b = next) {
        next = b->next;
        free(b);
    }
    pthread_cond_destroy(&f->idle);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

int bdev_file_add(struct bdev_file **out, struct bdev_files *f, struct bdev *d, struct err *e)
{
    struct bdev_file *x = mem_zalloc(sizeof(*x));
    if (!x)
        return err_nomem(e, "file");
    x->owner = f;
    x->device = d;
    pthread_mutex_lock(&f->lock);
    x->number = f->next_number++;
    snprintf(x->name, sizeof(x->name), "%llu", (unsigned long long)x->number);
    snprintf(x->path, sizeof(x->path), "/proc/%ld/fd/%d/%s", (long)getpid(), f->root, x->name);
    x->next = f->first;
    f->first = x;
    pthread_mutex_unlock(&f->lock);
    *out = x;
    return 0;
}

const char *bdev_file_path(const struct bdev_file *x)
{
    return x->path;
}

void bdev_file_remove(struct bdev_file *x)
{
    if (!x)
        return;
    struct bdev_files *f = x->owner;
    pthread_mutex_lock(&f->lock);
    struct bdev_file **at = &f->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    while (x->readers > 0)
        pthread_cond_wait(&f->idle, &f->lock);
    pthread_mutex_unlock(&f->lock);
    /* The kernel gives back what it has of the file. */
    (void)fuse_lowlevel_notify_inval_entry(f->session, FUSE_ROOT_ID, x->name, strlen(x->name));
    free(x);
}
