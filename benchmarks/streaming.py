"""`lox.tap`: the cost of delivering an event to the host."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import lox

from .figure import Figure
from .interleaved import best_times

_EVENTS = 10_000
_MANY_EVENTS = 100_000
_BUFFER_SIZE = 1_000
_DEBUG_EVENTS = 1_000  # fewer, because each takes much longer
_GOAL = 0.06
_AGGREGATED_GOAL = 0.003
_RAW_GOAL = 1.2


def figures() -> Iterator[Figure]:
    xs, fewer = jnp.arange(_EVENTS), jnp.arange(_DEBUG_EVENTS)
    ordered = lox.tap(_logs, callback=_ignore)
    unordered = lox.tap(_logs, callback=_ignore, ordered=False)
    several = lox.tap(_logs_several, callback=_ignore)
    raw = jax.jit(_raw_program())
    debug, debug_several = jax.jit(_debugs), jax.jit(_debugs_several)
    times = best_times(
        lambda: ordered(xs),
        lambda: unordered(xs),
        lambda: several(xs),
        lambda: (debug(fewer), jax.effects_barrier()),
        lambda: (debug_several(fewer), jax.effects_barrier()),
        lambda: (raw(xs), jax.effects_barrier()),
        rounds=20,
    )
    event, unordered_event, several_event = (time / _EVENTS for time in times[:3])
    debug_event, debug_several_event = (time / _DEBUG_EVENTS for time in times[3:5])
    yield Figure(
        "`tap` / `jax.debug.callback`, one event in a scan", event / debug_event, _GOAL
    )
    yield Figure("  with `ordered=False`", unordered_event / debug_event, _GOAL)
    yield Figure("  3 keys and a step", several_event / debug_several_event, _GOAL)
    yield Figure("`tap` / a raw ordered callback", times[0] / times[5], _RAW_GOAL)
    yield from _aggregated()


def _aggregated() -> Iterator[Figure]:
    xs, fewer = jnp.arange(_MANY_EVENTS), jnp.arange(_DEBUG_EVENTS)
    options: dict[str, dict[str, Any]] = {
        f"buffer={_BUFFER_SIZE}": {"buffer": _BUFFER_SIZE},
        f'reduce="mean", window={_BUFFER_SIZE}': {
            "reduce": "mean",
            "window": _BUFFER_SIZE,
        },
        f"interval={_BUFFER_SIZE}": {"interval": _BUFFER_SIZE},
    }
    tapped = [lox.tap(_logs, callback=_ignore, **given) for given in options.values()]
    debug = jax.jit(_debugs)
    *times, debug_time = best_times(
        *(lambda run=run: run(xs) for run in tapped),
        lambda: (debug(fewer), jax.effects_barrier()),
        rounds=20,
    )
    for name, time in zip(options, times, strict=True):
        yield Figure(
            f"`tap({name})` / `jax.debug.callback`, one event",
            time / _MANY_EVENTS / (debug_time / _DEBUG_EVENTS),
            _AGGREGATED_GOAL,
        )


def _ignore(*values: Any) -> None:
    del values


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


def _raw_program() -> Any:
    """A program that calls the host in order, without `jax.debug.callback`."""
    traced = jax.make_jaxpr(lambda: jax.debug.callback(_ignore, ordered=True))()
    (effect,) = traced.effects
    raw_p: Any = Primitive("raw_callback")
    raw_p.multiple_results = True
    raw_p.def_effectful_abstract_eval(lambda x: ([], {effect}))

    def lower(ctx: Any, x: Any) -> Any:
        _, token, _ = mlir.emit_python_callback(
            ctx,
            lambda x: (),
            ctx.tokens_in.get(effect),
            [x],
            list(ctx.avals_in),
            [],
            has_side_effect=True,
            returns_token=True,
        )
        ctx.set_tokens_out(mlir.TokenSet({effect: token}))
        return []

    mlir.register_lowering(raw_p, lower)

    def raws(xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            raw_p.bind(carry)
            return carry + x, None

        return lax.scan(body, 0, xs)[0]

    return raws


def _logs_several(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        lox.log({"x": carry, "y": x, "z": carry + x}, step=x)
        return carry + x, None

    return lax.scan(body, 0, xs)[0]


def _debugs_several(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        jax.debug.callback(_ignore, carry, x, carry + x, x)
        return carry + x, None

    return lax.scan(body, 0, xs)[0]
