"""Malformed requests to a running `lox serve`."""

import contextlib
import functools
import pathlib
import random
import re
import signal
import socket
import tempfile
from typing import Any

from tests import programs, waiting
from tests.fuzz.hostile.mutations import ODD_NUMBERS, ODD_TEXTS, damaged
from tests.page.stores import write_seeds

_SECRET = b"nobody may read this"
_SERVE = """
    import sys
    import lox.cli

    sys.exit(lox.cli.main(["serve", sys.argv[1], "--port", "0"]))
"""
_MAX_ANSWER = 2**26
_CONNECTIONS = 80  # more than the server takes at once


class Server:
    """A `lox serve` in a separate process, and a file that it must not show."""

    def __init__(self) -> None:
        root = pathlib.Path(tempfile.mkdtemp(dir=".", prefix="serve-")).resolve()
        write_seeds(root / "store", seeds=2, rows=5)
        (root / "secret").write_bytes(_SECRET)
        log = (root / "stderr").open("wb")
        self._stderr = (root / "stderr").open("rb")
        self.process = programs.start(_SERVE, root / "store", stderr=log.fileno())
        found = re.search(r":(\d+)/", self.process.stdout.readline())
        assert found is not None, "the server has not started"
        self.port = int(found[1])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), waiting.HANG)

    def answer(self, request: bytes) -> bytes:
        """What the server sends back until it closes the connection."""
        with self.connect() as connection:
            # the server may answer and close before it has read everything
            with contextlib.suppress(OSError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return _read_all(connection)

    def assert_works(self) -> None:
        """Asserts that the server is alive, and has had no internal errors."""
        answer = self.answer(self.request("/index?since=0"))
        assert answer.startswith(b"HTTP/1.1 200 "), f"a good request: {answer[:300]!r}"
        assert answer.endswith(b"}"), "a good request got half an answer"
        assert self.process.poll() is None, "the server has ended"
        said = self._stderr.read()  # since the last time
        assert not said, said.decode()[-3000:]

    def request(self, target: str, *headers: str, method: str = "GET") -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        text = "\r\n".join((*lines, "Connection: close", *headers, "", ""))
        return text.encode("utf-8", "surrogatepass")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        with self.process:
            code = self.process.wait()
        assert code == 0, f"the server has returned {code} when it was interrupted"


def _read_all(connection: socket.socket) -> bytes:
    parts, size = [], 0
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(2**16):
            parts.append(part)
            size += len(part)
            assert size < _MAX_ANSWER, "the answer has no end"
    return b"".join(parts)


@functools.cache
def _server() -> Server:
    return Server()


def prepare() -> None:
    _server()


def finish() -> None:
    _server().stop()


# --- requests ------------------------------------------------------------------

_TARGETS = (
    "/",
    "/index?since=0",
    "/chart?key=loss&band=std&buckets=100",
    "/chart?key=loss&x=step&by=optimizer.lr&runs=f&low=0&high=3",
    "/chart?key=loss&after=2&width=1",
    "/media?key=loss",
)
_PATHS = (
    "/../secret",
    "/..%2fsecret",
    "/%2e%2e/secret",
    "//secret",
    "/store/../../secret",
    "file:///etc/passwd",
    "http://[::1/",
    "http://[/secret",
    "//[",
    "*",
    "",
    "?",
    "/\0",
    "/chart/",
    "/index%00",
    "/chart?key=../../secret",
    "/media?key=%2e%2e%2fsecret",
)
_FIELDS = (
    "key",
    "x",
    "by",
    "band",
    "runs",
    "low",
    "high",
    "buckets",
    "after",
    "width",
    "since",
    "token",
)
_HEADERS = (
    "Host: evil.example",
    "Host:",
    "Host: 127.0.0.1:1, evil.example",
    "Content-Length: 99999999999999999999",
    "Content-Length: -1",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Expect: 100-continue",
    "Connection: keep-alive",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Range: bytes=0-",
    "Cookie: lox_token=\ud800; \0=;;;",
    "Sec-Fetch-Site: cross-site",
    "X: " + "x" * 70_000,
    "\r\n".join(f"X{i}: y" for i in range(200)),
    " folded: line",
    ": no name",
)


def _target(rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(_PATHS)
    if kind == 1:
        return rng.choice(_TARGETS)
    values = (*ODD_NUMBERS, *ODD_TEXTS, "loss", "step", "row", "time", "std", "ff")
    path = rng.choice(("/chart", "/index", "/media", "/"))
    fields = [
        f"{rng.choice(_FIELDS)}={str(rng.choice(values)).replace(' ', '%20')}"
        for _ in range(rng.choice((1, 3, 3, 6, 100)))
    ]
    if path in ("/chart", "/media") and rng.random() < 0.8:
        fields = ["key=loss", *(x for x in fields if not x.startswith("key="))]
    query = "&".join(fields)
    return f"{path}?{query[: rng.choice((500, 9000, 200_000))]}"


def _request(server: Server, rng: random.Random) -> bytes:
    methods = ("GET", "GET", "GET", "HEAD", "POST", "get", "TRACE", "G" * 1000, "")
    headers = rng.sample(_HEADERS, rng.choice((0, 0, 1, 2)))
    request = server.request(_target(rng), *headers, method=rng.choice(methods))
    kind = rng.randrange(6)
    if kind == 0:
        return damaged(request, rng, [request])
    if kind == 1:
        return rng.randbytes(rng.choice((1, 100, 100_000)))
    if kind == 2:
        version = rng.choice((b"HTTP/0.9", b"HTTP/9.9", b"HTTP/1.", b"HTTP/-1.1", b""))
        return request.replace(b"HTTP/1.1", version, 1)
    if kind == 3:
        return request[: rng.randrange(len(request))]
    return request


def check(seed: int) -> None:
    """Sends one or several requests; then a good one must be answered."""
    rng = random.Random(f"requests {seed}")
    server = _server()
    request = _request(server, rng)
    kind = rng.randrange(12)
    open_connections: list[Any] = []
    try:
        if kind == 0:  # half of it, and no more while others ask
            connection = server.connect()
            open_connections.append(connection)
            connection.sendall(request[: len(request) // 2])
        elif kind == 1:  # two at once
            request = request.rstrip(b"\r\n") + b"\r\n\r\n" + _request(server, rng)
        elif kind == 2 and rng.random() < 0.2:
            with contextlib.suppress(ConnectionError):
                for _ in range(_CONNECTIONS):
                    open_connections.append(server.connect())
                    open_connections[-1].sendall(request[:20])
        if len(open_connections) > 1:
            for connection in open_connections:
                connection.close()
            waiting.wait_until(lambda: server.answer(server.request("/index?since=0")))
        answer = server.answer(request)
        assert _SECRET not in answer and b"root:" not in answer, "a file was shown"
        assert not answer.startswith(b"HTTP/1.1 500"), answer.decode()[:3000]
        server.assert_works()
    except BaseException as error:
        error.add_note(f"{request[:2000]!r}")
        raise
    finally:
        for connection in open_connections:
            connection.close()
