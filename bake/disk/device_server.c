/* SPDX-License-Identifier: MIT */
/*
 * The process that serves attached disks: one per store, with one chunk cache for all of them, and
 * one block map for all devices of a disk.
 *
 * It takes requests one at a time from a socket in the store's devices/, which only this user can
 * reach. What a device is lies in a record beside it before the kernel hears of the device, so
 * that after a kill the next server finds what there is: ublk devices are known by their cookie (the
 * kernel keeps them and their waiting requests), uppers by their name. A server begins by taking over
 * what a dead one left, and ends when it has no device left, or when it is asked to: then all
 * devices are removed, with what was written to them.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/disk.h"
#include "bake/disk/internal.h"
#include "bake/guest/trace.h"
#include "bake/remote.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    CACHE_SIZE = 512 << 20, /* plain chunks kept in memory, for all devices */
    CLIENT_TIMEOUT_SECONDS = 10,
    BACKLOG = 16,
    PREFETCH_WORKERS = 8, /* of one device */
};

/* A block map and the devices that use it. */
struct served_map {
    struct digest digest;
    struct block_map *map;
    size_t users;
    struct served_map *next;
};

struct served {
    struct device_record record;
    struct served_map *map;
    struct bdev *disk;
    struct ublk_server *ublk;
    struct nbd_server *nbd;
    struct prefetch *prefetch; /* NULL: nothing is fetched before it is read */
    struct served *next;
};

struct server {
    struct store *store;
    struct chunk_cache *cache;
    const struct cancel *cancel;
    struct remote *remote; /* of all devices that have one; NULL: none so far */
    char *remote_url;
    int dir;
    int lock;
    int listener;
    char *boot;
    struct served_map *maps;
    struct served *devices;
};

/* ---- Maps ---- */

static int map_take(struct served_map **out, struct server *v, const struct digest *d,
                    struct err *e)
{
    for (struct served_map *m = v->maps; m; m = m->next) {
        if (!digest_equal(&m->digest, d))
            continue;
        m->users++;
        *out = m;
        return 0;
    }
    AUTO_FREE struct served_map *m = mem_zalloc(sizeof(*m));
    if (!m)
        return err_nomem(e, "disk");
    m->digest = *d;
    int rc = store_get_map(v->store, d, &m->map, e);
    if (rc < 0)
        return err_in(e, "reading the map of the disk to attach");
    m->users = 1;
    m->next = v->maps;
    *out = v->maps = m;
    m = NULL;
    return 0;
}

static void map_give(struct server *v, struct served_map *m)
{
    if (!m || --m->users > 0)
        return;
    struct served_map **at = &v->maps;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    block_map_free(m->map);
    free(m);
}

/* ---- Chunks from elsewhere ---- */

/* One store has one source, so all devices of a server share theirs. */
static int use_remote(struct server *v, const char *url, struct err *e)
{
    if (v->remote && strcmp(v->remote_url, url) != 0) {
        err_set(e, ERR_BUSY, "devices of this store get their chunks from %s", v->remote_url);
        return err_hint(e, "detach those first, or use another --store");
    }
    if (v->remote)
        return 0;
    AUTO_FREE char *kept = mem_strdup(url);
    struct remote_options o = {.url = kept, .cancel = v->cancel};
    int rc = kept ? remote_open(&v->remote, v->store, &o, e) : err_nomem(e, "remote store");
    if (rc == 0)
        v->remote_url = MOVE(kept);
    return rc;
}

