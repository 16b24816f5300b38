/* SPDX-License-Identifier: MIT */
/* Private to the object stores: places, keys and signatures of S3. */
#ifndef TB2_REGISTRY_OBJECT_INTERNAL_H
#define TB2_REGISTRY_OBJECT_INTERNAL_H

#include "base/digest.h"
#include "registry/object.h"

/* ---- Keys (s3_login.c) ------------------------------------------------------------------ */

/* Whom we are and where; texts are owned. */
struct s3_login {
    char *access_key;
    char *secret_key; /* never printed */
    char *token;      /* of a session; NULL: none */
    char *region;
    char *endpoint; /* NULL: Amazon's */
};
void s3_login_fini(struct s3_login *l);

/* Fills what is still NULL from the environment, then from the profile's files. ERR_DENIED when no
 * keys are found, ERR_INPUT when a file that was named cannot be used. */
int s3_login_find(struct s3_login *l, struct err *e) MUST_USE;

/*
 * Value of a setting in an AWS configuration file: the lines "name = value" after "[section]".
 * *out is free()d by the caller; NULL when it is not there.
 */
int ini_find(char **out, const char *text, const char *section, const char *name,
             struct err *e) MUST_USE;

/* ---- Places (object_url.c) -------------------------------------------------------------- */

enum { OBJECT_NAME_MAX = 512 };

struct object_place {
    char *base; /* URL to which "/NAME" is added */
    char *host; /* of it, as the Host header has it */
    char *path; /* of it: "" or "/bucket/prefix" */
    char *name; /* for people */
    bool s3;
    struct s3_login login; /* of S3 */
};
int object_place_parse(struct object_place *out, const char *url, struct err *e) MUST_USE;
void object_place_fini(struct object_place *p);

/* What a URL's path may hold as it is, without empty, "." and ".." parts. */
bool object_name_is_legal(const char *name);

/* ---- Signatures (s3_sign.c) ------------------------------------------------------------- */

void hmac_sha256(uint8_t out[DIGEST_SHA256_LEN], const void *key, size_t key_len, const void *data,
                 size_t len);

struct s3_request {
    const char *method;
    const char *host; /* as the Host header has it */
    const char *path; /* percent-encoded, from the first '/' on */
    /* Further headers to be signed, "range:bytes=0-9", lower case, sorted, between "host" and
     * "x-amz-content-sha256" in order; NULL-terminated; may be NULL. */
    const char *const *headers;
    struct digest payload;
    int64_t now_seconds;
};

enum { S3_DATE_MAX = 17 }; /* "20130524T000000Z" */
void s3_date(char out[S3_DATE_MAX], int64_t now_seconds);

/* Value of Authorization; free with free(). */
int s3_sign(char **out, const struct s3_login *l, const struct s3_request *r,
            struct err *e) MUST_USE;

#endif
