/* SPDX-License-Identifier: MIT */
/* The kernel cache, with a made-up package: small files in the places where Debian's are. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/kernel.h"
#include "bake/kernel/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"

#define RELEASE "6.12.0-test"
#define MODULES "usr/lib/modules/" RELEASE

struct fixture {
    char path[64];
    int dir;
};

static void put(struct fixture *f, const char *path, const void *data, size_t len)
{
    struct err e = ERR_INIT;
    const char *slash = strrchr(path, '/');
    if (slash) {
        AUTO_FREE char *parent = mem_strndup(path, (size_t)(slash - path));
        assert_int_equal(file_make_dirs(f->dir, parent, &e), 0);
    }
    assert_int_equal(file_put(f->dir, f->dir, path, data, len, &e), 0);
}

static void put_text(struct fixture *f, const char *path, const char *text)
{
    put(f, path, text, strlen(text));
}

static void expect_text(struct fixture *f, const char *path, const char *text)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf b;
    buf_init(&b, LIMIT_TOKEN);
    if (file_read(f->dir, path, &b, &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(buf_text(&b), text);
}

static void run(struct fixture *f, const char *const argv[])
{
    struct err e = ERR_INIT;
    struct proc p = {.pid = -1};
    int status = -1;
    assert_int_equal(
        proc_start(
            &p, argv,
            &(struct proc_setup){.cwd = f->path, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1},
            &e),
        0);
    assert_int_equal(proc_wait(&p, 20000, NULL, &status, &e), 0);
    assert_int_equal(status, 0);
}

/* A bzImage: header fields, then at 1024 the payload and the plain size's 4 bytes. */
static void put_image(struct fixture *f, const char *plain)
{
    struct err e = ERR_INIT;
    put_text(f, "plain", plain);
    run(f, (const char *const[]){"zstd", "-q", "plain", "-o", "packed", NULL});
    AUTO_BUF struct buf packed;
    buf_init(&packed, LIMIT_TOKEN);
    assert_int_equal(file_read(f->dir, "packed", &packed, &e), 0);
    uint8_t image[4096] = {0};
    uint32_t len = (uint32_t)packed.len + 4;
    image[0x1f1] = 1;
    memcpy(image + 0x202, "HdrS", 4);
    memcpy(image + 0x24c, &len, 4); /* payload_offset is 0 */
    assert_in_range(packed.len, 1, sizeof(image) - 1028);
    memcpy(image + 1024, packed.data, packed.len);
    put(f, "boot/vmlinuz-" RELEASE, image, 1024 + len);
}

static void put_module(struct fixture *f, const char *path, const char *depends, bool packed)
{
    char data[256];
    int len =
        snprintf(data, sizeof(data), "ELF%clicense=GPL%cdepends=%s%cname=x%c", 0, 0, depends, 0, 0);
    AUTO_FREE char *full = mem_printf(MODULES "/kernel/%s", path);
    put(f, full, data, (size_t)len);
    if (packed)
        run(f, (const char *const[]){"xz", full, NULL});
}

static void put_package(struct fixture *f)
{
    put_image(f, "\x7f"
                 "ELF kernel");
    put_module(f, "block/virtio_blk.ko", "", true);
    put_module(f, "net/virtio_net.ko", "net_failover", true);
    put_module(f, "net/net_failover.ko", "failover", true);
    put_module(f, "net/failover.ko", "", false);
    put_module(f, "rng/virtio-rng.ko", "rng-core,failover", true);
    put_module(f, "virtio/virtio_mmio.ko", "", true);
    put_module(f, "vsock/vsock.ko", "", true);
    put_module(f, "vsock/vmw_vsock_virtio_transport.ko", "vsock", true);
    put_text(f, MODULES "/modules.order",
             "kernel/block/not_virtio_blk.ko\nkernel/block/virtio_blk.ko\nkernel/net/failover.ko\n"
             "kernel/net/net_failover.ko\nkernel/net/virtio_net.ko\nkernel/rng/virtio-rng.ko\n"
             "kernel/virtio/virtio_mmio.ko\nkernel/vsock/vsock.ko\n"
             "kernel/vsock/vmw_vsock_virtio_transport.ko\n");
    put_text(f, MODULES "/modules.builtin", "kernel/char/rng-core.ko\n");
}

static int import(struct fixture *f, struct err *e)
{
    AUTO_FD int out = -1;
    AUTO_FD int modules = -1;
    assert_int_equal(file_open_dir(&modules, f->dir, "out/modules", e), 0);
    assert_int_equal(file_open(&out, f->dir, "out", O_RDONLY | O_DIRECTORY, 0, e), 0);
    return kernel_import(out, f->dir, RELEASE, NULL, e);
}

static void test_import(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    put_package(f);
    if (import(f, &e) < 0)
        fail_msg("%s", e.text);
    expect_text(f, "out/vmlinux",
                "\x7f"
                "ELF kernel");
    expect_text(f, "out/modules/order",
                "virtio_blk.ko\nfailover.ko\nnet_failover.ko\nvirtio_net.ko\nvirtio-rng.ko\n"
                "virtio_mmio.ko\nvsock.ko\nvmw_vsock_virtio_transport.ko\n");
    assert_true(file_exists(f->dir, "out/modules/virtio-rng.ko"));
    assert_false(file_exists(f->dir, "out/payload"));
    assert_false(file_exists(f->dir, "out/unpacked"));
}

