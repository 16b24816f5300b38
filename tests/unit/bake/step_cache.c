/* SPDX-License-Identifier: MIT */
/* Keys of steps' results, the results in the store, and who runs a step that several tasks want. */
#include "upkeep_world.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bake/guest/guest.h"
#include "bake/step/cache.h"
#include "bake/step/context.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "bake/vm.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "manifests/manifest.h"

/* ---- Keys ---- */

struct inputs {
    struct machine_room room;
    struct guest_options options;
    struct digest base;
    char *text;
    char *name, *value; /* of a variable in the context */
    char *workdir, *user;
    bool pipefail;
    uint64_t timeout_ms;
    unsigned line;
};

static struct digest key_of(const struct inputs *in)
{
    struct err e = ERR_INIT;
    struct digest key;
    struct recipe recipe = {.pipefail = in->pipefail};
    struct recipe_step step = {
        .kind = RECIPE_RUN, .text = in->text, .timeout_ms = in->timeout_ms, .line = in->line};
    struct guest_context c = {.workdir = mem_strdup(in->workdir), .user = mem_strdup(in->user)};
    assert_ok(guest_context_set(&c, in->name, in->value, &e));
    assert_ok(step_key_begin(&key, &in->room, &in->options, &in->base, &e));
    assert_ok(step_key_next(&key, &recipe, &step, &c, &e));
    guest_context_fini(&c);
    return key;
}

static void keys_cover_what_a_step_sees(void **state)
{
    (void)state;
    char vmm[] = "qemu 7.2.22", other_vmm[] = "qemu 8.0.0";
    char text[] = "make", other_text[] = "make all";
    char name[] = "A", other_name[] = "B", value[] = "1", other_value[] = "2";
    char workdir[] = "/app", other_workdir[] = "/", user[] = "root", other_user[] = "app";
    struct inputs same = {.room = {.vmm = vmm, .accel = VM_ACCEL_TCG},
                          .options = {.cpus = 1, .memory_mb = 2048},
                          .text = text,
                          .name = name,
                          .value = value,
                          .workdir = workdir,
                          .user = user,
                          .timeout_ms = 1000};
    digest_bytes(&same.base, "disk", 4);
    digest_bytes(&same.room.kernel.digest, "kernel", 6);
    struct inputs all[13];
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        all[i] = same;
    all[1].room.vmm = other_vmm;
    all[2].room.accel = VM_ACCEL_KVM;
    digest_bytes(&all[3].room.kernel.digest, "other", 5);
    digest_bytes(&all[4].base, "other", 5);
    all[5].options.cpus = 2;
    all[6].options.memory_mb = 4096;
    all[7].options.network = true;
    all[8].text = other_text;
    all[9].name = other_name;
    all[10].value = other_value;
    all[11].workdir = other_workdir;
    all[12].user = other_user;
    struct digest keys[ARRAY_LEN(all)];
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        keys[i] = key_of(&all[i]);
        for (size_t n = 0; n < i; n++)
            assert_false(digest_equal(&keys[i], &keys[n]));
    }
    struct inputs piped = same;
    piped.pipefail = true;
    struct digest key = key_of(&piped);
    assert_false(digest_equal(&key, &keys[0]));
    struct inputs slower = same; /* whether it succeeds, not what it makes */
    slower.timeout_ms = 9999;
    slower.line = 77;
    key = key_of(&slower);
    assert_true(digest_equal(&key, &keys[0]));
}

/* ---- In the store ---- */

static struct block_map *get_disk(struct store *s, const struct digest *key)
{
    struct err e = ERR_INIT;
    struct digest disk;
    struct block_map *m = NULL;
    assert_ok(step_peek(&disk, s, key, &e));
    assert_ok(store_get_map(s, &disk, &m, &e));
    return m;
}

static bool is_found(struct store *s, const struct digest *key, const struct block_map *base)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(step_find(&m, s, key, base, &e));
    return m != NULL;
}

