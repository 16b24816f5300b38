/* SPDX-License-Identifier: MIT */
/* What checking a store finds, and what mending it leaves. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/image/layer_store.h"
#include "bake/template.h"
#include "bake/template/kept.h"
#include "bake/template/record.h"
#include "bake/upkeep.h"
#include "base/file.h"
#include "base/mem.h"

static const char alias_a[] = "tb2-a-0000000001";
static const char alias_b[] = "tb2-b-0000000001";

/* Some of everything: two templates that share chunks, three layers, a step, an image's documents, a kept
 * copy. */
static void open_full_world(struct world *w, struct digest layers[3])
{
    struct err e = ERR_INIT;
    world_open(w);
    for (uint64_t i = 0; i < 3; i++)
        layers[i] = put_layer(w->store, 1000 + i, 150000);
    struct digest manifest = put_image(w->store, layers, 3);
    struct digest step = put_step(w->store, "step", 300);
    assert_ok(put_template_of(w->store, alias_a, 100, &manifest, &step, &e));
    assert_ok(put_template(w->store, alias_b, 102, &manifest, &e));
    assert_ok(put_kept(w->store, "mine", 400, &e));
    char path[96];
    put_pushed(w->store, 1, path);
    put_pushed(w->store, 2, path);
}

static struct fsck_report check(struct world *w, bool repair)
{
    struct fsck_report r;
    struct err e = ERR_INIT;
    assert_ok(store_fsck(&r, w->store, &(struct fsck_options){.repair = repair}, &e));
    return r;
}

static void flip(struct world *w, const char *path, uint64_t bit)
{
    uint8_t byte;
    AUTO_FD int fd = openat(store_dir(w->store), path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (uint8_t)(1U << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
}

static bool names(const struct fsck_report *r, const char *path)
{
    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(r->problems[i].path, path) == 0)
            return true;
    }
    return false;
}

/* Flips a bit, checks that its file is named (layers may be named through their region), and flips
 * it back. */
static void expect_found(struct world *w, const char *path, uint64_t bit)
{
    flip(w, path, bit);
    struct fsck_report r = check(w, false);
    if (!names(&r, path) && (strncmp(path, "layers/", 7) != 0 || r.count == 0))
        fail_msg("bit %llu of %s was not found", (unsigned long long)bit, path);
    fsck_report_fini(&r);
    flip(w, path, bit);
}

static void a_sound_store(void **state)
{
    (void)state;
    struct world w;
    struct digest layers[3];
    open_full_world(&w, layers);
    struct fsck_report r = check(&w, true);
    assert_int_equal(r.count + r.left, 0);
    assert_int_equal(r.checked[UPKEEP_LAYER].count, 3);
    assert_int_equal(r.checked[UPKEEP_RECORD].count, 2);
    struct du_report du;
    struct err e = ERR_INIT;
    assert_ok(store_du(&du, w.store, &e));
    struct file_list l;
    list_files(&l, &w);
    uint64_t size = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < l.count; i++)
        size += strcmp(l.paths[i], "format") != 0 ? l.sizes[i] : 0;
    for (size_t i = 0; i < DU_KIND_COUNT; i++)
        sum += du.kinds[i].size;
    assert_int_equal(du.total, size);
    assert_int_equal(sum, size);
    assert_int_equal(du.kinds[DU_LOOSE].count, 0);
    assert_int_equal(du.kinds[DU_STEPS].count, 3);
    assert_int_equal(r.checked[UPKEEP_KEPT].count, 1);
    assert_int_equal(du.kinds[DU_MEMORY].count, 4); /* the rest are of a disk, too */
    file_list_fini(&l);
    fsck_report_fini(&r);
    world_close(&w);
}

