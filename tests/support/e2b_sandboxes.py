# SPDX-License-Identifier: MIT
"""Sandboxes of the contract server (e2b_server.py): their life, and as much of envd behind them (HTTP and the Connect
protocol, port 49983) as the SDKs need to run a command. Commands run on this machine, in a scratch directory."""
import base64
import json
import shutil
import struct
import subprocess
import tempfile
import threading
import uuid

from e2b_templates import NAME, Refusal, Template, type_check

ENVD_PORT = "49983"
ENVD_VERSION = "0.2.4"
END_STREAM = 2
TIMEOUT_DEFAULT_S = 15


class Sandbox:
    def __init__(self, template, body, cloud, now_ms):
        self.id = "i" + uuid.uuid4().hex[:20]
        self.template = template
        self.envs = dict(body.get("envVars") or {})
        self.metadata = dict(body.get("metadata") or {})
        self.token = "ea_" + uuid.uuid4().hex if body.get("secure") else None
        # What ends it: AgentENV pauses unless it is told not to.
        self.pauses = body.get("autoPause", not cloud)
        self.state = "running"
        self.started_ms = now_ms
        self.ends_ms = now_ms + 1000 * body.get("timeout", TIMEOUT_DEFAULT_S)
        self.dir = tempfile.mkdtemp(prefix="e2b-sandbox-")


def envelope(flags, message):
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


