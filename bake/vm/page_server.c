/* SPDX-License-Identifier: MIT */
/*
 * One thread answers all faults. A fault brings the block of pages around it, since neighbours are
 * wanted soon and a read costs more than a copy; what is there already is left alone. Of each page
 * it is known whether it is absent (its bytes are in the image), present, or was given back by the
 * guest's machine (MADV_DONTNEED, a balloon): such a page is zeros from then on, whatever the image
 * says. The events of one read are all taken in before a fault is answered, and a fault that the
 * kernel refuses with EAGAIN (memory is being given back at this moment) waits for the next round.
 *
 * Sources: ioctl_userfaultfd(2); Linux, Documentation/admin-guide/mm/userfaultfd.rst.
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "bake/vm/page_server.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum {
    PAGE = 4096,
    BLOCK_PAGES = 16,
    REGIONS_MAX = 64,
    PENDING_MAX = 1024, /* faults that wait: one per thread of the far end */
    EVENTS_AT_ONCE = 64,
    HELLO_MAX = 65536,
    HELLO_MS = 10000,
    RETRY_MS = 1
};

enum page_state { PAGE_ABSENT, PAGE_PRESENT, PAGE_REMOVED };

struct page_region {
    uint64_t base; /* address in the far end */
    uint64_t pages;
    uint64_t offset; /* in the image */
    uint8_t *states; /* enum page_state, one per page */
};

struct page_server {
    pthread_t thread;
    bool running;
    int listener;
    int link; /* kept open: its peer's credentials are checked once */
    int stop; /* eventfd */
    int uffd;
    pid_t pid;
    struct bdev *memory;
    struct page_region *regions;
    size_t region_count;
    uint64_t pending[PENDING_MAX];
    size_t pending_count;
    uint8_t block[BLOCK_PAGES * PAGE];
    atomic_uint_fast64_t faults, copied, zeros, removed;
    pthread_mutex_t lock; /* guards the error */
    struct err failure;
};

int page_server_possible(struct err *e)
{
    AUTO_FD int device = openat(AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device >= 0)
        return 0;
    AUTO_FD int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        return 0;
    if (errno == ENOSYS)
        return err_set(e, ERR_UNSUPPORTED, "this kernel has no userfaultfd");
    (void)err_set(e, ERR_DENIED, "this user may not handle page faults (userfaultfd): %s",
                  strerror(errno));
    return err_hint(e, "give the user access to /dev/userfaultfd, or set "
                       "vm.unprivileged_userfaultfd to 1");
}

/* ---- What the far end says first ---- */

static int take_region(struct page_server *p, const struct json *j, struct err *e)
{
    struct page_region *r = &p->regions[p->region_count];
    uint64_t size = 0;
    uint64_t page_size = 0;
    int rc = json_get_u64(j, "base_host_virt_addr", &r->base, e);
    if (rc == 0)
        rc = json_get_u64(j, "size", &size, e);
    if (rc == 0)
        rc = json_get_u64(j, "offset", &r->offset, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "page_size", PAGE, &page_size, e);
    if (rc < 0)
        return rc;
    if (page_size != PAGE)
        return err_set(e, ERR_UNSUPPORTED, "pages of %llu bytes", (unsigned long long)page_size);
    if (size == 0 || (size | r->base | r->offset) % PAGE != 0 || r->base + size < r->base ||
        r->offset > p->memory->size || size > p->memory->size - r->offset)
        return err_set(e, ERR_CORRUPT, "a region of %llu bytes at %llu of a memory image of %llu",
                       (unsigned long long)size, (unsigned long long)r->offset,
                       (unsigned long long)p->memory->size);
    r->pages = size / PAGE;
    r->states = mem_zalloc(r->pages);
    if (!r->states)
        return err_nomem(e, "guest memory");
    p->region_count++;
    return 0;
}

static int take_regions(struct page_server *p, const struct json *list, struct err *e)
{
    size_t count = json_length(list);
    if (count == 0 || count > REGIONS_MAX)
        return err_set(e, ERR_CORRUPT, "%zu regions of memory", count);
    p->regions = mem_array(count, sizeof(*p->regions));
    if (!p->regions)
        return err_nomem(e, "guest memory");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take_region(p, json_element(list, i), e);
    return rc;
}

