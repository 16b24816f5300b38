/* SPDX-License-Identifier: MIT */
/* Images in archives: the forms of `docker save`, packed layouts, and archives that mean harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "oci/oci.h"
#include "tarball.h"

static char root[] = "/tmp/tb2-archive-XXXXXX";
static char path[64];

static int setup(void **state UNUSED)
{
    snprintf(root, sizeof(root), "/tmp/tb2-archive-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(path, sizeof(path), "%s/a.tar", root);
    return 0;
}

static int teardown(void **state UNUSED)
{
    struct err e = ERR_INIT;
    return file_remove_tree(AT_FDCWD, root, &e);
}

static void write_file(const struct buf *bytes)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    assert_int_equal(file_open(&fd, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666, &e), 0);
    assert_int_equal(file_write_full(fd, bytes->data, bytes->len, &e), 0);
}

static int open_archive(struct oci_archive **out, struct err *e)
{
    AUTO_FD int dir = -1;
    assert_int_equal(file_open_dir(&dir, AT_FDCWD, root, e), 0);
    return oci_archive_open(out, path, dir, NULL, e);
}

/* Resolves PREFIX:FILE + suffix. */
static int resolve(const struct oci_archive *a, struct oci_layout **layout, const char *prefix,
                   const char *suffix, struct oci_descriptor *d, struct err *e)
{
    AUTO_FREE char *name = mem_printf("%s:%s%s", prefix, path, suffix);
    struct oci_ref ref;
    assert_int_equal(oci_ref_parse(&ref, name, e), 0);
    int rc = oci_layout_open_archive(layout, a, ref.transport, e);
    if (rc == 0)
        rc = oci_layout_resolve(*layout, &ref, d, e);
    oci_ref_fini(&ref);
    return rc;
}

static void read_blob(struct oci_layout *layout, const struct oci_descriptor *d, struct buf *out)
{
    struct err e = ERR_INIT;
    struct source from = {0};
    if (oci_layout_blob(layout, d, &from, &e) < 0)
        fail_msg("%s", e.text);
    AUTO_FREE char *data = mem_zalloc((size_t)d->size);
    assert_int_equal(from.size, d->size);
    assert_int_equal(source_read_full(&from, 0, data, (size_t)d->size, &e), 0);
    assert_int_equal(buf_add(out, data, (size_t)d->size, &e), 0);
    source_close(&from);
}

/* ---- A made-up image ---- */

#define LAYER_TEXT "not looked into"

static void add_bytes(struct buf *tar, const char *name, const void *bytes, size_t len)
{
    tar_header(tar, &(struct tar_header){.name = name, .type = '0', .mode = 0644, .size = len});
    tar_content(tar, bytes, len);
}

static void add_text(struct buf *tar, const char *name, const char *text)
{
    add_bytes(tar, name, text, strlen(text));
}

static void add_link(struct buf *tar, const char *name, char type, const char *target)
{
    tar_header(tar, &(struct tar_header){.name = name, .type = type, .link = target});
}

/* A config with as many equal layers as asked for; for free(). */
static char *new_config(size_t layers)
{
    struct digest d;
    char text[DIGEST_TEXT_MAX];
    AUTO_BUF struct buf ids;
    struct err e = ERR_INIT;
    buf_init(&ids, 4096);
    digest_bytes(&d, LAYER_TEXT, strlen(LAYER_TEXT));
    for (size_t i = 0; i < layers; i++)
        assert_int_equal(buf_printf(&ids, &e, "%s\"%s\"", i ? "," : "", digest_print(&d, text)), 0);
    return mem_printf("{\"os\":\"linux\",\"architecture\":\"amd64\",\"rootfs\":{\"type\":"
                      "\"layers\",\"diff_ids\":[%s]}}",
                      buf_text(&ids));
}

static void hex_of(char out[DIGEST_TEXT_MAX], const void *bytes, size_t len)
{
    struct digest d;
    digest_bytes(&d, bytes, len);
    digest_hex(&d, out);
}

