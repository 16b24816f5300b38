/* SPDX-License-Identifier: MIT */
/* Grafts as layers: what a directory and a tarball become, hostile tarballs, how one fits on what is below. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/common/once.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "bake/image/layer_store.h"
#include "bake/recipe/files.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/blockdev.h"

struct room {
    struct world world;
    struct image_room images;
    char dir[64]; /* of the host */
};

static void room_open(struct room *r)
{
    struct err e = ERR_INIT;
    world_open(&r->world);
    snprintf(r->dir, sizeof(r->dir), "/tmp/tb2-graft-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    r->images = (struct image_room){.store = r->world.store};
    assert_ok(ingest_gate_new(&r->images.ingest, 2, &e));
    assert_ok(once_new(&r->images.once, &e));
}

static void room_close(struct room *r)
{
    struct err e = ERR_INIT;
    ingest_gate_free(r->images.ingest);
    once_free(r->images.once);
    assert_ok(file_remove_tree(AT_FDCWD, r->dir, &e));
    world_close(&r->world);
}

static void run_shell(const struct room *r, const char *text)
{
    AUTO_FREE char *command = mem_printf("cd %s && %s", r->dir, text);
    struct err e = ERR_INIT;
    int status = -1;
    const char *const argv[] = {"sh", "-c", command, NULL};
    assert_ok(proc_run(argv, &(struct proc_io){.timeout_ms = 30000}, &status, &e));
    assert_int_equal(status, 0);
}

static struct recipe_files files(const struct room *r, enum recipe_source source, const char *name,
                                 const char *at)
{
    return (struct recipe_files){.source = source,
                                 .from = mem_strdup(name),
                                 .path = mem_printf("%s/%s", r->dir, name),
                                 .to = mem_strdup(at)};
}

static int add_text(void *self, const void *data, size_t len, struct err *e)
{
    return buf_add(self, data, len, e);
}

/* The layer of the graft over nothing, as text. */
static char *dump(struct room *r, struct recipe_files *f, struct digest *id)
{
    struct err e = ERR_INIT;
    struct recipe_step step = {.kind = RECIPE_GRAFT, .files = f};
    struct recipe recipe = {.steps = &step, .step_count = 1};
    AUTO_FREE struct digest *ids = NULL;
    AUTO_OCI_LAYER struct oci_layer *layer = NULL;
    AUTO_BLOCK_MAP struct block_map *region = NULL;
    AUTO_OCI_TREE struct oci_tree *tree = NULL;
    struct buf text;
    size_t count = 0;
    buf_init(&text, 1 << 20);
    assert_ok(recipe_read_files(&recipe, NULL, &e));
    assert_ok(graft_make(&ids, &count, &r->images, f, &e));
    assert_int_equal(count, 1);
    *id = ids[0];
    assert_ok(layer_load(r->world.store, id, &layer, &region, &e));
    assert_ok(oci_tree_merge(&tree, (struct oci_layer *const[]){layer}, 1, NULL, &e));
    assert_ok(oci_tree_dump(tree, &(struct sink){.write = add_text, .self = &text}, &e));
    return buf_take(&text);
}

static void expect_line(const char *text, const char *part, const char *other)
{
    const char *at = strstr(text, part);
    if (!at)
        fail_msg("no '%s' in:\n%s", part, text);
    size_t len = strcspn(at, "\n");
    AUTO_FREE char *line = mem_strndup(at, len);
    if (!strstr(line, other))
        fail_msg("no '%s' in '%s'", other, line);
}

static void free_files(struct recipe_files *f)
{
    free(f->from);
    free(f->path);
    free(f->to);
}

static void a_directory(void **state)
{
    (void)state;
    struct room r;
    struct digest first, second;
    room_open(&r);
    run_shell(
        &r,
        "mkdir -p d/sub/empty && printf hello > d/file && chmod 640 d/file && "
        "ln d/file d/sub/same && ln -s ../file d/sub/link && head -c 300000 /dev/zero > d/zeros");
    struct recipe_files f = files(&r, RECIPE_SOURCE_DIRECTORY, "d", "/opt//x/");
    AUTO_FREE char *text = dump(&r, &f, &first);
    expect_line(text, "/opt/x/file ", "0640");
    expect_line(text, "/opt/x/sub/empty ", "0755");
    assert_non_null(strstr(text, "/opt/x/sub/link"));
    assert_non_null(strstr(text, "/opt/x/zeros"));
    /* The same again is the same; owner and mode make it another. */
    AUTO_FREE char *again = dump(&r, &f, &second);
    assert_string_equal(text, again);
    assert_true(digest_equal(&first, &second));
    char owner[] = "7:8";
    f.owner = owner;
    f.has_mode = true;
    f.mode = 0600;
    AUTO_FREE char *owned = dump(&r, &f, &second);
    assert_false(digest_equal(&first, &second));
    expect_line(owned, "/opt/x/file ", "0600");
    expect_line(owned, "/opt/x/file ", "7:8");
    expect_line(owned, "/opt/x/sub/empty ", "0700");
    free_files(&f);
    room_close(&r);
}

static void tarballs(void **state)
{
    (void)state;
    struct room r;
    struct err e = ERR_INIT;
    struct digest id;
    room_open(&r);
    run_shell(&r, "mkdir t && printf a > t/a && printf w > t/.wh.gone && "
                  "tar -C t --owner=12 --group=34 --numeric-owner -czf good.tar.gz . && "
                  "printf x > x && tar -P --transform='s,^x,../../x,' -cf climbs.tar x && "
                  "head -c 100000 /dev/urandom > noise.tar && printf 'BZh9' > other.tar.bz2");
    struct recipe_files good = files(&r, RECIPE_SOURCE_TARBALL, "good.tar.gz", "/");
    AUTO_FREE char *text = dump(&r, &good, &id);
    expect_line(text, "/a ", "12:34");
    assert_null(strstr(text, "gone"));
    free_files(&good);
    static const char *const bad[] = {"climbs.tar", "noise.tar", "other.tar.bz2"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct recipe_files f = files(&r, RECIPE_SOURCE_TARBALL, bad[i], "/opt");
        struct recipe_step step = {.kind = RECIPE_GRAFT, .files = &f};
        struct recipe recipe = {.steps = &step, .step_count = 1};
        struct digest *ids = NULL;
        size_t count = 0;
        err_clear(&e);
        assert_ok(recipe_read_files(&recipe, NULL, &e));
        int rc = graft_make(&ids, &count, &r.images, &f, &e);
        if (rc == 0) { /* ".." may be taken out of a path, but leads nowhere */
            AUTO_OCI_LAYER struct oci_layer *layer = NULL;
            AUTO_BLOCK_MAP struct block_map *region = NULL;
            assert_int_equal(i, 0);
            assert_ok(layer_load(r.world.store, &ids[0], &layer, &region, &e));
            for (size_t n = 0; n < oci_layer_count(layer); n++)
                assert_true(strncmp(oci_layer_entry(layer, n)->path, "opt", 3) == 0);
        }
        assert_true(rc == 0 || e.class == ERR_CORRUPT || e.class == ERR_UNSUPPORTED);
        free(ids);
        free_files(&f);
    }
    room_close(&r);
}

/* ---- Fitting ---- */

static struct oci_layer *layer_of(const char *const (*entries)[3], size_t count)
{
    struct err e = ERR_INIT;
    struct oci_layer *l = NULL;
    assert_ok(oci_layer_new(&l, &e));
    for (size_t i = 0; i < count; i++) {
        char kind = entries[i][0][0];
        struct oci_entry entry = {.type = kind == 'd'   ? OCI_DIRECTORY
                                          : kind == 'l' ? OCI_SYMLINK
                                                        : OCI_FILE,
                                  .path = mem_strdup(entries[i][1]),
                                  .target = kind == 'l' ? mem_strdup(entries[i][2]) : NULL,
                                  .mode = 0755};
        assert_ok(oci_layer_add(l, &entry, &e));
    }
    return l;
}

static void fits_on_what_is_below(void **state)
{
    (void)state;
    static const char *const base[][3] = {
        {"d", "usr", ""},        {"d", "usr/bin", ""},    {"l", "bin", "usr/bin"},
        {"f", "usr/bin/sh", ""}, {"l", "loop", "loop"},   {"l", "up", "../usr/../usr/./bin"},
        {"f", "plain", ""},      {"l", "nowhere", "x/y"},
    };
    static const struct {
        const char *const entry[1][3];
        size_t kept;
        enum err_class class;
    } cases[] = {
        {{{"d", "bin", ""}}, 0, ERR_NONE},       {{{"d", "up", ""}}, 0, ERR_NONE},
        {{{"d", "usr", ""}}, 1, ERR_NONE},       {{{"d", "bin/new", ""}}, 1, ERR_NONE},
        {{{"f", "bin/sh", ""}}, 1, ERR_NONE},    {{{"f", "usr/bin", ""}}, 0, ERR_INPUT},
        {{{"d", "plain", ""}}, 0, ERR_INPUT},    {{{"d", "bin/sh", ""}}, 0, ERR_INPUT},
        {{{"d", "loop", ""}}, 0, ERR_INPUT},     {{{"d", "nowhere", ""}}, 0, ERR_INPUT},
        {{{"f", "bin", ""}}, 1, ERR_NONE},       {{{"l", "plain", "usr"}}, 1, ERR_NONE},
        {{{"d", "loop/deep", ""}}, 1, ERR_NONE}, {{{"f", "new/er", ""}}, 1, ERR_NONE},
    };
    struct err e = ERR_INIT;
    AUTO_OCI_LAYER struct oci_layer *lower = layer_of(base, ARRAY_LEN(base));
    AUTO_OCI_TREE struct oci_tree *tree = NULL;
    assert_ok(oci_tree_merge(&tree, (struct oci_layer *const[]){lower}, 1, NULL, &e));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_OCI_LAYER struct oci_layer *graft = layer_of(cases[i].entry, 1);
        err_clear(&e);
        int rc = graft_fit(graft, tree, &e);
        if ((rc < 0) != (cases[i].class != ERR_NONE) || (rc < 0 && e.class != cases[i].class))
            fail_msg("%s: %d %s", cases[i].entry[0][1], rc, e.text);
        if (rc == 0)
            assert_int_equal(oci_layer_count(graft), cases[i].kept);
    }
}