/* 100 bits anywhere in the store, by bytes and, so that small files get their share, by files. */
static void random_bits(void **state)
{
    (void)state;
    struct world w;
    struct digest layers[3];
    open_full_world(&w, layers);
    struct file_list l;
    list_files(&l, &w);
    uint64_t random = 20260102;
    uint64_t total = 0;
    for (size_t i = 0; i < l.count; i++)
        total += l.sizes[i];
    for (size_t n = 0; n < 100; n++) {
        size_t file = next_number(&random) % l.count;
        uint64_t at = next_number(&random) % total;
        if (n % 2 == 0) {
            for (file = 0; at >= l.sizes[file]; file++)
                at -= l.sizes[file];
        }
        if (strcmp(l.paths[file], "format") == 0)
            continue; /* store_open says so */
        expect_found(&w, l.paths[file], next_number(&random) % (l.sizes[file] * 8));
    }
    file_list_fini(&l);
    world_close(&w);
}

/* Bits all over what is small and has no digest for a name; every bit at the start of a chunk, where
 * some are that no decoder looks at, and of its end. */
static void put_tag(struct store *s, const char *reference)
{
    struct err e = ERR_INIT;
    AUTO_JSON struct json *j = json_new_object();
    AUTO_FREE char *text = NULL;
    struct digest name;
    char path[80];
    char hex[DIGEST_TEXT_MAX];
    digest_bytes(&name, reference, strlen(reference));
    json_set(j, "reference", json_new_string(reference));
    json_set(j, "digest", json_digest(&name));
    json_set(j, "seen", json_new_string("2026-01-02T03:04:05Z"));
    assert_ok(catalog_seal(j, &e));
    assert_ok(json_print(j, 0, &text, &e));
    snprintf(path, sizeof(path), "refs/%s", digest_hex(&name, hex));
    assert_ok(file_make_dirs(store_dir(s), "refs", &e));
    assert_ok(file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), &e));
}

static void every_bit(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    assert_ok(put_template(w.store, alias_a, 100, NULL, &e));
    put_tag(w.store, "r.example/a:1");
    struct file_list l;
    list_files(&l, &w);
    bool chunk = false;
    for (size_t i = 0; i < l.count; i++) {
        bool pointer = strncmp(l.paths[i], "catalog/", 8) == 0 ||
                       strncmp(l.paths[i], "keys/", 5) == 0 || strncmp(l.paths[i], "refs/", 5) == 0;
        bool first_chunk = !chunk && strncmp(l.paths[i], "chunks/", 7) == 0;
        chunk |= first_chunk;
        for (uint64_t bit = 0; (pointer || first_chunk) && bit < l.sizes[i] * 8; bit++) {
            if (pointer ? bit % 7 == 0 : bit < 64 || bit >= l.sizes[i] * 8 - 128)
                expect_found(&w, l.paths[i], bit);
        }
    }
    assert_true(chunk);
    file_list_fini(&l);
    world_close(&w);
}

static const struct fsck_problem *find(const struct fsck_report *r, enum upkeep_kind kind)
{
    for (size_t i = 0; i < r->count; i++) {
        if (r->problems[i].kind == kind)
            return &r->problems[i];
    }
    fail_msg("no problem with a %s", upkeep_kind_name(kind));
    return NULL;
}

static void chunk_path(const struct digest *d, char path[256])
{
    char hex[DIGEST_TEXT_MAX];
    digest_hex(d, hex);
    snprintf(path, 256, "chunks/%.2s/%s", hex, hex);
}

/* A layer that another version laid out is as good as not there; one that takes its place is there. */
static void a_layer_of_another_version(void **state)
{
    (void)state;
    struct world w;
    char path[96], hex[DIGEST_TEXT_MAX];
    world_open(&w);
    struct digest layer = put_layer(w.store, 5, 100000);
    snprintf(path, sizeof(path), "layers/%s", digest_hex(&layer, hex));
    assert_true(layer_has(w.store, &layer));
    flip(&w, path, 7 * 8); /* the last digit of its version */
    assert_false(layer_has(w.store, &layer));
    struct digest again = put_layer(w.store, 5, 100000);
    assert_true(digest_equal(&again, &layer));
    assert_true(layer_has(w.store, &layer));

    flip(&w, path, 7 * 8);
    struct fsck_report r = check(&w, true);
    assert_true(names(&r, path));
    assert_false(file_exists(store_dir(w.store), path));
    fsck_report_fini(&r);
    world_close(&w);
}

