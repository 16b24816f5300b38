#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Commands that need neither a machine nor a registry: what they print, and how they end."""

import fcntl
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

PROGRAM = os.environ["TB2_BAKE"]
DIGEST = "sha256:" + "5" * 64
ALIAS = "tb2-made-up-0123456789"


def check(good, what):
    if not good:
        raise AssertionError(what)


def tb2(store, *command):
    return subprocess.run([PROGRAM, command[0], "--store", store, *command[1:]], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=30)


def made_up_record():
    record = dict.fromkeys(("key", "disk", "base_disk", "memory", "state"), DIGEST)
    record.update(dict.fromkeys(("vmm", "accel", "kernel", "created", "user", "workdir"), "x"))
    record.update(alias=ALIAS, task="made-up", state_size=1, memory_mb=64, cpus=1, env=[])
    return record


def put_template(store):
    """A record that can be loaded, of a template whose chunks are not there."""
    text = json.dumps(made_up_record()).encode()
    digest = hashlib.sha256(text).hexdigest()
    with open("%s/templates/%s.json" % (store, digest), "wb") as out:
        out.write(text)
    with open("%s/catalog/%s.json" % (store, ALIAS), "w", encoding="utf-8") as out:
        json.dump({"alias": ALIAS, "task": "made-up", "record": "sha256:" + digest}, out)


def damage_shows(store):
    """A template without its data is listed, as what it is; the others are listed beside it."""
    done = tb2(store, "ls", "--json")
    check(done.returncode == 0 and json.loads(done.stdout)[0]["state"] == "damaged", done)
    check(ALIAS in done.stderr, done)
    check(tb2(store, "show", "made-up").returncode == 0, "its record can be shown")


def words_of_a_guest_drive_no_terminal(store):
    """Why a copy was kept may be what a program in it printed."""
    os.mkdir(store + "/kept")
    with open(store + "/kept/odd.json", "w", encoding="utf-8") as out:
        json.dump(dict(made_up_record(), kept={"why": "\x1b[2Jgone\nmore", "since": "x"}), out)
    done = tb2(store, "kept")
    check(done.returncode == 0 and done.stdout == "odd  made-up  ?[2Jgone\n", done)
    os.unlink(store + "/kept/odd.json")


def errors_name_the_store_once(store):
    bad = store + "/chunks"
    done = tb2(bad, "ls")
    check(done.returncode == 2, done)
    check(done.stderr.count("store " + bad) == 1, done.stderr)


def lost_output_is_no_success(store):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([PROGRAM, "ls", "--store", store], stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=30, check=False)
    check(done.returncode == 3 and "writing the result" in done.stderr, done)


