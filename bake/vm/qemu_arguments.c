/* SPDX-License-Identifier: MIT */
/*
 * QEMU's command line. A restored machine must be built exactly like the saved one, so there is one
 * list, and only what may differ does: where memory comes from, the disk's socket, `-incoming`.
 *
 * Why these parts:
 * - q35 has an HPET and a PM timer: the guest calibrates its clock also on a busy host.
 * - qboot as firmware and an uncompressed kernel entered by PVH: SeaBIOS and the kernel's own
 *   unpacking are emulated code, together half of a boot under TCG.
 * - Nothing of the user's configuration, no default devices, no option ROMs.
 * - Paths go through JSON or are relative to the run directory, which is QEMU's current directory:
 *   QEMU's key=value syntax gives commas a meaning.
 */
#include <stdio.h>
#include <string.h>

#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "bake/vm/qemu.h"
#include "base/json.h"
#include "base/mem.h"

static void add_pair(struct vm_arguments *a, const char *option, const char *value)
{
    vm_argument(a, option);
    vm_argument(a, value);
}

/* `value` is taken over. */
static void add_json(struct vm_arguments *a, const char *option, struct json *value)
{
    AUTO_JSON struct json *held UNUSED = value;
    char *text = NULL;
    if (a->rc == 0)
        a->rc = json_print(held, 0, &text, a->e);
    vm_argument(a, option);
    vm_argument_taken(a, text);
}

static void add_memory(struct vm_arguments *a, const struct vm_launch *launch)
{
    const struct vm_options *o = launch->options;
    struct json *memory = json_new_object();
    json_set(memory, "qom-type",
             json_new_string(launch->bare ? "memory-backend-ram" : "memory-backend-file"));
    json_set(memory, "id", json_new_string("ram"));
    json_set(memory, "size", json_new_integer((int64_t)(o->memory_mb << 20)));
    if (!launch->bare) {
        json_set(memory, "mem-path", json_new_string(o->memory_path));
        /* A restored guest writes to private copies of the file's pages. */
        json_set(memory, "share", json_new_bool(!launch->state_path || o->memory_shared));
    }
    add_json(a, "-object", memory);
}

/* The socket's path as QEMU sees it: relative when it lies in the run directory. */
static const char *disk_path(const struct vm_options *o)
{
    size_t len = strlen(o->run_dir);
    if (strncmp(o->nbd_socket, o->run_dir, len) == 0 && o->nbd_socket[len] == '/')
        return o->nbd_socket + len + 1;
    return o->nbd_socket;
}

static void add_disk(struct vm_arguments *a, const struct vm_options *o)
{
    struct json *server = json_new_object();
    json_set(server, "type", json_new_string("unix"));
    json_set(server, "path", json_new_string(disk_path(o)));
    /* Guest flushes reach the server; the host's page cache is the server's business. */
    struct json *cache = json_new_object();
    json_set(cache, "direct", json_new_bool(false));
    json_set(cache, "no-flush", json_new_bool(false));
    struct json *disk = json_new_object();
    json_set(disk, "driver", json_new_string("nbd"));
    json_set(disk, "node-name", json_new_string("disk"));
    json_set(disk, "server", server);
    json_set(disk, "reconnect-delay", json_new_integer(0)); /* a lost server is EIO, not a hang */
    json_set(disk, "discard", json_new_string("unmap"));
    json_set(disk, "detect-zeroes", json_new_string("off"));
    json_set(disk, "cache", cache);
    add_json(a, "-blockdev", disk);
    add_pair(a, "-device",
             "virtio-blk-pci,drive=disk,serial=tb2,write-cache=on,werror=report,rerror=report,"
             "discard_granularity=4096");
}

static void add_devices(struct vm_arguments *a, const struct vm_launch *launch)
{
    const struct vm_options *o = launch->options;
    add_pair(a, "-chardev", "stdio,id=console,signal=off");
    add_pair(a, "-serial", "chardev:console");
    add_pair(a, "-chardev", "socket,id=qmp,path=" QEMU_CONTROL_SOCKET ",server=on,wait=off");
    add_pair(a, "-mon", "chardev=qmp,mode=control");
    add_pair(a, "-device", "virtio-serial-pci");
    add_pair(a, "-chardev", "socket,id=agent,path=" QEMU_AGENT_SOCKET ",server=on,wait=off");
    add_pair(a, "-device", "virtserialport,chardev=agent,name=tb2.agent");
    add_pair(a, "-object", "rng-random,id=rng,filename=/dev/urandom");
    add_pair(a, "-device", "virtio-rng-pci,rng=rng");
    if (!launch->bare)
        add_disk(a, o);
    if (o->network || o->tap) {
        vm_argument(a, "-netdev");
        /* No vnet header: a machine can be restored on either kind of network. */
        vm_argument_taken(a, o->tap ? mem_printf("tap,id=net,ifname=%s,script=no,downscript=no,"
                                                 "vnet_hdr=off",
                                                 o->tap)
                                    : mem_strdup("user,id=net"));
        add_pair(a, "-device", "virtio-net-pci,netdev=net,romfile=");
    }
}

int qemu_arguments(char ***out, const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    struct vm_arguments a = {.e = e};
    bool kvm = o->accel == VM_ACCEL_KVM;
    vm_argument(&a, "qemu-system-x86_64");
    add_pair(&a, "-machine",
             "q35,usb=off,sata=off,smbus=off,vmport=off,mem-merge=off,dump-guest-core=off,"
             "memory-backend=ram");
    /* The translation buffer is bounded: by default each machine may take an eighth of memory. */
    add_pair(&a, "-accel", kvm ? "kvm" : "tcg,thread=multi,tb-size=256");
    add_pair(&a, "-cpu", kvm ? "host" : "max");
    vm_argument(&a, "-smp");
    vm_argument_taken(&a, mem_printf("%u", o->cpus));
    vm_argument(&a, "-m");
    vm_argument_taken(&a, mem_printf("%lluM", (unsigned long long)o->memory_mb));
    add_memory(&a, launch);
    vm_argument(&a, "-nodefaults");
    vm_argument(&a, "-no-user-config");
    vm_argument(&a, "-no-reboot");
    add_pair(&a, "-display", "none");
    add_pair(&a, "-sandbox",
             "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    add_pair(&a, "-bios", "qboot.rom");
    /* A restored guest has them in its memory: reading them again is half of QEMU's start. */
    if (!launch->state_path) {
        add_pair(&a, "-kernel", o->kernel->kernel_path);
        add_pair(&a, "-initrd", o->kernel->initramfs_path);
        add_pair(&a, "-append", launch->append);
    }
    add_devices(&a, launch);
    if (launch->state_path)
        add_pair(&a, "-incoming", "defer");
    return vm_arguments_done(&a, out);
}
