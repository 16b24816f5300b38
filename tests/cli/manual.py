#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every option that a command takes is in --help, the man page and the completions; shells and man read them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import options  # noqa: E402


def check(good, what):
    if not good:
        raise AssertionError(what)


def made(home, *words):
    done = options.call(home, "help", *words)
    check(done.returncode == 0 and not done.stderr, done)
    return done.stdout


def in_manual(text):
    """{command: options} and the common ones."""
    sections = re.split(r"^\.S[SH] ", text, flags=re.M)
    found = {}
    for section in sections[1:]:
        found[section.split("\n")[0]] = {name.replace("\\-", "-") for name in
                                         re.findall(r"^\.B \\-\\-((?:[a-z0-9]|\\-)+)", section, re.M)}
    common = found["COMMON OPTIONS"]
    return {name: own | common for name, own in found.items()}


def in_bash(text):
    return {name: set(re.findall(r"--([a-z0-9-]+)", words)) for name, words in re.findall(r"^    ([a-z]+)\) words='(.*)' ;;", text, re.M)}


def in_zsh(text):
    return {name: set(re.findall(r"^ +'\*--([a-z0-9-]+?)=?-?\[", words, re.M))
            for name, words in re.findall(r"^    ([a-z]+)\)\n +_arguments \\\n(.*?);;", text, re.M | re.S)}


def in_fish(text):
    found = {}
    for name, option in re.findall(r"'__tb2_bake_command ([a-z]+)' -l ([a-z0-9-]+)", text):
        found.setdefault(name, set()).add(option)
    return found


def complete_in_bash(script, *words):
    """What bash offers for the last word."""
    program = ". %s; COMP_WORDS=(%s); COMP_CWORD=%d; _tb2_bake; printf '%%s\\n' \"${COMPREPLY[@]}\"" % (
        script, " ".join("'%s'" % word for word in words), len(words) - 1)
    done = subprocess.run(["bash", "--norc", "-c", program], text=True, capture_output=True, cwd=os.path.dirname(script), timeout=30)
    check(done.returncode == 0 and not done.stderr, done)
    return done.stdout.split()


def shells_read_them(home):
    for shell, ending in (("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")):
        path = os.path.join(home, "completion." + ending)
        with open(path, "w", encoding="utf-8") as out:
            out.write(made(home, "--completion", shell))
        if shutil.which(shell):
            done = subprocess.run([shell, "-n", path], text=True, capture_output=True, timeout=30)
            check(done.returncode == 0 and not done.stderr, done)
    script = os.path.join(home, "completion.bash")
    os.mkdir(os.path.join(home, "a-directory"))
    for words, wanted in ((("tb2-bake", "pl"), ["plan"]), (("tb2-bake", "plan", "--only"), ["--only-failed"]),
                          (("tb2-bake", "--only"), ["--only-failed"]), (("tb2-bake", "store", "--repa"), ["--repair"]),
                          (("tb2-bake", "--tasks-dir", "a-d"), ["a-directory"]),
                          (("tb2-bake", "report", "--html", "completion.f"), ["completion.fish"]),
                          (("tb2-bake", "verify", "--rem"), ["--remote"]), (("tb2-bake", "bake", "--jobs", ""), [])):
        check(complete_in_bash(script, *words) == wanted, (words, complete_in_bash(script, *words)))


def man_reads_it(home, text):
    path = os.path.join(home, "tb2-bake.1")
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], text=True, capture_output=True, timeout=60)
        check(done.returncode == 0 and not done.stderr, done)


def main():
    with tempfile.TemporaryDirectory() as home:
        text = made(home, "--man")
        places = {"man page": in_manual(text), "bash": in_bash(made(home, "--completion", "bash")),
                  "zsh": in_zsh(made(home, "--completion", "zsh")), "fish": in_fish(made(home, "--completion", "fish"))}
        names = options.commands(home)
        for name in names:
            takes = options.taken(home, name)
            for place, found in places.items():
                check(found.get(name) == takes, "%s of %s: %s, but it takes %s" % (place, name, sorted(found.get(name, "")), sorted(takes)))
        check("bake" in names and "doctor" in names, names)
        check(options.call(home, "help", "--completion", "csh").returncode == 2, "a shell that is not known")
        shells_read_them(home)
        man_reads_it(home, text)


if __name__ == "__main__":
    sys.exit(main())
