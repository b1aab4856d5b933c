"""Loggers: the cost per row, and per call of a program that logs."""

import contextlib
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox
import lox.loggers

from .figure import Figure
from .interleaved import best_times

_EVENTS = 10_000
_DEBUG_EVENTS = 1_000  # fewer, because each takes much longer
_GOAL = 0.15


class _Nothing(lox.loggers.Logger):
    """A backend that does nothing, to measure the cost of lox itself."""

    def open(self, run: Any) -> None: ...

    def write(self, run: Any, logs: Any) -> None: ...


class _Queued(_Nothing):
    background = True


class _Stuck(_Queued):
    """A backend that does not return until it is told to."""

    full = "spill"

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def write(self, run: Any, logs: Any) -> None:
        self.may_go_on.wait()


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        yield from _rows()
        yield from _calls()
        yield from _spilled()


def _rows() -> Iterator[Figure]:
    loggers = {
        "empty logger": _Nothing(),
        "empty logger with a queue": _Queued(),
        "`SaveLogger`": lox.loggers.SaveLogger("saved"),
        "`JSONLinesLogger`": lox.loggers.JSONLinesLogger("lines"),
    }
    xs, fewer = jnp.arange(_EVENTS), jnp.arange(_DEBUG_EVENTS)
    tapped = [logger.tap(_logs, logger.init(0)) for logger in loggers.values()]
    debug = jax.jit(_debugs)
    *times, debug_time = best_times(
        *(lambda run=run: run(xs) for run in tapped),
        lambda: (debug(fewer), jax.effects_barrier()),
        rounds=20,
    )
    for name, time in zip(loggers, times, strict=True):
        yield Figure(
            f"{name}, one row / `jax.debug.callback`",
            time / _EVENTS / (debug_time / _DEBUG_EVENTS),
            None if "Lines" in name else _GOAL,
        )


def _calls() -> Iterator[Figure]:
    """Programs with one event, called in a Python loop."""
    logger = _Nothing()
    tapped = lox.tap(_step, callback=lambda logs: None)
    logged = logger.tap(_step, logger.init(0))
    own, silent, debug = jax.jit(tapped), jax.jit(_step), jax.jit(_debug_step)
    x = jnp.float32(0)
    lox.set_default("silent")
    try:
        *times, debug_time = best_times(
            lambda: tapped(x),
            lambda: logged(x),
            lambda: own(x),
            lambda: silent(x),
            lambda: debug(x),
            calls=200,
            rounds=20,
        )
    finally:
        lox.set_default("print")
    names = (
        "`tap(f)(x)`, with one event",
        "`logger.tap(f, state)(x)`",
        "`jit(tap(f))(x)`",
        '`jit(f)(x)`, under `set_default("silent")`',
    )
    for name, time in zip(names, times, strict=True):
        yield Figure(f"{name} / `jax.debug.callback`", time / debug_time)


def _spilled() -> Iterator[Figure]:
    """Rows that go to disk because the queue is full, and later to the backend."""
    logger, xs = _Stuck(), jnp.arange(_DEBUG_EVENTS)
    state = logger.init(0)
    stuck, debug = logger.tap(_logs, state), jax.jit(_debugs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lox.LoxWarning)
        for _ in range(_EVENTS // _DEBUG_EVENTS + 1):
            stuck(xs)
    time, debug_time = best_times(
        lambda: stuck(xs), lambda: (debug(xs), jax.effects_barrier()), rounds=20
    )
    yield Figure("a row that spills / `jax.debug.callback`", time / debug_time)
    logger.may_go_on.set()
    logger.finish(state)


def _logs(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        lox.log({"x": carry}, step=x)
        return carry + x, None

    return lax.scan(body, 0, xs)[0]


def _debugs(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        jax.debug.callback(_ignore, carry, x)
        return carry + x, None

    return lax.scan(body, 0, xs)[0]


def _step(x: Any) -> Any:
    lox.log({"x": x})
    return x + 1


def _debug_step(x: Any) -> Any:
    jax.debug.callback(_ignore, x)
    return x + 1


def _ignore(*values: Any) -> None:
    del values
