/* SPDX-License-Identifier: MIT */
/* Block maps as bytes: what decodes is the one encoding of what it decodes to. */
#include <string.h>

#include "blockdev/blockdev.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *map = NULL;
    AUTO_BUF struct buf again;
    buf_init(&again, LIMIT_BLOCK_MAP);
    int rc = block_map_decode(&map, data, size, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return 0;
    PROMISE(block_map_encode(map, &again, &e) == 0);
    PROMISE(again.len == size && memcmp(again.data, data, size) == 0);
    return 0;
}
