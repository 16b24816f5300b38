/* SPDX-License-Identifier: MIT */
/* Golden replay without machines: rewards, trees on their way to a guest, bounded output,
 * variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/golden.h"
#include "bake/golden/internal.h"
#include "base/file.h"
#include "base/mem.h"

/* ---- Rewards ---- */

static void reward_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double reward; /* -1: refused */
    } rows[] = {
        {"1", 1},
        {"0\n", 0},
        {" \t1.0 \r\n", 1},
        {"0.25", 0.25},
        {"+1", 1},
        {"1e0", 1},
        {"25E-2", 0.25},
        {".5", 0.5},
        {"1.", 1},
        {"", -1},
        {"\n", -1},
        {"1 1", -1},
        {"1\n0", -1},
        {"pass", -1},
        {"nan", -1},
        {"inf", -1},
        {"-inf", -1},
        {"1e999", -1},
        {"0x1", -1},
        {"1_0", -1},
        {"1,0", -1},
        {"1e", -1},
        {"e1", -1},
        {".", -1},
        {"--1", -1},
        {"1\033[2J", -1},
        {"11111111111111111111111111111111111111111111111111111111111111111111111111111", -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        double reward = -1;
        int rc = golden_reward_text(&reward, rows[i].text, strlen(rows[i].text), &e);
        assert_int_equal(rc, rows[i].reward < 0 ? -ERR_CORRUPT : 0);
        assert_true(reward == rows[i].reward);
        if (rc < 0)
            assert_non_null(strstr(e.text, "reward"));
    }
    struct err e = ERR_INIT;
    double reward = -1;
    assert_int_equal(golden_reward_text(&reward, "1\0", 2, &e), -ERR_CORRUPT);
    assert_int_equal(golden_reward_text(&reward, "1", 1, &e), 0); /* not terminated: bounded */
}

static void reward_documents(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
        bool found;
        double reward;
    } rows[] = {
        {"{\"reward\": 1}", 0, true, 1},
        {"{\"reward\": 0.5, \"tests\": {\"passed\": 3}}", 0, true, 0.5},
        {"{\"reward\": \"1\"}", 0, false, 0},
        {"{\"reward\": true}", 0, false, 0},
        {"{\"accuracy\": 1}", 0, false, 0},
        {"{}", 0, false, 0},
        {"[1]", -ERR_CORRUPT, false, 0},
        {"1", -ERR_CORRUPT, false, 0},
        {"", -ERR_CORRUPT, false, 0},
        {"{\"reward\": 1, \"reward\": 0}", -ERR_CORRUPT, false, 0},
        {"{\"reward\": NaN}", -ERR_CORRUPT, false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        double reward = 0;
        bool found = true;
        assert_int_equal(
            golden_reward_json(&reward, &found, rows[i].text, strlen(rows[i].text), &e),
            rows[i].rc);
        assert_true(found == rows[i].found && reward == rows[i].reward);
    }
}

/* ---- Trees ---- */

struct place {
    char path[64];
};

static void place_init(struct place *p)
{
    snprintf(p->path, sizeof(p->path), "/tmp/tb2-golden-XXXXXX");
    assert_non_null(mkdtemp(p->path));
}

static void place_fini(struct place *p)
{
    struct err e = ERR_INIT;
    assert_int_equal(file_remove_tree(AT_FDCWD, p->path, &e), 0);
}

static void write_file(const struct place *p, const char *name, const char *text, mode_t mode)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", p->path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static char *below(const struct place *p, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", p->path, name);
    return path;
}

/* What reached the other side, a line each, sorted. */
struct seen {
    char *lines[64];
    size_t count;
};

static void note(struct seen *s, char *line)
{
    assert_non_null(line);
    assert_true(s->count < ARRAY_LEN(s->lines));
    s->lines[s->count++] = line;
}

static int seen_dir(void *ctx, const char *path, uint32_t mode, struct err *e)
{
    (void)e;
    note(ctx, mem_printf("d %o %s", mode, path));
    return 0;
}

static int seen_put(void *ctx, const char *path, uint32_t mode, const void *data, size_t len,
                    struct err *e)
{
    (void)e;
    note(ctx, mem_printf("f %o %s %.*s", mode, path, (int)len, (const char *)data));
    return 0;
}

