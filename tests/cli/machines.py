#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The files of manifests/machines: each is well formed, and the command line in it is one that tb2-bake takes.

A shell runs the lines with a tb2-bake before it in PATH that notes its words; the real one then plans with them, in a
machine without QEMU: a wrong option or share would end it with status 2.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
MACHINES = os.path.join(HERE, "..", "..", "manifests", "machines")


def check(good, what):
    if not good:
        raise AssertionError(what)


def read(name):
    with open(os.path.join(MACHINES, name), encoding="utf-8") as file:
        return file.read()


def load_yaml(name):
    try:
        import yaml
    except ImportError:
        print("no python3-yaml here: %s is not parsed" % name)
        return None
    return yaml.safe_load(read(name))


def words_of(home, line, **environment):
    """The words that a shell gives to tb2-bake."""
    os.makedirs(home + "/bin", exist_ok=True)
    with open(home + "/bin/tb2-bake", "w", encoding="utf-8") as out:
        out.write('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    os.chmod(home + "/bin/tb2-bake", 0o755)
    done = subprocess.run(["/bin/sh", "-c", line], text=True, capture_output=True, timeout=30,
                          env=dict(environment, PATH=home + "/bin:/usr/bin:/bin"))
    check(done.returncode == 0, done)
    return done.stdout.splitlines()


def is_taken(home, words):
    """The program takes the line: what it then misses (tasks, QEMU) is the machine's. Paths are moved to `home`."""
    moved = [home + "/" + os.path.basename(word) if "/" in word and not re.fullmatch(r"\d+/\d+|\w+://.*", word) else word
             for word in words]
    done = subprocess.run([os.environ["TB2_BAKE"], *moved], text=True, capture_output=True, timeout=30, cwd=home,
                          env={"HOME": home, "PATH": "/nowhere"})
    check("Try 'tb2-bake" not in done.stderr and "--" not in done.stderr.split("\n")[0], (words, done.stderr))


def share(words):
    return words[words.index("--shard") + 1]


def systemd(home):
    text = read("tb2-bake.service")
    line = re.sub(r"\\\n", " ", text)
    line = re.search(r"^ExecStart=(.*)$", line, re.M).group(1).replace("/usr/bin/tb2-bake", "tb2-bake")
    is_taken(home, words_of(home, line, TASKS_DIR=home + "/tasks"))
    if shutil.which("systemd-analyze"):
        for name in ("tb2-bake.service", "tb2-bake.timer"):
            unit = os.path.join(home, name)
            with open(unit, "w", encoding="utf-8") as out:
                out.write(read(name).replace("/usr/bin/tb2-bake", "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", os.path.join(home, "tb2-bake.service"),
                               os.path.join(home, "tb2-bake.timer")], text=True, capture_output=True, timeout=30)
        check("tb2-bake" not in done.stderr, done.stderr)
    check("OnCalendar=" in read("tb2-bake.timer") and "Persistent=true" in read("tb2-bake.timer"), "the timer")


def cron(home):
    line = [line for line in read("tb2-bake.cron").splitlines() if re.match(r"[0-9*]", line)][0]
    fields = line.split(None, 6)
    check(all(re.fullmatch(r"\*|\d+", field) for field in fields[:5]) and fields[5] == "tb2-bake", fields)
    check("%" not in fields[6], "cron takes % for a newline")
    is_taken(home, words_of(home, re.sub(r" > .*", "", fields[6])))


def github(home):
    job = (load_yaml("github-actions.yaml") or {"jobs": {"bake": None}})["jobs"]["bake"]
    if not job:
        return
    shards = job["strategy"]["matrix"]["shard"]
    line = job["steps"][1]["run"].replace("${{ strategy.job-total }}", str(len(shards)))
    lines = [words_of(home, line.replace("${{ matrix.shard }}", str(shard)), GITHUB_STEP_SUMMARY=home + "/summary") for shard in shards]
    check([share(words) for words in lines] == ["%d/8" % i for i in range(1, 9)] and "${{" not in str(lines), lines)
    is_taken(home, lines[0])


def gitlab(home):
    job = (load_yaml("gitlab-ci.yaml") or {"bake": None})["bake"]
    if not job:
        return
    lines = [words_of(home, job["script"][0], CI_NODE_INDEX=str(i), CI_NODE_TOTAL=str(job["parallel"])) for i in range(1, 9)]
    check([share(words) for words in lines] == ["%d/8" % i for i in range(1, 9)], lines)
    is_taken(home, lines[0])


def kubernetes(home):
    job = load_yaml("kubernetes-job.yaml")
    if not job:
        return
    spec = job["spec"]
    pod = spec["template"]["spec"]["containers"][0]
    shards = [each["value"] for each in pod["env"] if each["name"] == "SHARDS"][0]
    check(spec["completionMode"] == "Indexed" and shards == str(spec["completions"]), "SHARDS are the completions")
    lines = [words_of(home, pod["command"][2], JOB_COMPLETION_INDEX=str(i), SHARDS=shards) for i in range(spec["completions"])]
    check([share(words) for words in lines] == ["%d/8" % i for i in range(1, 9)], lines)
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    check({mount["name"] for mount in pod["volumeMounts"]} == volumes, volumes)
    is_taken(home, lines[0])


def main():
    check(set(os.listdir(MACHINES)) == {"tb2-bake.service", "tb2-bake.timer", "tb2-bake.cron", "github-actions.yaml",
                                        "gitlab-ci.yaml", "kubernetes-job.yaml"}, os.listdir(MACHINES))
    with tempfile.TemporaryDirectory(prefix="tb2-") as home:
        for each in (systemd, cron, github, gitlab, kubernetes):
            each(home)


if __name__ == "__main__":
    sys.exit(main())