/* One message, and the descriptor that may come with it. */
static ssize_t receive(struct page_server *p, char *text, size_t len)
{
    union {
        struct cmsghdr header; /* for its alignment */
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = text, .iov_len = len};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(p->link, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)) && p->uffd < 0)
        memcpy(&p->uffd, CMSG_DATA(c), sizeof(int));
    return got;
}

/* Waits for `fd`, or for the end; true when there is something to read. */
static bool wait_for(struct page_server *p, int fd, int timeout_ms)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = p->stop, .events = POLLIN}};
        int ready = poll(fds, 2, timeout_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        return ready > 0 && !fds[1].revents && fds[0].revents;
    }
}

static bool is_stopped(struct page_server *p)
{
    struct pollfd fd = {.fd = p->stop, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

static int check_peer(struct page_server *p, struct err *e)
{
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);
    if (getsockopt(p->link, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return err_sys(e, "who asks for memory");
    return peer.pid == p->pid
               ? 0
               : err_set(e, ERR_DENIED, "process %d asks for memory, not the machine's", peer.pid);
}

/* The list may come in pieces: it is whole when it can be read. */
static int read_hello(struct page_server *p, struct err *e)
{
    AUTO_FREE char *text = mem_zalloc(HELLO_MAX);
    if (!text)
        return err_nomem(e, "guest memory");
    int64_t deadline = clock_ms() + HELLO_MS;
    size_t len = 0;
    for (;;) {
        int64_t left = deadline - clock_ms();
        if (left <= 0 || !wait_for(p, p->link, (int)left))
            return err_set(e, ERR_TIMEOUT, "no list of memory regions in %d s", HELLO_MS / 1000);
        ssize_t got = receive(p, text + len, HELLO_MAX - len);
        if (got <= 0)
            return err_set(e, ERR_CORRUPT, "the list of memory regions is cut short");
        len += (size_t)got;
        AUTO_JSON struct json *list = NULL;
        err_clear(e);
        if (json_parse(&list, text, len, "memory regions", e) < 0) {
            if (len == HELLO_MAX)
                return -(int)e->class;
            continue;
        }
        if (p->uffd < 0)
            return err_set(e, ERR_CORRUPT, "no userfaultfd came with the memory regions");
        if (fcntl(p->uffd, F_SETFL, O_NONBLOCK) < 0)
            return err_sys(e, "taking over the userfaultfd of the guest's memory");
        return take_regions(p, list, e);
    }
}

static int take_connection(struct page_server *p, struct err *e)
{
    p->link = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    if (p->link < 0)
        return err_sys(e, "the connection for guest memory");
    int rc = check_peer(p, e);
    return rc == 0 ? read_hello(p, e) : rc;
}

/* ---- Pages ---- */

static struct page_region *find_region(struct page_server *p, uint64_t address)
{
    for (size_t i = 0; i < p->region_count; i++) {
        struct page_region *r = &p->regions[i];
        if (address >= r->base && (address - r->base) / PAGE < r->pages)
            return r;
    }
    return NULL;
}

/* Puts pages in place: copies of `data`, or zeros. Returns how many are there now, or a negative
 * errno; -EAGAIN may come after some. */
static long place(struct page_server *p, uint64_t address, uint64_t pages, const void *data)
{
    int64_t done;
    int failed;
    if (data) {
        struct uffdio_copy copy = {.dst = address, .src = (uintptr_t)data, .len = pages * PAGE};
        failed = ioctl(p->uffd, UFFDIO_COPY, &copy) < 0 ? errno : 0;
        done = copy.copy;
    } else {
        struct uffdio_zeropage zero = {.range = {.start = address, .len = pages * PAGE}};
        failed = ioctl(p->uffd, UFFDIO_ZEROPAGE, &zero) < 0 ? errno : 0;
        done = zero.zeropage;
    }
    if (failed && done <= 0)
        return -failed;
    long placed = (long)(done / PAGE);
    atomic_fetch_add(data ? &p->copied : &p->zeros, (uint64_t)placed);
    return placed;
}

static void wake(struct page_server *p, uint64_t address)
{
    struct uffdio_range range = {.start = address, .len = PAGE};
    int ignored = ioctl(p->uffd, UFFDIO_WAKE, &range);
    (void)ignored;
}

/* All of a run of pages. A page that is there already is left as it is. */
static int place_run(struct page_server *p, struct page_region *r, uint64_t first, uint64_t pages,
                     const uint8_t *data)
{
    for (uint64_t at = 0; at < pages;) {
        uint64_t address = r->base + (first + at) * PAGE;
        long placed = place(p, address, pages - at, data ? data + at * PAGE : NULL);
        if (placed == -EEXIST || placed == -ENOENT) {
            wake(p, address);
            placed = 1;
        }
        if (placed < 0)
            return (int)placed;
        memset(r->states + first + at, PAGE_PRESENT, (size_t)placed);
        at += (uint64_t)placed;
    }
    return 0;
}

static bool is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE - 1) == 0;
}

/* The absent pages of the block around `page`. */
static int bring_block(struct page_server *p, struct page_region *r, uint64_t page)
{
    uint64_t first = page - page % BLOCK_PAGES;
    uint64_t count = r->pages - first < BLOCK_PAGES ? r->pages - first : BLOCK_PAGES;
    int rc = bdev_read(p->memory, p->block, count * PAGE, r->offset + first * PAGE);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < count;) {
        if (r->states[first + i] != PAGE_ABSENT) {
            i++;
            continue;
        }
        bool zero = is_zero(p->block + i * PAGE);
        uint64_t run = 1;
        while (i + run < count && r->states[first + i + run] == PAGE_ABSENT &&
               is_zero(p->block + (i + run) * PAGE) == zero)
            run++;
        rc = place_run(p, r, first + i, run, zero ? NULL : p->block + i * PAGE);
        if (rc < 0)
            return rc;
        i += run;
    }
    return 0;
}

