/* SPDX-License-Identifier: MIT */
/*
 * What the agent could not do, in words: which program, user or directory is missing, and what to
 * do about it. "No such file or directory" alone hides whether a program, its interpreter or the
 * working directory is absent, so the agent reports the stage.
 */
#include <errno.h>
#include <string.h>

#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"

void agent_take_text(char *out, size_t capacity, const uint8_t *bytes, size_t len)
{
    size_t used = 0;
    for (size_t i = 0; i < len && used + 1 < capacity; i++)
        out[used++] = bytes[i] >= 0x20 && bytes[i] != 0x7f ? (char)bytes[i] : '?';
    out[used] = 0;
}

static int program_fault(int sys, const char *program, const char *path, struct err *e)
{
    if (sys == ENOENT && strchr(program, '/'))
        return err_set(e, ERR_STEP, "program %s does not exist in the guest", program);
    if (sys == ENOENT)
        return err_set(e, ERR_STEP, "program %s is not in the guest (looked in PATH %s)", program,
                       path ? path
                            : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    int rc = err_set(e, ERR_STEP, "program %s cannot be run: %s", program, strerror(sys));
    if (sys == E2BIG)
        return err_hint(e, "pass long text on stdin or in a file, not as an argument");
    if (sys == EACCES)
        return err_hint(e, "the file is not executable, or the user may not reach it");
    if (sys == ENOEXEC)
        return err_hint(e, "it is for another machine, or a script without a #! line");
    return rc;
}

static int interpreter_fault(const uint8_t *detail, size_t len, struct err *e)
{
    char interpreter[AGENT_DETAIL_MAX];
    char program[AGENT_DETAIL_MAX];
    const uint8_t *newline = memchr(detail, '\n', len);
    size_t first = newline ? (size_t)(newline - detail) : len;
    agent_take_text(interpreter, sizeof(interpreter), detail, first);
    agent_take_text(program, sizeof(program), newline ? newline + 1 : detail,
                    newline ? len - first - 1 : 0);
    int rc = err_set(e, ERR_STEP, "program %s is in the guest, but its interpreter %s is missing",
                     program, interpreter);
    if (strchr(interpreter, '?'))
        return err_hint(e, "a script with DOS line ends names an interpreter that ends in "
                           "a carriage return");
    return rc;
}

static int file_fault(int sys, const char *what, struct err *e)
{
    enum err_class class = sys == ENOENT ? ERR_NOTFOUND : ERR_STEP;
    return err_set(e, class, "%s in the guest: %s", what, strerror(sys));
}

int agent_fault(const struct agent_frame *f, const char *path, struct err *e)
{
    char detail[AGENT_DETAIL_MAX + 1];
    if (f->len < 8 || f->len > 8 + AGENT_DETAIL_MAX)
        return err_set(e, ERR_CORRUPT, "the guest agent sent a malformed error");
    uint32_t stage = agent_get_u32(f->payload);
    uint32_t number = agent_get_u32(f->payload + 4);
    int sys = number > 0 && number < 4096 ? (int)number : EIO;
    agent_take_text(detail, sizeof(detail), f->payload + 8, f->len - 8);
    switch (stage) {
    case AGENT_AT_FROZEN:
        return err_set(e, ERR_BUSY, "refused by the guest agent: %s", detail);
    case AGENT_AT_USER:
        if (sys == ENOENT)
            return err_set(e, ERR_STEP, "user %s is not in the guest's /etc/passwd", detail);
        return err_set(e, ERR_STEP, "user %s: %s", detail, strerror(sys));
    case AGENT_AT_GROUP:
        if (sys == ENOENT)
            return err_set(e, ERR_STEP, "group %s is not in the guest's /etc/group", detail);
        return err_set(e, ERR_STEP, "group %s: %s", detail, strerror(sys));
    case AGENT_AT_IDENTITY:
        return err_set(e, ERR_STEP, "becoming user %s: %s", detail, strerror(sys));
    case AGENT_AT_WORKDIR:
        return err_set(e, ERR_STEP, "working directory %s in the guest: %s", detail, strerror(sys));
    case AGENT_AT_PROGRAM:
        return program_fault(sys, detail, path, e);
    case AGENT_AT_INTERPRETER:
        return interpreter_fault(f->payload + 8, f->len - 8, e);
    case AGENT_AT_FILE:
        return file_fault(sys, detail, e);
    case AGENT_AT_REQUEST:
        return err_set(e, sys == ESRCH ? ERR_NOTFOUND : ERR_STEP,
                       "refused by the guest agent: %s: %s", detail, strerror(sys));
    default:
        return err_set(e, sys == EOPNOTSUPP ? ERR_UNSUPPORTED : ERR_STEP, "%s in the guest: %s",
                       detail, strerror(sys));
    }
}
