/* SPDX-License-Identifier: MIT */
/* Object stores: places, keys, signatures, conditions, and what goes wrong with servers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "fake_s3.h"
#include "registry/object_internal.h"

#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

/* ---- Signatures ---- */

static void hmac_of_rfc_4231(void **state)
{
    (void)state;
    char long_key[131];
    memset(long_key, 0xaa, sizeof(long_key));
    const struct {
        const char *key;
        size_t key_len;
        const char *data;
        const char *hex;
    } rows[] = {
        {"Jefe", 4, "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {long_key, sizeof(long_key), "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct digest d = {.algorithm = DIGEST_SHA256};
        char hex[DIGEST_TEXT_MAX];
        hmac_sha256(d.bytes, rows[i].key, rows[i].key_len, rows[i].data, strlen(rows[i].data));
        assert_string_equal(digest_hex(&d, hex), rows[i].hex);
    }
}

/* The first example of Amazon's "Signature Calculations for the Authorization Header". */
static void signature_of_the_example(void **state)
{
    (void)state;
    char access[] = "AKIAIOSFODNN7EXAMPLE";
    char secret[] = SECRET;
    char region[] = "us-east-1";
    const char *const headers[] = {"range:bytes=0-9", NULL};
    struct s3_login login = {.access_key = access, .secret_key = secret, .region = region};
    struct s3_request r = {.method = "GET",
                           .host = "examplebucket.s3.amazonaws.com",
                           .path = "/test.txt",
                           .headers = headers,
                           .now_seconds = clock_parse("2013-05-24T00:00:00Z")};
    struct err e = ERR_INIT;
    AUTO_FREE char *text = NULL;
    digest_bytes(&r.payload, NULL, 0);
    assert_int_equal(s3_sign(&text, &login, &r, &e), 0);
    assert_string_equal(
        text, "AWS4-HMAC-SHA256 "
              "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
              "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
              "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

/* ---- Keys and places ---- */

static void clear_environment(void)
{
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
        "AWS_REGION",         "AWS_DEFAULT_REGION",    "AWS_ENDPOINT_URL",
        "AWS_PROFILE",        "AWS_CONFIG_FILE",       "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_ENDPOINT_URL_S3"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    setenv("HOME", "/nonexistent", 1);
}

static void settings_of_a_file(void **state)
{
    (void)state;
    static const char text[] = "# comment\n[default]\naws_access_key_id = one\n"
                               "s3 =\n  addressing_style = path\n\n"
                               "[ profile work ]\r\naws_access_key_id=two\r\nempty =\r\n";
    const struct {
        const char *section, *name, *value;
    } rows[] = {
        {"default", "aws_access_key_id", "one"},
        {"profile work", "aws_access_key_id", "two"},
        {"profile work", "empty", ""},
        {"default", "addressing_style", NULL}, /* belongs to s3 */
        {"other", "aws_access_key_id", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_FREE char *value = NULL;
        assert_int_equal(ini_find(&value, text, rows[i].section, rows[i].name, &e), 0);
        if (rows[i].value)
            assert_string_equal(value, rows[i].value);
        else
            assert_null(value);
    }
}

static void keys_of_profiles(void **state)
{
    (void)state;
    char directory[] = "/tmp/tb2-object-XXXXXX";
    struct err e = ERR_INIT;
    AUTO_FD int dir = -1;
    assert_non_null(mkdtemp(directory));
    assert_int_equal(file_open_dir(&dir, AT_FDCWD, directory, &e), 0);
    static const char credentials[] = "[default]\naws_access_key_id=d\naws_secret_access_key=ds\n"
                                      "[work]\naws_access_key_id=w\naws_secret_access_key=ws\n"
                                      "aws_session_token=wt\n";
    static const char config[] = "[profile work]\nregion=eu-central-1\nendpoint_url=http://h:1\n";
    assert_int_equal(file_put(dir, dir, "credentials", credentials, strlen(credentials), &e), 0);
    assert_int_equal(file_put(dir, dir, "config", config, strlen(config), &e), 0);
    AUTO_FREE char *one = mem_printf("%s/credentials", directory);
    AUTO_FREE char *two = mem_printf("%s/config", directory);
    clear_environment();
    setenv("AWS_SHARED_CREDENTIALS_FILE", one, 1);
    setenv("AWS_CONFIG_FILE", two, 1);
    struct s3_login l = {0};
    assert_int_equal(s3_login_find(&l, &e), 0);
    assert_string_equal(l.access_key, "d");
    assert_string_equal(l.region, "us-east-1");
    assert_null(l.token);
    s3_login_fini(&l);
    setenv("AWS_PROFILE", "work", 1);
    assert_int_equal(s3_login_find(&l, &e), 0);
    assert_string_equal(l.secret_key, "ws");
    assert_string_equal(l.token, "wt");
    assert_string_equal(l.region, "eu-central-1");
    assert_string_equal(l.endpoint, "http://h:1");
    s3_login_fini(&l);
    setenv("AWS_ACCESS_KEY_ID", "e", 1); /* keys of the environment bring no token of a profile */
    setenv("AWS_SECRET_ACCESS_KEY", "es", 1);
    assert_int_equal(s3_login_find(&l, &e), 0);
    assert_string_equal(l.secret_key, "es");
    assert_null(l.token);
    s3_login_fini(&l);
    setenv("AWS_SECRET_ACCESS_KEY", "with\nnewline", 1);
    assert_int_equal(s3_login_find(&l, &e), -ERR_INPUT);
    assert_null(strstr(e.text, "with"));
    s3_login_fini(&l);
    clear_environment();
    setenv("AWS_CONFIG_FILE", "/nonexistent/config", 1);
    assert_int_equal(s3_login_find(&l, &e), -ERR_INPUT);
    s3_login_fini(&l);
    clear_environment();
    assert_int_equal(s3_login_find(&l, &e), -ERR_DENIED);
    s3_login_fini(&l);
    assert_int_equal(file_remove_tree(AT_FDCWD, directory, &e), 0);
}

static void places(void **state)
{
    (void)state;
    const struct {
        const char *url;
        const char *base; /* NULL: refused */
        const char *host;
        const char *name;
    } rows[] = {
        {"https://cache.corp/tb2/", "https://cache.corp/tb2", "cache.corp",
         "https://cache.corp/tb2"},
        {"http://127.0.0.1:80/x", "http://127.0.0.1:80/x", "127.0.0.1", "http://127.0.0.1:80/x"},
        {"s3://bucket", "https://bucket.s3.us-east-1.amazonaws.com",
         "bucket.s3.us-east-1.amazonaws.com", "s3://bucket"},
        {"s3://bucket/a/b/?region=eu-west-1", "https://bucket.s3.eu-west-1.amazonaws.com/a/b",
         "bucket.s3.eu-west-1.amazonaws.com", "s3://bucket/a/b"},
        {"s3://bucket/a?endpoint=http://h:9000", "http://h:9000/bucket/a", "h:9000",
         "s3://bucket/a"},
        {"s3://bucket/a?endpoint=https://h:443&style=virtual", "https://bucket.h:443/a", "bucket.h",
         "s3://bucket/a"},
        {"s3://bucket?style=path", "https://s3.us-east-1.amazonaws.com/bucket",
         "s3.us-east-1.amazonaws.com", "s3://bucket"},
        {"s3://b", NULL, NULL, NULL},
        {"s3://Bucket/x", NULL, NULL, NULL},
        {"s3://bucket/../x", NULL, NULL, NULL},
        {"s3://bucket/a b", NULL, NULL, NULL},
        {"s3://bucket?keys=mine", NULL, NULL, NULL},
        {"s3://bucket?style=other", NULL, NULL, NULL},
        {"s3://bucket?endpoint=ftp://h", NULL, NULL, NULL},
        {"https://me:secret@cache.corp/x", NULL, NULL, NULL},
        {"https://cache.corp/x?y", NULL, NULL, NULL},
        {"ftp://cache.corp/x", NULL, NULL, NULL},
        {"/srv/store", NULL, NULL, NULL},
    };
    clear_environment();
    setenv("AWS_ACCESS_KEY_ID", "key", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct object_place p = {0};
        int rc = object_place_parse(&p, rows[i].url, &e);
        if (rc < 0 && rows[i].base)
            fail_msg("%s: %s", rows[i].url, e.text);
        if (!rows[i].base) {
            if (rc != -ERR_INPUT)
                fail_msg("%s: taken, or another error: %s", rows[i].url, e.text);
            assert_null(strstr(e.text, "secret"));
            continue;
        }
        assert_string_equal(p.base, rows[i].base);
        assert_string_equal(p.host, rows[i].host);
        assert_string_equal(p.name, rows[i].name);
        object_place_fini(&p);
    }
}

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"format", "chunks/ab/abc", "catalog/tb2-x_1.json", "a/..b"};
    static const char *const bad[] = {"",      "/a",  "a/",   "a//b", "../a", "a/../b",
                                      "a/./b", "a b", "a%2f", "a?b",  "a/.."};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_true(object_name_is_legal(good[i]));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(object_name_is_legal(bad[i]));
}

/* ---- Requests ---- */

struct world {
    struct fake_s3 s3;
    struct cancel cancel;
    struct object_store *store;
};

static int open_world(void **state)
{
    struct world *w = mem_zalloc(sizeof(*w));
    struct err e = ERR_INIT;
    assert_int_equal(cancel_init(&w->cancel, &e), 0);
    fake_s3_start(&w->s3);
    clear_environment();
    setenv("AWS_ACCESS_KEY_ID", "key", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_SESSION_TOKEN", "session", 1);
    struct object_options o = {.tries = 4, .retry_wait_ms = 1, .cancel = &w->cancel};
    AUTO_FREE char *url =
        mem_printf("s3://bucket/pre?endpoint=http://127.0.0.1:%u", fake_http_port(w->s3.server));
    assert_int_equal(object_store_open(&w->store, url, &o, &e), 0);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    object_store_free(w->store);
    fake_s3_stop(&w->s3);
    cancel_fini(&w->cancel);
    free(w);
    return 0;
}

static int put(struct world *w, const char *text, enum object_condition condition,
               struct object_version *version, struct err *e)
{
    AUTO_BUF struct buf data;
    buf_init(&data, 1000);
    assert_int_equal(buf_add_text(&data, text, e), 0);
    return object_put(w->store, "claims/x", &data, condition, version, e);
}

static void conditions(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    struct object_version mine = {0};
    struct object_version stale;
    bool found = true;
    assert_int_equal(object_has(w->store, "claims/x", &found, &e), 0);
    assert_false(found);
    assert_int_equal(put(w, "one", OBJECT_ABSENT, &mine, &e), 0);
    assert_string_equal(w->s3.last_condition, "*");
    assert_string_equal(w->s3.last_path, "/bucket/pre/claims/x");
    assert_string_equal(w->s3.last_token, "session");
    assert_non_null(strstr(w->s3.last_authorization, "x-amz-security-token"));
    assert_null(strstr(w->s3.last_authorization, SECRET));
    stale = mine;
    struct object_version ignored;
    assert_int_equal(put(w, "two", OBJECT_ABSENT, &ignored, &e), -ERR_BUSY);
    err_clear(&e);
    assert_int_equal(put(w, "two", OBJECT_SAME, &mine, &e), 0);
    ignored = stale;
    assert_int_equal(put(w, "three", OBJECT_SAME, &ignored, &e), -ERR_BUSY);
    err_clear(&e);
    AUTO_BUF struct buf out;
    struct object_version seen;
    buf_init(&out, 100);
    assert_int_equal(object_get(w->store, "claims/x", 0, &out, &seen, &e), 0);
    assert_string_equal(buf_text(&out), "two");
    assert_string_equal(seen.text, mine.text);
    assert_int_equal(object_delete(w->store, "claims/x", &stale, &e), -ERR_BUSY);
    err_clear(&e);
    assert_int_equal(object_delete(w->store, "claims/x", &mine, &e), 0);
    assert_int_equal(object_delete(w->store, "claims/x", NULL, &e), 0); /* gone is success */
    ignored = mine;
    assert_int_equal(put(w, "four", OBJECT_SAME, &ignored, &e), -ERR_BUSY);
}

static void faults(void **state)
{
    static const struct {
        const char *name;
        unsigned times;
        int status;
        const char *body;
        int result;
        const char *text; /* in the message or the hint */
    } rows[] = {
        {"slow down", 3, 503, "<Error><Code>SlowDown</Code></Error>", 0, NULL},
        {"too many", 2, 429, "", 0, NULL},
        {"conflict", 1, 409, "<Error><Code>ConditionalRequestConflict</Code></Error>", 0, NULL},
        {"internal, for ever", 99, 500, "<Error><Code>InternalError</Code></Error>", -ERR_NET,
         "InternalError"},
        {"clock", 1, 403, "<Error><Code>RequestTimeTooSkewed</Code></Error>", -ERR_DENIED, "clock"},
        {"keys", 1, 403, "<Error><Code>SignatureDoesNotMatch</Code></Error>", -ERR_DENIED,
         "SignatureDoesNotMatch"},
        {"bucket", 1, 404, "<Error><Code>NoSuchBucket</Code></Error>", -ERR_INPUT,
         "no such bucket"},
        {"region", 1, 301, "<Error><Code>PermanentRedirect</Code></Error>", -ERR_INPUT,
         "AWS_REGION"},
        {"region, told otherwise", 1, 400,
         "<Error><Code>AuthorizationHeaderMalformed</Code></Error>", -ERR_INPUT, "AWS_REGION"},
        {"not S3", 1, 501, "<html>", -ERR_UNSUPPORTED, "501"},
        {"code that is none", 1, 400, "<Code>\x1b[31m</Code>", -ERR_UNSUPPORTED, "400"},
    };
    struct world *w = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        w->s3.faults = rows[i].times;
        w->s3.fault_status = rows[i].status;
        w->s3.fault_body = rows[i].body;
        int rc = put(w, "x", OBJECT_ANY, NULL, &e);
        w->s3.faults = 0;
        if (rc != rows[i].result)
            fail_msg("%s: %d, wanted %d: %s", rows[i].name, rc, rows[i].result, e.text);
        if (rows[i].text && !strstr(e.text, rows[i].text) && !strstr(e.hint, rows[i].text))
            fail_msg("%s: '%s' '%s' says no %s", rows[i].name, e.text, e.hint, rows[i].text);
        assert_null(strstr(e.text, SECRET));
        assert_null(strchr(e.text, 0x1b));
        if (rc < 0)
            assert_non_null(strstr(e.text, "s3://bucket/pre"));
    }
    assert_int_equal(object_stats(w->store).retries, 3 + 2 + 1 + 3);
}

static void removal_without_conditions(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    struct object_version version = {0};
    assert_int_equal(put(w, "x", OBJECT_ABSENT, &version, &e), 0);
    w->s3.faults = 1;
    w->s3.fault_method = "DELETE";
    w->s3.fault_status = 501;
    w->s3.fault_body = "<Error><Code>NotImplemented</Code></Error>";
    assert_int_equal(object_delete(w->store, "claims/x", &version, &e), 0);
    assert_null(fake_s3_find(&w->s3, "/bucket/pre/claims/x"));
}

static void deadlines_and_ceilings(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf out;
    buf_init(&out, 4);
    fake_s3_put(&w->s3, "/bucket/pre/big", "12345", 5);
    assert_int_equal(object_get(w->store, "big", 0, &out, NULL, &e), -ERR_LIMIT);
    assert_int_equal(out.len, 0);
    assert_int_equal(object_get(w->store, "big", clock_ms() - 1, &out, NULL, &e), -ERR_TIMEOUT);
    assert_int_equal(object_get(w->store, "gone", 0, &out, NULL, &e), -ERR_NOTFOUND);
    assert_int_equal(object_get(w->store, "../up", 0, &out, NULL, &e), -ERR_INPUT);
    w->s3.faults = 99;
    w->s3.fault_status = 503;
    err_clear(&e);
    assert_int_equal(object_get(w->store, "big", clock_ms() + 5000, &out, NULL, &e), -ERR_NET);
    cancel_set(&w->cancel);
    assert_int_equal(object_get(w->store, "big", 0, &out, NULL, &e), -ERR_CANCELLED);
}

/* What was claimed is given back also by who was told to stop, and for a moment alone. */
static void a_cancelled_one_removes_once(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    struct object_version version = {0};
    assert_int_equal(put(w, "x", OBJECT_ABSENT, &version, &e), 0);
    cancel_set(&w->cancel);
    struct object_version stale = version;
    stale.text[1] ^= 1;
    assert_int_equal(object_delete(w->store, "claims/x", &stale, &e), -ERR_BUSY);
    err_clear(&e);
    w->s3.faults = 1;
    w->s3.fault_status = 503;
    assert_int_equal(object_delete(w->store, "claims/x", &version, &e), -ERR_NET);
    assert_int_equal(w->s3.faults, 0);
    err_clear(&e);
    assert_int_equal(object_delete(w->store, "claims/x", &version, &e), 0);
    assert_null(fake_s3_find(&w->s3, "/bucket/pre/claims/x"));
    assert_int_equal(put(w, "x", OBJECT_ABSENT, &version, &e), -ERR_CANCELLED);
}

static void directory_behind_a_server(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    struct object_options o = {.tries = 2, .retry_wait_ms = 1};
    AUTO_OBJECT_STORE struct object_store *s = NULL;
    AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/dir", fake_http_port(w->s3.server));
    AUTO_BUF struct buf out;
    buf_init(&out, 100);
    assert_int_equal(object_store_open(&s, url, &o, &e), 0);
    assert_false(object_store_is_writable(s));
    fake_s3_put(&w->s3, "/dir/format", "text", 4);
    assert_int_equal(object_get(s, "format", 0, &out, NULL, &e), 0);
    assert_string_equal(buf_text(&out), "text");
    assert_string_equal(w->s3.last_authorization, "");
    assert_int_equal(object_put(s, "x", &out, OBJECT_ANY, NULL, &e), -ERR_UNSUPPORTED);
    assert_int_equal(object_delete(s, "x", NULL, &e), -ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hmac_of_rfc_4231),
        cmocka_unit_test(signature_of_the_example),
        cmocka_unit_test(settings_of_a_file),
        cmocka_unit_test(keys_of_profiles),
        cmocka_unit_test(places),
        cmocka_unit_test(names),
        cmocka_unit_test_setup_teardown(conditions, open_world, close_world),
        cmocka_unit_test_setup_teardown(faults, open_world, close_world),
        cmocka_unit_test_setup_teardown(removal_without_conditions, open_world, close_world),
        cmocka_unit_test_setup_teardown(deadlines_and_ceilings, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_cancelled_one_removes_once, open_world, close_world),
        cmocka_unit_test_setup_teardown(directory_behind_a_server, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
