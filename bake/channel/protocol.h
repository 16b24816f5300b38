/* SPDX-License-Identifier: MIT */
/*
 * The wire between the host (bake/channel/requests.c) and the guest agent (bake/agent/), described in
 * docs/formats/agent-protocol.md. The only thing that the two programs share; needs libc alone.
 * Integers are little endian.
 */
#ifndef TB2_BAKE_CHANNEL_PROTOCOL_H
#define TB2_BAKE_CHANNEL_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#define AGENT_VERSION 1u
#define AGENT_PORT_NAME "tb2.agent" /* of the virtio-serial port */
#define AGENT_VSOCK_PORT 1024u      /* where the guest listens if its link is vsock */

/* Frame: magic, type, stream, length of the payload, checksum; then the payload. */
#define AGENT_MAGIC 0x41324254u /* "TB2A" */

enum {
    AGENT_HEADER_LEN = 20,
    AGENT_PAYLOAD_MAX = 256 * 1024,
    AGENT_FRAME_MAX = AGENT_HEADER_LEN + AGENT_PAYLOAD_MAX,
    AGENT_DATA_MAX = 32 * 1024,   /* payload of one STDIN, STDOUT, STDERR frame */
    AGENT_CHUNK_MAX = 128 * 1024, /* file bytes in one PUT_DATA or GET_READ reply */
    AGENT_WINDOW = 64 * 1024,     /* stdin bytes in flight without credit */
    AGENT_TAIL_MAX = 64 * 1024,   /* output kept of a detached process */
    AGENT_STRINGS_MAX = 4096,     /* arguments; and, counted apart, environment entries */
    AGENT_STRING_MAX = 131071,    /* Linux MAX_ARG_STRLEN (include/uapi/linux/binfmts.h) - NUL */
    AGENT_NONCE_LEN = 16,
    AGENT_BOOT_ID_LEN = 36,
    AGENT_DETAIL_MAX = 512, /* text in ERROR and HELLO_REPLY */
    AGENT_ENTROPY_LEN = 64,
    AGENT_RANDOM_LEN = 64, /* from each of the two sources that RANDOM asks */
    AGENT_END_LEN = 16,    /* how a process ended */
    AGENT_HELLO_LEN = AGENT_NONCE_LEN + 4,
    AGENT_HELLO_REPLY_MIN = AGENT_NONCE_LEN + 4 + AGENT_BOOT_ID_LEN,
};

enum agent_type {
    /* host to guest */
    AGENT_HELLO = 1,
    AGENT_PING,
    AGENT_EXEC,
    AGENT_STDIN,
    AGENT_PROCESS,
    AGENT_PUT_OPEN,
    AGENT_PUT_DATA,
    AGENT_PUT_COMMIT,
    AGENT_GET_OPEN,
    AGENT_GET_READ,
    AGENT_MAKE_DIRS,
    AGENT_PROBE,
    AGENT_SYNC,
    AGENT_FREEZE,
    AGENT_THAW,
    AGENT_SET_CLOCK,
    AGENT_CLOCK,
    AGENT_RESEED,
    AGENT_NETWORK,
    AGENT_POWER_OFF,
    AGENT_MOUNT,
    AGENT_COPY_OPEN,
    AGENT_COPY,
    AGENT_COPY_CLOSE,
    AGENT_HTTP_PROBE,
    AGENT_RESIZE,
    AGENT_PACKAGES,
    AGENT_RANDOM,
    AGENT_ECHO,
    AGENT_FORGET,
    AGENT_END_ALL,
    /* guest to host */
    AGENT_HELLO_REPLY = 64,
    AGENT_OK,
    AGENT_ERROR,
    AGENT_STARTED,
    AGENT_STDOUT,
    AGENT_STDERR,
    AGENT_CREDIT,
    AGENT_EXIT,
};

/* EXEC flags */
enum {
    AGENT_EXEC_STDIN = 1,
    AGENT_EXEC_DETACH = 2,
    AGENT_EXEC_TERMINAL = 4,
    AGENT_EXEC_ALONE = 8,       /* what it leaves running is killed at its end */
    AGENT_EXEC_NO_NETWORK = 16, /* a network of its own, with a loopback interface */
    AGENT_EXEC_APART = 32       /* mounts, IPC objects and a host name of its own */
};

/* COPY_OPEN: what `to` is. */
enum agent_copy_kind {
    AGENT_COPY_TREE, /* the directory that entries are laid in */
    AGENT_COPY_FILE  /* one file; goes into `to` where that ends in a slash or is a directory */
};

/* Records of a COPY. Owner and group of AGENT_COPY_OWNER: those that COPY_OPEN names. */
enum agent_copy_record {
    AGENT_COPY_DIRECTORY = 1, /* there from now on */
    AGENT_COPY_REGULAR,       /* a file, whose bytes follow */
    AGENT_COPY_DATA,          /* some of them */
    AGENT_COPY_SYMLINK,
    AGENT_COPY_HARD_LINK,
    AGENT_COPY_SETTLE /* a directory gets its mode, owner and time: after all that is in it */
};
#define AGENT_COPY_OWNER 0xffffffffu

/* What FORGET removes: on a tmpfs of the guest. */
#define AGENT_SECRETS_PATH "/dev/tb2/secrets"

/* How a process ended: EXIT and PROCESS replies. */
enum agent_end { AGENT_END_RUNNING, AGENT_END_EXITED, AGENT_END_SIGNALLED };

/* Where a request failed: first field of ERROR; the detail names the thing. */
enum agent_stage {
    AGENT_AT_REQUEST = 1, /* the request is malformed or out of order */
    AGENT_AT_FROZEN,      /* refused while the disk is frozen */
    AGENT_AT_SPAWN,       /* process could not be made */
    AGENT_AT_USER,        /* detail: the user that is not in /etc/passwd */
    AGENT_AT_GROUP,       /* detail: the group that is not in /etc/group */
    AGENT_AT_IDENTITY,    /* setting user and groups */
    AGENT_AT_WORKDIR,     /* detail: the directory */
    AGENT_AT_PROGRAM,     /* detail: the program */
    AGENT_AT_INTERPRETER, /* the program is there; detail: its interpreter, which is not */
    AGENT_AT_FILE,        /* detail: the path */
    AGENT_AT_MACHINE,     /* detail: what was being done to the machine */
};

static inline void agent_put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static inline void agent_put_u64(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static inline uint32_t agent_get_u32(const uint8_t *at)
{
    uint32_t value = 0;
    for (int i = 3; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static inline uint64_t agent_get_u64(const uint8_t *at)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

/*
 * FNV-1a over header fields and payload. It guards against one accident: a frame cut off by the end
 * of a connection and completed by the bytes of the next.
 */
static inline uint32_t agent_checksum(const uint8_t *header, const uint8_t *payload, size_t len)
{
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < 16; i++)
        sum = (sum ^ header[i]) * 16777619u;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ payload[i]) * 16777619u;
    return sum;
}

/* Writes the header of a frame whose payload is already in place. */
static inline void agent_put_header(uint8_t *header, uint32_t type, uint32_t stream,
                                    const uint8_t *payload, size_t len)
{
    agent_put_u32(header, AGENT_MAGIC);
    agent_put_u32(header + 4, type);
    agent_put_u32(header + 8, stream);
    agent_put_u32(header + 12, (uint32_t)len);
    agent_put_u32(header + 16, agent_checksum(header, payload, len));
}

struct agent_frame {
    uint32_t type;
    uint32_t stream;
    const uint8_t *payload;
    size_t len;
};

/*
 * Looks for a whole frame at the start of `at[len]`. Returns its length in bytes, 0 when more
 * bytes are needed, -1 when this is no frame. The payload is borrowed from `at`.
 */
static inline long agent_frame_parse(const uint8_t *at, size_t len, struct agent_frame *out)
{
    if (len < AGENT_HEADER_LEN)
        return 0;
    uint32_t payload_len = agent_get_u32(at + 12);
    if (agent_get_u32(at) != AGENT_MAGIC || payload_len > AGENT_PAYLOAD_MAX)
        return -1;
    if (len - AGENT_HEADER_LEN < payload_len)
        return 0;
    const uint8_t *payload = at + AGENT_HEADER_LEN;
    if (agent_get_u32(at + 16) != agent_checksum(at, payload, payload_len))
        return -1;
    *out = (struct agent_frame){.type = agent_get_u32(at + 4),
                                .stream = agent_get_u32(at + 8),
                                .payload = payload,
                                .len = payload_len};
    return AGENT_HEADER_LEN + (long)payload_len;
}

#endif
