/* SPDX-License-Identifier: MIT */
/* What answers say in their headers, line by line, and the challenges of WWW-Authenticate. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "registry/internal.h"

static void read_challenge(const char *header)
{
    struct err e = ERR_INIT;
    struct challenge challenge = {0};
    int rc = challenge_parse(&challenge, header, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(!challenge.bearer || (challenge.realm && *challenge.realm));
    challenge_fini(&challenge);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_HTTP_RESPONSE struct http_response response;
    AUTO_FREE char *text = mem_strndup((const char *)data, size);
    PROMISE(text);
    read_challenge(text);
    http_response_init(&response);
    for (size_t at = 0; at < size;) {
        struct err e = ERR_INIT;
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t len = end ? (size_t)(end - (data + at)) + 1 : size - at;
        PROMISE(http_response_line(&response, (const char *)data + at, len, &e) == 0);
        at += len;
    }
    PROMISE(response.status >= 0 && response.status < 1000);
    PROMISE(response.retry_after_ms >= -1);
    if (response.authenticate)
        read_challenge(response.authenticate);
    return 0;
}
