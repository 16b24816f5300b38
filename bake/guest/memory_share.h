/* SPDX-License-Identifier: MIT */
/* Guests' memory in the store, sharing with what is there already. */
#ifndef TB2_BAKE_GUEST_MEMORY_SHARE_H
#define TB2_BAKE_GUEST_MEMORY_SHARE_H

#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"
#include "blockdev/blockdev.h"

/* Something stored whose blocks may stand in the memory too. */
struct memory_peer {
    const struct block_map *map;
    const uint32_t *extents; /* those of the map that are looked at; NULL: all */
    size_t extent_count;
};

enum { MEMORY_PEERS_MAX = 3 };

/* What a memory image is made of; all are borrowed. */
struct memory_parts {
    int fd;                       /* of the file that has the memory */
    const struct block_map *boot; /* memory that this one began as, of the same size; NULL: none */
    struct memory_peer peers[MEMORY_PEERS_MAX]; /* the first that has a block gives it */
    size_t peer_count;
    struct chunk_cache *cache; /* through which all of them are read */
    size_t workers;
    const struct cancel *cancel;
};

/* Blocks of the image by where they came from. */
struct memory_shares {
    uint64_t same;    /* of `boot`, at their own place */
    uint64_t peers;   /* of a peer */
    uint64_t twice;   /* of the image itself, again */
    uint64_t own;     /* stored for this image */
    uint64_t extents; /* of the map */
};

/*
 * Stores the chunks of the memory that nothing else has; *out is its map. Blocks of zeros are holes.
 * Depends on the bytes of memory and peers alone. The caller frees *out; `shares` may be NULL. Threads of its
 * own do the work; calls have nothing in common but store and cache, which are thread-safe.
 */
int memory_put(struct block_map **out, struct store *s, const struct memory_parts *parts,
               struct memory_shares *shares, struct err *e) MUST_USE;

#endif