static void the_head(void **state)
{
    (void)state;
    char numbers[] = "7:8", name[] = "app", lone[] = "7";
    struct recipe_files plain = {.owner = NULL}, numbered = {.owner = numbers};
    struct recipe_files named = {.owner = name}, half = {.owner = lone};
    const struct recipe_step graft = {.kind = RECIPE_GRAFT, .files = &plain};
    struct recipe_step steps[] = {{.kind = RECIPE_ENV}, graft, {.kind = RECIPE_USER}, graft,
                                  {.kind = RECIPE_RUN}, graft};
    steps[3].files = &numbered;
    struct recipe r = {.steps = steps, .step_count = ARRAY_LEN(steps)};
    assert_int_equal(graft_head(&r, false), 4);
    assert_int_equal(graft_head(&r, true), 1);
    char largest[] = "2147483647:2147483647", beyond[] = "2147483648:0"; /* as the agent has it */
    numbered.owner = largest;
    assert_int_equal(graft_head(&r, false), 4);
    numbered.owner = beyond;
    assert_int_equal(graft_head(&r, false), 3);
    steps[3].files = &named;
    assert_int_equal(graft_head(&r, false), 3);
    steps[3].files = &half;
    assert_int_equal(graft_head(&r, false), 3);
    steps[0].kind = RECIPE_WORKDIR;
    assert_int_equal(graft_head(&r, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory),
        cmocka_unit_test(tarballs),
        cmocka_unit_test(fits_on_what_is_below),
        cmocka_unit_test(the_head),
    };
    return cmocka_run_group_tests_name("graft", tests, NULL, NULL);
}
