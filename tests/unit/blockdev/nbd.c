/* SPDX-License-Identifier: MIT */
/* The NBD server against a client that follows the protocol document, and against one that does
 * not. */
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "disk_model.h"
#include "memdev.h"
#include "nbd_client.h"

enum { SIZE = 1 << 20 };

/* Option numbers, replies and errors of the protocol. */
enum {
    ABORT = 2,
    LIST = 3,
    STARTTLS = 5,
    INFO = 6,
    GO = 7,
    STRUCTURED = 8,
    LIST_META = 9,
    SET_META = 10
};
enum { ACK = 1, SERVER = 2, REP_INFO = 3, META = 4 };
#define UNSUPPORTED 0x80000001u
#define INVALID 0x80000003u
#define UNKNOWN 0x80000006u
enum { E_PERM = 1, E_IO = 5, E_INVAL = 22, E_NOSPC = 28 };

struct server {
    struct bdev *device;
    struct nbd_server *nbd;
    char path[128];
};

static void server_start(struct server *s, struct fixture *f, bool writable)
{
    struct err e = ERR_INIT;
    s->device = memdev_new(SIZE, writable);
    for (size_t i = 0; i < SIZE; i++)
        memdev_bytes(s->device)[i] = (uint8_t)(i * 7 >> 3);
    snprintf(s->path, sizeof(s->path), "%s/nbd", f->path);
    assert_ok(nbd_server_start(&s->nbd, s->device, s->path, &e));
}

static void server_stop(struct server *s)
{
    nbd_server_stop(s->nbd);
    assert_false(file_exists(AT_FDCWD, s->path));
    bdev_close(s->device);
}

/* True once the server has closed the connection. */
static bool closed(int fd)
{
    uint8_t byte;
    return !nbd_client_receive(fd, &byte, 1);
}

/* ---- Handshake ---- */

static void options(void **state)
{
    static const struct {
        uint32_t option;
        const char *data;
        uint32_t len;
        uint32_t replies[4]; /* up to the final one */
    } cases[] = {
        {LIST, "", 0, {SERVER, ACK}},
        {LIST, "x", 1, {INVALID}},
        {STARTTLS, "", 0, {UNSUPPORTED}},
        {INFO, "\0\0\0\0\0\0", 6, {REP_INFO, ACK}},
        {INFO, "\0\0\0\0\0\2\0\3\0\1", 10, {REP_INFO, REP_INFO, ACK}}, /* block size, name */
        {INFO, "\0\0\0\3abc\0\0", 9, {UNKNOWN}},
        {GO, "\0\0\0\3abc\0\0", 9, {UNKNOWN}},
        {GO, "", 0, {INVALID}},
        {GO, "\0\0\0\4abc", 7, {INVALID}},            /* name past the end */
        {GO, "\xff\xff\xff\xff\0\0", 6, {INVALID}},   /* absurd length */
        {GO, "\0\0\0\0\0\2\0\3", 8, {INVALID}},       /* two wishes, one sent */
        {GO, "\0\0\0\0\0\0x", 7, {INVALID}},          /* a byte too many */
        {SET_META, "\0\0\0\0\0\0\0\0", 8, {INVALID}}, /* structured replies come first */
        {STRUCTURED, "x", 1, {INVALID}},
        {STRUCTURED, "", 0, {ACK}},
        {LIST_META, "\0\0\0\0\0\0\0\0", 8, {META, ACK}},
        {LIST_META, "\0\0\0\0\0\0\0\1\0\0\0\5base:", 17, {META, ACK}},
        {LIST_META, "\0\0\0\0\0\0\0\1\0\0\0\4qemu", 16, {ACK}},
        {SET_META, "\0\0\0\0\0\0\0\0", 8, {ACK}},
        {SET_META, "\0\0\0\0\0\0\0\1\0\0\0\5base:", 17, {ACK}},
        {SET_META, "\0\0\0\0\0\0\0\1\0\0\0\17base:allocation", 27, {META, ACK}},
        {SET_META, "\0\0\0\1x\0\0\0\1\0\0\0\17base:allocation", 28, {UNKNOWN}},
        {SET_META, "\0\0\0\0\xff\xff\xff\xff\0\0\0\0", 12, {INVALID}}, /* absurd count */
        {SET_META, "\0\0\0\0\0\0\0\1\0\0\0\5base", 16, {INVALID}},
        {SET_META, "\0\0\0\0\0\0\0\0x", 9, {INVALID}},
        {11, "", 0, {UNSUPPORTED}},
        {4711, "some bytes", 10, {UNSUPPORTED}},
        {ABORT, "", 0, {ACK}},
    };
    struct fixture *f = *state;
    struct server s;
    server_start(&s, f, true);
    int fd = nbd_client_connect(s.path);
    nbd_client_hello(fd, 3);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        nbd_client_send_option(fd, cases[i].option, cases[i].data, cases[i].len);
        for (size_t k = 0; cases[i].replies[k]; k++) {
            uint8_t data[256];
            size_t len;
            uint32_t type = nbd_client_option_reply(fd, cases[i].option, data, sizeof(data), &len);
            if (type != cases[i].replies[k])
                fail_msg("option case %zu, reply %zu: %#x", i, k, type);
        }
    }
    assert_true(closed(fd)); /* after ABORT */
    close(fd);
    server_stop(&s);
}

