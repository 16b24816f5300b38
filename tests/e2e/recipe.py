#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What recipes can say, in real machines: files of the host, secrets, retries, networks, long steps, images with
little in them, a package mirror that moved on. Words on the command line choose among these parts."""

import base64
import contextlib
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need  # noqa: E402
from make_task_set import busybox  # noqa: E402
from oci_image import OCI, Layer, Store, write_layout  # noqa: E402

MARKER = "tok-9f3c51e07b"  # begins each secret: where it is found, something leaked
SECRET = MARKER + "-of-the-variable"
FILE_SECRET = MARKER + "-line-one\n" + MARKER + "-line-two\n"
KNOWN = "written-by-a-step-and-not-secret"


# ---- Images -------------------------------------------------------------------------------------

def few(*names):
    """An image with these programs alone: no shell unless it is named."""
    layer = Layer()
    for path in ("bin", "dev", "etc", "proc", "sys", "usr", "usr/bin", "var", "var/lib", "var/lib/lists"):
        layer.directory(path)
    layer.directory("tmp", 0o1777)
    program, _ = busybox()
    layer.file("bin/" + names[0], program, 0o755)
    for name in names[1:]:
        layer.hardlink("bin/" + name, "bin/" + names[0])
    layer.file("etc/motd", "of the image\n")
    layer.file("var/lib/lists/index", "foo_1\n")
    return layer


def broken_bash(layer):
    """A bash whose loader is not in the image."""
    with open("/bin/bash", "rb") as file:
        layer.file("bin/bash", file.read(), 0o755)
    return layer


def make_images(home):
    _, applets = busybox()
    images = {
        "all": few("busybox", *applets),
        "bare": few("touch", "test", "sleep"),
        "loader": broken_bash(few("busybox", *applets)),
        "loader-bare": broken_bash(few("touch", "test", "sleep")),
    }
    store = Store()
    write_layout(home, store, {tag: store.manifest(OCI, [layer.finish()], "gzip", {"WorkingDir": "/tmp"})
                               for tag, layer in images.items()})


class World:
    def __init__(self, bakery):
        self.bakery = bakery
        self.images = bakery.path("images")
        make_images(self.images)

    def recipe(self, steps, ready="command: 'true'", more="network: none\n"):
        return "name: e2e\n%ssteps:\n%sready: {%s}\n" % (more, steps, ready)

    def bake(self, tag, recipe, *options, status=0, store="store"):
        listing = self.bakery.path("list-" + tag)
        with open(listing, "w", encoding="utf-8") as out:
            out.write("oci:%s:%s task-%s\n" % (self.images, tag, tag))
        run = self.bakery.tb2("bake", "--images", listing, "--all", "--recipe", self.bakery.recipe(recipe), "--json",
                              *options, store=store).expect(status)
        if status == 2:
            return run, None
        run.check_schema()
        return run, run.tasks()["task-" + tag]

    def run(self, tag, *command, store="store", options=()):
        return self.bakery.tb2("run", *options, "task-" + tag, "--", *command, store=store).expect().out


# ---- Secrets ------------------------------------------------------------------------------------

def stored(home):
    """All files of a store."""
    return [os.path.join(where, name) for where, _, names in os.walk(home) for name in names]


def find(home, words):
    """Which of the words any chunk or other file of the store holds."""
    chunks = [path for path in stored(home) if "/chunks/" in path]
    plain = subprocess.Popen(["xargs", "-0", "zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    threading.Thread(target=lambda: (plain.stdin.write("\0".join(chunks).encode()), plain.stdin.close())).start()
    seen, tail = set(), b""
    for piece in iter(lambda: plain.stdout.read(1 << 20), b""):
        seen |= {word for word in words if word.encode() in tail + piece}
        tail = piece[-100:]
    check(plain.wait() == 0, "zstd failed")
    for path in stored(home):
        if "/chunks/" not in path:
            with open(path, "rb") as file:
                data = file.read()
            seen |= {word for word in words if word.encode() in data}
    return seen


STEPS = """\
  - copy: {from: rootfs, to: /}
  - copy: {from: single, to: /new/, owner: '1000:1000', mode: 0640}
  - run: |
      set -e
      test "$(sha256sum < /dev/tb2/secrets/file.txt)" = "%(file)s  -"
      test "$(printf %%s "$SECRET" | sha256sum)" = "%(variable)s  -"
      test "$(cat /dev/tb2/secrets/VARIABLE)" = "$SECRET"
      test "$(stat -c %%a-%%u /dev/tb2/secrets/VARIABLE)" = 400-1000
      echo "it is $SECRET"
      printf %%s "${SECRET%%????????}"; sleep 1; echo "${SECRET#"${SECRET%%????????}"}, in pieces"
      cat /dev/tb2/secrets/file.txt >&2
      sleep 1000 < /dev/tb2/secrets/VARIABLE > /dev/null 2>&1 &
      for i in 1 2 3 4 5 6 7 8; do echo "$SECRET" > /dev/shm/$i; done
      rm /dev/shm/*
      echo %(known)s > /tmp/proof
    user: 1000
    secrets: [{name: VARIABLE, env: SECRET}, file.txt]
  - run: test ! -e /dev/tb2/secrets; test -z "$SECRET"
  - run: |
      echo try >> /tries
      echo try $(wc -l < /tries) >&2
      test $(wc -l < /tries) = 3
    retries: 2
    backoff: 50ms
  - run: wget -q -O /page http://10.0.2.2:%(port)d/page
  - run: test "$(ls /sys/class/net)" = lo; ifconfig lo | grep -q UP; ! wget -q -O- http://10.0.2.2:%(port)d/page
    network: none
"""


def hashed(text):
    return hashlib.sha256(text.encode()).hexdigest()


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, mode)


def make_files(bakery):
    home = bakery.path("rootfs")
    write(os.path.join(home, "etc", "motd"), "new\n")
    write(os.path.join(home, ".hidden"), "dot\n")
    write(os.path.join(home, "srv", "private"), "0600\n", 0o600)
    os.makedirs(os.path.join(home, "srv", "empty"))
    os.symlink("../etc/motd", os.path.join(home, "srv", "link"))
    write(bakery.path("single"), "single\n")
    write(bakery.path("secret"), FILE_SECRET)


def everything(w):
    """Copies, secrets, retries, a step without network, an HTTP ready check; no secret is left anywhere."""
    os.environ["TB2_TEST_SECRET"] = SECRET
    given = ["--secret", "VARIABLE=env:TB2_TEST_SECRET", "--secret", "file.txt=file:" + w.bakery.path("secret")]
    with mirror({"/page": "a page\n"}) as (port, _):
        steps = STEPS % {"file": hashed(FILE_SECRET), "variable": hashed(SECRET), "known": KNOWN, "port": port}
        recipe = w.recipe(steps, "http: {port: 8000, path: /private}", "network: user\nstart: httpd -f -p 8000 -h /srv\n")
        run, task = w.bake("all", recipe, status=2)
        check("needs the secret VARIABLE" in run.err and "--secret VARIABLE=env:" in run.err, run.err)
        run, task = w.bake("all", recipe, *given)
    text = run.out + run.err
    check(MARKER not in text and "it is ***" in text and "***, in pieces" in text, text)
    check("is tried again in 50 ms" in text and "is tried again in 100 ms" in text and "try 3" in text, text)
    found = w.run("all", "sh", "-c", "cat /etc/motd /.hidden /srv/private /srv/link /new/single /page; ls -d /srv/empty; "
                  "stat -c %a-%u-%g /srv/private /new/single /new /etc; grep -c . /var/lib/lists/index")
    check(found.split() == ["new", "dot", "0600", "new", "single", "a", "page", "/srv/empty", "600-0-0", "640-1000-1000",
                            "755-1000-1000", "755-0-0", "1"], found)
    seen = find(w.bakery.path("store"), {MARKER, KNOWN})
    check(seen == {KNOWN}, "in the store: %s" % seen)
    check(not w.bakery.leftovers(), w.bakery.leftovers())
    # another value is no other template; other bytes of a file are
    os.environ["TB2_TEST_SECRET"] = "something-else"
    check(w.bake("all", recipe, *given)[1]["outcome"] == "unchanged", "a new value baked again")
    write(w.bakery.path("single"), "other\n")
    plan = w.bakery.tb2("plan", "--images", w.bakery.path("list-all"), "--all", "--recipe", w.bakery.recipe(recipe)).expect()
    check("recipe" in plan.out, plan.out)


def leaks_are_found(w):
    """A step that keeps a secret fails, and nothing of it is stored; the report does not tell it either."""
    given = ["--secret", "S=env:TB2_TEST_SECRET"]
    os.environ["TB2_TEST_SECRET"] = SECRET
    steps = '  - run: %s\n    secrets: [S]\n'
    for command, words in (
            ("cp /dev/tb2/secrets/S /tmp/x; sync; rm /tmp/x", ["a step wrote the secret S to the disk", "/dev/shm"]),
            ("cp /dev/tb2/secrets/S /dev/tb2/x", ["memory has the secret S in it"]),
            ("cat /dev/tb2/secrets/S; cat /dev/tb2/secrets/S >&2; exit 3", ["exit status 3", "***"]),
            # the log of its console is kept in the store
            ("cat /dev/tb2/secrets/S > /dev/console; exit 4", ["exit status 4"])):
        run, task = w.bake("all", w.recipe(steps % command), *given, status=1, store="leaks")
        for word in words:
            check(word in task["error"] + task.get("hint", ""), "no '%s' in %s" % (word, task))
        check(MARKER not in run.out + run.err, run.out + run.err)
        check(not find(w.bakery.path("leaks"), {MARKER}), command)


# ---- Long steps, little images ------------------------------------------------------------------

def long_steps(w):
    """Linux takes 131,071 bytes as one argument: longer texts go by file. Quotes and line ends stay."""
    steps = ""
    for size in (70000, 140000, 5000000):
        payload = base64.b64encode(hashlib.shake_256(b"%d" % size).digest(size * 3 // 4 - 400)).decode()
        lines = "\n".join("      " + payload[at:at + 4000] for at in range(0, len(payload), 4000))
        steps += ("  - run: |\n      cat > /tmp/%d <<'END'\n      it's \"quoted\" $HOME `x` \\\\\n%s\n      END\n"
                  % (size, lines))
    _, task = w.bake("all", w.recipe(steps), store="long")
    found = w.run("all", "sh", "-c", "wc -c /tmp/70000 /tmp/140000 /tmp/5000000; head -n 1 /tmp/5000000", store="long")
    check(all(int(line.split()[0]) > int(line.split()[1].rpartition("/")[2]) * 0.97
              for line in found.splitlines()[:3]), found)
    check("it's \"quoted\" $HOME `x` \\\\" in found, found)


def images_with_little(w):
    """No shell, a bash that does not start: what needs none works, what needs one says so."""
    steps = ("  - copy: {from: rootfs, to: /}\n  - workdir: /made/by/the/agent\n  - run: [touch, here]\n"
             "  - run: [test, -f, /made/by/the/agent/here]\n")
    without = "ready: {command: 'true'}\n"
    recipe = w.recipe(steps).replace(without, "")
    w.bake("bare", recipe)
    check(w.run("bare", "test", "-f", "/srv/private") == "", "a file is missing")
    for tag, other, words in (
            ("bare", recipe.replace("[touch, here]", "touch here"), ["step 3 of 4", "list of arguments"]),
            ("bare", recipe.replace("[touch, here]", "[chattr, here]"), ["program chattr is not in the guest"]),
            ("loader-bare", recipe + "start: sleep 1000\n", ["start command: "])):
        _, task = w.bake(tag, other, status=1)
        if "chattr" not in other:
            words.append("neither /bin/bash nor /bin/sh starts")
        for word in words:
            check(word in task["error"] + task.get("hint", ""), "no '%s' in %s" % (word, task))
    w.bake("loader", w.recipe("  - run: echo $0 > /tmp/shell\n"))
    check(w.run("loader", "cat", "/tmp/shell") == "/bin/sh\n", "another shell than sh ran the step")


# ---- A package mirror ---------------------------------------------------------------------------

@contextlib.contextmanager
def mirror(files, address="127.0.0.1"):
    """Serves texts on a port of this machine, its loopback's by default; yields the port and the paths asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or "")))
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


GET = """\
#!/bin/sh
# As apt: the lists say what there is, "update" gets new ones.
lists=/var/lib/lists/index
[ "$1" != update ] || exec wget -q -O $lists http://10.0.2.2:%(port)d/index
name=$(grep "^$2_" $lists)
wget -O /tmp/$name http://10.0.2.2:%(port)d/pool/$name || { echo "E: Failed to fetch $name" >&2; exit 100; }
"""


def a_stale_index(w):
    """Nothing is tried again unasked, and the image's own lists are left alone."""
    with mirror({"/index": "foo_2\n", "/pool/foo_2": "foo\n"}) as (port, asked):
        write(w.bakery.path("get"), GET % {"port": port}, 0o755)
        copy = "  - copy: {from: get, to: /bin/}\n"
        recipe = w.recipe(copy + "  - run: get install foo\n", more="network: user\n")
        run, task = w.bake("all", recipe, status=1, store="apt")
        check(asked == ["/pool/foo_1"], asked)
        for word in ("step 2 of 2", "exit status 100", "404", "Failed to fetch foo_1"):
            check(word in task["error"], task)
        check(task["error_class"] == "step" and "404" in run.out, task)
        w.bake("all", w.recipe(copy + "  - run: get update\n  - run: get install foo\n", more="network: user\n"),
               store="apt")
        check(asked == ["/pool/foo_1", "/index", "/pool/foo_2"], asked)
        w.bake("all", w.recipe(copy, more="network: user\n"), store="untouched")
        check(w.run("all", "cat", "/var/lib/lists/index", store="untouched") == "foo_1\n", "the lists were changed")


@contextlib.contextmanager
def tap_device(address):
    """A tap device of this machine that has this address."""
    name = "tb2t%d" % os.getpid()
    subprocess.run(["ip", "tuntap", "add", name, "mode", "tap"], check=True)
    try:
        subprocess.run(["ip", "address", "add", address + "/24", "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)


def on_a_tap(w):
    """Baked on a tap device; copies are on one, or on QEMU's own network."""
    if os.getuid() != 0 or not os.path.exists("/dev/net/tun") or not shutil.which("ip"):
        print("no tap device: that needs root, /dev/net/tun and ip")
        return
    here = "10.213.77.1"
    with tap_device(here) as name, mirror({"/page": "by tap\n"}, here) as (port, asked):
        recipe = w.recipe("  - run: wget -q -O /page http://%s:%d/page\n  - run: ifconfig eth0 | grep -q 10.213.77.2\n"
                          % (here, port), more="network: tap\n")
        _, task = w.bake("all", recipe, status=1, store="tap")
        check("--tap NAME" in task.get("hint", ""), task)
        baked, _ = w.bake("all", recipe, "--tap", name, store="tap")
        check("boot image does not do" not in baked.err, baked.err)
        check(asked == ["/page"], asked)
        found = w.run("all", "sh", "-c", "cat /page; wget -q -O- http://%s:%d/page" % (here, port), store="tap",
                      options=("--tap", name))
        check(found == "by tap\nby tap\n", found)
    with mirror({"/page": "by the user network\n"}) as (port, _):
        found = w.run("all", "sh", "-c", "cat /page; wget -q -O- http://10.0.2.2:%d/page" % port, store="tap")
    check(found == "by tap\nby the user network\n", found)


def main():
    need("zstd")
    with Bakery(tasks=1, serve=False) as bakery:
        world = World(bakery)
        make_files(bakery)
        for part in (everything, leaks_are_found, long_steps, images_with_little, a_stale_index, on_a_tap):
            if not sys.argv[1:] or part.__name__ in sys.argv[1:]:
                part(world)


main()
