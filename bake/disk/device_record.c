/* SPDX-License-Identifier: MIT */
/* Records of attached devices, and the words that server and clients exchange. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/disk.h"
#include "bake/disk/devices.h"
#include "bake/disk/internal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { RECORD_MAX = 64 << 10 };

const char *const device_front_names[] = {
    [DEVICE_UBLK] = "ublk", [DEVICE_NBD] = "nbd", [DEVICE_NBD_TCP] = "nbd-tcp"};

int device_front_parse(const char *text, enum device_front *out, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(device_front_names); i++) {
        if (strcmp(text, device_front_names[i]) == 0) {
            *out = (enum device_front)i;
            return 0;
        }
    }
    return err_set(e, ERR_CORRUPT, "there is no front end '%s'", text);
}

int device_dir_open(int *out, const char *store_path, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/devices", store_path);
    return path ? file_open_dir(out, AT_FDCWD, path, e) : err_nomem(e, "devices");
}

int device_boot_id(struct buf *out, struct err *e)
{
    int rc = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", out, e);
    if (rc == 0 && out->len > 0 && out->data[out->len - 1] == '\n')
        out->data[--out->len] = 0;
    return rc;
}

const char *device_upper_name(unsigned id, char name[DEVICE_NAME_MAX])
{
    snprintf(name, DEVICE_NAME_MAX, "%u.upper", id);
    return name;
}

char *device_record_path(const struct device_record *r)
{
    return r->front == DEVICE_UBLK ? mem_printf("/dev/ublkb%lld", (long long)r->number)
                                   : mem_strdup(r->address);
}

/* ---- Records ---- */

void device_record_fini(struct device_record *r)
{
    free(r->name);
    free(r->address);
    free(r->boot);
    free(r->remote);
}

static void device_source_encode(struct json *j, const struct device_record *r)
{
    if (r->remote)
        json_set(j, "remote", json_new_string(r->remote));
    if (r->complete)
        json_set(j, "complete", json_new_bool(true));
    if (r->has_template)
        json_set(j, "template", json_digest(&r->template));
}

int device_source_decode(struct device_record *r, const struct json *j, struct err *e)
{
    const char *remote = NULL;
    int rc = json_get_string_opt(j, "remote", &remote, e);
    if (rc == 0)
        rc = json_get_bool_opt(j, "complete", false, &r->complete, e);
    r->has_template = json_member(j, "template");
    if (rc == 0 && r->has_template)
        rc = json_get_digest(j, "template", &r->template, e);
    if (rc == 0 && remote && !(r->remote = mem_strdup(remote)))
        rc = err_nomem(e, "device");
    return rc;
}

int device_record_save(int dir, const struct device_record *r, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "name", json_new_string(r->name));
    json_set(j, "disk", json_digest(&r->disk));
    json_set(j, "writable", json_new_bool(r->writable));
    json_set(j, "front", json_new_string(device_front_names[r->front]));
    if (r->address)
        json_set(j, "address", json_new_string(r->address));
    json_set(j, "boot", json_new_string(r->boot));
    json_set(j, "pid", json_new_integer(r->pid));
    if (r->front == DEVICE_UBLK)
        json_set(j, "cookie", json_new_integer((int64_t)r->cookie));
    if (r->number >= 0)
        json_set(j, "number", json_new_integer(r->number));
    device_source_encode(j, r);
    AUTO_FREE char *text = NULL;
    char name[DEVICE_NAME_MAX];
    snprintf(name, sizeof(name), "%u.json", r->id);
    int rc = json_print(j, 0, &text, e);
    return rc < 0 ? rc : file_put(dir, dir, name, text, strlen(text), e);
}

int device_record_remove(int dir, unsigned id, struct err *e)
{
    char name[DEVICE_NAME_MAX];
    int rc = bdev_cow_forget(dir, device_upper_name(id, name), e);
    snprintf(name, sizeof(name), "%u.json", id);
    return rc < 0 ? rc : file_remove_tree(dir, name, e);
}

static int decode(struct device_record *r, const struct json *j, struct err *e)
{
    const char *name, *front, *boot, *address;
    uint64_t pid, number;
    int rc = json_get_string(j, "name", &name, e);
    if (rc == 0)
        rc = json_get_digest(j, "disk", &r->disk, e);
    if (rc == 0)
        rc = json_get_bool_opt(j, "writable", false, &r->writable, e);
    if (rc == 0)
        rc = json_get_string(j, "front", &front, e);
    if (rc == 0)
        rc = device_front_parse(front, &r->front, e);
    if (rc == 0)
        rc = json_get_string_opt(j, "address", &address, e);
    if (rc == 0)
        rc = json_get_string(j, "boot", &boot, e);
    if (rc == 0)
        rc = json_get_u64(j, "pid", &pid, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "cookie", 0, &r->cookie, e);
    if (rc == 0)
        rc = json_get_u64_opt(j, "number", INT64_MAX, &number, e);
    if (rc < 0)
        return rc;
    if ((r->front != DEVICE_UBLK && !address) || pid > INT32_MAX)
        return err_set(e, ERR_CORRUPT, "it is incomplete");
    r->pid = (int64_t)pid;
    r->number = number > INT32_MAX ? -1 : (int64_t)number;
    r->name = mem_strdup(name);
    r->boot = mem_strdup(boot);
    r->address = address ? mem_strdup(address) : NULL;
    return r->name && r->boot && (r->address || !address) ? device_source_decode(r, j, e)
                                                          : err_nomem(e, "device");
}