/* What a boot of it reads, then, if that is wanted, all of it. */
static int fetch_ahead(struct server *v, struct served *d, struct err *e)
{
    const struct device_record *r = &d->record;
    const struct block_map *m = d->map->map;
    AUTO_TEMPLATE struct template *t = NULL;
    AUTO_FREE struct digest *chunks = NULL;
    size_t count = 0;
    int rc = r->has_template ? template_load_record(&t, v->store, &r->template, e) : 0;
    if (rc == 0 && t) {
        remote_use_template(v->remote, t);
        rc = trace_chunks(&chunks, &count, t, v->store, TRACE_BOOT, e);
    }
    struct prefetch_options options = {.workers = PREFETCH_WORKERS, .urgent = count};
    size_t capacity = count;
    size_t more = r->complete ? block_map_count(m) : 0;
    if (rc == 0)
        rc = mem_grow(&chunks, &capacity, count + more, sizeof(*chunks), e);
    for (size_t i = 0; rc == 0 && i < more; i++)
        chunks[count++] = block_map_extent(m, i)->chunk;
    return rc == 0 && count > 0 ? prefetch_start(&d->prefetch, v->store, chunks, count, &options, e)
                                : rc;
}

static void begin_fetching(struct server *v, struct served *d)
{
    struct err e = ERR_INIT;
    if (d->record.remote && fetch_ahead(v, d, &e) < 0)
        log_event(LOG_WARN, "bake", "%s: nothing is fetched ahead: %s", d->record.name, e.text);
}

/* ---- One device ---- */

/* Ends the serving; what the kernel has is removed, or left to be recovered. */
static int stop_front(struct served *d, bool leave, struct err *e)
{
    struct ublk_server *u = d->ublk;
    nbd_server_stop(d->nbd);
    prefetch_stop(d->prefetch);
    d->prefetch = NULL;
    d->nbd = NULL;
    d->ublk = NULL;
    if (leave) {
        ublk_leave(u);
        return 0;
    }
    return ublk_stop(u, e);
}

static void served_free(struct server *v, struct served *d)
{
    bdev_close(d->disk);
    map_give(v, d->map);
    device_record_fini(&d->record);
    free(d);
}

static int open_disk(struct server *v, struct served *d, struct err *e)
{
    struct bdev *leaf = NULL;
    char name[DEVICE_NAME_MAX];
    int rc = d->record.remote ? use_remote(v, d->record.remote, e) : 0;
    if (rc == 0)
        rc = map_take(&d->map, v, &d->record.disk, e);
    if (rc == 0)
        rc = bdev_open_map(&leaf, d->map->map, v->cache, e);
    if (rc < 0)
        return rc;
    if (!d->record.writable) {
        d->disk = leaf;
        return 0;
    }
    return bdev_open_cow_kept(&d->disk, leaf, v->dir, device_upper_name(d->record.id, name), 0, e);
}

/* The socket of a dead server is in the way of the next. */
static void remove_stale_socket(const char *path)
{
    struct stat st;
    if (fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode))
        (void)unlinkat(AT_FDCWD, path, 0);
}

/* Port 0 leaves the choice to the kernel; from then on it is the device's. */
static int start_tcp(struct served *d, struct err *e)
{
    char *address;
    int rc = nbd_server_start_tcp(&d->nbd, d->disk, d->record.address, e);
    if (rc < 0)
        return rc;
    address = mem_strdup(nbd_server_address(d->nbd));
    if (!address)
        return err_nomem(e, "address");
    free(d->record.address);
    d->record.address = address;
    return 0;
}

static int start_front(struct served *d, bool recover, struct err *e)
{
    struct device_record *r = &d->record;
    if (r->front == DEVICE_NBD_TCP)
        return start_tcp(d, e);
    if (r->front == DEVICE_NBD) {
        if (recover)
            remove_stale_socket(r->address);
        return nbd_server_start(&d->nbd, d->disk, r->address, e);
    }
    struct ublk_options options = {.cookie = r->cookie, .recover = recover ? (int)r->number : -1};
    int rc = ublk_start(&d->ublk, d->disk, &options, e);
    if (rc == 0)
        r->number = ublk_number(d->ublk);
    return rc;
}

