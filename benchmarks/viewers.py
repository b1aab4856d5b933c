"""The page, compared with TensorBoard and trackio: the time until the first curve.

Each viewer runs in a separate process and has read the runs before it is measured. The
browser's cache is empty. The comparison is of the cost of every visit: the time from
the request of the page to the first curve, and the requests and bytes until then.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from lox._store.creating import create_run
from lox._store.writer import Writer

from .figure import Figure
from .page import Opened, logs_of, open_page

_SEEDS, _KEYS, _ROWS = 16, 6, 2_000
_ROUNDS = 3
_START_SECONDS = 120.0

# Some canvas has pixels of a saturated color, which curves have, but not text.
_COLORED = """[...document.querySelectorAll('canvas')].some((canvas) => {
  if (!canvas.width || !canvas.height) return false;
  const { width, height } = canvas;
  const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const [r, g, b] = [data[i], data[i + 1], data[i + 2]];
    count += data[i + 3] > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 60;
  }
  return count > 100;
})"""
# TensorBoard draws in a worker; its axes show the range of the data once it is there
_LABELED = """[...document.querySelectorAll('line-chart-axis text')]
  .some((text) => text.textContent.trim() === '1,500')"""


class _Viewer(NamedTuple):
    """A viewer.

    Attributes:
        name: its name.
        module: what must be installed.
        command: the command that serves the runs at a port.
        has_runs: whether the server at a URL has read the runs.
        path: the path of the page.
        ready: JavaScript that is true when the page shows its first curve.
    """

    name: str
    module: str
    command: Callable[[int], list[str]]
    has_runs: Callable[[str], bool]
    path: str
    ready: str


def figures() -> Iterator[Figure]:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from tests.page import browser as chromium

    if chromium.find() is None:
        print("no browser was found: viewers are not compared", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as directory:
        here = pathlib.Path(directory)
        found = list(_installed(here))
        _write_runs(here, {viewer.name for viewer in found})
        with contextlib.ExitStack() as stack:
            urls = {
                viewer.name: stack.enter_context(_served(viewer, here))
                for viewer in found
            }
            browser = chromium.Browser(here / "profile")
            stack.callback(browser.close)
            browser.open("about:blank#warm").close()
            yield from _compared(browser, found, urls)


def _installed(here: pathlib.Path) -> Iterator[_Viewer]:
    python = sys.executable
    show = (
        "import sys, trackio; trackio.show('runs', open_browser=False, "
        "block_thread=True, server_port=int(sys.argv[1]))"
    )
    for viewer in (
        _Viewer(
            "lox",
            "lox",
            lambda port: [python, "-m", "lox", "serve", f"{here}/store", f"-p{port}"],
            lambda url: True,
            "",
            _COLORED,
        ),
        _Viewer(
            "TensorBoard",
            "tensorboard",
            lambda port: [
                *(python, "-m", "tensorboard.main", f"--port={port}"),
                f"--logdir={here}/tensorboard",
            ],
            _tensorboard_has_runs,
            "",
            _LABELED,
        ),
        _Viewer(
            "trackio",
            "trackio",
            lambda port: [python, "-c", show, str(port)],
            lambda url: True,
            "?project=runs",
            _COLORED,
        ),
    ):
        if importlib.util.find_spec(viewer.module) is not None:
            yield viewer
        else:
            print(f"{viewer.name} is not installed, and not compared", file=sys.stderr)


def _tensorboard_has_runs(url: str) -> bool:
    tags = json.loads(_get(f"{url}data/plugin/timeseries/tags"))
    found = tags["scalars"]["runTagInfo"]
    return sum(map(len, found.values())) == _SEEDS * _KEYS


def _write_runs(here: pathlib.Path, viewers: set[str]) -> None:
    generator = np.random.default_rng(0)
    names = [f"k{i}" for i in range(_KEYS)]
    runs = {}
    for seed in range(_SEEDS):
        noise = generator.standard_normal((_KEYS, _ROWS), np.float32)
        columns = dict(zip(names, noise.cumsum(axis=1), strict=True))
        runs[f"run-{seed}"] = columns
        path = create_run(here / "store" / f"run-{seed}", "x", None, {"seed": seed})
        writer = Writer(path)
        writer.write(logs_of(0, columns))
        writer.finish()
        writer.close()
    if "TensorBoard" in viewers:
        target = here / "tensorboard"
        options = "--to", "tensorboard", "-o", str(target)
        command = [sys.executable, "-m", "lox", "export", str(here / "store"), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if "trackio" in viewers:
        os.environ["TRACKIO_DIR"] = str(here / "trackio")
        from trackio.sqlite_storage import SQLiteStorage

        for name, columns in runs.items():
            rows = [
                {key: float(column[i]) for key, column in columns.items()}
                for i in range(_ROWS)
            ]
            SQLiteStorage.bulk_log("runs", name, rows, config={"name": name})


@contextlib.contextmanager
def _served(viewer: _Viewer, here: pathlib.Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(here / f"{viewer.module}.log", "w") as log:
        process = subprocess.Popen(
            viewer.command(port), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}/"
            _wait(lambda: bool(_get(url)) and viewer.has_runs(url), viewer.name)
            yield url + viewer.path
        finally:
            process.terminate()
            process.wait()


def _wait(condition: Callable[[], bool], name: str) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.2)
    raise TimeoutError(f"{name} does not serve the runs")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        content: bytes = response.read()
        return content


def _compared(
    browser: Any, viewers: list[_Viewer], urls: dict[str, str]
) -> Iterator[Figure]:
    best: dict[str, Opened] = {}
    for _ in range(_ROUNDS):
        for viewer in viewers:
            opened = open_page(browser, urls[viewer.name], viewer.ready)
            before = best.get(viewer.name, opened)
            best[viewer.name] = min(before, opened)
    what = f"{_SEEDS} runs x {_KEYS} keys x {_ROWS:,} rows"
    for name, opened in best.items():
        yield Figure(f"{name}, first curve of {what}, seconds", opened.seconds)
        yield Figure("  requests", opened.requests)
        yield Figure("  MB", opened.size / 1e6)
    ours = best["lox"]
    for name, other in best.items():
        if name != "lox":
            yield Figure(f"lox / {name}, first curve", ours.seconds / other.seconds, 1)
            yield Figure("  requests", ours.requests / other.requests, 1)
            yield Figure("  bytes", ours.size / other.size, 1)
