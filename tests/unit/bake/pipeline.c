/* SPDX-License-Identifier: MIT */
/* The parts of the pipeline that need no VM: shared work, VM places, guest context, records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/bake.h"
#include "bake/common/document.h"
#include "bake/common/once.h"
#include "bake/common/run_lock.h"
#include "bake/common/slots.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "bake/step/context.h"
#include "bake/template.h"
#include "bake/template/ready.h"
#include "bake/template/record.h"
#include "base/file.h"
#include "base/mem.h"

/* ---- once ---- */

struct once_test {
    struct once *once;
    atomic_int done; /* how many did the work */
    atomic_int failed;
    bool fail;
};

static void *want_work(void *self)
{
    struct once_test *t = self;
    struct err e = ERR_INIT;
    bool mine = false;
    struct digest value = {0};
    int rc = once_begin(t->once, "layer a", &mine, &value, &e);
    if (rc == 0 && mine) {
        atomic_fetch_add(&t->done, 1);
        digest_bytes(&value, "a", 1);
        if (t->fail)
            rc = err_set(&e, ERR_NET, "no route");
        once_end(t->once, "layer a", rc, &value, &e);
    }
    struct digest expected;
    digest_bytes(&expected, "a", 1);
    if (rc == -ERR_NET && strcmp(e.text, "no route") == 0)
        atomic_fetch_add(&t->failed, 1);
    else if (rc != 0 || !digest_equal(&value, &expected))
        atomic_fetch_add(&t->failed, 100);
    return NULL;
}

