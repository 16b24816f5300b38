#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the commands of a transcript and compares what they print and how they end.

  transcript.py FILE.txt [--refresh]    TB2_BAKE names the program

A transcript holds commands (`$ tb2-bake ...`, split as a shell would), each followed by the lines of its stdout, those of
its stderr after `! `, and its exit status after `= `. Lines before the first command are a comment. Commands run in an
empty directory that is HOME too and shows as ~; one that begins with another word than tb2-bake prepares it (`mkdir`,
`cp`; $DATA is tests/data). An empty PATH stands before: nothing else is found.
"""

import difflib
import os
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
DATA = os.path.join(os.path.dirname(HERE), "data")


def run(line, home):
    words = [word.replace("$DATA", DATA) for word in shlex.split(line)]
    own = words[0] == "tb2-bake"
    if own:
        words[0] = os.environ["TB2_BAKE"]
    environment = {"HOME": home, "PATH": os.path.join(home, "bin") if own else "/usr/bin:/bin"}
    done = subprocess.run(words, cwd=home, env=environment, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=60)
    out = done.stdout.splitlines() + ["! " + line if line else "!" for line in done.stderr.splitlines()]
    return [line.replace(home, "~").replace(DATA, "$DATA") for line in out] + ["= %d" % done.returncode]


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        wanted = file.read().splitlines()
    first = next(i for i, line in enumerate(wanted) if line.startswith("$ "))
    found = wanted[:first]
    with tempfile.TemporaryDirectory() as home:
        for line in [line for line in wanted if line.startswith("$ ")]:
            found += [line] + run(line[2:], os.path.realpath(home)) + [""]
    if sys.argv[2:] == ["--refresh"]:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(found))
        return 0
    wanted.append("")
    difference = list(difflib.unified_diff(wanted, found, path, "now", lineterm="")) if wanted != found else []
    if difference:
        print("\n".join(difference))
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