/* What tags stood for: a damaged record is told and removed, and touches nothing. */
static void tag_records(void **state)
{
    (void)state;
    static const char good[] =
        "{\"digest\":\"sha256:0000000000000000000000000000000000000000000000000000000000000001\","
        "\"reference\":\"a.example/app:1\"}";
    static const struct {
        const char *name; /* whose digest the file's name is */
        const char *text;
        size_t problems;
    } rows[] = {
        {"a.example/app:1", good, 0}, {"a.example/app:2", good, 1}, /* about another name */
        {"a.example/app:1", "{}", 1}, {"a.example/app:1", "", 1},   {"a.example/app:1", "[", 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        struct err e = ERR_INIT;
        struct digest d;
        char path[80];
        char hex[DIGEST_TEXT_MAX];
        world_open(&w);
        digest_bytes(&d, rows[i].name, strlen(rows[i].name));
        snprintf(path, sizeof(path), "refs/%s", digest_hex(&d, hex));
        assert_ok(file_make_dirs(store_dir(w.store), "refs", &e));
        assert_ok(file_put(store_tmp_dir(w.store), store_dir(w.store), path, rows[i].text,
                           strlen(rows[i].text), &e));
        struct fsck_report r = check(&w, true);
        assert_int_equal(r.checked[UPKEEP_TAG].count, 1);
        assert_int_equal(r.count, rows[i].problems);
        assert_int_equal(r.left, 0);
        assert_int_equal(file_exists(store_dir(w.store), path), rows[i].problems == 0);
        fsck_report_fini(&r);
        world_close(&w);
    }
}

/* What a bad or missing object touches, and what becomes of it. */
static void what_breaks(void **state)
{
    (void)state;
    enum what { SHARED_CHUNK, MISSING_CHUNK, LAYER_CHUNK, LAYER, KEY, ENTRY, RECORD, BLOB };
    static const struct {
        const char *name;
        enum what what;
        enum upkeep_kind kind;
        size_t affected;
        enum fsck_state state;
        size_t left; /* after repair */
    } rows[] = {
        {"a chunk of both", SHARED_CHUNK, UPKEEP_CHUNK, 2, FSCK_LOST, 1},
        {"memory of one, gone", MISSING_CHUNK, UPKEEP_CHUNK, 1, FSCK_LOST, 1},
        {"a layer's chunk", LAYER_CHUNK, UPKEEP_CHUNK, 1, FSCK_REMOVED, 0},
        {"a layer", LAYER, UPKEEP_LAYER, 1, FSCK_REMOVED, 0},
        {"a key", KEY, UPKEEP_KEY, 0, FSCK_MENDED, 0},
        {"an entry", ENTRY, UPKEEP_ALIAS, 1, FSCK_MENDED, 0},
        {"a record", RECORD, UPKEEP_RECORD, 1, FSCK_LOST, 1},
        {"a manifest", BLOB, UPKEEP_BLOB, 0, FSCK_REMOVED, 0},
    };
    static const char *const directories[] = {[LAYER] = "layers/",
                                              [KEY] = "keys/",
                                              [ENTRY] = "catalog/",
                                              [RECORD] = "templates/",
                                              [BLOB] = "blobs/"};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        struct err e = ERR_INIT;
        struct digest layers[3];
        AUTO_BLOCK_MAP struct block_map *region = NULL;
        AUTO_OCI_LAYER struct oci_layer *layer = NULL;
        struct digest chunk;
        char path[256] = "";
        open_full_world(&w, layers);
        struct file_list l;
        list_files(&l, &w);
        if (rows[i].what == LAYER_CHUNK) {
            assert_ok(layer_load(w.store, &layers[0], &layer, &region, &e));
            chunk = block_map_extent(region, 0)->chunk;
        } else {
            /* Both templates have chunk 103; only the first has 101, and only it 100. */
            chunk = put_chunk(w.store, rows[i].what == MISSING_CHUNK ? 101 : 103);
        }
        if (rows[i].what <= LAYER_CHUNK)
            chunk_path(&chunk, path);
        for (size_t n = 0; rows[i].what > LAYER_CHUNK && n < l.count && !path[0]; n++) {
            const char *directory = directories[rows[i].what];
            if (strncmp(l.paths[n], directory, strlen(directory)) == 0)
                snprintf(path, sizeof(path), "%s", l.paths[n]);
        }
        if (rows[i].what == MISSING_CHUNK)
            assert_int_equal(unlinkat(store_dir(w.store), path, 0), 0);
        else
            flip(&w, path, 8 * (rows[i].what == LAYER ? 100 : rows[i].what == BLOB ? 5 : 20));

        struct fsck_report r = check(&w, false);
        const struct fsck_problem *p = find(&r, rows[i].kind);
        assert_string_equal(p->path, path);
        if (p->affected_count != rows[i].affected)
            fail_msg("%s: affects %zu", rows[i].name, p->affected_count);
        assert_int_equal(r.left, r.count);
        fsck_report_fini(&r);
        r = check(&w, true);
        p = find(&r, rows[i].kind);
        if (p->state != rows[i].state || r.left != rows[i].left)
            fail_msg("%s: state %d, %zu left", rows[i].name, p->state, r.left);
        fsck_report_fini(&r);
        if (rows[i].left == 0) {
            r = check(&w, false);
            assert_int_equal(r.count, 0);
            fsck_report_fini(&r);
        }
        file_list_fini(&l);
        world_close(&w);
    }
}

