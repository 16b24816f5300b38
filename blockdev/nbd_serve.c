/* SPDX-License-Identifier: MIT */
/*
 * Transmission phase of the NBD protocol, the server's side (proto.md, "Transmission").
 *
 * The threads of a connection are equals: one of them reads the next request (and its payload)
 * under `input_lock`, lets the next one read, does the work, and sends the reply under
 * `output_lock`. A read that waits for a chunk thus delays nothing behind it, and there is no queue
 * to manage. Replies may overtake one another; each carries its request's cookie.
 *
 * Input goes through a small buffer, so that requests that arrive together cost one system call;
 * payloads bypass it.
 *
 * A client that breaks the framing (wrong magic, a payload above NBD_PAYLOAD_MAX) is
 * disconnected, since what follows cannot be understood; everything else gets an error reply.
 *
 * NBD_CMD_FLAG_NO_HOLE is accepted, but reserves nothing: the devices behind are thin, and what a
 * guest writes later may meet ENOSPC as it may anywhere else on them.
 */
#include "blockdev/blockdev.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

#define MAGIC_REQUEST UINT32_C(0x25609513)
#define MAGIC_SIMPLE_REPLY UINT32_C(0x67446698)
#define MAGIC_STRUCTURED_REPLY UINT32_C(0x668e33ef)

enum transmission_flag {
    FLAG_HAS_FLAGS = 1 << 0,
    FLAG_READ_ONLY = 1 << 1,
    FLAG_SEND_FLUSH = 1 << 2,
    FLAG_SEND_FUA = 1 << 3,
    FLAG_SEND_TRIM = 1 << 5,
    FLAG_SEND_WRITE_ZEROES = 1 << 6,
    FLAG_SEND_DF = 1 << 7,
    FLAG_CAN_MULTI_CONN = 1 << 8,
};

enum command {
    COMMAND_READ = 0,
    COMMAND_WRITE = 1,
    COMMAND_DISCONNECT = 2,
    COMMAND_FLUSH = 3,
    COMMAND_TRIM = 4,
    COMMAND_WRITE_ZEROES = 6,
    COMMAND_BLOCK_STATUS = 7,
};

enum command_flag {
    COMMAND_FUA = 1 << 0,
    COMMAND_NO_HOLE = 1 << 1,
    COMMAND_DF = 1 << 2,
    COMMAND_ONE_EXTENT = 1 << 3,
};

enum chunk_type {
    CHUNK_NONE = 0,
    CHUNK_OFFSET_DATA = 1,
    CHUNK_OFFSET_HOLE = 2,
    CHUNK_BLOCK_STATUS = 5,
    CHUNK_ERROR = 0x8001,
};

enum { CHUNK_DONE = 1 << 0 };                                /* structured reply flag */
enum { ALLOCATION_HOLE = 1 << 0, ALLOCATION_ZERO = 1 << 1 }; /* of base:allocation */

/* Error values of the protocol (proto.md, "Error values"). */
enum nbd_error {
    NBD_OK = 0,
    NBD_EPERM = 1,
    NBD_EIO = 5,
    NBD_ENOMEM = 12,
    NBD_EINVAL = 22,
    NBD_ENOSPC = 28,
};

enum {
    REQUEST_LEN = 28,
    SIMPLE_REPLY_LEN = 16,
    STRUCTURED_REPLY_LEN = 20,
    STATUS_EXTENTS_MAX = 1024, /* of one reply; a client asks again for the rest */
    BUFFER_KEEP_MAX = 1 << 20, /* larger payload buffers are given back after use */
};

struct request {
    uint16_t flags;
    uint16_t command;
    uint64_t cookie;
    uint64_t off;
    uint32_t len;
};

/* Payload of the request in hand, reused by the next one. */
struct payload {
    uint8_t *data;
    size_t capacity;
};

/* What a request led to, and what goes with it. */
struct result {
    enum nbd_error error;
    enum chunk_type type;
    const uint8_t *data; /* borrowed */
    size_t len;
};

/* ---- Bytes in and out ---- */