static void test_import_refuses(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *module, *depends;
        enum err_class class;
        const char *text;
    } cases[] = {
        {"net/failover.ko", "no_such_module", ERR_NOTFOUND, "no module no_such_module"},
        {"net/failover.ko", "net_failover", ERR_LIMIT, "nested too deep"},
        {"net/failover.ko", ",", ERR_CORRUPT, "malformed list"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        assert_int_equal(file_remove_tree(f->dir, "out", &e), 0);
        assert_int_equal(file_remove_tree(f->dir, "usr", &e), 0);
        assert_int_equal(file_remove_tree(f->dir, "packed", &e), 0);
        put_package(f);
        put_module(f, cases[i].module, cases[i].depends, false);
        assert_int_equal(import(f, &e), -(int)cases[i].class);
        if (!strstr(e.text, cases[i].text))
            fail_msg("expected '%s' in: %s", cases[i].text, e.text);
    }
}

static void test_payload(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    uint8_t image[2048] = {0};
    size_t off = 0;
    size_t len = 0;
    assert_int_equal(kernel_payload(image, sizeof(image), &off, &len, &e), -ERR_CORRUPT);
    memcpy(image + 0x202, "HdrS", 4);
    assert_int_equal(kernel_payload(image, 0x24f, &off, &len, &e), -ERR_CORRUPT);
    image[0x1f1] = 1;
    static const struct {
        uint32_t off, len;
        int rc;
    } cases[] = {{0, 1024, 0},
                 {16, 1008, 0},
                 {16, 1009, -ERR_CORRUPT},
                 {0, 7, -ERR_CORRUPT},
                 {UINT32_MAX, 1024, -ERR_CORRUPT},
                 {0, UINT32_MAX, -ERR_CORRUPT},
                 {UINT32_MAX, UINT32_MAX, -ERR_CORRUPT}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        memcpy(image + 0x248, &cases[i].off, 4);
        memcpy(image + 0x24c, &cases[i].len, 4);
        assert_int_equal(kernel_payload(image, sizeof(image), &off, &len, &e), cases[i].rc);
        if (cases[i].rc == 0) {
            assert_int_equal(off, 1024 + cases[i].off);
            assert_int_equal(len, cases[i].len);
        }
    }
}

static void put_release(struct fixture *f, const char *release)
{
    char path[256];
    snprintf(path, sizeof(path), "kernel/%s/vmlinux", release);
    put_text(f, path, release);
    snprintf(path, sizeof(path), "kernel/%s/modules/b.ko", release);
    put_text(f, path, "module");
    snprintf(path, sizeof(path), "kernel/%s/modules/order", release);
    put_text(f, path, "b.ko\n");
}

static void get(struct fixture *f, struct guest_kernel *k)
{
    struct err e = ERR_INIT;
    if (guest_kernel_get(k, f->path, NULL, &e) < 0)
        fail_msg("%s", e.text);
}

/* What is in the cache is used without asking anybody: the highest complete release. */
static void test_cache(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    put_release(f, "6.12.9-a");
    put_release(f, "6.12.10-a");
    put_text(f, "kernel/6.12.11-a/vmlinux", "incomplete");
    struct guest_kernel one = {0};
    struct guest_kernel two = {0};
    get(f, &one);
    assert_string_equal(one.release, "6.12.10-a");
    assert_true(strncmp(one.kernel_path, f->path, strlen(f->path)) == 0);
    assert_true(file_exists(AT_FDCWD, one.kernel_path));
    get(f, &two);
    assert_string_equal(one.initramfs_path, two.initramfs_path);
    assert_true(digest_equal(&one.digest, &two.digest));
    guest_kernel_fini(&two);
    /* A damaged initramfs is made again; a changed kernel is another digest. */
    AUTO_FD int fd = -1;
    assert_int_equal(file_open(&fd, AT_FDCWD, one.initramfs_path, O_WRONLY | O_TRUNC, 0, &e), 0);
    uint64_t size = 0;
    get(f, &two);
    assert_int_equal(file_size(AT_FDCWD, two.initramfs_path, &size, &e), 0);
    assert_true(size > 0);
    assert_true(digest_equal(&one.digest, &two.digest));
    guest_kernel_fini(&two);
    put_text(f, "kernel/6.12.10-a/vmlinux", "changed");
    get(f, &two);
    assert_false(digest_equal(&one.digest, &two.digest));
    guest_kernel_fini(&one);
    guest_kernel_fini(&two);
}

static void test_bad_order(void **state)
{
    struct fixture *f = *state;
    static const char *const orders[] = {"../vmlinux\n", "a/b.ko\n", ".b.ko\n"};
    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        struct err e = ERR_INIT;
        struct guest_kernel k = {0};
        put_release(f, "6.12.9-a");
        put_text(f, "kernel/6.12.9-a/modules/order", orders[i]);
        assert_int_equal(guest_kernel_get(&k, f->path, NULL, &e), -ERR_CORRUPT);
    }
}

