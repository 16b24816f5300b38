#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""With E2B_API_URL set, a bake registers its template with that server too; nothing is built twice.

The server is tests/support/e2b_server.py, which refuses what a real one refuses.
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import HERE, Bakery, check  # noqa: E402
from template_server import KEY, Server  # noqa: E402

TASK = "fix-links"


def posts(report):
    return [call for call in report["calls"] if call.startswith("POST")]


def registered_once(bakery, server):
    server.setup(polls=2)
    task = bakery.bake(tasks=[TASK]).expect().tasks()[TASK]
    report = server.report()
    check(not report["problems"], report["problems"])
    check(report["aliases"] == [task["alias"]], report["aliases"])
    check(len(posts(report)) == 2, report["calls"])
    text = json.dumps(report["bodies"])
    check("/demo/%s:" % TASK in text and "MADE_BY" in text, text)

    bakery.bake(tasks=[TASK]).expect()
    again = server.report()
    check(posts(again) == posts(report), "built again: %s" % again["calls"])
    check(not again["problems"], again["problems"])


def failure_is_the_tasks(bakery, server):
    server.setup(fail={"step": "RUN make", "message": "no rule to make target"})
    done = bakery.bake(tasks=[TASK]).expect(1)
    task = done.tasks()[TASK]
    check(task["outcome"] == "failed" and task["stage"] == "register", task)
    check("no rule to make target" in task["error"] and "RUN make" in task["error"], task["error"])
    check(not server.report()["aliases"], "the failed build keeps its alias")
    check(KEY not in done.out + done.err, "the key is printed")


# A trainer of the form that the shipped provider knows; made up here.
TRAINER = """
import hashlib
from pathlib import Path

def alias_of(task_dir, image, commands):
    text = "\\n".join([image, "root", *commands, repr([("cpu_count", 2), ("memory_mb", 4096)])])
    return "tb2-%s-%s" % (task_dir.name, hashlib.sha256(text.encode()).hexdigest()[:10])

def ensure_task_template(task_dir, *, force=False):
    from e2b import Template
    image = [l for l in (task_dir / "task.toml").read_text().splitlines() if l.startswith("docker_image")][0].split('"')[1]
    commands = ["echo one > /made-by", "echo 'two: it''s \\u00fc'"]
    alias = alias_of(task_dir, image, commands) + SUFFIX
    if not Template.alias_exists(alias, api_key="x"):
        template = Template().from_image(image).set_user("root")
        for command in commands:
            template = template.run_cmd(command)
        Template.build(template, alias, cpu_count=2, memory_mb=4096, skip_cache=force)
    return alias
"""


def recipes_of_a_trainer(bakery):
    """Aliases and steps are the trainer's; that they differ from the rule is said, and is no matter."""
    provider = os.path.join(HERE, "..", "..", "manifests", "providers", "miles.py")
    plan = ["plan", "--tasks-dir", os.path.join(bakery.set, "tasks"), "--all", "--json", "--recipe-from"]
    for suffix, warned in (("", False), ("-v2", True)):
        top = bakery.path("trainer" + suffix)
        os.makedirs(os.path.join(top, "examples"))
        with open(os.path.join(top, "examples", "tb2_sandbox_e2b.py"), "w", encoding="utf-8") as out:
            out.write("SUFFIX = %r\n%s" % (suffix, TRAINER))
        command = "%s %s %s" % (sys.executable, provider, top)
        once = bakery.tb2(*plan, command).expect()
        each = bakery.tb2(*plan, command + " {}").expect()
        aliases = {t["task"]: t["alias"] for t in json.loads(once.out)["tasks"]}
        check(aliases == {t["task"]: t["alias"] for t in json.loads(each.out)["tasks"]}, each.out)
        check(all(alias.endswith(suffix) for alias in aliases.values()), aliases)
        check(("the provider's counts" in once.err) == warned, once.err)
    broken = bakery.tb2(*plan, "echo no >&2; exit 7").expect(2)
    check("status 7" in broken.err and "no" in broken.err, broken.err)
    bakery.tb2(*plan, "echo '[1]'").expect(2)
    missing = bakery.tb2(*plan, "true").expect(1)
    check("no answer for task" in missing.out, missing.out)


def what_moved_on_is_replaced(bakery, server):
    """The alias holds less than what a template is made from: the server's is replaced all the same."""
    server.setup()
    alias = bakery.bake(tasks=[TASK]).expect().tasks()[TASK]["alias"]
    before = len(posts(server.report()))
    path = os.path.join(bakery.set, "tasks", TASK, "task.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace('storage = "10G"', 'storage = "20G"', 1))
    server.setup(templates=[{"alias": alias, "status": "ready"}], fail={"message": "not now"})
    bakery.bake(tasks=[TASK]).expect(1)
    check(server.report()["aliases"] == [alias], "the old template is gone")
    server.setup(templates=[{"alias": alias, "status": "ready"}])
    task = bakery.bake(tasks=[TASK]).expect().tasks()[TASK]
    report = server.report()
    check(task["alias"] == alias and report["aliases"] == [alias], report["aliases"])
    check(len(posts(report)) == 2 * before, report["calls"])
    bakery.bake(tasks=[TASK]).expect()
    check(posts(server.report()) == posts(report), "replaced again")


def main():
    with Bakery(tasks=2) as bakery, Server() as server:
        recipes_of_a_trainer(bakery)
        os.environ.update(E2B_API_URL=server.url, E2B_API_KEY=KEY)
        registered_once(bakery, server)
        failure_is_the_tasks(bakery, server)
        what_moved_on_is_replaced(bakery, server)
        server.setup()
        os.environ["E2B_API_KEY"] = "e2b_0badc0de"
        os.environ["E2B_API_URL"] = server.url.replace("//", "//trainer:0badf00d@")
        done = bakery.bake(tasks=[TASK]).expect(1)
        task = done.tasks()[TASK]
        check(task["error_class"] == "denied", task)
        check("0badc0de" not in done.out + done.err, "the key is printed")
        check("0badf00d" not in done.out + done.err, "the login in the address is printed")
        os.environ["E2B_API_KEY"] = ""
        os.environ["E2B_API_KEY_FILE"] = bakery.path("none")
        nothing = bakery.bake(tasks=[TASK]).expect(3)
        check("E2B_API_KEY" in nothing.err, nothing.err)


main()
