#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Going into machines: shells on a terminal, copies of failed tasks that are kept, what their consoles said."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check  # noqa: E402

TASK = "count-words"

FAILING = """\
name: failing
network: none
steps:
  - workdir: /work
  - env:
      COLOUR: blue
  - run: echo begun > state; echo "said on the console" > /dev/console; sleep 4321 & exit 9
"""

# Two file systems in memory, each of which may take half of it.
HUNGRY = """\
name: hungry
network: none
steps:
  - run: cat /dev/zero > /dev/shm/half; cat /dev/zero > /dev/tb2/half
"""


class Terminal:
    """A program on a terminal of its own, as a person would have it."""

    def __init__(self, arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(arguments[0], arguments)
        self.seen = b""
        self.before = termios.tcgetattr(self.fd)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern, seconds=120):
        """Reads until the pattern is there, and forgets what came up to its end."""
        until = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.seen)
            if found:
                self.seen = self.seen[found.end():]
                return found
            left = until - time.monotonic()
            check(left > 0, "no %s in %r" % (pattern, self.seen[-2000:]))
            if select.select([self.fd], [], [], left)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:  # the other side is closed
                    check(re.search(pattern, self.seen), "ended without %s: %r" % (pattern, self.seen[-2000:]))

    def end(self, seconds=120):
        """The exit status, once it has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if select.select([self.fd], [], [], 0.1)[0]:
                    self.seen += os.read(self.fd, 65536)
            except OSError:
                pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("it does not end: %r" % self.seen[-2000:])


def a_shell_on_a_terminal(bakery, alias):
    """Sizes, also new ones, an interrupt that reaches the guest alone, status, and the terminal as it was."""
    terminal = Terminal(bakery.arguments(["shell", alias]))
    terminal.size(31, 97)
    terminal.wait_for(rb"[#$] ")
    terminal.type("stty size; tty; echo $TERM $MADE_BY; pwd; id -u\n")
    terminal.wait_for(rb"31 97\r\n/dev/pts/0\r\n\S+ e2e\r\n")
    terminal.size(50, 132)
    terminal.type("while [ \"$(stty size)\" != '50 132' ]; do sleep 0.2; done; echo re''sized\n")
    terminal.wait_for(rb"resized\r\n")
    terminal.type("sleep 4321; echo not''interrupted $?\n")
    time.sleep(1)
    terminal.type("\x03")
    terminal.type("echo still''here\n")
    terminal.wait_for(rb"stillhere\r\n")
    check(b"notinterrupted 0" not in terminal.seen, terminal.seen)
    terminal.type("exit 7\n")
    check(terminal.end() == 7, terminal.seen)
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def a_terminal_that_goes_away(bakery, alias):
    """A hang-up, as from a closed window, ends the shell and its machine."""
    terminal = Terminal(bakery.arguments(["shell", alias]))
    terminal.wait_for(rb"[#$] ")
    os.kill(terminal.pid, signal.SIGTERM)
    check(terminal.end() == 130, terminal.seen)
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def a_shell_without_a_terminal(bakery, alias):
    run = subprocess.run(bakery.arguments(["shell", alias]), input="pwd\necho $0\nexit 5\n", text=True,
                         capture_output=True, timeout=300, check=False)
    check(run.returncode == 5 and run.stdout.splitlines()[1:] == ["/bin/sh"], run)
    run = bakery.tb2("run", "--tty", alias, "--", "true").expect(2)
    check("needs a terminal" in run.err, run.err)
    terminal = Terminal(bakery.arguments(["run", "--tty", alias, "--", "sh", "-c", "test -t 0 && tty; exit 4"]))
    terminal.wait_for(rb"/dev/pts/0\r\n")
    check(terminal.end() == 4, terminal.seen)


def a_failed_task_is_kept(bakery):
    """With its files, its programs, its environment; each command goes on where the last one ended."""
    run = bakery.bake("--keep", recipe=FAILING, tasks=[TASK]).expect(1)
    run.check_schema()
    task = run.tasks()[TASK]
    name = task["alias"]
    check("exit status 9" in task["error"] and "shell --kept " + name in task["hint"], task)
    with open(bakery.path("store", task["console"]), encoding="utf-8") as file:
        check("said on the console" in file.read(), task["console"])
    kept = json.loads(bakery.tb2("kept", "--json").expect().out)
    check([copy["name"] for copy in kept] == [name] and "exit status 9" in kept[0]["why"], kept)

    said = bakery.tb2("exec", name, "--", "sh", "-c", "pwd; cat state; echo $COLOUR; ps").expect().out
    check(said.startswith("/work\nbegun\nblue\n"), said)
    check("sleep 4321" in said, "what the step left running is gone: " + said)
    bakery.tb2("exec", name, "--", "sh", "-c", "echo more >> state; sync; exit 3").expect(3)
    bakery.tb2("exec", "--discard", name, "--", "sh", "-c", "echo never >> state").expect()
    bakery.tb2("store", "gc", "--grace", "0s").expect()
    check(bakery.tb2("exec", name, "--", "cat", "state").expect().out == "begun\nmore\n", "other state")
    shell = subprocess.run(bakery.arguments(["shell", "--kept", name]), input="cat state; echo typed >> state\n",
                           text=True, capture_output=True, timeout=300, check=False)
    check(shell.returncode == 0 and shell.stdout == "begun\nmore\n", shell)
    check(bakery.tb2("exec", "--discard", name, "--", "tail", "-n", "1", "state").expect().out == "typed\n", "lost")
    return name


def one_at_a_time(bakery, name):
    """Two who go on with one copy would lose what one of them did."""
    holder = subprocess.Popen(bakery.arguments(["exec", name, "--", "sh", "-c", "echo in; sleep 15"]),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    check(holder.stdout.readline() == "in\n", "the first one did not begin")
    for words in (("exec", name, "--", "true"), ("kept", "rm", name)):
        run = bakery.tb2(*words)
        check(run.status in (4, 125) and "somebody is in" in run.err, run.err)
    check(holder.wait(120) == 0, "the first one failed")
    holder.stdout.close()


def copies_come_and_go(bakery, name, alias):
    bakery.tb2("run", "--keep", "mine", alias, "--", "sh", "-c", "echo mine > /mine").expect()
    check(bakery.tb2("exec", "mine", "--", "cat", "/mine").expect().out == "mine\n", "not kept")
    check("mine" in bakery.tb2("kept").expect().out, "not listed")
    bakery.tb2("run", "--keep", "../x", alias, "--", "true").expect(125)
    bakery.tb2("run", "--keep", "y", "--cold", alias, "--", "true").expect(2)
    bakery.tb2("kept", "rm", "mine", name).expect()
    check(json.loads(bakery.tb2("kept", "--json").expect().out) == [], "still there")
    run = bakery.tb2("exec", "mine", "--", "true").expect(125)
    check("no kept copy 'mine'" in run.err, run.err)
    bakery.tb2("store", "gc", "--grace", "0s").expect()
    bakery.tb2("run", alias, "--", "true").expect()


def memory_runs_out(bakery):
    """The guest's kernel kills; the failure says so, and how much memory there was."""
    task = bakery.bake(recipe=HUNGRY, tasks=[TASK]).expect(1).tasks()[TASK]
    check(task["stage"] == "steps" and task["error_class"] == "step", task)
    check("out-of-memory killer" in task["error"] and "2048 MB of memory" in task["error"], task)
    check("memory_mb" in task["hint"], task)


def main():
    with Bakery(tasks=1) as bakery:
        alias = bakery.bake().expect().tasks()[TASK]["alias"]
        a_shell_on_a_terminal(bakery, alias)
        a_terminal_that_goes_away(bakery, alias)
        a_shell_without_a_terminal(bakery, alias)
        name = a_failed_task_is_kept(bakery)
        one_at_a_time(bakery, name)
        copies_come_and_go(bakery, name, alias)
        memory_runs_out(bakery)


main()
