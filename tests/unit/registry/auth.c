/* SPDX-License-Identifier: MIT */
/* What registries send in headers: challenges, Retry-After, ranges; and which hosts are plain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "registry/internal.h"

static void check(const char *name, const char *got, const char *wanted)
{
    if ((got == NULL) != (wanted == NULL) || (got && strcmp(got, wanted) != 0))
        fail_msg("%s: \"%s\", not \"%s\"", name, got ? got : "(none)", wanted ? wanted : "(none)");
}

static void test_challenges(void **state UNUSED)
{
    static const struct {
        const char *header;
        bool bearer;
        bool basic;
        const char *realm;
        const char *service;
        const char *scope;
    } cases[] = {
        {"Bearer realm=\"https://auth/token\",service=\"reg\",scope=\"repository:a/b:pull,push\"",
         true, false, "https://auth/token", "reg", "repository:a/b:pull,push"},
        {"Basic realm=\"r\", Bearer realm=\"https://auth/token?x=1\",service=\"s\","
         "scope=\"repository:a/b:pull,push\",error=\"invalid_token\"",
         true, true, "https://auth/token?x=1", "s", "repository:a/b:pull,push"},
        {"bearer Realm=https://auth/t , service = s", true, false, "https://auth/t", "s", NULL},
        {"Bearer realm=\"https://a/\\\"q\\\"\",future=\"x,y\", Basic realm=\"z\"", true, true,
         "https://a/\"q\"", NULL, NULL},
        {"Negotiate YWJjZA==, Bearer realm=\"https://a\"", true, false, "https://a", NULL, NULL},
        {"Negotiate, Basic", false, true, NULL, NULL, NULL},
        {"Bearer realm=\"https://a/t?x=1#f\"", true, false, "https://a/t?x=1", NULL, NULL},
        {"Bearer service=\"s\"", false, false, NULL, "s", NULL},
        {"Bearer realm=\"\"", false, false, "", NULL, NULL},
        {"Bearer realm=\"https://first\", Bearer realm=\"https://second\"", true, false,
         "https://first", NULL, NULL},
        {"Digest realm=\"x\", nonce=\"y\"", false, false, NULL, NULL, NULL},
        {"", false, false, NULL, NULL, NULL},
        {", ,", false, false, NULL, NULL, NULL},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct challenge c;
        struct err e = ERR_INIT;

        if (challenge_parse(&c, cases[i].header, &e) < 0)
            fail_msg("%s: %s", cases[i].header, e.text);
        assert_int_equal(c.bearer, cases[i].bearer);
        assert_int_equal(c.basic, cases[i].basic);
        check("realm", c.realm, cases[i].realm);
        check("service", c.service, cases[i].service);
        check("scope", c.scope, cases[i].scope);
        challenge_fini(&c);
    }
}

static void test_bad_challenges(void **state UNUSED)
{
    static const char *const cases[] = {"Bearer realm=\"https://a", "\"", "Bearer @",
                                        "Bearer a=\"\\"};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct challenge c;
        struct err e = ERR_INIT;

        if (challenge_parse(&c, cases[i], &e) == 0)
            fail_msg("\"%s\" was accepted", cases[i]);
        assert_int_equal(e.class, ERR_CORRUPT);
    }
}

static void test_retry_after(void **state UNUSED)
{
    /* Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110 */
    enum { NOW = 784111777 };
    static const struct {
        const char *text;
        int64_t ms;
    } cases[] = {
        {"0", 0},
        {"3", 3000},
        {"99999999999999999999", -1},
        {"999999999", 604800000},
        {"Sun, 06 Nov 1994 08:49:47 GMT", 10000},
        {"Sun, 06 Nov 1994 08:49:07 GMT", 0},
        {"-1", -1},
        {"3s", -1},
        {"", -1},
        {"tomorrow", -1},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int64_t ms = http_parse_retry_after(cases[i].text, NOW);
        if (ms != cases[i].ms)
            fail_msg("\"%s\": %lld", cases[i].text, (long long)ms);
    }
}

static void feed(struct http_response *r, const char *line)
{
    struct err e = ERR_INIT;

    assert_int_equal(http_response_line(r, line, strlen(line), &e), 0);
}

static void test_header_lines(void **state UNUSED)
{
    struct http_response r;

    http_response_init(&r);
    feed(&r, "HTTP/1.1 100 Continue\r\n");
    feed(&r, "Location: /elsewhere\r\n");
    feed(&r, "HTTP/2 206\r\n");
    feed(&r, "content-type: Application/JSON; charset=utf-8\r\n");
    feed(&r, "WWW-Authenticate: Basic realm=\"a\"\r\n");
    feed(&r, "WWW-Authenticate: Bearer realm=\"b\"\r\n");
    feed(&r, "Content-Length: 12\r\n");
    feed(&r, "Content-Range: bytes 5-16/17\r\n");
    feed(&r, "no colon\r\n");
    feed(&r, "\r\n");
    assert_int_equal(r.status, 206);
    assert_null(r.location);
    assert_string_equal(r.content_type, "application/json");
    assert_string_equal(r.authenticate, "Basic realm=\"a\", Bearer realm=\"b\"");
    assert_true(r.has_length && r.length == 12);
    assert_true(r.has_range && r.range_first == 5 && r.has_range_total && r.range_total == 17);
    http_response_fini(&r);
}

