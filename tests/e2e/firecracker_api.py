#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The fake Firecracker refuses what a real one refuses: each list of requests gets the same statuses from both.

The real one is `firecracker` in PATH ($TB2_FIRECRACKER says another); without it the fake alone is held to
the statuses that are written down here. No guest is started by the real one, so it needs no KVM.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FAKE = Path(__file__).resolve().parent.parent / "support" / "fake_firecracker.py"

MACHINE = {"vcpu_count": 1, "mem_size_mib": 64}
BOOT = {"kernel_image_path": "file", "boot_args": "quiet"}
DRIVE = {"drive_id": "disk", "is_root_device": False, "is_read_only": False, "path_on_host": "file",
         "cache_type": "Writeback", "io_engine": "Sync"}
CREATE = {"snapshot_path": "state", "mem_file_path": "memory"}
FILE = {"backend_type": "File", "backend_path": "memory"}

# Lists of (method, path, body, status), each for a process of its own.
LISTS = {
    "as we do": [
        ("GET", "/version", None, 200), ("PUT", "/machine-config", {**MACHINE, "track_dirty_pages": True}, 204),
        ("PUT", "/boot-source", BOOT, 204), ("PUT", "/drives/disk", DRIVE, 204),
        ("PUT", "/vsock", {"guest_cid": 3, "uds_path": "vsock.sock"}, 204), ("PUT", "/entropy", {}, 204)],
    "unknown members": [
        ("PUT", "/machine-config", {**MACHINE, "memory": 1}, 400), ("PUT", "/boot-source", {**BOOT, "x": 1}, 400),
        ("PUT", "/drives/disk", {**DRIVE, "x": 1}, 400),
        ("PUT", "/vsock", {"guest_cid": 3, "uds_path": "v", "port": 1}, 400), ("PUT", "/entropy", {"x": 1}, 400),
        ("PUT", "/actions", {"action_type": "InstanceStart", "x": 1}, 400),
        ("PATCH", "/vm", {"state": "Paused", "x": 1}, 400), ("PUT", "/snapshot/create", {**CREATE, "x": 1}, 400),
        ("PUT", "/snapshot/load", {"snapshot_path": "s", "mem_backend": FILE, "x": 1}, 400)],
    "missing members": [
        ("PUT", "/machine-config", {"vcpu_count": 1}, 400), ("PUT", "/machine-config", {"mem_size_mib": 64}, 400),
        ("PUT", "/boot-source", {"boot_args": "quiet"}, 400), ("PUT", "/drives/disk", {"drive_id": "disk"}, 400),
        ("PUT", "/vsock", {"guest_cid": 3}, 400), ("PUT", "/actions", {}, 400), ("PATCH", "/vm", {}, 400),
        ("PUT", "/snapshot/create", {"snapshot_path": "s"}, 400), ("PUT", "/snapshot/load", {"mem_backend": FILE}, 400),
        ("PUT", "/snapshot/load", {"snapshot_path": "s"}, 400)],
    "wrong values": [
        ("PUT", "/machine-config", {"vcpu_count": 0, "mem_size_mib": 64}, 400),
        ("PUT", "/machine-config", {"vcpu_count": 33, "mem_size_mib": 64}, 400),
        ("PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": 0}, 400),
        ("PUT", "/machine-config", {**MACHINE, "smt": "no"}, 400),
        ("PUT", "/machine-config", {**MACHINE, "huge_pages": "1G"}, 400),
        ("PUT", "/boot-source", {"kernel_image_path": "missing"}, 400),
        ("PUT", "/boot-source", {**BOOT, "initrd_path": "missing"}, 400),
        ("PUT", "/drives/disk", {**DRIVE, "path_on_host": "missing"}, 400), ("PUT", "/drives/other", DRIVE, 400),
        ("PUT", "/drives/disk", {**DRIVE, "cache_type": "None"}, 400),
        ("PUT", "/vsock", {"guest_cid": 3, "uds_path": "file"}, 400),
        ("PUT", "/actions", {"action_type": "Reboot"}, 400), ("PATCH", "/vm", {"state": "Stopped"}, 400),
        ("PUT", "/snapshot/create", {**CREATE, "snapshot_type": "Half"}, 400),
        ("PUT", "/snapshot/load", {"snapshot_path": "s", "mem_backend": {**FILE, "backend_type": "Pipe"}}, 400)],
    "both backends": [
        ("PUT", "/snapshot/load", {"snapshot_path": "s", "mem_backend": FILE, "mem_file_path": "m"}, 400)],
    "no such request": [
        ("PUT", "/nothing", {}, 400), ("GET", "/nothing", None, 400), ("PUT", "/vsock", None, 400),
        ("PATCH", "/vsock", {}, 400), ("GET", "/", None, 200)],
    "before the start": [
        ("PATCH", "/vm", {"state": "Paused"}, 400), ("PATCH", "/vm", {"state": "Resumed"}, 400),
        ("PUT", "/snapshot/create", CREATE, 400), ("PUT", "/actions", {"action_type": "InstanceStart"}, 400)],
    "a snapshot after settings": [
        ("PUT", "/machine-config", MACHINE, 204),
        ("PUT", "/snapshot/load", {"snapshot_path": "file", "mem_backend": FILE}, 400),
        ("PUT", "/vsock", {"guest_cid": 3, "uds_path": "vsock.sock"}, 204)],
    "a snapshot that is none": [
        ("PUT", "/snapshot/load", {"snapshot_path": "file", "mem_backend": FILE}, 400), ("", "", None, 1)],
    "a snapshot that is not there": [
        ("PUT", "/snapshot/load", {"snapshot_path": "missing", "mem_backend": FILE}, 400), ("", "", None, 1)],
}


class Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


def ask(path: str, method: str, target: str, body: dict | None) -> int:
    connection = Connection(path)
    text = None if body is None else json.dumps(body)
    connection.request(method, target, text, {"Content-Type": "application/json"} if text else {})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def play(program: str, requests: list) -> list[int]:
    """The statuses; of the row without a method, the exit status of the process."""
    with tempfile.TemporaryDirectory(prefix="tb2-fc-", dir="/tmp") as work:
        Path(work, "file").write_bytes(b"\x7fELF no kernel" + bytes(4096))
        process = subprocess.Popen([program, "--api-sock", "api.sock", "--id", "tb2", "--level", "Warn"], cwd=work,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            path = f"{work}/api.sock"
            end = time.monotonic() + 20
            while time.monotonic() < end and process.poll() is None:
                with socket.socket(socket.AF_UNIX) as probe:
                    if probe.connect_ex(path) == 0:
                        break
                time.sleep(0.02)
            return [ask(path, method, target, body) if method else process.wait(20)
                    for method, target, body, _ in requests]
        finally:
            process.kill()
            process.wait()


def main() -> int:
    real = os.environ.get("TB2_FIRECRACKER") or shutil.which("firecracker")
    wrong = 0
    for program in [str(FAKE)] + ([real] if real else []):
        for name, requests in LISTS.items():
            statuses = play(program, requests)
            for request, status in zip(requests, statuses):
                if status != request[3]:
                    wrong += 1
                    print(f"{program}: {name}: {request}: {status}")
    print(f"{sum(map(len, LISTS.values()))} requests, the fake{' and ' + real if real else ' alone'}: {wrong} wrong")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
