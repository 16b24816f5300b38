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

/* A bar for the stages, and what registries grant. */
static void tells_stages_and_limits(void **state)
{
    (void)state;
    static const struct {
        struct bake_traffic traffic;
        const char *text;
    } rows[] = {
        {{.has_quota = true, .quota_remaining = 63, .quota_limit = 100}, "63 of 100 pulls left"},
        {{.has_quota = true, .quota_remaining = 7}, ", 7 pulls left"},
        {{.has_quota = true, .quota_remaining = 63, .limited_ms = 90000},
         "rate limit: the registry is asked again in 1 m "},
    };
    int terminal;
    int other;
    assert_int_equal(openpty(&terminal, &other, NULL, NULL, NULL), 0);
    resize(terminal, 160);
    int held = dup(STDERR_FILENO);
    dup2(other, STDERR_FILENO);
    struct err e = ERR_INIT;
    struct ui *ui = NULL;
    int rc = ui_new(&ui, UI_LIVE, false, &e);
    const struct bake_task_result result = {.task = "count-words", .stage = STAGE_BOOT};
    bool bar = false;
    size_t told = 0;
    if (rc == 0) {
        ui_event(ui, &(struct bake_event){.kind = EVENT_RUN_STARTED, .count = 1});
        ui_event(ui, &(struct bake_event){.kind = EVENT_STAGE_STARTED, .result = &result});
        bar = comes(terminal, "[====>-----] boot", 4000);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            ui_event(ui, &(struct bake_event){.kind = EVENT_TRAFFIC, .traffic = &rows[i].traffic});
            told += comes(terminal, rows[i].text, 4000);
        }
    }
    ui_free(ui);
    dup2(held, STDERR_FILENO);
    close(held);
    close(other);
    close(terminal);
    assert_int_equal(rc, 0);
    assert_true(bar);
    assert_int_equal(told, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(survives_a_resize),
                                       cmocka_unit_test(tells_stages_and_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
