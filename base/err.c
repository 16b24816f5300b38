/* SPDX-License-Identifier: MIT */
/* Error values: see err.h. Nothing here allocates, so reporting cannot fail. */
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const char *const class_names[ERR_CLASS_COUNT] = {
    [ERR_NONE] = "none",         [ERR_NOMEM] = "nomem",         [ERR_SYS] = "sys",
    [ERR_INPUT] = "input",       [ERR_CORRUPT] = "corrupt",     [ERR_DIGEST] = "digest",
    [ERR_NOTFOUND] = "notfound", [ERR_DENIED] = "denied",       [ERR_NET] = "net",
    [ERR_LIMIT] = "limit",       [ERR_RATE] = "rate",           [ERR_UNSUPPORTED] = "unsupported",
    [ERR_BUSY] = "busy",         [ERR_CANCELLED] = "cancelled", [ERR_TIMEOUT] = "timeout",
    [ERR_STEP] = "step",
};

const char *err_class_name(enum err_class class)
{
    return (unsigned)class < ERR_CLASS_COUNT ? class_names[class] : "unknown";
}

void err_clear(struct err *e)
{
    *e = (struct err)ERR_INIT;
}

static void err_vset(struct err *e, enum err_class class, const char *fmt, va_list args)
    PRINTF_LIKE(3, 0);

static void err_vset(struct err *e, enum err_class class, const char *fmt, va_list args)
{
    char text[ERR_TEXT_MAX]; /* an argument may point into e->text */
    vsnprintf(text, sizeof(text), fmt, args);
    text_make_harmless(text);
    err_clear(e);
    e->class = class;
    memcpy(e->text, text, strlen(text) + 1);
}

int err_set(struct err *e, enum err_class class, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    err_vset(e, class, fmt, args);
    va_end(args);
    return -(int)class;
}

static void err_append(struct err *e, const char *text)
{
    size_t len = strlen(e->text);
    snprintf(e->text + len, sizeof(e->text) - len, "%s", text);
}

static int err_finish_sys(struct err *e, int sys)
{
    char reason[128];
    e->sys = sys;
    err_append(e, ": ");
    err_append(e, strerror_r(sys, reason, sizeof(reason)));
    if (sys == ENOSPC || sys == EDQUOT)
        err_hint(e, "free some space on that file system, then run again: what is done stays done");
    return -(int)e->class;
}

int err_sys(struct err *e, const char *fmt, ...)
{
    int sys = errno;
    va_list args;
    va_start(args, fmt);
    err_vset(e, sys == ENOMEM ? ERR_NOMEM : ERR_SYS, fmt, args);
    va_end(args);
    return err_finish_sys(e, sys);
}

int err_sysno(struct err *e, int sys, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    err_vset(e, sys == ENOMEM ? ERR_NOMEM : ERR_SYS, fmt, args);
    va_end(args);
    return err_finish_sys(e, sys);
}

int err_nomem(struct err *e, const char *what)
{
    return err_set(e, ERR_NOMEM, "%s: out of memory", what);
}

int err_in(struct err *e, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    text_make_harmless(text);
    size_t len = strlen(text);
    snprintf(text + len, sizeof(text) - len, ": %s", e->text);
    memcpy(e->text, text, strlen(text) + 1);
    return -(int)e->class;
}

int err_hint(struct err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->hint, sizeof(e->hint), fmt, args);
    text_make_harmless(e->hint);
    va_end(args);
    return -(int)e->class;
}

bool err_retryable(const struct err *e)
{
    return e->class == ERR_NET || e->class == ERR_TIMEOUT || e->class == ERR_RATE;
}