static void test_content_ranges(void **state UNUSED)
{
    static const struct {
        const char *line;
        bool has_range;
        bool has_total;
    } cases[] = {
        {"Content-Range: bytes 0-0/1", true, true},
        {"Content-Range: bytes 4-9/*", true, false},
        {"Content-Range: bytes */17", false, false},
        {"Content-Range: bytes 9-4/17", false, false},
        {"Content-Range: bytes 4-17/17", false, false},
        {"Content-Range: bytes 4-/17", false, false},
        {"Content-Range: bytes 4-9/17x", false, false},
        {"Content-Range: bytes 99999999999999999999-9/17", false, false},
        {"Content-Range: items 0-0/1", false, false},
        {"Content-Range: bytes 4-9", false, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_response r;

        http_response_init(&r);
        feed(&r, cases[i].line);
        if (r.has_range != cases[i].has_range || r.has_range_total != cases[i].has_total)
            fail_msg("%s", cases[i].line);
        http_response_fini(&r);
    }
}

static void test_plain_hosts(void **state UNUSED)
{
    static const char *const listed[] = {"reg.lan", "other.lan:5000", NULL};
    static const struct {
        const char *host;
        bool plain;
    } cases[] = {
        {"localhost", true},
        {"localhost:5000", true},
        {"127.0.0.1", true},
        {"127.8.9.1:80", true},
        {"[::1]:5000", true},
        {"[::2]:5000", false},
        {"reg.lan", true},
        {"reg.lan:5000", true},
        {"REG.lan", true},
        {"other.lan:5000", true},
        {"other.lan", false},
        {"other.lan:5001", false},
        {"docker.io", false},
        {"10.0.0.1", false},
        {"127.0.0.1.evil.com", false},
        {"localhost.evil.com", false},
        {"x.reg.lan", false},
        {"128.0.0.1", false},
        {"[::1", false},
        {"", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (http_plain_allowed(cases[i].host, listed) != cases[i].plain)
            fail_msg("%s", cases[i].host);
    }
}

static void test_printable_url(void **state UNUSED)
{
    AUTO_FREE char *url = http_printable_url("https://me:pw@host:1/a?X-Signature=s#f");

    assert_string_equal(url, "https://host:1/a");
}

static void test_redirect_targets(void **state UNUSED)
{
    static const char base[] = "https://reg.io/v2/a/blobs/x?q=1";
    static const struct {
        const char *base;
        const char *location;
        const char *url; /* NULL: refused */
        bool same_origin;
    } cases[] = {
        {base, "/other", "https://reg.io/other", true},
        {base, "y?z", "https://reg.io/v2/a/blobs/y?z", true},
        {base, "https://REG.io:443/y", "https://REG.io:443/y", true},
        {base, "//cdn.io/y", "https://cdn.io/y", false},
        {base, "https://cdn.reg.io/y", "https://cdn.reg.io/y", false},
        {base, "https://reg.io:444/y", "https://reg.io:444/y", false},
        {base, "http://reg.io/y", NULL, false},
        {base, "http://127.0.0.1/y", NULL, false},
        {base, "file:///etc/passwd", NULL, false},
        {base, "gopher://reg.io/", NULL, false},
        {"http://127.0.0.1:5000/x", "https://127.0.0.1:5000/y", "https://127.0.0.1:5000/y", false},
        {"http://127.0.0.1:5000/x", "http://127.0.0.1:5000/y", "http://127.0.0.1:5000/y", true},
        {"http://127.0.0.1:5000/x", "http://127.0.0.1:5001/y", "http://127.0.0.1:5001/y", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *url = NULL;
        bool same = false;
        struct err e = ERR_INIT;
        int rc = http_redirect(&url, &same, cases[i].base, cases[i].location, &e);

        check(cases[i].location, url, cases[i].url);
        assert_int_equal(same, cases[i].same_origin);
        assert_int_equal(rc, cases[i].url ? 0 : -ERR_UNSUPPORTED);
    }
}

static void test_rate_fields(void **state UNUSED)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t value;
    } rows[] = {
        {"76;w=21600", true, 76}, {"100", true, 100}, {"100, 100;w=60", true, 100},
        {"0;w=1", true, 0},       {"", false, 0},     {"many", false, 0},
        {"-1", false, 0},         {"7x", false, 0},   {"99999999999999999999", false, 0},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint64_t value = 0;
        if (http_parse_rate(rows[i].text, &value) != rows[i].good || value != rows[i].value)
            fail_msg("%s: %llu", rows[i].text, (unsigned long long)value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_challenges),     cmocka_unit_test(test_bad_challenges),
        cmocka_unit_test(test_retry_after),    cmocka_unit_test(test_header_lines),
        cmocka_unit_test(test_content_ranges), cmocka_unit_test(test_plain_hosts),
        cmocka_unit_test(test_printable_url),  cmocka_unit_test(test_redirect_targets),
        cmocka_unit_test(test_rate_fields),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
