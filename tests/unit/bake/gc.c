/* SPDX-License-Identifier: MIT */
/* What garbage collection takes and what it leaves, alone and with others at work. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/step/cache.h"
#include "bake/template.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "base/file.h"
#include "base/mem.h"

enum { DAY = 24 * 60 * 60 };

static struct gc_report collect(struct world *w, struct gc_options o)
{
    struct gc_report r;
    struct err e = ERR_INIT;
    assert_ok(store_gc(&r, w->store, &o, &e));
    return r;
}

static bool has_file(struct store *s, const char *directory, const struct digest *d)
{
    char path[256];
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, sizeof(path), "%s/%s", directory, digest_hex(d, hex));
    return file_exists(store_dir(s), path);
}

static bool chunk_is_there(struct store *s, const struct digest *d)
{
    struct err e = ERR_INIT;
    return store_audit_chunk(s, d, &e) == 0;
}

static void the_catalog_is_kept(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    assert_ok(put_template(w.store, "tb2-a-0000000001", 100, NULL, &e));
    assert_ok(put_template(w.store, "tb2-b-0000000001", 103, NULL, &e)); /* shares chunks with a */
    assert_ok(put_template(w.store, "tb2-c-0000000001", 200, NULL, &e));
    assert_ok(put_template(w.store, "tb2-c-0000000001", 205, NULL, &e)); /* in its place */
    struct digest loose = put_chunk(w.store, 999);
    age_all(&w, 10 * DAY);
    store_close(w.store); /* what this process used would stay */
    assert_ok(store_open(&w.store, w.path, &e));

    struct gc_report dry = collect(&w, (struct gc_options){.dry_run = true, .grace_ms = 1000});
    struct gc_report kept = collect(&w, (struct gc_options){.grace_ms = (int64_t)30 * DAY * 1000});
    assert_true(chunk_is_there(w.store, &loose));
    assert_int_equal(kept.removed[UPKEEP_CHUNK].count, 0);
    struct gc_report r = collect(&w, (struct gc_options){.grace_ms = 1000});
    assert_memory_equal(&r, &dry, sizeof(r));
    /* The first record of c, its four maps, the chunks 200 to 204 and the loose one. */
    assert_int_equal(r.removed[UPKEEP_RECORD].count, 1);
    assert_int_equal(r.removed[UPKEEP_MAP].count, 4);
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 6);
    assert_int_equal(r.removed[UPKEEP_KEY].count, 0);
    assert_int_equal(r.kept[UPKEEP_ALIAS].count, 3);
    assert_false(chunk_is_there(w.store, &loose));
    assert_ok(read_template(w.store, "tb2-a-0000000001", &e));
    assert_ok(read_template(w.store, "tb2-b-0000000001", &e));
    assert_ok(read_template(w.store, "tb2-c-0000000001", &e));
    r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_CHUNK].count + r.removed[UPKEEP_MAP].count, 0);
    world_close(&w);
}

/* What a living process has touched since it opened the store stays, however old it is. */
static void what_is_in_use_is_kept(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    uint64_t seeds[] = {1, 2};
    struct digest map;
    assert_ok(put_map(w.store, &map, seeds, ARRAY_LEN(seeds), &e));
    struct digest layer = put_layer(w.store, 7, 200000);
    struct digest chunk = put_chunk(w.store, 3);
    struct digest other = put_chunk(w.store, 4);
    assert_ok(put_template(w.store, "tb2-a-0000000001", 100, NULL, &e));
    age_all(&w, 10 * DAY);
    store_close(w.store);
    AUTO_STORE struct store *user = NULL;
    assert_ok(store_open(&user, w.path, &e));
    assert_ok(store_open(&w.store, w.path, &e));

    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_TEMPLATE struct template *t = NULL;
    assert_ok(store_get_map(user, &map, &m, &e));
    assert_true(store_has_chunk(user, &chunk));
    assert_true(layer_has(user, &layer));
    assert_ok(template_load(&t, user, "tb2-a-0000000001", &e));
    /* The entry moves on; the old template is still in use. */
    assert_ok(put_template(user, "tb2-a-0000000001", 300, NULL, &e));
    struct gc_report r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 1);
    assert_int_equal(r.removed[UPKEEP_MAP].count + r.removed[UPKEEP_RECORD].count, 0);
    assert_false(chunk_is_there(w.store, &other));
    assert_true(chunk_is_there(w.store, &chunk));
    assert_true(has_file(w.store, "disks", &map) && has_file(w.store, "disks", &t->disk));
    AUTO_BLOCK_MAP struct block_map *region = NULL;
    AUTO_OCI_LAYER struct oci_layer *l = NULL;
    assert_ok(layer_load(user, &layer, &l, &region, &e));
    for (size_t i = 0; i < block_map_count(region); i++)
        assert_true(chunk_is_there(user, &block_map_extent(region, i)->chunk));

    /* Nobody uses them any more. */
    store_close(MOVE(user));
    age_all(&w, 10 * DAY);
    r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_LAYER].count, 1);
    assert_int_equal(r.removed[UPKEEP_RECORD].count, 1);
    assert_ok(read_template(w.store, "tb2-a-0000000001", &e));
    world_close(&w);
}

