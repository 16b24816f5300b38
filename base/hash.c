/* SPDX-License-Identifier: MIT */
#include "base/hash.h"

#include <string.h>
#include <sys/random.h>

int hash_key_draw(struct hash_key *key, struct err *e)
{
    if (getrandom(key->words, sizeof(key->words), 0) != (ssize_t)sizeof(key->words))
        return err_sys(e, "random key");
    return 0;
}

static inline uint64_t rotate(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static inline void take_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
}

uint64_t hash_bytes(const struct hash_key *key, uint64_t number, const void *bytes, size_t len)
{
    const uint64_t *k = key->words;
    uint64_t v[4] = {k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d,
                     k[0] ^ 0x6c7967656e657261, k[1] ^ 0x7465646279746573};
    const uint8_t *at = bytes;
    take_word(v, number);
    take_word(v, len);
    for (size_t left = len; left > 0;) {
        uint64_t word = 0;
        size_t part = left < sizeof(word) ? left : sizeof(word);
        memcpy(&word, at, part);
        take_word(v, word);
        at += part;
        left -= part;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
