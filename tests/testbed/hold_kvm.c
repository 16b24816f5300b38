/* SPDX-License-Identifier: MIT */
/*
 * Keeps one idle KVM machine as long as it lives, with one processor whose APIC is off. With the first machine, and
 * with the first such processor, the kernel patches code (static keys: preempt_notifier_key, apic_hw_disabled,
 * apic_sw_disabled), with the end of the last it patches that back; under QEMU's emulation with a thread per
 * processor, another processor that runs there now and then dies of the breakpoint that stands there
 * meanwhile ("int3" in finish_task_switch or __apic_accept_irq).
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { APIC_ENABLED = 1 << 11 }; /* of the APIC base register */

int main(void)
{
    struct kvm_sregs registers;
    int kvm = openat(AT_FDCWD, "/dev/kvm", O_RDWR | O_CLOEXEC);
    int machine = kvm < 0 ? -1 : ioctl(kvm, KVM_CREATE_VM, 0);
    if (machine < 0 || ioctl(machine, KVM_CREATE_IRQCHIP, 0) < 0)
        return 1;
    int processor = ioctl(machine, KVM_CREATE_VCPU, 0);
    if (processor < 0 || ioctl(processor, KVM_GET_SREGS, &registers) < 0)
        return 1;
    registers.apic_base &= ~(__u64)APIC_ENABLED;
    if (ioctl(processor, KVM_SET_SREGS, &registers) < 0)
        return 1;
    for (;;)
        pause();
}
