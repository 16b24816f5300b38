/* SPDX-License-Identifier: MIT */
/*
 * Files for the guest's tree: see vm.h. Records are gathered into as few requests as fit, since each one
 * waits for its answer: thousands of small files are some dozens of round trips.
 */
#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"
#include "base/mem.h"

enum {
    RECORD_HEAD_LEN = 64,
    BATCH_LEN = AGENT_PAYLOAD_MAX - RECORD_HEAD_LEN - 2 * (int)LIMIT_PATH
};

struct agent_copy {
    struct agent *agent; /* borrowed */
    struct buf batch;    /* records that were not sent yet */
};

static int send_batch(struct agent_copy *c, struct err *e)
{
    int rc = c->batch.len == 0
                 ? 0
                 : agent_request_u64(c->agent, AGENT_COPY, &c->batch, AGENT_REQUEST_MS, NULL, e);
    buf_drop(&c->batch, c->batch.len);
    return rc;
}

static int open_request(struct agent *a, const struct agent_copy_target *to, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    int rc = buf_add_u32(&b, to->single ? AGENT_COPY_FILE : AGENT_COPY_TREE, e);
    if (rc == 0)
        rc = agent_add_string(&b, to->to, e);
    if (rc == 0)
        rc = agent_add_string(&b, to->name ? to->name : "", e);
    if (rc == 0)
        rc = agent_add_string(&b, to->owner ? to->owner : "0:0", e);
    return rc < 0 ? rc : agent_request_u64(a, AGENT_COPY_OPEN, &b, AGENT_REQUEST_MS, NULL, e);
}

int agent_copy_open(struct agent_copy **out, struct agent *a, const struct agent_copy_target *to,
                    struct err *e)
{
    AUTO_AGENT_COPY struct agent_copy *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "copy");
    c->agent = a;
    buf_init(&c->batch, AGENT_PAYLOAD_MAX);
    int rc = open_request(a, to, e);
    if (rc < 0)
        return rc;
    *out = MOVE(c);
    return 0;
}

int agent_copy_add(struct agent_copy *c, const struct agent_copy_entry *entry, struct err *e)
{
    static const uint32_t types[] = {[COPY_DIRECTORY] = AGENT_COPY_DIRECTORY,
                                     [COPY_FILE] = AGENT_COPY_REGULAR,
                                     [COPY_SYMLINK] = AGENT_COPY_SYMLINK,
                                     [COPY_HARD_LINK] = AGENT_COPY_HARD_LINK,
                                     [COPY_SETTLE] = AGENT_COPY_SETTLE};
    struct buf *b = &c->batch;
    if (strlen(entry->path) >= LIMIT_PATH || (entry->target && strlen(entry->target) >= LIMIT_PATH))
        return err_set(e, ERR_LIMIT, "a path to copy is longer than %zu bytes", (size_t)LIMIT_PATH);
    int rc = b->len > BATCH_LEN ? send_batch(c, e) : 0;
    const uint32_t numbers[] = {types[entry->type], entry->mode,
                                entry->owned ? entry->uid : AGENT_COPY_OWNER,
                                entry->owned ? entry->gid : AGENT_COPY_OWNER};
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(numbers); i++)
        rc = buf_add_u32(b, numbers[i], e);
    if (rc == 0)
        rc = buf_add_u64(b, (uint64_t)entry->time, e);
    if (rc == 0)
        rc = buf_add_u64(b, entry->size, e);
    if (rc == 0)
        rc = agent_add_string(b, entry->path, e);
    return rc < 0 ? rc : agent_add_string(b, entry->target ? entry->target : "", e);
}

int agent_copy_data(struct agent_copy *c, const void *data, size_t len, struct err *e)
{
    const uint8_t *at = data;
    int rc = 0;
    while (rc == 0 && len > 0) {
        if (c->batch.len > BATCH_LEN)
            rc = send_batch(c, e);
        size_t part = AGENT_PAYLOAD_MAX - RECORD_HEAD_LEN - c->batch.len;
        if (part > len)
            part = len;
        if (rc == 0)
            rc = buf_add_u32(&c->batch, AGENT_COPY_DATA, e);
        if (rc == 0)
            rc = buf_add_u32(&c->batch, (uint32_t)part, e);
        if (rc == 0)
            rc = buf_add(&c->batch, at, part, e);
        at += part;
        len -= part;
    }
    return rc;
}

int agent_copy_finish(struct agent_copy *c, struct err *e)
{
    int rc = send_batch(c, e);
    return rc < 0 ? rc
                  : agent_request_u64(c->agent, AGENT_COPY_CLOSE, NULL, AGENT_REQUEST_MS, NULL, e);
}

void agent_copy_free(struct agent_copy *c)
{
    if (!c)
        return;
    buf_fini(&c->batch);
    free(c);
}