/* A catalog that cannot be read in full may need anything. */
static void nothing_goes_when_the_catalog_is_damaged(void **state)
{
    (void)state;
    static const char *const damaged[] = {"catalog", "templates", "disks"};
    for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
        struct world w;
        struct err e = ERR_INIT;
        world_open(&w);
        assert_ok(put_template(w.store, "tb2-a-0000000001", 100, NULL, &e));
        put_chunk(w.store, 4);
        age_all(&w, DAY);
        struct file_list l;
        list_files(&l, &w);
        for (size_t n = 0; n < l.count; n++) {
            if (strncmp(l.paths[n], damaged[i], strlen(damaged[i])) == 0)
                assert_ok(
                    file_put(store_tmp_dir(w.store), store_dir(w.store), l.paths[n], "{}", 2, &e));
        }
        struct gc_report r;
        int rc = store_gc(&r, w.store, &(struct gc_options){0}, &e);
        assert_true(rc == -ERR_CORRUPT || rc == -ERR_DIGEST);
        assert_non_null(strstr(e.hint, "fsck"));
        struct file_list after;
        list_files(&after, &w);
        assert_int_equal(after.count, l.count);
        file_list_fini(&after);
        file_list_fini(&l);
        world_close(&w);
    }
}

/* The layers of templates stay without a cap; with one, those that were used last do. */
static void a_cap_takes_the_longest_unused(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    struct digest layers[3];
    char path[256];
    char hex[DIGEST_TEXT_MAX];
    for (size_t i = 0; i < ARRAY_LEN(layers); i++)
        layers[i] = put_layer(w.store, 1000 + i, 400000);
    struct digest manifest = put_image(w.store, layers, ARRAY_LEN(layers));
    assert_ok(put_template(w.store, "tb2-a-0000000001", 100, &manifest, &e));
    struct digest loose = put_layer(w.store, 2000, 100000);
    age_all(&w, 10 * DAY);
    static const int64_t days[] = {2, 9, 5}; /* the second is the oldest, the first the newest */
    for (size_t i = 0; i < ARRAY_LEN(layers); i++) {
        snprintf(path, sizeof(path), "layers/%s", digest_hex(&layers[i], hex));
        age(&w, path, days[i] * DAY);
    }
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));

    struct gc_report r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_LAYER].count, 1);
    assert_false(has_file(w.store, "layers", &loose));
    assert_int_equal(r.removed[UPKEEP_BLOB].count, 0);
    uint64_t whole = r.kept_size;
    r = collect(&w, (struct gc_options){.max_size = whole});
    assert_int_equal(r.removed[UPKEEP_LAYER].count, 0);
    r = collect(&w, (struct gc_options){.max_size = whole - 1});
    assert_int_equal(r.removed[UPKEEP_LAYER].count, 1);
    assert_int_equal(r.removed[UPKEEP_MAP].count, 1);
    assert_in_range(r.kept_size, whole / 2, whole - 200000);
    assert_true(has_file(w.store, "layers", &layers[0]) && has_file(w.store, "layers", &layers[2]));
    /* A cap below what is needed takes all layers and ends. */
    r = collect(&w, (struct gc_options){.max_size = 1});
    assert_int_equal(r.removed[UPKEEP_LAYER].count, 2);
    assert_int_equal(r.kept[UPKEEP_CHUNK].count, 6);
    assert_ok(read_template(w.store, "tb2-a-0000000001", &e));
    world_close(&w);
}

static bool step_is_there(struct store *s, const struct digest *key)
{
    struct err e = ERR_INIT;
    struct digest disk;
    return step_peek(&disk, s, key, &e) == 0 && has_file(s, "disks", &disk);
}

