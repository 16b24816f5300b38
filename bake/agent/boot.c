/* SPDX-License-Identifier: MIT */
/*
 * From the kernel's hand-over to the image's own root, as PID 1 of the initramfs, in two parts.
 * First kernel file systems and modules in the order of /modules/order; then, when the host asks for
 * it, the root disk and a move onto it. In between the machine may have been saved and restored with
 * another disk, so nothing may have looked at the disk before: its driver is loaded in the second
 * part. The program stays what it is: its pages belong to the initramfs, which no freeze of the disk
 * reaches, so the image needs nothing of ours in it.
 *
 * noatime: reading must not change the disk, whose blocks are compared and cached by content.
 */
#include "bake/agent/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

enum { DEVICE_WAIT_MS = 30000, DEVICE_POLL_MS = 10 };

#define DISK_MODULE "virtio_blk.ko"

static int boot_fail(char text[AGENT_DETAIL_MAX], int sys, const char *what, const char *thing)
{
    snprintf(text, AGENT_DETAIL_MAX, "%s %.200s: %s", what, thing, strerror(sys));
    return -sys;
}

static void pause_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

struct mount_point {
    const char *path;
    const char *type;
    unsigned long flags;
    const char *options;
    bool required;
};

static int mount_all(const struct mount_point *points, size_t count, char text[AGENT_DETAIL_MAX])
{
    for (size_t i = 0; i < count; i++) {
        const struct mount_point *p = &points[i];
        int failed = 0;
        if (mkdirat(AT_FDCWD, p->path, 0755) < 0 && errno != EEXIST)
            failed = errno;
        else if (mount(p->type, p->path, p->type, p->flags, p->options) < 0 && errno != EBUSY)
            failed = errno;
        if (failed && p->required)
            return boot_fail(text, failed, "mounting", p->path);
    }
    return 0;
}

/* The value of `key` ("tb2.root=") on the kernel's command line, or what is there without one. */
static void boot_argument(const char *key, char value[128])
{
    char line[4096];
    if (files_read("/proc/cmdline", line, sizeof(line)) < 0)
        return;
    char *at = strstr(line, key);
    if (!at)
        return;
    at += strlen(key);
    at[strcspn(at, " \n")] = 0;
    snprintf(value, 128, "%.120s", at);
}

/* Whether the host is reached by vsock (tb2.link=vsock) and not by a virtio-serial port. */
static bool link_is_vsock(void)
{
    char link[128] = "port";
    boot_argument("tb2.link=", link);
    return strcmp(link, "vsock") == 0;
}

/* What only a machine without PCI has, whose link is vsock. */
static bool module_is_for_vsock(const char *name)
{
    return strncmp(name, "vsock", 5) == 0 || strncmp(name, "vmw_vsock", 9) == 0 ||
           strncmp(name, "virtio_mmio", 11) == 0;
}

static int load_module(const char *name, bool vsock, char text[AGENT_DETAIL_MAX])
{
    char path[256];
    snprintf(path, sizeof(path), "/modules/%.200s", name);
    int fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return boot_fail(text, errno, "opening module", name);
    bool wanted = vsock || !module_is_for_vsock(name);
    long loaded = wanted ? syscall(SYS_finit_module, fd, "", 0) : 0;
    int failed = loaded < 0 && errno != EEXIST ? errno : 0;
    close(fd);
    unlinkat(AT_FDCWD, path, 0); /* its pages would stay in every snapshot */
    return failed ? boot_fail(text, failed, "loading module", name) : 0;
}

/* A module that does not load is no end yet: what needs it says so. The disk's waits for the disk:
 * nothing depends on it. */
static void load_modules(char text[AGENT_DETAIL_MAX])
{
    char order[16384];
    bool vsock = link_is_vsock();
    long len = files_read("/modules/order", order, sizeof(order));
    char *at = order;
    while (len > 0 && *at) {
        size_t name_len = strcspn(at, "\n");
        bool last = at[name_len] == 0;
        at[name_len] = 0;
        if (name_len && strcmp(at, DISK_MODULE) != 0) {
            int loaded = load_module(at, vsock, text);
            (void)loaded;
        }
        at += last ? name_len : name_len + 1;
    }
}

static int wait_for(const char *path)
{
    for (int waited_ms = 0; access(path, F_OK) < 0; waited_ms += DEVICE_POLL_MS) {
        if (waited_ms >= DEVICE_WAIT_MS)
            return -ENOENT;
        pause_ms(DEVICE_POLL_MS);
    }
    return 0;
}

static int mount_root(char text[AGENT_DETAIL_MAX])
{
    char device[128] = "/dev/vda";
    char trouble[AGENT_DETAIL_MAX] = "";
    boot_argument("tb2.root=", device);
    if (load_module(DISK_MODULE, false, trouble) == -ENOENT)
        trouble[0] = 0; /* it is part of the kernel */
    if (wait_for(device) < 0) {
        snprintf(text, AGENT_DETAIL_MAX, "no root disk %s after %d s%s%.300s", device,
                 DEVICE_WAIT_MS / 1000, trouble[0] ? "; " : "", trouble);
        return -ENODEV;
    }
    if (mkdirat(AT_FDCWD, "/newroot", 0755) < 0 && errno != EEXIST)
        return boot_fail(text, errno, "making", "/newroot");
    if (mount(device, "/newroot", "ext4", MS_NOATIME, NULL) < 0)
        return boot_fail(text, errno, "mounting as ext4 the root disk", device);
    return 0;
}

