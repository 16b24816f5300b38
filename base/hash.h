/* SPDX-License-Identifier: MIT */
/*
 * Hashes for tables whose keys come from outside: SipHash-1-3 (Aumasson, Bernstein: SipHash, a fast
 * short-input PRF) under a random key, so that nobody can write keys that collide. Results differ
 * from run to run: nothing that leaves a process may depend on them.
 * Thread-safe.
 */
#ifndef TB2_BASE_HASH_H
#define TB2_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct hash_key {
    uint64_t words[2];
};

/* Draws a key. */
int hash_key_draw(struct hash_key *key, struct err *e) MUST_USE;

/* Of the bytes, after a number that comes with them (0 if there is none). */
uint64_t hash_bytes(const struct hash_key *key, uint64_t number, const void *bytes, size_t len);

#endif
