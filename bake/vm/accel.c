/* SPDX-License-Identifier: MIT */
/*
 * Does KVM work here? A /dev/kvm that opens, and even a virtual processor that can be made, prove
 * little: on some hosts (nested, or software-emulated virtualisation) a real guest stops with an
 * internal error or hangs without a word. So the real kernel is booted once, without a disk, with
 * its messages on the console: it must reach its init, and the agent must answer. A guest that is
 * silent for SILENCE_MS is taken for dead, so that a slow but working host has time and a broken
 * one costs little; who insists on KVM has more patience. The answer holds for one boot of the host and one guest kernel, and is kept in
 * a file named by both.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/channel.h"
#include "bake/channel/console.h"
#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    SILENCE_MS = 10000,
    AGENT_MS = 30000,
    PROBE_MS = 90000,
    POLL_MS = 50,
    PATIENCE = 6, /* times as long where KVM is insisted on */
    PROBE_MEMORY_MB = 256,
    ANSWER_MAX = 512
};

#define REACHED_INIT "Run /init as init process"

/* "accel-<boot id>-<kernel>-<VMM>": free with free(). */
static int answer_name(char **out, const struct vm_driver *d, const struct guest_kernel *k,
                       struct err *e)
{
    AUTO_BUF struct buf id;
    buf_init(&id, ANSWER_MAX);
    int rc = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", &id, e);
    if (rc < 0)
        return rc;
    char hex[DIGEST_TEXT_MAX];
    *out = mem_printf("accel-%.36s-%.16s-%s", buf_text(&id), digest_hex(&k->digest, hex),
                      vm_driver_name(d));
    return *out ? 0 : err_nomem(e, "accelerator");
}

/* The file holds "kvm" or "tcg", a space, the reason. False: no (usable) answer yet; a no is none to who
 * insists. */
static bool read_answer(int dir, const char *name, bool insist, struct vm_accel_answer *out)
{
    AUTO_BUF struct buf text;
    buf_init(&text, ANSWER_MAX);
    struct err ignored = ERR_INIT;
    if (file_read(dir, name, &text, &ignored) < 0 || text.len < 4)
        return false;
    const char *at = buf_text(&text);
    if (strncmp(at, "kvm ", 4) != 0 && strncmp(at, "tcg ", 4) != 0)
        return false;
    out->accel = at[0] == 'k' ? VM_ACCEL_KVM : VM_ACCEL_TCG;
    snprintf(out->reason, sizeof(out->reason), "%.*s", (int)strcspn(at + 4, "\n"), at + 4);
    return out->accel == VM_ACCEL_KVM || !insist;
}

/* 0: the guest reached its init; ERR_STEP or ERR_TIMEOUT: KVM does not work here; else an error. */
static int watch(struct vm *v, const struct vm_probe *p, struct err *e)
{
    const int patience = p->insist ? PATIENCE : 1;
    AUTO_FREE char *tail = mem_zalloc(CONSOLE_TAIL_LEN + 1);
    if (!tail)
        return err_nomem(e, "console");
    int64_t start = clock_ms();
    int64_t heard = start;
    size_t before = 0;
    for (;;) {
        size_t len = vm_console_tail(v, tail, CONSOLE_TAIL_LEN + 1);
        if (strstr(tail, REACHED_INIT))
            return 0;
        int64_t now = clock_ms();
        if (len != before)
            heard = now;
        before = len;
        int rc = vm_check(v, e);
        if (rc == 0 && now - heard > SILENCE_MS * patience)
            rc = err_set(e, ERR_TIMEOUT, "the guest says nothing for %d s",
                         SILENCE_MS / 1000 * patience);
        if (rc == 0 && now - start > PROBE_MS * patience)
            rc = err_set(e, ERR_TIMEOUT, "the guest is not up after %d s",
                         PROBE_MS / 1000 * patience);
        if (rc == 0)
            rc = cancel_sleep_ms(p->cancel, POLL_MS, e);
        if (rc < 0)
            return rc;
    }
}

/* The agent's answer is all that is wanted; that it has no root disk is expected. */
static int hear_agent(struct vm *v, const struct vm_probe *p, struct err *e)
{
    AUTO_AGENT struct agent *a = NULL;
    int rc = agent_connect(&a, v, p->insist ? AGENT_MS * PATIENCE : AGENT_MS, p->cancel, e);
    if (rc != -ERR_STEP)
        return rc;
    return vm_check(v, e); /* ERR_STEP from a machine that still runs is the agent's own report */
}