static int load(struct device_record *r, int dir, const char *file, struct err *e)
{
    AUTO_BUF struct buf text;
    AUTO_JSON struct json *j = NULL;
    buf_init(&text, RECORD_MAX);
    int rc = file_read(dir, file, &text, e);
    if (rc == 0)
        rc = json_parse(&j, text.data, text.len, file, e);
    return rc < 0 ? rc : decode(r, j, e);
}

static int compare_records(const void *a, const void *b)
{
    const struct device_record *one = a, *other = b;
    return (one->id > other->id) - (one->id < other->id);
}

/* The id in a record's name; 0 when it is none. */
static unsigned parse_name(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    if (digits == 0 || digits > 4 || name[0] == '0' || strcmp(name + digits, ".json") != 0)
        return 0;
    return (unsigned)strtoul(name, NULL, 10);
}

int device_records_load(struct device_records *out, int dir, struct err *e)
{
    *out = (struct device_records){0};
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, dir, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *list = fdopendir(fd);
    if (!list)
        return err_sys(e, "listing the store's devices");
    fd = -1;
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(list))) {
        struct err why = ERR_INIT;
        struct device_record r = {.id = parse_name(entry->d_name)};
        if (r.id == 0)
            continue;
        if (load(&r, dir, entry->d_name, &why) < 0) {
            device_record_fini(&r);
            /* Gone meanwhile: detached. */
            if (why.class != ERR_NOTFOUND)
                log_event(LOG_WARN, "bake", "devices/%s: %s", entry->d_name, why.text);
            continue;
        }
        rc = mem_grow(&out->all, &out->capacity, out->count + 1, sizeof(*out->all), e);
        if (rc == 0)
            out->all[out->count++] = r;
        else
            device_record_fini(&r);
    }
    closedir(list);
    if (rc < 0) {
        device_records_fini(out);
        return rc;
    }
    if (out->count > 1)
        qsort(out->all, out->count, sizeof(*out->all), compare_records);
    return 0;
}

void device_records_fini(struct device_records *r)
{
    for (size_t i = 0; i < r->count; i++)
        device_record_fini(&r->all[i]);
    free(r->all);
    *r = (struct device_records){0};
}

int device_disks(struct store *s, void (*each)(void *ctx, const struct digest *disk), void *ctx,
                 struct err *e)
{
    AUTO_FD int dir = -1;
    struct device_records records;
    int rc = file_open(&dir, store_dir(s), "devices", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == -ERR_NOTFOUND) {
        err_clear(e);
        return 0;
    }
    if (rc == 0)
        rc = device_records_load(&records, dir, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < records.count; i++)
        each(ctx, &records.all[i].disk);
    device_records_fini(&records);
    return 0;
}

/* ---- Messages ---- */

void device_socket_address(struct sockaddr_un *out, int dir)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path, sizeof(out->sun_path), "/proc/self/fd/%d/" DEVICE_SOCKET, dir);
}

struct json *device_error_encode(const struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "class", json_new_string(err_class_name(e->class)));
    json_set(j, "text", json_new_string(e->text));
    json_set(j, "hint", json_new_string(e->hint));
    struct json *answer = json_new_object();
    json_set(answer, "error", j);
    return answer;
}

int device_error_decode(const struct json *answer, struct err *e)
{
    struct json *j;
    const char *class, *text, *hint;
    int rc = json_get_object_opt(answer, "error", &j, e);
    if (rc < 0 || !j)
        return rc;
    if ((rc = json_get_string(j, "class", &class, e)) < 0 ||
        (rc = json_get_string(j, "text", &text, e)) < 0 ||
        (rc = json_get_string_opt(j, "hint", &hint, e)) < 0)
        return rc;
    enum err_class found = ERR_CORRUPT;
    for (int i = ERR_NONE + 1; i < ERR_CLASS_COUNT; i++) {
        if (strcmp(err_class_name((enum err_class)i), class) == 0)
            found = (enum err_class)i;
    }
    rc = err_set(e, found, "%s", text);
    return hint && *hint ? err_hint(e, "%s", hint) : rc;
}

int device_send(int fd, const struct json *j, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int rc = json_print(j, 0, &text, e);
    if (rc < 0)
        return rc;
    for (size_t at = 0, len = strlen(text); at < len;) {
        ssize_t n = send(fd, text + at, len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, "sending to the devices' server");
        at += (size_t)n;
    }
    (void)shutdown(fd, SHUT_WR);
    return 0;
}

int device_receive(struct json **out, int fd, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, DEVICE_MESSAGE_MAX);
    while (true) {
        char piece[4096];
        ssize_t n = recv(fd, piece, sizeof(piece), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, "receiving from the devices' server");
        if (n == 0)
            break;
        int rc = buf_add(&text, piece, (size_t)n, e);
        if (rc < 0)
            return rc;
    }
    if (text.len == 0)
        return err_set(e, ERR_NET, "the devices' server went away");
    return json_parse(out, text.data, text.len, "message", e);
}
