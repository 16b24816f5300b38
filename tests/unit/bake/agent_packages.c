/* SPDX-License-Identifier: MIT */
/* What the agent says of package managers: from an image's own files, held locks, processes. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/agent/agent.h"
#include "base/file.h"

/* The /proc that is looked at has the locks of this machine, and only the processes that a test shows:
 * on a machine where packages are being installed the test is the same. */
struct image {
    char root[64];
    char proc[80];
};

static void show(const struct image *i, const char *name)
{
    char to[128];
    char from[128];
    snprintf(to, sizeof(to), "/proc/%s", name);
    snprintf(from, sizeof(from), "%s/%s", i->proc, name);
    assert_int_equal(symlink(to, from), 0);
}

static int set_up(void **state)
{
    struct image *i = calloc(1, sizeof(*i));
    snprintf(i->root, sizeof(i->root), "/tmp/tb2-packages-XXXXXX");
    assert_non_null(mkdtemp(i->root));
    snprintf(i->proc, sizeof(i->proc), "%s/proc", i->root);
    assert_int_equal(mkdir(i->proc, 0755), 0);
    show(i, "locks");
    *state = i;
    return 0;
}

static int tear_down(void **state)
{
    struct image *i = *state;
    struct err e = ERR_INIT;
    int rc = file_remove_tree(AT_FDCWD, i->root, &e);
    free(i);
    return rc;
}

/* A file of the image, open; its directories are made. */
static int put(const struct image *i, const char *path, const char *text)
{
    struct err e = ERR_INIT;
    char full[256];
    snprintf(full, sizeof(full), "%s%s", i->root, path);
    char *slash = strrchr(full, '/');
    *slash = 0;
    assert_int_equal(file_make_dirs(AT_FDCWD, full, &e), 0);
    *slash = '/';
    int fd = open(full, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    return fd;
}

static struct packages look(const struct image *i)
{
    struct packages p;
    packages_look(&p, i->root, i->proc);
    return p;
}

static const char status_text[] = "Package: good\n"
                                  "Status: install ok installed\n"
                                  "Description: Status: install ok half-installed\n"
                                  "\n"
                                  "Package: removed\n"
                                  "Status: deinstall ok config-files\n"
                                  "\n"
                                  "Package: held\n"
                                  "Status: hold ok installed\n";

static void test_states(void **state)
{
    static const struct {
        const char *status;
        uint32_t count;
        const char *text;
    } rows[] = {
        {"install ok installed", 0, ""},
        {"install ok not-installed", 0, ""},
        {"install ok unpacked", 1, "half (unpacked)"},
        {"install ok half-installed", 1, "half (half-installed)"},
        {"install ok half-configured", 1, "half (half-configured)"},
        {"install ok triggers-awaited", 1, "half (triggers-awaited)"},
        {"install ok triggers-pending", 1, "half (triggers-pending)"},
        {"install reinstreq installed", 1, "half (installed)"},
        {"garbage", 0, ""},
    };
    const struct image *i = *state;
    close(put(i, "/var/lib/dpkg/status", status_text));
    struct packages p = look(i);
    assert_int_equal(p.broken_count, 0);
    for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
        char text[1024];
        snprintf(text, sizeof(text), "%s\nPackage: half\nStatus: %s\n", status_text,
                 rows[n].status);
        close(put(i, "/var/lib/dpkg/status", text));
        p = look(i);
        if (p.broken_count != rows[n].count || strcmp(p.broken, rows[n].text) != 0)
            fail_msg("%s: %u, '%s'", rows[n].status, p.broken_count, p.broken);
    }
}

/* The sum is that of the set, whatever its order; the text is bounded. */
static void test_many(void **state)
{
    const struct image *i = *state;
    uint32_t sums[2];
    for (int order = 0; order < 2; order++) {
        int fd = put(i, "/var/lib/dpkg/status", "");
        for (int n = 0; n < 1000; n++)
            dprintf(fd, "Package: package-number-%d\nStatus: install ok unpacked\n\n",
                    order ? 999 - n : n);
        close(fd);
        struct packages p = look(i);
        assert_int_equal(p.broken_count, 1000);
        assert_true(strlen(p.broken) < sizeof(p.broken));
        sums[order] = p.broken_sum;
    }
    assert_int_equal(sums[0], sums[1]);
}

static void test_left_behind(void **state)
{
    static const struct {
        const char *path;
        const char *content;
        const char *text;
    } rows[] = {
        {"/var/lib/dpkg/updates/0003", "x", "updates is not empty"},
        {"/lib/apk/db/installed", "C:Q1\nP:musl\nV:1\n\nP:torn\nf:f\n", "torn (broken for apk)"},
        {"/usr/lib/apk/db/installed", "P:torn\nf:s\n", "torn (broken for apk)"},
        {"/var/lib/pacman/db.lck", "", "db.lck is there"},
    };
    const struct image *i = *state;
    for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
        close(put(i, rows[n].path, rows[n].content));
        struct packages p = look(i);
        assert_int_equal(p.broken_count, 1);
        if (!strstr(p.broken, rows[n].text))
            fail_msg("%s: '%s'", rows[n].path, p.broken);
        char full[256];
        snprintf(full, sizeof(full), "%s%s", i->root, rows[n].path);
        assert_int_equal(unlink(full), 0);
    }
    close(put(i, "/var/lib/dpkg/updates/tmp.i", "")); /* dpkg's own scratch file */
    assert_int_equal(look(i).broken_count, 0);
}

/* Both kinds of locks; a lock file that nobody holds means nothing. */
static void test_locks(void **state)
{
    const struct image *i = *state;
    int fd = put(i, "/var/lib/dpkg/lock-frontend", "");
    int apk = put(i, "/lib/apk/db/lock", "");
    assert_string_equal(look(i).busy, "");
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(fd, F_SETLK, &lock), 0);
    struct packages p = look(i);
    assert_non_null(strstr(p.busy, "holds the lock /var/lib/dpkg/lock-frontend"));
    lock.l_type = F_UNLCK;
    assert_int_equal(fcntl(fd, F_SETLK, &lock), 0);
    assert_string_equal(look(i).busy, "");
    assert_int_equal(flock(apk, LOCK_EX), 0);
    p = look(i);
    assert_non_null(strstr(p.busy, "holds the lock /lib/apk/db/lock"));
    close(apk);
    close(fd);
    assert_string_equal(look(i).busy, "");
}

static void test_processes(void **state)
{
    const struct image *i = *state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, "dpkg", 0, 0, 0);
        close(ends[0]);
        if (write(ends[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    char text[64];
    snprintf(text, sizeof(text), "%d", pid);
    show(i, text);
    snprintf(text, sizeof(text), "dpkg (process %d) is running", pid);
    assert_string_equal(look(i).busy, text);
    kill(pid, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_string_equal(look(i).busy, ""); /* dead, but not reaped */
    waitpid(pid, NULL, 0);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_states, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_left_behind, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_locks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_processes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