/* Reads all that the archive promises of the image. */
static void check_image(struct oci_layout *layout, const struct oci_descriptor *d, size_t layers,
                        const void *layer, size_t layer_len)
{
    struct err e = ERR_INIT;
    struct oci_manifest m = {0};
    struct oci_config c = {0};
    AUTO_BUF struct buf manifest;
    AUTO_BUF struct buf config;
    buf_init(&manifest, LIMIT_MANIFEST);
    buf_init(&config, LIMIT_CONFIG);
    read_blob(layout, d, &manifest);
    struct digest sum;
    digest_bytes(&sum, manifest.data, manifest.len);
    assert_true(digest_equal(&sum, &d->digest));
    assert_int_equal(oci_manifest_parse(&m, manifest.data, manifest.len, &e), 0);
    read_blob(layout, &m.config, &config);
    assert_int_equal(oci_config_parse(&c, config.data, config.len, &e), 0);
    assert_int_equal(oci_image_check(&m, &c, &e), 0);
    assert_int_equal(m.layer_count, layers);
    for (size_t i = 0; i < layers; i++) {
        AUTO_BUF struct buf bytes;
        buf_init(&bytes, 4096);
        read_blob(layout, &m.layers[i], &bytes);
        assert_int_equal(bytes.len, layer_len);
        assert_memory_equal(bytes.data, layer, layer_len);
        digest_bytes(&sum, bytes.data, bytes.len);
        assert_true(digest_equal(&sum, &m.layers[i].digest));
    }
    oci_manifest_fini(&m);
    oci_config_fini(&c);
}

/* ---- Forms ---- */

/* ID/layer.tar, the second a link to the first, as old Docker does for equal layers. */
static void old_form(struct buf *tar, const char *config)
{
    char hex[DIGEST_TEXT_MAX];
    hex_of(hex, config, strlen(config));
    AUTO_FREE char *name = mem_printf("%s.json", hex);
    AUTO_FREE char *list = mem_printf("[{\"Config\":\"%s\",\"RepoTags\":[\"demo/x:1\"],"
                                      "\"Layers\":[\"one/layer.tar\",\"two/layer.tar\"]}]",
                                      name);
    tar_header(tar, &(struct tar_header){.name = "one/", .type = '5', .mode = 0755});
    add_text(tar, "one/VERSION", "1.0");
    add_text(tar, "one/json", "{}");
    add_text(tar, "one/layer.tar", LAYER_TEXT);
    add_link(tar, "two/layer.tar", '2', "../one/layer.tar");
    add_text(tar, name, config);
    add_text(tar, "manifest.json", list);
    add_text(tar, "repositories", "{}");
}

static void hard_links(struct buf *tar, const char *config)
{
    add_text(tar, "./one/layer.tar", LAYER_TEXT);
    add_link(tar, "./two/layer.tar", '1', "./one/layer.tar");
    add_text(tar, "./config", config);
    add_text(tar, "./manifest.json",
             "[{\"Config\":\"config\",\"RepoTags\":null,"
             "\"Layers\":[\"one/layer.tar\",\"two/layer.tar\"]}]");
}

/* DIGEST.tar with ID/layer.tar pointing to it. */
static void new_links(struct buf *tar, const char *config)
{
    add_text(tar, "abc.tar", LAYER_TEXT);
    add_link(tar, "one/layer.tar", '2', "../abc.tar");
    add_link(tar, "two/layer.tar", '2', "./../one/./layer.tar");
    add_text(tar, "config", config);
    add_text(tar, "manifest.json",
             "[{\"Config\":\"config\",\"Layers\":[\"two/layer.tar\",\"abc.tar\"]}]");
}

/* What was appended later counts, as when it is unpacked. */
static void appended(struct buf *tar, const char *config)
{
    add_text(tar, "manifest.json", "[]");
    add_text(tar, "layer", "an older one");
    add_text(tar, "config", config);
    add_text(tar, "layer", LAYER_TEXT);
    add_text(tar, "manifest.json", "[{\"Config\":\"config\",\"Layers\":[\"layer\",\"layer\"]}]");
}

static void long_names(struct buf *tar, const char *config)
{
    AUTO_BUF struct buf records;
    char name[300];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    buf_init(&records, 4096);
    tar_record(&records, "path", name, strlen(name));
    tar_extended(tar, 'x', &records);
    add_text(tar, "short", LAYER_TEXT);
    add_text(tar, "config", config);
    AUTO_FREE char *list =
        mem_printf("[{\"Config\":\"config\",\"Layers\":[\"%s\",\"%s\"]}]", name, name);
    add_text(tar, "manifest.json", list);
}

