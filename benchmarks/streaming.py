"""`lox.tap`: what one event costs on its way to the host."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .interleaved import best_times

_EVENTS = 20_000
_DEBUG_EVENTS = 1_000  # each takes so long that fewer will do


def figures() -> Iterator[Figure]:
    xs, fewer = jnp.arange(_EVENTS), jnp.arange(_DEBUG_EVENTS)
    ordered = lox.tap(_logs, callback=_ignore)
    unordered = lox.tap(_logs, callback=_ignore, ordered=False)
    debug = jax.jit(_debugs)
    times = best_times(
        lambda: ordered(xs),
        lambda: unordered(xs),
        lambda: (debug(fewer), jax.effects_barrier()),
        rounds=7,
    )
    event = times[2] / _DEBUG_EVENTS
    what = "`tap` / `jax.debug.callback`, one event of a scan"
    yield Figure(what, times[0] / _EVENTS / event, 0.06)
    yield Figure("  with `ordered=False`", times[1] / _EVENTS / event, 0.06)


def _ignore(value: Any) -> None:
    del value


def _logs(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        lox.log({"x": carry})
        return carry + x, None

    return lax.scan(body, 0, xs)[0]


def _debugs(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        jax.debug.callback(_ignore, carry)
        return carry + x, None

    return lax.scan(body, 0, xs)[0]
