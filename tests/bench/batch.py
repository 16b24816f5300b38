#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times and memory of runs in which there is nothing to bake: 89 tasks; 10,000 tasks planned, with and without a lock file.

  batch.py TB2_BAKE [--cache DIR]

The plans of 10,000 tasks are made once more against nginx with the same answers (the same headers for each tag, from memory), which
tells what is ours and what is docker-registry's.
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
os.environ["TB2_BAKE"] = os.path.realpath(sys.argv[1])
if "--cache" in sys.argv:
    os.environ["TB2_TEST_CACHE"] = os.path.realpath(sys.argv[sys.argv.index("--cache") + 1])
from bakery import Bakery, check  # noqa: E402


def make(bakery, name, count):
    subprocess.run([os.path.join(SUPPORT, "make_many_tasks.py"), "--set", bakery.set, "--out", bakery.path(name),
                    "--count", str(count)], check=True)


NGINX = """\
worker_processes 2;
daemon off;
pid %(home)s/nginx.pid;
error_log %(home)s/nginx.error;
events { worker_connections 256; }
http {
    access_log off;
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
            add_header Docker-Content-Digest %(digest)s;
            alias %(blobs)s/%(hex)s/data;
        }
        location / { return 200; }
    }
}
"""


class StaticRegistry:
    """nginx in the place of the set's registry."""

    def __init__(self, bakery):
        image = bakery.facts["tasks"][0]["image"]
        repository, _, tag = image.partition("/")[2].rpartition(":")
        storage = os.path.join(bakery.set, "registry/docker/registry/v2")
        with open(os.path.join(storage, "repositories", repository, "_manifests/tags", tag, "current/link"), encoding="ascii") as file:
            digest = file.read()
        # Where nginx finds them: flat, by digest.
        flat, blobs = bakery.path("flat"), os.path.join(storage, "blobs/sha256")
        os.mkdir(flat)
        for prefix in os.listdir(blobs):
            for name in os.listdir(os.path.join(blobs, prefix)):
                os.symlink(os.path.join(blobs, prefix, name), os.path.join(flat, name))
        with open(os.path.join(flat, digest[7:], "data"), encoding="utf-8") as file:
            kind = json.load(file)["mediaType"]
        self.bakery, self.config = bakery, bakery.path("nginx.conf")
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(NGINX % {"home": bakery.home, "port": bakery.facts["port"], "blobs": flat, "digest": digest,
                               "hex": digest[7:], "type": kind})

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

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait(30)


def measure(title, bakery, *command, store="store"):
    """Wall time, processor time and the most memory of one call."""
    begin = time.monotonic()
    child = subprocess.Popen(bakery.arguments(command, store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    check(status == 0, "%s: status %d" % (title, status))
    print("| %s | %.2f | %.2f | %.0f |" % (title, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))


def main():
    with Bakery(tasks=1) as bakery:
        recipe, lock = bakery.recipe(), bakery.path("tb2.lock")
        make(bakery, "some", 89)
        make(bakery, "many", 10000)
        some = ("--tasks-dir", bakery.path("some"), "--all", "--recipe", recipe)
        many = ("--tasks-dir", bakery.path("many"), "--all", "--recipe", recipe)
        bakery.tb2("bake", *some).expect()
        print("| run | wall s | processor s | MiB |\n|---|---|---|---|")
        for _ in range(3):
            measure("bake, 89 tasks, nothing changed", bakery, "bake", *some)
        measure("plan, 10,000 tasks", bakery, "plan", *many)
        measure("plan, 10,000 tasks, all tags known", bakery, "plan", *many)
        with StaticRegistry(bakery):
            measure("plan, 10,000 tasks, no tag ever seen, nginx", bakery, "plan", *many, store="other")
            measure("plan, 10,000 tasks, all tags known, nginx", bakery, "plan", *many, store="other")
        subprocess.run([os.path.join(SUPPORT, "registry.sh"), "start", bakery.set, str(bakery.facts["port"])], check=True,
                       stdout=subprocess.DEVNULL)
        bakery.tb2("plan", *many, "--lock", lock, "--update-lock").expect()
        measure("plan, 10,000 tasks, all locked", bakery, "plan", *many, "--lock", lock, "--frozen")


main()
