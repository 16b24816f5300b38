/* SPDX-License-Identifier: MIT */
/* What of a host a snapshot depends on, and a guest's disk that is a file. */
#include "upkeep_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/guest/guest.h"
#include "bake/guest/internal.h"
#include "bake/guest/machine_room.h"
#include "bake/vm.h"
#include "bake/vm/host.h"
#include "base/file.h"
#include "base/mem.h"

/* Case K-COMPAT: the field is named before anything is loaded. */
static void other_hosts_are_refused(void **state)
{
    (void)state;
    const struct machine_host made = {
        .cpu = "AuthenticAMD 25 33", .tsc_khz = 3400000, .page_size = 4096};
    static const struct {
        struct machine_host here;
        const char *made_template, *wanted;
        const char *expected; /* NULL: it fits */
    } rows[] = {
        {{"AuthenticAMD 25 33", 3400000, false, 4096}, NULL, NULL, NULL},
        {{"AuthenticAMD 25 80", 3400000, false, 4096}, NULL, NULL, "a processor"},
        {{"GenuineIntel 6 85", 3400000, false, 4096}, NULL, NULL, "a processor"},
        {{"", 0, false, 4096}, NULL, NULL, NULL}, /* not known */
        {{"AuthenticAMD 25 80", 3400000, false, 4096}, "T2A", NULL, NULL},
        {{"GenuineIntel 6 85", 3400000, false, 4096}, "T2A", NULL, "a processor"},
        {{"AuthenticAMD 25 33", 3400000, false, 4096}, "T2A", "T2", "the CPU template T2A"},
        {{"AuthenticAMD 25 33", 3400000, false, 4096}, NULL, "T2A", "the CPU template none"},
        {{"AuthenticAMD 25 33", 3400800, false, 4096}, NULL, NULL, NULL},
        {{"AuthenticAMD 25 33", 3401000, false, 4096}, NULL, NULL, "time stamp counter"},
        {{"AuthenticAMD 25 33", 2000000, true, 4096}, NULL, NULL, NULL}, /* it scales */
        {{"AuthenticAMD 25 33", 3400000, false, 65536}, NULL, NULL, "pages of 4096 bytes"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_JSON struct json *record = json_new_object();
        machine_host_note(record, &made, rows[i].made_template);
        int rc = machine_host_check(record, &rows[i].here, rows[i].wanted, &e);
        assert_int_equal(rc, rows[i].expected ? -ERR_UNSUPPORTED : 0);
        if (rows[i].expected && !strstr(e.text, rows[i].expected))
            fail_msg("row %zu: %s", i, e.text);
    }
    struct err e = ERR_INIT;
    AUTO_JSON struct json *old = json_new_object(); /* a record without the member */
    assert_ok(machine_host_check(old, &made, NULL, &e));
    struct machine_host here;
    machine_host_find(&here);
    assert_true(here.page_size >= 4096);
    assert_true(strlen(here.cpu) > 0);
}

enum { CHUNKS = 6, PIECE = 2 * BLOCK_SIZE };

struct disk_world {
    struct world world;
    struct machine_room room;
    struct block_map *map;
    struct guest guest;
};

static void disk_open(struct disk_world *d)
{
    struct err e = ERR_INIT;
    struct digest digest;
    static const uint64_t seeds[CHUNKS] = {1, 2, 3, 4, 5, 6};
    world_open(&d->world);
    assert_ok(put_map(d->world.store, &digest, seeds, CHUNKS, &e));
    assert_ok(store_get_map(d->world.store, &digest, &d->map, &e));
    d->room = (struct machine_room){.store = d->world.store, .driver = &vm_firecracker};
    d->room.cache_dir = mem_printf("%s/cache", d->world.path);
    assert_ok(chunk_cache_new(&d->room.cache, d->world.store, 1 << 20, &e));
    d->guest = (struct guest){.room = &d->room, .dir = mem_printf("%s/guest", d->world.path)};
    assert_int_equal(mkdir(d->guest.dir, 0700), 0);
    assert_ok(guest_disk_start(&d->guest, d->map, &e));
}

static void disk_close(struct disk_world *d)
{
    guest_disk_stop(&d->guest);
    free(d->guest.dir);
    block_map_free(d->map);
    machine_room_close(&d->room);
    world_close(&d->world);
}

/* What the guest wrote, made zeros, or left alone is what the sealed disk has; twice. */
static void files_are_compared(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    if (ublk_probe(&e) == 0)
        skip(); /* the disk is a device here: testbed.firecracker */
    struct disk_world d = {0};
    disk_open(&d);
    const char *path = guest_disk_path(&d.guest);
    assert_non_null(path);
    uint64_t size = d.guest.disk->size;
    AUTO_FREE uint8_t *expected = mem_zalloc(size);
    AUTO_FREE uint8_t *found = mem_zalloc(size);
    AUTO_FD int fd = -1;
    assert_ok(file_open(&fd, AT_FDCWD, path, O_RDWR, 0, &e));
    assert_ok(file_pread_full(fd, expected, size, 0, &e));
    assert_int_equal(bdev_read(d.guest.disk, found, size, 0), 0);
    assert_memory_equal(found, expected, size);
    for (int round = 0; round < 2; round++) {
        uint64_t at = (uint64_t)(1 + round) * PIECE + BLOCK_SIZE;
        memset(expected + at, 0x55 + round, 100); /* a part of a block */
        assert_ok(file_pwrite_full(fd, expected + at, 100, at, &e));
        assert_int_equal(
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * PIECE, BLOCK_SIZE), 0);
        memset(expected + 4 * PIECE, 0, BLOCK_SIZE);
        assert_ok(guest_disk_settle(&d.guest, &e));
        assert_int_equal(bdev_read(d.guest.disk, found, size, 0), 0);
        assert_memory_equal(found, expected, size);
    }
    /* Three blocks changed, nothing else was written. */
    assert_int_equal(bdev_stats(d.guest.disk).bytes_written, 3 * BLOCK_SIZE);
    disk_close(&d);
}

/* Firecracker's guests boot from their kernel, and no boot tries something else first. */
static void boot_images_are_not_for_all(void **state)
{
    (void)state;
    static const struct {
        const struct vm_driver *driver;
        bool has;
    } rows[] = {{&vm_qemu, true}, {&vm_firecracker, false}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct machine_room room = {.driver = rows[i].driver};
        assert_ok(machine_room_use_boot_images(&room, &e));
        assert_int_equal(room.boots != NULL, rows[i].has);
        machine_room_close(&room);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_hosts_are_refused),
                                       cmocka_unit_test(files_are_compared),
                                       cmocka_unit_test(boot_images_are_not_for_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
