#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""attach, detach and devices over NBD: several devices of one server, which is killed, taken over and ended."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

TB2, PUT_DISK = os.environ["TB2_BAKE"], os.environ["TB2_PUT_DISK"]
LIMIT = 60  # seconds; nothing here takes long


class Store:
    def __init__(self, place):
        self.place = place
        self.path = os.path.join(place, "store")

    def tb2(self, *words, status=0):
        done = subprocess.run([TB2, *words, "--store", self.path], text=True, capture_output=True, timeout=LIMIT,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == status, (words, done)
        return done.stdout.strip() if status == 0 else done.stderr

    def disk(self, size):
        image = os.path.join(self.place, f"image-{size}")
        with open(image, "wb") as file:
            file.write(os.urandom(size))
        done = subprocess.run([PUT_DISK, self.path, image], text=True, capture_output=True, check=True)
        return image, done.stdout.strip()

    def socket(self, name):
        return os.path.join(self.place, name)

    def states(self):
        return {d["device"]: d["state"] for d in json.loads(self.tb2("devices", "--json"))}

    def servers(self):
        """Processes that hold this store's devices."""
        lock = os.stat(os.path.join(self.path, "devices", "server.lock"))
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), lock):
                        found.append(int(pid))
            except OSError:
                continue
        return sorted(set(found))

    def leftovers(self):
        return [name for name in os.listdir(os.path.join(self.path, "devices")) if not name.startswith("server.")]


def copy(source, target):
    subprocess.run(["nbdcopy", source, target], check=True, timeout=LIMIT)


def uri(socket):
    return "nbd+unix:///?socket=" + socket


def same(socket, image):
    back = image + ".back"
    copy(uri(socket), back)
    with open(image, "rb") as one, open(back, "rb") as other:
        return one.read() == other.read()


def wait_until(what, good):
    end = time.monotonic() + LIMIT
    while not good():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def end_server(store, number):
    (pid,) = store.servers()
    os.kill(pid, number)
    wait_until("the server ends", lambda: not store.servers())


def main():
    with tempfile.TemporaryDirectory() as place:
        store = Store(place)
        small, small_disk = store.disk(1 << 20)
        large, large_disk = store.disk(3 << 20)
        a, b = store.socket("a"), store.socket("b")
        assert store.tb2("attach", small_disk, "--nbd", a) == a
        assert store.tb2("attach", large_disk, "--nbd", b, "--rw") == b
        assert len(store.servers()) == 1
        assert store.states() == {a: "served", b: "served"}
        assert same(a, small) and same(b, large)
        assert "in use" in store.tb2("attach", small_disk, "--nbd", a, status=3)

        # The same name, another disk: nothing of the first is left.
        store.tb2("detach", a)
        store.tb2("attach", large_disk, "--nbd", a)
        assert same(a, large)

        # What is attached is not swept.
        store.tb2("store", "gc", "--grace", "0s")
        assert same(a, large)

        other, _ = store.disk(2 << 20)
        copy(other, uri(b))
        end_server(store, signal.SIGKILL)
        assert store.states() == {a: "dead", b: "dead"}
        store.tb2("devices", "--recover")
        assert store.states() == {a: "served", b: "served"}
        assert same(a, large)
        with open(large, "r+b") as file, open(other, "rb") as written:
            file.write(written.read())
        assert same(b, large)

        end_server(store, signal.SIGKILL)
        store.tb2("detach", a)
        assert store.states() == {b: "dead"}
        store.tb2("devices", "--recover")
        end_server(store, signal.SIGTERM)
        assert store.states() == {} and store.leftovers() == [], store.leftovers()

        # In the foreground it ends with its last device, or when it is interrupted.
        for end in ("detach", "interrupt"):
            with subprocess.Popen([TB2, "attach", small_disk, "--nbd-tcp", "127.0.0.1:0", "--store", store.path,
                                   "--foreground"], stdout=subprocess.PIPE, text=True) as process:
                address = process.stdout.readline().strip()
                if not re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", address):
                    process.kill()
                    raise AssertionError(f"not where it serves: {address}")
                if end == "detach":
                    store.tb2("detach", address)
                else:
                    process.send_signal(signal.SIGINT)
                assert process.wait(LIMIT) == 0
        assert store.leftovers() == []
    return 0


if __name__ == "__main__":
    sys.exit(main())
