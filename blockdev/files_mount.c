/* SPDX-License-Identifier: MIT */
/*
 * A FUSE mount that has no place: made by fsopen and fsmount and never moved anywhere, it is reached
 * through its descriptor alone, so no mount table ever names it and it ends with the descriptors that
 * hold it, however the process ends (Linux, Documentation/filesystems/mount_api.rst and fuse.rst).
 *
 * Mounting needs CAP_SYS_ADMIN. Without it a short-lived child enters a user and mount namespace of
 * its own, where everybody has it, mounts there and hands both descriptors back: the mount outlives
 * the namespace. The kernel wants /dev/fuse opened in the namespace that mounts, so the child opens it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "blockdev/files_mount.h"

enum mount_step { STEP_DEVICE, STEP_NAMESPACE, STEP_IDS, STEP_OPEN, STEP_OPTIONS, STEP_MOUNT };

static const char *const step_names[] = {
    [STEP_DEVICE] = "opening /dev/fuse",
    [STEP_NAMESPACE] = "making a user namespace",
    [STEP_IDS] = "writing the user namespace's ids",
    [STEP_OPEN] = "fsopen of fuse",
    [STEP_OPTIONS] = "setting up the FUSE mount",
    [STEP_MOUNT] = "mounting FUSE without a place",
};

/* Prepared before the child is forked, which only makes system calls. */
struct mount_texts {
    char user[16], group[16];         /* mount options */
    char user_map[40], group_map[40]; /* lines for the namespace: this user is itself */
};

/* How far it came: sys 0 is success. It also travels from the child. */
struct mount_answer {
    enum mount_step step;
    int sys;
};

static struct mount_answer failed_at(enum mount_step step)
{
    return (struct mount_answer){.step = step, .sys = errno};
}

/* `number` is that of `device`. Only system calls. */
static struct mount_answer mount_device(const char *number, const struct mount_texts *t, int *root)
{
    int context = fsopen("fuse", FSOPEN_CLOEXEC);
    if (context < 0)
        return failed_at(STEP_OPEN);
    const char *const options[][2] = {{"source", "tb2-bake"},
                                      {"fd", number},
                                      {"rootmode", "40000"},
                                      {"user_id", t->user},
                                      {"group_id", t->group}};
    struct mount_answer answer = {.sys = 0};
    for (size_t i = 0; answer.sys == 0 && i < ARRAY_LEN(options); i++) {
        if (fsconfig(context, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0) < 0)
            answer = failed_at(STEP_OPTIONS);
    }
    if (answer.sys == 0 && fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        answer = failed_at(STEP_OPTIONS);
    if (answer.sys == 0) {
        *root = fsmount(context, FSMOUNT_CLOEXEC,
                        MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
        if (*root < 0)
            answer = failed_at(STEP_MOUNT);
    }
    (void)close(context);
    return answer;
}

static struct mount_answer mount_here(const struct mount_texts *t, int *device, int *root)
{
    struct err ignored = ERR_INIT;
    char number[16];
    if (file_open(device, AT_FDCWD, "/dev/fuse", O_RDWR, 0, &ignored) < 0)
        return (struct mount_answer){.step = STEP_DEVICE, .sys = ignored.sys};
    snprintf(number, sizeof(number), "%d", *device);
    struct mount_answer answer = mount_device(number, t, root);
    if (answer.sys != 0)
        file_close(device);
    return answer;
}

/* ---- In a namespace of its own: what the child does ---- */

static bool write_text(const char *path, const char *text)
{
    int fd = openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
    size_t len = strlen(text);
    bool written = fd >= 0 && write(fd, text, len) == (ssize_t)len;
    if (fd >= 0)
        (void)close(fd);
    return written;
}

static struct mount_answer child_mount(const struct mount_texts *t, int *root)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return failed_at(STEP_NAMESPACE);
    if (!write_text("/proc/self/setgroups", "deny") ||
        !write_text("/proc/self/uid_map", t->user_map) ||
        !write_text("/proc/self/gid_map", t->group_map))
        return failed_at(STEP_IDS);
    int device = openat(AT_FDCWD, "/dev/fuse", O_RDWR | O_CLOEXEC);
    /* Put where its number is known: making a text of it is no system call. */
    if (device < 0 || dup2(device, STDIN_FILENO) < 0)
        return failed_at(STEP_DEVICE);
    return mount_device("0", t, root);
}

enum { FD_COUNT = 2 };
union fd_message {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(FD_COUNT * sizeof(int))];
};

static void child_main(const struct mount_texts *t, int socket)
{
    int root = -1;
    struct mount_answer answer = child_mount(t, &root);
    union fd_message control = {.bytes = {0}};
    struct iovec part = {.iov_base = &answer, .iov_len = sizeof(answer)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (answer.sys == 0) {
        const int fds[FD_COUNT] = {STDIN_FILENO, root};
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fds))};
        memcpy(CMSG_DATA(head), fds, sizeof(fds));
    }
    (void)sendmsg(socket, &message, MSG_NOSIGNAL);
    _exit(0);
}

static struct mount_answer receive_mount(int socket, int *device, int *root)
{
    struct mount_answer answer = {.step = STEP_NAMESPACE, .sys = ECHILD};
    union fd_message control = {.bytes = {0}};
    struct iovec part = {.iov_base = &answer, .iov_len = sizeof(answer)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t n;
    do
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(answer))
        return (struct mount_answer){.step = STEP_NAMESPACE, .sys = ECHILD};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int fds[FD_COUNT];
    if (answer.sys != 0)
        return answer;
    if (!head || head->cmsg_len != CMSG_LEN(sizeof(fds)))
        return (struct mount_answer){.step = STEP_MOUNT, .sys = EMFILE};
    memcpy(fds, CMSG_DATA(head), sizeof(fds));
    *device = fds[0];
    *root = fds[1];
    return answer;
}

static struct mount_answer mount_in_namespace(const struct mount_texts *t, int *device, int *root)
{
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        return failed_at(STEP_NAMESPACE);
    AUTO_FD int ours = sockets[0];
    AUTO_FD int theirs = sockets[1];
    pid_t pid = fork();
    if (pid < 0)
        return failed_at(STEP_NAMESPACE);
    if (pid == 0)
        child_main(t, theirs);
    file_close(&theirs);
    struct mount_answer answer = receive_mount(ours, device, root);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return answer;
}

int files_mount(int *device, int *root, struct err *e)
{
    struct mount_texts t;
    unsigned user = geteuid(), group = getegid();
    snprintf(t.user, sizeof(t.user), "%u", user);
    snprintf(t.group, sizeof(t.group), "%u", group);
    snprintf(t.user_map, sizeof(t.user_map), "%u %u 1", user, user);
    snprintf(t.group_map, sizeof(t.group_map), "%u %u 1", group, group);
    struct mount_answer answer = mount_here(&t, device, root);
    if (answer.sys == EPERM && answer.step != STEP_DEVICE)
        answer = mount_in_namespace(&t, device, root);
    if (answer.sys == 0)
        return 0;
    bool denied = answer.sys == EPERM || answer.sys == EACCES;
    err_set(e, denied ? ERR_DENIED : ERR_UNSUPPORTED, "%s: %s", step_names[answer.step],
            strerror(answer.sys));
    return err_hint(e, "%s",
                    denied ? "this needs root, or user namespaces and access to /dev/fuse"
                           : "this needs Linux 5.4 or later with FUSE and /dev/fuse");
}
