#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reports of a made-up run: each form is well formed, holds what it must, and no text becomes markup."""

import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import make_journal  # noqa: E402

VOID = {"meta", "link", "br", "img", "input", "hr"}
KNOWN = {"html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "div", "span", "article", "pre",
         "details", "summary", "b", "i", "table", "thead", "tbody", "tr", "th", "td"}


def check(good, what):
    if not good:
        raise AssertionError(what)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.texts, self.tags = [], {}, {}
        self.feed(text)
        self.close()
        check(not self.open, "left open: %s" % self.open)

    def handle_starttag(self, tag, attrs):
        check(tag in KNOWN, "an element <%s>" % tag)
        for name, value in attrs:
            check(name in ("class", "style", "title", "lang", "charset", "name", "content", "http-equiv", "open"),
                  "<%s %s=%s>" % (tag, name, value))
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        check(self.open and self.open.pop() == tag, "</%s> closes nothing" % tag)

    def handle_data(self, data):
        self.texts[self.open[-1] if self.open else ""] = self.texts.get(self.open[-1] if self.open else "", "") + data


def report(journal, *options, status=0):
    done = subprocess.run([os.environ["TB2_BAKE"], "report", journal, *options], text=True, capture_output=True, timeout=60)
    check(done.returncode == status, done)
    return done


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def shown(text):
    return text.replace("\u202e", "\ufffd")


def page_tells_what_failed(text):
    page = Page(text)
    check(page.texts["h1"] == "3 of 13 tasks failed", page.texts["h1"])
    check(page.tags["article"] == 3, page.tags)
    for name in make_journal.NAMES:
        check(name in page.texts["td"], name + " is not in the table")
    whole = "".join(page.texts.values())
    check("\u202e" not in text, "text is turned around")
    for _stage, _kind, error, hint in make_journal.FAILURES.values():
        check(shown(error.split("\n")[0]) in whole and shown(hint) in whole, error)
    check(text.index("What failed") < text.index("When each task") < text.index("Where the bytes"), "failures come first")
    for stage in ("in stage: steps", "in stage: pull", "in stage: ready"):
        check(stage in whole, stage)
    check("62 %" in whole or "63 %" in whole, "the share of chunks that were there")


def steps_do_not_end_a_stage(text):
    """Bars are as long as stages took, whatever was told meanwhile; what came from the cache is marked."""
    baked = [number for number, name in enumerate(make_journal.NAMES) if name not in ("hello-world", "qemu-startup")]
    for count, words in ((1, "step 1 of 4 from the cache"), (2, "steps 1-2 of 4 from the cache")):
        tasks = [number % 3 for number in baked].count(count)
        for where in ('title="%s"', "%s</td>"):
            check(text.count(where % words) == tasks, "%s: %d, not %d" % (where % words, text.count(where % words), tasks))
    check(text.count('class="kept"') == 1 + sum(number % 3 > 0 for number in baked), "marks")
    check(text.count('title="steps: 11 s"') == 3, re.findall('title="steps: [^"]*"', text))


def page_needs_nothing(text):
    """No script, no address that a browser would follow by itself, both colour schemes."""
    style = text[text.index("<style>"):text.index("</style>")]
    check("url(" not in style and "@import" not in style, "the style sheet asks for something")
    check("prefers-color-scheme:dark" in style and "default-src 'none'" in text, "dark, and a policy")


def junit_is_xml(path):
    suite = xml.etree.ElementTree.parse(path).getroot()[0]
    cases = suite.findall("testcase")
    check((suite.get("tests"), suite.get("failures"), suite.get("errors"), len(cases)) == ("13", "3", "0", 13), suite.attrib)
    failed = {case.get("name"): case.find("failure") for case in cases if case.find("failure") is not None}
    check(set(failed) == set(map(shown, make_journal.FAILURES)), failed)
    check("404" in failed["fix-git"].text and failed["fix-git"].get("type") == "step", failed["fix-git"].text)


