# SPDX-License-Identifier: MIT
"""Every header compiles alone, with each compiler that is here."""

import os
import shutil
import subprocess

FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
         "-fsyntax-only", "-x", "c"]


def check(tree):
    headers = [path for path in tree.module_files((".h",)) if not path.startswith("tests/")]
    for compiler in ("gcc", "clang"):
        if not shutil.which(compiler):
            continue
        for path in headers:
            # By way of a one-line source, since a header as main file draws warnings of its own.
            done = subprocess.run([compiler, *FLAGS, "-I.", "-"], cwd=tree.root, text=True, capture_output=True,
                                  input='#include "%s"\nextern int tb2_not_empty;\n' % path,
                                  env=dict(os.environ, LC_ALL="C"))
            if done.returncode:
                first = [line for line in done.stderr.splitlines() if "error:" in line][:1]
                yield path, 1, "%s: does not compile alone: %s" % (compiler, first[0] if first else done.stderr)


EXAMPLES = [
    ("needs another", {"oci/oci.h": "uint8_t oci_x(void);\n"}, "does not compile alone"),
    ("good", {"oci/oci.h": "#include <stdint.h>\nuint8_t oci_x(void);\n"}, None),
]
