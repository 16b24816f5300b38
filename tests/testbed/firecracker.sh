#!/bin/sh
# SPDX-License-Identifier: MIT
# Guests in a real Firecracker, under the testbed's emulated KVM (./dev testbed firecracker BINARY): the driver
# test, then bakes, runs, cold runs and verifications as people do them; the disk once as a ublk device
# and once, without that module, as a file. /test/set is a task set, /root/cache has the guest's kernel.
set -eu
export TB2_BAKE_STORE=/root/store TB2_BAKE_CACHE=/root/cache PATH=$PATH:/usr/bin
now() { cut -d' ' -f1 /proc/uptime; }
say() { echo "[$(now)] $*"; }
mkdir -p /root/tasks/one
cat >/root/recipe.yaml <<'END'
name: firecracker
network: none
steps:
  - run: echo made in firecracker >/made-by
start: while true; do sleep 1000; done
ready:
  command: test -s /made-by
END
cat >/root/tasks/one/task.toml <<'END'
[environment]
docker_image = "oci:/test/set/oci:count-words"
memory_mb = 256
cpus = 1
END

use() { # one round of everything
    say "bake"
    tb2-bake bake --tasks-dir /root/tasks --all --recipe /root/recipe.yaml "$@"
    tb2-bake show --json one | tr ',' '\n' | grep -E '"(vmm|accel|cpu|tsc_khz|boot_ms|cold_ready_ms|warm_ready_ms)"'
    say "run"
    tb2-bake run "$@" one -- sh -c 'cat /made-by; grep -c hypervisor /proc/cpuinfo'
    say "run --cold"
    tb2-bake run --cold "$@" one -- cat /made-by
    say "verify"
    tb2-bake verify "$@" one
    say "done"
}

firecracker --version | head -1
if [ -e ./e2e_vm_test ]; then
    TMPDIR=/root ./e2e_vm_test /root/cache ./e2e_guest_program firecracker
fi
ls -l /dev/kvm /dev/ublk-control
tb2-bake doctor 2>/dev/null | grep -i -A1 firecracker || true
say "probe" # a guest with a time limit, which a busy host may miss
tb2-bake plan --tasks-dir /root/tasks --all --recipe /root/recipe.yaml >/dev/null 2>&1 || true
cat /root/cache/accel-*-firecracker
if grep -q ^kvm /root/cache/accel-*-firecracker; then
    use --verbose # chosen by itself
else
    use --accel kvm --verbose
fi
if ls /dev/ublkb* 2>/dev/null; then
    say "a disk is left behind"
    exit 1
fi
rm -rf /root/store
rmmod ublk_drv
use --vmm firecracker --accel kvm
insmod /modules/ublk_drv.ko # for what comes after
