# SPDX-License-Identifier: MIT
"""A template server for tests: as strict as AgentENV at the points a client can get wrong, or, with
mode "cloud", as different as E2B Cloud is. Prints its port, serves until stdin is closed.

POST /_setup {"mode", "key", "polls", "fail", "taken", "templates", "answers", "race", "hang"} starts over:
  polls      status calls that answer "building" before the build ends
  fail       {"step", "message"}: builds end in error
  taken      alias owned by someone else (cloud: 403 and 409)
  templates  records that exist: {"alias", "status", "age_s", "polls"}
  answers    [{"on": "METHOD /prefix", "status", "type", "body", "headers"}], each used once, in order
  race       alias that another client makes, ready, just before our POST /v3/templates
  hang       true: builds never end
GET /_report -> {"calls": ["METHOD path"], "bodies": [...], "problems": [...], "aliases": [...]}
"""
import datetime
import http.server
import json
import re
import sys
import threading
import uuid

LOCK = threading.Lock()
STEP_TYPES = ("RUN", "ENV", "ARG", "WORKDIR", "USER", "EXPOSE", "VOLUME", "LABEL")


class State:
    def __init__(self, setup):
        self.mode = setup.get("mode", "agentenv")
        self.key = setup.get("key", "e2b_0123456789abcdef")
        self.polls = setup.get("polls", 0)
        self.fail = setup.get("fail")
        self.taken = setup.get("taken")
        self.race = setup.get("race")
        self.hang = setup.get("hang", False)
        self.answers = list(setup.get("answers", []))
        self.calls, self.bodies, self.problems = [], [], []
        self.templates = {}  # id -> {"alias", "builds": [build]}
        self.counter = 0
        for t in setup.get("templates", []):
            self.add(t["alias"], t["status"], t.get("age_s", 0), t.get("polls", self.polls))

    def new_id(self):
        self.counter += 1
        return str(uuid.UUID(int=(0x01890000_0000_7000_8000 << 48) + self.counter))

    def add(self, alias, status, age_s=0, polls=0):
        found = self.by_alias(alias)
        if self.mode == "cloud":
            template_id = found or "tpl%09dabc" % self.counter
            build_id = self.new_id()
        else:
            template_id = build_id = self.new_id()
        created = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age_s)
        build = {"id": build_id, "status": status, "polls": polls, "log": 0,
                 "created": created.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        self.templates.setdefault(template_id, {"alias": alias, "builds": []})["builds"].append(build)
        return template_id, build

    def by_alias(self, alias):
        for template_id, t in self.templates.items():
            if t["alias"] == alias:
                return template_id
        return None


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from strings(v)
    elif isinstance(value, list):
        for v in value:
            yield from strings(v)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state = State({})

    def log_message(self, *args):
        pass

    # ---- answers

    def answer(self, status, body=None, kind="application/json", headers=None):
        data = b"" if body is None else body.encode() if isinstance(body, str) else (
            json.dumps(body).encode())
        self.send_response(status)
        if data:
            self.send_header("Content-Type", kind)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, code, message, status=None):
        self.answer(status or code, {"code": code, "message": message})

    def problem(self, text):
        self.state.problems.append(f"{self.command} {self.path}: {text}")

    # ---- dispatch

    def handle_any(self):
        with LOCK:
            length = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(length)
            if self.path == "/_setup":
                Handler.state = State(json.loads(data))
                return self.answer(200, {})
            s = self.state
            if self.path == "/_report":
                return self.answer(200, {
                    "calls": s.calls, "bodies": s.bodies, "problems": s.problems,
                    "aliases": sorted(t["alias"] for t in s.templates.values())})
            path = self.path.split("?")[0]
            call = f"{self.command} {path}"
            s.calls.append(call)
            if s.answers and call.startswith(s.answers[0]["on"]):
                a = s.answers.pop(0)
                return self.answer(a["status"], a.get("body"), a.get("type", "application/json"),
                                   a.get("headers"))
            keys = self.headers.get_all("X-API-Key") or []
            if keys != [s.key]:
                return self.answer(401)
            if not self.headers.get("Host"):
                self.problem("no Host")
            return self.route(path, data)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_HEAD = handle_any

    def route(self, path, data):
        parts = path.strip("/").split("/")
        if self.command == "POST":
            body = self.read_body(data)
            if body is None:
                return None
            if path == "/v3/templates":
                return self.create(body)
            if len(parts) == 5 and parts[:2] == ["v2", "templates"] and parts[3] == "builds":
                return self.start(parts[2], parts[4], body)
        elif data:
            self.problem("a body where none belongs")
        if self.command == "GET" and parts[:2] == ["templates", "aliases"] and len(parts) == 3:
            return self.alias(parts[2])
        if parts[0] == "templates" and len(parts) == 2:
            return self.show(parts[1]) if self.command == "GET" else self.delete(parts[1])
        if self.command == "GET" and parts[0] == "templates" and parts[2::2] == ["builds", "status"]:
            return self.status(parts[1], parts[3])
        self.problem("no such call")
        return self.answer(404, "404", "text/plain")

    def read_body(self, data):
        if (self.headers.get("Content-Type") or "").split(";")[0] != "application/json":
            self.answer(415, "Expected request with `Content-Type: application/json`", "text/plain")
            return None
        try:
            body = json.loads(data)
        except ValueError:
            self.answer(400, "Failed to parse the request body as JSON", "text/plain")
            return None
        if not isinstance(body, dict):
            self.answer(422, "Failed to deserialize", "text/plain")
            return None
        if len(data) > 2 << 20:
            self.answer(413, "length limit exceeded", "text/plain")
            return None
        if self.state.mode == "agentenv" and any(
                re.search(r"<[A-Za-z/!?]|\0", text) for text in strings(body)):
            self.answer(400, "request contains xss", "text/plain")
            return None
        self.state.bodies.append(body)
        return body

    # ---- calls

    def create(self, body):
        s = self.state
        extra = set(body) - {"name", "cpuCount", "memoryMB"}
        if extra:
            self.problem(f"unknown members {sorted(extra)}")
        name = body.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name):
            return self.refuse(400, "invalid template name")
        if type(body.get("cpuCount")) is not int or body["cpuCount"] < 1:
            return self.refuse(400, "cpuCount must be at least 1")
        if type(body.get("memoryMB")) is not int or body["memoryMB"] < 128:
            return self.refuse(400, "memoryMB must be at least 128")
        if s.race == name:
            s.race = None
            s.add(name, "ready")
        if s.taken == name:
            return self.refuse(409, "alias is used by another team")
        if s.mode == "agentenv" and s.by_alias(name):
            return self.refuse(400, f"name '{name}' is bound to a snapshot")
        template_id, build = s.add(name, "waiting", polls=s.polls)
        return self.answer(202, {"templateID": template_id, "buildID": build["id"],
                                 "public": s.mode == "agentenv", "names": [name],
                                 "aliases": [name], "tags": []})

    def find_build(self, template_id, build_id):
        template = self.state.templates.get(template_id, {"builds": []})
        return next((b for b in template["builds"] if b["id"] == build_id), None)

    def start(self, template_id, build_id, body):
        s = self.state
        if s.mode == "agentenv" and template_id != build_id:
            return self.refuse(400, "template and build differ")
        build = self.find_build(template_id, build_id)
        if not build:
            return self.refuse(404, "no such build")
        if build["status"] != "waiting":
            return self.refuse(400, "the build was started already")
        extra = set(body) - {"fromImage", "steps", "force", "startCmd", "readyCmd"}
        if extra:
            self.problem(f"unknown members {sorted(extra)}")
        for step in body.get("steps", []):
            wrong = self.check_step(step)
            if wrong:
                return self.refuse(400, wrong)
        if not isinstance(body.get("fromImage"), str) or type(body.get("force")) is not bool:
            return self.answer(422, "Failed to deserialize", "text/plain")
        build["status"] = "building"
        return self.answer(202)

    def check_step(self, step):
        if set(step) - {"type", "args", "force", "filesHash"}:
            self.problem(f"unknown members in step {step}")
        kind, args = step.get("type"), step.get("args", [])
        if kind not in STEP_TYPES:
            return f"step type {kind} is not supported"
        if not all(isinstance(a, str) for a in args):
            return "arguments must be strings"
        if kind == "RUN" and (not args or not args[0].strip() or len(args) > 2):
            return "RUN needs a command"
        if kind == "ENV" and (not args or len(args) % 2 or not all(a.strip() for a in args[::2])):
            return "ENV needs pairs"
        if kind in ("WORKDIR", "USER") and len(args) != 1:
            return f"{kind} needs one argument"
        return None

    def advance(self, build):
        s = self.state
        if build["status"] != "building" or s.hang:
            return
        build["log"] += 1
        if build["polls"] > 0:
            build["polls"] -= 1
        else:
            build["status"] = "error" if s.fail else "ready"

    def status(self, template_id, build_id):
        s = self.state
        build = self.find_build(template_id, build_id)
        if not build or (s.mode == "agentenv" and template_id != build_id):
            return self.refuse(404 if s.mode == "agentenv" else 400, "no such build")
        offset = int((re.search(r"logsOffset=(\d+)", self.path) or [0, "0"])[1])
        answer = {"templateID": template_id, "buildID": build_id, "status": build["status"],
                  "logs": [], "logEntries": []}
        self.advance(build)
        answer["status"] = build["status"]
        if s.mode == "cloud":
            answer["logEntries"] = [
                {"timestamp": build["created"], "message": f"line {n}\x1b[0m", "level": "info"}
                for n in range(build["log"])][offset:]
        if build["status"] == "error":
            answer["reason"] = s.fail or {"message": "gone wrong before"}
        return self.answer(200, answer)

    def alias(self, alias):
        s = self.state
        if s.taken == alias and s.mode == "cloud":
            return self.refuse(403, "no access")
        template_id = s.by_alias(alias)
        if not template_id:
            return self.refuse(404, "template alias not found")
        return self.answer(200, {"templateID": template_id, "public": False})

    def show(self, template_id):
        s = self.state
        if template_id not in s.templates:
            if s.mode == "agentenv" and not re.fullmatch(r"[0-9a-f-]{36}", template_id):
                return self.refuse(400, "malformed id", status=500)
            return self.refuse(404, "template not found")
        t = s.templates[template_id]
        return self.answer(200, {
            "templateID": template_id, "public": True, "names": [t["alias"]],
            "builds": [{"buildID": b["id"], "status": b["status"], "createdAt": b["created"],
                        "updatedAt": b["created"], "cpuCount": 1, "memoryMB": 1024}
                       for b in t["builds"]]})

    def delete(self, template_id):
        self.state.templates.pop(template_id, None)
        return self.answer(204)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


def main():
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


main()
