/* SPDX-License-Identifier: MIT */
/* Pulls from docker-registry, a real OCI distribution server: what is pushed comes back. */
#include "world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/proc.h"

static const char config_format[] = "version: 0.1\n"
                                    "log: {level: error, accesslog: {disabled: true}}\n"
                                    "storage: {filesystem: {rootdirectory: %s/data}}\n"
                                    "http: {addr: 127.0.0.1:%u}\n"
                                    "auth: {htpasswd: {realm: test, path: %s/htpasswd}}\n";

/* User me, password pw: for the server (bcrypt, cheapest cost), for HTTP, for the client. */
static const char htpasswd[] = "me:$2b$04$DywaNMDMDLPawOK1y5.vyey4KIQWuQwa9CK4/kFcoqPTW3ZYwC072\n";
static const char authorization[] = "Basic bWU6cHc=";
static const char login_format[] = "{\"auths\":{\"127.0.0.1:%u\":{\"auth\":\"bWU6cHc=\"}}}";

#define EMPTY_DIGEST "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct service {
    char root[64];
    unsigned port;
    struct proc proc;
    struct http *http;
    struct registry *client;
    uint8_t *blob;
    struct digest blob_digest;
    char *manifest;
    struct digest manifest_digest;
};

/* A port that was free a moment ago. */
static unsigned free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static int request(struct service *s, const char *method, const char *url, const void *body,
                   size_t len, struct http_response *out)
{
    static const char *const headers[] = {
        "Content-Type: application/vnd.docker.distribution.manifest.v2+json", NULL};
    struct http_request r = {.method = method,
                             .url = url,
                             .headers = strstr(url, "/manifests/") ? headers : NULL,
                             .authorization = authorization,
                             .body = body,
                             .body_len = len};
    struct err e = ERR_INIT;

    return http_perform(s->http, &r, out, &e);
}

static bool wait_until_up(struct service *s)
{
    AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/v2/", s->port);
    int64_t deadline = clock_ms() + 20000;

    while (clock_ms() < deadline) {
        struct http_response r;
        if (request(s, "GET", url, NULL, 0, &r) == 0) {
            http_response_fini(&r);
            return true;
        }
        clock_sleep_ms(10);
    }
    return false;
}

static void push_blob(struct service *s, const void *bytes, size_t len, struct digest *digest)
{
    AUTO_FREE char *start = mem_printf("http://127.0.0.1:%u/v2/team/app/blobs/uploads/", s->port);
    char text[DIGEST_TEXT_MAX];
    struct http_response r;

    digest_bytes(digest, bytes, len);
    assert_int_equal(request(s, "POST", start, NULL, 0, &r), 0);
    assert_int_equal(r.status, 202);
    AUTO_FREE char *end = mem_printf("%s&digest=%s", r.location, digest_print(digest, text));
    http_response_fini(&r);
    assert_int_equal(request(s, "PUT", end, bytes, len, &r), 0);
    assert_int_equal(r.status, 201);
    http_response_fini(&r);
}

static void push_image(struct service *s)
{
    static const char config[] = "{\"os\":\"linux\"}";
    AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/v2/team/app/manifests/v1", s->port);
    char layer_text[DIGEST_TEXT_MAX];
    char config_text[DIGEST_TEXT_MAX];
    struct digest config_digest;
    struct http_response r;

    push_blob(s, s->blob, BLOB_SIZE, &s->blob_digest);
    push_blob(s, config, strlen(config), &config_digest);
    s->manifest =
        mem_printf("{\"schemaVersion\":2,"
                   "\"mediaType\":\"application/vnd.docker.distribution.manifest.v2+json\","
                   "\"config\":{\"mediaType\":\"application/vnd.docker.container.image.v1+json\","
                   "\"digest\":\"%s\",\"size\":%zu},\"layers\":[{"
                   "\"mediaType\":\"application/vnd.docker.image.rootfs.diff.tar.gzip\","
                   "\"digest\":\"%s\",\"size\":%d}]}",
                   digest_print(&config_digest, config_text), strlen(config),
                   digest_print(&s->blob_digest, layer_text), BLOB_SIZE);
    digest_bytes(&s->manifest_digest, s->manifest, strlen(s->manifest));
    assert_int_equal(request(s, "PUT", url, s->manifest, strlen(s->manifest), &r), 0);
    assert_int_equal(r.status, 201);
    http_response_fini(&r);
}

