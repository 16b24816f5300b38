/* SPDX-License-Identifier: MIT */
#include "nbd_client.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: NBD client: %s\n", __FILE__, __LINE__, #condition);            \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void be32(uint8_t *at, uint32_t value)
{
    value = htobe32(value);
    memcpy(at, &value, sizeof(value));
}

static void be64(uint8_t *at, uint64_t value)
{
    value = htobe64(value);
    memcpy(at, &value, sizeof(value));
}

static uint16_t get16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof(value));
    return be16toh(value);
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return be32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return be64toh(value);
}

bool nbd_client_receive(int fd, void *data, size_t len)
{
    uint8_t *at = data;
    while (len > 0) {
        ssize_t n = recv(fd, at, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

void nbd_client_send_bytes(int fd, const void *data, size_t len)
{
    const uint8_t *at = data;
    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* the server has gone: the next receive tells */
        at += n;
        len -= (size_t)n;
    }
}

int nbd_client_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    REQUIRE(strlen(path) < sizeof(address.sun_path));
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    REQUIRE(connect(fd, (const struct sockaddr *)(const void *)&address, sizeof(address)) == 0);
    return fd;
}

void nbd_client_hello(int fd, uint32_t flags)
{
    uint8_t hello[18];
    REQUIRE(nbd_client_receive(fd, hello, sizeof(hello)));
    REQUIRE(memcmp(hello, "NBDMAGICIHAVEOPT", 16) == 0);
    REQUIRE(get16(hello + 16) == 3);
    uint8_t mine[4];
    be32(mine, flags);
    nbd_client_send_bytes(fd, mine, sizeof(mine));
}

void nbd_client_send_option(int fd, uint32_t option, const void *data, uint32_t len)
{
    uint8_t head[16];
    memcpy(head, "IHAVEOPT", 8);
    be32(head + 8, option);
    be32(head + 12, len);
    nbd_client_send_bytes(fd, head, sizeof(head));
    nbd_client_send_bytes(fd, data, len);
}

uint32_t nbd_client_option_reply(int fd, uint32_t option, void *data, size_t room, size_t *len)
{
    uint8_t head[20];
    REQUIRE(nbd_client_receive(fd, head, sizeof(head)));
    REQUIRE(get64(head) == UINT64_C(0x3e889045565a9));
    REQUIRE(get32(head + 8) == option);
    *len = get32(head + 16);
    REQUIRE(*len <= room);
    REQUIRE(nbd_client_receive(fd, data, *len));
    return get32(head + 12);
}

static void go(struct nbd_client *c)
{
    static const uint8_t empty[6]; /* no name, no wishes */
    nbd_client_send_option(c->fd, 7, empty, sizeof(empty));
    for (;;) {
        uint8_t data[256];
        size_t len;
        uint32_t type = nbd_client_option_reply(c->fd, 7, data, sizeof(data), &len);
        if (type == 1)
            return;
        REQUIRE(type == 3 && len >= 2);
        if (get16(data) == 0) {
            REQUIRE(len == 12);
            c->size = get64(data + 2);
            c->flags = get16(data + 10);
        }
    }
}

void nbd_client_open(struct nbd_client *c, const char *path, int how)
{
    memset(c, 0, sizeof(*c));
    c->next_cookie = 1;
    c->fd = nbd_client_connect(path);
    nbd_client_hello(c->fd, 3);
    if (how & NBD_CLIENT_STRUCTURED) {
        size_t len;
        nbd_client_send_option(c->fd, 8, "", 0);
        REQUIRE(nbd_client_option_reply(c->fd, 8, NULL, 0, &len) == 1);
        c->structured = true;
    }
    if (how & NBD_CLIENT_OLD) {
        uint8_t export[10];
        nbd_client_send_option(c->fd, 1, "", 0);
        REQUIRE(nbd_client_receive(c->fd, export, sizeof(export)));
        c->size = get64(export);
        c->flags = get16(export + 8);
    } else {
        go(c);
    }
}

void nbd_client_close(struct nbd_client *c)
{
    nbd_client_send(c, 2, NULL, 0, 0);
    uint8_t more;
    REQUIRE(!nbd_client_receive(c->fd, &more, 1)); /* the server closes, and sends nothing */
    close(c->fd);
    c->fd = -1;
}

uint64_t nbd_client_send(struct nbd_client *c, uint32_t flags_and_command, const void *data,
                         uint32_t len, uint64_t off)
{
    uint64_t cookie = c->next_cookie++;
    uint8_t head[28];
    be32(head, 0x25609513);
    be32(head + 4, flags_and_command);
    be64(head + 8, cookie);
    be64(head + 16, off);
    be32(head + 24, len);
    nbd_client_send_bytes(c->fd, head, sizeof(head));
    if ((flags_and_command & 0xffff) == NBD_WRITE)
        nbd_client_send_bytes(c->fd, data, len);
    return cookie;
}

uint32_t nbd_client_simple_reply(struct nbd_client *c, uint64_t *cookie)
{
    uint8_t head[16];
    REQUIRE(nbd_client_receive(c->fd, head, sizeof(head)));
    REQUIRE(get32(head) == 0x67446698);
    *cookie = get64(head + 8);
    return get32(head + 4);
}

/* Chunks of one structured reply, up to the one marked as the last. */
static uint32_t structured_reply(struct nbd_client *c, uint64_t cookie, uint8_t *data, uint32_t len,
                                 uint64_t off)
{
    uint32_t error = 0;
    uint16_t flags = 0;
    while (!(flags & 1)) {
        uint8_t head[20];
        uint8_t more[12];
        REQUIRE(nbd_client_receive(c->fd, head, sizeof(head)));
        REQUIRE(get32(head) == 0x668e33ef && get64(head + 8) == cookie);
        flags = get16(head + 4);
        uint32_t left = get32(head + 16);
        switch (get16(head + 6)) {
        case 0:
            REQUIRE(left == 0);
            break;
        case 1:
            REQUIRE(left > 8 && nbd_client_receive(c->fd, more, 8));
            REQUIRE(get64(more) >= off && get64(more) - off + left - 8 <= len);
            REQUIRE(nbd_client_receive(c->fd, data + (get64(more) - off), left - 8));
            break;
        case 2:
            REQUIRE(left == 12 && nbd_client_receive(c->fd, more, 12));
            REQUIRE(get64(more) >= off && get64(more) - off + get32(more + 8) <= len);
            memset(data + (get64(more) - off), 0, get32(more + 8));
            break;
        case 0x8001:
            REQUIRE(left == 6 && nbd_client_receive(c->fd, more, 6));
            error = get32(more);
            REQUIRE(error != 0);
            break;
        default:
            REQUIRE(false && "a known chunk type");
        }
    }
    return error;
}

uint32_t nbd_client_reply(struct nbd_client *c, uint64_t cookie, bool is_read, void *data,
                          uint32_t len, uint64_t off)
{
    if (c->structured)
        return structured_reply(c, cookie, data, len, off);
    uint64_t got;
    uint32_t error = nbd_client_simple_reply(c, &got);
    REQUIRE(got == cookie);
    if (is_read && error == 0)
        REQUIRE(nbd_client_receive(c->fd, data, len));
    return error;
}

uint32_t nbd_client_do(struct nbd_client *c, uint16_t command, void *data, uint32_t len,
                       uint64_t off)
{
    uint64_t cookie = nbd_client_send(c, command, data, len, off);
    return nbd_client_reply(c, cookie, command == NBD_READ, data, len, off);
}
