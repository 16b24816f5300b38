/* SPDX-License-Identifier: MIT */
/* Users and groups read from an image's own files. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/agent/agent.h"
#include "bake/channel/protocol.h"
#include "base/file.h"
#include "base/mem.h"

static const char passwd_text[] = "root:x:0:0:root:/root:/bin/sh\n"
                                  "\n"
                                  "# a comment\n"
                                  "short:x:1\n"
                                  "bad:x:one:1::/bad:/bin/sh\n"
                                  "minus:x:-1:1::/bad:/bin/sh\n"
                                  "huge:x:4294967296:1::/bad:/bin/sh\n"
                                  "app:x:1000:1001:App:/home/app:/bin/sh\n"
                                  "app:x:2000:2001:second line loses:/two:/bin/sh\n"
                                  "nohome:x:1002:1002:::\n"
                                  "1000:x:3000:3000:a name that is a number:/num:/bin/sh\n"
                                  "last:x:7:7::/last:/bin/sh";

static const char group_text[] = "root:x:0:\n"
                                 "wheel:x:10:root,app\n"
                                 "docker:x:999:app\n"
                                 "apps:x:998:apple,myapp,app2\n"
                                 "broken:x\n"
                                 "video:x:44:other,app\n";

struct files {
    char dir[64];
    char passwd[96];
    char group[96];
};

static void write_text(const char *path, const char *text, size_t len)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    assert_int_equal(file_open(&fd, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &e), 0);
    assert_int_equal(file_write_full(fd, text, len, &e), 0);
}

static int set_up(void **state)
{
    struct files *f = calloc(1, sizeof(*f));
    snprintf(f->dir, sizeof(f->dir), "/tmp/tb2-user-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->passwd, sizeof(f->passwd), "%s/passwd", f->dir);
    snprintf(f->group, sizeof(f->group), "%s/group", f->dir);
    write_text(f->passwd, passwd_text, strlen(passwd_text));
    write_text(f->group, group_text, strlen(group_text));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct files *f = *state;
    struct err e = ERR_INIT;
    int rc = file_remove_tree(AT_FDCWD, f->dir, &e);
    free(f);
    return rc;
}

static void test_resolve(void **state)
{
    struct files *f = *state;
    static const struct {
        const char *spec;
        int result;
        enum agent_stage stage;
        uid_t uid;
        gid_t gid;
        const char *home;
        size_t group_count;
        gid_t groups[3];
    } cases[] = {
        {"", 0, 0, 0, 0, "/root", 1, {10}},
        {"root", 0, 0, 0, 0, "/root", 1, {10}},
        {"0", 0, 0, 0, 0, "/root", 1, {10}},
        {"app", 0, 0, 1000, 1001, "/home/app", 3, {10, 999, 44}},
        {"1000", 0, 0, 1000, 1001, "/home/app", 3, {10, 999, 44}},
        {"app:", 0, 0, 1000, 1001, "/home/app", 3, {10, 999, 44}},
        {"app:docker", 0, 0, 1000, 999, "/home/app", 0, {0}},
        {"app:0", 0, 0, 1000, 0, "/home/app", 0, {0}},
        {"app:12345", 0, 0, 1000, 12345, "/home/app", 0, {0}},
        {"5000", 0, 0, 5000, 0, "", 0, {0}},
        {"5000:video", 0, 0, 5000, 44, "", 0, {0}},
        {":video", 0, 0, 0, 44, "/root", 0, {0}},
        {"nohome", 0, 0, 1002, 1002, "", 0, {0}},
        {"last", 0, 0, 7, 7, "/last", 0, {0}},
        {"2147483647", 0, 0, 2147483647, 0, "", 0, {0}},
        {"2147483648", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
        {"bad", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
        {"minus", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
        {"huge", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
        {"short", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
        {"ghost", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
        {"app:ghosts", -ENOENT, AGENT_AT_GROUP, 0, 0, "", 0, {0}},
        {"app:broken", -ENOENT, AGENT_AT_GROUP, 0, 0, "", 0, {0}},
        {"-1", -ENOENT, AGENT_AT_USER, 0, 0, "", 0, {0}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct identity who;
        enum agent_stage stage = 0;
        int result = user_resolve(&who, cases[i].spec, f->passwd, f->group, &stage);
        if (result != cases[i].result)
            fail_msg("\"%s\": %d", cases[i].spec, result);
        if (result < 0) {
            assert_int_equal(stage, cases[i].stage);
            continue;
        }
        assert_int_equal(who.uid, cases[i].uid);
        assert_int_equal(who.gid, cases[i].gid);
        assert_string_equal(who.home, cases[i].home);
        assert_int_equal(who.group_count, cases[i].group_count);
        for (size_t k = 0; k < who.group_count; k++)
            assert_int_equal(who.groups[k], cases[i].groups[k]);
    }
}

static void test_no_files(void **state)
{
    (void)state;
    struct identity who;
    enum agent_stage stage;
    assert_int_equal(user_resolve(&who, "", "/no/passwd", "/no/group", &stage), 0);
    assert_int_equal(who.uid, 0);
    assert_int_equal(user_resolve(&who, "root", "/no/passwd", "/no/group", &stage), 0);
    assert_int_equal(user_resolve(&who, "7:8", "/no/passwd", "/no/group", &stage), 0);
    assert_int_equal(who.gid, 8);
    assert_int_equal(user_resolve(&who, "app", "/no/passwd", "/no/group", &stage), -ENOENT);
    assert_int_equal(user_resolve(&who, "root:g", "/no/passwd", "/no/group", &stage), -ENOENT);
    assert_int_equal(stage, AGENT_AT_GROUP);
    assert_int_equal(user_resolve(&who, "root", "/tmp", "/no/group", &stage), 0); /* a directory */
}

/* Lines of any length, many groups: what does not fit is passed over, the rest is found. */
static void test_hostile_files(void **state)
{
    struct files *f = *state;
    AUTO_FREE char *text = mem_zalloc(100000);
    memset(text, 'a', 90000);
    static const char tail[] = ":x:1:1::/long:\nend:x:3:3::/end:\n";
    memcpy(text + 90000, tail, sizeof(tail));
    write_text(f->passwd, text, 90000 + sizeof(tail) - 1);
    struct identity who;
    enum agent_stage stage;
    assert_int_equal(user_resolve(&who, "end", f->passwd, f->group, &stage), 0);
    assert_int_equal(who.uid, 3);

    size_t len = 0;
    for (int i = 0; i < 500; i++)
        len += (size_t)snprintf(text + len, 100000 - len, "g%d:x:%d:end\n", i, i);
    write_text(f->group, text, len);
    assert_int_equal(user_resolve(&who, "end", f->passwd, f->group, &stage), 0);
    assert_int_equal(who.group_count, GROUPS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_resolve, set_up, tear_down),
        cmocka_unit_test(test_no_files),
        cmocka_unit_test_setup_teardown(test_hostile_files, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
