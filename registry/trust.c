/* SPDX-License-Identifier: MIT */
/*
 * CA certificates that count for one host, beside the system's. Directories have the layout that
 * Docker documents for /etc/docker/certs.d: HOST:PORT/NAME.crt, and HOST alone for port 443.
 */
#include "registry/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

static int add_file(struct buf *pem, int dir, const char *path, struct err *e)
{
    AUTO_BUF struct buf text;

    buf_init(&text, pem->ceiling);
    if (file_read(dir, path, &text, e) < 0) {
        if (e->class == ERR_NOMEM)
            return -ERR_NOMEM;
        e->class = ERR_INPUT;
        return err_in(e, "CA certificates");
    }
    /* Files that do not end with a newline would run into each other. */
    return buf_printf(pem, e, "%s\n", buf_text(&text));
}

static bool is_certificate(const char *name)
{
    size_t len = strlen(name);

    return len > strlen(".crt") && strcmp(name + len - strlen(".crt"), ".crt") == 0;
}

static int add_listed(struct buf *pem, DIR *list, struct err *e)
{
    const struct dirent *entry;
    int rc = 0;

    while (rc == 0 && (entry = readdir(list)))
        rc = is_certificate(entry->d_name) ? add_file(pem, dirfd(list), entry->d_name, e) : 0;
    return rc;
}

/* No such directory, or one that may not be read: nothing is added. */
static int add_directory(struct buf *pem, const char *path, struct err *e)
{
    struct err ignored = ERR_INIT;
    int fd = -1;

    if (file_open(&fd, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, &ignored) < 0)
        return 0;
    DIR *list = fdopendir(fd);
    if (!list) {
        file_close(&fd);
        return err_nomem(e, "CA certificates");
    }
    int rc = add_listed(pem, list, e);
    closedir(list);
    return rc;
}

int trust_collect(struct buf *pem, const struct http_options *options, const char *name,
                  const char *port, struct err *e)
{
    AUTO_FREE char *full = mem_printf("%s:%s", name, port);
    bool usual = strcmp(port, "443") == 0;

    if (!full)
        return err_nomem(e, "CA certificates");
    if (options->ca_file && add_file(pem, AT_FDCWD, options->ca_file, e) < 0)
        return -(int)e->class;
    for (size_t i = 0; i < options->ca_count; i++) {
        const struct http_ca *ca = &options->cas[i];
        bool same = strcasecmp(ca->host, full) == 0 || (usual && strcasecmp(ca->host, name) == 0);

        if (same && add_file(pem, AT_FDCWD, ca->file, e) < 0)
            return -(int)e->class;
    }
    for (size_t i = 0; options->certs_dirs && options->certs_dirs[i]; i++) {
        AUTO_FREE char *exact = mem_printf("%s/%s", options->certs_dirs[i], full);
        AUTO_FREE char *short_path = mem_printf("%s/%s", options->certs_dirs[i], name);

        if (!exact || !short_path)
            return err_nomem(e, "CA certificates");
        if (add_directory(pem, exact, e) < 0 || (usual && add_directory(pem, short_path, e) < 0))
            return -(int)e->class;
    }
    return 0;
}
