/* SPDX-License-Identifier: MIT */
/* Private to bake/golden and its unit tests. */
#ifndef TB2_BAKE_GOLDEN_INTERNAL_H
#define TB2_BAKE_GOLDEN_INTERNAL_H

#include "bake/golden.h"
#include "bake/guest/machine_room.h"
#include "bake/template.h"
#include "base/buf.h"
#include "manifests/manifest.h"

/* ---- Trees (files.c) ------------------------------------------------------------------------ */

enum {
    GOLDEN_DEPTH_MAX = 32,     /* directories in each other */
    GOLDEN_ENTRIES_MAX = 20000 /* of one tree */
};
#define GOLDEN_FILE_MAX ((size_t)256 << 20) /* one file, held in memory */
#define GOLDEN_TREE_MAX ((uint64_t)2 << 30) /* all files of one tree */

/* How files get to the other side; the functions of an agent, or a test's. */
struct golden_target {
    void *ctx;
    int (*make_dir)(void *ctx, const char *path, uint32_t mode, struct err *e);
    int (*put)(void *ctx, const char *path, uint32_t mode, const void *data, size_t len,
               struct err *e);
    int (*link)(void *ctx, const char *path, const char *target, struct err *e);
};

/*
 * Puts the directory `from` of this machine at `to` of the other side: directories and files with
 * their modes (permissions alone), links as links; `script`, a name in `from`, is made executable.
 * No link is followed here. ERR_NOTFOUND when `from` or `script` is not there, ERR_INPUT for what is
 * neither file, directory nor link, ERR_LIMIT past the ceilings above.
 */
int golden_put_tree(const struct golden_target *target, const char *from, const char *to,
                    const char *script, struct err *e) MUST_USE;

/* ---- Rewards (reward.c) -------------------------------------------------------------- */

enum { GOLDEN_REWARD_MAX = 64 << 10 /* bytes of a reward file */ };

/* A finite decimal number with blanks around it, and nothing else. ERR_CORRUPT. */
int golden_reward_text(double *out, const void *text, size_t len, struct err *e) MUST_USE;
/* The number `reward` of a JSON object; *found is false where it has none. ERR_CORRUPT. */
int golden_reward_json(double *out, bool *found, const void *text, size_t len,
                       struct err *e) MUST_USE;

/* ---- Output (output.c) --------------------------------------------------------------- */

enum {
    GOLDEN_HEAD_MAX = 1 << 20, /* bytes of a script's output that are kept as they come */
    GOLDEN_TAIL_MAX = 64 << 10 /* of what comes after them, the last ones */
};

/* What a script prints, to a file that stays bounded. */
struct golden_output {
    int fd; /* -1: none */
    uint64_t written;
    uint64_t left_out;
    struct buf tail; /* the last bytes, written or not */
};

/* Makes DIRECTORY/NAME anew, for its owner alone: scripts may print what was given to them. */
int golden_output_open(struct golden_output *o, const char *directory, const char *name,
                       struct err *e) MUST_USE;
/* An agent_output. */
int golden_output_add(void *output, int stream, const void *data, size_t len,
                      struct err *e) MUST_USE;
/* Ends the file. */
int golden_output_end(struct golden_output *o, struct err *e) MUST_USE;
void golden_output_fini(struct golden_output *o);
/* The last lines as a text for an error: harmless on a terminal, "" if there were none. */
void golden_output_show(const struct golden_output *o, char *text, size_t len);

/* ---- One trial (trial.c) ------------------------------------------------------------- */

struct golden_task {
    const struct golden_options *options;
    const struct machine_room *room;
    const char *directory; /* of the task */
    struct task_trial *trial;
    struct template *template;
};

/* Restores, runs both scripts, reads the reward. An error is one of the trial itself; what the
 * scripts did is in *r. */
int golden_try(const struct golden_task *t, struct golden_result *r, struct err *e) MUST_USE;

/* The value of a variable of task.toml: what was given for it, else the task's own; NULL: there is
 * none. Borrowed. */
const char *golden_variable(const struct golden_options *o, const struct trial_variable *v);
/* ERR_INPUT when the script `name` needs one that was not given. */
int golden_check_variables(const struct golden_options *o, const struct trial_script *s,
                           const char *name, struct err *e) MUST_USE;

#endif
