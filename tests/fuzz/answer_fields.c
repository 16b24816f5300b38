/* SPDX-License-Identifier: MIT */
/* Fields of answers that are read on their own, and addresses of mirrors. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "registry/internal.h"

enum { NOW = 1700000000, WEEK_MS = 7 * 24 * 3600 * 1000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = mem_strndup((const char *)data, size);
    struct http_response r;
    struct err e = ERR_INIT;
    uint64_t rate = 0;
    PROMISE(text);

    int64_t wait_ms = http_parse_retry_after(text, NOW);
    PROMISE(wait_ms >= -1 && wait_ms <= WEEK_MS);
    if (http_parse_rate(text, &rate))
        PROMISE(text[0] >= '0' && text[0] <= '9');
    http_response_init(&r);
    if (http_parse_content_range(&r, text))
        PROMISE(r.has_range && r.range_first <= r.range_last &&
                (!r.has_range_total || r.range_last < r.range_total));
    else
        PROMISE(!r.has_range && !r.has_range_total);
    if (http_parse_taken(&r, text))
        PROMISE(r.has_taken && r.taken != 1);
    else
        PROMISE(!r.has_taken);
    int rc = registry_mirror_check(text, &e);
    PROMISE_ERROR(rc, &e);
    if (rc == 0)
        PROMISE(!strchr(text, '@') && strstr(text, "://"));
    return 0;
}
