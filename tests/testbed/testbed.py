#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a command as root in a virtual machine that has ublk, loop, NBD and (nested) KVM.

The machine is QEMU under TCG with Debian's cloud kernel, on any host, without root. Its root is an
ext4 made with mke2fs from a staged directory: busybox, the programs that --program names with the
libraries that ldd names, the files of --file, the modules. The command's output comes over a serial
line, then its exit status, which is the one of this script. QEMU lives in a process group of its own
with a deadline.
"""

import argparse
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
META_PACKAGE = "linux-image-6.12-cloud-amd64"
# What is loaded before the command runs, in this order; what they depend on comes first.
MODULES = ["virtio_blk", "loop", "nbd", "ublk_drv", "fuse", "kvm_amd", "tun"]
# Loaded by the tiny first stage, which mounts the root.
FIRST_STAGE = ["virtio_blk"]
EXIT_LINE = re.compile(rb"^testbed: exit (\d+)\r?$")
EXIT_NO_END = 125  # the machine ended without telling a status


def fetch_kernel(cache: Path) -> Path:
    """Directory with vmlinuz and modules/*.ko; downloaded once for each list of modules."""
    wanted = "%08x" % zlib.crc32(" ".join(MODULES).encode())
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = sorted(cache.glob("linux-image-*-" + wanted))
        if ready:
            return ready[-1]
        depends = subprocess.run(["apt-cache", "depends", META_PACKAGE], check=True, text=True,
                                 stdout=subprocess.PIPE).stdout
        found = re.search(r" (linux-image-\S+)", depends)
        if not found:
            sys.exit(f"testbed: apt knows no package {META_PACKAGE}; run apt-get update")
        package = found.group(1)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            subprocess.run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package],
                           cwd=scratch, check=True, stdout=sys.stderr)
            deb = next(Path(scratch).glob("*.deb"))
            subprocess.run(["dpkg-deb", "-x", deb, "tree"], cwd=scratch, check=True)
            made = Path(scratch) / "made"
            import_kernel(Path(scratch) / "tree", made)
            made.rename(cache / (package + "-" + wanted))
        return cache / (package + "-" + wanted)


def import_kernel(tree: Path, made: Path) -> None:
    (made / "modules").mkdir(parents=True)
    shutil.copy(next(tree.glob("boot/vmlinuz-*")), made / "vmlinuz")
    files = {}
    for path in tree.rglob("*.ko*"):
        files[path.name.split(".")[0].replace("-", "_")] = path
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in files:
            return  # built in
        data = files[name].read_bytes()
        if files[name].suffix == ".xz":
            data = subprocess.run(["xz", "-dc"], input=data, check=True, stdout=subprocess.PIPE).stdout
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in needs.group(1).decode().split(",") if needs else []:
            add(other.replace("-", "_"))
        (made / "modules" / f"{name}.ko").write_bytes(data)
        order.append(name)

    first = []
    for name in MODULES:
        add(name)
        if name in FIRST_STAGE:
            first = list(order)
    (made / "modules" / "order").write_text("\n".join(order) + "\n")
    (made / "modules" / "first").write_text("\n".join(first) + "\n")


def cpio(entries: list[tuple[str, int, bytes]]) -> bytes:
    """A newc archive of (name, mode, data)."""
    out = bytearray()
    for number, (name, mode, data) in enumerate(entries + [("TRAILER!!!", 0, b"")], 1):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08x" % f for f in fields) + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4)
        out += data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def first_stage(kernel: Path, busybox: bytes) -> bytes:
    names = (kernel / "modules" / "first").read_text().split()
    script = "#!/bin/sh\n" + "".join(f"/bin/busybox insmod /{n}.ko\n" for n in names)
    script += ("/bin/busybox mount -t devtmpfs dev /dev\n"
               "/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /root\n"
               "/bin/busybox umount /dev\n"
               "exec /bin/busybox switch_root /root /init\n")
    entries = [(d, 0o40755, b"") for d in ("bin", "dev", "root")]
    entries += [("bin/busybox", 0o100755, busybox), ("bin/sh", 0o120777, b"busybox"),
                ("init", 0o100755, script.encode())]
    entries += [(f"{n}.ko", 0o100644, (kernel / "modules" / f"{n}.ko").read_bytes()) for n in names]
    return cpio(entries)


def copy_program(stage: Path, program: str, target: str) -> None:
    """A program and the libraries it needs, these at the places they have here."""
    place = stage / target.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, place)
    listing = subprocess.run(["ldd", program], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL).stdout
    for library in re.findall(r"(/\S+) \(0x", listing):
        where = stage / library.lstrip("/")
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, where)


def make_root(work: Path, kernel: Path, options: argparse.Namespace) -> Path:
    stage = work / "stage"
    for directory in ("bin", "sbin", "dev", "proc", "sys", "tmp", "root", "etc", "test", "modules",
                      "usr/bin", "run"):
        (stage / directory).mkdir(parents=True)
    # Merged, as Debian's libraries expect.
    shutil.copy(shutil.which("busybox"), stage / "bin/busybox")
    for program in options.program:
        path = shutil.which(program)
        if not path:
            sys.exit(f"testbed: there is no program {program} here")
        copy_program(stage, path, "/usr/bin/" + os.path.basename(program))
    for pair in options.file:
        source, _, target = pair.partition("=")
        copy_program(stage, source, target or "/test/" + os.path.basename(source))
    for pair in options.tree:
        source, _, target = pair.partition("=")
        shutil.copytree(source, stage / target.lstrip("/"), dirs_exist_ok=True)
    shutil.copytree(kernel / "modules", stage / "modules", dirs_exist_ok=True)
    shutil.copy(HERE / "guest_init.sh", stage / "init")
    (stage / "init").chmod(0o755)
    (stage / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (stage / "command").write_text(options.shell + "\n")
    root = work / "root.img"
    subprocess.run(["mke2fs", "-qF", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", stage,
                    "-E", "root_owner=0:0", root, f"{options.disk}M"], check=True,
                   stdout=subprocess.DEVNULL)
    return root


def run_machine(work: Path, kernel: Path, root: Path, options: argparse.Namespace) -> int:
    initramfs = work / "initramfs"
    initramfs.write_bytes(first_stage(kernel, (work / "stage/bin/busybox").read_bytes()))
    argv = ["qemu-system-x86_64", "-M", "q35,usb=off,sata=off,smbus=off,vmport=off",
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(options.memory),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", kernel / "vmlinuz", "-initrd", initramfs,
            "-append", "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off",
            "-drive", f"file={root},format=raw,if=none,id=root,cache=unsafe,discard=unmap",
            "-device", "virtio-blk-pci,drive=root",
            "-serial", f"file:{work}/kernel.log", "-serial", "stdio"]
    machine = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               start_new_session=True)

    def kill() -> None:
        try:
            os.killpg(machine.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    deadline = threading.Timer(options.timeout, kill)
    deadline.start()
    status = EXIT_NO_END
    try:
        for line in machine.stdout:
            end = EXIT_LINE.match(line)
            if end:
                status = int(end.group(1))
                break
            sys.stdout.buffer.write(line.replace(b"\r\n", b"\n"))
            sys.stdout.buffer.flush()
        expired = not deadline.is_alive()
    finally:
        deadline.cancel()
        kill()
        machine.wait()
    log = (work / "kernel.log").read_bytes().decode(errors="replace")
    if status == EXIT_NO_END or options.kernel_log or re.search(r"\b(BUG|WARNING|Oops|Call Trace|Kernel panic)\b", log):
        sys.stderr.write(log)
    if status == EXIT_NO_END:
        print(f"testbed: the machine {'passed its time' if expired else 'ended'} without a status",
              file=sys.stderr)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cache", type=Path, required=True, help="where the kernel is kept")
    parser.add_argument("--program", action="append", default=[], help="goes to /usr/bin")
    parser.add_argument("--file", action="append", default=[], metavar="FROM[=TO]",
                        help="goes to /test, with its libraries")
    parser.add_argument("--tree", action="append", default=[], metavar="FROM=TO",
                        help="a directory as it is")
    parser.add_argument("--timeout", type=float, default=300, help="seconds")
    parser.add_argument("--memory", type=int, default=2048, help="MB")
    parser.add_argument("--disk", type=int, default=2048, help="MB")
    parser.add_argument("--kernel-log", action="store_true")
    parser.add_argument("shell", help="shell command")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the machine too
    kernel = fetch_kernel(options.cache.resolve())
    with tempfile.TemporaryDirectory(prefix="tb2-testbed-") as work:
        root = make_root(Path(work), kernel, options)
        return run_machine(Path(work), kernel, root, options)


if __name__ == "__main__":
    sys.exit(main())
