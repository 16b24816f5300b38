#!/bin/sh
# SPDX-License-Identifier: MIT
# A whole task set in the testbed (./dev testbed kvm, ./dev testbed firecracker BINARY): every task baked with the
# options that are this script's arguments, every template verified, a copy of each run. /test/set is the set: the
# directory of its tasks, and its images as an OCI layout tagged by task; /root/cache has the guest's kernel.
# A task keeps what its task.toml says, only its image is the one in the layout. What fails does not stop the others.
set -eu
export NO_COLOR=1 TB2_BAKE_STORE=/root/set-store TB2_BAKE_CACHE=/root/cache PATH=$PATH:/usr/bin
failed=""
say() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }
try() { # WHAT COMMAND... - how long it took, and whether it went well
    what=$1 began=$(cut -d. -f1 /proc/uptime)
    shift
    if "$@"; then outcome=ok; else outcome="FAILED ($?)" failed="$failed $what"; fi
    say "$what: $outcome, $(($(cut -d. -f1 /proc/uptime) - began)) s"
}
of() { # VERB TASK - quiet where it goes well
    case $1 in
    verify) tb2-bake verify $options "$2" ;;
    run) tb2-bake run $options "$2" -- cat /etc/os-release >/root/os-release && grep PRETTY_NAME /root/os-release ;;
    esac
}

options=$*
tasks=""
for file in /test/set/tasks/*/task.toml; do
    task=$(basename "$(dirname "$file")")
    tasks="$tasks $task"
    mkdir -p "/root/set-tasks/$task"
    sed "s|^docker_image *=.*|docker_image = \"oci:/test/set/oci:$task\"|" "$file" >"/root/set-tasks/$task/task.toml"
done
cat >/root/set-recipe.yaml <<'END_OF_RECIPE'
name: testbed-set
network: none
steps:
  - run: mkdir -p /logs/agent /logs/verifier
ready: test -d /logs/agent && test -d /logs/verifier
END_OF_RECIPE

say "bake$tasks"
try bake tb2-bake bake --tasks-dir /root/set-tasks --all --recipe /root/set-recipe.yaml --jobs 1 $options
tb2-bake report || true
tb2-bake ls
for task in $tasks; do
    tb2-bake show --json "$task" | tr ',' '\n' | grep -E '"(vmm|vmm_version|accel|cold_ready_ms|warm_ready_ms)"' || true
    try "verify $task" of verify "$task"
    try "run $task" of run "$task"
done
if [ -n "$failed" ]; then
    say "failed:$failed"
    exit 1
fi
say "all of them: baked, verified, run"