static void shared_work_is_done_once(void **state)
{
    (void)state;
    for (int fail = 0; fail < 2; fail++) {
        struct once_test t = {.fail = fail};
        struct err e = ERR_INIT;
        pthread_t threads[8];
        assert_int_equal(once_new(&t.once, &e), 0);
        for (size_t i = 0; i < ARRAY_LEN(threads); i++)
            assert_int_equal(pthread_create(&threads[i], NULL, want_work, &t), 0);
        for (size_t i = 0; i < ARRAY_LEN(threads); i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(t.done, 1);
        assert_int_equal(t.failed, fail ? 8 : 0);
        once_free(t.once);
    }
}

/* What may have passed is tried again by whoever comes later, not by those who waited. */
static void a_failure_that_may_pass_is_not_for_ever(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct once *once = NULL;
    bool mine = false;
    static const struct {
        enum err_class class;
        bool again;
    } rows[] = {{ERR_NET, true}, {ERR_NOTFOUND, false}};
    assert_int_equal(once_new(&once, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *key = rows[i].again ? "passing" : "lasting";
        assert_int_equal(once_begin(once, key, &mine, NULL, &e), 0);
        int rc = err_set(&e, rows[i].class, "x");
        once_end(once, key, rc, NULL, &e);
        assert_int_equal(once_begin(once, key, &mine, NULL, &e), rc);
        assert_false(mine);
    }
    once_set_failure_ms(once, 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *key = rows[i].again ? "passing" : "lasting";
        int rc = once_begin(once, key, &mine, NULL, &e);
        assert_int_equal(rc, rows[i].again ? 0 : -ERR_NOTFOUND);
        assert_int_equal(mine, rows[i].again);
        if (mine)
            once_end(once, key, 0, NULL, &e);
    }
    once_free(once);
}

/* ---- Places ---- */

struct slots_test {
    struct slots slots;
    atomic_int inside;
    atomic_int most;
};

static void *take_slots(void *self)
{
    struct slots_test *t = self;
    struct err e = ERR_INIT;
    for (int i = 0; i < 200; i++) {
        if (slots_enter(&t->slots, NULL, &e) < 0)
            return self;
        int inside = atomic_fetch_add(&t->inside, 1) + 1;
        int most = atomic_load(&t->most);
        while (inside > most && !atomic_compare_exchange_weak(&t->most, &most, inside))
            ;
        atomic_fetch_sub(&t->inside, 1);
        slots_leave(&t->slots);
    }
    return NULL;
}

static void places_are_bounded(void **state)
{
    (void)state;
    struct slots_test t = {0};
    slots_init(&t.slots, 2);
    pthread_t threads[6];
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_slots, &t), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        void *result = &t;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    assert_in_range(t.most, 1, 2);
    assert_int_equal(t.slots.used, 0);
    struct err e = ERR_INIT;
    struct cancel c;
    assert_int_equal(cancel_init(&c, &e), 0);
    assert_int_equal(slots_enter(&t.slots, &c, &e), 0);
    assert_int_equal(slots_enter(&t.slots, &c, &e), 0);
    cancel_set(&c); /* ends the wait */
    assert_int_equal(slots_enter(&t.slots, &c, &e), -ERR_CANCELLED);
    cancel_fini(&c);
    slots_fini(&t.slots);
}

/* ---- Guest context ---- */

struct ingest_test {
    struct ingest_gate *gate;
    atomic_int inside, wide_inside, most, most_wide;
    atomic_int turn;
};

static void raise_to(atomic_int *most, int now)
{
    int seen = atomic_load(most);
    while (seen < now && !atomic_compare_exchange_weak(most, &seen, now))
        ;
}

static void *ingest_layers(void *self)
{
    struct ingest_test *t = self;
    for (int n = 0; n < 200; n++) {
        bool wide = atomic_fetch_add(&t->turn, 1) % 3 != 0;
        ingest_gate_enter(t->gate, wide);
        raise_to(&t->most, atomic_fetch_add(&t->inside, 1) + 1);
        if (wide)
            raise_to(&t->most_wide, atomic_fetch_add(&t->wide_inside, 1) + 1);
        sched_yield();
        if (wide)
            atomic_fetch_sub(&t->wide_inside, 1);
        atomic_fetch_sub(&t->inside, 1);
        ingest_gate_leave(t->gate, wide);
    }
    return NULL;
}

/* Wide windows, 128 MiB each, one at a time; nobody is left waiting. */
static void wide_layers_are_read_alone(void **state)
{
    (void)state;
    struct ingest_test t = {0};
    struct err e = ERR_INIT;
    pthread_t threads[6];
    assert_int_equal(ingest_gate_new(&t.gate, 3, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ingest_layers, &t), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_true(t.most <= 3);
    assert_int_equal(t.most_wide, 1);
    ingest_gate_free(t.gate);
}

static void environment_is_sorted_and_replaced(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct guest_context c = {0};
    static const char *const pairs[] = {"PATH=/bin", "A=1",     "PATH_X=y", "PATH=/usr/bin",
                                        "B=",        "A=2=two", "Z"};
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        assert_int_equal(guest_context_set_pair(&c, pairs[i], &e), 0);
    assert_int_equal(guest_context_set(&c, "B", "b", &e), 0);
    static const char *const expected[] = {"A=2=two", "B=b", "PATH=/usr/bin", "PATH_X=y", "Z"};
    assert_int_equal(c.env_count, ARRAY_LEN(expected));
    for (size_t i = 0; i < ARRAY_LEN(expected); i++)
        assert_string_equal(c.env[i], expected[i]);
    assert_null(c.env[c.env_count]);
    guest_context_fini(&c);
}

/* ---- Records ---- */

struct store_test {
    char path[64];
    struct store *store;
};

static void open_test_store(struct store_test *t)
{
    struct err e = ERR_INIT;
    snprintf(t->path, sizeof(t->path), "/tmp/tb2-bake-test-XXXXXX");
    assert_non_null(mkdtemp(t->path));
    assert_int_equal(store_open(&t->store, t->path, &e), 0);
}

static void close_test_store(struct store_test *t)
{
    struct err e = ERR_INIT;
    store_close(t->store);
    assert_int_equal(file_remove_tree(AT_FDCWD, t->path, &e), 0);
}

static struct json *make_document(const char *alias, const char *task)
{
    static const char *const digests[] = {"key", "disk", "base_disk", "memory", "state"};
    static const char *const texts[] = {"vmm", "accel", "kernel", "created", "user", "workdir"};
    struct json *j = json_new_object();
    struct digest d;
    digest_bytes(&d, alias, strlen(alias));
    for (size_t i = 0; i < ARRAY_LEN(digests); i++)
        json_set(j, digests[i], json_digest(&d));
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        json_set(j, texts[i], json_new_string(texts[i]));
    json_set(j, "alias", json_new_string(alias));
    json_set(j, "task", json_new_string(task));
    json_set(j, "state_size", json_new_integer(5000));
    json_set(j, "memory_mb", json_new_integer(2048));
    json_set(j, "cpus", json_new_integer(2));
    struct json *env = json_new_array();
    json_append(env, json_new_string("A=1"));
    json_set(j, "env", env);
    return j;
}

static void put_template(struct store *s, const char *alias, const char *task)
{
    struct err e = ERR_INIT;
    struct digest key;
    struct digest record;
    AUTO_JSON struct json *j = make_document(alias, task);
    digest_bytes(&key, alias, strlen(alias));
    assert_int_equal(template_put(s, &key, j, &record, &e), 0);
    assert_int_equal(catalog_put(s, alias, task, &key, &record, &e), 0);
}

static void templates_are_found_by_alias_task_and_key(void **state)
{
    (void)state;
    struct store_test t;
    open_test_store(&t);
    put_template(t.store, "tb2-one-0000000001", "one");
    put_template(t.store, "tb2-two-0000000001", "two");
    put_template(t.store, "tb2-two-0000000002", "two");
    struct err e = ERR_INIT;
    struct template *found = NULL;
    assert_int_equal(template_load(&found, t.store, "tb2-one-0000000001", &e), 0);
    assert_string_equal(found->task, "one");
    assert_int_equal(found->cpus, 2);
    assert_string_equal(found->env[0], "A=1");
    assert_null(found->env[1]);
    template_free(MOVE(found));
    assert_int_equal(template_load(&found, t.store, "one", &e), 0);
    template_free(MOVE(found));
    assert_int_equal(template_load(&found, t.store, "two", &e), -ERR_INPUT);
    assert_int_equal(template_load(&found, t.store, "three", &e), -ERR_NOTFOUND);
    assert_int_equal(template_load(&found, t.store, "../../etc/passwd", &e), -ERR_NOTFOUND);
    bool there = false;
    struct digest key;
    struct digest record;
    digest_bytes(&key, "tb2-one-0000000001", 18);
    assert_int_equal(template_find_key(t.store, &key, &there, &record, &e), 0);
    assert_true(there);
    digest_bytes(&key, "other", 5);
    assert_int_equal(template_find_key(t.store, &key, &there, &record, &e), 0);
    assert_false(there);
    char **aliases = NULL;
    size_t count = 0;
    assert_int_equal(template_list(&aliases, &count, t.store, &e), 0);
    assert_int_equal(count, 3);
    assert_string_equal(aliases[2], "tb2-two-0000000002");
    for (size_t i = 0; i < count; i++)
        free(aliases[i]);
    free(aliases);
    close_test_store(&t);
}

static ino_t catalog_file(struct store *s)
{
    struct stat st;
    assert_int_equal(fstatat(store_dir(s), "catalog/tb2-one-0000000001.json", &st, 0), 0);
    return st.st_ino;
}

/* Registering again what is registered writes nothing; registering something else does. */
static void the_catalog_is_written_when_it_changes(void **state)
{
    (void)state;
    struct store_test t;
    open_test_store(&t);
    put_template(t.store, "tb2-one-0000000001", "one");
    ino_t first = catalog_file(t.store);
    put_template(t.store, "tb2-one-0000000001", "one");
    assert_true(catalog_file(t.store) == first);
    put_template(t.store, "tb2-one-0000000001", "other");
    assert_false(catalog_file(t.store) == first);
    close_test_store(&t);
}

static void damaged_records_are_refused(void **state)
{
    (void)state;
    struct store_test t;
    open_test_store(&t);
    put_template(t.store, "tb2-one-0000000001", "one");
    struct err e = ERR_INIT;
    struct template *found = NULL;
    assert_int_equal(template_load(&found, t.store, "one", &e), 0);
    struct digest record = found->record;
    template_free(MOVE(found));
    char hex[DIGEST_TEXT_MAX];
    AUTO_FREE char *path = mem_printf("templates/%s.json", digest_hex(&record, hex));
    AUTO_FD int fd = -1;
    assert_int_equal(file_open(&fd, store_dir(t.store), path, O_RDWR, 0, &e), 0);
    assert_int_equal(file_pwrite_full(fd, " ", 1, 1, &e), 0);
    assert_true(template_load_record(&found, t.store, &record, &e) < 0);
    assert_null(found);
    close_test_store(&t);
}

static void records_need_all_their_members(void **state)
{
    (void)state;
    static const char *const required[] = {"disk",      "memory",  "state", "state_size",
                                           "memory_mb", "cpus",    "env",   "alias",
                                           "base_disk", "workdir", "vmm"};
    for (size_t i = 0; i < ARRAY_LEN(required); i++) {
        struct err e = ERR_INIT;
        struct template *t = NULL;
        AUTO_JSON struct json *j = make_document("tb2-one-0000000001", "one");
        json_set(j, required[i], json_new_bool(true));
        assert_int_equal(template_from_document(&t, j, &e), -ERR_CORRUPT);
        assert_non_null(strstr(e.text, required[i]));
        assert_null(t);
    }
}

/* While a bake runs, a second one is refused at once, and everyone else goes on: opening the store
 * does not wait for the end of the bake. */
static void a_run_keeps_out_runs_alone(void **state)
{
    (void)state;
    struct store_test t;
    open_test_store(&t);
    struct err e = ERR_INIT;
    AUTO_FD int first = -1;
    AUTO_FD int second = -1;
    assert_int_equal(run_lock(&first, t.store, &e), 0);
    AUTO_STORE struct store *beside = NULL;
    assert_int_equal(store_open(&beside, t.path, &e), 0);
    assert_int_equal(run_lock(&second, beside, &e), -ERR_BUSY);
    assert_non_null(strstr(e.text, "another bake"));
    assert_true(e.hint[0]);
    file_close(&first);
    assert_int_equal(run_lock(&second, beside, &e), 0);
    close_test_store(&t);
}

/* A layout whose manifest is not what its digest promises, in either algorithm. */
static void documents_match_their_digests(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t digits;
    } algorithms[] = {{"sha256", 64}, {"sha512", 128}};
    for (size_t i = 0; i < ARRAY_LEN(algorithms); i++) {
        struct store_test t;
        open_test_store(&t);
        struct err e = ERR_INIT;
        char hex[129] = {0};
        memset(hex, 'a', algorithms[i].digits);
        static const char manifest[] = "{\"schemaVersion\":2}";
        AUTO_FREE char *directory = mem_printf("runs/blobs/%s", algorithms[i].name);
        AUTO_FREE char *blob = mem_printf("%s/%s", directory, hex);
        AUTO_FREE char *index = mem_printf(
            "{\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\","
            "\"digest\":\"%s:%s\",\"size\":%zu}]}",
            algorithms[i].name, hex, sizeof(manifest) - 1);
        const char *const files[][2] = {{blob, manifest},
                                        {"runs/index.json", index},
                                        {"runs/oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}"}};
        assert_int_equal(file_make_dirs(store_dir(t.store), directory, &e), 0);
        for (size_t k = 0; k < ARRAY_LEN(files); k++)
            assert_int_equal(file_put(store_tmp_dir(t.store), store_dir(t.store), files[k][0],
                                      files[k][1], strlen(files[k][1]), &e),
                             0);
        struct image_room room;
        struct image *image = NULL;
        AUTO_FREE char *reference = mem_printf("oci:%s/runs", t.path);
        assert_int_equal(image_room_open(&room, t.store, &(struct image_options){0}, NULL, &e), 0);
        assert_int_equal(image_resolve(&image, &room, reference, &e), -ERR_DIGEST);
        assert_null(image);
        image_room_close(&room);
        close_test_store(&t);
    }
}

/* What every task would fail for is said once, and no task is begun. */
static void a_missing_vmm_ends_the_run(void **state)
{
    (void)state;
    struct store_test t;
    open_test_store(&t);
    struct err e = ERR_INIT;
    static const char text[] = "[environment]\ndocker_image = \"127.0.0.1:1/x:1\"\n";
    AUTO_FREE char *tasks = mem_printf("%s/runs/tasks", t.path);
    static const char *const names[] = {"runs/tasks/a", "runs/tasks/b"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *file = mem_printf("%s/task.toml", names[i]);
        assert_int_equal(file_make_dirs(store_dir(t.store), names[i], &e), 0);
        assert_int_equal(
            file_put(store_tmp_dir(t.store), store_dir(t.store), file, text, strlen(text), &e), 0);
    }
    struct bake_options options = {.cache_dir = t.path,
                                   .tasks = {.tasks_dir = tasks},
                                   .recipe_path =
                                       TB2_TEST_DATA "/../../manifests/recipes/demo.yaml"};
    struct bake_report report;
    AUTO_FREE char *before = mem_strdup(getenv("PATH") ? getenv("PATH") : "");
    assert_int_equal(setenv("PATH", tasks, 1), 0);
    int rc = bake_run(&report, t.store, &options, &e);
    assert_int_equal(setenv("PATH", before, 1), 0);
    assert_int_equal(rc, -ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "qemu-system-x86_64"));
    assert_true(e.hint[0]);
    assert_int_equal(report.count, 0);
    close_test_store(&t);
}

