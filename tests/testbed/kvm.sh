#!/bin/sh
# SPDX-License-Identifier: MIT
# A bake, a run, and a cold run with --accel kvm, in the testbed (./dev testbed kvm): the machine's own KVM is
# emulated, but what calls it is not. /test/set is a task set, /root/cache has the guest's kernel.
set -eu
export TB2_BAKE_STORE=/root/store TB2_BAKE_CACHE=/root/cache PATH=$PATH:/usr/bin
mkdir -p /root/tasks/one
cat >/root/recipe.yaml <<'END'
name: kvm
network: none
steps:
  - run: echo made under kvm >/made-by
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
ls -l /dev/kvm
tb2-bake bake --tasks-dir /root/tasks --all --recipe /root/recipe.yaml --accel kvm
tb2-bake show one | grep accel
tb2-bake show --json one | grep -q memory_trace # its memory came over FUSE
tb2-bake run --accel kvm one -- sh -c 'cat /made-by; cat /proc/cpuinfo | grep -c hypervisor'
tb2-bake run --cold --accel kvm one -- cat /made-by
tb2-bake verify --accel kvm one