static int seen_link(void *ctx, const char *path, const char *target, struct err *e)
{
    (void)e;
    note(ctx, mem_printf("l %s %s", path, target));
    return 0;
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int put(const struct place *p, struct seen *s, struct err *e)
{
    const struct golden_target target = {
        .ctx = s, .make_dir = seen_dir, .put = seen_put, .link = seen_link};
    int rc = golden_put_tree(&target, p->path, "/tests", "test.sh", e);
    qsort(s->lines, s->count, sizeof(*s->lines), compare_lines);
    return rc;
}

static void seen_fini(struct seen *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->lines[i]);
}

static void trees_keep_their_shape(void **state)
{
    (void)state;
    struct place p;
    struct seen s = {.count = 0};
    struct err e = ERR_INIT;
    char path[256];
    place_init(&p);
    write_file(&p, "test.sh", "run", 0640); /* made executable */
    write_file(&p, ".hidden", "", 0600);
    assert_int_equal(mkdir(below(&p, "lib", path), 0700), 0);
    assert_int_equal(chmod(path, 0750), 0);
    write_file(&p, "lib/test.sh", "only the top one", 0444);
    write_file(&p, "lib/set uid", "s", 04755);
    assert_int_equal(symlink("/etc/shadow", below(&p, "shadow", path)), 0);
    assert_int_equal(symlink("lib", below(&p, "lib-link", path)), 0);
    assert_int_equal(put(&p, &s, &e), 0);
    static const char *const wanted[] = {
        "d 750 /tests/lib",
        "d 755 /tests",
        "f 444 /tests/lib/test.sh only the top one",
        "f 600 /tests/.hidden ",
        "f 751 /tests/test.sh run",
        "f 755 /tests/lib/set uid s",
        "l /tests/lib-link lib",
        "l /tests/shadow /etc/shadow",
    };
    assert_int_equal(s.count, ARRAY_LEN(wanted));
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        assert_string_equal(s.lines[i], wanted[i]);
    seen_fini(&s);
    place_fini(&p);
}

static void trees_that_are_refused(void **state)
{
    (void)state;
    static const char *const kinds[] = {"no script", "script is a link", "fifo", "too deep",
                                        "no directory"};
    static const enum err_class classes[] = {ERR_NOTFOUND, ERR_NOTFOUND, ERR_INPUT, ERR_LIMIT,
                                             ERR_NOTFOUND};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct place p;
        struct seen s = {.count = 0};
        struct err e = ERR_INIT;
        char path[256];
        place_init(&p);
        if (i == 1)
            assert_int_equal(symlink("/bin/true", below(&p, "test.sh", path)), 0);
        if (i >= 2)
            write_file(&p, "test.sh", "", 0755);
        if (i == 2)
            assert_int_equal(mkfifo(below(&p, "pipe", path), 0600), 0);
        char deep[256] = "";
        for (int n = 0; i == 3 && n <= GOLDEN_DEPTH_MAX; n++) {
            size_t len = strlen(deep);
            snprintf(deep + len, sizeof(deep) - len, "%sd", n > 0 ? "/" : "");
            assert_int_equal(mkdir(below(&p, deep, path), 0755), 0);
        }
        if (i == 4)
            place_fini(&p);
        assert_int_equal(put(&p, &s, &e), -(int)classes[i]);
        assert_non_null(strstr(e.text, p.path));
        seen_fini(&s);
        place_fini(&p);
    }
}

/* ---- Output ---- */

static char *read_back(const struct place *p, size_t *len)
{
    AUTO_BUF struct buf b;
    struct err e = ERR_INIT;
    char path[256];
    buf_init(&b, 8 << 20);
    assert_int_equal(file_read(AT_FDCWD, below(p, "out.txt", path), &b, &e), 0);
    *len = b.len;
    return buf_take(&b);
}

