/* SPDX-License-Identifier: MIT */
#include "template_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/proc.h"
#include "registry/internal.h"

static struct {
    struct proc process;
    int stdin_fd;
    char url[64];
    struct http *http;
} server;

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

int template_server_start(void **state)
{
    (void)state;
    static const char *const argv[] = {"python3", TB2_TEST_DATA "/../support/e2b_server.py", NULL};
    struct err e = ERR_INIT;
    int input[2];
    int output[2];
    char line[32] = "";
    if (pipe2(input, O_CLOEXEC) < 0 || pipe2(output, O_CLOEXEC) < 0)
        return -1;
    int rc =
        proc_start(&server.process, argv,
                   &(struct proc_setup){
                       .stdin_fd = input[0], .stdout_fd = output[1], .stderr_fd = STDERR_FILENO},
                   &e);
    close(input[0]);
    close(output[1]);
    if (rc < 0)
        return -1;
    server.stdin_fd = input[1];
    size_t len = 0;
    while (!strchr(line, '\n') && len < sizeof(line) - 1) {
        ssize_t n = read(output[0], line + len, sizeof(line) - 1 - len);
        if (n <= 0)
            return -1;
        len += (size_t)n;
    }
    close(output[0]);
    snprintf(server.url, sizeof(server.url), "http://127.0.0.1:%d", (int)strtol(line, NULL, 10));
    struct http_options options = {.plain_http_anywhere = true};
    return http_new(&server.http, &options, &e);
}

int template_server_stop(void **state)
{
    (void)state;
    http_free(server.http);
    close(server.stdin_fd);
    proc_kill(&server.process);
    return 0;
}

static struct json *talk(const char *method, const char *path, const char *body)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *url = mem_printf("%s%s", server.url, path);
    AUTO_BUF struct buf reply;
    AUTO_HTTP_RESPONSE struct http_response response;
    buf_init(&reply, LIMIT_API_REPLY);
    http_response_init(&response);
    struct http_request request = {.method = method,
                                   .url = url,
                                   .body = body,
                                   .body_len = body ? strlen(body) : 0,
                                   .reply = &reply};
    must(http_perform(server.http, &request, &response, &e), &e);
    struct json *j = NULL;
    must(json_parse(&j, reply.data, reply.len, path, &e), &e);
    return j;
}

const char *template_server_url(void)
{
    return server.url;
}

void template_server_tell(const char *path, const char *text)
{
    AUTO_JSON struct json *answer = talk("POST", path, text);
    assert_non_null(answer);
}

struct json *template_server_report(void)
{
    return talk("GET", "/_report", NULL);
}
