#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Registries that fail, mirrors, TLS and proxies, as tb2-bake disk export meets them.

A scripted registry serves one small image and has one fault at a time. Whatever the fault, the export
ends well or says what is wrong, the store holds no blob that is not what its name says, and without
the fault the same store gives the same disk as a fresh one.
"""

import contextlib
import hashlib
import http.server
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
import oci_image  # noqa: E402

PROGRAM = os.environ["TB2_BAKE"]
# No resolver takes a label of 64 letters: only a proxy can know this host.
FAR = "r" * 64 + ".test"


def check(good, what):
    if not good:
        raise AssertionError(what)


# ---- Images ----------------------------------------------------------------------------------


def small_image():
    store, layer = oci_image.Store(), oci_image.Layer()
    layer.directory("etc")
    layer.file("etc/name", "of the image\n")
    layer.file("data", random.Random(1).randbytes(300000))
    return store, store.manifest(oci_image.OCI, [layer.finish()], "gzip", {})


def big_image():
    store, layer = oci_image.Store(), oci_image.Layer()
    layer.file("data", random.Random(2).randbytes(1 << 20) * 68)
    return store, store.manifest(oci_image.OCI, [layer.finish()], "plain", {})


# ---- The scripted registry -------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def version_string(self):
        return "scripted"

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name in ("Content-Length", "Transfer-Encoding") for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())  # at once, and without a FIN before
        self.hang_up()

    def hang_up(self):
        self.close_connection = True

    def until_gone(self, piece, pause=0.0):
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(piece)
                if pause:
                    time.sleep(pause)
        self.hang_up()

    def do_GET(self):
        with contextlib.suppress(OSError):
            self.server.registry.serve(self)

    do_HEAD = do_GET


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


class Registry:
    def __init__(self, image, context=None):
        self.store, self.root = image
        self.fault = None
        self.log = []
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.registry = self
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def host(self):
        return "127.0.0.1:%d" % self.port

    def image(self):
        return self.host() + "/team/app:v1"

    def set(self, fault):
        self.fault, self.log = fault, []

    def content(self, request):
        """Body of what is asked for, and headers; None when there is no such thing."""
        name = request.path.rsplit("/", 1)[1]
        if "/manifests/" in request.path:
            name = self.root["digest"] if name == "v1" else name
            if name not in self.store.media:
                return None, []
            return self.store.blobs[name], [("Content-Type", self.store.media[name]),
                                            ("Docker-Content-Digest", name)]
        return self.store.blobs.get(name), [("Content-Type", "application/octet-stream")]

    def well(self, request, change=None):
        body, headers = self.content(request)
        if body is None:
            return request.answer(404, [], b"{}")
        asked = request.headers.get("Range")
        if change:
            body = change(body)
        if not asked:
            return request.answer(200, headers, body)
        first, _, last = asked[len("bytes="):].partition("-")
        first, last = int(first), int(last or len(body) - 1)
        headers.append(("Content-Range", "bytes %d-%d/%d" % (first, last, len(body))))
        return request.answer(206, headers, body[first:last + 1])

    def serve(self, request):
        with self.lock:
            self.log.append((request.command, request.path, request.headers.get("Range")))
            count = len(self.log)
        (self.fault or (lambda registry, request, count: registry.well(request)))(self, request, count)

    def is_layer(self, request):
        body, _ = self.content(request)
        return "/blobs/" in request.path and body is not None and len(body) > 10000


# ---- Faults ----------------------------------------------------------------------------------
# Each is (registry, request, number of the request).


def layers_alone(fault):
    """A fault of layers; the rest is served well."""
    def chosen(registry, request, count):
        (fault if registry.is_layer(request) else lambda r, q, _: r.well(q))(registry, request, count)
    return chosen


def reset_at_once(_registry, request, _count):
    request.reset()


def reset_midway(registry, request, _count):
    body, headers = registry.content(request)
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[:1000])
    request.reset()


def truncated(registry, request, _count):
    body, _ = registry.content(request)
    request.answer(200, [("Content-Length", str(len(body)))], body[:1000])
    request.hang_up()


def wrong_bytes(registry, request, _count):
    registry.well(request, lambda body: bytes([body[0] ^ 1]) + body[1:])


def slow(_registry, request, _count):
    request.answer(200, [("Content-Length", "300000")])
    request.until_gone(b"x", 0.02)


def silent(_registry, request, _count):
    time.sleep(1.5)
    request.hang_up()


def denied_midway(registry, request, count):
    if count > 2:
        return request.answer(401, [("WWW-Authenticate", 'Basic realm="r"')], b"{}")
    return registry.well(request)


def limited(**headers):
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return lambda registry, request, count: request.answer(429, pairs, b"{}")


def storm(_registry, request, _count):
    request.answer(500, [], b"<html>")


def redirect_loop(_registry, request, _count):
    request.answer(307, [("Location", request.path)])


def ignores_ranges(registry, request, count):
    """The first answer is cut, so that a range is asked for; it is not given."""
    if count % 2:
        return truncated(registry, request, count)
    body, headers = registry.content(request)
    return request.answer(200, headers, body)


def wrong_range(registry, request, count):
    body, headers = registry.content(request)
    if not request.headers.get("Range"):
        return truncated(registry, request, count)
    return request.answer(206, [("Content-Range", "bytes 5-%d/%d" % (len(body) + 4, len(body) + 5))], body)


def head_lies(registry, request, _count):
    if request.command == "HEAD":
        return request.answer(200, [("Docker-Content-Digest", "sha256:" + "5" * 64)])
    return registry.well(request)


def head_refused(registry, request, _count):
    """As gateways that know GET alone."""
    return request.answer(403, []) if request.command == "HEAD" else registry.well(request)


def no_digest(registry, request, _count):
    body, _ = registry.content(request)
    return request.answer(200 if body else 404, [], body or b"{}")


def huge_header(_registry, request, _count):
    request.send_response(200)
    request.flush_headers()
    request.until_gone(b"X-Filler: " + b"a" * 4000 + b"\r\n")


def gzip_encoding(registry, request, _count):
    import gzip
    body, headers = registry.content(request)
    return request.answer(200, headers + [("Content-Encoding", "gzip")], gzip.compress(body))


def endless(_registry, request, _count):
    request.answer(200, [("Transfer-Encoding", "chunked")])
    request.until_gone(b"10000\r\n" + b"z" * 65536 + b"\r\n")


# name, fault, words of the message (None: the export succeeds), exit status
FAULTS = [
    ("connect refused", "closed", "connection refused", 3),
    ("reset at once", reset_at_once, "connection", 3),
    ("reset midway", layers_alone(reset_midway), "connection was lost", 3),
    ("truncated", layers_alone(truncated), "cut off", 3),
    ("wrong bytes", layers_alone(wrong_bytes), "the bytes received have the digest", 3),
    ("wrong manifest", wrong_bytes, "manifest: expected", 3),
    ("slow body", layers_alone(slow), "have arrived in", 3),
    ("silence", silent, "nothing has arrived", 3),
    ("401 midway", denied_midway, "denied", 3),
    ("429", limited(), "rate limit", 6),
    ("429 with seconds", limited(Retry_After="4000"), "run again in", 6),
    ("429 with a date", limited(Retry_After="Fri, 31 Dec 2199 23:59:59 GMT"), "run again in", 6),
    ("500 storm", storm, "status 500", 3),
    ("redirect loop", redirect_loop, "redirects", 3),
    ("ranges ignored", layers_alone(ignores_ranges), None, 0),
    ("wrong Content-Range", layers_alone(wrong_range), "cut off", 3),
    ("HEAD lies", head_lies, None, 0),
    ("HEAD refused", head_refused, None, 0),
    ("no Docker-Content-Digest", no_digest, None, 0),
    ("huge header", huge_header, "header", 3),
    ("gzip encoding", layers_alone(gzip_encoding), "sends more", 3),
    ("endless body", layers_alone(endless), "sends more", 3),
]


# ---- Running ---------------------------------------------------------------------------------


class Place:
    """A directory with a store, a registries.yaml, and no settings of whoever runs this."""

    def __init__(self):
        # In memory where that is: this is about networks, and fsync would be most of the time.
        shm = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 2 << 30
        top = os.environ.get("TB2_TEST_TMP", "/dev/shm" if shm else "/var/tmp")
        self.home = tempfile.mkdtemp(prefix="tb2-reg-", dir=top)
        self.count = 0

    def path(self, name):
        return os.path.join(self.home, name)

    def settings(self, text=""):
        with open(self.path("registries.yaml"), "w", encoding="utf-8") as out:
            out.write("tries: 3\nretry_wait: 10ms\nrate_wait: 10ms\n" + text)

    def environment(self, **more):
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return dict(keep, HOME=self.home, TB2_BAKE_REGISTRIES=self.path("registries.yaml"), **more)

    def command(self, image, store, *options):
        self.count += 1
        return [PROGRAM, "disk", "export", image, "--raw", self.path("raw-%d" % self.count),
                "--store", self.path(store), *options]

    def export(self, image, store, *options, **environment):
        command = self.command(image, store, *options)
        done = subprocess.run(command, env=self.environment(**environment), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=50)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(command[5])
        return done

    def export_well(self, image, store, *options, **environment):
        done = self.export(image, store, *options, **environment)
        check(done.returncode == 0, done)
        return done.stdout.strip()

    def check_store(self, store):
        top = self.path(os.path.join(store, "blobs"))
        for name in os.listdir(top) if os.path.isdir(top) else []:
            if not name.startswith("sha256-"):
                continue
            with open(os.path.join(top, name), "rb") as file:
                check("sha256-" + hashlib.sha256(file.read()).hexdigest() == name, "wrong bytes in " + name)


def faults(place, image):
    registry = Registry(image)
    place.settings()
    disk = place.export_well(registry.image(), "good")
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))  # and not listening
    for number, (name, fault, words, status) in enumerate(FAULTS):
        place.settings("stall_timeout: 300ms\n" if fault is silent or name == "slow body" else "")
        store = "store-%d" % number
        registry.set(fault)
        where = registry.image()
        if fault == "closed":
            where = "127.0.0.1:%d/team/app:v1" % closed.getsockname()[1]
        done = place.export(where, store)
        check(done.returncode == status, "%s: %s" % (name, done))
        check(words is None or words in done.stderr, "%s: no '%s' in: %s" % (name, words, done.stderr))
        check(words is not None or done.stdout.strip() == disk, "%s: another disk" % name)
        place.check_store(store)
        registry.set(None)
        place.settings()
        check(place.export_well(registry.image(), store) == disk, "%s: another disk afterwards" % name)
        if name.startswith("HEAD"):  # only tags that were seen before are asked for so
            registry.set(fault)
            check(place.export_well(registry.image(), store) == disk, "%s: another disk of a known tag" % name)
            check("HEAD" in [entry[0] for entry in registry.log], registry.log)
        shutil.rmtree(place.path(store))


def mirrors(place, image):
    """Mirrors in order, with the registry last or not at all."""
    origin, first, second = Registry(image), Registry(image), Registry(image)
    text = """\
