/* SPDX-License-Identifier: MIT */
/*
 * Keeps one empty KVM machine as long as it lives. With the first machine the kernel patches its scheduler's code
 * (a static key, preempt_notifier_inc), with the end of the last it patches that back; under QEMU's emulation
 * with a thread per processor, another processor that runs there now and then dies of the breakpoint that stands
 * there meanwhile ("int3" in finish_task_switch).
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(void)
{
    int kvm = openat(AT_FDCWD, "/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0 || ioctl(kvm, KVM_CREATE_VM, 0) < 0)
        return 1;
    for (;;)
        pause();
}