static int switch_root(char text[AGENT_DETAIL_MAX])
{
    if (chdir("/newroot") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
        chdir("/") < 0)
        return boot_fail(text, errno, "moving to", "the root disk");
    return 0;
}

/* Names that devtmpfs leaves to user space (Documentation/admin-guide/devices.txt, "Compulsory
 * links"). */
static void link_devices(void)
{
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"},
                                           {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < ARRAY_LEN(links); i++) {
        if (symlinkat(links[i][0], AT_FDCWD, links[i][1]) < 0 && errno != EEXIST)
            return;
    }
}

/*
 * What a container engine gives each container: a host name, and /etc/hosts where the image's is
 * missing or the empty place holder that image builds leave.
 */
static void set_names(void)
{
    char name[65];
    long len = files_read("/etc/hostname", name, sizeof(name));
    name[len > 0 ? strcspn(name, " \t\r\n") : 0] = 0;
    if (!name[0])
        snprintf(name, sizeof(name), "tb2");
    if (sethostname(name, strlen(name)) < 0)
        return;
    struct stat info;
    bool present = fstatat(AT_FDCWD, "/etc/hosts", &info, 0) == 0;
    if (present && info.st_size > 0)
        return;
    if (mkdirat(AT_FDCWD, "/etc", 0755) < 0 && errno != EEXIST)
        return;
    if (files_write("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n") < 0)
        return;
}

static const struct mount_point early_points[] = {
    {"/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"/dev", "devtmpfs", MS_NOSUID, "mode=0755", true},
};

/*
 * /run and /tmp stay the image's own, as under a container engine: images keep directories there
 * that their daemons need. /dev/tb2 is the host's place for files that must not reach the disk.
 */
static const struct mount_point points[] = {
    {"/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"/dev", "devtmpfs", MS_NOSUID, "mode=0755", true},
    {"/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666", false},
    {"/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", false},
    {"/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, false},
    {"/dev/tb2", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755", true},
    {"/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, false},
};

int boot_prepare(char text[AGENT_DETAIL_MAX])
{
    char trouble[AGENT_DETAIL_MAX];
    umask(0);
    int result = mount_all(early_points, ARRAY_LEN(early_points), text);
    umask(022);
    if (result == 0)
        load_modules(trouble);
    return result;
}

int boot_mount(char text[AGENT_DETAIL_MAX])
{
    umask(0);
    int result = mount_root(text);
    if (result == 0)
        result = switch_root(text);
    if (result == 0)
        result = mount_all(points, ARRAY_LEN(points), text);
    umask(022);
    if (result < 0)
        return result;
    link_devices();
    set_names();
    int up = network_loopback_up();
    return up < 0 ? boot_fail(text, -up, "bringing up", "lo") : 0;
}

/* The device of the port with our name: /sys/class/virtio-ports/vportNpM/name. */
static int find_port(char device[300])
{
    DIR *dir = opendir("/sys/class/virtio-ports");
    if (!dir)
        return -errno;
    int result = -ENOENT;
    struct dirent *entry;
    while (result < 0 && (entry = readdir(dir))) {
        char path[512];
        char name[64];
        snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
        if (entry->d_name[0] == '.' || files_read(path, name, sizeof(name)) < 0)
            continue;
        name[strcspn(name, "\n")] = 0;
        if (strcmp(name, AGENT_PORT_NAME) != 0)
            continue;
        snprintf(device, 300, "/dev/%s", entry->d_name);
        result = 0;
    }
    closedir(dir);
    return result;
}

/* SIGIO whenever the host end of the port opens or closes. */
static int watch_port(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETOWN, getpid()) < 0 || fcntl(fd, F_SETFL, flags | O_ASYNC) < 0)
        return -errno;
    return 0;
}

static int open_port(void)
{
    char device[300];
    for (int waited_ms = 0;; waited_ms += DEVICE_POLL_MS) {
        int fd = -1;
        if (find_port(device) == 0)
            fd = openat(AT_FDCWD, device, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0)
            return fd;
        if (waited_ms >= DEVICE_WAIT_MS)
            return -ENODEV;
        pause_ms(DEVICE_POLL_MS);
    }
}

/* The address family is there as soon as its module is, the device that carries it may come later:
 * a listener waits for both. */
static int listen_vsock(void)
{
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    struct sockaddr_vm address = {
        .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = AGENT_VSOCK_PORT};
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 4) == 0)
        return fd;
    int failed = errno;
    close(fd);
    return -failed;
}

int boot_open_link(struct channel *c, const char **what)
{
    bool vsock = link_is_vsock();
    *what = vsock ? "socket for the host" : "virtio-serial port named " AGENT_PORT_NAME;
    int fd = vsock ? listen_vsock() : open_port();
    if (fd < 0)
        return fd;
    channel_init(c, vsock ? CHANNEL_LISTENER : CHANNEL_PORT, fd);
    return vsock ? 0 : watch_port(fd);
}
