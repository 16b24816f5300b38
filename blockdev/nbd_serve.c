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
 * payloads bypass it. Small reads that have arrived together and whose bytes are in memory are answered
 * by the reading thread itself, all with one call. Large ones are sent from where the device has them.
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
    FRONT_LEN = 12,            /* offset and length in front of a structured reply's data */
    BUFFER_KEEP_MAX = (1 << 20) + FRONT_LEN, /* larger buffers are given back after use */
    BATCH_READ_MAX = 16 << 10, /* bytes of a read that is answered together with others */
    BATCH_MAX = 128 << 10,     /* bytes of their replies */
    LEND_MIN = 32 << 10,       /* bytes of a read that are worth not being copied */
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
    struct bdev_loan loan; /* of a read: what follows `data` */
    size_t lent;           /* bytes of it */
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

/* Sends all of the parts, which it changes. */
static int send_parts(struct nbd_connection *c, struct iovec *parts, size_t count)
{
    while (count > 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        size_t sent = (size_t)n;
        while (count > 0 && sent >= parts->iov_len) {
            sent -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + sent;
            parts->iov_len -= sent;
        }
    }
    return 0;
}

int nbd_send(struct nbd_connection *c, const void *head, size_t head_len, const void *data,
             size_t len)
{
    struct iovec parts[] = {{.iov_base = (void *)(uintptr_t)head, .iov_len = head_len},
                            {.iov_base = (void *)(uintptr_t)data, .iov_len = len}};
    return send_parts(c, parts, ARRAY_LEN(parts));
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
    uint64_t run;
    bool zeros = c->structured && bdev_content(c->device, r->len, r->off, &run) == BDEV_ZEROS &&
                 run == r->len;
    if (!zeros && r->len >= LEND_MIN && bdev_lend(c->device, &result->loan, r->len, r->off) == 0)
        result->lent = r->len;
    /* Offset (and hole size) of a structured reply go in front of the data. */
    if (payload_fit(p, (zeros || result->lent ? 0 : r->len) + FRONT_LEN) < 0) {
        result->error = NBD_ENOMEM;
        return;
    }
    size_t skip = 0;
    result->data = p->data;
    if (c->structured) {
        nbd_put32(nbd_put64(p->data, r->off), r->len);
        skip = zeros ? FRONT_LEN : FRONT_LEN - 4;
    }
    int rc = 0;
    if (!zeros && !result->lent)
        rc = bdev_read(c->device, p->data + skip, r->len, r->off);
    result->error = error_of(rc);
    result->type = zeros ? CHUNK_OFFSET_HOLE : CHUNK_OFFSET_DATA;
    if (rc == 0)
        result->len = zeros || result->lent ? skip : skip + r->len;
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
    *result =
        (struct result){.type = CHUNK_BLOCK_STATUS, .data = p->data, .len = (size_t)(at - p->data)};
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

static size_t put_simple_head(uint8_t *head, const struct request *r, enum nbd_error error)
{
    uint8_t *at = nbd_put32(head, MAGIC_SIMPLE_REPLY);
    at = nbd_put32(at, (uint32_t)error);
    return (size_t)(nbd_put64(at, r->cookie) - head);
}

static size_t put_structured_head(uint8_t *head, const struct request *r, enum chunk_type type,
                                  size_t len)
{
    uint8_t *at = nbd_put32(head, MAGIC_STRUCTURED_REPLY);
    at = nbd_put16(at, CHUNK_DONE);
    at = nbd_put16(at, (uint16_t)type);
    at = nbd_put64(at, r->cookie);
    return (size_t)(nbd_put32(at, (uint32_t)len) - head);
}

static int send_reply(struct nbd_connection *c, const struct request *r,
                      const struct result *result)
{
    uint8_t head[STRUCTURED_REPLY_LEN];
    uint8_t error[6];
    struct iovec parts[2 + BDEV_LOAN_PARTS];
    const uint8_t *data = result->data;
    size_t len = result->len;
    size_t head_len;
    if (c->structured && result->error != NBD_OK) {
        nbd_put16(nbd_put32(error, (uint32_t)result->error), 0);
        data = error;
        len = sizeof(error);
        head_len = put_structured_head(head, r, CHUNK_ERROR, len);
    } else if (c->structured) {
        head_len = put_structured_head(head, r, result->type, len + result->lent);
    } else {
        head_len = put_simple_head(head, r, result->error);
    }
    size_t count = 0;
    parts[count++] = (struct iovec){.iov_base = head, .iov_len = head_len};
    if (len > 0)
        parts[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    for (size_t i = 0; result->error == NBD_OK && i < result->loan.part_count; i++)
        parts[count++] = result->loan.parts[i];
    pthread_mutex_lock(&c->output_lock);
    int rc = send_parts(c, parts, count);
    pthread_mutex_unlock(&c->output_lock);
    return rc;
}

/* ---- Small reads, many at once ---- */

/* Replies that wait to be sent together. */
struct batch {
    uint8_t *data; /* BATCH_MAX bytes */
    size_t len;
};

/* Answers a small read whose bytes are in memory; false: it is to be executed as any other. */
static bool batch_add(struct nbd_connection *c, const struct request *r, struct batch *b)
{
    size_t head = c->structured ? STRUCTURED_REPLY_LEN + 8 : SIMPLE_REPLY_LEN;
    uint64_t run;
    if (r->command != COMMAND_READ || r->len == 0 || r->len > BATCH_READ_MAX ||
        head + r->len > BATCH_MAX - b->len || !flags_fit(c, r) || !in_range(c, r))
        return false;
    if (c->structured && bdev_content(c->device, r->len, r->off, &run) == BDEV_ZEROS &&
        run == r->len)
        return false;
    uint8_t *at = b->data + b->len;
    if (bdev_read_now(c->device, at + head, r->len, r->off) < 0)
        return false;
    if (c->structured)
        nbd_put64(at + put_structured_head(at, r, CHUNK_OFFSET_DATA, r->len + 8), r->off);
    else
        put_simple_head(at, r, NBD_OK);
    b->len += head + r->len;
    return true;
}

static int batch_send(struct nbd_connection *c, struct batch *b)
{
    if (b->len == 0)
        return 0;
    pthread_mutex_lock(&c->output_lock);
    int rc = nbd_send(c, b->data, b->len, NULL, 0);
    pthread_mutex_unlock(&c->output_lock);
    b->len = 0;
    return rc;
}

/* ---- Workers ---- */

/* Reads requests until there is one that is not answered in the batch (*left), or no whole one has
 * arrived. */
static int take_requests(struct nbd_connection *c, struct request *r, struct payload *p,
                         struct batch *b, bool *left)
{
    do {
        if (atomic_load(&c->closing) || read_request(c, r, p) < 0) {
            atomic_store(&c->closing, true);
            return -1;
        }
        *left = !batch_add(c, r, b);
    } while (!*left && c->input_end - c->input_at >= REQUEST_LEN);
    return 0;
}

static int serve_some(struct nbd_connection *c, struct payload *p, struct batch *b)
{
    struct request r;
    bool left = false;
    pthread_mutex_lock(&c->input_lock);
    int over = take_requests(c, &r, p, b, &left);
    pthread_mutex_unlock(&c->input_lock);

    int rc = batch_send(c, b);
    if (rc == 0 && over == 0 && left) {
        struct result result = execute(c, &r, p);
        rc = send_reply(c, &r, &result);
        bdev_loan_end(&result.loan);
    }
    if (rc < 0) {
        atomic_store(&c->closing, true);
        (void)shutdown(c->fd, SHUT_RDWR); /* wakes the thread that reads */
    }
    return over < 0 ? over : rc;
}

static void *worker(void *arg)
{
    struct nbd_connection *c = arg;
    struct payload p = {0};
    struct batch b = {.data = mem_zalloc(BATCH_MAX)};
    while (b.data && serve_some(c, &p, &b) == 0) {
        if (p.capacity > BUFFER_KEEP_MAX) {
            free(p.data);
            p = (struct payload){0};
        }
    }
    if (!b.data)
        (void)shutdown(c->fd, SHUT_RDWR);
    free(b.data);
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
