/* SPDX-License-Identifier: MIT */
/* Boot images in the store: their records, and what looks after them. No machine is started. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/guest/boot_image.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "base/file.h"
#include "base/mem.h"

enum { DAY = 24 * 60 * 60 };

/* Memory of three chunks, seeds `seed` to `seed` + 2, and a state of one. */
static struct boot_image put_boot(struct store *s, const char *name, uint64_t seed)
{
    struct err e = ERR_INIT;
    const uint64_t seeds[] = {seed, seed + 1, seed + 2, seed + 3};
    struct boot_image b = {.saved.state_size = 5000};
    digest_bytes(&b.key, name, strlen(name));
    assert_ok(put_map(s, &b.saved.memory, seeds, 3, &e));
    assert_ok(put_map(s, &b.saved.state, seeds + 3, 1, &e));
    assert_ok(boot_image_put(&b, s, &e));
    return b;
}

static const char *path_of(const struct boot_image *b, char path[CENSUS_PATH_MAX])
{
    struct census_file f = {.digest = b->key};
    return census_path(UPKEEP_BOOT, &f, path);
}

static bool is_there(struct store *s, const struct boot_image *b)
{
    struct err e = ERR_INIT;
    struct boot_image found;
    return boot_image_peek(&found, s, &b->key, &e) == 0 &&
           digest_equal(&found.saved.memory, &b->saved.memory) &&
           digest_equal(&found.saved.state, &b->saved.state) &&
           found.saved.state_size == b->saved.state_size;
}

/* Any other byte, and the record of another key, are refused. */
static void records_are_checked(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    struct boot_image found;
    char path[CENSUS_PATH_MAX], other[CENSUS_PATH_MAX];
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_RECORD);
    world_open(&w);
    struct boot_image b = put_boot(w.store, "one", 100);
    assert_true(is_there(w.store, &b));
    assert_ok(file_read(store_dir(w.store), path_of(&b, path), &text, &e));
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 1;
        assert_ok(
            file_put(store_tmp_dir(w.store), store_dir(w.store), path, text.data, text.len, &e));
        if (boot_image_peek(&found, w.store, &b.key, &e) == 0)
            fail_msg("a changed byte %zu was not noticed", i);
        err_clear(&e);
        text.data[i] ^= 1;
    }
    struct boot_image twin = b;
    digest_bytes(&twin.key, "two", 3);
    assert_ok(file_put(store_tmp_dir(w.store), store_dir(w.store), path_of(&twin, other), text.data,
                       text.len, &e));
    assert_true(boot_image_peek(&found, w.store, &twin.key, &e) < 0);
    world_close(&w);
}

/* A template whose record names the boot image that it began as. */
static void put_template_from(struct store *s, const char *alias, const struct boot_image *b)
{
    struct err e = ERR_INIT;
    AUTO_TEMPLATE struct template *t = NULL;
    struct digest record;
    assert_ok(put_template(s, alias, 500, NULL, &e));
    assert_ok(template_load(&t, s, alias, &e));
    json_set(t->document, "boot_image", json_digest(&b->key));
    assert_ok(template_put(s, &t->key, t->document, &record, &e));
    assert_ok(catalog_put(s, alias, alias, &t->key, &record, &e));
}

static void collection_keeps_those_of_templates(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    struct boot_image used = put_boot(w.store, "used", 100);
    struct boot_image loose = put_boot(w.store, "loose", 200);
    put_template_from(w.store, "tb2-a-0000000001", &used);
    age_all(&w, 10 * DAY);
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));

    struct gc_report r;
    assert_ok(
        store_gc(&r, w.store, &(struct gc_options){.grace_ms = (int64_t)30 * DAY * 1000}, &e));
    assert_int_equal(r.removed[UPKEEP_BOOT].count, 0);
    assert_ok(store_gc(&r, w.store, &(struct gc_options){.grace_ms = 1000}, &e));
    assert_int_equal(r.removed[UPKEEP_BOOT].count, 1);
    assert_int_equal(r.removed[UPKEEP_MAP].count, 2);
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 4);
    assert_true(is_there(w.store, &used));
    assert_false(is_there(w.store, &loose));
    assert_ok(read_template(w.store, "tb2-a-0000000001", &e));
    world_close(&w);
}

/* One that lacks a chunk is told of, and is forgotten by the repair, so that the next bake makes it. */
static void damage_is_found_and_forgotten(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    char path[CENSUS_PATH_MAX];
    world_open(&w);
    struct boot_image whole = put_boot(w.store, "whole", 100);
    struct boot_image torn = put_boot(w.store, "torn", 200);
    struct du_report du;
    assert_ok(store_du(&du, w.store, &e));
    assert_int_equal(du.kinds[DU_BOOTS].count, 8);
    assert_int_equal(du.kinds[DU_LOOSE].count, 0);

    struct fsck_report r;
    assert_ok(store_fsck(&r, w.store, &(struct fsck_options){0}, &e));
    assert_int_equal(r.count, 0);
    assert_int_equal(r.checked[UPKEEP_BOOT].count, 2);
    fsck_report_fini(&r);
    struct digest chunk = put_chunk(w.store, 202);
    struct census_file f = {.digest = chunk};
    assert_ok(file_remove_tree(store_dir(w.store), census_path(UPKEEP_CHUNK, &f, path), &e));
    assert_ok(store_fsck(&r, w.store, &(struct fsck_options){.repair = true}, &e));
    assert_int_equal(r.count, 1);
    assert_int_equal(r.problems[0].affected_count, 1);
    assert_non_null(strstr(r.problems[0].affected[0], "boot image "));
    assert_int_equal(r.left, 0);
    fsck_report_fini(&r);
    assert_true(is_there(w.store, &whole));
    assert_false(is_there(w.store, &torn));
    assert_ok(store_fsck(&r, w.store, &(struct fsck_options){0}, &e));
    assert_int_equal(r.count, 0);
    fsck_report_fini(&r);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_checked),
        cmocka_unit_test(collection_keeps_those_of_templates),
        cmocka_unit_test(damage_is_found_and_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
