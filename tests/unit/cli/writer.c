/* SPDX-License-Identifier: MIT */
/* Events for a reader that is slow: they wait or are dropped, and nobody waits for the reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "cli/event_writer.h"

enum { LINES = 200, LINE_LEN = 64 << 10 };

static char *make_line(char letter)
{
    char *line = mem_zalloc(LINE_LEN + 1);
    assert_non_null(line);
    memset(line, letter, LINE_LEN);
    return line;
}

/* More than a pipe and the writer hold is put before anybody reads: all that matters comes through, in
 * order, and what is missing is counted. */
static void a_slow_reader_holds_nobody_up(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    FILE *to = fdopen(ends[1], "w");
    FILE *from = fdopen(ends[0], "r");
    struct event_writer *w = NULL;
    assert_int_equal(event_writer_new(&w, to, &e), 0);
    for (int i = 0; i < LINES; i++)
        event_writer_put(w, make_line('p'), true);
    for (int i = 0; i < LINES; i++)
        event_writer_put(w, make_line('k'), false);
    size_t kept = 0;
    size_t passing = 0;
    size_t dropped = 0;
    AUTO_FREE char *line = mem_zalloc(LINE_LEN + 2);
    while (kept < LINES && fgets(line, LINE_LEN + 2, from)) {
        size_t count = 0;
        if (line[0] == '{')
            assert_int_equal(sscanf(line, "{\"count\":%zu,\"event\":\"dropped\"}", &count), 1);
        dropped += count;
        passing += line[0] == 'p';
        kept += line[0] == 'k';
        assert_true(line[0] != 'p' || kept == 0);
    }
    assert_int_equal(kept, LINES);
    assert_true(passing > 0 && dropped > 0);
    assert_int_equal(passing + dropped, LINES);
    event_writer_free(w);
    fclose(to);
    fclose(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_slow_reader_holds_nobody_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
