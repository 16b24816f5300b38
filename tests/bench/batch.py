#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times and memory of runs in which there is nothing to bake: 89 tasks; 10,000 tasks planned, with and without a lock file.

  batch.py BUILD [--cache DIR]

Each plan of 10,000 tasks is followed by what asking alone costs: the same requests over as many connections from a program that does
nothing else (requests.c). Both also against nginx with the same answers, and each with the processor time that the server took meanwhile:
that tells what is ours and what is docker-registry's.

ext4 does not use inodes again that were freed a short while ago, and looks past all of them for each new file (5 s of processor time for
10,000): no large tree should have been removed from this file system in the last five minutes.
"""

import json
import os
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
SUPPORT = os.path.join(HERE, "..", "support")
sys.path.insert(0, SUPPORT)
BUILD = os.path.realpath(sys.argv[1])
os.environ["TB2_BAKE"] = os.path.join(BUILD, "cli/tb2-bake")
if "--cache" in sys.argv:
    os.environ["TB2_TEST_CACHE"] = os.path.realpath(sys.argv[sys.argv.index("--cache") + 1])
from bakery import Bakery, check  # noqa: E402
from make_many_tasks import Storage  # noqa: E402


CONNECTIONS = 16  # the default of --net-jobs
MANY = 10000
TITLES = {"many": "one image under 10,000 tags", "own": "10,000 images"}


def make(bakery, name, count, *options):
    subprocess.run([os.path.join(SUPPORT, "make_many_tasks.py"), "--set", bakery.set, "--out", bakery.path(name),
                    "--name", name, "--count", str(count), *options], check=True)


NGINX = """\
worker_processes 2;
daemon off;
pid %(home)s/nginx.pid;
error_log %(home)s/nginx.error;
events { worker_connections 256; }
http {
    access_log off;
    map_hash_max_size 65536;
    map_hash_bucket_size 256;
    map $uri $manifest { include %(home)s/tags; }
    keepalive_requests 1000000;
    client_body_temp_path %(home)s/n1; proxy_temp_path %(home)s/n2; fastcgi_temp_path %(home)s/n3;
    uwsgi_temp_path %(home)s/n4; scgi_temp_path %(home)s/n5;
    server {
        listen 127.0.0.1:%(port)d;
        location ~ ^/v2/.*/manifests/sha256:(.*)$ {
            default_type "%(type)s";
            add_header Docker-Content-Digest sha256:$1;
            alias %(blobs)s/$1/data;
        }
        location ~ ^/v2/.*/blobs/sha256:(.*)$ { alias %(blobs)s/$1/data; }
        location ~ ^/v2/.*/manifests/ {
            default_type "%(type)s";
            add_header Docker-Content-Digest sha256:$manifest;
            alias %(blobs)s/$manifest/data;
        }
        location / { return 200; }
    }
}
"""


class StaticRegistry:
    """nginx in the place of the set's registry."""

    def __init__(self, bakery, repository, digests):
        """`digests`: {tag: digest of its manifest}."""
        flat, blobs = bakery.path("flat"), os.path.join(bakery.set, "registry/docker/registry/v2/blobs/sha256")
        os.mkdir(flat) # where nginx finds them: by digest
        for prefix in os.listdir(blobs):
            for name in os.listdir(os.path.join(blobs, prefix)):
                os.symlink(os.path.join(blobs, prefix, name), os.path.join(flat, name))
        with open(bakery.path("tags"), "w", encoding="ascii") as out:
            out.writelines("/v2/%s/manifests/%s %s;\n" % (repository, tag, digest[7:]) for tag, digest in digests.items())
        self.bakery, self.config = bakery, bakery.path("nginx.conf")
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(NGINX % {"home": bakery.home, "port": bakery.facts["port"], "blobs": flat,
                               "type": "application/vnd.oci.image.manifest.v1+json"})

    def __enter__(self):
        subprocess.run([os.path.join(SUPPORT, "registry.sh"), "stop", self.bakery.set], check=True, stdout=subprocess.DEVNULL)
        os.chmod(self.bakery.home, 0o755)
        self.child = subprocess.Popen(["nginx", "-c", self.config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.bakery.facts["port"])) == 0:
                    return self
            time.sleep(0.1)
        raise SystemExit("nginx does not start")

    def pids(self):
        with open("/proc/%d/task/%d/children" % (self.child.pid, self.child.pid), encoding="ascii") as file:
            return [self.child.pid, *map(int, file.read().split())]

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait(30)


