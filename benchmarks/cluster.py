"""One run of 64 processes: what they write, and what it takes to read it.

`docs/clusters.md` scales these figures to 1,000 hosts. Times are CPU times, because
the processes share a machine.
"""

import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

import lox
from lox._store.copy_store import StoreCopy

from .cluster_writers import ROW_BYTES
from .figure import Figure
from .interleaved import best_times

_PROCESSES = 64
_ROWS = 10_000
_EVENTS = 10_000
_WINDOW = 100


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        many, one = (pathlib.Path(directory) / name for name in ("many", "one"))
        times = [_write(many, _PROCESSES, _ROWS), _write(one, 1, _ROWS)]
        for _ in range(4):  # the best of several, as others use the machine, too
            store = tempfile.mkdtemp(dir=directory)
            times[0] = min(times[0], _write(store + "/many", _PROCESSES, _ROWS // 10))
            times[1] = min(times[1], _write(store + "/one", 1, _ROWS))
        yield from _written(many, *times)
        whole = pathlib.Path(directory) / "whole"
        _write(whole, 1, _PROCESSES * _ROWS)
        yield from _read(many, whole)
        yield from _copied(many, pathlib.Path(directory) / "copy")
    yield from _host_calls()


def _write(store: Any, processes: int, rows: int) -> float:
    """Writes a run in new processes; returns the CPU time per row, in seconds."""
    arguments = map(str, (store, processes, rows))
    command = [sys.executable, "-m", "benchmarks.cluster_writers", *arguments]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def _written(store: pathlib.Path, many: float, one: float) -> Iterator[Figure]:
    paths = list(store.rglob("*"))
    files = [path for path in paths if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    rows = _PROCESSES * _ROWS
    yield Figure(f"{_PROCESSES} processes, files per process", len(files) / _PROCESSES)
    yield Figure("  directories per process", (len(paths) - len(files)) / _PROCESSES)
    yield Figure(f"  bytes per row of {ROW_BYTES} bytes of values", size / rows, 44.5)
    yield Figure("  CPU time per row, microseconds", many * 1e6)
    yield Figure("  CPU time per row / that of one process", many / one, 1.11)


def _read(many: pathlib.Path, whole: pathlib.Path) -> Iterator[Figure]:
    listing, loading, single, one_key = best_times(
        lambda: lox.runs(many),
        lambda: lox.load(many),
        lambda: lox.load(whole),
        lambda: lox.load(many, "a"),
        clock=time.process_time,
    )
    rows = _PROCESSES * _ROWS
    yield Figure(f"`lox.runs`, {_PROCESSES} parts, CPU milliseconds", listing * 1e3)
    yield Figure(
        f"`lox.load`, {_PROCESSES} parts, {rows:,} rows, CPU ms", loading * 1e3
    )
    yield Figure("  one key of ten, CPU ms", one_key * 1e3)
    yield Figure("  one part with the same rows, CPU ms", single * 1e3)


def _copied(store: pathlib.Path, target: pathlib.Path) -> Iterator[Figure]:
    reports = []
    numbers = iter(range(100))

    def copy() -> None:
        reports.append(StoreCopy(store, f"{target}-{next(numbers)}").update())

    def copy_again() -> None:
        reports.append(StoreCopy(store, f"{target}-0").update())

    first, again = best_times(copy, copy_again, rounds=5, clock=time.process_time)
    stored = sum(x.stat().st_size for x in store.rglob("*") if x.is_file())
    yield Figure(f"`lox sync`, {_PROCESSES} parts, CPU milliseconds", first * 1e3)
    yield Figure("  bytes sent / bytes stored", reports[0].byte_count / stored, 1.05)
    yield Figure("  without anything new, CPU ms", again * 1e3)
    yield Figure("  without anything new, bytes sent", reports[1].byte_count, 0)


def _host_calls() -> Iterator[Figure]:
    def program(xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            lox.log({"loss": carry}, step=x)
            return carry * 0.5 + x, None

        return lax.scan(body, 0.0, xs)[0]

    for name, options in {
        "as they are": {},
        f"`buffer={_WINDOW}`": {"buffer": _WINDOW},
        f"`window={_WINDOW}`": {"window": _WINDOW, "reduce": "mean"},
    }.items():
        calls: list[int] = []
        tapped = lox.tap(program, lambda logs, calls=calls: calls.append(1), **options)
        tapped(jnp.arange(1.0 * _EVENTS)).block_until_ready()
        yield Figure(f"host calls per event, {name}", len(calls) / _EVENTS)
