/* SPDX-License-Identifier: MIT */
/* Copy steps: what is laid, what becomes of what is there, what is refused, what the digest says. */
#include <dirent.h>
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

#include "bake/recipe/files.h"
#include "bake/step/steps.h"
#include "base/file.h"
#include "base/mem.h"
#include "steps_world.h"

static const char *const none[4] = {NULL};

/* Runs shell text in the fixture's directory, by the agent; it must end well. */
static void prepare(struct fixture *f, const char *text)
{
    AUTO_FREE char *step = mem_printf("steps:\n  - run: |\n      set -e\n      %s\n", text);
    expect_steps(f, step, none);
}

/* A step that copies, followed by shell text that must find all as it should be. Owners are the tester's
 * own, who may not be root. */
static void expect_copy(struct fixture *f, const char *copy, const char *test)
{
    AUTO_FREE char *text =
        mem_printf("steps:\n  - copy: {owner: '%u:%u', %s}\n  - run: |\n      set -ex\n      %s\n",
                   (unsigned)getuid(), (unsigned)getgid(), copy, test);
    expect_steps(f, text, none);
}

static void expect_refused(struct fixture *f, const char *copy, enum err_class class,
                           const char *part)
{
    struct world w;
    struct err e = ERR_INIT;
    AUTO_FREE char *text =
        mem_printf("steps:\n  - copy: {owner: '%u:%u', %s}\n  - run: touch DIR/after\n",
                   (unsigned)getuid(), (unsigned)getgid(), copy);
    open_world(&w, f, text);
    int rc = guest_run_steps(&w.guest, &w.run, &e);
    if (rc != -(int)class || !strstr(e.text, part))
        fail_msg("%s: %d, \"%s\"", copy, rc, e.text);
    close_world(&w);
    AUTO_FREE char *after = mem_printf("%s/after", f->dir);
    assert_int_equal(access(after, F_OK), -1);
}

static const char rootfs[] =
    "mkdir -p src/etc/app src/usr/bin src/.hidden src/empty/er; "
    "echo new > src/etc/conf; echo b > src/etc/app/b; echo tool > src/usr/bin/tool; "
    "chmod 755 src/usr/bin/tool; echo dot > src/.hidden/.file; echo secret > src/etc/shadow; "
    "chmod 600 src/etc/shadow; ln -s ../etc/conf src/usr/link; ln -s /nowhere src/broken; "
    "ln src/etc/conf src/etc/same; chmod 750 src/etc/app; : > src/nothing";

static void merges_like_docker(void **state)
{
    struct fixture *f = *state;
    prepare(f, rootfs);
    prepare(f, "mkdir -p to/etc/app to/usr; echo old > to/etc/conf; echo kept > to/etc/kept; "
               "echo a > to/etc/app/a; ln -s conf to/etc/shadow; chmod 700 to");
    for (int round = 0; round < 2; round++) {
        expect_copy(
            f, "from: src, to: DIR/to",
            "cd to; test \"$(cat etc/conf)\" = new; test \"$(cat etc/kept)\" = kept; "
            "test \"$(cat etc/app/a)$(cat etc/app/b)\" = ab; test -x usr/bin/tool; "
            "test \"$(cat .hidden/.file)\" = dot; test -d empty/er; "
            "test \"$(stat -c %a etc/shadow)\" = 600; test ! -L etc/shadow; "
            "test \"$(readlink usr/link)\" = ../etc/conf; test \"$(readlink broken)\" = /nowhere; "
            "test etc/same -ef etc/conf; test \"$(stat -c %a etc/app .)\" = \"$(printf "
            "'750\\n700')\"; "
            "test -f nothing; test ! -s nothing; "
            "test \"$(stat -c %Y etc/conf etc/app usr/link | sort -u)\" = 315619200; "
            "test \"$(find . | wc -l)\" = 19");
    }
}