/* 0, -EAGAIN: later, or what ended it. */
static int answer_fault(struct page_server *p, uint64_t address)
{
    struct page_region *r = find_region(p, address);
    if (!r)
        return -EFAULT;
    uint64_t page = (address - r->base) / PAGE;
    if (r->states[page] == PAGE_PRESENT) {
        wake(p, r->base + page * PAGE); /* it came in with another one's block */
        return 0;
    }
    if (r->states[page] == PAGE_REMOVED)
        return place_run(p, r, page, 1, NULL);
    return bring_block(p, r, page);
}

static void mark_removed(struct page_server *p, uint64_t start, uint64_t end)
{
    for (uint64_t at = start; at < end; at += PAGE) {
        struct page_region *r = find_region(p, at);
        if (!r)
            continue;
        r->states[(at - r->base) / PAGE] = PAGE_REMOVED;
        atomic_fetch_add(&p->removed, 1);
    }
}

/* ---- Events ---- */

static int take_event(struct page_server *p, const struct uffd_msg *m, struct err *e)
{
    if (m->event == UFFD_EVENT_REMOVE)
        mark_removed(p, m->arg.remove.start, m->arg.remove.end);
    if (m->event != UFFD_EVENT_PAGEFAULT)
        return 0;
    atomic_fetch_add(&p->faults, 1);
    if (p->pending_count == PENDING_MAX)
        return err_set(e, ERR_LIMIT, "more than %d page faults wait", PENDING_MAX);
    p->pending[p->pending_count++] = m->arg.pagefault.address & ~(uint64_t)(PAGE - 1);
    return 0;
}

/* Takes in all events that are there. */
static int take_events(struct page_server *p, struct err *e)
{
    struct uffd_msg messages[EVENTS_AT_ONCE];
    for (;;) {
        ssize_t got = read(p->uffd, messages, sizeof(messages));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno == EAGAIN ? 0 : err_sys(e, "page faults of the guest");
        for (size_t i = 0; i < (size_t)got / sizeof(messages[0]); i++) {
            int rc = take_event(p, &messages[i], e);
            if (rc < 0)
                return rc;
        }
        if (got == 0)
            return 0;
    }
}

