#!/bin/sh
# SPDX-License-Identifier: MIT
# nbd.sh BUILD_DIR [SECONDS [MIB [ROUNDS]]]: reads of a warm disk over NBD, ours against qemu-nbd and
# nbdkit serving the same bytes from a plain file. The servers take turns; each figure is the median
# of the rounds in kB/s with the lowest and the highest, then how many times as fast ours is.
set -eu
build=$1
seconds=${2:-3}
mib=${3:-256}
rounds=${4:-5}
dir=$(mktemp -d)
pids=
trap 'exec 3>&-; kill $pids 2>/dev/null || :; wait; rm -rf "$dir"' EXIT

# Half of it compresses, half does not.
for i in $(seq $((mib / 2))); do
    head -c 1048576 /dev/urandom
    seq $((i * 200000)) $((i * 200000 + 160000)) | head -c 1048576
done >"$dir/disk"

mkfifo "$dir/stop"
"$build/tests/bench/bench_serve_disk" "$dir/store" "$dir/disk" "$dir/ours" $((mib * 2)) \
    <"$dir/stop" >"$dir/ready" &
pids="$pids $!"
exec 3>"$dir/stop"
qemu-nbd -r -f raw -t -e 16 -k "$dir/qemu-nbd" "$dir/disk" &
pids="$pids $!"
nbdkit -f -r -U "$dir/nbdkit" file "$dir/disk" &
pids="$pids $!"
while ! [ -S "$dir/qemu-nbd" ] || ! [ -S "$dir/nbdkit" ] || ! grep -q ready "$dir/ready"; do
    sleep 0.1
done

# measure SERVER PATTERN BLOCK_SIZE DEPTH: kilobytes per second
measure() {
    fio --name=read --ioengine=nbd --uri="nbd+unix:///?socket=$dir/$1" --rw="$2" --bs="$3" \
        --iodepth="$4" --time_based --runtime="$seconds" --size="${mib}m" --output-format=terse |
        tail -n 1 | cut -d';' -f7
}

for server in ours qemu-nbd nbdkit; do # warm all caches
    nbdcopy "nbd+unix:///?socket=$dir/$server" null:
done
printf '%-22s %-28s %-28s %6s %-28s %6s\n' read ours qemu-nbd ratio nbdkit ratio
for case in 'randread 4k 1' 'randread 4k 16' 'read 1m 1' 'read 1m 4'; do
    set -- $case
    for server in ours qemu-nbd nbdkit; do : >"$dir/$server.rates"; done
    for round in $(seq "$rounds"); do
        for server in ours qemu-nbd nbdkit; do
            measure "$server" "$@" >>"$dir/$server.rates"
        done
    done
    for server in ours qemu-nbd nbdkit; do
        sort -n "$dir/$server.rates" |
            awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[1], v[NR] }'
    done | awk -v name="$1 $2 depth $3" '
        { text[NR] = sprintf("%d (%d-%d)", $1, $2, $3); median[NR] = $1 }
        END { printf "%-22s %-28s %-28s %6.2f %-28s %6.2f\n", name, text[1], text[2],
                     median[1] / median[2], text[3], median[1] / median[3] }'
done
