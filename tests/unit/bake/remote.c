/* SPDX-License-Identifier: MIT */
/* Remote stores over objects in memory: claims, units between two stores, hostile contents. */
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

#include "bake/common/document.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "bake/image/layer_store.h"
#include "bake/image/remote_layers.h"
#include "bake/remote.h"
#include "bake/remote/internal.h"
#include "bake/remote/remote.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "bake/template/remote_template.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "fake_s3.h"

enum { PATIENCE_MS = 30000, BLOCK = 512, FILE_LEN = 40000 };

/* A baker: its own store, and the shared remote one. */
struct baker {
    struct store *store;
    struct remote *remote;
};

struct world {
    struct fake_s3 s3;
    char directory[64];
    char *url;
    struct baker a, b;
};

static void open_baker(struct world *w, struct baker *b, const char *name)
{
    struct err e = ERR_INIT;
    struct remote_options o = {.url = w->url, .lease_ms = 1000};
    AUTO_FREE char *path = mem_printf("%s/%s", w->directory, name);
    assert_int_equal(store_open(&b->store, path, &e), 0);
    if (remote_open(&b->remote, b->store, &o, &e) < 0)
        fail_msg("%s", e.text);
}

static void close_baker(struct baker *b)
{
    remote_close(b->remote);
    store_close(b->store);
    *b = (struct baker){0};
}

static int setup(void **state)
{
    struct world *w = mem_zalloc(sizeof(*w));
    /* Stores sync a lot: in memory, where there is such a place. */
    snprintf(w->directory, sizeof(w->directory), "%s/tb2-remote-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(w->directory));
    setenv("AWS_ACCESS_KEY_ID", "key", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("HOME", "/nonexistent", 1);
    fake_s3_start(&w->s3);
    w->url = mem_printf("s3://bucket/r?endpoint=http://127.0.0.1:%u", fake_http_port(w->s3.server));
    open_baker(w, &w->a, "a");
    open_baker(w, &w->b, "b");
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    close_baker(&w->a);
    close_baker(&w->b);
    fake_s3_stop(&w->s3);
    assert_int_equal(file_remove_tree(AT_FDCWD, w->directory, &e), 0);
    free(w->url);
    free(w);
    return 0;
}

static struct fake_object *find(struct world *w, const char *name)
{
    AUTO_FREE char *path = mem_printf("/bucket/r/%s", name);
    return fake_s3_find(&w->s3, path);
}

/* ---- Claims ---- */

static bool claim(struct baker *b, const char *name)
{
    struct err e = ERR_INIT;
    bool mine = false;
    if (remote_claims_try(b->remote->claims, REMOTE_TEMPLATE, name, &mine, &e) < 0)
        fail_msg("%s", e.text);
    return mine;
}

static void claims_exclude_one_another(void **state)
{
    struct world *w = *state;
    assert_true(claim(&w->a, "x"));
    assert_true(claim(&w->a, "x")); /* held already */
    assert_false(claim(&w->b, "x"));
    assert_true(claim(&w->b, "y"));
    remote_claims_drop(w->a.remote->claims, REMOTE_TEMPLATE, "x");
    assert_null(find(w, "claims/template-x"));
    assert_true(claim(&w->b, "x"));
    close_baker(&w->b); /* gives back what it has */
    assert_null(find(w, "claims/template-x"));
    assert_null(find(w, "claims/template-y"));
}

static void a_dead_owners_claim_is_taken_over(void **state)
{
    struct world *w = *state;
    static const char *const bodies[] = {
        "{\"beat\":1,\"lease_ms\":1000,\"owner\":\"dead\"}",
        "{\"beat\":1,\"lease_ms\":1,\"owner\":\"dead\"}", /* raised to a second */
        "what is this",
    };
    int64_t begin = clock_ms();
    bool mine[ARRAY_LEN(bodies)] = {false};
    size_t left = ARRAY_LEN(bodies);
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        AUTO_FREE char *path = mem_printf("/bucket/r/claims/template-%zu", i);
        fake_s3_put(&w->s3, path, bodies[i], strlen(bodies[i]));
    }
    while (left > 0 && clock_ms() < begin + PATIENCE_MS) {
        for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
            char name[8];
            snprintf(name, sizeof(name), "%zu", i);
            if (mine[i] || !claim(&w->b, name))
                continue;
            assert_true(clock_ms() - begin >= 1000);
            mine[i] = true;
            left--;
        }
        clock_sleep_ms(20);
    }
    assert_int_equal(left, 0);
}