class Sandboxes:
    def __init__(self, state):
        self.state, self.cloud = state, state.cloud
        self.all = {}
        self.next_pid = 100
        self.lock = threading.Lock()

    def close(self):
        for sandbox in self.all.values():
            shutil.rmtree(sandbox.dir, ignore_errors=True)

    def alive(self):
        return sorted(s.id for s in self.all.values())

    def of_template(self, template_id):
        return [s for s in self.all.values() if s.template.id == template_id]

    # ---- life

    def create(self, body):
        known = {"templateID", "timeout", "autoPause", "autoResume", "secure", "allow_internet_access", "network",
                 "metadata", "envVars", "customExtensionParams", "mcp"}
        known |= {"autoPauseMemory", "iam", "volumeMounts"} if self.cloud else set()
        if set(body) - known:
            self.state.problems.append(f"unknown members {sorted(set(body) - known)}")
        for name, kind in (("templateID", str), ("timeout", int), ("autoPause", bool), ("secure", bool),
                           ("allow_internet_access", bool), ("metadata", dict), ("envVars", dict)):
            type_check(body, name, kind)
        if "templateID" not in body:
            raise Refusal.text(422, "Failed to deserialize the JSON body into the target type: missing templateID")
        if body.get("timeout", 0) < 0:
            raise Refusal.text(400, "timeout: less than the minimum")
        template = self.state.templates.find(body["templateID"])
        if not template:
            raise Refusal(404 if self.cloud else 400, f"template '{body['templateID']}' not found")
        if not template.ready():  # a 500 around what it means
            raise Refusal(400, "template is not ready", status=400 if self.cloud else 500)
        if template.alias in self.state.setup.get("unready", []):
            raise Refusal(404 if not self.cloud else 503, "snapshot artifact is missing",
                          status=500 if not self.cloud else 503)
        return self.answer_created(Sandbox(template, body, self.cloud, self.state.now_ms()))

    def answer_created(self, sandbox):
        self.all[sandbox.id] = sandbox
        answer = {"templateID": sandbox.template.id, "sandboxID": sandbox.id, "alias": sandbox.template.alias,
                  "clientID": "", "envdVersion": ENVD_VERSION}
        if sandbox.token:
            answer["envdAccessToken"] = sandbox.token
        return 201, answer, {} if self.cloud else {"x-agentenv-sandbox-id": sandbox.id}

    def create_cold(self, body):
        if not isinstance(body.get("image"), str):
            raise Refusal.text(422, "Failed to deserialize the JSON body into the target type: missing image")
        if body.get("memoryMB", 128) < 128 or body.get("diskSizeMB", 1024) < 1024 or body.get("diskSizeMB", 0) % 1024:
            raise Refusal.text(400, "memoryMB or diskSizeMB is out of range")
        template = Template(self.state.new_uuid(), None, body, "Sandbox")
        return self.answer_created(Sandbox(template, body, False, self.state.now_ms()))

    def get(self, sandbox_id):
        """The sandbox, if it still lives: time ends it."""
        sandbox = self.all.get(sandbox_id)
        if sandbox and sandbox.state == "running" and self.state.now_ms() >= sandbox.ends_ms:
            if sandbox.pauses:
                sandbox.state = "paused"
            else:
                shutil.rmtree(self.all.pop(sandbox_id).dir, ignore_errors=True)
                sandbox = None
        return sandbox

    def show(self, sandbox_id):
        s = self.get(sandbox_id)
        if not s:
            raise Refusal(404, "sandbox not found")
        return {"templateID": s.template.id, "alias": s.template.alias, "sandboxID": s.id, "clientID": "",
                "startedAt": self.state.stamp(s.started_ms), "endAt": self.state.stamp(s.ends_ms), "cpuCount": s.template.cpus,
                "memoryMB": s.template.memory, "diskSizeMB": 10240, "metadata": s.metadata, "state": s.state,
                "envdVersion": ENVD_VERSION}

    def list(self):
        return [self.show(i) for i in list(self.all) if self.get(i)]

    def kill(self, sandbox_id):
        sandbox = self.get(sandbox_id)
        if not sandbox:
            raise Refusal(404, "sandbox not found")
        shutil.rmtree(self.all.pop(sandbox_id).dir, ignore_errors=True)
        return (204,)

    def snapshot(self, sandbox_id, body):
        sandbox = self.get(sandbox_id)
        if not sandbox:
            raise Refusal(404, "sandbox not found")
        name = body.get("name")
        if sandbox.state != "running":
            raise Refusal(400, "sandbox is not running")
        if name is not None and (not NAME.fullmatch(name) or self.state.templates.by_alias(name)):
            raise Refusal(400, "bad name, or the name is bound")
        template = self.state.templates.new(name, {})
        template.source = "Sandbox"
        build = self.state.templates.new_build(template, 0)
        build.status = "ready"
        return 201, {"snapshotID": template.id, "names": [name or template.id], "cpuCount": template.cpus,
                     "memoryMB": template.memory, "diskSizeMB": 10240, "createdAt": self.state.stamp(build.created_ms),
                     "updatedAt": self.state.stamp(build.created_ms)}

    # ---- envd

    def proxy(self, handler, path, data, port):
        headers = handler.headers
        name = headers.get("e2b-sandbox-id") or headers.get("x-agentenv-sandbox-id") or ""
        with self.lock:
            sandbox = self.get(name)
        if not sandbox or sandbox.state != "running" or port != ENVD_PORT:
            return handler.answer(502, {"code": 502, "message": "the sandbox was not found", "sandboxId": name})
        if path == "/health":
            return handler.answer(204)
        if sandbox.token and headers.get("X-Access-Token") != sandbox.token:
            return handler.answer(401, {"code": "unauthenticated", "message": "wrong or missing access token"})
        if path == "/process.Process/Start":
            return self.run(handler, sandbox, data)
        return handler.answer(404, {"code": "unimplemented", "message": path})

    def run(self, handler, sandbox, data):
        if handler.headers.get("Content-Type") != "application/connect+json" or len(data) < 5:
            return handler.answer(415)
        flags, size = struct.unpack(">BI", data[:5])
        if flags != 0 or len(data) != 5 + size:
            return handler.answer(400, {"code": "invalid_argument", "message": "not one whole message"})
        process = json.loads(data[5:]).get("process", {})
        argv = [process.get("cmd", "")] + process.get("args", [])
        status, out, err = self.execute(sandbox, argv, process)
        with self.lock:
            self.next_pid += 1
        messages = [{"event": {"start": {"pid": self.next_pid}}}, {"event": {"keepalive": {}}}]
        for kind, text in (("stdout", out), ("stderr", err)):
            if text:
                messages.append({"event": {"data": {kind: base64.b64encode(text).decode()}}})
        end = {"exited": True, "status": "exit status %d" % status}
        if status:  # proto3's JSON leaves a zero out
            end["exitCode"] = status
        messages.append({"event": {"end": end}})
        body = b"".join(envelope(0, m) for m in messages) + envelope(END_STREAM, {})
        return handler.answer(200, body, "application/connect+json")

    def execute(self, sandbox, argv, process):
        scripted = self.state.setup.get("exits", {})
        if argv[-1] in scripted:
            return scripted[argv[-1]], b"scripted\n", b""
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": sandbox.dir, **sandbox.envs, **process.get("envs", {})}
        try:
            done = subprocess.run(argv, cwd=sandbox.dir, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=60, check=False)
        except OSError as error:
            return 127, b"", str(error).encode()
        return done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr
