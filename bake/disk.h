/* SPDX-License-Identifier: MIT */
/* Disks without a guest: as files, side by side, as devices of this machine. */
#ifndef TB2_BAKE_DISK_H
#define TB2_BAKE_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/image.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"

struct store;

/* ---- Disks ----------------------------------------------------------------------------------- */

/* Room on the disk of an image that is looked at without a task: the suite's default. */
#define DISK_FREE_SIZE ((uint64_t)10240 << 20)

struct disk_options {
    uint64_t free_size; /* bytes that must be free on it */
    struct image_options images;
    const struct cancel *cancel;
};

/* Pulls, ingests and assembles an image without booting it; *out is the map of its disk. */
int disk_assemble(struct digest *out, struct store *s, const char *reference,
                  const struct disk_options *o, struct err *e) MUST_USE;

/* Writes the disk with this map as a sparse raw file at `path`, which must not exist. */
int disk_export(struct store *s, const struct digest *map, const char *path, const struct cancel *c,
                struct err *e) MUST_USE;
/* The same as qcow2; calls qemu-img, ERR_NOTFOUND where there is none. */
int disk_export_qcow2(struct store *s, const struct digest *map, const char *path,
                      const struct cancel *c, struct err *e) MUST_USE;

struct disk_difference {
    uint64_t ranges;         /* runs of blocks that differ */
    uint64_t different;      /* their bytes */
    uint64_t shared_stored;  /* stored bytes of the chunks that both have */
    uint64_t only_stored[2]; /* of those that one alone has */
};
struct disk_compare_options {
    void (*range)(void *ctx, uint64_t off, uint64_t size); /* told of each range; may be NULL */
    void *ctx;
    const struct cancel *cancel;
};
/* Compares two disks by content, whatever chunks they are made of; past the end of the smaller one
 * are zeros. */
int disk_compare(struct disk_difference *out, struct store *s, const struct digest maps[2],
                 const struct disk_compare_options *o, struct err *e) MUST_USE;

/* ---- Disks as devices of this machine -------------------------------------------------------- */

/*
 * Disks of a store, attached: served by one process per store, the devices' server, which holds any
 * number of them. What is written to a writable one is kept until it is detached, also when the
 * server dies (not when the machine does); then it is thrown away.
 */
enum device_front {
    DEVICE_UBLK,   /* /dev/ublkbN */
    DEVICE_NBD,    /* a unix socket */
    DEVICE_NBD_TCP /* HOST:PORT; whoever can connect can read, and write where it is writable */
};

enum device_state {
    DEVICE_SERVED,
    DEVICE_DEAD, /* its server died: the next server takes it over */
    DEVICE_LOST  /* the machine was started anew since: only the record is left */
};

struct device {
    char *path; /* "/dev/ublkb0", the socket, HOST:PORT: what it is called by */
    char *name; /* what was attached, as it was asked for */
    struct digest disk;
    bool writable;
    enum device_front front;
    enum device_state state;
};

struct device_list {
    struct device *all;
    size_t count;
};

/* Devices of a store, dead ones too. */
int device_list(struct device_list *out, const char *store_path, struct err *e) MUST_USE;
void device_list_fini(struct device_list *l);

struct device_request {
    const char *name; /* for people */
    const struct digest *disk;
    bool writable;
    enum device_front front;
    const char *address; /* NBD: absolute path of the socket, or HOST:PORT; ublk: NULL */
    const char *remote;  /* URL of the store that gives the chunks that are missing; NULL: none */
    bool complete;       /* fetch all of them in the background */
    const struct digest *template; /* its record, if it is a template's disk; else NULL */
};

/* Asks the store's server. *path is the device's, free with free(). *no_server: there is none, start
 * one (device_serve) and ask again. */
int device_attach(char **path, bool *no_server, const char *store_path,
                  const struct device_request *r, struct err *e) MUST_USE;

/* Removes a device, served or not; ERR_BUSY when it is mounted, unless `force`; ERR_NOTFOUND. */
int device_detach(const char *store_path, const char *path, bool force, struct err *e) MUST_USE;

struct device_serve_options {
    const struct cancel *cancel; /* required: ends the server, which removes its devices */
    void (*ready)(void *ctx);    /* called once requests are taken; may be NULL */
    void *ctx;
};

/* Serves until the last device is detached: takes over what a dead server left, then requests.
 * ERR_BUSY when another process serves this store's devices. */
int device_serve(const char *store_path, const struct device_serve_options *o,
                 struct err *e) MUST_USE;

#endif
