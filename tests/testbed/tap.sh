#!/bin/sh
# SPDX-License-Identifier: MIT
# A recipe with `network: tap` in the testbed: a step and copies of the template reach this machine over a tap device.
# The options are this script's arguments. /test/set is a task set, /root/cache has the guest's kernel.
set -eu
export TB2_BAKE_STORE=/root/tap-store TB2_BAKE_CACHE=/root/cache PATH=$PATH:/usr/bin
tunctl -t tap0 >/dev/null
ip address add 10.9.0.1/24 dev tap0
ip link set tap0 up
mkdir -p /root/www /root/tap-tasks/one
echo by tap >/root/www/page
httpd -p 10.9.0.1:8000 -h /root/www
cat >/root/tap-recipe.yaml <<'END_OF_RECIPE'
name: tap
network: tap
steps:
  - run: wget -q -O /page http://10.9.0.1:8000/page
ready: test -s /page
END_OF_RECIPE
cat >/root/tap-tasks/one/task.toml <<'END_OF_TASK'
[environment]
docker_image = "oci:/test/set/oci:count-words"
END_OF_TASK
tb2-bake bake --tasks-dir /root/tap-tasks --all --recipe /root/tap-recipe.yaml --tap tap0 "$@"
cat >/root/expected <<'END_OF_OUTPUT'
by tap
by tap
END_OF_OUTPUT
look='cat /page; wget -q -O- http://10.9.0.1:8000/page'
tb2-bake run --tap tap0 "$@" one -- sh -c "$look" >/root/found
cmp /root/found /root/expected
tb2-bake run --cold --tap tap0,10.9.0.77/24 "$@" one -- sh -c "$look; ip address" >/root/found
head -2 /root/found | cmp - /root/expected
grep -q 'inet 10.9.0.77/24' /root/found
tb2-bake verify --tap tap0 "$@" one
case "$*" in
*firecracker*)
    if tb2-bake run "$@" one -- true 2>/root/found; then exit 1; fi
    grep -q -e '--tap NAME' /root/found
    ;;
esac
echo "a tap device: step, run, run --cold, verify"
