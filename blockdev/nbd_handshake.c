/* SPDX-License-Identifier: MIT */
/*
 * Fixed newstyle handshake of the NBD protocol, the server's side (proto.md, "Handshake"). There
 * is one export, whose name is empty. Options that are not served (TLS among them) are refused with
 * NBD_REP_ERR_UNSUP, so that a client can go on without. Values are those of proto.md, "Values".
 */
#include "blockdev/blockdev.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

#define MAGIC_PASSWORD UINT64_C(0x4e42444d41474943) /* "NBDMAGIC" */
#define MAGIC_OPTION UINT64_C(0x49484156454f5054)   /* "IHAVEOPT" */
#define MAGIC_OPTION_REPLY UINT64_C(0x0003e889045565a9)

enum { FLAG_FIXED_NEWSTYLE = 1 << 0, FLAG_NO_ZEROES = 1 << 1 }; /* of server and client alike */

enum option {
    OPTION_EXPORT_NAME = 1,
    OPTION_ABORT = 2,
    OPTION_LIST = 3,
    OPTION_INFO = 6,
    OPTION_GO = 7,
    OPTION_STRUCTURED_REPLY = 8,
    OPTION_LIST_META_CONTEXT = 9,
    OPTION_SET_META_CONTEXT = 10,
};

#define REPLY_ACK UINT32_C(1)
#define REPLY_SERVER UINT32_C(2)
#define REPLY_INFO UINT32_C(3)
#define REPLY_META_CONTEXT UINT32_C(4)
#define REPLY_ERROR_UNSUPPORTED UINT32_C(0x80000001)
#define REPLY_ERROR_INVALID UINT32_C(0x80000003)
#define REPLY_ERROR_UNKNOWN UINT32_C(0x80000006)

enum { INFO_EXPORT = 0, INFO_BLOCK_SIZE = 3 };

enum { EXPORT_NAME_ZEROES = 124 };

/* What an option led to. */
enum outcome { CONTINUE, TRANSMISSION, GONE };

/* The data of the option in hand, consumed from the front. */
struct option_data {
    uint32_t option;
    const uint8_t *at;
    size_t left;
};

static bool take16(struct option_data *o, uint16_t *out)
{
    if (o->left < 2)
        return false;
    *out = nbd_get16(o->at);
    o->at += 2;
    o->left -= 2;
    return true;
}

/* A string with its 32-bit length in front. */
static bool take_string(struct option_data *o, const uint8_t **text, size_t *len)
{
    if (o->left < 4 || nbd_get32(o->at) > o->left - 4)
        return false;
    *len = nbd_get32(o->at);
    *text = o->at + 4;
    o->at += 4 + *len;
    o->left -= 4 + *len;
    return true;
}

static enum outcome reply(struct nbd_connection *c, uint32_t option, uint32_t type,
                          const uint8_t *data, size_t len)
{
    uint8_t head[20];
    uint8_t *at = nbd_put64(head, MAGIC_OPTION_REPLY);
    at = nbd_put32(at, option);
    at = nbd_put32(at, type);
    nbd_put32(at, (uint32_t)len);
    return nbd_send(c, head, sizeof(head), data, len) < 0 ? GONE : CONTINUE;
}

static enum outcome answer(struct nbd_connection *c, const struct option_data *o, uint32_t type)
{
    return reply(c, o->option, type, NULL, 0);
}

static enum outcome export_name(struct nbd_connection *c, const struct option_data *o,
                                bool no_zeroes)
{
    if (o->left > 0) /* not our name; this option has no reply to say so */
        return GONE;
    uint8_t export[10 + EXPORT_NAME_ZEROES] = {0};
    nbd_put16(nbd_put64(export, c->device->size), nbd_transmission_flags(c));
    size_t len = no_zeroes ? 10 : sizeof(export);
    return nbd_send(c, export, len, NULL, 0) < 0 ? GONE : TRANSMISSION;
}

static enum outcome list(struct nbd_connection *c, const struct option_data *o)
{
    if (o->left > 0)
        return answer(c, o, REPLY_ERROR_INVALID);
    static const uint8_t empty_name[4];
    enum outcome rc = reply(c, o->option, REPLY_SERVER, empty_name, sizeof(empty_name));
    return rc == CONTINUE ? answer(c, o, REPLY_ACK) : rc;
}

static enum outcome send_export_info(struct nbd_connection *c, const struct option_data *o)
{
    uint8_t info[12];
    uint8_t *at = nbd_put16(info, INFO_EXPORT);
    at = nbd_put64(at, c->device->size);
    nbd_put16(at, nbd_transmission_flags(c));
    return reply(c, o->option, REPLY_INFO, info, sizeof(info));
}

static enum outcome send_block_size_info(struct nbd_connection *c, const struct option_data *o)
{
    uint8_t info[14];
    uint8_t *at = nbd_put16(info, INFO_BLOCK_SIZE);
    at = nbd_put32(at, 1);
    at = nbd_put32(at, BLOCK_SIZE);
    nbd_put32(at, NBD_PAYLOAD_MAX);
    return reply(c, o->option, REPLY_INFO, info, sizeof(info));
}

