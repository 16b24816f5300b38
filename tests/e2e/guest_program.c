/* SPDX-License-Identifier: MIT */
/* The only program on vm_test's disk, and one of agent_guest's: static, so that the disk needs no libraries and no shell. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* Fires every 10 ms; the file always says how often by now, and how often at most between two reads. */
static int count_ticks(const char *path)
{
    const struct timespec period = {.tv_nsec = 10000000};
    const struct itimerspec times = {.it_interval = period, .it_value = period};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    int fd = openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    uint64_t all = 0;
    uint64_t most = 0;
    uint64_t fired;
    if (timer < 0 || fd < 0 || timerfd_settime(timer, 0, &times, NULL) < 0)
        return 1;
    while (read(timer, &fired, sizeof(fired)) == (ssize_t)sizeof(fired)) {
        char text[64];
        all += fired;
        most = fired > most ? fired : most;
        int len = snprintf(text, sizeof(text), "%020" PRIu64 " %020" PRIu64 "\n", all, most);
        if (pwrite(fd, text, (size_t)len, 0) != len)
            return 1;
    }
    return 1;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "panic") == 0) {
        int fd = openat(AT_FDCWD, "/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);
        return fd < 0 || write(fd, "c", 1) != 1; /* the write never returns */
    }
    if (strcmp(what, "flood") == 0 || strcmp(what, "trickle") == 0) {
        int lines = what[0] == 'f' ? 1536 : 96;
        int fd = openat(AT_FDCWD, "/dev/console", O_WRONLY | O_CLOEXEC);
        char line[1024];
        memset(line, 'x', sizeof(line));
        line[sizeof(line) - 1] = '\n';
        for (int i = 0; i < lines; i++) {
            if (write(fd, line, sizeof(line)) < 0)
                return 1;
        }
        return 0;
    }
    if (strcmp(what, "ticks") == 0 && argc > 2)
        return count_ticks(argv[2]);
    printf("hello from the guest\n");
    return 7;
}