static void where_files_go(void **state)
{
    struct fixture *f = *state;
    prepare(f, "mkdir -p src/d there; echo f > src/f; echo g > src/d/g");
    expect_copy(f, "from: src/f, to: DIR/new/",
                "test \"$(cat new/f)\" = f; test $(stat -c %a new) = 755");
    expect_copy(f, "from: src/f, to: DIR/deep/er/name", "test \"$(cat deep/er/name)\" = f");
    expect_copy(f, "from: src/f, to: DIR/there", "test \"$(cat there/f)\" = f");
    expect_copy(f, "from: src/f, to: ./", "test \"$(cat f)\" = f");
    expect_copy(f, "from: src/f, to: .", "test \"$(cat f)\" = f");
    expect_copy(f, "from: src/f, to: relative", "test \"$(cat relative)\" = f");
    expect_copy(f, "from: src/d/, to: tree/", "test \"$(cat tree/g)\" = g");
    prepare(f, "chmod 750 src/d");
    expect_copy(f, "from: src/d/, to: DIR/made/here/",
                "test $(stat -c %a made) = 755; test $(stat -c %a made/here) = 750");
    expect_copy(f, "from: src, to: DIR/all", "test \"$(cat all/d/g)\" = g");
    /* a link to the source is the person's own */
    prepare(f, "ln -s src way; ln -s f src/to-f");
    expect_copy(f, "from: way, to: by-link", "test \"$(cat by-link/f)\" = f; test -L by-link/to-f");
    expect_copy(f, "from: src/to-f, to: one", "test \"$(cat one)\" = f; test ! -L one");
}

static void what_is_in_the_way(void **state)
{
    struct fixture *f = *state;
    prepare(f, "mkdir -p src/x dst/real file/x; echo new > src/x/y; ln -s real dst/x; "
               "echo f > src-file; mkdir dir; echo t > target; ln -s target link; echo h > plain");
    /* a link to a directory is followed, as /bin of a merged image is */
    expect_copy(f, "from: src, to: DIR/dst", "test -L dst/x; test \"$(cat dst/real/y)\" = new");
    /* a link is replaced, not followed, by a file */
    expect_copy(f, "from: src-file, to: DIR/link",
                "test ! -L link; test \"$(cat link)\" = f; test \"$(cat target)\" = t");
    prepare(f, "mkdir -p src2 dst2/a dst3; : > src2/a; mkdir -p src3/b; : > dst3/b");
    expect_refused(f, "from: src2, to: DIR/dst2", ERR_STEP, "a in the guest: Is a directory");
    expect_refused(f, "from: src3, to: DIR/dst3", ERR_STEP, "b in the guest: Not a directory");
    expect_refused(f, "from: src3, to: DIR/plain", ERR_STEP, "plain in the guest: ");
    expect_refused(f, "from: src-file, to: DIR/plain/x", ERR_STEP, "in the guest: Not a directory");
    static const char *const nobody[4] = {"user no-such is not in the guest's /etc/passwd"};
    static const char *const no_group[4] = {"group no-such is not in the guest's /etc/group"};
    expect_steps(f, "steps:\n  - copy: {from: src-file, to: DIR/n, owner: no-such}\n", nobody);
    expect_steps(f, "steps:\n  - copy: {from: src-file, to: DIR/n, owner: '0:no-such'}\n",
                 no_group);
}

static void modes_and_excludes(void **state)
{
    struct fixture *f = *state;
    prepare(f, "mkdir -p src/d/e src/cache/deep src/a/b; : > src/d/f.o; : > src/d/f.c; : > "
               "src/cache/deep/x; "
               ": > src/a/b/c; : > src/b; chmod 777 src/d/f.c");
    expect_copy(f, "from: src, to: m, mode: 0640",
                "test $(stat -c %a m/d/f.c) = 640; test $(stat -c %a m/d) = 750; test $(stat -c %a "
                "m) = 750");
    expect_copy(f, "from: src/b, to: one, mode: 4711", "test $(stat -c %a one) = 4711");
    expect_copy(
        f, "from: src, to: x, exclude: ['*.o', cache, a/b, '/b']",
        "cd x; test \"$(find . -type f)\" = ./d/f.c; test -d a; test ! -e cache; test ! -e a/b; "
        "test -d d/e; test ! -e b");
}

static void many_and_big(void **state)
{
    struct fixture *f = *state;
    prepare(f, "mkdir many; i=0; while test $i -lt 3000; do echo $i > many/$i; i=$((i+1)); done; "
               "head -c 5000000 /dev/urandom > many/big; head -c 131072 /dev/zero > many/even");
    expect_copy(f, "from: many, to: copy", "diff -r many copy; test $(ls copy | wc -l) = 3002");
}

