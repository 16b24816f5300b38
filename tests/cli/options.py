#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The options that --help shows and those that a command takes are the same. TB2_BAKE names the program.

getopt takes an option's beginning and, where several begin so, names them: with the empty beginning, all that there
are, shown or not.
"""

import os
import re
import subprocess
import sys
import tempfile

WORD = re.compile(r"'--([a-z][a-z0-9-]*)")


def call(home, *words):
    return subprocess.run([os.environ["TB2_BAKE"], *words], cwd=home, env={"HOME": home, "PATH": "/nowhere"},
                          stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=60)


def commands(home):
    text = call(home, "--help").stdout
    return re.findall(r"^  ([a-z]+) ", text[text.index("commands:"):], re.M)


def shown(home, command):
    return set(re.findall(r"^  (?:-\w, )?--([a-z][a-z0-9-]*)", call(home, command, "--help").stdout, re.M))


def taken(home, command):
    return set(WORD.findall(call(home, command, "--=x").stderr.split("\n")[0]))


def main():
    wrong = 0
    with tempfile.TemporaryDirectory() as home:
        names = commands(home)
        for command in names:
            help_shows, program_takes = shown(home, command), taken(home, command)
            print("%s: %s" % (command, " ".join(sorted(program_takes))))
            if help_shows != program_takes or "help" not in help_shows:
                wrong += 1
                print("  --help shows: %s" % " ".join(sorted(help_shows)))
    return 1 if wrong or "bake" not in names else 0


if __name__ == "__main__":
    sys.exit(main())