/* The record tells who serves it once it is served. */
static int serve(struct server *v, struct served *d, bool recover, struct err *e)
{
    int rc = open_disk(v, d, e);
    if (rc == 0)
        rc = start_front(d, recover, e);
    d->record.pid = getpid();
    if (rc == 0)
        rc = device_record_save(v->dir, &d->record, e);
    struct err ignored = ERR_INIT;
    if (rc < 0 && stop_front(d, recover, &ignored) < 0)
        log_event(LOG_WARN, "bake", "%s: %s", d->record.name, ignored.text);
    if (rc == 0)
        begin_fetching(v, d);
    return rc;
}

static void served_add(struct server *v, struct served *d)
{
    struct served **last = &v->devices;
    while (*last)
        last = &(*last)->next;
    *last = d;
}

static struct served **served_find(struct server *v, const char *path)
{
    for (struct served **at = &v->devices; *at; at = &(*at)->next) {
        AUTO_FREE char *its = device_record_path(&(*at)->record);
        if (its && strcmp(its, path) == 0)
            return at;
    }
    return NULL;
}

/* Removes the device and its files; it stays in the list only when the kernel keeps it. */
static int served_remove(struct server *v, struct served **at, struct err *e)
{
    struct served *d = *at;
    int rc = stop_front(d, false, e);
    *at = d->next;
    unsigned id = d->record.id;
    served_free(v, d);
    return rc < 0 ? rc : device_record_remove(v->dir, id, e);
}

/* ---- Requests ---- */

static int unused_id(struct server *v, unsigned *out, struct err *e)
{
    struct device_records records;
    int rc = device_records_load(&records, v->dir, e);
    if (rc < 0)
        return rc;
    unsigned id = 1;
    for (size_t i = 0; i < records.count && records.all[i].id == id; i++)
        id++;
    device_records_fini(&records);
    if (id > DEVICE_ID_MAX)
        return err_set(e, ERR_LIMIT, "there are %d devices", DEVICE_ID_MAX);
    *out = id;
    return 0;
}

static int fill_record(struct device_record *r, struct server *v, const struct json *request,
                       struct err *e)
{
    const char *name, *front, *address;
    int rc = json_get_string(request, "name", &name, e);
    if (rc == 0)
        rc = json_get_digest(request, "disk", &r->disk, e);
    if (rc == 0)
        rc = json_get_bool_opt(request, "writable", false, &r->writable, e);
    if (rc == 0)
        rc = json_get_string(request, "front", &front, e);
    if (rc == 0)
        rc = device_front_parse(front, &r->front, e);
    if (rc == 0)
        rc = json_get_string_opt(request, "address", &address, e);
    if (rc == 0)
        rc = device_source_decode(r, request, e);
    if (rc == 0)
        rc = unused_id(v, &r->id, e);
    if (rc < 0)
        return rc;
    if (r->front != DEVICE_UBLK && !address)
        return err_set(e, ERR_INPUT, "NBD needs an address");
    if (getrandom(&r->cookie, sizeof(r->cookie), 0) != sizeof(r->cookie))
        return err_sys(e, "getting a random number for the device");
    r->cookie &= INT64_MAX; /* what a JSON integer holds */
    r->number = -1;
    r->pid = getpid();
    r->name = mem_strdup(name);
    r->boot = mem_strdup(v->boot);
    r->address = address ? mem_strdup(address) : NULL;
    return r->name && r->boot && (r->address || !address) ? 0 : err_nomem(e, "device");
}

static int attach(struct server *v, const struct json *request, struct json *answer, struct err *e)
{
    struct served *d = mem_zalloc(sizeof(*d));
    if (!d)
        return err_nomem(e, "device");
    int rc = fill_record(&d->record, v, request, e);
    unsigned id = d->record.id;
    if (rc == 0)
        rc = device_record_save(v->dir, &d->record, e);
    if (rc == 0)
        rc = serve(v, d, false, e);
    if (rc < 0) {
        served_free(v, d);
        struct err ignored = ERR_INIT;
        if (id > 0 && device_record_remove(v->dir, id, &ignored) < 0)
            log_event(LOG_WARN, "bake", "devices/%u.json stays: %s", id, ignored.text);
        return rc;
    }
    served_add(v, d);
    AUTO_FREE char *path = device_record_path(&d->record);
    json_set(answer, "path", json_new_string(path ? path : ""));
    return 0;
}

