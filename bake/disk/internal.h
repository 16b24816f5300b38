/* SPDX-License-Identifier: MIT */
/* Private to bake/disk: what the files of attached devices share: records in the store's devices/ (docs/formats/store.md)
 * and the words of the control socket. */
#ifndef TB2_BAKE_DISK_INTERNAL_H
#define TB2_BAKE_DISK_INTERNAL_H

#include <stdint.h>

#include "bake/disk.h"

#define DEVICE_LOCK "server.lock"
#define DEVICE_SOCKET "server.sock"

enum {
    DEVICE_MESSAGE_MAX = 64 << 10, /* bytes of a request or an answer */
    DEVICE_ID_MAX = 9999,
};

/* One device, as its file DIR/ID.json says. */
struct device_record {
    unsigned id; /* from 1 on */
    char *name;
    char *address; /* NBD: socket or HOST:PORT; NULL for ublk */
    char *boot;    /* boot id of the kernel that has it */
    struct digest disk;
    bool writable;
    enum device_front front;
    uint64_t cookie; /* ublk */
    int64_t number;  /* ublk: N of /dev/ublkbN; -1: not known yet */
    int64_t pid;     /* of its server */
    char *remote;    /* URL of the store that gives what ours lacks; NULL: none */
    bool complete;   /* all of it is fetched in the background */
    bool has_template;
    struct digest template; /* record of the template whose disk it is */
};

void device_record_fini(struct device_record *r);
/* Where its chunks come from: the members of a record that a request has too. */
int device_source_decode(struct device_record *r, const struct json *j, struct err *e) MUST_USE;
int device_record_save(int dir, const struct device_record *r, struct err *e) MUST_USE;
/* Removes the device's files: upper first, record last. */
int device_record_remove(int dir, unsigned id, struct err *e) MUST_USE;

struct device_records {
    struct device_record *all;
    size_t count;
    size_t capacity;
};
/* All records, by id. One that cannot be read is logged and left out. */
int device_records_load(struct device_records *out, int dir, struct err *e) MUST_USE;
void device_records_fini(struct device_records *r);

/* Name of a device's upper: "ID.upper". */
enum { DEVICE_NAME_MAX = 32 };
const char *device_upper_name(unsigned id, char name[DEVICE_NAME_MAX]);
/* "/dev/ublkb3" or the address; free with free(), NULL when memory is short. */
char *device_record_path(const struct device_record *r);
/* The running kernel's boot id, "" if it does not tell. */
int device_boot_id(struct buf *out, struct err *e) MUST_USE;

extern const char *const device_front_names[]; /* by enum device_front */
int device_front_parse(const char *text, enum device_front *out, struct err *e) MUST_USE;

/* The directory devices/ of a store, made where it is missing. */
int device_dir_open(int *out, const char *store_path, struct err *e) MUST_USE;

/* Errors on their way over the socket. */
struct json *device_error_encode(const struct err *e);
int device_error_decode(const struct json *answer, struct err *e);

/* Sends a JSON value; reads one that ends with the connection's sending side. */
int device_send(int fd, const struct json *j, struct err *e) MUST_USE;
int device_receive(struct json **out, int fd, struct err *e) MUST_USE;

/* Fills the socket's address: reached by way of the directory's descriptor, since a store's path may
 * be longer than a socket's may be. */
struct sockaddr_un;
void device_socket_address(struct sockaddr_un *out, int dir);

#endif
