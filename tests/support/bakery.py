# SPDX-License-Identifier: MIT
"""What the end-to-end tests share: a task set with its registry, and tb2-bake run on it.

TB2_BAKE names the program, TB2_TEST_CACHE a cache directory (guest kernel) that tests may share.
All spellings of options, JSON members and recipe keys that the tests rely on are in this file.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

HERE = os.path.dirname(os.path.realpath(__file__))
SKIP = 77

# No network, nothing but what the task set's own images hold.
RECIPE = """\
name: e2e
network: none
steps:
  - env:
      MADE_BY: e2e
  - run: echo "$MADE_BY for $DEMO_TASK" > /made-by
start: while true; do sleep 1000; done
ready:
  command: test -s /made-by
"""


def skip(reason):
    print("skipped: " + reason)
    sys.exit(SKIP)


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            skip("no %s here" % program)


def check(good, what):
    if not good:
        raise AssertionError(what)


class Run:
    """A finished tb2-bake: status, output, and for a bake its events."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def events(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def check_schema(self):
        """Each event is as docs/formats/events.schema.json says."""
        import jsonschema
        with open(os.path.join(HERE, "..", "..", "docs", "formats", "events.schema.json"), encoding="utf-8") as file:
            validator = jsonschema.Draft202012Validator(json.load(file))
        for event in self.events():
            validator.validate(event)

    def tasks(self):
        """{name: result} with outcome, stage, alias, base_disk, disk; error_class, error, hint."""
        found = {event["task"]: event for event in self.events() if event["event"] == "task_finished"}
        check(found, "no task in the output:\n%s\n%s" % (self.out[-2000:], self.err[-2000:]))
        return found

    def totals(self):
        """The last event: counts of all tasks together."""
        ends = [event for event in self.events() if event["event"] == "run_finished"]
        check(len(ends) == 1, "no end in the output:\n%s\n%s" % (self.out[-2000:], self.err[-2000:]))
        return ends[0]

    def stages(self):
        """Names of the stages that any task went through."""
        return {event["stage"] for event in self.events() if event["event"] == "stage_started"}

    def outcomes(self):
        return {name: task["outcome"] for name, task in self.tasks().items()}

    def base_disks(self):
        return {name: task["base_disk"] for name, task in self.tasks().items()}

    def expect(self, status=0):
        check(self.status == status, "exit status %s, wanted %s\nstdout:\n%s\nstderr:\n%s" % (
            self.status, status, self.out[-4000:], self.err[-4000:]))
        return self


class Bakery:
    """`with Bakery(tasks=2) as bakery:` owns a temporary directory, a task set and its registry."""

    def __init__(self, tasks=4, serve=True, bulk_mb=0):
        self.program = os.environ.get("TB2_BAKE", "")
        check(os.path.exists(self.program), "TB2_BAKE names no program: '%s'" % self.program)
        self.count, self.serve, self.bulk_mb = tasks, serve, bulk_mb

    def __enter__(self):
        # Short: unix sockets lie below it.
        self.home = tempfile.mkdtemp(prefix="tb2-", dir=os.environ.get("TB2_TEST_TMP", "/var/tmp"))
        self.set = os.path.join(self.home, "set")
        self.cache = os.environ.get("TB2_TEST_CACHE") or os.path.join(self.home, "cache")
        try:
            self._tool("make_task_set.py", "--out", self.set, "--tasks", str(self.count),
                       "--bulk-mb", str(self.bulk_mb))
            with open(os.path.join(self.set, "set.json"), encoding="utf-8") as file:
                self.facts = json.load(file)
            if self.serve:
                self._tool("registry.sh", "start", self.set, str(self.facts["port"]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._tool("registry.sh", "stop", self.set)
        if not os.environ.get("TB2_TEST_KEEP"):
            shutil.rmtree(self.home, ignore_errors=True)

    def _tool(self, name, *arguments):
        subprocess.run([os.path.join(HERE, name), *arguments], check=True, stdout=subprocess.DEVNULL)

    def path(self, *parts):
        return os.path.join(self.home, *parts)

    def recipe(self, text=RECIPE):
        path = self.path("recipe-%08x.yaml" % zlib.crc32(text.encode()))
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def arguments(self, command, store="store"):
        """`command` is a command word and what follows it; the common options go in between."""
        return [self.program, command[0], "--store", self.path(store), "--cache", self.cache, *command[1:]]

    def tb2(self, *command, store="store", timeout=300, under=()):
        """`under`: words of a command that runs it."""
        begin = time.monotonic()
        done = subprocess.run([*under, *self.arguments(command, store)], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=timeout)
        return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)

    def bake_command(self, *options, recipe=RECIPE, tasks=None):
        which = ["--tasks", ",".join(tasks)] if tasks else ["--all"]
        return ["bake", "--tasks-dir", os.path.join(self.set, "tasks"), *which, "--recipe", self.recipe(recipe),
                "--json", *options]

    def bake(self, *options, recipe=RECIPE, tasks=None, store="store", timeout=600):
        return self.tb2(*self.bake_command(*options, recipe=recipe, tasks=tasks), store=store, timeout=timeout)

    def start(self, command, store="store"):
        """The same on its own; `finish` waits for it."""
        return subprocess.Popen(self.arguments(command, store), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def set_port(self, task, port):
        """Where the task's image comes from."""
        path = os.path.join(self.set, "tasks", task, "task.toml")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as out:
            out.write(re.sub(r"127\.0\.0\.1:\d+/", "127.0.0.1:%d/" % port, text))

    def requests(self):
        """(method, path) of each request that the registry has seen."""
        with open(os.path.join(self.set, "registry.log"), encoding="utf-8") as file:
            return re.findall(r'"([A-Z]+) (/v2/\S*) HTTP/', file.read())

    def blob_gets(self):
        return [path for method, path in self.requests() if method == "GET" and "/blobs/sha256:" in path]

    def machines(self):
        """Command lines of the QEMU processes that run in this bakery's directories."""
        return list(self.machines_by_pid().values())

    def machines_by_pid(self):
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
                where = os.readlink("/proc/%s/cwd" % pid)
                with open("/proc/%s/stat" % pid, encoding="utf-8") as file:
                    zombie = file.read().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if "qemu-system" in line.split(" ")[0] and where.startswith(self.home) and not zombie:
                found[int(pid)] = line
        return found

    def leftovers(self, store="store"):
        """What lies in the store's tmp directory: nothing, once no process is at work."""
        top = self.path(store, "tmp")
        return sorted(os.listdir(top)) if os.path.isdir(top) else []


def finish(child, timeout=600):
    """What a child of Bakery.start has done."""
    out, err = child.communicate(timeout=timeout)
    return Run(child.returncode, out, err, 0)


def start_and_kill(bakery, command, store, seconds):
    """Starts tb2-bake and kills it, and only it, after `seconds`; True if it was still at work."""
    child = subprocess.Popen(bakery.arguments(command, store), stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        child.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        return True
