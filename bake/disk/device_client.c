/* SPDX-License-Identifier: MIT */
/* Asking the devices' server, and doing without it when it is dead. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/disk.h"
#include "bake/disk/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

/* The kernel may take its time over a device. */
enum { ANSWER_TIMEOUT_SECONDS = 120 };

/* ERR_NET with *no_server when nobody listens, or the server left before it read the request. */
static int ask(struct json **answer, bool *no_server, int dir, const struct json *request,
               struct err *e)
{
    struct sockaddr_un address;
    device_socket_address(&address, dir);
    *no_server = false;
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = ANSWER_TIMEOUT_SECONDS};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
        return err_sys(e, "making a socket to the devices' server");
    if (connect(fd, (const struct sockaddr *)(const void *)&address, sizeof(address)) < 0) {
        *no_server = errno == ENOENT || errno == ECONNREFUSED;
        return err_set(e, ERR_NET, "the devices' server is not reached: %s", strerror(errno));
    }
    int rc = device_send(fd, request, e);
    if (rc == 0)
        rc = device_receive(answer, fd, e);
    if (rc < 0) {
        *no_server = rc == -ERR_NET || e->sys == EPIPE || e->sys == ECONNRESET;
        return err_in(e, "the devices' server");
    }
    return device_error_decode(*answer, e);
}

int device_attach(char **path, bool *no_server, const char *store_path,
                  const struct device_request *r, struct err *e)
{
    AUTO_FD int dir = -1;
    AUTO_JSON struct json *answer = NULL;
    AUTO_JSON struct json *request = json_new_object();
    *no_server = false;
    json_set(request, "op", json_new_string("attach"));
    json_set(request, "name", json_new_string(r->name));
    json_set(request, "disk", json_digest(r->disk));
    json_set(request, "writable", json_new_bool(r->writable));
    json_set(request, "front", json_new_string(device_front_names[r->front]));
    if (r->address)
        json_set(request, "address", json_new_string(r->address));
    if (r->remote)
        json_set(request, "remote", json_new_string(r->remote));
    json_set(request, "complete", json_new_bool(r->complete));
    if (r->template)
        json_set(request, "template", json_digest(r->template));
    int rc = device_dir_open(&dir, store_path, e);
    if (rc == 0)
        rc = ask(&answer, no_server, dir, request, e);
    const char *its;
    if (rc == 0)
        rc = json_get_string(answer, "path", &its, e);
    if (rc < 0)
        return rc;
    *path = mem_strdup(its);
    return *path ? 0 : err_nomem(e, "device");
}

/* ---- Without a server ---- */

/* True if some process serves the devices; else *lock keeps one from starting. */
static bool is_served(int *lock, int dir)
{
    struct err e = ERR_INIT;
    return file_lock(lock, dir, DEVICE_LOCK, true, false, &e) == -ERR_BUSY;
}

static int remove_dead(int dir, const struct device_record *r, const char *boot, struct err *e)
{
    bool same_boot = strcmp(r->boot, boot) == 0;
    uint32_t number = (uint32_t)r->number;
    int rc = 0;
    if (same_boot && r->front == DEVICE_UBLK && r->number < 0)
        rc = ublk_find(r->cookie, &number, e);
    if (rc == 0 && same_boot && r->front == DEVICE_UBLK)
        rc = ublk_remove(number, r->cookie, e);
    /* Without the module there is no device either. */
    if (rc == -ERR_NOTFOUND || rc == -ERR_UNSUPPORTED) {
        err_clear(e);
        rc = 0;
    }
    return rc < 0 ? rc : device_record_remove(dir, r->id, e);
}

static int detach_dead(int dir, const char *path, struct err *e)
{
    struct device_records records;
    AUTO_BUF struct buf boot;
    buf_init(&boot, 128);
    int rc = device_boot_id(&boot, e);
    if (rc == 0)
        rc = device_records_load(&records, dir, e);
    if (rc < 0)
        return rc;
    bool found = false;
    for (size_t i = 0; i < records.count && rc == 0; i++) {
        AUTO_FREE char *its = device_record_path(&records.all[i]);
        if (!its || strcmp(its, path) != 0)
            continue;
        found = true;
        rc = remove_dead(dir, &records.all[i], buf_text(&boot), e);
    }
    device_records_fini(&records);
    return rc == 0 && !found ? err_set(e, ERR_NOTFOUND, "no such device is attached") : rc;
}

int device_detach(const char *store_path, const char *path, bool force, struct err *e)
{
    AUTO_FD int dir = -1;
    AUTO_FD int lock = -1;
    int rc = device_dir_open(&dir, store_path, e);
    if (rc < 0)
        return rc;
    if (!is_served(&lock, dir)) {
        rc = detach_dead(dir, path, e);
    } else {
        bool no_server;
        AUTO_JSON struct json *answer = NULL;
        AUTO_JSON struct json *request = json_new_object();
        json_set(request, "op", json_new_string("detach"));
        json_set(request, "path", json_new_string(path));
        json_set(request, "force", json_new_bool(force));
        rc = ask(&answer, &no_server, dir, request, e);
    }
    return rc < 0 ? err_in(e, "device %s", path) : 0;
}

/* ---- List ---- */

void device_list_fini(struct device_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        free(l->all[i].path);
        free(l->all[i].name);
    }
    free(l->all);
    *l = (struct device_list){0};
}

static int fill_list(struct device_list *out, const struct device_records *records, bool served,
                     const char *boot, struct err *e)
{
    out->all = mem_array(records->count, sizeof(*out->all));
    if (!out->all)
        return err_nomem(e, "devices");
    for (size_t i = 0; i < records->count; i++) {
        const struct device_record *r = &records->all[i];
        struct device *d = &out->all[out->count++];
        *d = (struct device){.path = device_record_path(r),
                             .name = mem_strdup(r->name),
                             .disk = r->disk,
                             .writable = r->writable,
                             .front = r->front};
        /* A server that is alive may still have failed to take one over. */
        bool its_server = served && kill((pid_t)r->pid, 0) == 0;
        d->state = strcmp(r->boot, boot) != 0 ? DEVICE_LOST
                   : its_server               ? DEVICE_SERVED
                                              : DEVICE_DEAD;
        if (!d->path || !d->name)
            return err_nomem(e, "devices");
    }
    return 0;
}

int device_list(struct device_list *out, const char *store_path, struct err *e)
{
    *out = (struct device_list){0};
    AUTO_FD int dir = -1;
    AUTO_FD int lock = -1;
    AUTO_BUF struct buf boot;
    buf_init(&boot, 128);
    struct device_records records = {0};
    int rc = device_dir_open(&dir, store_path, e);
    if (rc == 0)
        rc = device_boot_id(&boot, e);
    bool served = rc == 0 && is_served(&lock, dir);
    file_close(&lock);
    if (rc == 0)
        rc = device_records_load(&records, dir, e);
    if (rc == 0)
        rc = fill_list(out, &records, served, buf_text(&boot), e);
    device_records_fini(&records);
    if (rc < 0)
        device_list_fini(out);
    return rc;
}
