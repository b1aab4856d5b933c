"""`serve`: what it answers, and what it refuses; over real sockets."""

import http.client
import json
import signal
import socket
import socketserver
import threading

import numpy as np
import pytest

import lox
from lox._page.server import PageServer, serve
from tests import waiting

from .stores import logs, open_run, write_run, write_seeds
from .test_charts import unpacked

TOKEN = "0123456789abcdef"


@pytest.fixture
def start():
    """Starts servers on free ports."""
    started = []

    def start(store, **options):
        server = PageServer(store, port=0, **options)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        waiting.join(thread)


def ask(server, target="/", method="GET", headers=None, body=None):
    """The status, the headers and the content of an answer."""
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=waiting.HANG)
    with_host = {"Host": f"127.0.0.1:{port}", **(headers or {})}
    connection.putrequest(method, target, skip_host=True)
    for name, value in with_host.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, dict(response.headers), content


def raw(server, data):
    """The first line of the answer to raw bytes."""
    with socket.create_connection(server.server_address, waiting.HANG) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as file:
            return file.readline()


# --- answers -----------------------------------------------------------------


def test_server_sends_page_index_and_chart(tmp_path, start):
    write_seeds(tmp_path, seeds=2, rows=5)
    server = start(tmp_path)
    status, headers, page = ask(server)
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"startLive();" in page
    status, _, content = ask(server, "/index?since=0")
    index = json.loads(content)
    assert [key["name"] for key in index["keys"]] == ["loss", "accuracy"]
    version = index["version"]
    assert json.loads(ask(server, f"/index?since={version}")[2]) == {"version": version}
    status, headers, content = ask(server, "/chart?key=loss&band=std&buckets=100")
    assert headers["Content-Type"] == "application/octet-stream"
    data = unpacked(content)
    assert [list(group["bands"]) for group in data["groups"]] == [["std"]] * 2
    status, _, content = ask(server, "/chart?key=loss&runs=0")
    assert unpacked(content)["groups"] == []


def test_head_has_headers_only(tmp_path, start):
    server = start(tmp_path)
    status, headers, content = ask(server, method="HEAD")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


def test_store_that_is_being_written_is_followed(tmp_path, start):
    with open_run(tmp_path, "a") as writer:
        server = start(tmp_path)

        def last():
            runs = json.loads(ask(server, "/index?since=0")[2])["runs"]
            return [run["last"] for run in runs]

        assert last() in ([], [{}])
        for i in range(3):
            writer.write(logs([i], loss=[float(i)]))
            expected = [{"loss": float(i)}]
            waiting.wait_until(lambda expected=expected: last() == expected)
        data = unpacked(ask(server, "/chart?key=loss&after=1&width=0")[2])
        assert data["from"].tolist() == [1, 2]
        writer.write(logs([0], loss=[5.0]))
        waiting.wait_until(
            lambda: (
                unpacked(ask(server, "/chart?key=loss&after=1&width=0")[2])
                == {"refetch": True}
            )
        )


def test_histograms_and_images_are_sent(tmp_path, start):
    rows = lox.logdict(
        {
            "weights": {"counts": np.ones((3, 4)), "edges": np.ones((3, 5))},
            "large": {"counts": np.full((3, 4), 1e300), "edges": np.ones((3, 5))},
            "picture": np.zeros((3, 8, 8, 3), np.uint8),
        },
        stacked=True,
    )
    write_run(tmp_path, "a", rows)
    server = start(tmp_path)
    (run,) = unpacked(ask(server, "/media?key=weights")[2])["runs"]
    assert (run["counts"].shape, run["edges"].shape) == ((3, 4), (3, 5))
    (run,) = unpacked(ask(server, "/media?key=large")[2])["runs"]
    assert np.isinf(run["counts"]).all()
    (run,) = unpacked(ask(server, "/media?key=picture")[2])["runs"]
    assert [bytes(image[:4]) for image in run["images"]] == [b"\x89PNG"] * 3


def test_empty_store_is_served(tmp_path, start):
    status, _, page = ask(start(tmp_path))
    assert status == 200


def test_error_of_the_server_is_an_answer(tmp_path, start, monkeypatch, capsys):
    write_run(tmp_path, "a", logs([0], loss=[1.0]))
    server = start(tmp_path)
    monkeypatch.setattr("lox._page.server.chart", lambda *_: 1 / 0)
    status, _, content = ask(server, "/chart?key=loss")
    assert (status, content) == (500, b"ZeroDivisionError: division by zero\n")
    assert "Traceback" in capsys.readouterr().err
    assert ask(server)[0] == 200


