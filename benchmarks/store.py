"""The store: appending and loading rows, compared with plain NumPy files."""

import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

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


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        yield from _append(pathlib.Path(directory))
        yield from _load(pathlib.Path(directory))
        yield from _logger(pathlib.Path(directory))


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
