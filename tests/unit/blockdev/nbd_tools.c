/* SPDX-License-Identifier: MIT */
/* The NBD server against other people's clients: qemu-io, qemu-img, nbdinfo, nbdcopy. Each is
 * skipped where it is not installed. */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/proc.h"
#include "memdev.h"

enum { SIZE = 8 << 20, DEADLINE_MS = 30000 };

struct served {
    struct bdev *lower, *cow;
    struct nbd_server *server;
    char uri[128], file[128];
};

/* A cow over 8 MiB, of which the first 3 hold data and the rest has been discarded. */
static void serve(struct served *s, struct fixture *f)
{
    struct err e = ERR_INIT;
    char path[96];
    s->lower = memdev_new(SIZE, false);
    fixture_fill(memdev_bytes(s->lower), SIZE, 1);
    assert_ok(bdev_open_cow(&s->cow, s->lower, store_tmp_dir(f->store), 0, &e));
    assert_int_equal(bdev_discard(s->cow, 5 << 20, 3 << 20), 0);
    snprintf(path, sizeof(path), "%s/nbd", f->path);
    snprintf(s->uri, sizeof(s->uri), "nbd+unix:///?socket=%s", path);
    snprintf(s->file, sizeof(s->file), "%s/copy", f->path);
    assert_ok(nbd_server_start(&s->server, s->cow, path, &e));
}

static void end(struct served *s)
{
    nbd_server_stop(s->server);
    bdev_close(s->cow);
}

/* Runs a program that must succeed; its output goes into `out`. Skips the test without it. */
static void run(const char *const argv[], struct buf *out)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf errors;
    buf_init(&errors, 64 << 10);
    buf_init(out, 64 << 10);
    int status;
    int rc =
        proc_run(argv, &(struct proc_io){.out = out, .err_out = &errors, .timeout_ms = DEADLINE_MS},
                 &status, &e);
    if (rc == -ERR_NOTFOUND) {
        print_message("no %s here\n", argv[0]);
        skip();
    }
    assert_ok(rc);
    if (status != 0)
        fail_msg("%s: status %#x: %s%s", argv[0], (unsigned)status, buf_text(&errors),
                 buf_text(out));
}

/* The file equals the device. */
static void compare_file(struct served *s)
{
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *disk = mem_zalloc(SIZE);
    AUTO_BUF struct buf copy;
    buf_init(&copy, SIZE);
    assert_non_null(disk);
    assert_int_equal(bdev_read(s->cow, disk, SIZE, 0), 0);
    assert_ok(file_read(AT_FDCWD, s->file, &copy, &e));
    assert_int_equal(copy.len, SIZE);
    assert_memory_equal(copy.data, disk, SIZE);
}

static void nbdinfo_reads_the_export(void **state)
{
    struct served s;
    serve(&s, *state);
    struct err e = ERR_INIT;
    AUTO_BUF struct buf out;
    /* Guessing the content takes a program, without which the guess is no JSON. */
    run((const char *[]){"nbdinfo", "--json", "--no-content", s.uri, NULL}, &out);
    AUTO_JSON struct json *info = NULL;
    struct json *exports;
    uint64_t size;
    bool flag;
    assert_ok(json_parse(&info, out.data, out.len, "nbdinfo", &e));
    assert_ok(json_get_array(info, "exports", &exports, &e));
    const struct json *export = json_element(exports, 0);
    assert_ok(json_get_u64(export, "export-size", &size, &e));
    assert_int_equal(size, SIZE);
    static const char *const wanted[] = {"can_multi_conn", "can_trim", "can_zero", "can_fua"};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        assert_ok(json_get_bool_opt(export, wanted[i], false, &flag, &e));
        assert_true(flag);
    }
    buf_fini(&out);
    run((const char *[]){"nbdinfo", "--map", s.uri, NULL}, &out);
    assert_non_null(strstr(buf_text(&out), "3145728     5242880    3  hole,zero"));
    end(&s);
}

static void nbdcopy_copies_all(void **state)
{
    struct served s;
    serve(&s, *state);
    AUTO_BUF struct buf out;
    run((const char *[]){"nbdcopy", s.uri, s.file, NULL}, &out);
    compare_file(&s);
    end(&s);
}

static void qemu_img_converts(void **state)
{
    struct served s;
    serve(&s, *state);
    AUTO_BUF struct buf out;
    run((const char *[]){"qemu-img", "convert", "-f", "raw", "-O", "raw", s.uri, s.file, NULL},
        &out);
    compare_file(&s);
    end(&s);
}

static void qemu_io_writes_and_reads(void **state)
{
    struct served s;
    serve(&s, *state);
    AUTO_BUF struct buf out;
    run((const char *[]){"qemu-io",
                         "-f",
                         "raw",
                         "-c",
                         "write -P 0x5a 1000 70000",
                         "-c",
                         "read -P 0x5a 1000 70000",
                         "-c",
                         "write -z 20000 30000",
                         "-c",
                         "read -P 0 20000 30000",
                         "-c",
                         "read -P 0x5a 50000 21000",
                         "-c",
                         "discard 64k 64k",
                         "-c",
                         "read -P 0 64k 64k",
                         "-c",
                         "aio_write -P 1 1M 64k",
                         "-c",
                         "aio_write -P 2 2M 64k",
                         "-c",
                         "aio_flush",
                         "-c",
                         "write -f -P 3 4M 4k",
                         "-c",
                         "flush",
                         "-c",
                         "read -P 1 1M 64k",
                         "-c",
                         "read -P 3 4M 4k",
                         s.uri,
                         NULL},
        &out);
    assert_null(strstr(buf_text(&out), "failed"));
    uint8_t data[70000];
    assert_int_equal(bdev_read(s.cow, data, sizeof(data), 1000), 0);
    assert_int_equal(data[0], 0x5a);
    assert_int_equal(data[19000], 0);
    assert_int_equal(data[65535 - 1000], 0x5a);
    assert_int_equal(data[65536 - 1000], 0);
    end(&s);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(nbdinfo_reads_the_export),
        WITH_STORE(nbdcopy_copies_all),
        WITH_STORE(qemu_img_converts),
        WITH_STORE(qemu_io_writes_and_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