/* A disk that is mounted, or otherwise somebody's own, cannot be opened for oneself alone. */
static int check_unused(const struct served *d, struct err *e)
{
    if (d->record.front != DEVICE_UBLK)
        return 0;
    AUTO_FREE char *path = device_record_path(&d->record);
    AUTO_FD int fd = -1;
    struct err why = ERR_INIT;
    if (!path || file_open(&fd, AT_FDCWD, path, O_RDONLY | O_EXCL, 0, &why) == 0 ||
        why.sys != EBUSY)
        return 0;
    err_set(e, ERR_BUSY, "%s is in use", path);
    return err_hint(e, "unmount it, or detach it with --force: its users then get I/O errors");
}

static int detach(struct server *v, const struct json *request, struct err *e)
{
    const char *path;
    bool force;
    int rc = json_get_string(request, "path", &path, e);
    if (rc == 0)
        rc = json_get_bool_opt(request, "force", false, &force, e);
    if (rc < 0)
        return rc;
    struct served **at = served_find(v, path);
    if (!at)
        return err_set(e, ERR_NOTFOUND, "no such device is served");
    if (!force)
        rc = check_unused(*at, e);
    return rc < 0 ? rc : served_remove(v, at, e);
}

static int answer_request(struct server *v, const struct json *request, struct json *answer,
                          struct err *e)
{
    const char *op;
    int rc = json_get_string(request, "op", &op, e);
    if (rc < 0)
        return rc;
    if (strcmp(op, "attach") == 0)
        return attach(v, request, answer, e);
    if (strcmp(op, "detach") == 0)
        return detach(v, request, e);
    return strcmp(op, "ping") == 0 ? 0 : err_set(e, ERR_CORRUPT, "there is no request '%s'", op);
}

static void serve_client(struct server *v, int fd)
{
    struct timeval limit = {.tv_sec = CLIENT_TIMEOUT_SECONDS};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    struct err e = ERR_INIT;
    AUTO_JSON struct json *request = NULL;
    AUTO_JSON struct json *answer = json_new_object();
    int rc = device_receive(&request, fd, &e);
    if (rc == 0)
        rc = answer_request(v, request, answer, &e);
    if (rc < 0) {
        json_free(answer);
        answer = device_error_encode(&e);
    }
    err_clear(&e);
    if (device_send(fd, answer, &e) < 0)
        log_event(LOG_WARN, "bake", "a client left before its answer: %s", e.text);
}

/* ---- Start, loop, end ---- */

/* What cannot be taken over keeps its record: `devices` shows it, `detach` removes it. */
static void recover_one(struct server *v, struct device_record *r)
{
    struct err e = ERR_INIT;
    if (strcmp(r->boot, v->boot) != 0)
        return; /* the machine was started anew: nothing is there to be taken over */
    struct served *d = mem_zalloc(sizeof(*d));
    if (!d)
        return;
    d->record = *r;
    *r = (struct device_record){.id = r->id};
    uint32_t number;
    /* Killed before anybody was told of the device. */
    bool killed_early = d->record.front == DEVICE_UBLK && d->record.number < 0;
    int rc = 0;
    if (killed_early && ublk_find(d->record.cookie, &number, &e) == 0)
        rc = ublk_remove(number, d->record.cookie, &e);
    if (rc == 0) {
        err_clear(&e);
        rc = killed_early ? device_record_remove(v->dir, r->id, &e) : serve(v, d, true, &e);
    }
    if (rc < 0)
        log_event(LOG_WARN, "bake", "device %u is not recovered: %s", r->id, e.text);
    if (rc < 0 || killed_early)
        served_free(v, d);
    else
        served_add(v, d);
}

