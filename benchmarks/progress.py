"""`lox.progress`: what a bar adds to each iteration of a loop.

The bodies take less than 1 µs, so that what a bar adds can be measured on a busy
machine. The ratios are those of a body of 11 µs. They are taken from the difference
between a long and a short loop, which make the same number of reports: a loop makes up
to 100, of about 6 µs each, however long it is.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .interleaved import best_times

_SHORT, _STEPS = 100, 1_000
_BODY = 11e-6  # seconds


def figures() -> Iterator[Figure]:
    one, lanes = jnp.linspace(0, 1, 512), jnp.linspace(0, 1, 512).reshape(8, 64)
    for make, kind in ((_scan, "scan"), (_while, "while_loop")):
        for vmap, x, where in (
            (lambda fun: fun, one, ""),
            (jax.vmap, lanes, ", 8 vmapped lanes"),
        ):
            contenders = [
                _contender(show(vmap(make(steps)), steps), x)
                for show in (_shown, lambda fun, _: fun)
                for steps in (_SHORT, _SHORT + _STEPS)
            ]
            short, long, plain_short, plain_long = best_times(
                *contenders, rounds=5, repeats=60
            )
            added = (long - short) - (plain_long - plain_short)
            yield Figure(
                f"`progress` / without, {kind} with a body of 11 µs{where}",
                1 + added / _STEPS / _BODY,
                1.01,
            )


def _contender(fun: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    run = jax.jit(fun)

    def call() -> None:
        jax.block_until_ready(run(x))
        jax.effects_barrier()

    return call


def _shown(fun: Callable[[Any], Any], steps: int) -> Callable[[Any], Any]:
    return lox.progress(fun, total=steps, file=_Nowhere())


def _scan(steps: int) -> Callable[[Any], Any]:
    def body(carry: Any, _: None) -> Any:
        x, size = carry
        x = jnp.tanh(x) + 0.1
        return (x, size * 0.5 + x.sum()), None

    return lambda x: lax.scan(body, (x, jnp.float32(0)), None, length=steps)[0]


def _while(steps: int) -> Callable[[Any], Any]:
    def body(carry: Any) -> Any:
        x, i = carry
        return jnp.tanh(x) + 0.1, i + 1

    def loop(x: Any) -> Any:
        last = steps + jnp.floor(x[0])  # each lane has its own
        return lax.while_loop(lambda carry: carry[1] < last, body, (x, 0.0))

    return loop


class _Nowhere(io.TextIOBase):
    """A file that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)