# --- refusals ----------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", None, "["]
)
@pytest.mark.parametrize("target", ["/", "/index?since=0"])
def test_wrong_host_is_refused(tmp_path, start, host, target):
    write_run(tmp_path, "a", logs([0], secret=[1.0]))
    status, _, content = ask(start(tmp_path), target, headers={"Host": host})
    assert status == 421 and b"secret" not in content


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "[::1]:5", "127.0.0.1"])
def test_loopback_names_are_accepted(tmp_path, start, host):
    assert ask(start(tmp_path), headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "target",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/a/run.json",
        "/run.json",
        "//etc/passwd",
        "/assets/page.js",
        "/index/",
        "/%00",
        "http://127.0.0.1/etc/passwd",
    ],
)
def test_files_cannot_be_requested(tmp_path, start, target):
    write_run(tmp_path, "a", logs([0], loss=[1.0]))
    status, _, content = ask(start(tmp_path), target)
    assert status == 404 and b"root:" not in content and b"crc32" not in content


@pytest.mark.parametrize("key", ["../a/loss", "/etc/passwd", "missing", "loss%00"])
def test_unknown_keys_are_not_found(tmp_path, start, key):
    write_run(tmp_path, "a", logs([0], loss=[1.0]))
    server = start(tmp_path)
    for path in ("chart", "media"):
        assert ask(server, f"/{path}?key={key}")[0] == 404