/* The claim was written, its answer lost; the second try meets our own. */
static void a_lost_answer_is_no_loss(void **state)
{
    struct world *w = *state;
    w->s3.fault_method = "PUT";
    w->s3.fault_status = 500;
    w->s3.fault_after = true;
    w->s3.faults = 1;
    assert_true(claim(&w->a, "x"));
    assert_int_equal(w->s3.faults, 0);
}

static void claims_are_renewed_and_losses_noticed(void **state)
{
    struct world *w = *state;
    assert_true(claim(&w->a, "x"));
    unsigned first = find(w, "claims/template-x")->version;
    int64_t end = clock_ms() + PATIENCE_MS;
    while (find(w, "claims/template-x")->version == first && clock_ms() < end)
        clock_sleep_ms(10);
    assert_true(find(w, "claims/template-x")->version > first);
    /* A renewal whose answer is lost is told apart from someone else's write. */
    w->s3.fault_method = "PUT";
    w->s3.fault_status = 500;
    w->s3.fault_after = true;
    w->s3.faults = 1;
    first = find(w, "claims/template-x")->version;
    while (find(w, "claims/template-x")->version < first + 2 && clock_ms() < end)
        clock_sleep_ms(10);
    assert_int_equal(w->s3.faults, 0);
    assert_int_equal(remote_stats(w->a.remote).claims_lost, 0);
    fake_s3_put(&w->s3, "/bucket/r/claims/template-x", "{}", 2);
    while (remote_stats(w->a.remote).claims_lost == 0 && clock_ms() < end)
        clock_sleep_ms(10);
    assert_int_equal(remote_stats(w->a.remote).claims_lost, 1);
    remote_claims_drop(w->a.remote->claims, REMOTE_TEMPLATE, "x");
    assert_non_null(find(w, "claims/template-x")); /* not ours to remove */
}

/* ---- Layers ---- */

struct layer {
    uint8_t tar[BLOCK + FILE_LEN + BLOCK + 2 * BLOCK];
    size_t len;
    struct digest diff_id;
    struct oci_manifest manifest;
    struct oci_descriptor descriptor;
    struct image image;
};