static void docker_forms(void **state UNUSED)
{
    static const struct {
        const char *name;
        void (*make)(struct buf *tar, const char *config);
        const char *suffix;
    } cases[] = {
        {"old_form", old_form, ""},
        {"by_name", old_form, ":demo/x:1"},
        {"by_full_name", old_form, ":docker.io/demo/x:1"},
        {"by_number", old_form, ":@0"},
        {"hard_links", hard_links, ""},
        {"new_links", new_links, ""},
        {"appended", appended, ""},
        {"long_names", long_names, ""},
    };
    AUTO_FREE char *config = new_config(2);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_OCI_ARCHIVE struct oci_archive *a = NULL;
        AUTO_OCI_LAYOUT struct oci_layout *layout = NULL;
        AUTO_BUF struct buf tar;
        struct oci_descriptor d = {0};
        struct err e = ERR_INIT;
        buf_init(&tar, 1 << 20);
        cases[i].make(&tar, config);
        tar_end(&tar);
        write_file(&tar);
        int rc = open_archive(&a, &e);
        if (rc == 0)
            rc = resolve(a, &layout, "docker-archive", cases[i].suffix, &d, &e);
        if (rc < 0)
            fail_msg("%s: %s", cases[i].name, e.text);
        check_image(layout, &d, 2, LAYER_TEXT, strlen(LAYER_TEXT));
        oci_descriptor_fini(&d);
    }
}

/* blobs/sha256/DIGEST beside an index.json: an image layout as well. Layers may be compressed. */
static void docker_and_layout(void **state UNUSED)
{
    AUTO_FREE char *config = new_config(1);
    AUTO_BUF struct buf tar;
    AUTO_BUF struct buf layer;
    char hex[3][DIGEST_TEXT_MAX];
    buf_init(&tar, 1 << 20);
    buf_init(&layer, 4096);
    gzip_member(&layer, LAYER_TEXT, strlen(LAYER_TEXT));
    hex_of(hex[0], config, strlen(config));
    hex_of(hex[1], layer.data, layer.len);
    AUTO_FREE char *manifest =
        mem_printf("{\"schemaVersion\":2,\"config\":{\"digest\":\"sha256:%s\",\"size\":%zu},"
                   "\"layers\":[{\"digest\":\"sha256:%s\",\"size\":%zu}]}",
                   hex[0], strlen(config), hex[1], layer.len);
    hex_of(hex[2], manifest, strlen(manifest));
    const void *const bytes[3] = {config, layer.data, manifest};
    const size_t sizes[3] = {strlen(config), layer.len, strlen(manifest)};
    for (size_t i = 0; i < 3; i++) {
        AUTO_FREE char *name = mem_printf("blobs/sha256/%s", hex[i]);
        add_bytes(&tar, name, bytes[i], sizes[i]);
    }
    AUTO_FREE char *index = mem_printf(
        "{\"manifests\":[{\"digest\":\"sha256:%s\",\"size\":%zu,\"annotations\":{"
        "\"org.opencontainers.image.ref.name\":\"1\",\"io.containerd.image.name\":\"x\"}}]}",
        hex[2], strlen(manifest));
    AUTO_FREE char *list = mem_printf("[{\"Config\":\"blobs/sha256/%s\",\"RepoTags\":[\"x:1\"],"
                                      "\"Layers\":[\"blobs/sha256/%s\"]}]",
                                      hex[0], hex[1]);
    add_text(&tar, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}");
    add_text(&tar, "index.json", index);
    add_text(&tar, "manifest.json", list);
    tar_end(&tar);

    static const char *const references[][2] = {{"docker-archive", ":x:1"},
                                                {"docker-archive", ":@0"},
                                                {"oci-archive", ""},
                                                {"oci-archive", ":1"},
                                                {"oci-archive", ":@0"}};
    for (size_t packed = 0; packed < 3; packed++) {
        AUTO_BUF struct buf file;
        buf_init(&file, 1 << 20);
        struct err e = ERR_INIT;
        if (packed == 0)
            assert_int_equal(buf_add(&file, tar.data, tar.len, &e), 0);
        else if (packed == 1)
            gzip_member(&file, tar.data, tar.len);
        else
            zstd_frame(&file, tar.data, tar.len, 0);
        write_file(&file);
        AUTO_OCI_ARCHIVE struct oci_archive *a = NULL;
        assert_int_equal(open_archive(&a, &e), 0);
        for (size_t i = 0; i < ARRAY_LEN(references); i++) {
            AUTO_OCI_LAYOUT struct oci_layout *layout = NULL;
            struct oci_descriptor d = {0};
            if (resolve(a, &layout, references[i][0], references[i][1], &d, &e) < 0)
                fail_msg("%s%s: %s", references[i][0], references[i][1], e.text);
            check_image(layout, &d, 1, layer.data, layer.len);
            oci_descriptor_fini(&d);
        }
    }
}

