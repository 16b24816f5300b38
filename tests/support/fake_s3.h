/* SPDX-License-Identifier: MIT */
/*
 * Objects in memory behind fake_http, with S3's conditions on writes and removals, and faults that
 * come on demand. For error paths; that real servers are understood is for tests/e2e/remote_s3.py.
 */
#ifndef TB2_TESTS_FAKE_S3_H
#define TB2_TESTS_FAKE_S3_H

#include <stdbool.h>
#include <stddef.h>

#include "fake_http.h"

enum { FAKE_S3_OBJECTS = 256 };

struct fake_object {
    char *path; /* as requested; NULL: free */
    char *data;
    size_t len;
    unsigned version;
};

struct fake_s3 {
    struct fake_http *server;
    struct fake_object objects[FAKE_S3_OBJECTS];
    char *dead[4 * FAKE_S3_OBJECTS]; /* old contents, which an answer may still be sent from */
    size_t dead_count;
    unsigned versions;
    /* The next `faults` requests (with `fault_method`, if set) get this answer instead. */
    unsigned faults;
    const char *fault_method;
    int fault_status;
    const char *fault_body;
    bool fault_after; /* ... and are carried out all the same: the answer is lost */
    /* What was seen. */
    unsigned requests;
    unsigned puts;
    char last_path[512];
    char last_host[128];
    char last_authorization[1024];
    char last_condition[256];
    char last_token[128];
};

void fake_s3_start(struct fake_s3 *s);
void fake_s3_stop(struct fake_s3 *s);
/* The object at a path ("/bucket/name"); NULL when there is none. */
struct fake_object *fake_s3_find(struct fake_s3 *s, const char *path);
void fake_s3_put(struct fake_s3 *s, const char *path, const void *data, size_t len);

#endif