/* A tar with one file of bytes that do not compress. */
static void make_layer(struct layer *l)
{
    static char type[] = "application/vnd.oci.image.layer.v1.tar";
    uint32_t number = 1;
    unsigned sum = 0;
    *l = (struct layer){.len = sizeof(l->tar) / BLOCK * BLOCK};
    char *head = (char *)l->tar;
    snprintf(head, 100, "file");
    snprintf(head + 100, 8, "0000644");
    snprintf(head + 108, 8, "0000000");
    snprintf(head + 116, 8, "0000000");
    snprintf(head + 124, 12, "%011o", FILE_LEN);
    snprintf(head + 136, 12, "00000000000");
    head[156] = '0';
    memcpy(head + 257, "ustar\00000", 8);
    memset(head + 148, ' ', 8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += l->tar[i];
    snprintf(head + 148, 7, "%06o", sum);
    for (size_t i = 0; i < FILE_LEN; i++) {
        number = number * 1664525 + 1013904223;
        l->tar[BLOCK + i] = (uint8_t)(number >> 24);
    }
    digest_bytes(&l->diff_id, l->tar, l->len);
    l->descriptor =
        (struct oci_descriptor){.media_type = type, .digest = l->diff_id, .size = l->len};
    l->image.config.diff_ids = &l->diff_id;
    l->image.config.diff_id_count = 1;
}

static void ingest(struct store *s, struct layer *l)
{
    struct err e = ERR_INIT;
    struct source source;
    struct layer_blob blob = {&source, &l->descriptor, &l->diff_id};
    assert_int_equal(source_from_memory(&source, l->tar, l->len, &e), 0);
    struct ingest_gate *gate = NULL;
    assert_int_equal(ingest_gate_new(&gate, 1, &e), 0);
    if (layer_ingest(s, &blob, gate, NULL, &e) < 0)
        fail_msg("%s", e.text);
    ingest_gate_free(gate);
    source_close(&source);
}

static enum layer_share begin(struct baker *b, struct layer *l)
{
    struct err e = ERR_INIT;
    bool waiting = false;
    if (remote_image_begin(b->remote, &l->image, &waiting, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(waiting, l->image.shares[0] == SHARE_ELSEWHERE);
    return l->image.shares[0];
}

static void publish(struct baker *b, struct layer *l)
{
    struct err e = ERR_INIT;
    assert_int_equal(begin(b, l), SHARE_PUBLISH);
    ingest(b->store, l);
    assert_int_equal(remote_image_end(b->remote, &l->image, 0, &e), 0);
}

static struct digest only_chunk(struct store *s, const struct layer *l)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    struct digest region;
    assert_int_equal(layer_region(s, &l->diff_id, &region, &e), 0);
    assert_int_equal(store_get_map(s, &region, &m, &e), 0);
    assert_int_equal(block_map_count(m), 1);
    return block_map_extent(m, 0)->chunk;
}

static void a_layer_is_made_once(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    AUTO_FREE struct layer *l = mem_zalloc(sizeof(*l));
    AUTO_FREE struct layer *other = mem_zalloc(sizeof(*other));
    make_layer(l);
    make_layer(other);
    assert_int_equal(begin(&w->a, l), SHARE_PUBLISH);
    assert_int_equal(begin(&w->b, other), SHARE_ELSEWHERE);
    ingest(w->a.store, l);
    assert_int_equal(remote_image_end(w->a.remote, &l->image, 0, &e), 0);
    assert_int_equal(begin(&w->b, other), SHARE_NONE);
    assert_true(layer_has(w->b.store, &l->diff_id));
    unsigned puts = w->s3.puts;
    assert_int_equal(begin(&w->a, l), SHARE_NONE); /* it knows that all is there */
    assert_int_equal(w->s3.puts, puts);

    /* The chunk comes when it is read, and is kept. */
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    struct digest chunk = only_chunk(w->b.store, l);
    size_t len = 0;
    assert_false(store_has_chunk(w->b.store, &chunk));
    assert_int_equal(store_get_chunk(w->b.store, &chunk, data, &len, &e), 0);
    assert_memory_equal(data, l->tar + BLOCK, FILE_LEN);
    assert_true(store_has_chunk(w->b.store, &chunk));
    assert_int_equal(remote_stats(w->b.remote).chunks_fetched, 1);
    assert_int_equal(remote_stats(w->a.remote).chunks_sent, 1);
    free(l->image.shares);
    free(other->image.shares);
}

/* Work that failed is given back, and someone else does it. */
static void a_failed_layer_is_given_back(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    AUTO_FREE struct layer *l = mem_zalloc(sizeof(*l));
    make_layer(l);
    assert_int_equal(begin(&w->a, l), SHARE_PUBLISH);
    int rc = err_set(&e, ERR_NET, "no route");
    assert_int_equal(remote_image_end(w->a.remote, &l->image, rc, &e), -ERR_NET);
    assert_string_equal(e.text, "no route");
    assert_int_equal(begin(&w->b, l), SHARE_PUBLISH);
    free(l->image.shares);
}

static void damage(struct fake_object *o, size_t off)
{
    o->data[off] = (char)(o->data[off] ^ 1);
}

static void damaged_layers_are_made_here(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    AUTO_FREE struct layer *l = mem_zalloc(sizeof(*l));
    char hex[DIGEST_TEXT_MAX];
    struct digest region;
    make_layer(l);
    publish(&w->a, l);
    assert_int_equal(layer_region(w->a.store, &l->diff_id, &region, &e), 0);
    AUTO_FREE char *layer = mem_printf("layers/%s", digest_hex(&l->diff_id, hex));
    AUTO_FREE char *map = mem_printf("disks/%s", digest_hex(&region, hex));
    const char *const victims[] = {layer, map};
    for (size_t i = 0; i < ARRAY_LEN(victims); i++) {
        struct fake_object *o = find(w, victims[i]);
        for (size_t off = 0; off < o->len; off += o->len / 7 + 1) {
            damage(o, off);
            assert_int_equal(begin(&w->b, l), SHARE_PUBLISH);
            assert_false(layer_has(w->b.store, &l->diff_id));
            remote_claims_drop(w->b.remote->claims, REMOTE_LAYER, digest_hex(&l->diff_id, hex));
            damage(o, off);
        }
    }
    assert_int_equal(begin(&w->b, l), SHARE_NONE);
    assert_true(layer_has(w->b.store, &l->diff_id));
    free(l->image.shares);
}

static void wrong_chunks_are_refused_and_named(void **state)
{
    struct world *w = *state;
    AUTO_FREE struct layer *l = mem_zalloc(sizeof(*l));
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    char hex[DIGEST_TEXT_MAX];
    make_layer(l);
    publish(&w->a, l);
    assert_int_equal(begin(&w->b, l), SHARE_NONE);
    struct digest chunk = only_chunk(w->b.store, l);
    digest_hex(&chunk, hex);
    AUTO_FREE char *name = mem_printf("chunks/%.2s/%s", hex, hex);
    struct fake_object *o = find(w, name);
    static const size_t places[] = {0, 9, FILE_LEN / 2, FILE_LEN - 1};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct err e = ERR_INIT;
        size_t len = 0;
        damage(o, places[i]);
        int rc = store_get_chunk(w->b.store, &chunk, data, &len, &e);
        assert_true(rc == -ERR_DIGEST || rc == -ERR_CORRUPT);
        assert_non_null(strstr(e.text, hex));
        assert_false(store_has_chunk(w->b.store, &chunk));
        damage(o, places[i]);
    }
    free(l->image.shares);
}

/* ---- Templates ---- */

static struct digest empty_map(struct store *s, uint64_t size)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    struct digest d;
    assert_int_equal(block_map_new(&m, size, &e), 0);
    assert_int_equal(block_map_finish(m, &e), 0);
    assert_int_equal(store_put_map(s, m, &d, &e), 0);
    return d;
}