/* What a template of the catalog was made over stays, unless there is a cap; the rest goes when nobody
 * has used it for the grace time. */
static void results_of_steps(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    struct digest own = put_step(w.store, "own", 400);
    struct digest older = put_step(w.store, "older", 500);
    struct digest loose = put_step(w.store, "loose", 600);
    assert_ok(put_template_of(w.store, "tb2-a-0000000001", 100, NULL, &own, &e));
    assert_ok(put_template_of(w.store, "tb2-b-0000000001", 200, NULL, &older, &e));
    age_all(&w, 10 * DAY);
    char path[CENSUS_PATH_MAX];
    struct census_file f = {.digest = older};
    age(&w, census_path(UPKEEP_STEP, &f, path), DAY);
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));

    struct gc_report r = collect(&w, (struct gc_options){.grace_ms = (int64_t)30 * DAY * 1000});
    assert_int_equal(r.removed[UPKEEP_STEP].count, 0);
    r = collect(&w, (struct gc_options){.grace_ms = 1000});
    assert_int_equal(r.removed[UPKEEP_STEP].count, 1);
    assert_int_equal(r.removed[UPKEEP_MAP].count, 1);
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 3);
    assert_true(step_is_there(w.store, &own) && step_is_there(w.store, &older));
    assert_false(step_is_there(w.store, &loose));
    r = collect(&w, (struct gc_options){.max_size = r.kept_size - 1});
    assert_int_equal(r.removed[UPKEEP_STEP].count, 1);
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 3);
    assert_true(step_is_there(w.store, &own));
    assert_ok(read_template(w.store, "tb2-b-0000000001", &e));

    /* The template that was made over it leaves the catalog. */
    assert_ok(put_template(w.store, "tb2-a-0000000001", 700, NULL, &e));
    age_all(&w, 10 * DAY);
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));
    r = collect(&w, (struct gc_options){.grace_ms = 1000});
    assert_int_equal(r.removed[UPKEEP_STEP].count, 1);
    assert_int_equal(r.removed[UPKEEP_RECORD].count, 1);
    world_close(&w);
}

/* A person's copies stay until the person removes them; what cannot be read may need anything. */
static void kept_copies(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    assert_ok(put_kept(w.store, "mine", 100, &e));
    assert_ok(put_kept(w.store, "other", 102, &e)); /* shares chunks with it */
    put_chunk(w.store, 4);
    age_all(&w, 10 * DAY);
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));
    struct gc_report r = collect(&w, (struct gc_options){.max_size = 1});
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 1);
    assert_int_equal(r.removed[UPKEEP_MAP].count + r.removed[UPKEEP_KEPT].count, 0);
    assert_int_equal(r.kept[UPKEEP_KEPT].count, 2);
    assert_int_equal(r.kept[UPKEEP_CHUNK].count, 8);

    assert_ok(kept_remove(w.store, "mine", &e));
    r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 2);
    assert_int_equal(r.removed[UPKEEP_MAP].count, 4);
    assert_int_equal(r.kept[UPKEEP_CHUNK].count, 6);

    put_chunk(w.store, 5);
    age_all(&w, 10 * DAY);
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));
    AUTO_FD int fd = openat(store_dir(w.store), "kept/other.json", O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "[", 1, 0), 1);
    assert_true(store_gc(&r, w.store, &(struct gc_options){0}, &e) < 0);
    assert_non_null(strstr(e.text, "other"));
    assert_int_equal(r.removed[UPKEEP_CHUNK].count, 0);
    world_close(&w);
}

#define ZEROS "00000000000000000000000000000000000000000000000000000000000000"

/* Writes what a tag stood for; *path is where. */
static void put_tag(struct world *w, const char *name, const char *document, char path[80])
{
    struct err e = ERR_INIT;
    struct digest d;
    char hex[DIGEST_TEXT_MAX];
    digest_bytes(&d, name, strlen(name));
    snprintf(path, 80, "refs/%s", digest_hex(&d, hex));
    AUTO_FREE char *text = mem_printf("{\"digest\":\"%s\",\"reference\":\"%s\"}", document, name);
    assert_ok(file_put(store_tmp_dir(w->store), store_dir(w->store), path, text, strlen(text), &e));
}

