"""The page: time to the first charts, refreshes, size of reports, memory of a server.

`open_page` measures what a browser does until the first curve is there; the topic
`viewers` measures other viewers of the same runs with it.
"""

import http.client
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import lox
from lox._page.document import script, styles
from lox._page.report import write_report
from lox._page.server import PageServer
from lox._page.source import StoreSource
from lox._store.creating import create_run
from lox._store.writer import Writer

from .figure import Figure

_SEEDS, _KEYS, _ROWS = 64, 20, 100_000
_CHARTS = 6  # that fit into a window
_WIDTH = 540  # of a chart in pixels
_REFRESHES = 1800  # an hour, with one every two seconds


def figures() -> Iterator[Figure]:
    code = len(script("").encode()) + len(styles().encode())
    yield Figure("page, code and styles, kB", code / 1000, 150)
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "store"
        extremes = _write_store(store)
        yield from _report(store, pathlib.Path(directory) / "report.html", extremes)
        yield from _in_browser(store, pathlib.Path(directory) / "profile")
        yield from _served(store)
    with tempfile.TemporaryDirectory() as directory:
        yield from _memory(pathlib.Path(directory))


def _names() -> list[str]:
    return [f"k{i:02d}" for i in range(_KEYS)]


def logs_of(first: int, columns: dict[str, Any]) -> lox.logdict:
    count = len(next(iter(columns.values())))
    steps = np.arange(first, first + count)
    return lox.logdict(columns, {"step": dict.fromkeys(columns, steps)}, stacked=True)


def _write_store(store: pathlib.Path) -> dict[str, set[float]]:
    """Writes runs of noise with spikes; returns the extremes of each key."""
    generator = np.random.default_rng(0)
    extremes: dict[str, set[float]] = {name: set() for name in _names()}
    for seed in range(_SEEDS):
        columns = {}
        for name in _names():
            column = generator.standard_normal(_ROWS, np.float32)
            column[generator.integers(0, _ROWS, 2)] = generator.normal(0, 1e3, 2)
            columns[name] = column
            extremes[name] |= {float(column.min()), float(column.max())}
        writer = Writer(create_run(store / f"run-{seed}", "x", None, {"seed": seed}))
        writer.write(logs_of(0, columns))
        writer.finish()
        writer.close()
    return extremes


def _report(
    store: pathlib.Path, path: pathlib.Path, extremes: dict[str, set[float]]
) -> Iterator[Figure]:
    start = time.perf_counter()
    write_report(store, path)
    seconds = time.perf_counter() - start
    what = f"{_SEEDS} seeds x {_KEYS} keys x {_ROWS:,} rows"
    yield Figure(f"report of {what}, MB", path.stat().st_size / 1e6, 10)
    yield Figure("  extremes of runs that are missing", _missing(path, extremes), 0)
    yield Figure("  seconds to write it", seconds)


def _missing(path: pathlib.Path, extremes: dict[str, set[float]]) -> int:
    """How many extremes of single runs are not in a report."""
    import base64
    import json
    import zlib

    text = path.read_text()
    content = re.search(r'id="lox-content">(.*?)</script>', text, re.DOTALL)
    assert content is not None
    blocks = dict(re.findall(r'<script type="text/plain" id="(.*?)">(.*?)<', text))
    missing = 0
    for name, axes in json.loads(content[1])["blocks"]["charts"].items():
        raw = zlib.decompress(base64.b64decode(blocks[axes["step"]["lanes"]]))
        size = int.from_bytes(raw[:4], "little")
        lanes = json.loads(raw[4 : 4 + size])["lanes"]
        found: set[float] = set()
        for part in ("first", "second"):
            kind, shape, offset = lanes[part]["$"]
            count = int(np.prod(shape))
            width = np.dtype(f"<{kind}").itemsize
            planes = np.frombuffer(raw, np.uint8, count * width, 4 + size + offset)
            values = np.ascontiguousarray(planes.reshape(width, count).T)
            found |= set(values.view(f"<{kind}").reshape(-1).tolist())
        missing += len(extremes[name] - found)
    return missing


class _Served:
    """A running server, and a connection to it."""

    def __init__(self, store: pathlib.Path) -> None:
        self.server = PageServer(store, port=0)
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        port = self.server.server_address[1]
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, target: str) -> bytes:
        return _ask(self.connection, target)

    def close(self) -> None:
        self.connection.close()
        self.server.shutdown()
        self.server.server_close()


def _ask(connection: http.client.HTTPConnection, target: str) -> bytes:
    connection.request("GET", target)
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, content
    return content