static void export_name_of_old_clients(void **state)
{
    struct fixture *f = *state;
    struct server s;
    server_start(&s, f, true);
    uint8_t export[134];
    int fd = nbd_client_connect(s.path);
    nbd_client_hello(fd, 0); /* not even fixed newstyle: 124 zeros come with it */
    nbd_client_send_option(fd, 1, "", 0);
    assert_true(nbd_client_receive(fd, export, sizeof(export)));
    assert_memory_equal(export, "\0\0\0\0\0\x10\0\0\x01\x6d\0", 11);
    struct nbd_client c = {.fd = fd, .next_cookie = 1};
    uint8_t data[100];
    assert_int_equal(nbd_client_do(&c, NBD_READ, data, sizeof(data), 1000), 0);
    assert_memory_equal(data, memdev_bytes(s.device) + 1000, sizeof(data));
    nbd_client_close(&c);

    fd = nbd_client_connect(s.path);
    nbd_client_hello(fd, 3);
    nbd_client_send_option(fd, 1, "other", 5);
    assert_true(closed(fd));
    close(fd);
    server_stop(&s);
}

static void bad_handshakes_are_cut_off(void **state)
{
    struct fixture *f = *state;
    struct server s;
    server_start(&s, f, true);
    for (int i = 0; i < 5; i++) {
        int fd = nbd_client_connect(s.path);
        nbd_client_hello(fd, i == 0 ? 0x80000003 : 3);
        if (i == 1)
            nbd_client_send_bytes(fd, "IHAVEOPTIHAVEOPT", 16); /* a huge length */
        else if (i == 2)
            nbd_client_send_bytes(fd, "GET / HTTP/1.1\r\n\r\n", 18);
        for (int k = 0; i == 4 && k < 256; k++) {
            size_t len;
            nbd_client_send_option(fd, 4711, "", 0);
            assert_int_equal(nbd_client_option_reply(fd, 4711, NULL, 0, &len), UNSUPPORTED);
        }
        if (i == 3) /* gone in the middle of an option */
            nbd_client_send_bytes(fd, "IHAVEOPT", 8);
        else
            assert_true(closed(fd));
        close(fd);
    }
    struct nbd_client c; /* the server still serves */
    nbd_client_open(&c, s.path, 0);
    assert_int_equal(c.size, SIZE);
    nbd_client_close(&c);
    server_stop(&s);
}

/* ---- Transmission ---- */

