"""What a first call costs: tracing, lowering and compiling."""

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
# A first call is all computing and no waiting, so that time of the processor, which
# others cannot take away, says the same.
_CLOCK = time.process_time


def figures() -> Iterator[Figure]:
    compiled, compiled_by_hand = best_times(
        lambda: _lowered(_spooled, _FEW).compile(),
        lambda: _lowered(long_by_hand, _FEW).compile(),
        rounds=15,
        clock=_CLOCK,
    )
    yield Figure(
        f"trace, lower and compile spool(f) / by hand, {_FEW} equations",
        compiled / compiled_by_hand,
        1.15,
    )
    few, few_by_hand = _lowering_times(_FEW, rounds=40)
    many, many_by_hand = _lowering_times(_MANY, rounds=6)
    yield Figure("  trace and lower alone", few / few_by_hand)
    yield Figure(f"  the same, {_MANY:,} equations", many / many_by_hand)
    own, own_of_many = few - few_by_hand, many - many_by_hand
    yield Figure(
        f"lox's own part of trace and lower, an equation of {_MANY:,} / of {_FEW}",
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
    # a function that is made anew has been traced by nobody
    return jax.jit(make(equations)).lower(jnp.float32(0.5))


def _spooled(equations: int) -> Any:
    return lox.spool(long(equations))
