/* SPDX-License-Identifier: MIT */
/*
 * From fork to exec. Everything that may wait for the disk (users, working directory, program) is
 * done here, in the child, so that the agent itself never waits. When the child cannot become
 * the program it says at which stage, why, and which thing was in hand, then ends.
 */
#include "bake/agent/agent.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char default_path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

static void __attribute__((noreturn))
fail(const struct spawn_ends *ends, enum agent_stage stage, int sys, const char *detail)
{
    struct spawn_failure failure = {.stage = (int32_t)stage, .sys = sys, .detail = {0}};
    size_t len = strnlen(detail, sizeof(failure.detail) - 1);
    memcpy(failure.detail, detail, len);
    ssize_t written = write(ends->failure, &failure, sizeof(failure)); /* < PIPE_BUF: whole */
    _exit(written == (ssize_t)sizeof(failure) ? 127 : 126);
}

static void reset_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* dup2 clears close-on-exec; the pipes' own descriptors go away at exec. */
static int set_stdio(const struct spawn_ends *ends)
{
    int in = ends->in;
    if (ends->terminal >= 0) { /* of this session, which has none yet */
        if (ioctl(ends->terminal, TIOCSCTTY, 0) < 0 || dup2(ends->terminal, 0) < 0 ||
            dup2(ends->terminal, 1) < 0 || dup2(ends->terminal, 2) < 0)
            return -errno;
        return 0;
    }
    if (in < 0)
        in = openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return -errno;
    if (dup2(in, 0) < 0 || dup2(ends->out[0], 1) < 0 || dup2(ends->out[1], 2) < 0)
        return -errno;
    return 0;
}

static void set_limits(bool machine)
{
    if (!machine)
        return;
    struct rlimit files = {.rlim_cur = 1024, .rlim_max = 1048576};
    struct rlimit core = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_NOFILE, &files) < 0 || setrlimit(RLIMIT_CORE, &core) < 0)
        return; /* programs run with the kernel's limits then */
    if (files_write("/proc/self/oom_score_adj", "0") < 0)
        return;
}

static void enter_cgroup(const struct spawn_ends *ends)
{
    if (ends->cgroup < 0)
        return;
    int fd = openat(ends->cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "0", 1) < 0)
        fail(ends, AGENT_AT_SPAWN, errno, "entering its cgroup");
    close(fd);
}

/*
 * What the program does to mounts, to IPC objects and to the host name is its own and ends with it; and
 * /proc/sys, which is the kernel's alone, is read-only, as in a container. So nothing that a disk does
 * not hold comes from one step to the next. Sources: unshare(2), mount_namespaces(7), ipc_namespaces(7).
 */