static int answer_pending(struct page_server *p, struct err *e)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->pending_count; i++) {
        uint64_t address = p->pending[i];
        int rc = answer_fault(p, address);
        if (rc == -EAGAIN)
            p->pending[kept++] = address;
        else if (rc == -ESRCH) /* the far end is dying */
            continue;
        else if (rc < 0)
            return err_sysno(e, -rc, "a page of guest memory");
    }
    p->pending_count = kept;
    return 0;
}

static int serve(struct page_server *p, struct err *e)
{
    if (!wait_for(p, p->listener, -1))
        return 0;
    int rc = take_connection(p, e);
    while (rc == 0 && !is_stopped(p)) {
        bool some = wait_for(p, p->uffd, p->pending_count > 0 ? RETRY_MS : -1);
        if (some)
            rc = take_events(p, e);
        if (rc == 0)
            rc = answer_pending(p, e);
    }
    return rc;
}

static void *page_server_main(void *argument)
{
    struct page_server *p = argument;
    struct err e = ERR_INIT;
    if (serve(p, &e) < 0 && !is_stopped(p)) {
        (void)err_in(&e, "serving the guest's memory");
        pthread_mutex_lock(&p->lock);
        p->failure = e;
        pthread_mutex_unlock(&p->lock);
        kill(p->pid, SIGKILL); /* a child that nobody has reaped: the number is still its own */
    }
    return NULL;
}

/* ---- For its user ---- */

static int listen_at(struct page_server *p, const struct page_server_options *o, struct err *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int len = snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", o->dir,
                       o->name);
    if (len < 0 || (size_t)len >= sizeof(address.sun_path))
        return err_set(e, ERR_LIMIT, "socket %s: the name is too long", o->name);
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->listener < 0 ||
        bind(p->listener, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(p->listener, 1) < 0)
        return err_sys(e, "socket %s for guest memory", o->name);
    p->stop = eventfd(0, EFD_CLOEXEC);
    return p->stop < 0 ? err_sys(e, "making an event for the guest's memory") : 0;
}

int page_server_start(struct page_server **out, const struct page_server_options *o, struct err *e)
{
    AUTO_PAGE_SERVER struct page_server *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "guest memory");
    p->listener = p->link = p->stop = p->uffd = -1;
    p->pid = o->pid;
    p->memory = o->memory;
    p->failure = (struct err)ERR_INIT;
    pthread_mutex_init(&p->lock, NULL);
    int rc = listen_at(p, o, e);
    if (rc < 0)
        return rc;
    int sys = pthread_create(&p->thread, NULL, page_server_main, p);
    if (sys != 0)
        return err_sysno(e, sys, "starting the thread for guest memory");
    p->running = true;
    *out = MOVE(p);
    return 0;
}

int page_server_check(struct page_server *p, struct err *e)
{
    pthread_mutex_lock(&p->lock);
    bool failed = p->failure.class != ERR_NONE;
    if (failed)
        *e = p->failure;
    pthread_mutex_unlock(&p->lock);
    return failed ? -(int)e->class : 0;
}

struct page_counts page_server_counts(const struct page_server *p)
{
    return (struct page_counts){.faults = atomic_load(&p->faults),
                                .copied = atomic_load(&p->copied),
                                .zeros = atomic_load(&p->zeros),
                                .removed = atomic_load(&p->removed)};
}

void page_server_stop(struct page_server *p)
{
    if (!p)
        return;
    if (p->running) {
        uint64_t one = 1;
        ssize_t n = write(p->stop, &one, sizeof(one));
        (void)n;
        pthread_join(p->thread, NULL);
    }
    file_close(&p->listener);
    file_close(&p->link);
    file_close(&p->stop);
    file_close(&p->uffd);
    for (size_t i = 0; i < p->region_count; i++)
        free(p->regions[i].states);
    free(p->regions);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
