#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What people name may be a pipe: `<(...)` and FIFOs are read to their end, one that nobody writes to is waited for, and
the first Ctrl-C ends that."""

import os
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["TB2_BAKE"]
CANCELLED = 130
RECIPE = "name: piped\nsteps: [{run: x, secrets: [A]}]\n"


def check(good, what):
    if not good:
        raise AssertionError(what)


def recipe_check(path):
    return [PROGRAM, "recipe", "check", path]


def bake(home, recipe, *options):
    return [PROGRAM, "--store", os.path.join(home, "store"), "--cache", home, "--tasks-dir", os.path.join(home, "none"), "--all",
            "--recipe", recipe, *options]


def shell(text):
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30)


def substitution(home):
    done = shell("%s recipe check <(printf '%s')" % (PROGRAM, RECIPE.replace("\n", "\\n")))
    check(done.returncode == 0 and '"secrets"' in done.stdout, done)
    slow = shell("%s recipe check <(sleep 1; printf 'name: '; sleep 1; printf 'slow\\nnetwork: tap\\n')" % PROGRAM)
    check(slow.returncode == 0 and '"tap"' in slow.stdout, slow)
    empty = shell("%s recipe check <(true)" % PROGRAM)
    check(empty.returncode == 2 and "the file is empty" in empty.stderr, empty)
    words = bake(home, "RECIPE", "--secret", "A=file:SECRET")
    text = " ".join(words).replace("RECIPE", "<(printf '%s')" % RECIPE.replace("\n", "\\n"))
    given = shell(text)
    check(given.returncode == 2 and "secret A" in given.stderr, given)  # no such file
    # Past recipe and secret: what is missing is the directory.
    given = shell("exec 7< <(echo a long secret value); " + text.replace("SECRET", "/dev/fd/7"))
    check(given.returncode == 2 and "none" in given.stderr and "secret" not in given.stderr, given)


def holds(pid, path):
    """The process has the file open."""
    top = "/proc/%d/fd" % pid
    for name in os.listdir(top):
        try:
            if os.readlink(os.path.join(top, name)) == path:
                return True
        except OSError:
            pass
    return False


def start(command, fifo):
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 30
    while not holds(child.pid, fifo):
        check(child.poll() is None and time.monotonic() < end, "%s does not wait for %s" % (command, fifo))
        time.sleep(0.02)
    return child


def nobody_writes(home, number):
    """In a recipe, a secret, a list of names and one of tasks."""
    fifo = os.path.join(home, "fifo")
    recipe = os.path.join(home, "recipe.yaml")
    lists = [PROGRAM, "--store", os.path.join(home, "store"), "--cache", home, "--all", "--recipe", recipe]
    for command in (recipe_check(fifo), bake(home, fifo), bake(home, recipe, "--secret", "A=file:" + fifo),
                    bake(home, recipe, "--lock", fifo), lists + ["--task-list", fifo], bake(home, recipe, "--registries", fifo),
                    bake(home, recipe, "--exclude", "@" + fifo)):
        child = start(command, fifo)
        time.sleep(0.1)  # open, and soon in its wait
        child.send_signal(number)
        out, err = child.communicate(timeout=30)
        check(child.returncode == CANCELLED, (command, child.returncode, out, err))
        check("cancelled while %s was waited for" % fifo in err, err)


def somebody_writes_late(home):
    fifo = os.path.join(home, "fifo")
    child = start(recipe_check(fifo), fifo)
    with open(fifo, "w", encoding="utf-8") as out:
        out.write(RECIPE[:9])
        out.flush()
        time.sleep(0.2)
        out.write(RECIPE[9:])
    out, err = child.communicate(timeout=30)
    check(child.returncode == 0 and '"secrets"' in out, (out, err))


def main():
    with tempfile.TemporaryDirectory(prefix="tb2-") as home:
        os.mkfifo(os.path.join(home, "fifo"))
        with open(os.path.join(home, "recipe.yaml"), "w", encoding="utf-8") as out:
            out.write("name: plain\n")
        substitution(home)
        nobody_writes(home, signal.SIGINT)
        nobody_writes(home, signal.SIGTERM)
        somebody_writes_late(home)


if __name__ == "__main__":
    sys.exit(main())