def spent(pids):
    """Processor seconds of these processes."""
    ticks = 0
    for pid in pids:
        with open("/proc/%d/stat" % pid, encoding="ascii") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def row(title, wall, own, server, kilobytes):
    print("| %s | %.2f | %.2f | %s | %s |" % (title, wall, own, "-" if server is None else "%.2f" % server,
                                              "%.0f" % (kilobytes / 1024) if kilobytes else "-"), flush=True)


def measure(title, bakery, *command, store="store", server=()):
    """Wall time, processor time and the most memory of one call."""
    begin, before = time.monotonic(), spent(server)
    child = subprocess.Popen(bakery.arguments(command, store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    check(status == 0, "%s: status %d" % (title, status))
    row(title, seconds, usage.ru_utime + usage.ru_stime, spent(server) - before if server else None, usage.ru_maxrss)


def ask(title, bakery, method, paths, server):
    """The floor: the requests of a plan, and nothing else."""
    before = spent(server)
    done = subprocess.run([os.path.join(BUILD, "tests/bench/bench_requests"), str(bakery.facts["port"]), str(CONNECTIONS),
                           method, bakery.path(paths)], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    row("%s, %d %ss alone" % (title, result["requests"], method), result["wall_s"], result["cpu_s"], spent(server) - before, 0)


def compare(bakery, plans, name, server, store):
    """Plans and floors against one server, in turns."""
    for tasks, command in plans.items():
        for state, method in (("never seen", "GET"), ("not moved", "HEAD")):
            title = "%s, %s, %s" % (name, TITLES[tasks], state)
            measure(title + ": plan", bakery, "plan", *command, store=store, server=server)
            ask(title, bakery, method, "%s.%s" % (tasks, method), server)


def write_paths(bakery, repository, storage):
    """Files with what a plan asks for; {tag: digest}."""
    digests = {}
    for tasks in TITLES:
        with open(bakery.path(tasks + ".GET"), "w", encoding="ascii") as got, \
                open(bakery.path(tasks + ".HEAD"), "w", encoding="ascii") as asked:
            for tag in sorted(os.listdir(bakery.path(tasks))):
                digests[tag] = storage.digest_of(tag)
                got.write("/v2/%s/manifests/%s\n" % (repository, tag))
                asked.write("/v2/%s/manifests/%s\n" % (repository, tag))
                if tasks == "own":
                    config = storage.read(digests[tag])["config"]["digest"]
                    got.write("/v2/%s/blobs/%s\n" % (repository, config))
    return digests


def registry_pids(bakery):
    with open(os.path.join(bakery.set, "registry.pid"), encoding="ascii") as file:
        return [int(file.read())]


def main():
    with Bakery(tasks=1) as bakery:
        recipe, lock = bakery.recipe(), bakery.path("tb2.lock")
        repository = bakery.facts["tasks"][0]["image"].partition("/")[2].rpartition(":")[0]
        make(bakery, "some", 89)
        make(bakery, "many", MANY)
        make(bakery, "own", MANY, "--own-images")
        digests = write_paths(bakery, repository, Storage(os.path.join(bakery.set, "registry/docker/registry/v2"), repository))
        options = {name: ("--tasks-dir", bakery.path(name), "--all", "--recipe", recipe) for name in ("some", *TITLES)}
        plans = {name: options[name] for name in TITLES}
        bakery.tb2("bake", *options["some"]).expect()
        print("| run | wall s | processor s | of the server, s | MiB |\n|---|---|---|---|---|")
        for _ in range(3):
            measure("bake, 89 tasks, nothing changed", bakery, "bake", *options["some"])
        compare(bakery, plans, "docker-registry", registry_pids(bakery), "store")
        with StaticRegistry(bakery, repository, digests) as server:
            compare(bakery, plans, "nginx", server.pids(), "other")
        subprocess.run([os.path.join(SUPPORT, "registry.sh"), "start", bakery.set, str(bakery.facts["port"])], check=True,
                       stdout=subprocess.DEVNULL)
        bakery.tb2("plan", *plans["many"], "--lock", lock, "--update-lock").expect()
        measure("plan, all in the lock file", bakery, "plan", *plans["many"], "--lock", lock, "--frozen")


main()
