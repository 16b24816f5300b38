/* SPDX-License-Identifier: MIT */
/*
 * JSON over HTTP on a unix socket, by the same transport as everything else. Long requests are
 * normal here (a snapshot writes all of a guest's memory before it answers), so silence is only
 * bounded by the request's own limit.
 */
#include "registry/local.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "registry/internal.h"

enum { ANSWER_MAX = 1 << 20 };

struct local_api {
    const char *name;
    char *socket;
    int64_t timeout_ms;
    struct http *http;
};

int local_api_new(struct local_api **out, const struct local_options *o, struct err *e)
{
    struct local_api *a = mem_zalloc(sizeof(*a));
    if (!a || !(a->socket = mem_strdup(o->socket))) {
        local_api_free(a);
        return err_nomem(e, o->name);
    }
    a->name = o->name;
    a->timeout_ms = o->timeout_ms;
    const struct http_options options = {.unix_socket = a->socket,
                                         .connect_timeout_ms = o->timeout_ms,
                                         .stall_timeout_ms = o->timeout_ms,
                                         .cancel = o->cancel};
    int rc = http_new(&a->http, &options, e);
    if (rc < 0) {
        local_api_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

void local_api_free(struct local_api *a)
{
    if (!a)
        return;
    http_free(a->http);
    free(a->socket);
    free(a);
}

/* The program's own words: {"fault_message": TEXT}, else the text as it is. */
static int refuse(const struct http_response *r, const struct buf *text, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    struct err ignored = ERR_INIT;
    const char *words = NULL;
    if (json_parse(&j, text->data, text->len, "answer", &ignored) == 0)
        words = json_as_string(json_member(j, "fault_message"));
    return http_status_error(e, r, words ? words : buf_text(text));
}

static int perform(struct local_api *a, struct http_request *request, struct json **reply,
                   struct err *e)
{
    AUTO_BUF struct buf text;
    AUTO_HTTP_RESPONSE struct http_response response;
    buf_init(&text, ANSWER_MAX);
    http_response_init(&response);
    request->reply = &text;
    int rc = http_perform(a->http, request, &response, e);
    if (rc == 0 && (response.status < 200 || response.status > 299))
        rc = refuse(&response, &text, e);
    if (rc == 0 && reply && text.len > 0)
        rc = json_parse(reply, text.data, text.len, "answer", e);
    return rc;
}

int local_call(struct local_api *a, const char *method, const char *path, struct json *body,
               struct json **reply, struct err *e)
{
    static const char *const headers[] = {"Content-Type: application/json",
                                          "Accept: application/json", NULL};
    AUTO_JSON struct json *held UNUSED = body;
    AUTO_FREE char *text = NULL;
    AUTO_FREE char *url = mem_printf("http://localhost%s", path);
    struct http_request request = {.method = method,
                                   .url = url,
                                   .headers = headers,
                                   .no_redirects = true,
                                   .total_timeout_ms = a->timeout_ms};
    if (reply)
        *reply = NULL;
    int rc = url ? 0 : err_nomem(e, a->name);
    if (rc == 0 && held)
        rc = json_print(held, 0, &text, e);
    if (rc == 0 && text) {
        request.body = text;
        request.body_len = strlen(text);
    }
    if (rc == 0)
        rc = perform(a, &request, reply, e);
    return rc < 0 ? err_in(e, "%s, %s %s", a->name, method, path) : 0;
}