static void put(const struct service *s, const char *name, const char *text)
{
    AUTO_FREE char *path = mem_printf("%s/%s", s->root, name);
    struct err e = ERR_INIT;

    assert_int_equal(file_put(AT_FDCWD, AT_FDCWD, path, text, strlen(text), &e), 0);
}

/* Starts the server; true once it answers. */
static bool serve(struct service *s)
{
    AUTO_FREE char *path = mem_printf("%s/config.yml", s->root);
    AUTO_FREE char *config = mem_printf(config_format, s->root, s->port, s->root);
    const char *argv[] = {"docker-registry", "serve", path, NULL};
    struct err e = ERR_INIT;

    put(s, "config.yml", config);
    put(s, "htpasswd", htpasswd);
    return proc_start(&s->proc, argv,
                      &(struct proc_setup){.stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1},
                      &e) == 0 &&
           wait_until_up(s);
}

static int setup(void **state)
{
    static struct service s = {.proc = {.pid = -1}};
    static char login_path[128];
    struct http_options http = {0};
    struct registry_options options = {.config_path = login_path, .tries = TRIES};
    struct err e = ERR_INIT;

    *state = &s;
    snprintf(s.root, sizeof(s.root), "/tmp/tb2-pull-XXXXXX");
    assert_non_null(mkdtemp(s.root));
    s.port = free_port();
    AUTO_FREE char *login = mem_printf(login_format, s.port);
    put(&s, "login.json", login);
    snprintf(login_path, sizeof(login_path), "%s/login.json", s.root);
    assert_int_equal(http_new(&s.http, &http, &e), 0);
    assert_int_equal(registry_new(&s.client, &options, &e), 0);
    s.blob = mem_zalloc(BLOB_SIZE);
    for (size_t i = 0; i < BLOB_SIZE; i++)
        s.blob[i] = (uint8_t)(i * i >> 7);
    if (!serve(&s))
        return -1;
    push_image(&s);
    return 0;
}

static int teardown(void **state)
{
    struct service *s = *state;
    struct err e = ERR_INIT;

    proc_kill(&s->proc);
    registry_free(s->client);
    http_free(s->http);
    free(s->blob);
    free(s->manifest);
    return file_remove_tree(AT_FDCWD, s->root, &e);
}

static struct oci_ref reference(const struct service *s, const char *rest)
{
    AUTO_FREE char *name = mem_printf("127.0.0.1:%u/%s", s->port, rest);
    struct oci_ref ref;
    struct err e = ERR_INIT;

    assert_int_equal(oci_ref_parse(&ref, name, &e), 0);
    return ref;
}

static void test_manifest(void **state)
{
    struct service *s = *state;
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *pinned = mem_printf("team/app@%s", digest_print(&s->manifest_digest, text));
    const char *const names[] = {"team/app:v1", pinned};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct oci_ref ref = reference(s, names[i]);
        struct oci_descriptor d;
        struct digest head;
        enum oci_document_kind kind;
        AUTO_BUF struct buf body;
        struct err e = ERR_INIT;

        assert_int_equal(registry_head(s->client, &ref, &head, &e), 0);
        assert_true(digest_equal(&head, &s->manifest_digest));
        if (registry_manifest(s->client, &ref, &d, &body, &e) < 0)
            fail_msg("%s", e.text);
        assert_string_equal(buf_text(&body), s->manifest);
        assert_true(digest_equal(&d.digest, &s->manifest_digest));
        AUTO_JSON struct json *doc = NULL;
        assert_int_equal(oci_document_parse(&doc, &kind, d.media_type, body.data, body.len, &e), 0);
        assert_int_equal(kind, OCI_MANIFEST);
        oci_descriptor_fini(&d);
        oci_ref_fini(&ref);
    }
}