static void requests_and_their_errors(void **state)
{
    static const struct {
        uint16_t flags, command;
        uint32_t len;
        uint64_t off;
        uint32_t error, read_only_error;
    } cases[] = {
        {0, NBD_READ, 4096, 0, 0, 0},
        {0, NBD_READ, 0, 5, 0, 0},
        {1, NBD_READ, 1, SIZE - 1, 0, 0}, /* FUA means nothing here, and must be accepted */
        {2, NBD_READ, 1, 0, E_INVAL, E_INVAL},
        {0, NBD_READ, 1, SIZE, E_INVAL, E_INVAL},
        {0, NBD_READ, 2, UINT64_MAX, E_INVAL, E_INVAL},
        {0, NBD_READ, UINT32_MAX, 0, E_INVAL, E_INVAL},
        {0, NBD_WRITE, 4096, 4096, 0, E_PERM},
        {1, NBD_WRITE, 1, 0, 0, E_PERM},
        {0, NBD_WRITE, 0, 0, 0, E_PERM},
        {0, NBD_WRITE, 2, SIZE - 1, E_NOSPC, E_PERM},
        {0, NBD_WRITE, 10, UINT64_MAX - 5, E_NOSPC, E_PERM},
        {4, NBD_WRITE, 10, 0, E_INVAL, E_INVAL},
        {0, NBD_FLUSH, 0, 0, 0, 0},
        {0, NBD_TRIM, 100, 50, 0, E_PERM},
        {0, NBD_TRIM, 100, SIZE, E_INVAL, E_PERM},
        {3, NBD_WRITE_ZEROES, SIZE, 0, 0, E_PERM},
        {16, NBD_WRITE_ZEROES, 1, 0, E_INVAL, E_INVAL}, /* FAST_ZERO is not offered */
        {0, NBD_WRITE_ZEROES, UINT32_MAX, 1, E_NOSPC, E_PERM},
        {0, 5, 1, 0, E_INVAL, E_INVAL}, /* CACHE */
        {0, 7, 1, 0, E_INVAL, E_INVAL}, /* BLOCK_STATUS, not negotiated */
        {0, 8, 1, 0, E_INVAL, E_INVAL},
        {0, 0xffff, 0, 0, E_INVAL, E_INVAL},
    };
    struct fixture *f = *state;
    static uint8_t data[SIZE];
    for (int way = 0; way < 4; way++) {
        bool writable = way < 2;
        struct server s;
        struct nbd_client c;
        server_start(&s, f, writable);
        nbd_client_open(&c, s.path, way % 2 ? NBD_CLIENT_STRUCTURED : 0);
        assert_int_equal(c.flags & 0xff7f, writable ? 0x16d & 0xff7f : 0x10f);
        assert_int_equal(c.flags & 0x80, c.structured ? 0x80 : 0);
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            if (c.structured && cases[i].command == NBD_READ && cases[i].flags)
                continue;
            uint64_t cookie = nbd_client_send(&c, (uint32_t)cases[i].flags << 16 | cases[i].command,
                                              data, cases[i].len, cases[i].off);
            uint32_t wanted = writable ? cases[i].error : cases[i].read_only_error;
            uint32_t got = nbd_client_reply(&c, cookie, cases[i].command == NBD_READ, data,
                                            cases[i].len, cases[i].off);
            if (got != wanted)
                fail_msg("request case %zu, way %d: error %u", i, way, got);
        }
        nbd_client_close(&c);
        server_stop(&s);
    }
}

static void device_errors_reach_the_client(void **state)
{
    static const struct {
        int sys;
        uint32_t error;
    } cases[] = {{EIO, E_IO}, {ENOSPC, E_NOSPC}, {EFBIG, E_NOSPC}, {EROFS, E_PERM}, {ESTALE, E_IO}};
    struct fixture *f = *state;
    struct server s;
    server_start(&s, f, true);
    struct nbd_client plain, structured;
    nbd_client_open(&plain, s.path, NBD_CLIENT_OLD);
    nbd_client_open(&structured, s.path, NBD_CLIENT_STRUCTURED);
    uint8_t data[512] = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        memdev_fail(s.device, cases[i].sys);
        assert_int_equal(nbd_client_do(&plain, NBD_READ, data, 512, 0), cases[i].error);
        assert_int_equal(nbd_client_do(&structured, NBD_READ, data, 512, 0), cases[i].error);
        assert_int_equal(nbd_client_do(&plain, NBD_WRITE, data, 512, 0), cases[i].error);
        assert_int_equal(nbd_client_do(&structured, NBD_FLUSH, NULL, 0, 0), cases[i].error);
        memdev_fail(s.device, 0);
        assert_int_equal(nbd_client_do(&plain, NBD_READ, data, 512, 0), 0);
        assert_int_equal(nbd_client_do(&structured, NBD_READ, data, 512, 0), 0);
    }
    nbd_client_close(&plain);
    nbd_client_close(&structured);
    server_stop(&s);
}

