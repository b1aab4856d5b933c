"""`tap` and loggers under `vmap`: one host call per event, for all lanes."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir

import lox
import lox.loggers

from .figure import Figure

_LANES, _EVENTS = 64, 100


def figures() -> Iterator[Figure]:
    tapped = lox.tap(_logs, callback=_ignore)
    yield Figure(
        f"host calls per event, vmap(tap(f)) over {_LANES} lanes",
        _host_calls(jax.jit(jax.vmap(tapped))) / _EVENTS,
        1,
    )
    yield Figure(
        f"host calls per event, tap(vmap(f)) over {_LANES} lanes",
        _host_calls(lox.tap(jax.vmap(_logs), callback=_ignore)) / _EVENTS,
        1,
    )
    with tempfile.TemporaryDirectory() as directory:
        logger = lox.loggers.SaveLogger(directory)
        states = jax.vmap(logger.init)(jax.vmap(jax.random.key)(jnp.arange(_LANES)))
        saved = jax.vmap(lambda state, x: logger.tap(_logs, state)(x))
        calls = _host_calls(lambda xs: saved(states, xs))
        logger.finish(states)
    yield Figure(
        f"host calls per event, `SaveLogger.tap` over {_LANES} lanes",
        calls / _EVENTS,
        1,
    )


def _host_calls(fun: Callable[[Any], Any]) -> int:
    calls = 0
    emit = mlir.emit_python_callback

    def emit_counting(ctx: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        def counting(*operands: Any) -> Any:
            nonlocal calls
            calls += 1
            return callback(*operands)

        return emit(ctx, counting, *args, **kwargs)

    with mock.patch.object(mlir, "emit_python_callback", emit_counting):
        fun(jnp.arange(_LANES))
        jax.effects_barrier()
    return calls


def _ignore(logs: lox.logdict) -> None:
    del logs


def _logs(x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        lox.log({"x": carry})
        return carry + x, None

    return lax.scan(body, 0, length=_EVENTS)[0]