static void count_bytes(void *ctx, uint64_t bytes)
{
    uint64_t *sum = ctx;

    *sum += bytes;
}

static void test_blob(void **state)
{
    static const size_t parts[] = {0, 1, CUT, BLOB_SIZE - 1, BLOB_SIZE};
    struct service *s = *state;
    struct oci_ref ref = reference(s, "team/app:v1");
    AUTO_FREE uint8_t *data = mem_zalloc(BLOB_SIZE);

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct oci_descriptor d = {.digest = s->blob_digest, .size = BLOB_SIZE};
        struct err e = ERR_INIT;
        AUTO_FD int fd = memfd_create("blob", MFD_CLOEXEC);
        uint64_t sum = 0;

        assert_int_equal(file_pwrite_full(fd, s->blob, parts[i], 0, &e), 0);
        if (registry_blob(s->client, &ref, &d, fd, &(struct registry_progress){count_bytes, &sum},
                          &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(file_pread_full(fd, data, BLOB_SIZE, 0, &e), 0);
        assert_memory_equal(data, s->blob, BLOB_SIZE);
        assert_int_equal(sum, BLOB_SIZE - parts[i]);
    }
    oci_ref_fini(&ref);
}

static void test_unknown(void **state)
{
    static const char *const names[] = {"team/app:nope", "team/nope:v1",
                                        ("team/app@" EMPTY_DIGEST)};
    struct service *s = *state;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct oci_ref ref = reference(s, names[i]);
        struct oci_descriptor d;
        struct digest head;
        AUTO_BUF struct buf body;
        AUTO_FREE char *name = oci_ref_print(&ref);
        AUTO_FREE char *message = mem_printf("image %s: not found in the registry", name);
        struct err e = ERR_INIT;

        assert_int_equal(registry_manifest(s->client, &ref, &d, &body, &e), -ERR_NOTFOUND);
        assert_string_equal(e.text, message);
        assert_int_equal(registry_head(s->client, &ref, &head, &e), -ERR_NOTFOUND);
        oci_ref_fini(&ref);
    }
    struct oci_ref ref = reference(s, "team/app:v1");
    struct oci_descriptor d = {.size = 1};
    struct err e = ERR_INIT;
    AUTO_FD int fd = memfd_create("blob", MFD_CLOEXEC);
    digest_bytes(&d.digest, "x", 1);
    assert_int_equal(registry_blob(s->client, &ref, &d, fd, NULL, &e), -ERR_NOTFOUND);
    oci_ref_fini(&ref);
}

static void test_no_login(void **state)
{
    AUTO_REGISTRY struct registry *client = NULL;
    struct registry_options options = {.config_path = "/nonexistent"};
    struct service *s = *state;
    struct oci_ref ref = reference(s, "team/app:v1");
    struct digest head;
    struct err e = ERR_INIT;

    assert_int_equal(registry_new(&client, &options, &e), 0);
    assert_int_equal(registry_head(client, &ref, &head, &e), -ERR_DENIED);
    assert_non_null(strstr(e.hint, "docker login 127.0.0.1"));
    oci_ref_fini(&ref);
}

/* Whether a program of that name is in PATH. */
static bool installed(const char *name)
{
    const char *path = getenv("PATH");

    while (path && *path) {
        size_t len = strcspn(path, ":");
        AUTO_FREE char *file = mem_printf("%.*s/%s", (int)len, path, name);
        if (access(file, X_OK) == 0)
            return true;
        path += len + (path[len] == ':');
    }
    return false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_blob),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_no_login),
    };

    if (!installed("docker-registry")) {
        fprintf(stderr, "docker-registry is not installed\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
