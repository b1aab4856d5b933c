"""`lox.observe` with `lox.tap`, and jax-tap: the carry of every iteration."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .interleaved import best_times

_STEPS = 1_000


def figures() -> Iterator[Figure]:
    if importlib.util.find_spec("jaxtap") is None:
        message = "skipped: jax-tap is not installed: pip install 'jax-lox[bench]'"
        print(message, file=sys.stderr)
        return
    observed, recorded, plain = best_times(
        *map(_contender, (_observed(), _recorded(), _loop)), rounds=15
    )
    yield Figure("tap(observe(f)), per iteration / jax-tap", observed / recorded, 0.06)
    yield Figure("  / without", observed / plain)


def _contender(fun: Callable[[Any], Any]) -> Callable[[], None]:
    run = jax.jit(fun)
    x = jnp.float32(1)

    def call() -> None:
        jax.block_until_ready(run(x))
        jax.effects_barrier()

    return call


def _observed() -> Callable[[Any], Any]:
    values: list[Any] = []

    def fun(x: Any) -> Any:
        return _loop(x)

    tapped = lox.tap(lox.observe(fun, carry=True), values.append)
    jax.block_until_ready(tapped(jnp.float32(1)))
    assert len(values) == _STEPS
    return lox.tap(lox.observe(fun, carry=True), lambda logs: None)


def _recorded() -> Callable[[Any], Any]:
    import jaxtap

    values: list[Any] = []

    def fun(x: Any) -> Any:
        return _loop(x)

    jax.block_until_ready(jaxtap.verbose(fun, on_step=values.append)(jnp.float32(1)))
    jax.effects_barrier()
    assert len(values) == _STEPS
    return jaxtap.verbose(fun, on_step=lambda event: None)


def _loop(x: Any) -> Any:
    def body(carry: Any, _: None) -> Any:
        return carry * 0.5 + jnp.sin(carry), None

    return lax.scan(body, x, None, length=_STEPS)[0]