/* A template in the catalog under "tb2-one"; *key is its key. */
static struct template *make_template(struct store *s, struct digest *key)
{
    static const char *const maps[] = {"disk", "base_disk", "memory", "state"};
    static const char *const texts[] = {"vmm", "accel", "kernel", "created", "user", "workdir"};
    struct err e = ERR_INIT;
    struct template *t = NULL;
    struct digest record;
    AUTO_JSON struct json *j = json_new_object();
    digest_bytes(key, "key", 3);
    json_set(j, "key", json_digest(key));
    for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
        struct digest d = empty_map(s, (i + 1) << 20);
        json_set(j, maps[i], json_digest(&d));
    }
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        json_set(j, texts[i], json_new_string("x"));
    json_set(j, "alias", json_new_string("tb2-one"));
    json_set(j, "task", json_new_string("one"));
    json_set(j, "state_size", json_new_integer(1));
    json_set(j, "memory_mb", json_new_integer(1));
    json_set(j, "cpus", json_new_integer(1));
    json_set(j, "env", json_new_array());
    assert_int_equal(template_put(s, key, j, &record, &e), 0);
    assert_int_equal(catalog_put(s, "tb2-one", "one", key, &record, &e), 0);
    assert_int_equal(template_load(&t, s, "tb2-one", &e), 0);
    return t;
}

static void templates_move(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    struct digest key;
    bool busy = true;
    bool found = false;
    struct digest record;
    AUTO_TEMPLATE struct template *t = make_template(w->a.store, &key);
    assert_int_equal(remote_template_begin(w->b.remote, &key, &busy, &e), 0);
    assert_false(busy); /* b has the claim now */
    assert_int_equal(remote_template_begin(w->a.remote, &key, &busy, &e), 0);
    assert_true(busy);
    remote_template_drop(w->b.remote, &key);
    remote_template_publish(w->a.remote, t, NULL);
    assert_int_equal(remote_template_begin(w->b.remote, &key, &busy, &e), 0);
    assert_false(busy);
    assert_int_equal(template_find_key(w->b.store, &key, &found, &record, &e), 0);
    assert_true(found && digest_equal(&record, &t->record));
    assert_int_equal(remote_stats(w->b.remote).templates_taken, 1);
    assert_int_equal(remote_pull_template(w->b.remote, "tb2-one", &e), 0);
    AUTO_TEMPLATE struct template *there = NULL;
    assert_int_equal(template_load(&there, w->b.store, "tb2-one", &e), 0);
    assert_int_equal(remote_pull_template(w->b.remote, "tb2-two", &e), -ERR_NOTFOUND);
    assert_int_equal(remote_pull_template(w->b.remote, "../keys/x", &e), -ERR_NOTFOUND);
    unsigned puts = w->s3.puts;
    err_clear(&e);
    assert_int_equal(remote_push_template(w->b.remote, there, &e), 0);
    assert_int_equal(w->s3.puts, puts); /* nothing is sent twice */
}

