/* SPDX-License-Identifier: MIT */
/* What the pull tests share: a client, a scripted registry, one blob, and a file to pull it to. */
#ifndef TB2_TESTS_REGISTRY_WORLD_H
#define TB2_TESTS_REGISTRY_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "fake_http.h"
#include "registry/internal.h"

enum { BLOB_SIZE = 300000, CUT = 120000, TRIES = 3 };

struct world {
    struct fake_http *server;
    struct registry *client;
    struct cancel cancel;
    char host[32];
    struct oci_ref ref;
    struct oci_descriptor blob;
    uint8_t *bytes;
    uint8_t *wrong; /* as many, but other ones */
    int fd;         /* empty file in memory */
};

/* A client with waits that suit tests; an earlier one is freed. */
static inline void world_client(struct world *w, const char *config_path, int64_t stall_timeout_ms)
{
    static const struct registry_tuning quick = {.retry_wait_ms = 1,
                                                 .gate_wait_ms = 5,
                                                 .gate_max_wait_ms = 2000,
                                                 .helper_timeout_ms = 1000,
                                                 .piece_len = 1000};
    struct registry_options options = {
        .config_path = config_path ? config_path : "/nonexistent/config.json",
        .stall_timeout_ms = stall_timeout_ms,
        .tries = TRIES,
        .cancel = &w->cancel,
    };
    struct err e = ERR_INIT;

    registry_free(w->client);
    assert_int_equal(registry_new_tuned(&w->client, &options, &quick, &e), 0);
}

static inline void world_start(struct world *w, fake_handler *handler, void *ctx,
                               const char *config_path)
{
    struct err e = ERR_INIT;

    *w = (struct world){.fd = -1};
    w->bytes = mem_zalloc(BLOB_SIZE);
    w->wrong = mem_zalloc(BLOB_SIZE);
    uint32_t state = 1;
    for (size_t i = 0; i < BLOB_SIZE; i++) {
        state = state * 1664525 + 1013904223;
        w->bytes[i] = (uint8_t)(state >> 24);
        w->wrong[i] = (uint8_t)(w->bytes[i] ^ 1);
    }
    w->blob = (struct oci_descriptor){.size = BLOB_SIZE, .media_type = mem_strdup("")};
    digest_bytes(&w->blob.digest, w->bytes, BLOB_SIZE);
    assert_int_equal(cancel_init(&w->cancel, &e), 0);
    w->server = fake_http_start(handler, ctx);
    snprintf(w->host, sizeof(w->host), "127.0.0.1:%u", fake_http_port(w->server));
    AUTO_FREE char *name = mem_printf("%s/team/app:v1", w->host);
    assert_int_equal(oci_ref_parse(&w->ref, name, &e), 0);
    world_client(w, config_path, 0);
    w->fd = memfd_create("blob", MFD_CLOEXEC);
    assert_true(w->fd >= 0);
}

static inline void world_stop(struct world *w)
{
    registry_free(w->client);
    fake_http_stop(w->server);
    cancel_fini(&w->cancel);
    oci_ref_fini(&w->ref);
    oci_descriptor_fini(&w->blob);
    free(w->bytes);
    free(w->wrong);
    close(w->fd);
}

static inline int world_pull(struct world *w, struct err *e)
{
    return registry_blob(w->client, &w->ref, &w->blob, w->fd, NULL, e);
}

static inline uint64_t world_file_size(const struct world *w)
{
    struct stat status;

    assert_int_equal(fstat(w->fd, &status), 0);
    return (uint64_t)status.st_size;
}

/* The file holds the blob, the whole blob and nothing but the blob. */
static inline void world_check_file(const struct world *w)
{
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *data = mem_zalloc(BLOB_SIZE);

    assert_int_equal(world_file_size(w), BLOB_SIZE);
    assert_int_equal(file_pread_full(w->fd, data, BLOB_SIZE, 0, &e), 0);
    assert_memory_equal(data, w->bytes, BLOB_SIZE);
}

/* 206 from the offset that was asked for; 200 without a range. */
static inline void reply_blob(struct fake_reply *reply, const struct fake_request *request,
                              const uint8_t *bytes)
{
    size_t from = fake_range(request);

    reply->status = from > 0 ? 206 : 200;
    if (from > 0)
        fake_add_header(reply, "Content-Range: bytes %zu-%d/%d", from, BLOB_SIZE - 1, BLOB_SIZE);
    reply->body = bytes + from;
    reply->body_len = BLOB_SIZE - from;
}

static inline void reply_text(struct fake_reply *reply, int status, const char *text)
{
    reply->status = status;
    reply->body = text;
    reply->body_len = strlen(text);
}

#endif
