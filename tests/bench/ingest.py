#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ingest.py BUILD_DIR suite LAYOUT [TAG...]   [--rounds N] [--level L]
ingest.py BUILD_DIR growth                 [--base-mb N] [--top-mb N] [--images 1,10,80]
ingest.py BUILD_DIR memory                 [--gib N] [--layers N] [--wide] [--jobs N]

What docs/benchmarks.md says of ingest. Everything runs on local OCI layouts into empty stores on the
file system of --work (/var/tmp); ratios are of one run, alternating; times are printed, never judged.

suite    images of LAYOUT (all its tags, or those named): ours, ingest and assembly of all of them at
         once, against `umoci unpack` and `mke2fs -d` of each (needs root), and against the floor: what
         inflating, hashing and compressing the same data take when each is timed alone. With
         $TB2_OVERLAYBD_TOOLS, against the OverlayBD project's tools as well (overlaybd_tools.py).
growth   images that share all but a top layer: what the 1st, the 10th, the 80th costs.
memory   layers of one large file each, all in one image: the most memory that ingest ever had. --wide: zstd with a
         window of 128 MiB instead of gzip.
"""

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import overlaybd_tools
from ingest_images import LAYER, Layout, tree


def timed(command, cwd=None):
    """Wall and CPU seconds of a command and of all it waited for."""
    subprocess.run(["sync"], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit("%s\nexit status %d\n%s" % (" ".join(command), done.returncode, done.stderr[-3000:]))
    return done.stdout, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Bench:
    def __init__(self, options):
        self.options = options
        self.work = options.work
        self.store = os.path.join(self.work, "store")

    def program(self, name):
        return os.path.join(self.options.build, "tests", "bench", name)

    def ingest(self, images, *more, fresh=True):
        """Report of our program, with the disks' digests."""
        if fresh:
            shutil.rmtree(self.store, ignore_errors=True)
        command = [self.program("bench_ingest"), "-l", str(self.options.level), *more, self.store, *images]
        out, wall, cpu = timed(command)
        *disks, report = out.splitlines()
        return {**json.loads(report), "wall": wall, "cpu": cpu, "disks": disks}

    # ---- suite ----

    def reference(self, layout, tags, ours):
        """The OverlayBD project's tools over the distinct layers of the same images."""
        directory = os.path.join(self.work, "overlaybd")
        tools = overlaybd_tools.Tools(directory)
        for tag in tags:
            tools.image(layout, tag)
        print("overlaybd-create, -apply, -commit of %d layers: %.2f s wall, %.2f s CPU; over ours %.1f wall, %.1f CPU" % (
            len(tools.commits), tools.wall, tools.cpu, tools.wall / ours["wall"], tools.cpu / ours["cpu"]), flush=True)
        shutil.rmtree(directory)

    def peers(self, layout, tags):
        """umoci and mke2fs, one image after another."""
        wall = {"umoci": 0.0, "mke2fs": 0.0}
        cpu = {"umoci": 0.0, "mke2fs": 0.0}
        judge = os.path.join(self.work, "judge")
        if not os.path.exists(judge):
            make_judge(layout, tags, judge)
        for tag in tags:
            bundle, disk = os.path.join(self.work, "bundle"), os.path.join(self.work, "disk.raw")
            rootfs = os.path.join(bundle, "rootfs")
            for name, command in (
                    ("umoci", ["umoci", "unpack", "--image", "%s:%s" % (judge, tag), bundle]),
                    ("mke2fs", ["mke2fs", "-q", "-t", "ext4", "-d", rootfs, disk, "4G"])):
                _, seconds, used = timed(command)
                wall[name] += seconds
                cpu[name] += used
            shutil.rmtree(bundle)
            os.unlink(disk)
        return wall, cpu

    def suite(self, layout, tags):
        with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
            names = [m["annotations"]["org.opencontainers.image.ref.name"] for m in json.load(file)["manifests"]]
        tags = tags or names
        images = ["oci:%s:%s" % (layout, tag) for tag in tags]
        for top, _, files in os.walk(layout):  # all start from a warm page cache
            for name in files:
                with open(os.path.join(top, name), "rb") as file:
                    while file.read(1 << 20):
                        pass
        rows = []
        for _ in range(self.options.rounds):
            ours = self.ingest(images)
            out, _, _ = timed([self.program("bench_floor"), str(self.options.level), self.store, *images])
            floor = json.loads(out)
            wall, cpu = self.peers(layout, tags)
            rows.append((ours, floor, wall, cpu))
            if overlaybd_tools.DIRECTORY:
                self.reference(layout, tags, ours)
            print("ours %.2f s wall, %.2f s CPU; floor %.2f s CPU; umoci %.2f + mke2fs %.2f s wall, %.2f s CPU" % (
                ours["wall"], ours["cpu"], floor["total_s"], wall["umoci"], wall["mke2fs"], sum(cpu.values())),
                flush=True)
        ours, floor, _, _ = rows[-1]
        print("\n%d images, %.1f MB of distinct blobs, %.1f MB plain, %.1f MB of distinct chunks" % (
            len(tags), floor["blob_bytes"] / 1e6, floor["plain_bytes"] / 1e6, floor["unique_bytes"] / 1e6))
        print("| part of the floor | CPU s |\n|---|---|")
        for part in ("inflate", "blob_hash", "plain_hash", "chunk_hash", "compress"):
            print("| %s | %.2f |" % (part, statistics.median(row[1][part + "_s"] for row in rows)))
        print("\nstored: %.1f MB in chunks, %.1f MB in all; peak memory %.0f MiB" % (
            ours["chunk_bytes_new"] / 1e6, stored_bytes(self.store) / 1e6, max(row[0]["max_rss_mib"] for row in rows)))
        times = [sum(row[2].values()) / row[0]["wall"] for row in rows]
        print("umoci + mke2fs over ours, wall: median %.1f (%s)" % (
            statistics.median(times), ", ".join("%.1f" % t for t in times)))
        times = [sum(row[3].values()) / row[0]["cpu"] for row in rows]
        print("umoci + mke2fs over ours, CPU: median %.1f" % statistics.median(times))
        times = [row[0]["cpu"] / row[1]["total_s"] for row in rows]
        print("our CPU over the floor: median %.2f (%s)" % (
            statistics.median(times), ", ".join("%.2f" % t for t in times)))

    # ---- growth ----

    def growth(self):
        counts = [int(n) for n in self.options.images.split(",")]
        layout = Layout(os.path.join(self.work, "layout"))
        seed = random.Random(1)
        base = [layout.layer(tree(seed, "base%d" % n, self.options.base_mb // 4)) for n in range(4)]
        for n in range(max(counts)):
            top = layout.layer(tree(seed, "task", self.options.top_mb))
            layout.image("t%d" % n, base + [top])
        layout.close()
        print("base %d MB in 4 layers, top layers of %d MB" % (self.options.base_mb, self.options.top_mb))
        print("| image | wall s | CPU s | ingest s | assemble s | new chunks | stored MB |\n|---|---|---|---|---|---|---|")
        before = 0
        for n in range(max(counts)):
            report = self.ingest(["oci:%s:t%d" % (layout.path, n)], fresh=n == 0)
            size = stored_bytes(self.store) if n < 2 or n + 1 in counts or n + 2 in counts else None
            if n < 2 or n + 1 in counts:
                print("| %d | %.2f | %.2f | %.2f | %.2f | %d | %.1f |" % (
                    n + 1, report["wall"], report["cpu"], report["ingest_s"], report["assemble_s"],
                    report["chunks_new"], (size - before) / 1e6), flush=True)
            before = size or before

    # ---- memory ----

    def memory(self):
        layout = Layout(os.path.join(self.work, "layout"))
        size = int(self.options.gib * (1 << 30))
        layout.image("big", [layout.big_layer(size, n + 1, self.options.wide) for n in range(self.options.layers)])
        layout.close()
        report = self.ingest(["oci:%s:big" % layout.path], "-j", str(self.options.jobs))
        print("%d layers%s with a file of %.2f GiB each, --jobs %d: %.0f MiB at most, %.1f s wall, %.1f s CPU" % (
            self.options.layers, " (zstd --long=27)" if self.options.wide else "", self.options.gib, self.options.jobs, report["max_rss_mib"], report["wall"], report["cpu"]))
        if report["max_rss_mib"] >= 200:
            sys.exit("more than 200 MiB")


def make_judge(layout, tags, path):
    """The same images for umoci, which reads OCI manifests with gzip layers alone. Not timed."""
    def read(descriptor):
        with open(os.path.join(layout, "blobs", *descriptor["digest"].split(":")), "rb") as file:
            return file.read()

    judge = Layout(path)
    with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
        index = {m["annotations"]["org.opencontainers.image.ref.name"]: m for m in json.load(file)["manifests"]}
    for tag in tags:
        manifest = json.loads(read(index[tag]))
        while "manifests" in manifest:
            manifest = json.loads(read([m for m in manifest["manifests"]
                                        if m.get("platform", {}).get("architecture") == "amd64"][0]))
        layers = []
        for layer in manifest["layers"]:
            data = read(layer)
            if data[:4] == b"\x28\xb5\x2f\xfd":
                data = subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout
            if data[:2] != b"\x1f\x8b":
                data = gzip.compress(data, 6, mtime=0)
            layers.append((judge.blob(data, LAYER), None))
        judge.image(tag, layers, read(manifest["config"]))
    judge.close()


def stored_bytes(store):
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(store) for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("what", choices=["suite", "growth", "memory"])
    parser.add_argument("layout", nargs="?")
    parser.add_argument("tags", nargs="*")
    parser.add_argument("--work", default="/var/tmp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--base-mb", type=int, default=400)
    parser.add_argument("--top-mb", type=int, default=20)
    parser.add_argument("--images", default="1,10,80")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    if options.what == "suite" and not options.layout:
        parser.error("suite needs a LAYOUT")
    options.build = os.path.realpath(options.build)
    options.work = tempfile.mkdtemp(prefix="tb2-bench-", dir=options.work)
    bench = Bench(options)
    try:
        if options.what == "suite":
            bench.suite(os.path.realpath(options.layout), options.tags)
        else:
            getattr(bench, options.what)()
    finally:
        shutil.rmtree(options.work, ignore_errors=True)


if __name__ == "__main__":
    main()
