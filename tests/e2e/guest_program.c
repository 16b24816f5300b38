/* SPDX-License-Identifier: MIT */
/* The only program on vm_test's disk: static, so that the disk needs no libraries and no shell. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "panic") == 0) {
        int fd = openat(AT_FDCWD, "/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);
        return fd < 0 || write(fd, "c", 1) != 1; /* the write never returns */
    }
    if (strcmp(what, "flood") == 0) {
        int fd = openat(AT_FDCWD, "/dev/console", O_WRONLY | O_CLOEXEC);
        char line[1024];
        memset(line, 'x', sizeof(line));
        line[sizeof(line) - 1] = '\n';
        for (int i = 0; i < 1536; i++) {
            if (write(fd, line, sizeof(line)) < 0)
                return 1;
        }
        return 0;
    }
    printf("hello from the guest\n");
    return 7;
}