/* ---- Which of several ---- */

static void several_images(void **state UNUSED)
{
    static const struct {
        const char *suffix;
        int rc;
        size_t layers;
        const char *says;
    } cases[] = {
        {":@0", 0, 1, ""},
        {":@1", 0, 2, ""},
        {":a:1", 0, 1, ""},
        {":docker.io/library/a:1", 0, 1, ""},
        {":r.io/b", 0, 2, ""},
        {":twice", 0, 2, ""}, /* the later one, as `docker load` has it */
        {"", -ERR_INPUT, 0, "a:1"},
        {":@2", -ERR_NOTFOUND, 0, "@2"},
        {":a:2", -ERR_NOTFOUND, 0, "a:1"},
    };
    AUTO_FREE char *one = new_config(1);
    AUTO_FREE char *two = new_config(2);
    AUTO_BUF struct buf tar;
    AUTO_OCI_ARCHIVE struct oci_archive *a = NULL;
    struct err e = ERR_INIT;
    buf_init(&tar, 1 << 20);
    add_text(&tar, "one", one);
    add_text(&tar, "two", two);
    add_text(&tar, "l", LAYER_TEXT);
    add_text(&tar, "manifest.json",
             "[{\"Config\":\"one\",\"RepoTags\":[\"a:1\",\"twice:latest\"],\"Layers\":[\"l\"]},"
             "{\"Config\":\"two\",\"RepoTags\":[\"r.io/b:latest\",\"twice:latest\"],"
             "\"Layers\":[\"l\",\"l\"]}]");
    tar_end(&tar);
    write_file(&tar);
    assert_int_equal(open_archive(&a, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_OCI_LAYOUT struct oci_layout *layout = NULL;
        struct oci_descriptor d = {0};
        err_clear(&e);
        int rc = resolve(a, &layout, "docker-archive", cases[i].suffix, &d, &e);
        if (rc != cases[i].rc || !strstr(e.text, cases[i].says))
            fail_msg("%s: %d %s", cases[i].suffix, rc, e.text);
        if (rc == 0)
            check_image(layout, &d, cases[i].layers, LAYER_TEXT, strlen(LAYER_TEXT));
        oci_descriptor_fini(&d);
    }
}

/* ---- Refused ---- */

#define LIST(layers) "[{\"Config\":\"config\",\"Layers\":[" layers "]}]"

static void names_lead_out(struct buf *tar)
{
    add_text(tar, "a/../../b", "x");
}

static void absolute_name(struct buf *tar)
{
    add_text(tar, "/etc/passwd", "x");
}

static void link_leads_out(struct buf *tar)
{
    add_link(tar, "l", '2', "../../../etc/passwd");
    add_text(tar, "manifest.json", LIST("\"l\""));
}

static void absolute_link(struct buf *tar)
{
    add_link(tar, "l", '2', "/etc/passwd");
    add_text(tar, "manifest.json", LIST("\"l\""));
}

static void hard_link_leads_out(struct buf *tar)
{
    add_link(tar, "l", '1', "../x");
    add_text(tar, "manifest.json", LIST("\"l\""));
}

static void link_without_target(struct buf *tar)
{
    add_link(tar, "l", '2', "");
    add_text(tar, "manifest.json", LIST("\"l\""));
}

static void links_in_a_ring(struct buf *tar)
{
    add_link(tar, "l", '2', "m");
    add_link(tar, "m", '2', "l");
    add_text(tar, "manifest.json", LIST("\"l\""));
}

static void path_leads_out(struct buf *tar)
{
    add_text(tar, "manifest.json", LIST("\"../../etc/passwd\""));
}

static void layer_is_missing(struct buf *tar)
{
    add_text(tar, "manifest.json", LIST("\"l\""));
}

static void more_layers_than_diff_ids(struct buf *tar)
{
    add_text(tar, "l", LAYER_TEXT);
    add_text(tar, "manifest.json", LIST("\"l\",\"l\""));
}

static void layer_path_is_no_text(struct buf *tar)
{
    add_text(tar, "manifest.json", LIST("7"));
}

static void config_of_another_digest(struct buf *tar)
{
#define SIXTEEN "0123456789abcdef"
    add_text(tar, SIXTEEN SIXTEEN SIXTEEN SIXTEEN ".json", "{}");
    add_text(tar, "manifest.json",
             "[{\"Config\":\"" SIXTEEN SIXTEEN SIXTEEN SIXTEEN ".json\",\"Layers\":[]}]");
}

static void config_is_missing(struct buf *tar)
{
    add_text(tar, "manifest.json", "[{\"Config\":\"none\",\"Layers\":[]}]");
}

static void list_is_no_array(struct buf *tar)
{
    add_text(tar, "manifest.json", "{}");
}

static void list_of_numbers(struct buf *tar)
{
    add_text(tar, "manifest.json", "[1]");
}

static void list_is_empty(struct buf *tar)
{
    add_text(tar, "manifest.json", "[]");
}

static void list_is_no_json(struct buf *tar)
{
    add_text(tar, "manifest.json", "[{");
}

static void before_docker_1_10(struct buf *tar)
{
    add_text(tar, "repositories", "{}");
    add_text(tar, "id/layer.tar", "x");
}

static void no_docker_archive(struct buf *tar)
{
    add_text(tar, "README", "x");
}

static void cut_short(struct buf *tar)
{
    tar_header(tar, &(struct tar_header){.name = "l", .type = '0', .size = (uint64_t)1 << 40});
}

static void huge_list(struct buf *tar)
{
    AUTO_FREE char *spaces = mem_zalloc(LIMIT_MANIFEST + 2);
    memset(spaces, ' ', LIMIT_MANIFEST + 1);
    add_text(tar, "manifest.json", spaces);
}

static void bzip2(struct buf *tar)
{
    struct err e = ERR_INIT;
    assert_int_equal(buf_add_text(tar, "BZh91AY&SY, and so on", &e), 0);
}

static void no_tar(struct buf *tar)
{
    struct err e = ERR_INIT;
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(buf_add_text(tar, "plain words, ", &e), 0);
}

static void old_sparse(struct buf *tar)
{
    static const uint64_t map[] = {0, 512};
    tar_header(tar, &(struct tar_header){.name = "l",
                                         .type = 'S',
                                         .size = 512,
                                         .gnu = true,
                                         .map = map,
                                         .map_count = 1,
                                         .real_size = 1 << 20});
    tar_content(tar, LAYER_TEXT, strlen(LAYER_TEXT));
}

static void damaged_gzip(struct buf *tar)
{
    AUTO_BUF struct buf plain;
    buf_init(&plain, 1 << 20);
    add_text(&plain, "manifest.json", "[]");
    gzip_member(tar, plain.data, plain.len);
    tar->data[tar->len / 2] ^= 0x55;
    tar->len -= 4;
}

static void docker_refusals(void **state UNUSED)
{
    static const struct {
        const char *name;
        void (*make)(struct buf *tar);
        int rc;
        const char *says;
    } cases[] = {
        {"names_lead_out", names_lead_out, -ERR_CORRUPT, "a/../../b"},
        {"absolute_name", absolute_name, -ERR_CORRUPT, "/etc/passwd"},
        {"link_leads_out", link_leads_out, -ERR_CORRUPT, "out of the archive"},
        {"absolute_link", absolute_link, -ERR_CORRUPT, "out of the archive"},
        {"hard_link_leads_out", hard_link_leads_out, -ERR_CORRUPT, "out of the archive"},
        {"link_without_target", link_without_target, -ERR_CORRUPT, "leads nowhere"},
        {"links_in_a_ring", links_in_a_ring, -ERR_CORRUPT, "links to follow"},
        {"path_leads_out", path_leads_out, -ERR_CORRUPT, "out of the archive"},
        {"layer_is_missing", layer_is_missing, -ERR_NOTFOUND, "layer 1 of 1"},
        {"more_layers_than_diff_ids", more_layers_than_diff_ids, -ERR_CORRUPT, "2 layers"},
        {"layer_path_is_no_text", layer_path_is_no_text, -ERR_CORRUPT, "layer 1"},
        {"config_of_another_digest", config_of_another_digest, -ERR_CORRUPT, "digest"},
        {"config_is_missing", config_is_missing, -ERR_NOTFOUND, "none"},
        {"list_is_no_array", list_is_no_array, -ERR_CORRUPT, "array"},
        {"list_of_numbers", list_of_numbers, -ERR_CORRUPT, "image 1"},
        {"list_is_empty", list_is_empty, -ERR_NOTFOUND, "no image"},
        {"list_is_no_json", list_is_no_json, -ERR_CORRUPT, "manifest.json"},
        {"before_docker_1_10", before_docker_1_10, -ERR_UNSUPPORTED, "1.10"},
        {"no_docker_archive", no_docker_archive, -ERR_INPUT, "manifest.json"},
        {"cut_short", cut_short, -ERR_CORRUPT, "cut short"},
        {"huge_list", huge_list, -ERR_LIMIT, "manifest.json"},
        {"bzip2", bzip2, -ERR_UNSUPPORTED, "compressed"},
        {"no_tar", no_tar, -ERR_INPUT, "not a tar"},
        {"old_sparse", old_sparse, -ERR_UNSUPPORTED, "sparse"},
        {"damaged_gzip", damaged_gzip, -ERR_CORRUPT, "unpacking"},
    };
    AUTO_FREE char *config = new_config(1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_OCI_ARCHIVE struct oci_archive *a = NULL;
        AUTO_OCI_LAYOUT struct oci_layout *layout = NULL;
        AUTO_BUF struct buf tar;
        struct oci_descriptor d = {0};
        struct err e = ERR_INIT;
        buf_init(&tar, 8 << 20);
        cases[i].make(&tar);
        add_text(&tar, "config", config);
        tar_end(&tar);
        write_file(&tar);
        int rc = open_archive(&a, &e);
        if (rc == 0)
            rc = resolve(a, &layout, "docker-archive", "", &d, &e);
        if (rc != cases[i].rc || !strstr(e.text, cases[i].says))
            fail_msg("%s: %d %s", cases[i].name, rc, e.text);
    }
}

/* What is no file at all: nothing hangs. */
static void no_files(void **state UNUSED)
{
    struct oci_archive *a = NULL;
    struct err e = ERR_INIT;
    assert_int_equal(open_archive(&a, &e), -ERR_NOTFOUND);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_int_equal(open_archive(&a, &e), -ERR_INPUT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(open_archive(&a, &e), -ERR_INPUT);
    assert_non_null(strstr(e.hint, "oci:"));
}

/* Names that each hold what the other needs are told apart, with a hint. */
static void the_other_kind(void **state UNUSED)
{
    AUTO_BUF struct buf tar;
    AUTO_OCI_ARCHIVE struct oci_archive *a = NULL;
    AUTO_OCI_LAYOUT struct oci_layout *layout = NULL;
    struct oci_descriptor d = {0};
    struct err e = ERR_INIT;
    buf_init(&tar, 1 << 20);
    add_text(&tar, "manifest.json", "[]");
    tar_end(&tar);
    write_file(&tar);
    assert_int_equal(open_archive(&a, &e), 0);
    assert_int_equal(resolve(a, &layout, "oci-archive", "", &d, &e), -ERR_INPUT);
    assert_non_null(strstr(e.hint, "docker-archive:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(docker_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(docker_and_layout, setup, teardown),
        cmocka_unit_test_setup_teardown(several_images, setup, teardown),
        cmocka_unit_test_setup_teardown(docker_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(no_files, setup, teardown),
        cmocka_unit_test_setup_teardown(the_other_kind, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
