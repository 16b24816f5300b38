#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""package.py FILE.deb: unpacks the package and looks at what is in it; the program in it says its version. As root, dpkg installs
it in a directory of its own, its dependencies held to what is installed here, and removes it; lintian, where it is, finds no error.
"""

import os
import shutil
import subprocess
import sys
import tempfile

WANTED = ("usr/bin/tb2-bake", "usr/share/man/man1/tb2-bake.1.gz", "usr/share/doc/tb2-bake/copyright", "usr/share/bash-completion/completions/tb2-bake",
          "usr/share/zsh/vendor-completions/_tb2-bake", "usr/share/fish/vendor_completions.d/tb2-bake.fish",
          "usr/share/tb2-bake/recipes/tb2.yaml", "usr/share/doc/tb2-bake/machines/tb2-bake.service")


def check(good, what):
    if not good:
        raise AssertionError(what)


def dpkg(root, *words):
    return subprocess.run(["dpkg", "--root=" + root, "--log=/dev/null", *words], text=True, capture_output=True, check=True).stdout


def files_of(root):
    return {os.path.join(where, name) for where, _, files in os.walk(root + "/usr") for name in files}


def install_and_remove(package):
    """dpkg's own word on dependencies, conflicts of files, and what is left afterwards."""
    if os.getuid() != 0:
        print("not installed: that needs root")
        return
    with tempfile.TemporaryDirectory() as root:
        for part in ("info", "updates", "triggers", "parts"):
            os.makedirs(os.path.join(root, "var/lib/dpkg", part))
        shutil.copy("/var/lib/dpkg/status", os.path.join(root, "var/lib/dpkg/status"))
        dpkg(root, "--install", package)
        check("Status: install ok installed" in dpkg(root, "--status", "tb2-bake"), "it is not installed")
        listed = {root + path for path in dpkg(root, "--listfiles", "tb2-bake").split("\n") if os.path.isfile(root + path)}
        check(listed == files_of(root), "dpkg knows of other files: %s" % (listed ^ files_of(root)))
        done = subprocess.run([root + "/usr/bin/tb2-bake", "bake", "--tasks-dir", "/nonexistent", "--all"], text=True,
                              capture_output=True)
        check(done.returncode == 2 and "/nonexistent" in done.stderr, done)
        dpkg(root, "--purge", "tb2-bake")
        check(not files_of(root), "left behind: %s" % files_of(root))
        print("installed and removed")


def lint(package):
    """The maintainer has no address but one of this machine, so that is not held against it."""
    if not shutil.which("lintian"):
        print("no lintian here")
        return
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", "--suppress-tags", "bogus-mail-host", package], text=True, capture_output=True)
    print(done.stdout + done.stderr)
    check(done.returncode == 0, "lintian has found errors")


def main():
    package = sys.argv[1]
    fields = subprocess.run(["dpkg-deb", "--field", package], text=True, capture_output=True, check=True).stdout
    print(fields)
    for word in ("Package: tb2-bake", "Architecture: amd64", "qemu-system-x86", "libc6 (", "libcurl4", "Maintainer: "):
        check(word in fields, word + " is not in the control file")
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
        for path in WANTED:
            check(os.path.getsize(os.path.join(root, path)) > 100, path)
        for where, _, files in os.walk(root):
            for name in files:
                mode = os.stat(os.path.join(where, name)).st_mode & 0o7777
                check(mode in (0o644, 0o755), "%s has mode %o" % (name, mode))
                check(where.startswith(root + "/usr"), where)
        print(subprocess.run([root + "/usr/bin/tb2-bake", "--version"], text=True, capture_output=True, check=True).stdout.strip())
    install_and_remove(package)
    lint(package)


if __name__ == "__main__":
    sys.exit(main())
