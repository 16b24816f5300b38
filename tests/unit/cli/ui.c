/* SPDX-License-Identifier: MIT */
/* The live view on a terminal that changes its size: what is erased is what stands there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/ui.h"

static void resize(int terminal, unsigned short columns)
{
    struct winsize w = {.ws_col = columns, .ws_row = 24};
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &w), 0);
}

/* Reads until the text comes, for at most so many bytes. */
static bool comes(int terminal, const char *text, size_t most)
{
    char seen[16384];
    size_t len = 0;
    while (len < most && len + 1 < sizeof(seen)) {
        ssize_t n = read(terminal, seen + len, 1);
        if (n != 1)
            return false;
        len++;
        seen[len] = 0;
        if (strstr(len > 64 ? seen + len - 64 : seen, text))
            return true;
    }
    return false;
}

static void survives_a_resize(void **state)
{
    (void)state;
    int terminal;
    int other;
    assert_int_equal(openpty(&terminal, &other, NULL, NULL, NULL), 0);
    resize(terminal, 100);
    int held = dup(STDERR_FILENO);
    dup2(other, STDERR_FILENO);
    struct err e = ERR_INIT;
    struct ui *ui = NULL;
    int rc = ui_new(&ui, UI_LIVE, false, &e);
    const struct bake_task_result result = {.task = "count-words", .stage = STAGE_BOOT};
    bool drawn = false;
    bool erased = false;
    if (rc == 0) {
        ui_event(ui, &(struct bake_event){.kind = EVENT_RUN_STARTED, .count = 1});
        ui_event(ui, &(struct bake_event){.kind = EVENT_STAGE_STARTED, .result = &result});
        /* 66 and 39 columns, three and two lines of 30. A resize in the middle of a frame does not show. */
        for (int i = 0; i < 20 && !erased; i++) {
            resize(terminal, 100);
            drawn =
                comes(terminal, "\x1b[2A\r\x1b[J", 1000) && comes(terminal, "1 running, ", 1000);
            resize(terminal, 30);
            erased = comes(terminal, "\x1b[5A\r\x1b[J", 400);
        }
    }
    ui_free(ui);
    dup2(held, STDERR_FILENO);
    close(held);
    close(other);
    close(terminal);
    assert_int_equal(rc, 0);
    assert_true(drawn);
    assert_true(erased);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(survives_a_resize)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
