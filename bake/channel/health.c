/* SPDX-License-Identifier: MIT */
/* Requests that find out whether a guest is as it should be: before its snapshot, and after a restore. */
#include <string.h>
#include <sys/random.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"
#include "base/mem.h"

int agent_packages(struct agent *a, struct agent_packages *out, struct err *e)
{
    struct agent_frame reply = {.type = 0};
    int rc = agent_request(a, AGENT_PACKAGES, NULL, AGENT_REQUEST_MS, &reply, e);
    if (rc < 0)
        return rc;
    if (reply.len < 12 || agent_get_u32(reply.payload + 8) > reply.len - 12)
        return agent_link_refuse(a, &reply, e);
    size_t busy_len = agent_get_u32(reply.payload + 8);
    out->broken_count = agent_get_u32(reply.payload);
    out->broken_sum = agent_get_u32(reply.payload + 4);
    agent_take_text(out->busy, sizeof(out->busy), reply.payload + 12, busy_len);
    agent_take_text(out->broken, sizeof(out->broken), reply.payload + 12 + busy_len,
                    reply.len - 12 - busy_len);
    return 0;
}

int agent_random(struct agent *a, uint8_t out[AGENT_RANDOM_SIZE], struct err *e)
{
    struct agent_frame reply = {.type = 0};
    int rc = agent_request(a, AGENT_RANDOM, NULL, AGENT_REQUEST_MS, &reply, e);
    if (rc < 0)
        return rc;
    if (reply.len != AGENT_RANDOM_SIZE)
        return agent_link_refuse(a, &reply, e);
    memcpy(out, reply.payload, AGENT_RANDOM_SIZE);
    return 0;
}

/* One piece, of at most AGENT_CHUNK_MAX bytes. */
static int echo_piece(struct agent *a, struct buf *piece, struct err *e)
{
    struct agent_frame reply = {.type = 0};
    int rc = agent_request(a, AGENT_ECHO, piece, AGENT_REQUEST_MS, &reply, e);
    if (rc < 0)
        return rc;
    if (reply.len != piece->len || memcmp(reply.payload, piece->data, piece->len) != 0)
        return err_set(e, ERR_CORRUPT, "%zu bytes came back from the guest as other bytes",
                       piece->len);
    return 0;
}

int agent_echo(struct agent *a, size_t size, struct err *e)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(AGENT_CHUNK_MAX);
    if (!bytes)
        return err_nomem(e, "echo");
    int rc = 0;
    for (size_t done = 0; rc == 0 && done < size;) {
        AUTO_BUF struct buf piece;
        buf_init(&piece, AGENT_CHUNK_MAX);
        size_t len = size - done < AGENT_CHUNK_MAX ? size - done : AGENT_CHUNK_MAX;
        if (getrandom(bytes, len, 0) != (ssize_t)len)
            return err_sys(e, "random bytes to send to the guest");
        rc = buf_add(&piece, bytes, len, e);
        if (rc == 0)
            rc = echo_piece(a, &piece, e);
        done += len;
    }
    return rc;
}
