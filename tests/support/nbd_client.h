/* SPDX-License-Identifier: MIT */
/*
 * A small NBD client, written from the protocol document alone (nothing is shared with the server),
 * that can also misbehave: raw bytes in and out. Calls that cannot be answered end the program.
 */
#ifndef TB2_TESTS_NBD_CLIENT_H
#define TB2_TESTS_NBD_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nbd_client {
    int fd;
    bool structured;
    uint64_t size;
    uint16_t flags;
    uint64_t next_cookie;
};

enum { NBD_CLIENT_STRUCTURED = 1, NBD_CLIENT_OLD = 2 /* EXPORT_NAME instead of GO */ };

/* Connects only. */
int nbd_client_connect(const char *path);
/* The server's greeting, then the client's flags. */
void nbd_client_hello(int fd, uint32_t flags);
void nbd_client_send_option(int fd, uint32_t option, const void *data, uint32_t len);
/* Type of the next option reply; its payload goes into `data` (at most `room` bytes). */
uint32_t nbd_client_option_reply(int fd, uint32_t option, void *data, size_t room, size_t *len);

/* Connects and shakes hands. */
void nbd_client_open(struct nbd_client *c, const char *path, int how);
/* Says goodbye (NBD_CMD_DISC) and closes. */
void nbd_client_close(struct nbd_client *c);

/* One request and its reply; the result is 0 or the protocol's error value. `data` is what is
 * written or read. */
enum { NBD_READ = 0, NBD_WRITE = 1, NBD_FLUSH = 3, NBD_TRIM = 4, NBD_WRITE_ZEROES = 6 };
uint32_t nbd_client_do(struct nbd_client *c, uint16_t command, void *data, uint32_t len,
                       uint64_t off);

/* The two halves, for several requests in flight and for odd ones. */
uint64_t nbd_client_send(struct nbd_client *c, uint32_t flags_and_command, const void *data,
                         uint32_t len, uint64_t off);
/* The reply to that one, when no other is in flight; the bytes of a read go into `data`. */
uint32_t nbd_client_reply(struct nbd_client *c, uint64_t cookie, bool is_read, void *data,
                          uint32_t len, uint64_t off);
/* Next simple reply's error and cookie; without structured replies only. */
uint32_t nbd_client_simple_reply(struct nbd_client *c, uint64_t *cookie);

/* Exactly `len` bytes; false when the server has closed the connection. */
bool nbd_client_receive(int fd, void *data, size_t len);
void nbd_client_send_bytes(int fd, const void *data, size_t len);

#endif
