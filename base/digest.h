/* SPDX-License-Identifier: MIT */
/*
 * Content digests as the OCI image spec writes them ("sha256:<64 hex>", descriptor.md, section
 * Digests). sha256 names everything of our own; sha512 is accepted from images.
 */
#ifndef TB2_BASE_DIGEST_H
#define TB2_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum digest_algorithm { DIGEST_SHA256 = 1, DIGEST_SHA512 = 2 };

enum {
    DIGEST_SHA256_LEN = 32,
    DIGEST_MAX_LEN = 64,
    DIGEST_TEXT_MAX = 8 + 2 * DIGEST_MAX_LEN + 1 /* "sha512:" + hex + NUL */
};

struct digest {
    enum digest_algorithm algorithm;
    uint8_t bytes[DIGEST_MAX_LEN]; /* unused tail is zero, so digests compare with memcmp */
};

/* Bytes of a digest of this algorithm. */
size_t digest_len(enum digest_algorithm algorithm);

/* Parses "algorithm:hex" (lower-case hex only). ERR_UNSUPPORTED for an unknown algorithm,
 * ERR_CORRUPT for a malformed one. */
int digest_parse(struct digest *out, const char *text, struct err *e) MUST_USE;

/* Prints "algorithm:hex" into `text` and returns `text`. */
const char *digest_print(const struct digest *d, char text[DIGEST_TEXT_MAX]);

/* Prints only the hex digits into `text` and returns `text`. */
const char *digest_hex(const struct digest *d, char text[DIGEST_TEXT_MAX]);

bool digest_equal(const struct digest *a, const struct digest *b);
int digest_compare(const struct digest *a, const struct digest *b); /* memcmp order */

/* sha256 of bytes in memory. Aborts only if libcrypto has no sha256. */
void digest_bytes(struct digest *out, const void *bytes, size_t len);

/* ERR_DIGEST, with what they hash to, unless the sha256 of the bytes is `wanted`. */
int digest_check(const struct digest *wanted, const void *bytes, size_t len,
                 struct err *e) MUST_USE;

/* Streaming hash; one owner, one thread at a time. */
struct hasher;
int hasher_new(struct hasher **out, enum digest_algorithm algorithm, struct err *e) MUST_USE;
void hasher_add(struct hasher *h, const void *bytes, size_t len);
/* The digest of what was added; the hasher then starts over, empty. */
void hasher_finish(struct hasher *h, struct digest *out);
void hasher_free(struct hasher *h);
DEFINE_AUTO(hasher, hasher_free)
#define AUTO_HASHER CLEANUP(hasher_free_auto_)

#endif
