# SPDX-License-Identifier: MIT
"""A web server at the far end of a long line: two network namespaces, and between them two TUN devices whose
packets this process hands over late and no faster than the line's rate. The kernel's own netem would do, but
many kernels lack it. Root only.

A port on the near side's loopback leads to the server, since tb2-bake speaks plain HTTP to loopback alone.
"""

import asyncio
import collections
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
MTU = 9000
QUEUE_BYTES = 4 << 20
NEAR, FAR, PORT = "10.99.0.1", "10.99.0.2", 8080

NGINX = """\
daemon off; worker_processes 1; pid {home}/nginx.pid; error_log stderr error; user root;
events {{ worker_connections 256; }}
http {{ log_format bytes '$bytes_sent $uri'; access_log {home}/access.log bytes; sendfile on; keepalive_requests 100000;
  client_body_temp_path {home}; proxy_temp_path {home}; fastcgi_temp_path {home}; uwsgi_temp_path {home}; scgi_temp_path {home};
  server {{ listen {far}:80; root {root}; }} }}
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def open_tun(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
    return fd


class Direction:
    """Packets from one device to the other."""

    def __init__(self, source, target, delay, rate):
        self.source, self.target, self.delay, self.rate = source, target, delay, rate
        self.waiting, self.waiting_bytes = collections.deque(), 0
        self.more = threading.Condition()

    def take(self):
        free = 0.0  # when the line has sent all that is queued
        while True:
            packet = os.read(self.source, MTU + 64)
            if self.waiting_bytes > QUEUE_BYTES:
                continue
            free = max(free, time.monotonic()) + len(packet) / self.rate
            with self.more:
                self.waiting.append((free + self.delay, packet))
                self.waiting_bytes += len(packet)
                self.more.notify()

    def hand_over(self):
        while True:
            with self.more:
                while not self.waiting:
                    self.more.wait()
                due, packet = self.waiting.popleft()
                self.waiting_bytes -= len(packet)
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                os.write(self.target, packet)
            except OSError:
                pass  # the device is gone, or its queue is full: a lost packet

    def start(self):
        for main in (self.take, self.hand_over):
            threading.Thread(target=main, daemon=True).start()


class LongLine:
    """`with LongLine(home, store, mbit, round_trip_ms) as line:` serves the directory `store`."""

    def __init__(self, home, root, mbit, round_trip_ms):
        self.home, self.root = home, root
        self.rate, self.delay = mbit * 1e6 / 8, round_trip_ms / 2000
        self.near, self.far = "tb2near%d" % os.getpid(), "tb2far%d" % os.getpid()
        self.url = "http://127.0.0.1:%d" % PORT
        self.processes = []

    def __enter__(self):
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self):
        devices = []
        for space, address, peer in ((self.near, NEAR, FAR), (self.far, FAR, NEAR)):
            device = space[:15]
            devices.append(open_tun(device))
            ip("netns", "add", space)
            ip("link", "set", device, "netns", space)
            ip("-n", space, "addr", "add", address, "peer", peer, "dev", device)
            ip("-n", space, "link", "set", device, "mtu", str(MTU), "up")
            ip("-n", space, "link", "set", "lo", "up")
        self.worker = os.fork()  # of its own, so that its threads share no lock with the measuring
        if self.worker == 0:
            for source, target in (devices, reversed(devices)):
                Direction(source, target, self.delay, self.rate).start()
            signal.pause()
        config = os.path.join(self.home, "nginx.conf")
        with open(config, "w", encoding="utf-8") as out:
            out.write(NGINX.format(home=self.home, far=FAR, root=self.root))
        self._start(self.far, "nginx", "-c", config)
        self._start(self.near, sys.executable, os.path.realpath(__file__))
        for _ in range(100):
            time.sleep(0.1)
            if subprocess.run(self.inside("curl", "-sf", "-o", "/dev/null", self.url + "/format")).returncode == 0:
                return
        raise RuntimeError("the web server does not answer")

    def inside(self, *command):
        """The command on the near side."""
        return ["ip", "netns", "exec", self.near, *command]

    def _start(self, space, *command):
        self.processes.append(subprocess.Popen(["ip", "netns", "exec", space, *command], start_new_session=True))

    def drain(self):
        """(bytes sent, path) of each answer since the last call."""
        time.sleep(0.3)
        path = os.path.join(self.home, "access.log")
        with open(path, "r+", encoding="utf-8") as log:
            lines = [line.split() for line in log]
            log.truncate(0)
        return [(int(size), name) for size, name in lines]

    def __exit__(self, *_):
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if getattr(self, "worker", 0):
            os.kill(self.worker, signal.SIGKILL)
            os.waitpid(self.worker, 0)
        for space in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)


async def forward(reader, writer):
    """From the near side's loopback to the far side."""
    async def pump(source, target):
        while data := await source.read(1 << 18):
            target.write(data)
            await target.drain()
        target.close()

    far_reader, far_writer = await asyncio.open_connection(FAR, 80)
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)


async def forwarder():
    server = await asyncio.start_server(forward, "127.0.0.1", PORT)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(forwarder())
