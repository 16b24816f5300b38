#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""convert.py BUILD_DIR IMAGE...

What docs/benchmarks.md says of OverlayBD images: the images' disks as one layer each, in all forms, and
the same images pushed as layers that they share, into a registry of the run's own.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
REGISTRY = os.path.join(HERE, "..", "support", "registry.sh")


def run(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr))
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plain(build, store, disks):
    print("| one layer a disk | MB | CPU s | read MB/s | random 4 KiB, us |\n|---|---|---|---|---|")
    sums = {}
    for kind in ("lz4", "zstd"):
        for block in (4, 16, 32):
            rows = [json.loads(run(os.path.join(build, "tests/bench/bench_convert"), store, disk, kind, str(block))[0])
                    for disk in disks]
            size, cpu = sum(row["size"] for row in rows), sum(row["cpu"] for row in rows)
            sums[kind, block] = size, cpu
            print("| %s, %d KiB | %.1f | %.1f | %.0f | %.1f |" % (
                kind, block, size / 1e6, cpu, sum(row["read_mb_s"] for row in rows) / len(rows),
                sum(row["random_us"] for row in rows) / len(rows)), flush=True)
    print("plain data: %.1f MB" % (sum(row["plain"] for row in rows) / 1e6))
    return sums


def shared(tool, store, images, port, sums):
    print("\n| pushed, in layers | MB of distinct blobs | CPU s | of one layer a disk |\n|---|---|---|---|")
    for kind, block in (("lz4", 4), ("zstd", 16)):
        blobs, cpu = {}, 0.0
        shutil.rmtree(os.path.join(store, "pushed"), ignore_errors=True)
        for image in images:
            to = "127.0.0.1:%s/%s-%d" % (port, kind, block)
            out, used = run(tool, "push", "--store", store, "--json", "--compression", kind, "--block-size",
                            str(block), image, to)
            reference = json.loads(out)[0]["reference"].split("@")[0]
            manifest = json.loads(run("skopeo", "inspect", "--raw", "--tls-verify=false", "docker://" + reference)[0])
            blobs.update((layer["digest"], layer["size"]) for layer in manifest["layers"])
            cpu += used
        size = sum(blobs.values())
        print("| %s, %d KiB | %.1f | %.1f | %.2f of the bytes, %.2f of the CPU |" % (
            kind, block, size / 1e6, cpu, size / sums[kind, block][0], cpu / sums[kind, block][1]), flush=True)
        again = run(tool, "push", "--store", store, "--json", "--compression", kind, "--block-size", str(block),
                    images[0], to)
        print("the first one again: %.2f s CPU, %d converted" % (again[1], json.loads(again[0])[0]["converted"]))


def main():
    build, *images = sys.argv[1:]
    tool = os.path.join(build, "cli", "tb2-bake")
    work = tempfile.mkdtemp(prefix="tb2-convert-", dir="/var/tmp")
    store = os.path.join(work, "store")
    port = subprocess.run([REGISTRY, "start", work, "0"], check=True, capture_output=True, text=True).stdout.strip()
    try:
        disks = []
        for image in images:
            raw = os.path.join(work, "raw")
            disks.append(run(tool, "disk", "export", "--store", store, image, "--raw", raw)[0].strip())
            os.unlink(raw)
        print("%d images" % len(images))
        shared(tool, store, images, port, plain(build, store, disks))
    finally:
        subprocess.run([REGISTRY, "stop", work], check=False)
        shutil.rmtree(work, ignore_errors=True)


main()