static enum outcome info_or_go(struct nbd_connection *c, struct option_data *o)
{
    const uint8_t *name;
    size_t name_len;
    uint16_t count;
    bool wants_block_size = false;
    if (!take_string(o, &name, &name_len) || !take16(o, &count) || o->left != (size_t)count * 2)
        return answer(c, o, REPLY_ERROR_INVALID);
    for (uint16_t wanted; take16(o, &wanted);)
        wants_block_size |= wanted == INFO_BLOCK_SIZE;
    if (name_len > 0)
        return answer(c, o, REPLY_ERROR_UNKNOWN);

    enum outcome rc = send_export_info(c, o);
    if (rc == CONTINUE && wants_block_size)
        rc = send_block_size_info(c, o);
    if (rc == CONTINUE)
        rc = answer(c, o, REPLY_ACK);
    return rc == CONTINUE && o->option == OPTION_GO ? TRANSMISSION : rc;
}

static enum outcome structured_reply(struct nbd_connection *c, const struct option_data *o)
{
    if (o->left > 0)
        return answer(c, o, REPLY_ERROR_INVALID);
    c->structured = true;
    return answer(c, o, REPLY_ACK);
}

/* Whether one query asks for the one context there is. Listing also takes the bare namespace
 * (proto.md, "The base: metadata namespace"). */
static bool query_matches(const uint8_t *query, size_t len, bool listing)
{
    static const char whole[] = "base:allocation";
    static const char namespace[] = "base:";
    if (len == sizeof(whole) - 1 && memcmp(query, whole, len) == 0)
        return true;
    return listing && len == sizeof(namespace) - 1 && memcmp(query, namespace, len) == 0;
}

static enum outcome meta_context(struct nbd_connection *c, struct option_data *o)
{
    bool listing = o->option == OPTION_LIST_META_CONTEXT;
    if (!listing)
        c->allocation = false; /* replaced even when this fails */
    const uint8_t *text;
    size_t len;
    if (!c->structured || !take_string(o, &text, &len) || o->left < 4)
        return answer(c, o, REPLY_ERROR_INVALID);
    bool known_export = len == 0;
    uint32_t count = nbd_get32(o->at);
    o->at += 4;
    o->left -= 4;
    bool matched = listing && count == 0;
    for (; count > 0; count--) { /* ends at the latest with the option's data */
        if (!take_string(o, &text, &len))
            return answer(c, o, REPLY_ERROR_INVALID);
        matched |= query_matches(text, len, listing);
    }
    if (o->left > 0)
        return answer(c, o, REPLY_ERROR_INVALID);
    if (!known_export)
        return answer(c, o, REPLY_ERROR_UNKNOWN);
    if (matched) {
        uint8_t context[4 + sizeof("base:allocation") - 1];
        memcpy(nbd_put32(context, listing ? 0 : NBD_CONTEXT_ALLOCATION), "base:allocation",
               sizeof(context) - 4);
        if (reply(c, o->option, REPLY_META_CONTEXT, context, sizeof(context)) != CONTINUE)
            return GONE;
        c->allocation |= !listing;
    }
    return answer(c, o, REPLY_ACK);
}

static enum outcome handle(struct nbd_connection *c, struct option_data *o, bool no_zeroes)
{
    switch (o->option) {
    case OPTION_EXPORT_NAME:
        return export_name(c, o, no_zeroes);
    case OPTION_ABORT:
        (void)answer(c, o, REPLY_ACK); /* the client need not wait for it */
        return GONE;
    case OPTION_LIST:
        return list(c, o);
    case OPTION_INFO:
    case OPTION_GO:
        return info_or_go(c, o);
    case OPTION_STRUCTURED_REPLY:
        return structured_reply(c, o);
    case OPTION_LIST_META_CONTEXT:
    case OPTION_SET_META_CONTEXT:
        return meta_context(c, o);
    default:
        return answer(c, o, REPLY_ERROR_UNSUPPORTED);
    }
}

static enum outcome next_option(struct nbd_connection *c, bool no_zeroes)
{
    uint8_t head[16];
    if (nbd_receive(c, head, sizeof(head)) < 0)
        return GONE;
    uint32_t len = nbd_get32(head + 12);
    if (nbd_get64(head) != MAGIC_OPTION || len > NBD_OPTION_MAX) {
        log_event(LOG_WARN, "blockdev", "NBD client sent a malformed option: disconnected");
        return GONE;
    }
    AUTO_FREE uint8_t *data = mem_zalloc(len);
    if (!data || nbd_receive(c, data, len) < 0)
        return GONE;
    struct option_data o = {.option = nbd_get32(head + 8), .at = data, .left = len};
    return handle(c, &o, no_zeroes);
}

int nbd_handshake(struct nbd_connection *c)
{
    uint8_t hello[18];
    uint8_t *at = nbd_put64(hello, MAGIC_PASSWORD);
    at = nbd_put64(at, MAGIC_OPTION);
    nbd_put16(at, FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    uint8_t client[4];
    if (nbd_send(c, hello, sizeof(hello), NULL, 0) < 0 ||
        nbd_receive(c, client, sizeof(client)) < 0)
        return -1;
    uint32_t flags = nbd_get32(client);
    if (flags & ~(uint32_t)(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)) {
        log_event(LOG_WARN, "blockdev", "NBD client sent unknown flags %#x: disconnected", flags);
        return -1;
    }
    enum outcome rc = CONTINUE;
    for (int i = 0; i < NBD_OPTIONS_MAX && rc == CONTINUE; i++)
        rc = next_option(c, flags & FLAG_NO_ZEROES);
    return rc == TRANSMISSION ? 0 : -1;
}
