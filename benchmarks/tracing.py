"""What a first call costs: tracing, lowering and compiling."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox

from .figure import Figure
from .interleaved import best_times
from .programs import long, long_by_hand

_FEW, _MANY = 300, 10_000


def figures() -> Iterator[Figure]:
    few, few_by_hand, compiled, compiled_by_hand = best_times(
        _lowers(_spooled, _FEW),
        _lowers(long_by_hand, _FEW),
        _compiles(_spooled, _FEW),
        _compiles(long_by_hand, _FEW),
        rounds=12,
    )
    name = f"{_FEW} equations"
    yield Figure(
        f"trace, lower and compile spool(f) / by hand, {name}",
        compiled / compiled_by_hand,
        1.15,
    )
    yield Figure("  trace and lower alone", few / few_by_hand, 1.15)
    many, many_by_hand = best_times(
        _lowers(_spooled, _MANY), _lowers(long_by_hand, _MANY), rounds=4
    )
    name = f"{_MANY:,} equations"
    yield Figure(f"  trace and lower alone, {name}", many / many_by_hand, 1.15)
    own, own_of_many = few - few_by_hand, many - many_by_hand
    yield Figure(
        f"lox's own part of trace and lower, an equation of {_MANY:,} / of {_FEW}",
        (own_of_many / _MANY) / (own / _FEW),
        1.3,  # linear; a difference of two times is noisier than either
    )
    jax.clear_caches()


def _spooled(equations: int) -> Any:
    return lox.spool(long(equations))


# A function that is made anew has been traced by nobody.


def _lowers(make: Callable[[int], Any], equations: int) -> Callable[[], Any]:
    x = jnp.float32(0.5)
    return lambda: jax.jit(make(equations)).lower(x)


def _compiles(make: Callable[[int], Any], equations: int) -> Callable[[], Any]:
    lowers = _lowers(make, equations)
    return lambda: lowers().compile()
