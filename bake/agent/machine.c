/* SPDX-License-Identifier: MIT */
/*
 * What the agent does to the machine as a whole. Sources: ioctl_fs FIFREEZE and FITHAW
 * (include/uapi/linux/fs.h), RNDADDENTROPY and RNDRESEEDCRNG (include/uapi/linux/random.h).
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void machine_read_boot_id(char id[AGENT_BOOT_ID_LEN + 1])
{
    memset(id, '0', AGENT_BOOT_ID_LEN);
    char text[AGENT_BOOT_ID_LEN + 2];
    if (files_read("/proc/sys/kernel/random/boot_id", text, sizeof(text)) >= AGENT_BOOT_ID_LEN)
        memcpy(id, text, AGENT_BOOT_ID_LEN);
}

static int open_cgroups(void)
{
    if (mkdirat(AT_FDCWD, "/sys/fs/cgroup/tb2", 0755) < 0 && errno != EEXIST)
        return -1;
    return openat(AT_FDCWD, "/sys/fs/cgroup/tb2", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/*
 * The kernel makes up its boot id when it is first asked for it. That is now, after the host has
 * reseeded the generator, so that machines restored from one image have different ones.
 */
int machine_mount(struct guest *g)
{
    if (g->mounted)
        return -EALREADY;
    int mounted = boot_mount(g->boot_error);
    if (mounted < 0)
        return mounted;
    g->mounted = true;
    g->root = openat(AT_FDCWD, "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    g->cgroups = open_cgroups();
    machine_read_boot_id(g->boot_id);
    return 0;
}

int machine_sync(bool drop_caches)
{
    sync();
    return drop_caches ? files_write("/proc/sys/vm/drop_caches", "3\n") : 0;
}

int machine_freeze(int root, bool freeze)
{
    if (root < 0)
        return -EBADF;
    if (ioctl(root, freeze ? FIFREEZE : FITHAW, 0) == 0)
        return 0;
    /* already in the state asked for: EBUSY when frozen, EINVAL when not */
    return errno == (freeze ? EBUSY : EINVAL) ? 0 : -errno;
}

int machine_set_clock(uint64_t now_ns)
{
    struct timespec now = {.tv_sec = (time_t)(now_ns / 1000000000u),
                           .tv_nsec = (long)(now_ns % 1000000000u)};
    return clock_settime(CLOCK_REALTIME, &now) < 0 ? -errno : 0;
}

uint64_t machine_clock(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0 || now.tv_sec < 0)
        return 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int machine_reseed(const uint8_t entropy[AGENT_ENTROPY_LEN])
{
    /* struct rand_pool_info ends in a flexible array; built in place, in an aligned block */
    union {
        struct rand_pool_info info;
        uint8_t bytes[sizeof(struct rand_pool_info) + AGENT_ENTROPY_LEN];
    } pool;
    pool.info.entropy_count = AGENT_ENTROPY_LEN * 8;
    pool.info.buf_size = AGENT_ENTROPY_LEN;
    memcpy(pool.bytes + offsetof(struct rand_pool_info, buf), entropy, AGENT_ENTROPY_LEN);
    int fd = openat(AT_FDCWD, "/dev/random", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = 0;
    if (ioctl(fd, RNDADDENTROPY, &pool.info) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
        result = -errno;
    explicit_bzero(&pool, sizeof(pool));
    close(fd);
    return result;
}

int machine_random(uint8_t out[2 * AGENT_RANDOM_LEN])
{
    if (getrandom(out, AGENT_RANDOM_LEN, 0) != (ssize_t)AGENT_RANDOM_LEN)
        return -errno;
    int fd = openat(AT_FDCWD, "/dev/urandom", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    ssize_t got = read(fd, out + AGENT_RANDOM_LEN, AGENT_RANDOM_LEN);
    int result = got < 0 ? -errno : got == (ssize_t)AGENT_RANDOM_LEN ? 0 : -EIO;
    close(fd);
    return result;
}

/* /proc/vmstat, "oom_kill": of any cgroup, for any reason (mm/oom_kill.c). */
uint64_t machine_oom_kills(void)
{
    char text[16384];
    static const char key[] = "\noom_kill ";
    if (files_read("/proc/vmstat", text, sizeof(text)) < 0)
        return 0;
    const char *at = strstr(text, key);
    return at ? strtoull(at + sizeof(key) - 1, NULL, 10) : 0;
}

void machine_power_off(void)
{
    kill(-1, SIGKILL); /* all but this process, which is PID 1 */
    sync();
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        sync();
    reboot(RB_POWER_OFF);
}
