/* SPDX-License-Identifier: MIT */
/* Digests over libcrypto's EVP interface, which picks the CPU's SHA instructions by itself. */
#include "base/digest.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct hasher {
    EVP_MD_CTX *context;
    const EVP_MD *method;
    enum digest_algorithm algorithm;
};

static const struct {
    enum digest_algorithm algorithm;
    const char *prefix;
    size_t len;
} algorithms[] = {
    {DIGEST_SHA256, "sha256:", DIGEST_SHA256_LEN},
    {DIGEST_SHA512, "sha512:", DIGEST_MAX_LEN},
};

size_t digest_len(enum digest_algorithm algorithm)
{
    return algorithm == DIGEST_SHA512 ? DIGEST_MAX_LEN : DIGEST_SHA256_LEN;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

static int digest_parse_hex(struct digest *out, const char *hex, size_t len)
{
    if (strlen(hex) != 2 * len)
        return -1;
    for (size_t i = 0; i < len; i++) {
        int high = hex_value(hex[2 * i]);
        int low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        out->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

int digest_parse(struct digest *out, const char *text, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(algorithms); i++) {
        size_t prefix_len = strlen(algorithms[i].prefix);
        if (strncmp(text, algorithms[i].prefix, prefix_len) != 0)
            continue;
        struct digest d = {.algorithm = algorithms[i].algorithm};
        if (digest_parse_hex(&d, text + prefix_len, algorithms[i].len) < 0)
            return err_set(e, ERR_CORRUPT, "digest '%.160s' is malformed", text);
        *out = d;
        return 0;
    }
    if (strchr(text, ':'))
        return err_set(e, ERR_UNSUPPORTED, "digest '%.160s' has an unknown algorithm", text);
    return err_set(e, ERR_CORRUPT, "digest '%.160s' is malformed", text);
}

const char *digest_hex(const struct digest *d, char text[DIGEST_TEXT_MAX])
{
    static const char digits[] = "0123456789abcdef";
    size_t len = digest_len(d->algorithm);
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[d->bytes[i] >> 4];
        text[2 * i + 1] = digits[d->bytes[i] & 15];
    }
    text[2 * len] = 0;
    return text;
}

const char *digest_print(const struct digest *d, char text[DIGEST_TEXT_MAX])
{
    char hex[DIGEST_TEXT_MAX];
    const char *prefix = d->algorithm == DIGEST_SHA512 ? "sha512:" : "sha256:";
    size_t prefix_len = strlen(prefix);
    digest_hex(d, hex);
    memcpy(text, prefix, prefix_len);
    memcpy(text + prefix_len, hex, strlen(hex) + 1);
    return text;
}

int digest_compare(const struct digest *a, const struct digest *b)
{
    if (a->algorithm != b->algorithm)
        return a->algorithm < b->algorithm ? -1 : 1;
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
    return digest_compare(a, b) == 0;
}

void digest_bytes(struct digest *out, const void *bytes, size_t len)
{
    *out = (struct digest){.algorithm = DIGEST_SHA256};
    if (!EVP_Digest(bytes, len, out->bytes, NULL, EVP_sha256(), NULL))
        abort(); /* no sha256 in libcrypto: nothing here could be named */
}

int digest_check(const struct digest *wanted, const void *bytes, size_t len, struct err *e)
{
    struct digest got;
    digest_bytes(&got, bytes, len);
    if (digest_equal(&got, wanted))
        return 0;
    char text[DIGEST_TEXT_MAX];
    return err_set(e, ERR_DIGEST, "its bytes hash to %s", digest_print(&got, text));
}

int hasher_new(struct hasher **out, enum digest_algorithm algorithm, struct err *e)
{
    AUTO_HASHER struct hasher *h = mem_zalloc(sizeof(*h));
    if (!h)
        return err_nomem(e, "digest");
    h->algorithm = algorithm;
    h->method = algorithm == DIGEST_SHA512 ? EVP_sha512() : EVP_sha256();
    h->context = EVP_MD_CTX_new();
    if (!h->context || !EVP_DigestInit_ex(h->context, h->method, NULL))
        return err_nomem(e, "digest");
    *out = MOVE(h);
    return 0;
}

void hasher_add(struct hasher *h, const void *bytes, size_t len)
{
    if (!EVP_DigestUpdate(h->context, bytes, len))
        abort(); /* cannot happen on an initialised context */
}

void hasher_finish(struct hasher *h, struct digest *out)
{
    *out = (struct digest){.algorithm = h->algorithm};
    if (!EVP_DigestFinal_ex(h->context, out->bytes, NULL) ||
        !EVP_DigestInit_ex(h->context, h->method, NULL))
        abort();
}

void hasher_free(struct hasher *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->context);
    free(h);
}