static void put_program(struct fixture *f, const char *path, const char *text)
{
    put_text(f, path, text);
    assert_int_equal(fchmodat(f->dir, path, 0755, 0), 0);
}

/* guest_kernel_get with `bin` of the fixture first in PATH. */
static int get_with_programs(struct fixture *f, struct guest_kernel *k, struct err *e)
{
    AUTO_FREE char *path = mem_strdup(getenv("PATH"));
    AUTO_FREE char *longer = mem_printf("%s/bin:%s", f->path, path);
    assert_int_equal(setenv("PATH", longer, 1), 0);
    int rc = guest_kernel_get(k, f->path, NULL, e);
    assert_int_equal(setenv("PATH", path, 1), 0);
    return rc;
}

/* A real package; apt is played by two scripts, in German. */
static void test_fetch(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    put_package(f);
    put_text(f, "package/DEBIAN/control",
             "Package: linux-image-" RELEASE "\nVersion: 1\nArchitecture: amd64\n"
             "Maintainer: nobody <nobody@localhost>\nDescription: a made-up kernel\n");
    run(f, (const char *const[]){"mv", "boot", "usr", "package", NULL});
    run(f, (const char *const[]){"dpkg-deb", "-b", "package", "kernel.deb", NULL});
    put_program(f, "bin/apt-cache",
                "#!/bin/sh\necho linux-image-6.12-cloud-amd64\n"
                "echo '  H\303\244ngt ab von: linux-image-" RELEASE "'\n");
    AUTO_FREE char *get_text = mem_printf("#!/bin/sh\nexec cp %s/kernel.deb .\n", f->path);
    put_program(f, "bin/apt-get", get_text);
    struct guest_kernel k = {0};
    if (get_with_programs(f, &k, &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(k.release, RELEASE);
    assert_true(k.vsock);
    assert_false(file_exists(f->dir, "kernel/.fetch"));
    guest_kernel_fini(&k);
    get(f, &k); /* from now on nobody is asked */
    guest_kernel_fini(&k);
}

static void test_fetch_fails(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *cache, *get;
        enum err_class class;
        const char *text;
    } cases[] = {
        {"#!/bin/sh\n", "#!/bin/sh\n", ERR_NOTFOUND, "apt knows no package"},
        {"#!/bin/sh\necho '  Depends: linux-image-1'\n",
         "#!/bin/sh\necho 'E: Could not resolve deb.example' >&2\nexit 100\n", ERR_NET,
         "Could not resolve deb.example"},
        {"#!/bin/sh\necho '  Depends: linux-image-1'\n", "#!/bin/sh\n", ERR_NOTFOUND,
         "left no package"},
        {"#!/bin/sh\necho '  Depends: linux-image-1'\n", "#!/bin/sh\necho rubbish > x.deb\n",
         ERR_NET, "dpkg-deb"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        put_program(f, "bin/apt-cache", cases[i].cache);
        put_program(f, "bin/apt-get", cases[i].get);
        struct guest_kernel k = {0};
        assert_int_equal(get_with_programs(f, &k, &e), -(int)cases[i].class);
        if (!strstr(e.text, cases[i].text))
            fail_msg("expected '%s' in: %s", cases[i].text, e.text);
        assert_non_null(strstr(e.hint, "apt-get update"));
        assert_false(file_exists(f->dir, "kernel/.fetch"));
    }
}

/* Without apt the message says what to do, and nothing is left behind. */
static void test_no_apt(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *path = mem_strdup(getenv("PATH"));
    assert_int_equal(setenv("PATH", f->path, 1), 0);
    struct guest_kernel k = {0};
    int rc = guest_kernel_get(&k, f->path, NULL, &e);
    assert_int_equal(setenv("PATH", path, 1), 0);
    assert_int_equal(rc, -ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "fetching the guest kernel"));
    assert_non_null(strstr(e.text, "apt-cache"));
    assert_non_null(strstr(e.hint, "apt-get"));
    assert_false(file_exists(f->dir, "kernel/.fetch"));
}

static int setup(void **state)
{
    struct fixture *f = mem_zalloc(sizeof(*f));
    struct err e = ERR_INIT;
    if (!f)
        return -1;
    snprintf(f->path, sizeof(f->path), "/tmp/tb2-kernel-XXXXXX");
    if (!mkdtemp(f->path))
        return -1;
    *state = f;
    return file_open(&f->dir, AT_FDCWD, f->path, O_RDONLY | O_DIRECTORY, 0, &e);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    file_close(&f->dir);
    int rc = file_remove_tree(AT_FDCWD, f->path, &e);
    free(f);
    return rc;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {CASE(test_import),    CASE(test_import_refuses),
                                       CASE(test_payload),   CASE(test_cache),
                                       CASE(test_bad_order), CASE(test_no_apt),
                                       CASE(test_fetch),     CASE(test_fetch_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
