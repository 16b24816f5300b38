/* SPDX-License-Identifier: MIT */
/* Private to bake/step: a program of the recipe in the guest, and what it prints. Used by the thread that
 * has the guest. */
#ifndef TB2_BAKE_STEP_INTERNAL_H
#define TB2_BAKE_STEP_INTERNAL_H

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/recipe/secrets.h"
#include "bake/step/steps.h"

enum { COMMAND_SHOWN_MAX = 120, TAIL_SHOWN_MAX = 1200 };

/* ---- Output (output.c) ---- */

struct capture {
    const struct output_tap *tap; /* may be NULL */
    struct buf tail;              /* the last bytes of both streams */
    struct buf errors;            /* the last bytes of stderr */
    struct buf line;              /* the line that is not complete yet */
    struct secret_mask masks[2];  /* of stdout and stderr: nothing of the above holds a secret */
    struct buf masked;
};

/* `secrets` may be NULL. */
void capture_init(struct capture *c, const struct output_tap *tap,
                  const struct secret_set *secrets);
void capture_fini(struct capture *c);
/* An agent_output whose `ctx` is the capture. */
int capture_output(void *ctx, int stream, const void *data, size_t len, struct err *e) MUST_USE;
/* After the last output: hands over what was held back, and the line that has no end. */
int capture_end(struct capture *c, struct err *e) MUST_USE;

/* Appends, and keeps the last bytes when there are more than the buffer takes. */
int keep_tail(struct buf *tail, const char *data, size_t len, struct err *e) MUST_USE;
/* The end of the output as a text that fits an error, its control characters made harmless. */
void show_tail(const struct buf *tail, char *out, size_t out_len);
/* The first line of a shell text, cut. */
void show_command(const char *text, char *out, size_t out_len);

/* ---- Commands (shell.c) ---- */

struct command {
    const char *argv[6];
    struct agent_exec exec;
};

/* Prepares shell text; `text` must outlive the command. */
int prepare_text(struct guest *g, struct command *c, const char *text, bool pipefail,
                 struct err *e) MUST_USE;
void use_context(struct command *c, const struct guest_context *context);
/* Sets ERR_STEP for a program that did not exit with 0, with its last output. */
int command_failed(const struct guest *g, const struct agent_result *r, const struct buf *tail,
                   uint64_t timeout_ms, struct err *e);

/* ---- Run steps (program.c) ---- */

int guest_run_program(struct guest *g, struct step_run *run, size_t index, struct err *e) MUST_USE;

#endif
