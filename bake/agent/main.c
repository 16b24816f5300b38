/* SPDX-License-Identifier: MIT */
/*
 * tb2-agent: PID 1 of a guest; or, with --fd N or --listen-fd N, an ordinary process that serves
 * the same protocol on an inherited socket and leaves the machine alone (tests).
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Descriptors 0 to 2 must be taken, by whatever: a pipe of ours that got such a number would be
 * lost when a child puts its own in place.
 */
static void hold_stdio(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && openat(AT_FDCWD, "/", O_RDONLY | O_DIRECTORY) != fd)
            return;
    }
}

static int guest_init(struct guest *g)
{
    g->console = g->root = g->cgroups = -1;
    transfer_init(&g->transfer);
    copy_init(&g->copy);
    for (size_t i = 0; i < PROBES_MAX; i++)
        g->probes[i].link = (struct source){.fd = -1, .watch = -1};
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGIO);
    if (sigprocmask(SIG_BLOCK, &wanted, NULL) < 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return -errno;
    int fd = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    g->signals = (struct source){.fd = fd, .watch = -1};
    g->next_id = 1;
    return 0;
}

static int run_machine(struct guest *g)
{
    g->machine = true;
    int prepared = boot_prepare(g->boot_error);
    g->console = openat(AT_FDCWD, "/dev/console", O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (prepared < 0)
        guest_log(g, "%s", g->boot_error);
    memset(g->boot_id, '0', AGENT_BOOT_ID_LEN); /* until the root is there */
    if (files_write("/proc/self/oom_score_adj", "-1000") < 0)
        guest_log(g, "cannot leave the reach of the out-of-memory killer");
    const char *what;
    int linked = boot_open_link(&g->channel, &what);
    if (linked == 0)
        return guest_serve(g);
    guest_log(g, "no %s: %s", what, strerror(-linked));
    reboot(RB_POWER_OFF);
    return 1;
}

static int run_process(struct guest *g, enum channel_kind kind, int fd)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ||
        fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
        perror("tb2-agent");
        return 1;
    }
    g->mounted = true;
    machine_read_boot_id(g->boot_id);
    channel_init(&g->channel, kind, fd);
    int result = guest_serve(g);
    process_abandon(g, true);
    return result;
}

int main(int argc, char **argv)
{
    hold_stdio();
    struct guest *g =
        mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED || guest_init(g) < 0)
        return 1;
    bool stream = argc == 3 && strcmp(argv[1], "--fd") == 0;
    bool listener = argc == 3 && strcmp(argv[1], "--listen-fd") == 0;
    if (stream || listener)
        return run_process(g, stream ? CHANNEL_STREAM : CHANNEL_LISTENER,
                           (int)strtol(argv[2], NULL, 10));
    if (getpid() == 1) /* whatever arguments the kernel passes on */
        return run_machine(g);
    fputs("usage: tb2-agent --fd N | --listen-fd N\n"
          "As process 1 it is the init of a tb2-bake guest.\n",
          stderr);
    return 2;
}
