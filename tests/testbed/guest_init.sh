#!/bin/busybox sh
# SPDX-License-Identifier: MIT
# The first program on the testbed's root: makes it a system, runs /command, tells its status.
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec < /dev/null
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
while read -r module; do
    insmod "/modules/$module.ko" 2> /dev/null
done < /modules/order
exec > /dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw -echo 2> /dev/null
cd /test
[ ! -e hold_kvm ] || ./hold_kvm || echo "hold_kvm: $?" &
sh -c "$(cat /command)"
echo "testbed: exit $?"
sync
poweroff -f
