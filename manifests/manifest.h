/* SPDX-License-Identifier: MIT */
/*
 * What people write: task.toml (TOML 1.0), recipes (YAML). Knows what the words mean, not how they
 * are carried out.
 */
#ifndef TB2_MANIFESTS_MANIFEST_H
#define TB2_MANIFESTS_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"

/* ---- TOML ------------------------------------------------------------------------------- */

enum toml_type {
    TOML_STRING,
    TOML_INTEGER,
    TOML_FLOAT,
    TOML_BOOL,
    TOML_OFFSET_DATETIME,
    TOML_LOCAL_DATETIME,
    TOML_LOCAL_DATE,
    TOML_LOCAL_TIME,
    TOML_ARRAY,
    TOML_TABLE
};

struct toml; /* a value; the document is a table */

/* Parses a whole document: all of TOML 1.0.0. `name` (a path) stands in front of errors:
 * "name:line:column: …" with class ERR_INPUT. Depth and size are bounded. */
int toml_parse(struct toml **out, const void *text, size_t len, const char *name,
               struct err *e) MUST_USE;
void toml_free(struct toml *t);
DEFINE_AUTO(toml, toml_free)
#define AUTO_TOML CLEANUP(toml_free_auto_)

enum toml_type toml_type(const struct toml *t);
unsigned toml_line(const struct toml *t);   /* 1-based, where the value starts */
unsigned toml_column(const struct toml *t); /* 1-based, in code points */
/* Sets an error about a value of the document that `path` names: "path:line:column: …". */
int toml_fail(const struct toml *t, const char *path, enum err_class class, struct err *e,
              const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Table member, NULL when absent; name and value by position. All borrowed. */
const struct toml *toml_get(const struct toml *table, const char *key);
size_t toml_length(const struct toml *t); /* members or elements; 0 for scalars */
const char *toml_key_at(const struct toml *table, size_t index);
const struct toml *toml_at(const struct toml *t, size_t index);
/* Text of a string, which may hold NUL, or of a date-time in RFC 3339 spelling; NULL for other
 * types. `len` may be NULL. */
const char *toml_string(const struct toml *t, size_t *len);
int64_t toml_integer(const struct toml *t);
double toml_float(const struct toml *t);
bool toml_bool(const struct toml *t);

/* ---- YAML ------------------------------------------------------------------------------- */

enum node_kind { NODE_SCALAR, NODE_SEQUENCE, NODE_MAPPING };

enum { NODE_DEPTH_MAX = 32, NODE_COUNT_MAX = 1000000 };

struct node {
    enum node_kind kind;
    unsigned line, column; /* 1-based; columns count code points */
    bool plain;            /* scalar without quotes: may be a number, boolean or null */
    char *text;            /* scalar; holds no NUL */
    size_t len;
    struct node **items; /* elements; a mapping has key, value, key, value … */
    size_t count;        /* of items */
    size_t capacity;
};

/*
 * Reads one YAML document into a tree. Anchors, aliases, tags, duplicate keys, keys that are not
 * scalars, a second document: ERR_INPUT "name:line:column: …".
 */
int node_parse(struct node **out, const void *text, size_t len, const char *name,
               struct err *e) MUST_USE;
void node_free(struct node *n);
DEFINE_AUTO(node, node_free)
#define AUTO_NODE CLEANUP(node_free_auto_)

/* Sets ERR_INPUT "path:line:column: …" for a node and returns it. */
int node_fail(const char *path, const struct node *node, struct err *e, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* Value of a mapping's key, NULL when absent. */
const struct node *node_get(const struct node *mapping, const char *key);

/* Typed reads; `key` stands in errors. A scalar without quotes that YAML 1.2 calls a number or a
 * boolean is also text, as written; null and empty values are refused everywhere. */
int node_text(char **out, const char *path, const char *key, const struct node *node,
              struct err *e) MUST_USE;
int node_bool(bool *out, const char *path, const char *key, const struct node *node,
              struct err *e) MUST_USE;
int node_duration(uint64_t *out_ms, const char *path, const char *key, const struct node *node,
                  struct err *e) MUST_USE;

/* ---- Tasks ------------------------------------------------------------------------------- */

struct env_pair {
    char *name;
    char *value;
};

/* A task directory as a bake needs it. Floors of the suite applied: 1 cpu, 2048 MB memory, 10240 MB
 * storage. */
struct task {
    char *name;      /* the directory's name */
    char *directory; /* path of the directory */
    char *image;     /* docker_image, as written */
    uint32_t cpus;
    uint64_t memory_mb;
    uint64_t storage_mb;
    /* For the alias rule, which reads two keys alone: max(1, cpus) and max(2048, memory_mb). */
    uint64_t alias_cpus;
    uint64_t alias_memory_mb;
    uint64_t build_timeout_ms; /* default 600,000 */
    bool allow_internet;       /* default true */
    char *user;                /* who runs the recipe's steps; NULL: root */
    struct env_pair *env;      /* [environment.env], sorted by name */
    size_t env_count;
    /* Names in [environment.env] whose value is "${NAME}" or "${NAME:-default}", sorted: meant to
     * come from the host of an episode, so they are left out of `env` and of every template. */
    char **host_env;
    size_t host_env_count;
};

/*
 * Reads DIRECTORY/task.toml. ERR_INPUT (with file, line and column where there is one) when it is
 * broken or has no docker_image; ERR_UNSUPPORTED when it asks for GPUs or another system than
 * Linux; ERR_NOTFOUND when there is none.
 */
int task_load(struct task **out, const char *directory, struct err *e) MUST_USE;
/* The same from text; `name` is the task's name, `path` stands in errors. */
int task_parse(struct task **out, const char *name, const char *path, const void *text, size_t len,
               struct err *e) MUST_USE;
void task_free(struct task *t);
DEFINE_AUTO(task, task_free)
#define AUTO_TASK CLEANUP(task_free_auto_)

/* ---- Sets of tasks ----------------------------------------------------------------------- */

/* Names are unique in a set. Of a directory, a name is the path below it ("fix-git",
 * "group/fix-git"), and the task is not read yet; of a list, the task is. */
struct task_entry {
    char *name;
    char *directory;   /* NULL: of a list */
    struct task *task; /* NULL: of a directory */
};

struct task_set {
    char *source; /* path of the directory or file, for messages */
    bool directory;
    struct task_entry *entries; /* sorted by the bytes of their names */
    size_t count;
    size_t capacity;
};

/* The directories below `directory` that hold a task.toml, at any depth up to 8; none is looked for
 * in a task, in a hidden directory or behind a link to a directory that is no task itself. */
int task_set_open(struct task_set **out, const char *directory, struct err *e) MUST_USE;
/* A list of tasks (docs/formats/task-list.md), YAML or JSON. */
int task_set_load(struct task_set **out, const char *path, struct err *e) MUST_USE;
int task_set_parse(struct task_set **out, const char *path, const void *text, size_t len,
                   struct err *e) MUST_USE;
/* A list of images: a line each, with the task's name behind it if it is to have another than the
 * image. */
int task_set_load_images(struct task_set **out, const char *path, struct err *e) MUST_USE;
void task_set_free(struct task_set *set);
DEFINE_AUTO(task_set, task_set_free)
#define AUTO_TASK_SET CLEANUP(task_set_free_auto_)

struct task_selection {
    /* Names and globs (*, ?, [...]); one without a slash is for the last part of a name too. None:
     * all. */
    const char *const *names;
    size_t name_count;
    const char *const *excludes; /* the same, left out */
    size_t exclude_count;
    /* Share `shard` (from 1) of `shard_count` (below 2: everything): equal parts of the costs, the
     * same on every machine with the same names and costs. */
    unsigned shard;
    unsigned shard_count;
    /* Cost of an entry in any unit; 0: not known. NULL: none is. */
    uint64_t (*cost)(void *ctx, size_t entry);
    void *ctx;
};

/* Says in marks[i] whether entry i is selected. ERR_INPUT for a name that matches nothing. */
int task_select(const struct task_set *set, const struct task_selection *s, bool *marks,
                struct err *e) MUST_USE;

/* ---- Lock file (docs/formats/lock.md) ----------------------------------------------------- */

struct lock_entry {
    char *image; /* as tasks write it */
    struct digest digest;
    uint64_t size; /* bytes of its layers as they are pulled; 0: not known */
};

struct lock {
    struct lock_entry *entries; /* sorted by image */
    size_t count;
    size_t capacity;
};

int lock_load(struct lock **out, const char *path, struct err *e) MUST_USE;
int lock_parse(struct lock **out, const char *text, const char *name, struct err *e) MUST_USE;
/* NULL when there is no such entry; borrowed until the next lock_set. */
const struct lock_entry *lock_find(const struct lock *l, const char *image);
int lock_set(struct lock *l, const char *image, const struct digest *digest, uint64_t size,
             struct err *e) MUST_USE;
/* As a text; free with free(). */
int lock_print(const struct lock *l, char **out, struct err *e) MUST_USE;
/* Replaces the file atomically. */
int lock_save(const struct lock *l, const char *path, struct err *e) MUST_USE;
void lock_free(struct lock *l);
DEFINE_AUTO(lock, lock_free)
#define AUTO_LOCK CLEANUP(lock_free_auto_)

/* ---- A task's solution and tests ---------------------------------------------------------- */

struct trial_variable {
    char *name;
    char *value; /* NULL: only the host has one */
    char *host;  /* name of the host's variable that comes first; NULL: the value is literal */
};

/* One of the two scripts. */
struct trial_script {
    uint64_t timeout_ms; /* default 600,000 */
    char *user;          /* NULL: the image's */
    struct trial_variable *env;
    size_t env_count;
};

/* How a harness runs a task's own scripts, where task.toml says so. */
struct task_trial {
    struct trial_script solve;  /* [agent] timeout_sec, user; [solution.env] */
    struct trial_script test;   /* [verifier] timeout_sec, user, env */
    struct trial_variable *env; /* [environment.env]: for both */
    size_t env_count;
};

/* Reads DIRECTORY/task.toml. ERR_INPUT with file, line and column; ERR_UNSUPPORTED for a task that is
 * more than one script after the other. */
int task_trial_load(struct task_trial **out, const char *directory, struct err *e) MUST_USE;
/* The same from text; `path` stands in errors. */
int task_trial_parse(struct task_trial **out, const char *path, const void *text, size_t len,
                     struct err *e) MUST_USE;
void task_trial_free(struct task_trial *t);
DEFINE_AUTO(task_trial, task_trial_free)
#define AUTO_TASK_TRIAL CLEANUP(task_trial_free_auto_)

/* ---- Recipes ----------------------------------------------------------------------------- */

enum recipe_step_kind {
    RECIPE_RUN,
    RECIPE_ENV,
    RECIPE_WORKDIR,
    RECIPE_USER,
    RECIPE_COPY,
    RECIPE_GRAFT
};
enum recipe_network { RECIPE_NETWORK_NONE, RECIPE_NETWORK_USER, RECIPE_NETWORK_TAP };
const char *recipe_network_name(enum recipe_network network);

/* A secret in a run step. Its value is no part of the recipe. */
struct recipe_secret {
    char *name;
    char *env; /* variable that holds the value too; NULL: the file alone */
};

enum recipe_source { RECIPE_SOURCE_DIRECTORY, RECIPE_SOURCE_TARBALL, RECIPE_SOURCE_IMAGE };

/* Files that a copy or graft step lays. */
struct recipe_files {
    enum recipe_source source; /* DIRECTORY in a copy step: a directory or a single file */
    char *from;                /* as written: a path of the host, or an image */
    char *path;                /* `from` from where the recipe lies; NULL: an image */
    char *to; /* copy: `to`, which may be relative or end in a slash; graft: `at`, absolute */
    char
        *owner; /* name or number, perhaps with :group; NULL: copy: root; graft: as in the source */
    bool has_mode;
    uint32_t mode;   /* of all regular files; directories add x where it has r */
    char **excludes; /* NULL-terminated, or NULL: patterns (docs/formats/recipe.md) */
    /* What is laid, as one digest; set by whoever can read it, before recipe_canonical. */
    bool has_content;
    struct digest content;
};

struct recipe_step {
    enum recipe_step_kind kind;
    unsigned line;        /* in the recipe file */
    char *text;           /* run: shell text (NULL when argv is used); workdir: path; user: name */
    char **argv;          /* run as a list: NULL-terminated */
    struct env_pair *env; /* env step, or the run step's own */
    size_t env_count;
    uint64_t timeout_ms; /* run: of each try; default 600,000 */
    char *user;          /* run: instead of the current one; NULL */
    char *workdir;       /* run: instead of the current one; NULL */
    bool no_network;     /* run: with nothing but a loopback interface of its own */
    unsigned retries;    /* run: tries after the first; default 0 */
    uint64_t backoff_ms; /* before the first of them, then twice as long each; default 1,000 */
    struct recipe_secret *secrets; /* run; sorted by name */
    size_t secret_count;
    struct recipe_files *files; /* copy, graft */
};

enum recipe_ready_kind {
    RECIPE_READY_NONE,
    RECIPE_READY_COMMAND,
    RECIPE_READY_PORT,
    RECIPE_READY_HTTP
};

struct recipe_ready {
    enum recipe_ready_kind kind;
    char *command;           /* shell text */
    uint16_t port;           /* TCP on 127.0.0.1 of the guest: port, http */
    char *http_path;         /* http: begins with a slash */
    unsigned http_status;    /* http: that is wanted; 0: 200 to 399 */
    uint64_t interval_ms;    /* default 500 */
    uint64_t timeout_ms;     /* whole; default 60,000 */
    uint64_t try_timeout_ms; /* one try; default 10,000 */
};

struct recipe {
    char *name;
    enum recipe_network network; /* default user; a task with allow_internet = false gets none */
    bool pipefail;               /* default false: exit status of a pipeline's last command */
    struct recipe_step *steps;
    size_t step_count;
    char *start; /* shell text, NULL: nothing is started */
    struct recipe_ready ready;
};

/* Reads a recipe file (docs/formats/recipe.md); unknown keys are ERR_INPUT with line and column.
 * Paths in it are relative to the directory of `path`; what they name is not looked at. */
int recipe_load(struct recipe **out, const char *path, struct err *e) MUST_USE;
int recipe_parse(struct recipe **out, const char *path, const void *text, size_t len,
                 struct err *e) MUST_USE;
void recipe_free(struct recipe *r);
DEFINE_AUTO(recipe, recipe_free)
#define AUTO_RECIPE CLEANUP(recipe_free_auto_)

/* Everything in the recipe that can change a result, as JSON: an input of the template's key.
 * Layout, comments and defaults spelt out make no difference. Files whose content is not known
 * (has_content) appear as they are written. NULL when memory is short. */
struct json *recipe_canonical(const struct recipe *r);
/* That of one step: an element of "steps" above. */
struct json *recipe_step_canonical(const struct recipe_step *step);
/* True if a step of it has a secret. */
bool recipe_has_secrets(const struct recipe *r);
/* What may name a secret: 1 to 64 letters, digits, '_', '-' and '.', no dot first. */
bool recipe_secret_name_is_valid(const char *name);

/* ---- Aliases ----------------------------------------------------------------------------- */

/*
 * The alias under which a trainer looks a task's template up: "tb2-<slug>-<10 hex>", from the image
 * as written, the build user, the commands in order and ('cpu_count', 'memory_mb').
 * Free with free().
 */
int template_alias(char **out, const struct task *t, const char *user, const char *const *commands,
                   size_t command_count, struct err *e) MUST_USE;
/* The same, of a recipe's shell commands, for the user whom the task names, else root. */
int recipe_alias(char **out, const struct recipe *r, const struct task *t, struct err *e) MUST_USE;

#endif
