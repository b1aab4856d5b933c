"""The store: appending and loading rows, compared with plain NumPy files."""

import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox
import lox.loggers
from lox._store.creating import create_run
from lox._store.writer import Writer

from .figure import Figure
from .interleaved import best_times

_BATCH = 100
_KEYS = "abcde"  # each row also has a step
_SCALARS = 10_000_000
_EVENTS = 100_000
_BUFFER_SIZE = 1_000
_RUNS = 1_000


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        yield from _append(pathlib.Path(directory))
        yield from _load(pathlib.Path(directory))
        yield from _logger(pathlib.Path(directory))
        yield from _runs(pathlib.Path(directory))


def _batch() -> lox.logdict:
    rows = np.arange(_BATCH, dtype=np.float32)
    steps = {"step": dict.fromkeys(_KEYS, np.arange(_BATCH))}
    return lox.logdict(dict.fromkeys(_KEYS, rows), steps, stacked=True)


def _append(directory: pathlib.Path) -> Iterator[Figure]:
    logs = _batch()
    writer = Writer(create_run(directory / "append", "x"))
    raw = np.zeros(_BATCH, [*((key, "<f4") for key in _KEYS), ("step", "<i8")])
    with open(directory / "raw", "ab", buffering=0) as file:
        time, bare = best_times(
            lambda: writer.write(logs), lambda: raw.tofile(file), calls=200, rounds=15
        )
    yield Figure(
        f"store, append {_BATCH} rows x 6 columns / `ndarray.tofile`", time / bare, 3.0
    )
    for _ in range(1_000_000 // _BATCH):
        writer.write(logs)
    (late,) = best_times(lambda: writer.write(logs), calls=200, rounds=15)
    yield Figure("  row 1,000,000 / row 1,000", late / time, 1.1)
    writer.close()


def _load(directory: pathlib.Path) -> Iterator[Figure]:
    rows = np.arange(_SCALARS, dtype=np.float32)
    lox.save(lox.logdict({"x": rows}, stacked=True), directory / "load")
    np.save(directory / "x.npy", rows)
    time, bare = best_times(
        lambda: lox.load(directory / "load")["x"],
        lambda: np.load(directory / "x.npy"),
    )
    yield Figure("store, load 1e7 scalars / `numpy.load`", time / bare, 2.0)


def _logs(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        carry = carry * 0.5 + x
        lox.log({"carry": carry}, step=x)
        return carry, None

    return lax.scan(body, 0.0, xs)[0]


def _ignore(logs: lox.logdict) -> None:
    del logs


def _logger(directory: pathlib.Path) -> Iterator[Figure]:
    xs = jnp.arange(1.0 * _EVENTS)
    logger = lox.loggers.SaveLogger(directory / "logger")
    saved = logger.tap(_logs, logger.init(0), buffer=_BUFFER_SIZE)
    bare = lox.tap(_logs, _ignore, buffer=_BUFFER_SIZE)
    time, bare_time = best_times(lambda: saved(xs), lambda: bare(xs), rounds=15)
    yield Figure(
        f"`SaveLogger.tap(buffer={_BUFFER_SIZE})` / `tap` without a logger, one event",
        time / bare_time,
        1.3,
    )


def _runs(directory: pathlib.Path) -> Iterator[Figure]:
    """Runs that begin, log one row and end, all of them lanes of one `vmap`."""
    logger = lox.loggers.SaveLogger(directory / "runs")

    @jax.jit
    @jax.vmap
    def program(key: Any) -> None:
        state = logger.init(key)
        logger.log(state, {"loss": jnp.float32(0)}, step=0)
        logger.finish(state)

    numbers = itertools.count()

    def begin_and_end() -> None:
        program(jax.random.split(jax.random.key(next(numbers)), _RUNS))
        jax.effects_barrier()

    begin_and_end()
    (listing,) = best_times(lambda: _list_runs(directory / "runs"), rounds=5)
    run = lox.runs(directory / "runs")[0].path
    folders = [str(path.relative_to(run)) for path in run.rglob("*") if path.is_dir()]
    files = {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
    }

    def write_files() -> None:
        store = directory / f"files-{next(numbers)}"
        for i in range(_RUNS):
            for folder in folders:
                os.makedirs(f"{store}/{i}/{folder}")
            for name, content in files.items():
                with open(f"{store}/{i}/{name}", "wb") as file:
                    file.write(content)

    time, bare = best_times(begin_and_end, write_files, rounds=3)
    yield Figure(f"`SaveLogger`, begin and end {_RUNS:,} runs, seconds", time, 2.0)
    yield Figure("  the same / writing the same files, without `fsync`", time / bare)
    yield Figure(
        f"`lox.runs` of {_RUNS:,} runs, with status and last values, seconds",
        listing,
        0.2,
    )


def _list_runs(store: pathlib.Path) -> Any:
    summaries = [run.summary() for run in lox.runs(store)]
    return [(x.status, x.duration, x.rows, x.last) for x in summaries]