static void refused(void **state)
{
    struct fixture *f = *state;
    prepare(f, "mkdir -p pipe out deep; mkfifo pipe/p; ln -s /etc/passwd out/p; ln -s / out/all; "
               "mkdir -p deep/$(printf 'd/%.0s' $(seq 70))");
    expect_refused(f, "from: pipe, to: x", ERR_INPUT, "pipe/p: neither file, directory nor link");
    expect_refused(f, "from: pipe/p, to: x", ERR_INPUT, "neither file nor directory");
    expect_refused(f, "from: missing, to: x", ERR_NOTFOUND, "missing does not exist");
    expect_refused(f, "from: deep, to: x", ERR_LIMIT, "more than 64 levels");
    expect_copy(f, "from: pipe, to: without, exclude: [p]", "test -z \"$(ls without)\"");
    /* what links lead to is nobody's business */
    expect_copy(f, "from: out, to: links", "test -L links/p; test -L links/all");
    struct world w;
    struct err e = ERR_INIT;
    open_world(&w, f, "steps:\n  - copy: {from: missing, to: x}\n");
    assert_int_equal(recipe_read_files(w.recipe, NULL, &e), -ERR_INPUT);
    assert_non_null(strstr(e.text, "line 3 of the recipe: "));
    close_world(&w);
}

/* ---- Digests ---- */

static char *content(struct fixture *f, const char *copy)
{
    struct world w;
    struct err e = ERR_INIT;
    AUTO_FREE char *text = mem_printf("steps:\n  - copy: {to: x, %s}\n", copy);
    open_world(&w, f, text);
    must(recipe_read_files(w.recipe, NULL, &e), &e);
    AUTO_JSON struct json *j = recipe_canonical(w.recipe);
    char *out = NULL;
    must(json_print(j, 0, &out, &e), &e);
    close_world(&w);
    return out;
}

static void what_changes_the_key(void **state)
{
    struct fixture *f = *state;
    prepare(f, "mkdir -p a/d b; echo 1 > a/f; echo 2 > a/d/g; ln -s f a/l; "
               "ln -s f b/l; mkdir b/d; echo 2 > b/d/g; echo 1 > b/f; touch -d @1 b/f b/d b; echo "
               "x > b/x.o");
    AUTO_FREE char *first = content(f, "from: a");
    AUTO_FREE char *second = content(f, "from: b, exclude: ['*.o']");
    assert_string_equal(first, second);
    static const char *const changes[] = {
        "echo 3 > b/f", "chmod 600 b/f",        "mv b/d b/e",         "ln -sf g b/l", "mkdir b/n",
        "rm b/l",       "rm b/f; ln b/d/g b/f", "rm -r b/d; : > b/d", "chmod 700 b",
    };
    char *texts[ARRAY_LEN(changes)];
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        prepare(f, "rm -rf b; cp -a a b");
        prepare(f, changes[i]);
        texts[i] = content(f, "from: b");
        assert_string_not_equal(texts[i], first);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(texts[i], texts[j]);
    }
    for (size_t i = 0; i < ARRAY_LEN(changes); i++)
        free(texts[i]);
    /* modes that are given count, not those of the host */
    prepare(f, "rm -rf b; cp -a a b; chmod 700 b/d b/f");
    AUTO_FREE char *moded = content(f, "from: a, mode: 644");
    AUTO_FREE char *same = content(f, "from: b, mode: 644");
    assert_string_equal(moded, same);
}

/* What is laid is what the key speaks of. */
static void changed_since(void **state)
{
    struct fixture *f = *state;
    struct world w;
    struct err e = ERR_INIT;
    prepare(f, "mkdir a; echo 1 > a/f");
    AUTO_FREE char *text = mem_printf("steps:\n  - copy: {from: a, to: x, owner: '%u:%u'}\n",
                                      (unsigned)getuid(), (unsigned)getgid());
    open_world(&w, f, text);
    must(recipe_read_files(w.recipe, NULL, &e), &e);
    must(guest_run_steps(&w.guest, &w.run, &e), &e);
    prepare(f, "echo 2 > a/f");
    assert_int_equal(guest_run_steps(&w.guest, &w.run, &e), -ERR_STEP);
    assert_non_null(strstr(e.text, "a was changed since the bake began"));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(merges_like_docker, set_up, tear_down),
        cmocka_unit_test_setup_teardown(where_files_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_in_the_way, set_up, tear_down),
        cmocka_unit_test_setup_teardown(modes_and_excludes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_and_big, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_changes_the_key, set_up, tear_down),
        cmocka_unit_test_setup_teardown(changed_since, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("copy", tests, NULL, NULL);
}
