#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A line between a client and a server on loopback: slow, far away, or broken at first.

  tcp_line.py TO_PORT [--round-trip MS] [--rate BYTES] [--reset N] [--silent N]

Prints its own port and passes connections on until stdin is closed. Each connection takes a round trip to be opened,
its bytes arrive half a round trip later and no faster than --rate a second. The first --reset connections are reset, the
--silent ones after them get no answer. In Python `with Line(port, ...) as line:` is the same, line.port the port.
"""

import argparse
import asyncio
import os
import socket
import struct
import subprocess
import sys

PIECE = 1 << 17
WINDOW = 4 << 20  # bytes under way in one direction; more than a round trip's worth at any rate used here


class Line:
    def __init__(self, port, *options):
        self.command = [sys.executable, os.path.realpath(__file__), str(port), *map(str, options)]

    def __enter__(self):
        self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      start_new_session=True)
        self.port = int(self.child.stdout.readline())
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        self.child.wait(30)
        self.child.stdout.close()


async def read(reader, queue, room):
    """Notes when each piece came; an empty one is the end."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(PIECE):
            await room.acquire()
            queue.put_nowait((loop.time(), data))
    except ConnectionError:
        pass
    queue.put_nowait((loop.time(), b""))


async def pass_on(reader, writer, options):
    """One direction of a connection."""
    queue, room = asyncio.Queue(), asyncio.Semaphore(max(1, WINDOW // PIECE))
    task = asyncio.create_task(read(reader, queue, room))
    loop, free = asyncio.get_running_loop(), 0.0
    try:
        while True:
            came, data = await queue.get()
            room.release()
            if not data:
                break
            free = max(free, came) + (len(data) / options.rate if options.rate else 0)
            wait = free + options.round_trip / 2000 - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        task.cancel()
    writer.close()


class Door:
    def __init__(self, options):
        self.options, self.count = options, 0

    async def open(self, reader, writer):
        self.count += 1
        if self.count <= self.options.reset:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            return
        if self.count <= self.options.reset + self.options.silent:
            while await reader.read(PIECE):
                pass
            writer.close()
            return
        await asyncio.sleep(self.options.round_trip / 1000)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.options.to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, far_writer, self.options), pass_on(far_reader, writer, self.options))


async def serve(options):
    server = await asyncio.start_server(Door(options).open, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # with what is under way


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("to", type=int)
    parser.add_argument("--round-trip", type=float, default=0)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--reset", type=int, default=0)
    parser.add_argument("--silent", type=int, default=0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