def markdown_is_harmless(text):
    check("3 of 13 tasks failed" in text.splitlines()[0], text[:100])
    table = [line for line in text.splitlines() if line.startswith("| ")]
    check(len(table) == 4 and all(len(line.split("|")) == 6 for line in table), table)
    check("<script" not in text and "@all" not in "\n".join(table) and "](" not in "\n".join(table), "markup")


def metrics_are_metrics(text):
    label = r'[a-z_]+="(?:[^"\\\n]|\\[\\n"])*"'
    line = re.compile(r"(# (HELP|TYPE) tb2_bake_[a-z_]+ .*|tb2_bake_[a-z_]+(\{%s(,%s)*\})? -?[0-9.e+]+)" % (label, label))
    for each in text.splitlines():
        check(line.fullmatch(each), each)
    for wanted in ('tb2_bake_tasks{outcome="failed"} 3', 'tb2_bake_tasks{outcome="ready"} 9', "tb2_bake_pulled_bytes 702000000",
                   'tb2_bake_task_failed{task="fix-git",stage="steps",class="step"} 1'):
        check(wanted in text.splitlines(), wanted)


def cut_journals(journal, home):
    """Cut anywhere, and with lines that make no sense, there is a report that says so."""
    text = read(journal)
    cut = os.path.join(home, "cut.jsonl")
    for part in ("", "\n\n{}\n[1]\nnull\n", text[:len(text) // 2], text[:400] + "\xff\0{\n" + text[400:2000]):
        with open(cut, "w", encoding="latin-1", errors="replace") as out:
            out.write(part)
        report(cut, "--html", home + "/cut.html", "--junit", home + "/cut.xml", "--metrics", home + "/cut.prom")
        Page(read(home + "/cut.html"))
        xml.etree.ElementTree.parse(home + "/cut.xml")
    check("did not come to its end" in read(home + "/cut.html"), "that it was cut is told")


def files_are_there_at_once(journal, home):
    os.mkdir(home + "/out")
    report(journal, "--html", home + "/out/r.html")
    check(os.listdir(home + "/out") == ["r.html"], os.listdir(home + "/out"))
    done = report(journal, "--html", home + "/none/r.html", status=3)
    check("none/r.html" in done.stderr, done.stderr)


# Runs of three nights: {task: (outcome, manifest, disk)}.
NIGHTS = {
    "2026-01-01T03:00:00Z-11": {"stays": ("ready", 1, 1), "breaks": ("ready", 1, 1), "heals": ("failed", None, None),
                                "moves": ("ready", 1, 1), "stuck": ("failed", 1, None), "left": ("ready", 1, 1)},
    "2026-01-02T03:00:00Z-12": {"stays": ("unchanged", 1, 1), "breaks": ("ready", 1, 1), "heals": ("failed", None, None),
                                "moves": ("failed", None, None), "stuck": ("failed", None, None)},
    "2026-01-03T03:00:00Z-13": {"stays": ("unchanged", 1, 1), "breaks": ("failed", 1, None), "heals": ("ready", 1, 1),
                                "moves": ("ready", 2, 2), "stuck": ("failed", 1, None), "comes": ("ready", 1, 1),
                                make_journal.HOSTILE: ("failed", None, None), "given-up": ("cancelled", None, None)},
}


def write_nights(runs):
    for run, tasks in NIGHTS.items():
        with open(os.path.join(runs, run + ".jsonl"), "w", encoding="utf-8") as out:
            for task, (outcome, manifest, disk) in tasks.items():
                event = {"event": "task_finished", "time": run.partition("Z-")[0] + ".000Z", "task": task, "outcome": outcome,
                         "stage": "boot" if outcome == "failed" else "register", "stage_ms": {}, "pulled_size": 0}
                event.update({} if manifest is None else {"manifest": "sha256:%064x" % manifest, "image": "x/%s:1" % task})
                event.update({} if disk is None else {"disk": "sha256:%064x" % (disk + 100)})
                event.update({"why": "image"} if outcome == "ready" else {"error": "task %s: boot: no\nmore" % task,
                                                                          "error_class": "step", "retryable": False}
                             if outcome != "unchanged" else {})
                print(json.dumps(event, sort_keys=True), file=out)


def what_moved(home):
    store = os.path.join(home, "nights")
    os.makedirs(os.path.join(store, "runs"))
    write_nights(os.path.join(store, "runs"))

    def since(when, *options, status=0):
        return report("--since", when, "--store", store, *options, status=status)

    def changes(when):
        return {task["task"]: task["changes"] for task in json.loads(since(when, "--json").stdout)["moved"]}

    last = {"breaks": ["failing"], "heals": ["mended"], "moves": ["mended", "image", "template"],
            "stuck": ["still failing"], "comes": ["new"], shown(make_journal.HOSTILE): ["new", "failing"]}
    got = changes("2026-01-02T03:00:00Z-12")
    check({shown(task): what for task, what in got.items()} == last, got)
    check(changes("2026-01-02T03:00:00Z-12.jsonl") == got and changes("2026-01-03") == got, "dates and runs")
    check(changes("2026-01-01T03:00:00Z-11")["moves"] == ["image", "template"], "what was before it failed")
    check(changes("2026-01-03T03:00:00Z-13") == {} and changes("1h") == {}, "nothing since")
    check(set(changes("30000d")) == set(NIGHTS["2026-01-03T03:00:00Z-13"]) - {"given-up"} | {"left"}, "all is new")
    text = since("2026-01-02T03:00:00Z-12").stdout
    check("1 run since 2026-01-02T03:00:00Z-12\n" in text and "2 fail, and did not then:\n" in text, text)
    check("  breaks: task breaks: boot: no\n" in text and "    is  sha256:%064x\n" % 2 in text, text)
    check("  moves: image\n" in text, text)
    check("nothing moved" in since("1h").stdout, "nothing")
    check("is a time ago" in since("lately", status=2).stderr, "what it can be")
    check("stands alone" in since("1h", "--html", home + "/x.html", status=2).stderr, "not with files")


def schema_fits(journal):
    try:
        import jsonschema
    except ImportError:
        print("no python3-jsonschema here: the schema is not looked at")
        return
    with open(os.path.join(HERE, "../../docs/formats/events.schema.json"), encoding="utf-8") as file:
        validator = jsonschema.Draft202012Validator(json.load(file))
    lines = [json.loads(line) for line in read(journal).splitlines()]
    for line in lines:
        validator.validate(line)
    for wrong in (dict(lines[0], extra=1), dict(lines[1], stage="lunch"), dict(lines[-1], time="today"), {"event": "dropped"}):
        check(not validator.is_valid(wrong), wrong)


def main():
    with tempfile.TemporaryDirectory(prefix="tb2-") as home:
        journal = os.path.join(home, "run.jsonl")
        with open(journal, "w", encoding="utf-8") as out:
            out.write(make_journal.make())
        report(journal, "--html", home + "/r.html", "--junit", home + "/r.xml", "--markdown", home + "/r.md",
               "--metrics", home + "/r.prom")
        page_tells_what_failed(read(home + "/r.html"))
        steps_do_not_end_a_stage(read(home + "/r.html"))
        page_needs_nothing(read(home + "/r.html"))
        junit_is_xml(home + "/r.xml")
        markdown_is_harmless(read(home + "/r.md"))
        metrics_are_metrics(read(home + "/r.prom"))
        check(report(journal).stdout == read(home + "/r.md"), "without a file, Markdown on stdout")
        check(len(json.loads(report(journal, "--json").stdout)["failed"]) == 3, "--json")
        cut_journals(journal, home)
        files_are_there_at_once(journal, home)
        schema_fits(journal)
        what_moved(home)


if __name__ == "__main__":
    sys.exit(main())