/* What tags stood for goes with the document, or when it is damaged; not while it may be in use. */
static void tags(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    char kept[80];
    char gone[80];
    char damaged[80];
    char young[80];
    static const char blob[] = "blobs/sha256-" ZEROS "02";
    world_open(&w);
    assert_ok(file_make_dirs(store_dir(w.store), "blobs", &e));
    assert_ok(file_make_dirs(store_dir(w.store), "refs", &e));
    put_tag(&w, "a.example/app:1", "sha256:" ZEROS "02", kept);
    put_tag(&w, "a.example/app:2", "sha256:" ZEROS "03", gone);
    put_tag(&w, "a.example/app:3", "sha256:nothing", damaged);
    age_all(&w, 10 * DAY);
    assert_ok(file_put(store_tmp_dir(w.store), store_dir(w.store), blob, "x", 1, &e));
    put_tag(&w, "a.example/app:4", "sha256:" ZEROS "03", young);
    struct gc_report r = collect(&w, (struct gc_options){.grace_ms = 3600 * 1000});
    assert_int_equal(r.removed[UPKEEP_TAG].count, 2);
    assert_int_equal(r.kept[UPKEEP_TAG].count, 2);
    assert_true(file_exists(store_dir(w.store), kept));
    assert_true(file_exists(store_dir(w.store), young));
    assert_false(file_exists(store_dir(w.store), gone));
    assert_false(file_exists(store_dir(w.store), damaged));
    age_all(&w, 10 * DAY);
    r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_TAG].count, 2);
    assert_int_equal(r.removed[UPKEEP_BLOB].count, 1);
    world_close(&w);
}

/* Blobs on their way, journals, and what is nobody's. */
static bool blob_is_there(struct store *s, const struct digest *d)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    return file_exists(store_dir(s), path);
}

/* A record keeps its blob for as long as it was used itself; without its blob it is still good. */
static void pushed_layers(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    char used[96], unused[96], alone[96], blob[BLOB_PATH_MAX];
    world_open(&w);
    struct digest kept = put_pushed(w.store, 1, used);
    struct digest gone = put_pushed(w.store, 2, unused);
    struct digest lost = put_pushed(w.store, 3, alone);
    age_all(&w, 10 * DAY);
    age(&w, used, -10 * DAY); /* used just now */
    age(&w, alone, -10 * DAY);
    image_blob_path(blob, "blobs", &lost);
    assert_int_equal(unlinkat(store_dir(w.store), blob, 0), 0);
    store_close(w.store);
    assert_ok(store_open(&w.store, w.path, &e));
    struct gc_report r = collect(&w, (struct gc_options){.grace_ms = (int64_t)DAY * 1000});
    assert_int_equal(r.removed[UPKEEP_PUSHED].count, 1);
    assert_int_equal(r.removed[UPKEEP_BLOB].count, 1);
    assert_true(blob_is_there(w.store, &kept) && !blob_is_there(w.store, &gone));
    assert_true(file_exists(store_dir(w.store), used) && file_exists(store_dir(w.store), alone));
    assert_false(file_exists(store_dir(w.store), unused));
    world_close(&w);
}

static void leftovers(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    static const char *const names[] = {
        "blobs/partial/sha256-0000000000000000000000000000000000000000000000000000000000000001",
        "blobs/sha256-0000000000000000000000000000000000000000000000000000000000000002",
        "runs/2026-01-01-1.jsonl", "runs/notes.txt"};
    assert_ok(file_make_dirs(store_dir(w.store), "blobs/partial", &e));
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_ok(file_put(store_tmp_dir(w.store), store_dir(w.store), names[i], "x", 1, &e));
    age_all(&w, 10 * DAY);
    struct gc_report r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_PARTIAL].count, 1);
    assert_int_equal(r.removed[UPKEEP_BLOB].count, 1);
    assert_int_equal(r.removed[UPKEEP_JOURNAL].count, 0);
    age_all(&w, 30 * DAY);
    r = collect(&w, (struct gc_options){0});
    assert_int_equal(r.removed[UPKEEP_JOURNAL].count, 1);
    assert_true(file_exists(store_dir(w.store), names[3]));

    /* The cache directory: the newest initramfs and this boot's answer stay. */
    static const char *const cache[] = {
        "runs/kernel/6.1/initramfs-0000000000000001.cpio",
        "runs/kernel/6.1/initramfs-0000000000000002.cpio", "runs/kernel/6.1/vmlinux",
        "runs/accel-00000000-0000-0000-0000-000000000000-0000000000000000", "runs/accel.lock"};
    assert_ok(file_make_dirs(store_dir(w.store), "runs/kernel/6.1", &e));
    for (size_t i = 0; i < ARRAY_LEN(cache); i++) {
        assert_ok(file_put(store_tmp_dir(w.store), store_dir(w.store), cache[i], "x", 1, &e));
        age(&w, cache[i], (i == 1 ? 1 : 2) * DAY);
    }
    AUTO_FREE char *cache_dir = mem_printf("%s/runs", w.path);
    r = collect(&w, (struct gc_options){.cache_dir = cache_dir});
    assert_int_equal(r.removed[UPKEEP_CACHE].count, 2);
    assert_false(file_exists(store_dir(w.store), cache[0]));
    assert_true(file_exists(store_dir(w.store), cache[1]));
    assert_true(file_exists(store_dir(w.store), cache[2]));
    assert_false(file_exists(store_dir(w.store), cache[3]));
    world_close(&w);
}