/* A template that stays broken is baked again: its key is forgotten. */
static void what_is_lost_is_made_again(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    assert_ok(put_template(w.store, alias_a, 100, NULL, &e));
    assert_ok(put_template(w.store, alias_b, 200, NULL, &e));
    char path[256];
    struct digest chunk = put_chunk(w.store, 104);
    chunk_path(&chunk, path);
    assert_int_equal(unlinkat(store_dir(w.store), path, 0), 0);
    struct fsck_report r = check(&w, true);
    assert_int_equal(r.left, 1);
    fsck_report_fini(&r);
    bool found = true;
    struct digest key;
    struct digest record;
    digest_bytes(&key, alias_a, strlen(alias_a));
    assert_ok(template_find_key(w.store, &key, &found, &record, &e));
    assert_false(found);
    digest_bytes(&key, alias_b, strlen(alias_b));
    assert_ok(template_find_key(w.store, &key, &found, &record, &e));
    assert_true(found);
    world_close(&w);
}

/* ---- A source ---- */

static int fetch(void *ctx, const struct digest *chunk, int64_t deadline_ms UNUSED,
                 struct buf *stored, struct err *e)
{
    char path[256];
    struct store *from = ctx;
    chunk_path(chunk, path);
    return file_read(store_dir(from), path, stored, e);
}

static void a_source_mends_chunks(void **state)
{
    (void)state;
    struct world w;
    struct world remote;
    struct digest layers[3];
    open_full_world(&w, layers);
    open_full_world(&remote, layers);
    struct chunk_source source = {.fetch = fetch, .ctx = remote.store};
    store_set_source(w.store, &source);
    char path[256];
    for (uint64_t i = 0; i < 3; i++) {
        struct digest chunk = put_chunk(w.store, 103 + i);
        chunk_path(&chunk, path);
        if (i == 0)
            assert_int_equal(unlinkat(store_dir(w.store), path, 0), 0);
        else
            flip(&w, path, 3000 + i);
    }
    struct fsck_report r = check(&w, true);
    assert_int_equal(r.count, 3);
    assert_int_equal(r.left, 0);
    for (size_t i = 0; i < r.count; i++)
        assert_int_equal(r.problems[i].state, FSCK_MENDED);
    fsck_report_fini(&r);
    r = check(&w, false);
    assert_int_equal(r.count, 0);
    fsck_report_fini(&r);
    world_close(&w);
    world_close(&remote);
}