static void output_is_bounded(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        0,      10, GOLDEN_HEAD_MAX, GOLDEN_HEAD_MAX + 1, GOLDEN_HEAD_MAX + GOLDEN_TAIL_MAX + 1,
        5 << 20};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct place p;
        struct golden_output o;
        struct err e = ERR_INIT;
        place_init(&p);
        assert_int_equal(golden_output_open(&o, p.path, "out.txt", &e), 0);
        AUTO_FREE char *all = mem_zalloc(sizes[i] + 1);
        for (size_t n = 0; n < sizes[i]; n++)
            all[n] = (char)('a' + n % 23);
        for (size_t at = 0; at < sizes[i];) { /* in uneven pieces */
            size_t piece = 1 + at % 40000;
            piece = piece > sizes[i] - at ? sizes[i] - at : piece;
            assert_int_equal(golden_output_add(&o, 1, all + at, piece, &e), 0);
            at += piece;
        }
        char shown[2000];
        golden_output_show(&o, shown, sizeof(shown));
        size_t tail = strlen(shown);
        assert_true(tail <= sizes[i] && memcmp(shown, all + sizes[i] - tail, tail) == 0);
        assert_int_equal(golden_output_end(&o, &e), 0);
        golden_output_fini(&o);
        size_t len = 0;
        AUTO_FREE char *kept = read_back(&p, &len);
        assert_true(len <= GOLDEN_HEAD_MAX + GOLDEN_TAIL_MAX + 80);
        size_t head = sizes[i] < GOLDEN_HEAD_MAX ? sizes[i] : GOLDEN_HEAD_MAX;
        assert_memory_equal(kept, all, head);
        assert_memory_equal(kept + len - (len < 1000 ? len : 1000),
                            all + sizes[i] - (len < 1000 ? len : 1000), len < 1000 ? len : 1000);
        bool cut = sizes[i] > GOLDEN_HEAD_MAX + GOLDEN_TAIL_MAX;
        assert_true(cut == (len > head && strstr(kept + head, "left out here]") != NULL));
        assert_true(cut || len == sizes[i]);
        place_fini(&p);
    }
}

static void shown_output_is_harmless(void **state)
{
    (void)state;
    struct place p;
    struct golden_output o;
    struct err e = ERR_INIT;
    char shown[200];
    place_init(&p);
    assert_int_equal(golden_output_open(&o, p.path, "out.txt", &e), 0);
    assert_int_equal(golden_output_add(&o, 2, "a\033]0;title\007\0b\n\n", 14, &e), 0);
    golden_output_show(&o, shown, sizeof(shown));
    assert_null(strchr(shown, '\033'));
    assert_null(strchr(shown, '\007'));
    assert_true(shown[strlen(shown) - 1] == 'b');
    golden_output_fini(&o);
    struct stat info;
    char path[256];
    assert_int_equal(stat(below(&p, "out.txt", path), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    place_fini(&p);
}

/* ---- Variables, verdicts ---- */

static void variables_come_from_what_was_given(void **state)
{
    (void)state;
    static const char *const env[] = {"KEY=one", "KEYS=other", "KEY=two", "EMPTY="};
    const struct golden_options o = {.env = env, .env_count = ARRAY_LEN(env)};
    static const struct {
        const char *host, *own, *value;
    } rows[] = {
        {NULL, "literal", "literal"},   {"KEY", NULL, "two"},
        {"KEY", "default", "two"},      {"EMPTY", "default", ""},
        {"HOME", "default", "default"}, /* never taken by itself */
        {"HOME", NULL, NULL},           {"KE", NULL, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        AUTO_FREE char *host = rows[i].host ? mem_strdup(rows[i].host) : NULL;
        AUTO_FREE char *own = rows[i].own ? mem_strdup(rows[i].own) : NULL;
        const struct trial_variable v = {.value = own, .host = host};
        const char *value = golden_variable(&o, &v);
        assert_true(rows[i].value ? value && strcmp(value, rows[i].value) == 0 : !value);
    }
}

static void what_is_bad(void **state)
{
    (void)state;
    static const struct {
        enum golden_outcome outcome;
        bool known, bad;
    } rows[] = {
        {GOLDEN_PASSED, false, false}, {GOLDEN_PASSED, true, false}, {GOLDEN_FAILED, false, true},
        {GOLDEN_FAILED, true, false},  {GOLDEN_ERROR, false, true},  {GOLDEN_ERROR, true, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char task[] = "one";
        struct golden_result r = {.task = task,
                                  .outcome = rows[i].outcome,
                                  .known_to_fail = rows[i].known,
                                  .source = GOLDEN_REWARD_TEXT,
                                  .reward = 0.5,
                                  .err = ERR_INIT};
        assert_true(golden_is_bad(&r) == rows[i].bad);
        AUTO_JSON struct json *j = golden_result_json(&r);
        const char *text = NULL;
        double reward = 0;
        struct err e = ERR_INIT;
        assert_int_equal(json_get_string(j, "outcome", &text, &e), 0);
        assert_string_equal(text, golden_outcome_name(rows[i].outcome));
        assert_true(json_as_number(json_member(j, "reward"), &reward) && reward == 0.5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reward_texts),
        cmocka_unit_test(reward_documents),
        cmocka_unit_test(trees_keep_their_shape),
        cmocka_unit_test(trees_that_are_refused),
        cmocka_unit_test(output_is_bounded),
        cmocka_unit_test(shown_output_is_harmless),
        cmocka_unit_test(variables_come_from_what_was_given),
        cmocka_unit_test(what_is_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