static int boot_probe(const struct vm_probe *p, const char *run_dir, struct err *e)
{
    struct vm_options options = {.driver = p->driver,
                                 .kernel = p->kernel,
                                 .run_dir = run_dir,
                                 .cpus = 1,
                                 .memory_mb = PROBE_MEMORY_MB,
                                 .accel = VM_ACCEL_KVM,
                                 .cancel = p->cancel};
    /* A root that is no disk: the agent says so at once instead of waiting for one. */
    struct vm_launch launch = {
        .options = &options,
        .append = "console=ttyS0 earlyprintk=ttyS0,115200 panic=-1 tb2.root=/dev/null",
        .bare = true};
    AUTO_VM struct vm *v = NULL;
    int rc = vm_launch(&v, &launch, e);
    if (rc == 0)
        rc = watch(v, p, e);
    return rc == 0 ? hear_agent(v, p, e) : rc;
}

/* Boots the probe in a directory of its own under the cache. */
static int try_kvm(int dir, const struct vm_probe *p, struct err *e)
{
    AUTO_FREE char *run_dir = mem_printf("%s/accel-probe", p->cache_dir);
    if (!run_dir)
        return err_nomem(e, "accelerator");
    int rc = file_make_dirs(dir, "accel-probe", e);
    if (rc < 0)
        return rc;
    rc = boot_probe(p, run_dir, e);
    struct err left = ERR_INIT;
    if (file_remove_tree(dir, "accel-probe", &left) < 0)
        log_event(LOG_WARN, "bake", "%s stays behind: %s", run_dir, left.text);
    return rc;
}

/* True if /dev/kvm can be opened; else the reason is filled in. */
static bool has_device(char *reason, size_t len)
{
    AUTO_FD int fd = openat(AT_FDCWD, "/dev/kvm", O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        return true;
    if (errno == ENOENT)
        snprintf(reason, len, "this host has no /dev/kvm");
    else
        snprintf(reason, len, "/dev/kvm cannot be opened: %s%s", strerror(errno),
                 errno == EACCES ? " (is this user in the group kvm?)" : "");
    return false;
}

/* Tries, and keeps the answer. Being cancelled, or short of memory, is no answer. */
static int probe(struct vm_accel_answer *out, int dir, const struct vm_probe *p, struct err *e)
{
    int rc = try_kvm(dir, p, e);
    if (rc == -ERR_CANCELLED || rc == -ERR_NOMEM || rc == -ERR_NOTFOUND)
        return rc;
    out->accel = rc == 0 ? VM_ACCEL_KVM : VM_ACCEL_TCG;
    if (rc == 0)
        snprintf(out->reason, sizeof(out->reason), "a probe guest booted");
    else
        snprintf(out->reason, sizeof(out->reason), "KVM does not work here: %.200s", e->text);
    err_clear(e);
    return 0;
}

const char *vm_accel_name(enum vm_accel accel)
{
    return accel == VM_ACCEL_KVM ? "kvm" : "tcg";
}

int vm_accel_probe(struct vm_accel_answer *out, const struct vm_probe *p, struct err *e)
{
    out->accel = VM_ACCEL_TCG;
    if (!has_device(out->reason, sizeof(out->reason)))
        return 0;
    AUTO_FREE char *name = NULL;
    AUTO_FD int dir = -1;
    AUTO_FD int lock = -1;
    int rc = answer_name(&name, p->driver, p->kernel, e);
    if (rc == 0)
        rc = file_open_dir(&dir, AT_FDCWD, p->cache_dir, e);
    if (rc == 0 &&
        read_answer(dir, name, p->insist, out)) /* without waiting for a probe of another kernel */
        return 0;
    if (rc == 0) /* one probe at a time: two would slow each other down, and share a directory */
        rc = file_lock_wait(&lock, dir, "accel.lock", p->cancel, e);
    if (rc < 0)
        return err_in(e, "finding out whether KVM works");
    if (read_answer(dir, name, p->insist, out))
        return 0;
    log_event(LOG_INFO, "bake", "trying KVM with a probe guest, once per boot of this host");
    struct vm_accel_answer answer;
    rc = probe(&answer, dir, p, e);
    if (rc < 0)
        return err_in(e, "booting a probe guest with KVM");
    char text[ANSWER_MAX];
    int len = snprintf(text, sizeof(text), "%s %s\n", vm_accel_name(answer.accel), answer.reason);
    rc = file_put(dir, dir, name, text, (size_t)len, e);
    if (rc < 0)
        return rc;
    *out = answer;
    return 0;
}
