#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""package.py FILE.deb: unpacks the package and looks at what is in it; the program in it says its version."""

import os
import subprocess
import sys
import tempfile

WANTED = ("usr/bin/tb2-bake", "usr/share/man/man1/tb2-bake.1", "usr/share/bash-completion/completions/tb2-bake",
          "usr/share/zsh/vendor-completions/_tb2-bake", "usr/share/fish/vendor_completions.d/tb2-bake.fish",
          "usr/share/tb2-bake/recipes/tb2.yaml", "usr/share/doc/tb2-bake/machines/tb2-bake.service")


def check(good, what):
    if not good:
        raise AssertionError(what)


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


if __name__ == "__main__":
    sys.exit(main())
