"""The cost of a first call: tracing, lowering and compiling."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox

from .figure import Figure
from .interleaved import best_times
from .programs import long, long_by_hand

_FEW, _MANY = 300, 10_000
# A first call computes and does not wait, so it is measured by processor time, which
# other processes do not affect.
_CLOCK = time.process_time


def figures() -> Iterator[Figure]:
    compiled, compiled_by_hand = best_times(
        lambda: _lowered(_spooled, _FEW).compile(),
        lambda: _lowered(long_by_hand, _FEW).compile(),
        rounds=15,
        clock=_CLOCK,
    )
    yield Figure(
        f"trace, lower and compile spool(f) / hand-written, {_FEW} equations",
        compiled / compiled_by_hand,
        1.15,
    )
    few, few_by_hand = _lowering_times(_FEW, rounds=40)
    many, many_by_hand = _lowering_times(_MANY, rounds=6)
    yield Figure("  trace and lower alone", few / few_by_hand, 1.3)
    yield Figure(f"  the same, {_MANY:,} equations", many / many_by_hand, 1.3)
    own, own_of_many = few - few_by_hand, many - many_by_hand
    yield Figure(
        f"time that lox adds per equation, {_MANY:,} / {_FEW} equations",
        (own_of_many / _MANY) / (own / _FEW),
        1.3,  # linear; a difference of two times is noisier than either
    )
    jax.clear_caches()


def _lowering_times(equations: int, rounds: int) -> list[float]:
    return best_times(
        lambda: _lowered(_spooled, equations),
        lambda: _lowered(long_by_hand, equations),
        rounds=rounds,
        clock=_CLOCK,
    )


def _lowered(make: Callable[[int], Any], equations: int) -> Any:
    # a new function, which JAX has not traced before
    return jax.jit(make(equations)).lower(jnp.float32(0.5))


def _spooled(equations: int) -> Any:
    return lox.spool(long(equations))