/* ---- Under load ---- */

enum { BAKERS = 4, SWEEPERS = 2, ALIASES = 5 };

static int rounds(void)
{
    const char *text = getenv("TB2_TEST_ROUNDS");
    return text ? (int)strtol(text, NULL, 10) : 120;
}

/* Each round is a process that opens the store, makes a template of chunks many others have, too,
 * and reads it again, or another one of its own. */
static int bake_rounds(const char *path, unsigned number)
{
    uint64_t random = 77 + number;
    for (int i = 0; i < rounds(); i++) {
        struct err e = ERR_INIT;
        char alias[32];
        AUTO_STORE struct store *s = NULL;
        snprintf(alias, sizeof(alias), "tb2-t%u-%010u", number,
                 (unsigned)(next_number(&random) % ALIASES));
        int rc = store_open(&s, path, &e);
        if (rc == 0)
            rc = put_template(s, alias, next_number(&random) % 300, NULL, &e);
        if (rc == 0)
            rc = read_template(s, alias, &e);
        if (rc < 0) {
            fprintf(stderr, "baker %u, round %d: %s\n", number, i, e.text);
            return 1;
        }
    }
    return 0;
}

static int sweep_rounds(const char *path, const char *stop)
{
    size_t removed = 0;
    while (access(stop, F_OK) != 0) {
        struct err e = ERR_INIT;
        struct gc_report r;
        AUTO_STORE struct store *s = NULL;
        if (store_open(&s, path, &e) < 0 || store_gc(&r, s, &(struct gc_options){0}, &e) < 0) {
            fprintf(stderr, "sweeper: %s\n", e.text);
            return 1;
        }
        removed += r.removed[UPKEEP_CHUNK].count;
    }
    return removed > 0 ? 0 : 2; /* a test in which nothing goes shows nothing */
}

static void under_load(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    AUTO_FREE char *stop = mem_printf("%s/.stop", w.path);
    store_close(w.store); /* what was used since it was opened would stay */
    pid_t children[BAKERS + SWEEPERS];
    for (unsigned i = 0; i < BAKERS + SWEEPERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
            _exit(i < BAKERS ? bake_rounds(w.path, i) : sweep_rounds(w.path, stop));
    }
    for (unsigned i = 0; i < BAKERS + SWEEPERS; i++) {
        int status = -1;
        if (i == BAKERS)
            close(open(stop, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    char **aliases = NULL;
    size_t count = 0;
    assert_ok(store_open(&w.store, w.path, &e));
    assert_ok(template_list(&aliases, &count, w.store, &e));
    assert_int_equal(count, BAKERS * ALIASES);
    for (size_t i = 0; i < count; i++) {
        assert_ok(read_template(w.store, aliases[i], &e));
        free(aliases[i]);
    }
    free(aliases);
    struct fsck_report report;
    assert_ok(store_fsck(&report, w.store, &(struct fsck_options){0}, &e));
    assert_int_equal(report.count, 0);
    fsck_report_fini(&report);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_catalog_is_kept),
        cmocka_unit_test(what_is_in_use_is_kept),
        cmocka_unit_test(nothing_goes_when_the_catalog_is_damaged),
        cmocka_unit_test(a_cap_takes_the_longest_unused),
        cmocka_unit_test(results_of_steps),
        cmocka_unit_test(kept_copies),
        cmocka_unit_test(pushed_layers),
        cmocka_unit_test(leftovers),
        cmocka_unit_test(tags),
        cmocka_unit_test(under_load),
    };
    return cmocka_run_group_tests_name("gc", tests, NULL, NULL);
}
