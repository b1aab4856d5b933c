"""`lox.progress`: the time that a bar adds to each iteration of a loop.

A loop makes 20 to 100 reports, and its call takes 0.2 ms longer because JAX orders
their callbacks. The direct measurement includes both.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .loop_bodies import details, ratios


def figures() -> Iterator[Figure]:
    one, lanes = jnp.linspace(0, 1, 512), jnp.linspace(0, 1, 512).reshape(8, 64)
    for make, kind in ((_scan, "scan"), (_while, "while_loop")):
        for vmap, x, where in (
            (lambda fun: fun, one, ""),
            (jax.vmap, lanes, ", 8 vmapped lanes"),
        ):

            def plain(
                steps: int, count: int, make: Any = make, vmap: Any = vmap
            ) -> Any:
                return vmap(make(steps, count))

            def shown(steps: int, count: int, plain: Any = plain) -> Any:
                return _shown(plain(steps, count), steps)

            measured, _ = ratios([shown, plain], x)
            what = f"`progress` / without, {kind} with a body of 11 µs{where}"
            yield Figure(what, measured.direct, 1.01)
            yield from details(measured)


def _shown(fun: Callable[[Any], Any], steps: int) -> Callable[[Any], Any]:
    return lox.progress(fun, total=steps, file=_Nowhere())


def _scan(steps: int, repetitions: int) -> Callable[[Any], Any]:
    def body(carry: Any, _: None) -> Any:
        x, size = carry
        x = _work(x, repetitions)
        return (x, size * 0.5 + x.sum()), None

    return lambda x: lax.scan(body, (x, jnp.float32(0)), None, length=steps)[0]


def _while(steps: int, repetitions: int) -> Callable[[Any], Any]:
    def body(carry: Any) -> Any:
        x, i = carry
        return _work(x, repetitions), i + 1

    def loop(x: Any) -> Any:
        last = steps + jnp.floor(x[0])  # each lane has its own
        return lax.while_loop(lambda carry: carry[1] < last, body, (x, 0.0))

    return loop


def _work(x: Any, repetitions: int) -> Any:
    for _ in range(repetitions):
        x = jnp.tanh(x) + 0.1
    return x


class _Nowhere(io.TextIOBase):
    """A file that discards what is written to it."""

    def write(self, text: str) -> int:
        return len(text)