def waiting_for_stdin_can_be_ended(store, number):
    """A pipe that nobody closes: the first signal ends the wait."""
    child = subprocess.Popen([PROGRAM, "run", "--store", store, ALIAS, "--", "true"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        child.stdin.write(b"some")
        child.stdin.flush()
        end = time.monotonic() + 30
        while struct.unpack("i", fcntl.ioctl(child.stdin, termios.FIONREAD, b"\0" * 4))[0]:
            check(child.poll() is None and time.monotonic() < end, "stdin is not read")
            time.sleep(0.01)
        child.send_signal(number)
        check(child.wait(30) == 130, child.returncode)
    finally:
        child.kill()
        child.communicate()


def a_closed_stdout_is_no_success(store):
    """Closed before it starts: nothing it opens gets that number. A pipe whose reader is gone: it ends with a word."""
    line = "exec '%s' ls --store '%s' >&-" % (PROGRAM, store)
    done = subprocess.run(["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=30)
    check(done.returncode == 0, done)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([PROGRAM, "ls", "--store", store], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30)
    os.close(writer)
    check(done.returncode == 3 and "writing the result" in done.stderr, done)


def without_home(store):
    """As under cron or systemd: the system's directories, or those that are named."""
    bare = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([PROGRAM, "ls", "--store", store], env=bare, capture_output=True, text=True, timeout=30)
    check(done.returncode == 0 and ALIAS in done.stdout, done)
    done = subprocess.run([PROGRAM, "ls"], env=dict(bare, TB2_BAKE_STORE=store), capture_output=True, text=True, timeout=30)
    check(done.returncode == 0 and ALIAS in done.stdout, done)
    done = subprocess.run([PROGRAM, "doctor", "--json"], env=bare, capture_output=True, text=True, timeout=60)
    found = {each["check"]: each["found"] for each in json.loads(done.stdout)}
    check("/var/lib/tb2-bake" in found["store"] and "/var/cache/tb2-bake" in found["cache"], found)


def a_store_that_is_to_be_made_has_room(home):
    """A bake makes it: what counts is the room where it will be."""
    for store in ("new", "new/below", os.path.join(home, "new"), "/new"):
        done = subprocess.run([PROGRAM, "doctor", "--json", "--store", store], cwd=home, capture_output=True, text=True, timeout=60)
        found = {each["check"]: each for each in json.loads(done.stdout)}
        check("no such place" not in found["store"]["found"], found["store"])


def a_relative_cache_is_made_absolute(home):
    """The machine monitor runs in a directory of its own: a path of the cache must lead to the same place from there."""
    named = (["--cache", "kept here"], {}), ([], {"TB2_BAKE_CACHE": "kept here"})
    for options, variables in named:
        done = subprocess.run([PROGRAM, "doctor", "--json", *options], cwd=home, capture_output=True, text=True, timeout=60,
                              env=dict({"HOME": home, "PATH": "/usr/bin:/bin"}, **variables))
        found = {each["check"]: each["found"] for each in json.loads(done.stdout)}
        check(os.path.realpath(home) + "/kept here" in found["cache"], found["cache"])
    done = subprocess.run([PROGRAM, "ls", "--cache", ""], capture_output=True, text=True, timeout=30)
    check(done.returncode == 2 and "--cache names no directory" in done.stderr, done)


def doctor_says_what_is_missing(home):
    """Nothing in PATH: no QEMU, so that nothing can be baked; each finding that is not good says what it costs."""
    done = subprocess.run([PROGRAM, "doctor", "--json"], env={"HOME": home, "PATH": "/nowhere"}, capture_output=True,
                          text=True, timeout=60)
    found = {each["check"]: each for each in json.loads(done.stdout)}
    check(done.returncode == 3 and found["qemu"]["state"] == "bad", done)
    check("apt-get install qemu-system-x86" in found["qemu"]["fix"], found["qemu"])
    for each in found.values():
        check(each["state"] in ("good", "note", "bad"), each)
        check((each["state"] == "good") == ("cost" not in each), each)
    wanted = {"kernel", "kvm", "qemu", "firecracker", "guest kernel", "fuse", "ublk", "gzip", "memory", "store", "cache",
              "limits", "clock", "registries", "server"}
    check(set(found) == wanted, set(found) ^ wanted)
    image = subprocess.run([PROGRAM, "doctor", "oci:./no-such-layout"], env={"HOME": home, "PATH": "/usr/bin:/bin"},
                           capture_output=True, text=True, timeout=60)
    check(image.returncode == 3 and "no-such-layout" in image.stdout, image)


def unreadable_stdin_is_an_error(store):
    directory = os.open(store, os.O_RDONLY)
    done = subprocess.run([PROGRAM, "run", "--store", store, ALIAS, "--", "true"], stdin=directory,
                          capture_output=True, text=True, timeout=30, check=False)
    os.close(directory)
    check(done.returncode == 125 and "stdin" in done.stderr, done)


def main():
    with tempfile.TemporaryDirectory(prefix="tb2-") as home:
        store = os.path.join(home, "store")
        os.mkdir(store)
        check(tb2(store, "ls").returncode == 0, "an empty store cannot be listed")
        put_template(store)
        damage_shows(store)
        errors_name_the_store_once(store)
        words_of_a_guest_drive_no_terminal(store)
        lost_output_is_no_success(store)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            waiting_for_stdin_can_be_ended(store, number)
        a_closed_stdout_is_no_success(store)
        without_home(store)
        unreadable_stdin_is_an_error(store)
        a_relative_cache_is_made_absolute(home)
        a_store_that_is_to_be_made_has_room(home)
        doctor_says_what_is_missing(home)


sys.exit(main())
