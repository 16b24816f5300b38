#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Boot images: made once for all tasks, made again when damaged, and no task can tell that it began as one."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need  # noqa: E402
from compare_trees import differences  # noqa: E402
from disks import export, mounted_tree, quiet  # noqa: E402

need("e2fsck", "mount")
MADE, AGAIN = "booting once for all guests", "making it again"

# What programs see of their machine, but for times, process numbers and what is random.
LOOK = r"""
cat /proc/mounts /proc/cmdline /proc/filesystems /proc/devices /proc/partitions /proc/swaps
cat /proc/sys/kernel/hostname /proc/sys/kernel/osrelease /sys/block/vda/size /sys/block/vda/queue/write_cache
cut -d' ' -f1 /proc/modules | sort
ls /sys/class/net /sys/class/block /sys/bus/pci/devices /sys/fs/cgroup
find /dev /etc/hosts /etc/resolv.conf | sort | while read -r path; do stat -c '%n %F %a %u %g %t %T' "$path"; done
cat /proc/self/limits /proc/self/status | grep -E 'Max|Cap|Groups|Seccomp'
ulimit -a; umask; pwd; env | sort
for pid in /proc/[0-9]*; do tr '\0' ' ' < $pid/cmdline; echo; done | grep . > /dev/shm/all
grep -v -E '^(tr|grep|sort) | -c ' /dev/shm/all | sort -u
"""


def set_storage(bakery, task, size):
    path = os.path.join(bakery.set, "tasks", task, "task.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    changed = text.replace("storage_mb = 10240", "storage_mb = %d" % size).replace('storage = "10G"',
                                                                                  'storage = "%dM"' % size)
    check(changed != text, "no storage in %s" % path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(changed)


def records(bakery, store="store"):
    at = bakery.path(store, "boots")
    return sorted(name for name in os.listdir(at) if name.endswith(".json"))


def made(run):
    return run.err.count(MADE)


def ask(bakery, alias, script, store="store", *options):
    return bakery.tb2("run", *options, alias, "--", "sh", "-c", script, store=store).expect().out


def once_for_all(bakery):
    """Four tasks at once, two of them with disks of other sizes; each is proved by the bake."""
    names = [task["name"] for task in bakery.facts["tasks"]]
    for task, size in zip(names, (15000, 20000)):
        set_storage(bakery, task, size)
    run = bakery.bake("--jobs", "4").expect()
    check(made(run) == 1, run.err)
    check(len(records(bakery)) == 1, records(bakery))
    tasks = run.tasks()
    key = "sha256:" + records(bakery)[0].removesuffix(".json")
    sizes, boots = set(), set()
    for name in names:
        alias = tasks[name]["alias"]
        check(json.loads(bakery.tb2("show", "--json", alias).expect().out)["boot_image"] == key, alias)
        size, boot = ask(bakery, alias, "cat /sys/block/vda/size /proc/sys/kernel/random/boot_id").split()
        raw = bakery.path("disk.raw")
        export(bakery, alias, raw)
        check(int(size) * 512 == os.path.getsize(raw), "%s: the guest sees a disk of %s sectors" % (alias, size))
        quiet("e2fsck", "-fn", raw)
        os.unlink(raw)
        sizes.add(size)
        boots.add(boot)
    check(len(sizes) >= 3, sizes)
    check(len(boots) == len(names), "boot ids are the same: %s" % boots)
    return names


def as_from_the_kernel(bakery, task):
    """The same task without a boot image: the machine, the files and the recipe's work are the same."""
    cold = bakery.bake("--no-boot-image", tasks=[task], store="cold").expect()
    check(made(cold) == 0 and not os.path.exists(bakery.path("cold", "boots")), cold.err)
    alias = cold.tasks()[task]["alias"]
    check("boot_image" not in json.loads(bakery.tb2("show", "--json", alias, store="cold").expect().out), alias)
    seen = [ask(bakery, alias, LOOK, store).splitlines() for store in ("store", "cold")]
    check(len(seen[0]) > 60 and seen[0] == seen[1],
          "\n".join(sorted(set(seen[0]) ^ set(seen[1]))) or "the same lines in another order")
    trees = []
    for store in ("store", "cold"):
        raw = bakery.path(store + ".raw")
        export(bakery, alias, raw, store)
        trees.append(mounted_tree(raw, bakery.path(store + ".mnt")))
    found = list(differences(*trees, ignore=("mtime", "dirmtime")))
    check(not found, "\n".join(found[:20]))
    check(ask(bakery, alias, "cat /made-by", "store", "--cold") == ask(bakery, alias, "cat /made-by"), "a cold boot")


def again(bakery, task, spoil):
    """A boot image that was spoilt is made again, and the task gets ready; the next bake takes the new one."""
    with open(bakery.path("store", "boots", records(bakery)[0]), encoding="utf-8") as file:
        before = json.load(file)
    spoil(before)
    run = bakery.bake("--force", tasks=[task]).expect()
    check(run.outcomes() == {task: "ready"} and made(run) == 1, run.err)
    with open(bakery.path("store", "boots", records(bakery)[0]), encoding="utf-8") as file:
        check(json.load(file)["memory"] != before["memory"], "it is the same boot image")
    bakery.tb2("verify", run.tasks()[task]["alias"]).expect()
    check(made(bakery.bake("--force", tasks=[task]).expect()) == 0, "made once more")
    return run


def chunks(bakery, digest):
    """Paths of a map's chunks (docs/formats/block-map.md)."""
    with open(bakery.path("store", "disks", digest.removeprefix("sha256:")), "rb") as file:
        data = file.read()
    count = int.from_bytes(data[16:20], "little")
    names = [data[24 + 32 * i:56 + 32 * i].hex() for i in range(count)]
    return [bakery.path("store", "chunks", name[:2], name) for name in names]


def damage(bakery, task):
    def flip(record):
        path = max(chunks(bakery, record["memory"]), key=os.path.getsize)
        with open(path, "r+b") as file:
            data = bytearray(file.read())
            data[len(data) // 2] ^= 0x10
            file.seek(0)
            file.write(data)

    def lose(record):
        os.unlink(chunks(bakery, record["memory"])[0])

    def cut(_):
        path = bakery.path("store", "boots", records(bakery)[0])
        os.truncate(path, 40)

    def confuse(record):
        """Whole in itself, but the device state is no such thing: the VMM refuses it."""
        with open(chunks(bakery, record["memory"])[0], "rb") as file:
            stored = file.read()
        with open(chunks(bakery, record["state"])[0], "wb") as file:
            file.write(stored)

    for spoil in (flip, lose, cut, confuse):
        run = again(bakery, task, spoil)
        check("boot image again" in run.err or AGAIN in run.err, "%s: %s" % (spoil.__name__, run.err))


def main():
    with Bakery(tasks=4) as bakery:
        names = once_for_all(bakery)
        as_from_the_kernel(bakery, names[2])
        damage(bakery, names[2])
        # Older templates of the task have lost what they shared with chunks that were spoilt.
        bakery.tb2("store", "fsck", "--repair")
        bakery.bake().expect()
        bakery.tb2("store", "gc", "--grace", "0s").expect()
        bakery.tb2("store", "fsck").expect()
        check(bakery.leftovers() == [] and bakery.machines() == [], "something is left")


main()
