/* SPDX-License-Identifier: MIT */
/* After the steps: the start command, and the check that says when it is ready. */
#include <stdio.h>

#include "bake/channel.h"
#include "bake/step/internal.h"
#include "bake/step/steps.h"
#include "base/clock.h"

int guest_start(struct guest *g, const struct recipe *r, const struct guest_context *context,
                uint64_t *process, struct err *e)
{
    *process = 0;
    if (!r->start)
        return 0;
    struct command c = {.exec = {.detach = true}};
    int rc = prepare_text(g, &c, r->start, false, e);
    struct agent_result result = {0};
    use_context(&c, context);
    if (rc == 0)
        rc = agent_run(g->agent, &c.exec, NULL, NULL, &result, e);
    if (rc < 0)
        return err_in(e, "running the start command");
    *process = result.id;
    return 0;
}

int guest_check_started(struct guest *g, uint64_t process, struct err *e)
{
    if (process == 0)
        return 0;
    AUTO_BUF struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    bool running = false;
    struct agent_result result = {0};
    int rc = agent_process(g->agent, process, &running, &result, &tail, e);
    if (rc < 0 || running || (result.exited && result.status == 0))
        return rc;
    command_failed(g, &result, &tail, 0, e);
    return err_in(e, "start command ended before it was ready");
}

static int try_http(struct guest *g, const struct recipe_ready *ready, bool *passed,
                    struct buf *tail, struct err *e)
{
    const struct agent_web_page page = {ready->port, ready->http_path};
    unsigned status = 0;
    int rc = agent_probe_http(g->agent, &page, (int64_t)ready->try_timeout_ms, &status, e);
    *passed = rc == 0 &&
              (ready->http_status ? status == ready->http_status : status >= 200 && status <= 399);
    buf_drop(tail, tail->len);
    if (rc == 0 && status != 0)
        rc = buf_printf(tail, e, "it answers with status %u", status);
    else if (rc == 0)
        rc = buf_add_text(tail, "it does not answer", e);
    return rc;
}

/* One try of the ready check. *passed; what it printed goes to `tail`. */
static int try_ready(struct guest *g, const struct recipe_ready *ready,
                     const struct guest_context *context, bool *passed, struct buf *tail,
                     struct err *e)
{
    *passed = false;
    if (ready->kind == RECIPE_READY_PORT)
        return agent_probe_port(g->agent, ready->port, (int64_t)ready->try_timeout_ms, passed, e);
    if (ready->kind == RECIPE_READY_HTTP)
        return try_http(g, ready, passed, tail, e);
    struct command c = {.exec = {.timeout_ms = (int64_t)ready->try_timeout_ms}};
    struct capture capture;
    capture_init(&capture, NULL, NULL);
    struct agent_result result = {0};
    int rc = prepare_text(g, &c, ready->command, false, e);
    use_context(&c, context);
    if (rc == 0)
        rc = agent_run(g->agent, &c.exec, capture_output, &capture, &result, e);
    *passed = rc == 0 && result.exited && result.status == 0 && !result.timed_out;
    buf_drop(tail, tail->len);
    if (rc == 0)
        rc = buf_add(tail, capture.tail.data, capture.tail.len, e);
    capture_fini(&capture);
    return rc;
}

static int not_ready(struct guest *g, const struct recipe_ready *ready, uint64_t process,
                     const struct buf *tail, struct err *e)
{
    char shown[TAIL_SHOWN_MAX + 1];
    show_tail(tail, shown, sizeof(shown));
    char what[COMMAND_SHOWN_MAX + 8];
    if (ready->kind == RECIPE_READY_PORT)
        snprintf(what, sizeof(what), "port %u", ready->port);
    else if (ready->kind == RECIPE_READY_HTTP)
        snprintf(what, sizeof(what), "http://127.0.0.1:%u%.80s", ready->port, ready->http_path);
    else
        show_command(ready->command, what, sizeof(what));
    AUTO_BUF struct buf start_tail;
    buf_init(&start_tail, LIMIT_OUTPUT_TAIL);
    bool running = false;
    struct agent_result result = {0};
    struct err ignored = ERR_INIT;
    if (process != 0)
        (void)!agent_process(g->agent, process, &running, &result, &start_tail, &ignored);
    char start_shown[TAIL_SHOWN_MAX / 2];
    show_tail(&start_tail, start_shown, sizeof(start_shown));
    err_set(e, ERR_STEP, "ready check (%s) has not passed within %llu ms%s%s%s%s", what,
            (unsigned long long)ready->timeout_ms, shown[0] ? "; its last output:\n" : "", shown,
            start_shown[0] ? "\nthe start command printed:\n" : "", start_shown);
    return err_hint(e, "see what the start command needs, or raise ready.timeout in the recipe");
}

int guest_wait_ready(struct guest *g, const struct recipe_ready *ready,
                     const struct guest_context *context, uint64_t process, struct err *e)
{
    AUTO_BUF struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    int64_t deadline = clock_ms() + (int64_t)ready->timeout_ms;
    for (;;) {
        bool passed = ready->kind == RECIPE_READY_NONE;
        int rc = passed ? 0 : try_ready(g, ready, context, &passed, &tail, e);
        if (rc == 0)
            rc = guest_check_started(g, process, e);
        if (rc < 0 || passed)
            return rc < 0 ? err_in(e, "ready check") : 0;
        if (clock_ms() >= deadline)
            return not_ready(g, ready, process, &tail, e);
        rc = cancel_sleep_ms(g->room->cancel, (long)ready->interval_ms, e);
        if (rc < 0)
            return rc;
    }
}