@pytest.mark.parametrize(
    "method", "POST PUT PATCH DELETE OPTIONS TRACE CONNECT".split()
)
def test_other_methods_are_refused(tmp_path, start, method):
    status, headers, _ = ask(start(tmp_path), method=method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_unknown_method_is_refused(tmp_path, start):
    assert ask(start(tmp_path), method="BREW")[0] == 501


@pytest.mark.parametrize(
    "query",
    [
        "key=loss&low=nan",
        "key=loss&high=inf",
        "key=loss&buckets=x",
        "key=loss&width=-1&after=0",
        "key=loss&band=evil",
        "key=loss&runs=xyz",
        "key=loss&key=loss",
        "x=step",
        "&".join(f"a{i}=1" for i in range(100)),
    ],
)
def test_bad_queries_are_refused(tmp_path, start, query):
    write_run(tmp_path, "a", logs([0], loss=[1.0]))
    assert ask(start(tmp_path), f"/chart?{query}")[0] == 400


def test_tiny_buckets_are_not_computed(tmp_path, start):
    write_run(tmp_path, "a", logs([0, 10**9], loss=[1.0, 2.0]))
    answer = ask(start(tmp_path), "/chart?key=loss&after=0&width=1e-300")[2]
    assert unpacked(answer) == {"refetch": True}


def test_bad_version_is_refused(tmp_path, start):
    server = start(tmp_path)
    assert ask(server, "/index?since=-1")[0] == 400
    assert ask(server, f"/index?since={'9' * 99}")[0] == 400


def test_huge_requests_are_refused(tmp_path, start):
    server = start(tmp_path)
    assert ask(server, "/chart?key=" + "a" * 10_000)[0] == 414
    line = b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"
    assert b" 414 " in raw(server, line)
    headers = {f"X-{i}": "a" for i in range(200)}
    assert ask(server, headers=headers)[0] == 431
    assert ask(server, headers={"X": "a" * 70_000})[0] == 431
    assert ask(server, headers={"Content-Length": "5"}, body=b"hello")[0] == 400
    assert ask(server, headers={"Transfer-Encoding": "chunked"})[0] == 400
    assert b"Bad Request" in raw(server, b"\x00\xff garbage\r\n\r\n")
    assert ask(server, "http://[::1/")[0] == 400
    assert ask(server)[0] == 200  # and it goes on


def test_requests_of_other_sites_are_refused(tmp_path, start):
    server = start(tmp_path)
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert ask(server, "/index?since=0", headers=foreign)[0] == 403
    assert ask(server, "/", headers=foreign)[0] == 200  # a link to the page


def test_answers_forbid_everything_but_the_page_itself(tmp_path, start):
    server = start(tmp_path)
    nonces = set()
    for target in ("/", "/", "/index?since=0"):
        _, headers, content = ask(server, target)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
        assert headers["Server"].strip() == "lox"
        nonces.add(policy.partition("'nonce-")[2].partition("'")[0])
    assert len(nonces) == 3


def test_too_many_connections_are_closed(tmp_path, start):
    server = start(tmp_path)
    address = server.server_address
    idle = [socket.create_connection(address, waiting.HANG) for _ in range(64)]

    def is_full():
        with socket.create_connection(address, waiting.HANG) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            try:
                return connection.recv(100) == b""
            except ConnectionError:
                return True

    waiting.wait_until(is_full)
    for connection in idle:
        connection.close()
    waiting.wait_until(lambda: not is_full())


# --- tokens ------------------------------------------------------------------


def test_token_is_needed_once_and_then_a_cookie(tmp_path, start):
    write_run(tmp_path, "a", logs([0], secret=[1.0]))
    server = start(tmp_path, token=TOKEN)
    assert server.url.endswith(f"/?token={TOKEN}")
    for target in ("/", "/index?since=0", f"/?token={TOKEN[:-1]}x", "/?token="):
        status, _, content = ask(server, target)
        assert status == 403 and b"secret" not in content
    status, headers, _ = ask(server, f"/?token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    given = {"Cookie": cookie.partition(";")[0], "Host": "any.example"}
    assert ask(server, "/index?since=0", headers=given)[0] == 200
    wrong = {"Cookie": f"lox_token={TOKEN[::-1]}"}
    assert ask(server, "/index?since=0", headers=wrong)[0] == 403
    assert ask(server, f"/index?since=0&token={TOKEN}")[0] == 403  # not in the API


def test_other_addresses_get_a_token(tmp_path, start):
    server = start(tmp_path, host="0.0.0.0")
    assert len(server.token) >= 32
    assert ask(server)[0] == 403
    assert ask(server, f"/?token={server.token}")[0] == 303


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_needs_no_token(tmp_path, start, host):
    assert start(tmp_path, host=host).token is None


@pytest.mark.parametrize("token", ["short", "", "a b" * 10, "é" * 20, "a;b" * 10])
def test_weak_token_is_refused(tmp_path, token):
    with pytest.raises(lox.LoxValueError, match="`token` must have at least"):
        PageServer(tmp_path, port=0, token=token)


# --- starting ----------------------------------------------------------------


def test_port_in_use_is_an_error_that_names_it(tmp_path, start):
    port = start(tmp_path).server_address[1]
    with pytest.raises(lox.LoxValueError, match=f"port {port}: .*another `port`"):
        PageServer(tmp_path, port=port)


@pytest.mark.parametrize("port", [-1, 70_000])
def test_impossible_port_is_an_error(tmp_path, port):
    with pytest.raises(lox.LoxValueError, match="cannot listen"):
        PageServer(tmp_path, port=port)


def test_server_answers_again_after_no_thread_could_be_started(
    start, tmp_path, monkeypatch, capfd
):
    def fail(*arguments):
        raise RuntimeError("can't start new thread")

    server = start(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(socketserver.ThreadingMixIn, "process_request", fail)
        for _ in range(100):  # more than there can be connections
            with socket.create_connection(server.server_address, waiting.HANG) as one:
                assert one.recv(1) == b""
    assert ask(server)[0] == 200
    assert "can't start new thread" in capfd.readouterr().err


def test_serve_ends_with_an_interrupt_and_frees_its_port(tmp_path):
    urls = []

    def interrupt(url):
        urls.append(url)
        raise KeyboardInterrupt

    serve(tmp_path, port=0, ready=interrupt)
    port = int(urls[0].rstrip("/").rpartition(":")[2])
    PageServer(tmp_path, port=port).server_close()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_serve_ends_with_an_interrupt_that_comes_in_a_finalizer(tmp_path):
    class Interrupts:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)  # whose exception Python ignores

    serve(tmp_path, port=0, ready=lambda url: Interrupts() and None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_serve_raises_at_the_second_of_two_interrupts(tmp_path):
    seen = []

    def interrupt(url):
        signal.raise_signal(signal.SIGINT)
        seen.append("first")
        signal.raise_signal(signal.SIGINT)
        seen.append("second")

    serve(tmp_path, port=0, ready=interrupt)
    assert seen == ["first"]
