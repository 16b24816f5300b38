/* SPDX-License-Identifier: MIT */
/*
 * Errors.
 *
 * Every function that can fail returns `int` (0, or the negative class of the error) and takes
 * `struct err *e` last. The caller owns the `struct err`, normally on its stack; its text lives in
 * a fixed array, so that reporting an error can never itself fail. Whoever detects a fault sets the
 * error once; each boundary crossed on the way up may put one noun phrase in front of it, saying
 * which thing was in hand ("task fix-git", "layer sha256:…"), never "failed to". Only cli prints.
 *
 * A text has up to three parts: what was being done to what and why it failed (the message), and
 * what the person can do (the hint, shown on a line of its own). Texts may hold what came from
 * outside: what text_make_harmless finds in them becomes question marks, so that any terminal can
 * be shown them.
 *
 * `e` is never NULL. Thread-safety: an error belongs to one thread at a time.
 */
#ifndef TB2_BASE_ERR_H
#define TB2_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

#include "base/attr.h"

/* The classes, few and stable; docs/errors.md has their meaning and the exit status of each. */
enum err_class {
    ERR_NONE = 0,
    ERR_NOMEM,       /* memory could not be had */
    ERR_SYS,         /* a system call failed; `sys` holds errno */
    ERR_INPUT,       /* a person's input (option, task.toml, recipe) is wrong */
    ERR_CORRUPT,     /* bytes from outside are malformed */
    ERR_DIGEST,      /* bytes do not hash to the digest that was promised */
    ERR_NOTFOUND,    /* the thing asked for does not exist */
    ERR_DENIED,      /* not authorised */
    ERR_NET,         /* the network or the far end failed; trying again may help */
    ERR_LIMIT,       /* a ceiling was met (size, count, ratio) */
    ERR_RATE,        /* the far end limits how often it may be asked; later it will answer */
    ERR_UNSUPPORTED, /* well-formed, but not something this program handles */
    ERR_BUSY,        /* someone else holds it */
    ERR_CANCELLED,   /* the user or a deadline stopped it */
    ERR_TIMEOUT,     /* a time limit passed */
    ERR_STEP,        /* a recipe step, start command or ready check failed in the guest */
    ERR_CLASS_COUNT
};

enum { ERR_TEXT_MAX = 2048, ERR_HINT_MAX = 512 };

struct err {
    enum err_class class;
    int sys;                 /* errno for ERR_SYS (also set with ERR_NET where known), else 0 */
    long retry_after_ms;     /* the far end's own wish (Retry-After), -1 when it gave none */
    char text[ERR_TEXT_MAX]; /* message; always terminated */
    char hint[ERR_HINT_MAX]; /* what to do; empty when there is nothing useful to say */
};

/* An error value with nothing set: `struct err e = ERR_INIT;` */
#define ERR_INIT                                                                                   \
    {                                                                                              \
        .class = ERR_NONE, .sys = 0, .retry_after_ms = -1, .text = {0}, .hint = { 0 }              \
    }

/* Forgets what `e` holds. */
void err_clear(struct err *e);

/* Sets class and message (the newest call wins) and clears the hint. Returns -class. */
int err_set(struct err *e, enum err_class class, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Sets ERR_SYS from errno and appends strerror to the message; ENOMEM becomes ERR_NOMEM, and a full
 * disk or quota brings a hint. */
int err_sys(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The same with an explicit errno value (positive). */
int err_sysno(struct err *e, int sys, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Sets ERR_NOMEM for the named thing. */
int err_nomem(struct err *e, const char *what);

/* Puts "phrase: " in front of the message; class, errno and hint stay. Returns -class. */
int err_in(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Sets the hint: one sentence that says what the person can do. Returns -class. */
int err_hint(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* True if trying the same thing again can help, perhaps much later; decided on the class alone. */
bool err_retryable(const struct err *e);

/* Stable lower-case name of a class ("notfound"), used in JSON output and docs/errors.md. */
const char *err_class_name(enum err_class class);

#endif