registries:
  "%s":
    origin: %s
    mirrors:
      - http://%s
      - url: http://%s
        timeout: 10s
"""
    place.settings(text % (origin.host(), "true", first.host(), second.host()))
    disk = place.export_well(origin.image(), "mirror-1")
    check(first.log and not second.log and not origin.log, "the first mirror has all")

    first.set(storm)
    check(place.export_well(origin.image(), "mirror-2") == disk, "another disk")
    check(second.log and not origin.log, "the second mirror has all")

    second.set(wrong_bytes)
    check(place.export_well(origin.image(), "mirror-3") == disk, "another disk")
    check(origin.log, "the registry has it")

    origin.set(None)
    place.settings(text % (origin.host(), "false", first.host(), second.host()))
    done = place.export(origin.image(), "mirror-4")
    check(done.returncode == 3 and not origin.log, "the registry was asked")
    for words in (first.host(), "status 500", second.host(), "expected sha256"):
        check(words in done.stderr, "no '%s' in: %s" % (words, done.stderr))
    place.check_store("mirror-4")

    place.settings("registries:\n  x:\n    mirors: []\n")
    done = place.export(origin.image(), "mirror-4")
    check(done.returncode == 2 and "registries.yaml:6:5" in done.stderr and "mirors" in done.stderr, done)


def killed_in_parts(place):
    """A big blob comes in parts over several connections; a kill loses only what was under way."""
    image = big_image()
    registry = Registry(image)
    place.settings()
    enough, size = threading.Event(), max(map(len, image[0].blobs.values()))

    def stalls(own, request, _count):
        if own.is_layer(request) and sum(1 for entry in own.log if entry[2]) > 3:
            enough.set()
            time.sleep(20)
            return
        own.well(request)

    registry.set(stalls)
    child = subprocess.Popen(place.command(registry.image(), "big"), env=place.environment(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    check(enough.wait(60), "no fourth range was asked for")
    child.kill()
    child.wait()
    place.check_store("big")
    registry.set(None)
    disk = place.export_well(registry.image(), "big")
    asked = [entry[2][len("bytes="):].split("-") for entry in registry.log if entry[2]]
    bytes_asked = sum(int(last or size - 1) - int(first) + 1 for first, last in asked)
    check(0 < bytes_asked < size, "%d of %d bytes came again" % (bytes_asked, size))
    check(place.export_well(registry.image(), "big-fresh") == disk, "another disk")
    for store in ("big", "big-fresh"):
        shutil.rmtree(place.path(store))


# ---- TLS and proxies -------------------------------------------------------------------------


def make_certificate(place):
    """A CA and a certificate of its own for the far host and loopback."""
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, cwd=place.home, capture_output=True)

    with open(place.path("names"), "w", encoding="utf-8") as out:
        out.write("subjectAltName=DNS:%s,IP:127.0.0.1\n" % FAR)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=registry")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "names", "-out", "server.pem", "-days", "2")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place.path("server.pem"), place.path("server.key"))
    return context


class Proxy:
    """CONNECT to anywhere ends at one port; requests for http URLs go to another."""

    def __init__(self, tls_port, plain_port):
        self.tls_port, self.plain_port, self.log, self.status = tls_port, plain_port, [], 200
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(65536)
                if not piece:
                    return
                head += piece
            line = head.split(b"\r\n", 1)[0].decode()
            self.log.append(line)
            if self.status != 200:
                client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.status)
                return
            tunnel = line.startswith("CONNECT ")
            with socket.create_connection(("127.0.0.1", self.tls_port if tunnel else self.plain_port)) as server:
                if tunnel:
                    client.sendall(b"HTTP/1.1 200 Fine\r\n\r\n")
                else:
                    method, target, version = line.split(" ")
                    path = "/" + target.split("/", 3)[3]
                    rest = head.split(b"\r\n", 1)[1]
                    server.sendall(("%s %s %s\r\nConnection: close\r\n" % (method, path, version)).encode() + rest)
                back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
                back.start()
                if tunnel:
                    self.copy(client, server)
                back.join()

    @staticmethod
    def copy(source, target):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


def tls_and_proxies(place, image):
    if not shutil.which("openssl"):
        print("no TLS: no openssl here")
        return
    plain = Registry(image)
    place.settings()
    disk = place.export_well(plain.image(), "plain")
    registry = Registry(image, make_certificate(place))
    near, far, ca = registry.image(), FAR + "/team/app:v1", place.path("ca.pem")

    # Loopback is spoken to in the clear; as a mirror it may be https.
    text = "registries:\n  far.example:\n    origin: false\n    mirrors:\n      - url: https://%s\n%s"
    place.settings(text % (registry.host(), ""))
    done = place.export("far.example/team/app:v1", "tls")
    check(done.returncode == 3 and "certificate is not trusted" in done.stderr and "--ca" in done.stderr, done)
    check(place.export_well("far.example/team/app:v1", "tls-1", "--ca", ca) == disk, "--ca")
    check(place.export_well("far.example/team/app:v1", "tls-2", SSL_CERT_FILE=ca) == disk, "SSL_CERT_FILE")
    place.settings(text % (registry.host(), "        ca: %s\n" % ca))
    check(place.export_well("far.example/team/app:v1", "tls-3") == disk, "ca in registries.yaml")
    done = place.export("far.example/team/app:v1", "tls", "--ca", place.path("nothing.pem"))
    check(done.returncode == 2 and "nothing.pem" in done.stderr, done)
    place.settings(text % ("localhost:%d" % registry.port, "        ca: %s\n" % ca))
    done = place.export("far.example/team/app:v1", "tls")
    check(done.returncode == 3 and "certificate is not trusted" in done.stderr, "a certificate of another name")
    done = place.export(near, "tls")
    check(done.returncode == 3, "plain HTTP to a TLS port")

    place.settings("ca: %s\n" % ca)
    proxy = Proxy(registry.port, plain.port)
    check(place.export_well(far, "far-1", HTTPS_PROXY=proxy.url) == disk, "through a proxy")
    check(proxy.log and all(line == "CONNECT %s:443 HTTP/1.1" % FAR for line in proxy.log), proxy.log)
    done = place.export(far, "far-2", HTTPS_PROXY=proxy.url, NO_PROXY=FAR)
    check(done.returncode == 3 and "does not resolve" in done.stderr, done)
    for status, words in ((407, "the proxy wants a login"), (403, "the proxy answers with status 403")):
        proxy.status = status
        done = place.export(far, "far-3", HTTPS_PROXY=proxy.url)
        check(done.returncode == 3 and words in done.stderr, done)
    proxy.status, proxy.log = 200, []
    check(place.export_well(plain.image(), "far-4", http_proxy=proxy.url, HTTPS_PROXY=proxy.url) == disk, "loopback")
    check(not proxy.log, "a proxy was asked for loopback")
    place.settings("registries:\n  %s:\n    plain_http: true\n" % FAR)
    check(place.export_well(far, "far-5", http_proxy=proxy.url) == disk, "plain HTTP through a proxy")
    check(proxy.log and all("http://%s/v2/" % FAR in line for line in proxy.log), proxy.log)


def main():
    place = Place()
    try:
        image = small_image()
        for part in (faults, mirrors, tls_and_proxies):
            start = time.monotonic()
            part(place, image)
            print("%s: %.1f s" % (part.__name__, time.monotonic() - start))
        killed_in_parts(place)
    finally:
        if not os.environ.get("TB2_TEST_KEEP"):
            shutil.rmtree(place.home, ignore_errors=True)


if __name__ == "__main__":
    main()
