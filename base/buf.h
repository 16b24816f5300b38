/* SPDX-License-Identifier: MIT */
/*
 * A growing byte buffer that must be given a ceiling: bytes from outside can never make it grow
 * past that. The ceilings of the whole program are listed here, in one place.
 * A buffer belongs to one thread at a time.
 */
#ifndef TB2_BASE_BUF_H
#define TB2_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Ceilings, in bytes. */
#define LIMIT_MANIFEST ((size_t)4 << 20) /* distribution-spec: registries cap manifests at 4 MiB */
#define LIMIT_CONFIG ((size_t)8 << 20)   /* OCI image config */
#define LIMIT_TOKEN ((size_t)1 << 20)    /* token and error replies of registries */
#define LIMIT_REGISTRIES ((size_t)4 << 20)     /* registries.yaml */
#define LIMIT_API_REPLY ((size_t)16 << 20)     /* template server replies */
#define LIMIT_TASK_TOML ((size_t)4 << 20)      /* task.toml */
#define LIMIT_TASK_MANIFEST ((size_t)64 << 20) /* list of tasks or of images */
#define LIMIT_LOCK_FILE ((size_t)64 << 20)     /* tb2.lock */
#define LIMIT_RECIPE ((size_t)16 << 20)        /* recipe YAML, steps with payloads included */
#define LIMIT_PATH ((size_t)4096)              /* path of an entry in an image: Linux PATH_MAX */
#define LIMIT_ACCOUNT ((uint32_t)INT32_MAX)    /* number of a user or group that a person names */
#define LIMIT_XATTRS ((size_t)64 << 10)     /* extended attributes of one entry, names and values */
#define LIMIT_LAYER_INDEX ((size_t)1 << 30) /* decoded layer index */
#define LIMIT_BLOCK_MAP ((size_t)1 << 30)   /* decoded block map */
#define LIMIT_RECORD ((size_t)16 << 20)     /* template and catalog records */
#define LIMIT_DIFF_LAYER ((uint64_t)256 << 30) /* files of a layer made of a disk's changes */
#define LIMIT_OUTPUT_TAIL ((size_t)64 << 10)   /* output of a step kept for reports */
#define LIMIT_INITRAMFS ((size_t)256 << 20)    /* agent and modules */
#define LIMIT_QMP ((size_t)4 << 20)            /* one QMP message */

struct buf {
    uint8_t *data; /* always followed by a NUL byte that is not counted; NULL while empty */
    size_t len;
    size_t capacity;
    size_t ceiling;
};

/* Starts an empty buffer that never holds more than `ceiling` bytes. */
void buf_init(struct buf *b, size_t ceiling);

/* Frees the bytes; the buffer may be initialised again. */
void buf_fini(struct buf *b);
#define AUTO_BUF CLEANUP(buf_fini)

/* Appends; ERR_LIMIT past the ceiling, ERR_NOMEM when memory is short (contents unchanged). */
int buf_add(struct buf *b, const void *bytes, size_t len, struct err *e) MUST_USE;
int buf_add_text(struct buf *b, const char *text, struct err *e) MUST_USE;
int buf_printf(struct buf *b, struct err *e, const char *fmt, ...) PRINTF_LIKE(3, 4) MUST_USE;

/* Little-endian integers. */
int buf_add_u8(struct buf *b, uint8_t value, struct err *e) MUST_USE;
int buf_add_u32(struct buf *b, uint32_t value, struct err *e) MUST_USE;
int buf_add_u64(struct buf *b, uint64_t value, struct err *e) MUST_USE;

/* Drops the first `len` bytes (at most all of them). */
void buf_drop(struct buf *b, size_t len);

/* The contents as a string that the buffer keeps owning; never NULL. */
const char *buf_text(const struct buf *b);

/* Hands the bytes over (terminated, free with free()); the buffer is empty afterwards. NULL only
 * when it was empty and memory is short. */
char *buf_take(struct buf *b);

/* A bounded reader over bytes in memory, for decoding: every get says whether it could. */
struct cursor {
    const uint8_t *at;
    size_t left;
};

int cursor_u8(struct cursor *c, uint8_t *out, struct err *e) MUST_USE;
int cursor_u32(struct cursor *c, uint32_t *out, struct err *e) MUST_USE;
int cursor_u64(struct cursor *c, uint64_t *out, struct err *e) MUST_USE;

/* Borrows `len` bytes of the input; ERR_CORRUPT when fewer are left. */
int cursor_bytes(struct cursor *c, const uint8_t **out, size_t len, struct err *e) MUST_USE;

#endif
