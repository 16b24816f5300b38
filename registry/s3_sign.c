/* SPDX-License-Identifier: MIT */
/*
 * Signature Version 4 (AWS General Reference, "Signing AWS API requests"), by header.
 *
 * Not libcurl's own (CURLOPT_AWS_SIGV4): the one in Debian 12 leaves headers of ours unsigned that
 * servers want signed, such as the session token of temporary keys.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "registry/object_internal.h"

enum { BLOCK_LEN = 64, SCOPE_MAX = 128 };

void hmac_sha256(uint8_t out[DIGEST_SHA256_LEN], const void *key, size_t key_len, const void *data,
                 size_t len)
{
    uint8_t block[BLOCK_LEN] = {0};
    uint8_t outer[BLOCK_LEN + DIGEST_SHA256_LEN];
    struct digest d;
    struct err ignored = ERR_INIT;
    AUTO_BUF struct buf inner;

    if (key_len > BLOCK_LEN) {
        digest_bytes(&d, key, key_len);
        memcpy(block, d.bytes, DIGEST_SHA256_LEN);
    } else {
        memcpy(block, key, key_len);
    }
    uint8_t pad[BLOCK_LEN];
    for (size_t i = 0; i < BLOCK_LEN; i++) {
        pad[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5c;
    }
    buf_init(&inner, BLOCK_LEN + len);
    memset(out, 0, DIGEST_SHA256_LEN);
    /* Short of memory: a signature that no server takes. */
    if (buf_add(&inner, pad, sizeof(pad), &ignored) == 0 &&
        buf_add(&inner, data, len, &ignored) == 0) {
        digest_bytes(&d, inner.data, inner.len);
        memcpy(outer + BLOCK_LEN, d.bytes, DIGEST_SHA256_LEN);
        digest_bytes(&d, outer, sizeof(outer));
        memcpy(out, d.bytes, DIGEST_SHA256_LEN);
        explicit_bzero(inner.data, inner.len);
    }
    explicit_bzero(block, sizeof(block));
    explicit_bzero(pad, sizeof(pad));
    explicit_bzero(outer, sizeof(outer));
}

void s3_date(char out[S3_DATE_MAX], int64_t now_seconds)
{
    struct tm parts = {0};
    time_t when = (time_t)now_seconds;

    (void)gmtime_r(&when, &parts);
    if (strftime(out, S3_DATE_MAX, "%Y%m%dT%H%M%SZ", &parts) == 0)
        out[0] = '\0';
}

/* The requests's canonical form, and the names of the headers in it. */
static int canonical(struct buf *out, struct buf *names, const struct s3_login *l,
                     const struct s3_request *r, struct err *e)
{
    char date[S3_DATE_MAX];
    char hex[DIGEST_TEXT_MAX];

    s3_date(date, r->now_seconds);
    digest_hex(&r->payload, hex);
    int rc = buf_printf(out, e, "%s\n%s\n\nhost:%s\n", r->method, r->path, r->host);
    if (rc == 0)
        rc = buf_add_text(names, "host", e);
    for (size_t i = 0; rc == 0 && r->headers && r->headers[i]; i++) {
        rc = buf_printf(out, e, "%s\n", r->headers[i]);
        if (rc == 0)
            rc = buf_printf(names, e, ";%.*s", (int)strcspn(r->headers[i], ":"), r->headers[i]);
    }
    if (rc == 0)
        rc = buf_printf(out, e, "x-amz-content-sha256:%s\nx-amz-date:%s\n", hex, date);
    if (rc == 0)
        rc = buf_add_text(names, ";x-amz-content-sha256;x-amz-date", e);
    if (rc == 0 && l->token)
        rc = buf_printf(out, e, "x-amz-security-token:%s\n", l->token);
    if (rc == 0 && l->token)
        rc = buf_add_text(names, ";x-amz-security-token", e);
    return rc < 0 ? rc : buf_printf(out, e, "\n%s\n%s", buf_text(names), hex);
}

/* The key of one day, region and service; `scope` is "day/region/s3/aws4_request". */
static int signing_key(uint8_t key[DIGEST_SHA256_LEN], const struct s3_login *l, const char *day,
                       struct err *e)
{
    AUTO_FREE char *first = mem_printf("AWS4%s", l->secret_key);

    if (!first)
        return err_nomem(e, "signature");
    hmac_sha256(key, first, strlen(first), day, strlen(day));
    hmac_sha256(key, key, DIGEST_SHA256_LEN, l->region, strlen(l->region));
    hmac_sha256(key, key, DIGEST_SHA256_LEN, "s3", strlen("s3"));
    hmac_sha256(key, key, DIGEST_SHA256_LEN, "aws4_request", strlen("aws4_request"));
    explicit_bzero(first, strlen(first));
    return 0;
}

int s3_sign(char **out, const struct s3_login *l, const struct s3_request *r, struct err *e)
{
    AUTO_BUF struct buf text;
    AUTO_BUF struct buf names;
    char date[S3_DATE_MAX];
    char day[9];
    char scope[SCOPE_MAX];
    char hex[DIGEST_TEXT_MAX];
    uint8_t key[DIGEST_SHA256_LEN];
    struct digest sum;

    buf_init(&text, LIMIT_TOKEN);
    buf_init(&names, LIMIT_TOKEN);
    if (canonical(&text, &names, l, r, e) < 0)
        return -(int)e->class;
    digest_bytes(&sum, text.data, text.len);
    s3_date(date, r->now_seconds);
    memcpy(day, date, 8);
    day[8] = '\0';
    snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, l->region);
    AUTO_FREE char *to_sign =
        mem_printf("AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, digest_hex(&sum, hex));
    if (!to_sign)
        return err_nomem(e, "signature");
    if (signing_key(key, l, day, e) < 0)
        return -(int)e->class;
    struct digest signature = {.algorithm = DIGEST_SHA256};
    hmac_sha256(signature.bytes, key, sizeof(key), to_sign, strlen(to_sign));
    explicit_bzero(key, sizeof(key));
    *out = mem_printf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
                      l->access_key, scope, buf_text(&names), digest_hex(&signature, hex));
    return *out ? 0 : err_nomem(e, "signature");
}