def _served(store: pathlib.Path) -> Iterator[Figure]:
    start = time.perf_counter()
    StoreSource(store)
    yield Figure("served, open the same store, seconds", time.perf_counter() - start)
    served = _Served(store)
    start = time.perf_counter()
    served.ask("/")
    for name in _names()[:_CHARTS]:
        served.ask(f"/chart?key={name}&band=ci&buckets={_WIDTH}")
    seconds = time.perf_counter() - start
    yield Figure(f"  page and {_CHARTS} charts, seconds", seconds, 2)
    start = time.perf_counter()
    served.ask(f"/chart?key=k00&band=ci&buckets={_WIDTH}&low=5000&high=9000")
    yield Figure("  zoom of one chart, seconds", time.perf_counter() - start)
    writers = [Writer(path) for path in sorted(store.iterdir())]
    times, sizes = [], []
    for i in range(5):
        for writer in writers:
            rows = {name: np.zeros(10, np.float32) for name in _names()}
            writer.write(logs_of(_ROWS + 10 * i, rows))
        served.server.source.refresh()
        start = time.perf_counter()
        content = served.ask(f"/index?since={served.server.source.version - 1}")
        times.append(time.perf_counter() - start)
        sizes.append(len(content))
    yield Figure("  refresh: what has changed, seconds", min(times), 0.1)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        after = f"after={_ROWS - 100}&width=208"
        served.ask(f"/chart?key=k00&band=ci&buckets={_WIDTH}&{after}")
        times.append(time.perf_counter() - start)
    yield Figure("  refresh: new rows of one chart, seconds", min(times), 0.1)
    for writer in writers:
        writer.close()
    served.close()


class Opened(NamedTuple):
    """What a browser without a cache did until a page was ready.

    Attributes:
        seconds: from the request of the page.
        requests: the number of requests.
        size: the size of all answers in bytes.
    """

    seconds: float
    requests: int
    size: int


def open_page(browser: Any, url: str, ready: str) -> Opened:
    """Opens a page.

    Args:
        browser: a `tests.page.browser.Browser`.
        url: the page.
        ready: JavaScript that is true when the page shows its first curve.
    """
    start = time.perf_counter()
    tab = browser.open(url, 1400, 900, cache=False)
    tab.wait(ready)
    seconds = time.perf_counter() - start
    requests = len([url for url in tab.requests if url.startswith("http")])
    size = tab.received
    tab.close()
    return Opened(seconds, requests, size)


READY = "[...document.querySelectorAll('.card')].some(c => c.chart.data && c.chart.u)"
ALL_READY = (
    "[...document.querySelectorAll('.card')].filter(c => c.chart.visible).length > 0 &&"
    "[...document.querySelectorAll('.card')].filter(c => c.chart.visible)"
    ".every(c => c.chart.data && c.chart.u)"
)


def _in_browser(store: pathlib.Path, profile: pathlib.Path) -> Iterator[Figure]:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from tests.page import browser as chromium

    if chromium.find() is None:
        print("no browser was found: the page is not measured in one", file=sys.stderr)
        return
    browser = chromium.Browser(profile)
    with _Process(store) as served:
        browser.open("about:blank#warm").close()
        first = open_page(browser, served.url, READY)
        every = open_page(browser, served.url, ALL_READY)
    browser.close()
    yield Figure("in a browser, the first curve, seconds", first.seconds, 2)
    yield Figure("  all charts in the window, seconds", every.seconds, 2)
    yield Figure("  requests", every.requests)
    yield Figure("  MB", every.size / 1e6)


def _memory(store: pathlib.Path) -> Iterator[Figure]:
    """The memory of a server that follows a growing store for an hour."""
    writers = [Writer(create_run(store / f"r{i}", "x", None, {})) for i in range(4)]
    after, measured = 0, []
    with _Process(store, impatient=True) as served:
        for i in range(_REFRESHES):
            for writer in writers:
                writer.write(logs_of(5 * i, {"loss": np.zeros(5, np.float32)}))
            served.ask(f"/index?since={i}")
            extension = f"after={after}&width=0&buckets={_WIDTH}"
            served.ask(f"/chart?key=loss&band=ci&{extension}")
            after = 5 * i
            if i % 100 == 0:
                served.ask(f"/chart?key=loss&band=ci&buckets={_WIDTH}")
            if i in (_REFRESHES // 4, _REFRESHES - 1):
                measured.append(served.memory())
    for writer in writers:
        writer.close()
    yield Figure(
        f"memory of a server after {_REFRESHES:,} refreshes / after a quarter of them",
        measured[1] / measured[0],
        1.02,
    )
    yield Figure("  MB", measured[1] / 1000)


_IMPATIENT = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import lox._page.server as server
server._POLL_SECONDS = 0.0
server.serve(sys.argv[1], port=0)
"""


class _Process:
    """`lox serve` in a separate process.

    Args:
        store: the store.
        impatient: whether each request looks for what is new.
    """

    def __init__(self, store: pathlib.Path, impatient: bool = False) -> None:
        command = [sys.executable, "-m", "lox", "serve", str(store), "-p0"]
        if impatient:
            command = [sys.executable, "-c", _IMPATIENT, str(store)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "_Process":
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[0]
        self._connection = http.client.HTTPConnection(self.url.split("/")[2])
        return self

    def ask(self, target: str) -> bytes:
        return _ask(self._connection, target)

    def memory(self) -> int:
        """The memory of the process in kB, without files that are mapped."""
        status = pathlib.Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+)", status)
        assert found is not None
        return int(found[1])

    def __exit__(self, *_: Any) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.communicate()