static void a_result_is_whole_or_missing(void **state)
{
    (void)state;
    struct world w;
    struct err e = ERR_INIT;
    world_open(&w);
    const uint64_t seeds[] = {1, 2, 3}, fewer[] = {1, 2};
    struct digest digest;
    AUTO_BLOCK_MAP struct block_map *base = NULL;
    AUTO_BLOCK_MAP struct block_map *small = NULL;
    assert_ok(put_map(w.store, &digest, seeds, 3, &e));
    assert_ok(store_get_map(w.store, &digest, &base, &e));
    assert_ok(put_map(w.store, &digest, fewer, 2, &e));
    assert_ok(store_get_map(w.store, &digest, &small, &e));
    struct digest key = put_step(w.store, "step", 2); /* chunks 2, 3, 4 */
    struct digest none;
    digest_bytes(&none, "none", 4);
    assert_true(is_found(w.store, &key, base));
    assert_false(is_found(w.store, &none, base));
    assert_false(is_found(w.store, &key, small)); /* another disk's size */

    char hex[DIGEST_TEXT_MAX];
    char path[CENSUS_PATH_MAX];
    AUTO_BLOCK_MAP struct block_map *disk = get_disk(w.store, &key);
    const struct digest *chunk = &block_map_extent(disk, 2)->chunk;
    struct census_file f = {.digest = *chunk};
    assert_int_equal(unlinkat(store_dir(w.store), census_path(UPKEEP_CHUNK, &f, path), 0), 0);
    assert_false(is_found(w.store, &key, base)); /* what it changed is not there */
    struct digest again = put_chunk(w.store, 4);
    assert_true(digest_equal(&again, chunk));
    assert_true(is_found(w.store, &key, base));

    snprintf(path, sizeof(path), "steps/%s.json", digest_hex(&key, hex));
    assert_ok(file_put(store_tmp_dir(w.store), store_dir(w.store), path, "{}", 2, &e));
    assert_false(is_found(w.store, &key, base));
    assert_ok(step_put(w.store, &key, disk, &e));
    assert_true(is_found(w.store, &key, base));
    step_forget(w.store, &key);
    assert_false(is_found(w.store, &key, base));
    world_close(&w);
}

/* ---- Claims ---- */

enum { RUNNERS = 6 };

struct contest {
    struct step_claims claims;
    struct digest key;
    atomic_uint owners, most, waited;
};

static void *runner(void *ctx)
{
    struct contest *c = ctx;
    struct err e = ERR_INIT;
    for (unsigned round = 0; round < 50; round++) {
        bool mine = false;
        if (step_claim(&c->claims, &c->key, &mine, &e) < 0)
            return NULL;
        if (!mine) {
            atomic_fetch_add(&c->waited, step_wait(&c->claims, &c->key, NULL, &e) == 0);
            continue;
        }
        unsigned now = atomic_fetch_add(&c->owners, 1) + 1;
        if (now > atomic_load(&c->most))
            atomic_store(&c->most, now);
        atomic_fetch_sub(&c->owners, 1);
        step_release(&c->claims, &c->key);
    }
    return ctx;
}

static void one_at_a_time(void **state)
{
    (void)state;
    struct contest c = {.most = 0};
    pthread_t threads[RUNNERS];
    digest_bytes(&c.key, "key", 3);
    step_claims_init(&c.claims);
    for (size_t i = 0; i < RUNNERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, runner, &c), 0);
    for (size_t i = 0; i < RUNNERS; i++) {
        void *good = NULL;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_non_null(good);
    }
    assert_int_equal(c.most, 1);
    step_claims_fini(&c.claims);
}

static void waiting_can_be_cancelled(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct step_claims claims;
    struct digest key, other;
    struct cancel cancel;
    bool mine = false;
    digest_bytes(&key, "key", 3);
    digest_bytes(&other, "other", 5);
    step_claims_init(&claims);
    assert_ok(step_wait(&claims, &key, NULL, &e)); /* nobody has it */
    assert_ok(step_claim(&claims, &key, &mine, &e));
    assert_true(mine);
    assert_ok(step_claim(&claims, &key, &mine, &e));
    assert_false(mine);
    assert_ok(step_claim(&claims, &other, &mine, &e));
    assert_true(mine);
    assert_ok(cancel_init(&cancel, &e));
    cancel_set(&cancel);
    assert_int_equal(step_wait(&claims, &key, &cancel, &e), -ERR_CANCELLED);
    cancel_fini(&cancel);
    step_claims_fini(&claims); /* with claims that nobody gave back */
}

/* Which states of packages a result may be kept with, and a template made of. */
static void half_installed(void **state)
{
    (void)state;
    static const struct {
        struct agent_packages before, now;
        bool whole;
    } rows[] = {
        {{.broken_count = 0}, {.broken_count = 0}, true},
        {{.broken_count = 0}, {.broken_count = 1, .broken_sum = 5}, false},
        {{.broken_count = 1, .broken_sum = 5}, {.broken_count = 1, .broken_sum = 5}, true},
        {{.broken_count = 1, .broken_sum = 5}, {.broken_count = 1, .broken_sum = 6}, false},
        {{.broken_count = 1, .broken_sum = 5}, {.broken_count = 0}, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(packages_are_whole(&rows[i].before, &rows[i].now), rows[i].whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_cover_what_a_step_sees),
        cmocka_unit_test(a_result_is_whole_or_missing),
        cmocka_unit_test(one_at_a_time),
        cmocka_unit_test(waiting_can_be_cancelled),
        cmocka_unit_test(half_installed),
    };
    return cmocka_run_group_tests_name("step_cache", tests, NULL, NULL);
}
