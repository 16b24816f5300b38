#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Firecracker's API without its virtual machines: refuses what the real one refuses.

Facts: Firecracker 1.16.1, src/firecracker/swagger/firecracker.yaml, src/firecracker/src/api_server/request
(fields, deny_unknown_fields), src/vmm/src/rpc_interface.rs (what is allowed before and after the start),
src/vmm/src/persist.rs (the message with the userfaultfd), docs/vsock.md.

The guest is the agent as an ordinary process ($TB2_AGENT), behind the vsock. Guest memory is made of pages
that tell their number; the state file has a checksum of each, and a restored machine touches its memory
and ends with status 99 when a page is not what it was.

$FAKE_FIRECRACKER, words with commas: version=X; mute (CONNECT is never answered); refuse=PATH; fail_diff;
power_off, power_off_later (the guest's kernel says so after the start, or a second after its agent was asked for, and
the program goes on);
die=PATH (the process is gone before it answers); touch=N (every Nth page is read after a restore; default
16); remove (pages are given back, and must be zeros then); bad_hello, no_descriptor (the first message for
guest memory).
"""

import array
import ctypes
import fcntl
import http.server
import json
import mmap
import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
import zlib

PAGE = 4096
POWER_OFF = "[   17.356813] reboot: Power down"
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
USERFAULTFD_IOC_NEW = 0xAA00
UFFD_FEATURE_EVENT_REMOVE = 1 << 3

AFTER = "The requested operation is not supported after starting the microVM."
BEFORE = "The requested operation is not supported before starting the microVM."
JSON_FAULT = "An error occurred when deserializing the json body of a request: "


def faults() -> dict:
    words = [w for w in os.environ.get("FAKE_FIRECRACKER", "").split(",") if w]
    return {name: value or True for name, _, value in (w.partition("=") for w in words)}


FAULTS = faults()
VERSION = FAULTS.get("version", "1.16.1")


class Refused(Exception):
    pass


class Fields:
    """The members of a body: name to (type or choices, required)."""

    def __init__(self, **fields):
        self.fields = fields

    def check(self, body: dict) -> None:
        for name, value in body.items():
            if name not in self.fields:
                raise Refused(f"{JSON_FAULT}unknown field `{name}`.")
            kind = self.fields[name][0]
            if isinstance(kind, tuple):
                if value not in kind:
                    raise Refused(f"{JSON_FAULT}unknown variant `{value}`.")
            elif isinstance(kind, Fields):
                if not isinstance(value, dict):
                    raise Refused(f"{JSON_FAULT}invalid type for `{name}`.")
                kind.check(value)
            elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise Refused(f"{JSON_FAULT}invalid type for `{name}`.")
        for name, (_, required) in self.fields.items():
            if required and name not in body:
                raise Refused(f"{JSON_FAULT}missing field `{name}`.")


LIMITER = (dict, False)
BODIES = {
    ("PUT", "machine-config"): Fields(
        vcpu_count=(int, True), mem_size_mib=(int, True), smt=(bool, False), track_dirty_pages=(bool, False),
        cpu_template=(("C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"), False),
        huge_pages=(("None", "2M"), False)),
    ("PUT", "boot-source"): Fields(kernel_image_path=(str, True), initrd_path=(str, False), boot_args=(str, False)),
    ("PUT", "drives"): Fields(
        drive_id=(str, True), is_root_device=(bool, True), partuuid=(str, False),
        cache_type=(("Unsafe", "Writeback"), False), is_read_only=(bool, False), path_on_host=(str, False),
        rate_limiter=LIMITER, io_engine=(("Sync", "Async"), False), socket=(str, False)),
    ("PUT", "network-interfaces"): Fields(
        iface_id=(str, True), host_dev_name=(str, True), guest_mac=(str, False), mtu=(int, False),
        rx_rate_limiter=LIMITER, tx_rate_limiter=LIMITER),
    ("PUT", "vsock"): Fields(guest_cid=(int, True), uds_path=(str, True), vsock_id=(str, False)),
    ("PUT", "entropy"): Fields(rate_limiter=LIMITER),
    ("PUT", "actions"): Fields(action_type=(("FlushMetrics", "InstanceStart", "SendCtrlAltDel"), True)),
    ("PATCH", "vm"): Fields(state=(("Paused", "Resumed"), True)),
    ("PUT", "snapshot/create"): Fields(
        snapshot_path=(str, True), mem_file_path=(str, True), snapshot_type=(("Full", "Diff"), False)),
    ("PUT", "snapshot/load"): Fields(
        snapshot_path=(str, True), mem_file_path=(str, False),
        mem_backend=(Fields(backend_type=(("File", "Uffd"), True), backend_path=(str, True)), False),
        enable_diff_snapshots=(bool, False), track_dirty_pages=(bool, False), resume_vm=(bool, False),
        network_overrides=(list, False), vsock_override=(Fields(uds_path=(str, True)), False),
        clock_realtime=(bool, False)),
}


class Machine:
    def __init__(self) -> None:
        self.state = "Not started"
        self.configured = False  # something that a snapshot would bring
        self.settings: dict = {}
        self.memory = None
        self.listener = None
        self.kept: list = []  # descriptors that the real one holds as long as it lives

    # ---- Before the start ----

    def configure(self, name: str, ident: str, body: dict) -> None:
        if self.state != "Not started":
            raise Refused(AFTER)
        self.configured = True
        if name == "machine-config":
            count = body["vcpu_count"]
            if not 1 <= count <= 32 or (body.get("smt") and count > 1 and count % 2):
                raise Refused("Machine config error: The number of vCPUs must be greater than 0, less than 32 "
                              "and must be 1 or an even number if SMT is enabled.")
            if body["mem_size_mib"] <= 0:
                raise Refused("Machine config error: The memory size (MiB) is either 0, or not a multiple of "
                              "the configured page size.")
        for key in ("drive_id", "iface_id"):
            if key in body and body[key] != ident:
                raise Refused("The id from the path does not match the id from the body!")
        for key, fault in (("kernel_image_path", "Boot source error: The kernel file cannot be opened: "),
                           ("initrd_path", "Boot source error: The initrd file cannot be opened: "),
                           ("path_on_host", "Drive config error: Unable to create the virtio block device: ")):
            if key in body:
                self.open_file(body[key], fault)
        if name == "vsock":
            self.listen(body)
        self.settings[name] = body

    @staticmethod
    def open_file(path: str, fault: str) -> None:
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            raise Refused(fault + str(error)) from error

    def listen(self, body: dict) -> None:
        if body["guest_cid"] < 3:
            raise Refused("Vsock config error: invalid guest cid")
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self.listener.bind(body["uds_path"])
        except OSError as error:
            raise Refused(f"Vsock config error: Cannot create backend for vsock device: {error}") from error
        self.listener.listen()

    def start(self) -> None:
        if self.state != "Not started":
            raise Refused(AFTER)
        if "boot-source" not in self.settings:
            raise Refused("Start microvm error: Cannot start microvm without kernel configuration.")
        size = self.settings.get("machine-config", {"mem_size_mib": 128})["mem_size_mib"] << 20
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.dirty = set(range(0, min(size, 64 << 20) // PAGE, 3))  # the others stay zeros
        for page in self.dirty:
            self.memory[page * PAGE:page * PAGE + 8] = struct.pack("<Q", page + 1)
        self.run()
        if FAULTS.get("power_off"):
            print(POWER_OFF, flush=True)
        print("fake: kernel command line: " + self.settings["boot-source"].get("boot_args", ""), flush=True)

    def run(self) -> None:
        self.state = "Running"
        if self.listener:
            threading.Thread(target=self.serve_vsock, daemon=True).start()

    # ---- The guest ----

    def serve_vsock(self) -> None:
        while True:
            link, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(link,), daemon=True).start()

    def connect(self, link: socket.socket) -> None:
        request = b""
        while not request.endswith(b"\n"):
            got = link.recv(1)
            if not got:
                return
            request += got
        if FAULTS.get("mute"):
            self.kept.append(link)
            return
        if request != b"CONNECT 1024\n" or self.state != "Running":
            link.close()  # nobody listens there
            return
        link.sendall(b"OK 1073741824\n")
        if FAULTS.get("power_off_later"):
            self.kept.append(link)  # nobody hears of it by the socket
        with link:
            agent = subprocess.Popen([os.environ["TB2_AGENT"], "--fd", str(link.fileno())],
                                     pass_fds=[link.fileno()])
            if FAULTS.get("power_off_later"):
                time.sleep(1)
                agent.kill()
                print(POWER_OFF, flush=True)
            agent.wait()

    def set_state(self, body: dict) -> None:
        if self.state == "Not started":
            raise Refused(BEFORE)
        self.state = "Running" if body["state"] == "Resumed" else "Paused"

    # ---- Snapshots ----

    def create(self, body: dict) -> None:
        if self.state == "Not started":
            raise Refused(BEFORE)
        if self.state != "Paused":
            raise Refused("Create snapshot error: Cannot save the microVM state: Operation not allowed: "
                          "save/restore unavailable while running")
        diff = body.get("snapshot_type") == "Diff"
        try:
            pages = len(self.memory) // PAGE
            sums = [zlib.crc32(self.memory[p * PAGE:(p + 1) * PAGE]) for p in range(pages)]
            state = {"version": VERSION, "settings": self.settings, "sums": sums}
            with open(body["snapshot_path"], "w", encoding="utf-8") as out:
                json.dump(state, out)
            if diff and FAULTS.get("fail_diff"):
                raise OSError(28, "No space left on device")
            with open(os.open(body["mem_file_path"], os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
                out.truncate(len(self.memory))
                for page in sorted(self.dirty) if diff else range(pages):
                    out.seek(page * PAGE)
                    out.write(self.memory[page * PAGE:(page + 1) * PAGE])
        except OSError as error:
            raise Refused(f"Create snapshot error: Cannot perform open on the memory backing file: {error}") from error
        finally:
            self.dirty = set()

    def load(self, body: dict) -> None:
        if self.state != "Not started":
            raise Refused(AFTER)
        if ("mem_backend" in body) == ("mem_file_path" in body):
            raise Refused(JSON_FAULT + "either `mem_backend` or `mem_file_path` is required.")
        if self.configured:
            raise Refused("Load snapshot error: Loading a microVM snapshot not allowed after configuring "
                          "boot-specific resources.")
        try:
            self.restore(body)
        except (OSError, ValueError, KeyError) as error:
            raise SystemExit(f"Load snapshot error: Failed to restore from snapshot: {error}") from error

    def restore(self, body: dict) -> None:
        with open(body["snapshot_path"], encoding="utf-8") as text:
            saved = json.load(text)
        if saved["version"] != VERSION:
            raise ValueError(f"snapshot of version {saved['version']}")
        self.settings = saved["settings"]
        self.sums = saved["sums"]
        self.dirty = set()
        for name in ("drives",):
            if name in self.settings:
                os.close(os.open(self.settings[name]["path_on_host"], os.O_RDWR))
        self.listen(self.settings["vsock"])
        backend = body.get("mem_backend") or {"backend_type": "File", "backend_path": body["mem_file_path"]}
        size = len(self.sums) * PAGE
        if backend["backend_type"] == "File":
            with open(backend["backend_path"], "rb") as file:
                self.memory = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE,
                                        prot=mmap.PROT_READ | mmap.PROT_WRITE)
        else:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.ask_for_pages(backend["backend_path"], size)
        self.look_at_memory(int(FAULTS.get("touch", 16)))
        if body.get("resume_vm"):
            self.run()
        else:
            self.state = "Paused"

    def ask_for_pages(self, path: str, size: int) -> None:
        device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)
        uffd = fcntl.ioctl(device, USERFAULTFD_IOC_NEW, os.O_CLOEXEC | os.O_NONBLOCK)
        os.close(device)
        fcntl.ioctl(uffd, UFFDIO_API, struct.pack("QQQ", 0xAA, UFFD_FEATURE_EVENT_REMOVE, 0))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        half = size // 2 // PAGE * PAGE  # two regions, as a guest with a gap has them
        regions = []
        for start, length in ((0, half), (half, size - half)):
            fcntl.ioctl(uffd, UFFDIO_REGISTER, struct.pack("QQQQ", base + start, length, 1, 0))
            regions.append({"base_host_virt_addr": base + start, "size": length, "offset": start,
                            "page_size": PAGE, "page_size_kib": PAGE})
        if FAULTS.get("bad_hello"):
            regions[1]["size"] += 1 << 30
        link = socket.socket(socket.AF_UNIX)
        link.connect(path)
        rights = [] if FAULTS.get("no_descriptor") else [
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [uffd]))]
        link.sendmsg([json.dumps(regions).encode()], rights)
        self.kept += [link, uffd]

    def look_at_memory(self, step: int) -> None:
        for page in range(0, len(self.sums), step):
            if zlib.crc32(self.memory[page * PAGE:(page + 1) * PAGE]) != self.sums[page]:
                print(f"fake: page {page} is not what it was", flush=True)
                os._exit(99)
        if not FAULTS.get("remove"):
            return
        count = 8
        self.memory.madvise(mmap.MADV_DONTNEED, 0, count * PAGE)
        if any(self.memory[:count * PAGE]):
            print("fake: a page that was given back is not zeros", flush=True)
            os._exit(99)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_args) -> None:
        pass

    def answer(self, status: int, body: dict | None) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if data:
            self.wfile.write(data)

    def act(self, method: str, path: str, body: dict | None) -> dict | None:
        machine = self.server.machine
        parts = path.strip("/").split("/")
        name = parts[0]
        key = (method, "/".join(parts[:2]) if name == "snapshot" else name)
        if method == "GET" and body is None:
            if path == "/version":
                return {"firecracker_version": VERSION}
            if path == "/":
                return {"app_name": "Firecracker", "id": "fake", "state": machine.state, "vmm_version": VERSION}
        if key not in BODIES:
            raise Refused(f"Invalid request method and/or path: {method} {name}.")
        if body is None:
            raise Refused(f"Empty {method} request.")
        BODIES[key].check(body)
        if FAULTS.get("refuse") == path:
            raise Refused("fake: refused")
        if FAULTS.get("die") == path:
            os._exit(7)
        if name == "actions":
            machine.start()
        elif name == "vm":
            machine.set_state(body)
        elif path == "/snapshot/create":
            machine.create(body)
        elif path == "/snapshot/load":
            machine.load(body)
        else:
            machine.configure(name, parts[1] if len(parts) > 1 else "", body)
        return None

    def handle_request(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length) if length else b""
        try:
            try:
                body = json.loads(data) if data else None
            except ValueError as error:
                raise Refused(JSON_FAULT + str(error)) from error
            with self.server.lock:
                reply = self.act(self.command, self.path, body)
        except Refused as refused:
            self.answer(400, {"fault_message": str(refused)})
        except SystemExit as fatal:  # answers, and is gone: its state is not to be trusted any more
            self.answer(400, {"fault_message": str(fatal)})
            os._exit(1)
        else:
            self.answer(200 if reply is not None else 204, reply)

    do_GET = do_PUT = do_PATCH = handle_request


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"Firecracker v{VERSION}\n")
        return 0
    known = {"--api-sock", "--id", "--level"}
    if len(arguments) % 2 or any(a not in known for a in arguments[::2]):
        print(f"Arguments parsing error: {arguments}", file=sys.stderr)
        return 153
    options = dict(zip(arguments[::2], arguments[1::2]))
    server = Server(options["--api-sock"], Handler)
    server.machine = Machine()
    server.lock = threading.Lock()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