static void broken_framing_is_cut_off(void **state)
{
    struct fixture *f = *state;
    struct server s;
    server_start(&s, f, true);
    for (int i = 0; i < 4; i++) {
        struct nbd_client c;
        nbd_client_open(&c, s.path, NBD_CLIENT_STRUCTURED);
        if (i == 0) {
            nbd_client_send_bytes(c.fd, "this is no request, not at all", 28);
        } else if (i == 1) { /* a write of 4 GiB */
            nbd_client_send_bytes(
                c.fd, "\x25\x60\x95\x13\0\0\0\1abcdefgh\0\0\0\0\0\0\0\0\xff\xff\xff\xff", 28);
        } else if (i == 2) { /* goes in the middle of a header */
            nbd_client_send_bytes(c.fd, "\x25\x60\x95\x13", 4);
        } else { /* goes in the middle of a payload */
            nbd_client_send_bytes(
                c.fd, "\x25\x60\x95\x13\0\0\0\1abcdefgh\0\0\0\0\0\0\0\0\0\0\x10\0bytes", 33);
        }
        if (i < 2)
            assert_true(closed(c.fd));
        close(c.fd);
    }
    uint8_t untouched[16];
    assert_int_equal(bdev_read(s.device, untouched, 16, 0), 0);
    assert_memory_not_equal(untouched, "bytes", 5);
    server_stop(&s);
}

static void slow_read_delays_nothing(void **state)
{
    struct fixture *f = *state;
    struct server s;
    struct nbd_client c;
    server_start(&s, f, true);
    nbd_client_open(&c, s.path, 0);
    memdev_close_gate(s.device);
    uint64_t slow = nbd_client_send(&c, NBD_READ, NULL, 100, 0);
    uint64_t write = nbd_client_send(&c, NBD_WRITE, "quick", 5, 4096);
    uint64_t got;
    assert_int_equal(nbd_client_simple_reply(&c, &got), 0);
    assert_int_equal(got, write);
    uint64_t flush = nbd_client_send(&c, NBD_FLUSH, NULL, 0, 0);
    assert_int_equal(nbd_client_simple_reply(&c, &got), 0);
    assert_int_equal(got, flush);
    memdev_open_gate(s.device);
    uint8_t data[100];
    assert_int_equal(nbd_client_simple_reply(&c, &got), 0);
    assert_int_equal(got, slow);
    assert_true(nbd_client_receive(c.fd, data, sizeof(data)));
    assert_memory_equal(data, memdev_bytes(s.device), sizeof(data));
    nbd_client_close(&c);
    server_stop(&s);
}

/* Replies larger than a socket's buffer, which must not run into one another. */
static void many_reads_in_flight(void **state)
{
    enum { COUNT = 64, LEN = 300000, STRIDE = 11003 };
    struct fixture *f = *state;
    struct server s;
    struct nbd_client c;
    server_start(&s, f, true);
    nbd_client_open(&c, s.path, 0);
    AUTO_FREE uint8_t *data = mem_zalloc(LEN);
    assert_non_null(data);
    uint64_t first = c.next_cookie;
    for (uint64_t i = 0; i < COUNT; i++)
        nbd_client_send(&c, NBD_READ, NULL, LEN, i * STRIDE);
    bool seen[COUNT] = {false};
    for (int i = 0; i < COUNT; i++) {
        uint64_t cookie;
        assert_int_equal(nbd_client_simple_reply(&c, &cookie), 0);
        assert_in_range(cookie, first, first + COUNT - 1);
        assert_false(seen[cookie - first]);
        seen[cookie - first] = true;
        assert_true(nbd_client_receive(c.fd, data, LEN));
        assert_memory_equal(data, memdev_bytes(s.device) + (cookie - first) * STRIDE, LEN);
    }
    nbd_client_close(&c);
    server_stop(&s);
}

/* ---- Start and stop ---- */

