#!/bin/sh
# SPDX-License-Identifier: MIT
# attach, detach and devices as people use them, in the testbed: a mounted disk, a server that is
# killed, devices of others, numbers used again.
set -u
export TB2_BAKE_STORE=/root/store
log=/root/store/devices/server.log
failed=0

check() { # WHAT COMMAND...
    what=$1
    shift
    if "$@"; then
        echo "ok: $what"
    else
        echo "FAILED: $what"
        failed=1
    fi
}

refuses() { # STATUS TEXT COMMAND...: its status, and the text in what it says
    status=$1
    text=$2
    shift 2
    "$@" >/tmp/out 2>&1
    [ $? = "$status" ] && grep -q "$text" /tmp/out || { cat /tmp/out; return 1; }
}

shows() { # TEXT: `devices` has it
    tb2-bake devices 2>&1 | grep -q "$1" || { tb2-bake devices; return 1; }
}

server() { # pid of the devices' server
    pidof tb2-bake
}

no_devices() {
    [ -z "$(ls /sys/class/ublk-char)" ] && [ -z "$(ls /root/store/devices | grep -v '^server\.')" ] ||
        { ls /sys/class/ublk-char /root/store/devices; return 1; }
}

gone() { # pid
    for i in $(seq 100); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

head -c 8388608 /dev/urandom >/root/random
truncate -s 67108864 /root/ext4
/usr/bin/mke2fs -q -t ext4 -b 4096 /root/ext4
random=$(./put_disk $TB2_BAKE_STORE /root/random)
ext4=$(./put_disk $TB2_BAKE_STORE /root/ext4)

# Whose device this is, is not ours to ask.
mkfifo /root/stop
./bench_serve_disk /root/other /root/random ublk 16 </root/stop >/root/ready &
exec 3>/root/stop
while ! grep -q ready /root/ready; do sleep 0.1; done
other=$(sed 's/ready //' /root/ready)

a_number_used_again() {
    a=$(tb2-bake attach "$random")
    check "a disk reads as its bytes" cmp "$a" /root/random
    check "it cannot be written" refuses 1 "" dd if=/root/random of="$a" bs=4096 count=1 conv=notrunc
    check "devices lists it" shows "$a *served *ro"
    check "detach" tb2-bake detach "$a"
    b=$(tb2-bake attach "$ext4")
    check "the number is used again" [ "$a" = "$b" ]
    check "nothing stale is read" cmp "$b" /root/ext4
    check "detach again" tb2-bake detach "$b"
}

a_mounted_disk_outlives_its_server() {
    c=$(tb2-bake attach "$ext4" --rw --ublk)
    mkdir -p /mnt
    check "mount" mount -t ext4 "$c" /mnt
    cp /root/random /mnt/kept
    sync
    check "a mounted disk stays" refuses 4 "in use" tb2-bake detach "$c"

    victim=$(server)
    kill -9 "$victim"
    gone "$victim"
    check "devices tells the dead" shows "$c *dead *rw"
    (echo written meanwhile >/mnt/late; sync) & # waits in the kernel
    writer=$!
    check "recover" tb2-bake devices --recover
    check "it is served again" shows "$c *served *rw"
    wait $writer
    echo 3 >/proc/sys/vm/drop_caches
    check "what was written is there" cmp /mnt/kept /root/random
    check "and what was under way" grep -q meanwhile /mnt/late
    check "unmount" umount /mnt
    check "the file system is clean" /usr/bin/e2fsck -fn "$c"

    victim=$(server)
    kill -9 "$victim"
    gone "$victim"
    check "a dead server's device is removed" tb2-bake detach "$c"
    check "the other's device was left alone" cmp "$other" /root/random
    exec 3>&-
    wait
    check "nothing is left" no_devices
}

a_server_that_is_ended() {
    d=$(tb2-bake attach "$random" --rw)
    e=$(tb2-bake attach "$ext4" --rw)
    last=$(server)
    kill -TERM "$last"
    gone "$last"
    check "a server that is ended takes its devices along" no_devices
}

without_ublk() {
    rmmod ublk_drv
    check "without ublk the reason is told" refuses 3 "modprobe ublk_drv" tb2-bake attach "$random" --ublk
    n=$(tb2-bake attach "$random" 2>/tmp/out)
    check "and NBD serves" [ -S "$n" ]
    check "with a word about it" grep -q "over NBD instead" /tmp/out
    check "detach NBD" tb2-bake detach "$n"
    insmod /modules/ublk_drv.ko
}

without_io_uring() {
    echo 2 >/proc/sys/kernel/io_uring_disabled
    check "without io_uring the reason is told" refuses 3 "io_uring is refused" tb2-bake attach "$random" --ublk
    n=$(tb2-bake attach "$random" 2>/tmp/out)
    check "and NBD serves" [ -S "$n" ]
    check "detach NBD again" tb2-bake detach "$n"
    echo 0 >/proc/sys/kernel/io_uring_disabled
}

a_number_used_again
a_mounted_disk_outlives_its_server
a_server_that_is_ended
without_io_uring
without_ublk
[ $failed = 0 ] || cat $log
exit $failed