static void set_apart(const struct spawn_ends *ends)
{
    static const struct {
        const char *path, *type;
        unsigned long flags;
        const char *options;
    } fresh[] = {{"/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
                 {"/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL}};
    const unsigned long sys = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail(ends, AGENT_AT_SPAWN, errno, "setting it apart");
    for (size_t i = 0; i < ARRAY_LEN(fresh); i++) {
        if (mount(fresh[i].type, fresh[i].path, fresh[i].type, fresh[i].flags, fresh[i].options) <
                0 &&
            errno != ENOENT && errno != ENODEV)
            fail(ends, AGENT_AT_SPAWN, errno, fresh[i].path);
    }
    if (mount("/proc/sys", "/proc/sys", NULL, MS_BIND, NULL) < 0 ||
        mount(NULL, "/proc/sys", NULL, sys, NULL) < 0)
        fail(ends, AGENT_AT_SPAWN, errno, "/proc/sys");
}

static bool env_has(const struct exec_request *request, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; request->env[i]; i++) {
        if (strncmp(request->env[i], name, len) == 0 && request->env[i][len] == '=')
            return true;
    }
    return false;
}

static void set_identity(const struct spawn_ends *ends, struct exec_request *request,
                         struct identity *who, char *home, size_t home_len)
{
    enum agent_stage stage = AGENT_AT_USER;
    bool ordinary = !request->user[0] && geteuid() != 0; /* tests without root */
    int failed = user_resolve(who, request->user, "/etc/passwd", "/etc/group", &stage);
    if (failed < 0) {
        const char *colon = strchr(request->user, ':');
        fail(ends, stage, -failed, stage == AGENT_AT_GROUP && colon ? colon + 1 : request->user);
    }
    if (!env_has(request, "HOME")) {
        size_t count = 0;
        while (request->env[count])
            count++;
        snprintf(home, home_len, "HOME=%s", who->home[0] ? who->home : "/");
        request->env[count] = home;
        request->env[count + 1] = NULL;
    }
    if (ordinary || (who->uid == geteuid() && who->gid == getegid() && geteuid() != 0))
        return;
    if (ends->terminal >= 0 && fchown(ends->terminal, who->uid, (gid_t)-1) < 0)
        fail(ends, AGENT_AT_IDENTITY, errno, "owner of the terminal");
    if (setgroups(who->group_count, who->groups) < 0 || setgid(who->gid) < 0 ||
        setuid(who->uid) < 0)
        fail(ends, AGENT_AT_IDENTITY, errno, request->user[0] ? request->user : "root");
}

/* The interpreter that an executable names (#! or ELF PT_INTERP), if it is not there. */
static bool interpreter_missing(const char *path, char *name, size_t name_len)
{
    uint8_t head[4096];
    int fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = pread(fd, head, sizeof(head), 0);
    size_t len = got > 0 ? (size_t)got : 0;
    size_t at = 0;
    size_t found = 0;
    if (len > 2 && head[0] == '#' && head[1] == '!') {
        for (at = 2; at < len && (head[at] == ' ' || head[at] == '\t'); at++)
            ;
        while (at + found < len && !strchr(" \t\r\n", head[at + found]))
            found++;
        if (at + found < len && head[at + found] == '\r')
            found++; /* a script with DOS line ends: the kernel looks for "sh\r" */
    } else if (len >= sizeof(Elf64_Ehdr) && memcmp(head, ELFMAG, SELFMAG) == 0 &&
               head[EI_CLASS] == ELFCLASS64) {
        Elf64_Ehdr elf;
        memcpy(&elf, head, sizeof(elf));
        for (size_t i = 0; i < elf.e_phnum && !found; i++) {
            Elf64_Phdr segment;
            if (elf.e_phoff > len || len - elf.e_phoff < (i + 1) * sizeof(segment))
                break;
            memcpy(&segment, head + elf.e_phoff + i * sizeof(segment), sizeof(segment));
            if (segment.p_type != PT_INTERP || segment.p_offset >= len)
                continue;
            at = segment.p_offset;
            found = strnlen((const char *)head + at, len - at);
        }
    }
    close(fd);
    if (!found || found >= name_len)
        return false;
    memcpy(name, head + at, found);
    name[found] = 0;
    return access(name, F_OK) < 0;
}

static void __attribute__((noreturn))
exec_failed(const struct spawn_ends *ends, const char *path, int sys)
{
    char interpreter[256];
    char detail[AGENT_DETAIL_MAX];
    if (sys == ENOENT && interpreter_missing(path, interpreter, sizeof(interpreter))) {
        snprintf(detail, sizeof(detail), "%s%c%.200s", interpreter, '\n', path);
        fail(ends, AGENT_AT_INTERPRETER, sys, detail);
    }
    fail(ends, AGENT_AT_PROGRAM, sys, path);
}

static char *const *exec_strings(const char **strings)
{
    char *const *out;
    memcpy(&out, &strings, sizeof(out)); /* execve takes char *const[] but changes nothing */
    return out;
}

static void try_exec(const struct spawn_ends *ends, const char *path, struct exec_request *request)
{
    execve(path, exec_strings(request->argv), exec_strings(request->env));
    if (errno != ENOENT || access(path, F_OK) == 0)
        exec_failed(ends, path, errno);
}

/* Like execvpe(3), but with the PATH of the new environment, and without trying /bin/sh. */
static void __attribute__((noreturn))
exec_program(const struct spawn_ends *ends, struct exec_request *request)
{
    const char *program = request->argv[0];
    if (strchr(program, '/')) {
        try_exec(ends, program, request);
        fail(ends, AGENT_AT_PROGRAM, ENOENT, program);
    }
    const char *path = default_path;
    for (size_t i = 0; request->env[i]; i++) {
        if (strncmp(request->env[i], "PATH=", 5) == 0 && request->env[i][5])
            path = request->env[i] + 5;
    }
    int denied = 0;
    while (path && program[0]) {
        char candidate[4096];
        size_t len = strcspn(path, ":");
        int printed = snprintf(candidate, sizeof(candidate), "%.*s/%s",
                               (int)(len > 4096 ? 4096 : len), len ? path : ".", program);
        path = path[len] ? path + len + 1 : NULL;
        if (printed < 0 || printed >= (int)sizeof(candidate))
            continue;
        struct stat info;
        if (stat(candidate, &info) < 0 || !S_ISREG(info.st_mode))
            continue;
        if (access(candidate, X_OK) == 0)
            try_exec(ends, candidate, request);
        denied = EACCES;
    }
    fail(ends, AGENT_AT_PROGRAM, denied ? denied : ENOENT, program);
}

void spawn_child(const struct spawn_ends *ends, struct exec_request *request)
{
    struct identity who;
    char home[HOME_MAX + 8];
    reset_signals();
    setsid();
    umask(022);
    enter_cgroup(ends);
    set_limits(ends->machine);
    if (request->apart && ends->machine)
        set_apart(ends);
    int failed = set_stdio(ends);
    if (failed < 0)
        fail(ends, AGENT_AT_SPAWN, -failed, "opening its standard descriptors");
    if (request->no_network) {
        failed = network_leave();
        if (failed < 0)
            fail(ends, AGENT_AT_SPAWN, -failed, "leaving the network");
    }
    set_identity(ends, request, &who, home, sizeof(home));
    if (chdir(request->workdir[0] ? request->workdir : "/") < 0)
        fail(ends, AGENT_AT_WORKDIR, errno, request->workdir[0] ? request->workdir : "/");
    exec_program(ends, request);
}