static void start_errors(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct server s;
    struct nbd_server *other;
    server_start(&s, f, true);
    assert_class(nbd_server_start(&other, s.device, s.path, &e), ERR_SYS);
    assert_true(file_exists(AT_FDCWD, s.path)); /* not ours to remove */
    char path[256];
    memset(path, 'x', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    assert_class(nbd_server_start(&other, s.device, path, &e), ERR_LIMIT);
    assert_class(nbd_server_start(&other, s.device, "/nonexistent/socket", &e), ERR_SYS);
    server_stop(&s);
}

static void stop_closes_everything(void **state)
{
    struct fixture *f = *state;
    struct server s;
    struct nbd_client idle, busy;
    server_start(&s, f, true);
    int silent = nbd_client_connect(s.path); /* still in the handshake */
    nbd_client_hello(silent, 3);
    nbd_client_open(&idle, s.path, 0);
    nbd_client_open(&busy, s.path, 0);
    for (int i = 0; i < 100; i++) /* never reads the replies */
        nbd_client_send(&busy, NBD_READ, NULL, SIZE, 0);
    server_stop(&s);
    assert_true(closed(silent));
    assert_true(closed(idle.fd));
    close(silent);
    close(idle.fd);
    close(busy.fd);
}

static void too_many_connections(void **state)
{
    enum { LIMIT = 16 };
    struct fixture *f = *state;
    struct server s;
    struct nbd_client clients[LIMIT];
    server_start(&s, f, true);
    for (int i = 0; i < LIMIT; i++)
        nbd_client_open(&clients[i], s.path, 0);
    int fd = nbd_client_connect(s.path);
    assert_true(closed(fd));
    close(fd);
    for (int i = 0; i < LIMIT; i++)
        nbd_client_close(&clients[i]);
    for (int i = 0; i < 3 * LIMIT; i++) { /* places are given back, if not at once */
        uint8_t hello[18];
        do {
            fd = nbd_client_connect(s.path);
            if (nbd_client_receive(fd, hello, sizeof(hello)))
                break;
            close(fd);
        } while (true);
        close(fd);
    }
    server_stop(&s);
}

/* ---- Against the model ---- */

static int port_read(void *ctx, void *data, size_t len, uint64_t off)
{
    return (int)nbd_client_do(ctx, NBD_READ, data, (uint32_t)len, off);
}

static int port_write(void *ctx, const void *data, size_t len, uint64_t off)
{
    return (int)nbd_client_do(ctx, NBD_WRITE, (void *)(uintptr_t)data, (uint32_t)len, off);
}

static int port_zero(void *ctx, uint64_t len, uint64_t off)
{
    uint16_t command = off % 2 ? NBD_TRIM : NBD_WRITE_ZEROES; /* both zero on our devices */
    return (int)nbd_client_do(ctx, command, NULL, (uint32_t)len, off);
}

static int port_flush(void *ctx)
{
    return (int)nbd_client_do(ctx, NBD_FLUSH, NULL, 0, 0);
}

enum { MODEL_DISK = 4 << 20 };

/* An upper over `lower`, which holds what `model` says. */
static void exercise(const struct fixture *f, struct bdev *lower, uint8_t *model)
{
    enum { PORTS = 4, STEPS = 500, DISK = MODEL_DISK };
    struct err e = ERR_INIT;
    AUTO_BDEV struct bdev *cow = NULL;
    AUTO_NBD_SERVER struct nbd_server *server = NULL;
    char path[128];
    snprintf(path, sizeof(path), "%s/nbd", f->path);
    assert_ok(bdev_open_cow(&cow, lower, store_tmp_dir(f->store), 0, &e));
    assert_ok(nbd_server_start(&server, cow, path, &e));
    struct nbd_client clients[PORTS];
    struct disk_port ports[PORTS];
    for (int i = 0; i < PORTS; i++) {
        nbd_client_open(&clients[i], path, i % 3);
        ports[i] = (struct disk_port){port_read, port_write, port_zero, port_flush, &clients[i]};
    }
    assert_true(disk_model_exercise(ports, PORTS, model, DISK, disk_model_steps(STEPS),
                                    disk_model_seed(4711)));
    assert_true(disk_model_equal(&ports[0], model, DISK));
    for (int i = 0; i < PORTS; i++)
        nbd_client_close(&clients[i]);
}

static void behaves_as_memory(void **state)
{
    struct bdev *lower = memdev_new(MODEL_DISK, false);
    AUTO_FREE uint8_t *model = mem_zalloc(MODEL_DISK);
    assert_non_null(model);
    fixture_fill(model, MODEL_DISK, 9);
    memcpy(memdev_bytes(lower), model, MODEL_DISK);
    exercise(*state, lower, model);
}

/* A map of chunks with gaps between them. */
static void make_map(struct store *s, struct block_map **out, uint8_t *model)
{
    struct err e = ERR_INIT;
    assert_ok(block_map_new(out, MODEL_DISK, &e));
    for (uint64_t off = 0; off + CHUNK_SIZE_MAX < MODEL_DISK;
         off += CHUNK_SIZE_MAX + 3 * BLOCK_SIZE) {
        struct map_extent extent = {.off = off, .size = CHUNK_SIZE_MAX};
        fixture_fill(model + off, CHUNK_SIZE_MAX, off);
        assert_ok(store_put_chunk(s, model + off, CHUNK_SIZE_MAX, &extent.chunk, &e));
        assert_ok(block_map_add(*out, &extent, &e));
    }
    assert_ok(block_map_finish(*out, &e));
}

static void a_map_behaves_as_memory(void **state)
{
    const struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_FREE uint8_t *model = mem_zalloc(MODEL_DISK);
    assert_non_null(model);
    make_map(f->store, &m, model);
    struct bdev *lower = NULL;
    assert_ok(chunk_cache_new(&c, f->store, 2 << 20, &e)); /* some chunks are always missing */
    assert_ok(bdev_open_map(&lower, m, c, &e));
    exercise(f, lower, model);
}

/* Requests that arrive together, of which some are answered together: each gets its answer. */
static void small_reads_in_one_go(void **state)
{
    enum { COUNT = 40 };
    uint8_t data[4096];
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_FREE uint8_t *model = mem_zalloc(MODEL_DISK);
    assert_non_null(model);
    make_map(f->store, &m, model);
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_NBD_SERVER struct nbd_server *server = NULL;
    char path[128];
    snprintf(path, sizeof(path), "%s/nbd", f->path);
    assert_ok(chunk_cache_new(&c, f->store, 64 << 20, &e));
    assert_ok(bdev_open_map(&d, m, c, &e));
    assert_int_equal(bdev_read(d, data, sizeof(data), 0), 0); /* now its chunk is in memory */
    assert_ok(nbd_server_start(&server, d, path, &e));
    struct nbd_client client;
    nbd_client_open(&client, path, 0);
    uint64_t first = client.next_cookie;
    /* Every fifth lies beyond the end, every seventh is a write, which is refused. */
    for (uint64_t i = 0; i < COUNT; i++)
        nbd_client_send(&client, i % 7 == 6 ? NBD_WRITE : NBD_READ, model, 4096,
                        i % 5 == 4 ? MODEL_DISK : i * 5000);
    for (int n = 0; n < COUNT; n++) {
        uint64_t cookie;
        uint32_t error = nbd_client_simple_reply(&client, &cookie);
        uint64_t i = cookie - first;
        assert_in_range(i, 0, COUNT - 1);
        assert_int_equal(error, i % 7 == 6 ? E_PERM : i % 5 == 4 ? E_INVAL : 0);
        if (error != 0)
            continue;
        assert_true(nbd_client_receive(client.fd, data, sizeof(data)));
        assert_memory_equal(data, model + i * 5000, sizeof(data));
    }
    nbd_client_close(&client);
}

/* ---- TCP ---- */

static void tcp_addresses(void **state)
{
    static const struct {
        const char *address;
        enum err_class class;
    } rows[] = {
        {"127.0.0.1:0", ERR_NONE}, {"localhost:0", ERR_NONE},     {"127.0.0.1", ERR_INPUT},
        {":10809", ERR_INPUT},     {"127.0.0.1:", ERR_INPUT},     {"::1:10809", ERR_INPUT},
        {"[::1:10809", ERR_INPUT}, {"127.0.0.1:port", ERR_INPUT},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_BDEV struct bdev *d = memdev_new(1 << 20, true);
        struct nbd_server *server = NULL;
        print_message("%s\n", rows[i].address);
        assert_int_equal(nbd_server_start_tcp(&server, d, rows[i].address, &e),
                         -(int)rows[i].class);
        if (server && strcmp(rows[i].address, "127.0.0.1:0") == 0) /* the port that it got */
            assert_true(strtoul(nbd_server_address(server) + 10, NULL, 10) > 0);
        nbd_server_stop(server);
    }
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(options),
        WITH_STORE(export_name_of_old_clients),
        WITH_STORE(bad_handshakes_are_cut_off),
        WITH_STORE(requests_and_their_errors),
        WITH_STORE(device_errors_reach_the_client),
        WITH_STORE(broken_framing_is_cut_off),
        WITH_STORE(slow_read_delays_nothing),
        WITH_STORE(many_reads_in_flight),
        WITH_STORE(start_errors),
        WITH_STORE(stop_closes_everything),
        WITH_STORE(too_many_connections),
        WITH_STORE(behaves_as_memory),
        WITH_STORE(a_map_behaves_as_memory),
        WITH_STORE(small_reads_in_one_go),
        cmocka_unit_test(tcp_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
