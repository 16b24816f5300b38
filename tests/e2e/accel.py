#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which accelerator is used where there is no /dev/kvm, where it may not be opened, and where it opens and runs no
guest: auto falls back and says why, kvm is refused before anything is done, tcg does not ask."""

import os
import shutil
import sys
from glob import glob

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need, skip  # noqa: E402

need("unshare", "mount", "mknod")
NODES = "null zero full random urandom tty"
# Each runs the words after it with a /dev/kvm of its own, which nobody else sees.
HIDDEN = {
    "absent": "mount -t tmpfs none $1/empty; for n in %s; do touch $1/empty/$n; mount --bind /dev/$n $1/empty/$n; done;"
              " mkdir $1/empty/shm $1/empty/pts; mount --rbind $1/empty /dev" % NODES,
    "forbidden": "mount -t tmpfs -o nodev none $1/empty; mknod $1/empty/kvm c 10 232; mount --bind $1/empty/kvm /dev/kvm",
    "broken": "mount --bind /dev/null /dev/kvm",
}
REASONS = {
    "absent": "this host has no /dev/kvm",
    "forbidden": "/dev/kvm cannot be opened: Permission denied (is this user in the group kvm?)",
    "broken": "KVM does not work here: starting the machine: QEMU ",
}
REFUSED, NOT_RUN = 3, 125


def hidden(bakery, how, *command):
    """tb2-bake in a mount namespace; its cache is the bakery's own, so no answer of this machine is in it."""
    script = "set -e; %s; shift; exec \"$@\"" % HIDDEN[how] if how else 'shift; exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", bakery.home]
    return bakery.tb2(*command, under=words)


def refused(run, reason, status=REFUSED):
    check(run.status == status and "--accel kvm: " + reason in run.err, (run.status, run.err))
    check("--accel auto or tcg emulates guests" in run.err and not run.out, run.err)


def each_choice(bakery, how):
    plan = ["plan", *bakery.bake_command("--verbose")[1:]]
    kvm, auto, tcg = [hidden(bakery, how, *plan, "--accel", accel) for accel in ("kvm", "auto", "tcg")]
    reason = REASONS[how]
    refused(kvm, reason)
    check("emulation (TCG): " + reason in auto.expect().err, auto.err)
    check("KVM" not in tcg.expect().err, tcg.err)
    found = hidden(bakery, how, "doctor", "--probe", "--json")
    check("/dev/kvm" in found.out or "KVM does not work here" in found.out, found.out)


def bakes(bakery, how):
    """kvm is refused before anything is asked for; auto bakes all the same, and its template is found again."""
    before = len(bakery.requests())
    refused(hidden(bakery, how, *bakery.bake_command("--accel", "kvm")), REASONS[how])
    check(len(bakery.requests()) == before, "a request although it is refused")
    run = hidden(bakery, how, *bakery.bake_command()).expect()
    alias = next(iter(run.tasks().values()))["alias"]
    check(hidden(bakery, how, "run", alias, "--", "cat", "/made-by").expect().out.startswith("e2e for "), "a copy")
    refused(hidden(bakery, how, "run", "--accel", "kvm", alias, "--", "true"), REASONS[how], NOT_RUN)


def this_machine(bakery):
    """Where KVM works, kvm is as auto; where it does not, it is refused as above."""
    plan = ["plan", *bakery.bake_command("--verbose")[1:]]
    for answer in glob(os.path.join(bakery.cache, "accel-*")):
        os.unlink(answer)
    auto = hidden(bakery, "", *plan).expect()
    kvm = hidden(bakery, "", *plan, "--accel", "kvm")
    if "KVM: a probe guest booted" in auto.err:
        check("KVM: a probe guest booted" in kvm.expect().err, kvm.err)
        return
    reason = auto.err.split("emulation (TCG): ")[1].splitlines()[0]
    refused(kvm, reason[:40])


def main():
    if os.geteuid() != 0:
        skip("hiding /dev/kvm needs root")
    with Bakery(tasks=1) as bakery:
        shared, bakery.cache = bakery.cache, bakery.path("own-cache")
        if os.path.isdir(os.path.join(shared, "kernel")):
            shutil.copytree(os.path.join(shared, "kernel"), os.path.join(bakery.cache, "kernel"))
        os.mkdir(bakery.path("empty"))
        for how in HIDDEN:
            if how == "absent" or os.path.exists("/dev/kvm"):
                each_choice(bakery, how)
        bakes(bakery, "absent")
        this_machine(bakery)
        check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


main()