static void ready_checks_survive_the_record(void **state)
{
    (void)state;
    char command[] = "test -e /x";
    struct recipe_ready rows[] = {
        {.kind = RECIPE_READY_NONE, .interval_ms = 1, .timeout_ms = 2, .try_timeout_ms = 3},
        {.kind = RECIPE_READY_COMMAND, .command = command, .timeout_ms = 60000},
        {.kind = RECIPE_READY_PORT, .port = 8080, .interval_ms = 500},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct recipe_ready got;
        AUTO_JSON struct json *j = json_new_object();
        json_set(j, "ready", ready_encode(&rows[i]));
        assert_int_equal(ready_decode(&got, j, &e), 0);
        assert_int_equal(got.kind, rows[i].kind);
        assert_int_equal(got.port, rows[i].port);
        assert_int_equal(got.interval_ms, rows[i].interval_ms);
        assert_int_equal(got.timeout_ms, rows[i].timeout_ms);
        if (rows[i].command)
            assert_string_equal(got.command, command);
        ready_fini(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_work_is_done_once),
        cmocka_unit_test(a_failure_that_may_pass_is_not_for_ever),
        cmocka_unit_test(places_are_bounded),
        cmocka_unit_test(wide_layers_are_read_alone),
        cmocka_unit_test(environment_is_sorted_and_replaced),
        cmocka_unit_test(templates_are_found_by_alias_task_and_key),
        cmocka_unit_test(the_catalog_is_written_when_it_changes),
        cmocka_unit_test(damaged_records_are_refused),
        cmocka_unit_test(records_need_all_their_members),
        cmocka_unit_test(a_run_keeps_out_runs_alone),
        cmocka_unit_test(documents_match_their_digests),
        cmocka_unit_test(a_missing_vmm_ends_the_run),
        cmocka_unit_test(ready_checks_survive_the_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