static int receive_some(struct nbd_connection *c, void *data, size_t len, size_t *got)
{
    ssize_t n;
    do
        n = recv(c->fd, data, len, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return -1;
    *got = (size_t)n;
    return 0;
}

int nbd_receive(struct nbd_connection *c, void *data, size_t len)
{
    uint8_t *at = data;
    while (len > 0) {
        size_t n = c->input_end - c->input_at;
        if (n > 0) {
            n = n < len ? n : len;
            memcpy(at, c->input + c->input_at, n);
            c->input_at += n;
        } else if (len >= sizeof(c->input)) {
            if (receive_some(c, at, len, &n) < 0)
                return -1;
        } else {
            c->input_at = c->input_end = 0;
            if (receive_some(c, c->input, sizeof(c->input), &c->input_end) < 0)
                return -1;
            continue;
        }
        at += n;
        len -= n;
    }
    return 0;
}

int nbd_send(struct nbd_connection *c, const void *head, size_t head_len, const void *data,
             size_t len)
{
    size_t sent = 0;
    while (sent < head_len + len) {
        const uint8_t *const parts[] = {head, data};
        size_t skip_head = sent < head_len ? sent : head_len;
        size_t skip_data = sent - skip_head;
        struct iovec iov[2];
        size_t count = 0;
        if (skip_head < head_len)
            iov[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(parts[0] + skip_head),
                                          .iov_len = head_len - skip_head};
        if (skip_data < len)
            iov[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(parts[1] + skip_data),
                                          .iov_len = len - skip_data};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
        ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        sent += (size_t)n;
    }
    return 0;
}

/* ---- Requests ---- */

uint16_t nbd_transmission_flags(const struct nbd_connection *c)
{
    unsigned flags = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_CAN_MULTI_CONN;
    flags |= c->device->ops->write ? FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES : FLAG_READ_ONLY;
    if (c->structured)
        flags |= FLAG_SEND_DF;
    return (uint16_t)flags;
}

static enum nbd_error error_of(int rc)
{
    switch (-rc) {
    case 0:
        return NBD_OK;
    case EPERM:
    case EACCES:
    case EROFS:
        return NBD_EPERM;
    case ENOMEM:
        return NBD_ENOMEM;
    case EINVAL:
        return NBD_EINVAL;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return NBD_ENOSPC;
    default:
        return NBD_EIO;
    }
}

static int payload_fit(struct payload *p, size_t len)
{
    if (len <= p->capacity)
        return 0;
    free(p->data);
    p->capacity = 0;
    p->data = mem_zalloc(len);
    if (!p->data)
        return -1;
    p->capacity = len;
    return 0;
}

/* Reads the next request, with the payload of a write. -1: the connection is over. */
static int read_request(struct nbd_connection *c, struct request *r, struct payload *p)
{
    uint8_t head[REQUEST_LEN];
    if (nbd_receive(c, head, sizeof(head)) < 0)
        return -1;
    *r = (struct request){
        .flags = nbd_get16(head + 4),
        .command = nbd_get16(head + 6),
        .cookie = nbd_get64(head + 8),
        .off = nbd_get64(head + 16),
        .len = nbd_get32(head + 24),
    };
    if (nbd_get32(head) != MAGIC_REQUEST) {
        log_event(LOG_WARN, "blockdev", "NBD client sent a malformed request: disconnected");
        return -1;
    }
    if (r->command == COMMAND_DISCONNECT)
        return -1;
    if (r->command != COMMAND_WRITE)
        return 0;
    if (r->len > NBD_PAYLOAD_MAX) {
        log_event(LOG_WARN, "blockdev", "NBD client sent %u bytes in one write: disconnected",
                  r->len);
        return -1;
    }
    if (payload_fit(p, r->len) < 0)
        return -1;
    return nbd_receive(c, p->data, r->len);
}

/* Flags that each command may carry (proto.md, "Command flags"); FUA goes with all of them. */
static bool flags_fit(const struct nbd_connection *c, const struct request *r)
{
    unsigned allowed = COMMAND_FUA;
    if (r->command == COMMAND_READ && c->structured)
        allowed |= COMMAND_DF;
    if (r->command == COMMAND_WRITE_ZEROES)
        allowed |= COMMAND_NO_HOLE;
    if (r->command == COMMAND_BLOCK_STATUS)
        allowed |= COMMAND_ONE_EXTENT;
    return (r->flags & ~allowed) == 0;
}

static bool in_range(const struct nbd_connection *c, const struct request *r)
{
    return r->off <= c->device->size && r->len <= c->device->size - r->off;
}

static void do_read(struct nbd_connection *c, const struct request *r, struct payload *p,
                    struct result *result)
{
    if (r->len > NBD_PAYLOAD_MAX || !in_range(c, r)) {
        result->error = NBD_EINVAL;
        return;
    }
    if (r->len == 0)
        return;
    /* Offset (and hole size) of a structured reply go in front of the data. */
    if (payload_fit(p, (size_t)r->len + 12) < 0) {
        result->error = NBD_ENOMEM;
        return;
    }
    uint64_t run;
    if (c->structured && bdev_content(c->device, r->len, r->off, &run) == BDEV_ZEROS &&
        run == r->len) {
        nbd_put32(nbd_put64(p->data, r->off), r->len);
        *result = (struct result){NBD_OK, CHUNK_OFFSET_HOLE, p->data, 12};
        return;
    }
    size_t skip = 0;
    if (c->structured) {
        nbd_put64(p->data, r->off);
        skip = 8;
    }
    result->error = error_of(bdev_read(c->device, p->data + skip, r->len, r->off));
    if (result->error == NBD_OK)
        *result = (struct result){NBD_OK, CHUNK_OFFSET_DATA, p->data, skip + r->len};
}

static void do_block_status(struct nbd_connection *c, const struct request *r, struct payload *p,
                            struct result *result)
{
    if (!c->allocation || r->len == 0 || !in_range(c, r)) {
        result->error = NBD_EINVAL;
        return;
    }
    size_t limit = r->flags & COMMAND_ONE_EXTENT ? 1 : STATUS_EXTENTS_MAX;
    if (payload_fit(p, 4 + 8 * limit) < 0) {
        result->error = NBD_ENOMEM;
        return;
    }
    uint8_t *at = nbd_put32(p->data, NBD_CONTEXT_ALLOCATION);
    uint64_t off = r->off;
    uint64_t end = r->off + r->len;
    for (size_t i = 0; i < limit && off < end; i++) {
        uint64_t run;
        enum bdev_content content = bdev_content(c->device, end - off, off, &run);
        at = nbd_put32(at, (uint32_t)run);
        at = nbd_put32(at, content == BDEV_ZEROS ? ALLOCATION_HOLE | ALLOCATION_ZERO : 0);
        off += run;
    }
    *result = (struct result){NBD_OK, CHUNK_BLOCK_STATUS, p->data, (size_t)(at - p->data)};
}

/* Commands that change the disk. */
static enum nbd_error do_change(struct nbd_connection *c, const struct request *r,
                                const struct payload *p)
{
    if (!c->device->ops->write)
        return NBD_EPERM;
    if (!in_range(c, r))
        return r->command == COMMAND_TRIM ? NBD_EINVAL : NBD_ENOSPC;
    int rc = r->command == COMMAND_WRITE ? bdev_write(c->device, p->data, r->len, r->off)
                                         : bdev_discard(c->device, r->len, r->off);
    if (rc == 0 && r->flags & COMMAND_FUA)
        rc = bdev_flush(c->device);
    return error_of(rc);
}

static struct result execute(struct nbd_connection *c, const struct request *r, struct payload *p)
{
    struct result result = {.type = CHUNK_NONE};
    if (!flags_fit(c, r)) {
        result.error = NBD_EINVAL;
        return result;
    }
    switch (r->command) {
    case COMMAND_READ:
        do_read(c, r, p, &result);
        break;
    case COMMAND_BLOCK_STATUS:
        do_block_status(c, r, p, &result);
        break;
    case COMMAND_WRITE:
    case COMMAND_TRIM:
    case COMMAND_WRITE_ZEROES:
        result.error = do_change(c, r, p);
        break;
    case COMMAND_FLUSH:
        result.error = error_of(bdev_flush(c->device));
        break;
    default:
        result.error = NBD_EINVAL;
    }
    return result;
}

/* ---- Replies ---- */

static int send_simple(struct nbd_connection *c, const struct request *r,
                       const struct result *result)
{
    uint8_t head[SIMPLE_REPLY_LEN];
    uint8_t *at = nbd_put32(head, MAGIC_SIMPLE_REPLY);
    at = nbd_put32(at, (uint32_t)result->error);
    nbd_put64(at, r->cookie);
    return nbd_send(c, head, sizeof(head), result->data, result->len);
}

static int send_structured(struct nbd_connection *c, const struct request *r,
                           const struct result *result)
{
    uint8_t error[6];
    struct result out = *result;
    if (result->error != NBD_OK) {
        nbd_put16(nbd_put32(error, (uint32_t)result->error), 0);
        out = (struct result){NBD_OK, CHUNK_ERROR, error, sizeof(error)};
    }
    uint8_t head[STRUCTURED_REPLY_LEN];
    uint8_t *at = nbd_put32(head, MAGIC_STRUCTURED_REPLY);
    at = nbd_put16(at, CHUNK_DONE);
    at = nbd_put16(at, (uint16_t)out.type);
    at = nbd_put64(at, r->cookie);
    nbd_put32(at, (uint32_t)out.len);
    return nbd_send(c, head, sizeof(head), out.data, out.len);
}

/* ---- Workers ---- */

static int serve_one(struct nbd_connection *c, struct payload *p)
{
    struct request r;
    pthread_mutex_lock(&c->input_lock);
    int rc = atomic_load(&c->closing) ? -1 : read_request(c, &r, p);
    if (rc < 0)
        atomic_store(&c->closing, true);
    pthread_mutex_unlock(&c->input_lock);
    if (rc < 0)
        return rc;

    struct result result = execute(c, &r, p);

    pthread_mutex_lock(&c->output_lock);
    rc = c->structured ? send_structured(c, &r, &result) : send_simple(c, &r, &result);
    pthread_mutex_unlock(&c->output_lock);
    if (rc < 0) {
        atomic_store(&c->closing, true);
        (void)shutdown(c->fd, SHUT_RDWR); /* wakes the thread that reads */
    }
    return rc;
}

static void *worker(void *arg)
{
    struct nbd_connection *c = arg;
    struct payload p = {0};
    while (serve_one(c, &p) == 0) {
        if (p.capacity > BUFFER_KEEP_MAX) {
            free(p.data);
            p = (struct payload){0};
        }
    }
    free(p.data);
    return NULL;
}

void nbd_serve(struct nbd_connection *c)
{
    pthread_t helpers[NBD_WORKERS - 1];
    size_t count = 0;
    /* With fewer threads than wanted it is slower, not wrong. */
    while (count < ARRAY_LEN(helpers) && pthread_create(&helpers[count], NULL, worker, c) == 0)
        count++;
    (void)worker(c);
    while (count > 0)
        pthread_join(helpers[--count], NULL);
}
