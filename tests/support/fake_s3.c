/* SPDX-License-Identifier: MIT */
#include "fake_s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct fake_object *fake_s3_find(struct fake_s3 *s, const char *path)
{
    for (size_t i = 0; i < FAKE_S3_OBJECTS; i++) {
        if (s->objects[i].path && strcmp(s->objects[i].path, path) == 0)
            return &s->objects[i];
    }
    return NULL;
}

static void bury(struct fake_s3 *s, char *data)
{
    if (s->dead_count == sizeof(s->dead) / sizeof(s->dead[0]))
        abort();
    s->dead[s->dead_count++] = data;
}

void fake_s3_put(struct fake_s3 *s, const char *path, const void *data, size_t len)
{
    struct fake_object *o = fake_s3_find(s, path);
    for (size_t i = 0; !o && i < FAKE_S3_OBJECTS; i++)
        o = s->objects[i].path ? NULL : &s->objects[i];
    if (!o)
        abort();
    if (o->path)
        bury(s, o->data);
    else
        o->path = mem_strdup(path);
    o->data = mem_zalloc(len + 1);
    if (len > 0)
        memcpy(o->data, data, len);
    o->len = len;
    o->version = ++s->versions;
}

/* Whether the request's conditions hold. */
static bool holds(const struct fake_request *request, const struct fake_object *o)
{
    char wanted[256];
    char etag[32];
    if (fake_header(request, "If-None-Match", wanted, sizeof(wanted)) && o)
        return false;
    if (!fake_header(request, "If-Match", wanted, sizeof(wanted)))
        return true;
    snprintf(etag, sizeof(etag), "\"v%u\"", o ? o->version : 0);
    return o && strcmp(wanted, etag) == 0;
}

static void reply_code(struct fake_reply *reply, int status, const char *body)
{
    reply->status = status;
    reply->body = body;
    reply->body_len = strlen(body);
}

static void carry_out(struct fake_s3 *s, const struct fake_request *request,
                      struct fake_reply *reply)
{
    struct fake_object *o = fake_s3_find(s, request->path);
    bool writes = request->method[0] == 'P' || request->method[0] == 'D';
    if (writes && !holds(request, o)) {
        reply_code(reply, 412, "<Error><Code>PreconditionFailed</Code></Error>");
    } else if (request->method[0] == 'P') {
        s->puts++;
        fake_s3_put(s, request->path, request->body, request->body_len);
        reply->status = 200;
        fake_add_header(reply, "ETag: \"v%u\"", s->versions);
    } else if (!o) {
        reply_code(reply, 404,
                   request->method[0] == 'H' ? "" : "<Error><Code>NoSuchKey</Code></Error>");
    } else if (request->method[0] == 'D') {
        bury(s, o->data);
        free(o->path);
        *o = (struct fake_object){0};
        reply->status = 204;
    } else {
        reply->status = 200;
        fake_add_header(reply, "ETag: \"v%u\"", o->version);
        reply->body = o->data;
        reply->body_len = request->method[0] == 'H' ? 0 : o->len;
    }
}

static void handle(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct fake_s3 *s = ctx;
    s->requests++;
    snprintf(s->last_path, sizeof(s->last_path), "%s", request->path);
    s->last_condition[0] = s->last_token[0] = s->last_authorization[0] = '\0';
    (void)fake_header(request, "Host", s->last_host, sizeof(s->last_host));
    (void)fake_header(request, "Authorization", s->last_authorization,
                      sizeof(s->last_authorization));
    (void)fake_header(request, "X-Amz-Security-Token", s->last_token, sizeof(s->last_token));
    if (!fake_header(request, "If-Match", s->last_condition, sizeof(s->last_condition)))
        (void)fake_header(request, "If-None-Match", s->last_condition, sizeof(s->last_condition));
    bool fault =
        s->faults > 0 && (!s->fault_method || strcmp(s->fault_method, request->method) == 0);
    if (!fault || s->fault_after)
        carry_out(s, request, reply);
    if (!fault)
        return;
    s->faults--;
    *reply = (struct fake_reply){0};
    reply_code(reply, s->fault_status, s->fault_body ? s->fault_body : "");
}

void fake_s3_start(struct fake_s3 *s)
{
    *s = (struct fake_s3){0};
    s->server = fake_http_start(handle, s);
}

void fake_s3_stop(struct fake_s3 *s)
{
    fake_http_stop(s->server);
    for (size_t i = 0; i < FAKE_S3_OBJECTS; i++) {
        free(s->objects[i].path);
        free(s->objects[i].data);
    }
    for (size_t i = 0; i < s->dead_count; i++)
        free(s->dead[i]);
}