static void hostile_records_are_not_taken(void **state)
{
    struct world *w = *state;
    struct err e = ERR_INIT;
    struct digest key;
    char hex[DIGEST_TEXT_MAX];
    AUTO_TEMPLATE struct template *t = make_template(w->a.store, &key);
    assert_int_equal(remote_push_template(w->a.remote, t, &e), 0);
    AUTO_FREE char *record = mem_printf("templates/%s.json", digest_hex(&t->record, hex));
    AUTO_FREE char *memory = mem_printf("disks/%s", digest_hex(&t->memory, hex));
    const char *const victims[] = {record, memory};
    for (size_t i = 0; i < ARRAY_LEN(victims); i++) {
        struct fake_object *o = find(w, victims[i]);
        damage(o, o->len / 2);
        assert_int_equal(remote_take_template(w->b.remote, &key, &e), -ERR_DIGEST);
        damage(o, o->len / 2);
    }
    /* A record of another key, under this one. */
    struct digest other;
    digest_bytes(&other, "other", 5);
    AUTO_FREE char *from = mem_printf("keys/%s.json", digest_hex(&key, hex));
    AUTO_FREE char *to = mem_printf("/bucket/r/keys/%s.json", digest_hex(&other, hex));
    struct fake_object *pointer = find(w, from);
    fake_s3_put(&w->s3, to, pointer->data, pointer->len);
    assert_int_equal(remote_take_template(w->b.remote, &other, &e), -ERR_CORRUPT);
    bool found = true;
    struct digest ignored;
    assert_int_equal(template_find_key(w->b.store, &other, &found, &ignored, &e), 0);
    assert_false(found);
    /* Pointers that are no JSON, or point to what is no digest. */
    static const char *const bad[] = {"", "{}", "{\"record\":\"sha256:zz\"}", "[1]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        fake_s3_put(&w->s3, to, bad[i], strlen(bad[i]));
        assert_int_equal(remote_take_template(w->b.remote, &other, &e), -ERR_CORRUPT);
    }
}

/* ---- The rest ---- */

static void only_stores_are_remote_stores(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *format;
        int result;
    } rows[] = {{"tb2-bake store 1\n", 0},
                {"tb2-bake store 2\n", -ERR_UNSUPPORTED},
                {"<html>", -ERR_INPUT}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct remote *r = NULL;
        struct remote_options o = {.url = w->url};
        fake_s3_put(&w->s3, "/bucket/r/format", rows[i].format, strlen(rows[i].format));
        assert_int_equal(remote_open(&r, w->b.store, &o, &e), rows[i].result);
        remote_close(r);
    }
}

static void tables(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf bytes;
    struct remote_place places[2] = {{.pack = 1, .len = 7, .off = 9},
                                     {.pack = 0, .len = CHUNK_STORED_MAX, .off = UINT64_MAX}};
    struct remote_table t = {.places = places, .count = 2};
    AUTO_REMOTE_TABLE struct remote_table again = {0};
    digest_bytes(&places[0].chunk, "a", 1);
    digest_bytes(&places[1].chunk, "b", 1);
    buf_init(&bytes, 1000);
    assert_int_equal(remote_table_encode(&t, &bytes, &e), 0);
    assert_int_equal(remote_table_decode(&again, bytes.data, bytes.len, &e), 0);
    assert_int_equal(again.count, 2);
    assert_memory_equal(&again.places[1].chunk, &places[1].chunk, sizeof(struct digest));
    assert_true(again.places[1].off == UINT64_MAX && again.places[0].pack == 1);
    /* Cut anywhere, or with a count or a length that is not so. */
    struct remote_table none = {0};
    for (size_t len = 0; len < bytes.len; len++)
        assert_int_equal(remote_table_decode(&none, bytes.data, len, &e), -ERR_CORRUPT);
    static const size_t offsets[] = {0, 8, 15, 16 + 32 + 4 + 3};
    for (size_t i = 0; i < ARRAY_LEN(offsets); i++) {
        bytes.data[offsets[i]] ^= 0x80;
        assert_int_equal(remote_table_decode(&none, bytes.data, bytes.len, &e), -ERR_CORRUPT);
        bytes.data[offsets[i]] ^= 0x80;
    }
}

#define WITH_WORLD(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(claims_exclude_one_another),
        WITH_WORLD(a_dead_owners_claim_is_taken_over),
        WITH_WORLD(a_lost_answer_is_no_loss),
        WITH_WORLD(claims_are_renewed_and_losses_noticed),
        WITH_WORLD(a_layer_is_made_once),
        WITH_WORLD(a_failed_layer_is_given_back),
        WITH_WORLD(damaged_layers_are_made_here),
        WITH_WORLD(wrong_chunks_are_refused_and_named),
        WITH_WORLD(templates_move),
        WITH_WORLD(hostile_records_are_not_taken),
        WITH_WORLD(only_stores_are_remote_stores),
        cmocka_unit_test(tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