static int recover_all(struct server *v, struct err *e)
{
    struct device_records records;
    int rc = device_records_load(&records, v->dir, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < records.count; i++)
        recover_one(v, &records.all[i]);
    device_records_fini(&records);
    return 0;
}

static int listen_here(struct server *v, struct err *e)
{
    struct sockaddr_un address;
    device_socket_address(&address, v->dir);
    int rc = file_remove_tree(v->dir, DEVICE_SOCKET, e); /* a dead server's: we hold the lock */
    if (rc < 0)
        return rc;
    v->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (v->listener < 0 ||
        bind(v->listener, (const struct sockaddr *)(const void *)&address, sizeof(address)) < 0 ||
        fchmodat(v->dir, DEVICE_SOCKET, 0600, 0) < 0 || listen(v->listener, BACKLOG) < 0)
        return err_sys(e, "listening on the control socket of the devices' server");
    return 0;
}

static int server_open(struct server *v, const char *store_path, struct err *e)
{
    AUTO_BUF struct buf boot;
    buf_init(&boot, 128);
    int rc = device_dir_open(&v->dir, store_path, e);
    if (rc == 0)
        rc = file_lock(&v->lock, v->dir, DEVICE_LOCK, true, false, e);
    if (rc == 0)
        rc = device_boot_id(&boot, e);
    if (rc == 0 && !(v->boot = mem_strdup(buf_text(&boot))))
        rc = err_nomem(e, "devices");
    if (rc == 0)
        rc = store_open(&v->store, store_path, e);
    if (rc == 0)
        rc = chunk_cache_new(&v->cache, v->store, CACHE_SIZE, e);
    if (rc == 0)
        rc = recover_all(v, e);
    return rc < 0 ? rc : listen_here(v, e);
}

static void leave_first(struct server *v)
{
    struct served *d = v->devices;
    struct err ignored = ERR_INIT;
    (void)stop_front(d, true, &ignored);
    v->devices = d->next;
    served_free(v, d);
}

/* With `leave` the devices are those of a server that died. */
static void server_close(struct server *v, bool leave)
{
    while (v->devices) {
        struct err e = ERR_INIT;
        if (leave)
            leave_first(v);
        else if (served_remove(v, &v->devices, &e) < 0)
            log_event(LOG_WARN, "bake", "at the end: %s", e.text);
    }
    if (v->listener >= 0)
        (void)unlinkat(v->dir, DEVICE_SOCKET, 0);
    file_close(&v->listener);
    chunk_cache_free(v->cache);
    remote_close(v->remote);
    free(v->remote_url);
    store_close(v->store);
    free(v->boot);
    file_close(&v->lock);
    file_close(&v->dir);
}

static void loop(struct server *v, const struct device_serve_options *o)
{
    bool had_devices = v->devices != NULL;
    while (!cancel_is_set(o->cancel) && (v->devices || !had_devices)) {
        struct pollfd fds[] = {{.fd = o->cancel->fd, .events = POLLIN},
                               {.fd = v->listener, .events = POLLIN}};
        if (poll(fds, ARRAY_LEN(fds), -1) < 0 || !fds[1].revents)
            continue;
        AUTO_FD int fd = accept4(v->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        serve_client(v, fd);
        had_devices = true; /* a request that failed ends a server without devices too */
    }
}

int device_serve(const char *store_path, const struct device_serve_options *o, struct err *e)
{
    struct server v = {.dir = -1, .lock = -1, .listener = -1, .cancel = o->cancel};
    int rc = server_open(&v, store_path, e);
    if (rc == 0 && o->ready)
        o->ready(o->ctx);
    if (rc == 0)
        loop(&v, o);
    server_close(&v, rc < 0);
    return rc < 0 ? err_in(e, "serving devices") : 0;
}