/* A damaged record of a push counts as missing: mending takes it away, and the next push makes it again. */
static void pushed_layers(void **state)
{
    (void)state;
    struct world w;
    char whole[96], damaged[96];
    world_open(&w);
    put_pushed(w.store, 1, whole);
    put_pushed(w.store, 3, damaged);
    flip(&w, damaged, 100);
    struct fsck_report r = check(&w, false);
    assert_true(names(&r, damaged) && !names(&r, whole));
    fsck_report_fini(&r);
    r = check(&w, true);
    assert_int_equal(r.left, 0);
    fsck_report_fini(&r);
    r = check(&w, false);
    assert_int_equal(r.count, 0);
    assert_true(file_exists(store_dir(w.store), whole));
    assert_false(file_exists(store_dir(w.store), damaged));
    fsck_report_fini(&r);
    world_close(&w);
}

/* What is wrong with a person's copy is told, and nothing of it is made again or taken away. */
static void kept_copies(void **state)
{
    (void)state;
    enum what { DOCUMENT, CHUNK, MAP };
    static const struct {
        const char *name;
        enum what what;
        enum upkeep_kind kind;
    } rows[] = {{"a document", DOCUMENT, UPKEEP_KEPT},
                {"memory", CHUNK, UPKEEP_CHUNK},
                {"a map", MAP, UPKEEP_MAP}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        struct err e = ERR_INIT;
        AUTO_TEMPLATE struct template *t = NULL;
        char path[256] = "kept/mine.json";
        char hex[DIGEST_TEXT_MAX];
        world_open(&w);
        assert_ok(put_kept(w.store, "mine", 400, &e));
        assert_ok(put_kept(w.store, "other", 500, &e));
        assert_ok(kept_peek(&t, w.store, "mine", &e));
        assert_ok(kept_put(w.store, "mine", t->document, &e)); /* gone on with */
        struct digest chunk = put_chunk(w.store, 404);
        if (rows[i].what == CHUNK)
            chunk_path(&chunk, path);
        else if (rows[i].what == MAP)
            snprintf(path, sizeof(path), "disks/%s", digest_hex(&t->state, hex));
        flip(&w, path, 500);
        for (int round = 0; round < 2; round++) {
            struct fsck_report r = check(&w, round == 1);
            const struct fsck_problem *p = find(&r, rows[i].kind);
            if (r.count != 1 || r.left != 1 || strcmp(p->path, path) != 0 ||
                p->affected_count != 1 || strcmp(p->affected[0], "kept copy mine") != 0)
                fail_msg("%s: %zu problems, %s", rows[i].name, r.count, p->path);
            assert_int_equal(p->state, round == 1 ? FSCK_LOST : FSCK_BAD);
            fsck_report_fini(&r);
        }
        assert_true(file_exists(store_dir(w.store), "kept/mine.json"));
        assert_ok(kept_remove(w.store, "mine", &e));
        struct fsck_report r = check(&w, false);
        assert_int_equal(r.count, 0);
        fsck_report_fini(&r);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_store),
        cmocka_unit_test(random_bits),
        cmocka_unit_test(a_layer_of_another_version),
        cmocka_unit_test(every_bit),
        cmocka_unit_test(tag_records),
        cmocka_unit_test(pushed_layers),
        cmocka_unit_test(kept_copies),
        cmocka_unit_test(what_breaks),
        cmocka_unit_test(what_is_lost_is_made_again),
        cmocka_unit_test(a_source_mends_chunks),
    };
    return cmocka_run_group_tests_name("fsck", tests, NULL, NULL);
}
