#!/bin/sh
# SPDX-License-Identifier: MIT
# ublk.sh [SECONDS [MIB [ROUNDS]]]: reads of a warm disk over ublk, ours against a loop device over the
# same bytes in a plain file. Runs in the testbed (./dev testbed bench). They take turns; each figure
# is the median of the rounds in kB/s with the lowest and the highest, then ours by loop's.
set -eu
seconds=${1:-3}
mib=${2:-128}
rounds=${3:-5}
dir=/root/bench
mkdir -p "$dir"

# Half of it compresses, half does not.
for i in $(seq $((mib / 2))); do
    head -c 1048576 /dev/urandom
    seq $((i * 200000)) $((i * 200000 + 160000)) | head -c 1048576
done >"$dir/disk"

mkfifo "$dir/stop"
./bench_serve_disk "$dir/store" "$dir/disk" ublk $((mib * 2)) <"$dir/stop" >"$dir/ready" &
server=$!
exec 3>"$dir/stop"
loop=$(losetup -f)
losetup "$loop" "$dir/disk"
while ! grep -q ready "$dir/ready"; do
    kill -0 $server
    sleep 0.1
done
ublk=$(sed 's/ready //' "$dir/ready")
cmp "$loop" "$ublk"
echo "the disks are equal"

# measure DISK PATTERN BLOCK_SIZE DEPTH: kilobytes per second
measure() {
    fio --name=read --ioengine=libaio --filename="$1" --readonly --direct=1 --rw="$2" --bs="$3" \
        --iodepth="$4" --time_based --runtime="$seconds" --size="${mib}m" --output-format=terse |
        tail -n 1 | cut -d';' -f7
}

printf '%-22s %-28s %-28s %6s\n' read ublk loop ratio
for case in 'randread 4k 1' 'randread 4k 16' 'read 1m 1' 'read 1m 4'; do
    set -- $case
    : >"$dir/ublk.rates"
    : >"$dir/loop.rates"
    for round in $(seq "$rounds"); do
        measure "$ublk" "$@" >>"$dir/ublk.rates"
        measure "$loop" "$@" >>"$dir/loop.rates"
    done
    for disk in ublk loop; do
        sort -n "$dir/$disk.rates" |
            awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[1], v[NR] }'
    done | awk -v name="$1 $2 depth $3" '
        { text[NR] = sprintf("%d (%d-%d)", $1, $2, $3); median[NR] = $1 }
        END { printf "%-22s %-28s %-28s %6.2f\n", name, text[1], text[2], median[1] / median[2] }'
done
losetup -d "$loop"
exec 3>&-
wait $server
