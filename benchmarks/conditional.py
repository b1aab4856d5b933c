"""`when`: what an event costs that rarely or never happens."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .interleaved import best_times

_STEPS = 2_000
_LONG = 1_000_000
_KEPT = 1_000
_BODY = "a loop body of about 11 µs"


def figures() -> Iterator[Figure]:
    matrix = jnp.eye(56) * 0.5
    plain = jax.jit(lambda x: _loop(x, logs=False))
    tapped = jax.jit(lox.tap(lambda x: _loop(x, logs=True), _ignore))

    def run(fun: Any) -> None:
        jax.block_until_ready(fun(matrix))
        jax.effects_barrier()

    with_events, without = best_times(
        lambda: run(tapped), lambda: run(plain), rounds=40
    )
    yield Figure(
        f"tap of `log(when=False)` / no log, {_BODY}", with_events / without, 1.02
    )
    steps = jax.ShapeDtypeStruct((_LONG,), jnp.float32)
    program = jax.jit(lox.spool(_rare, capacity=_KEPT)).lower(steps).compile()
    analysis = program.memory_analysis()
    assert analysis is not None
    used = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    yield Figure(
        "bytes of `spool(capacity=)`, `when` true 1 in 1,000 / bytes of the rows",
        used / (_KEPT * 8),  # a value and a step
        1.1,
    )


def _loop(x: Any, logs: bool) -> Any:
    def body(carry: Any, i: Any) -> Any:
        x, size = carry
        x = jnp.tanh(x @ x) + 0.1
        size = size * 0.5 + x.sum()
        if logs:
            lox.log({"size": size}, when=size > 1e9, step=i)
        return (x, size), None

    return lax.scan(body, (x, jnp.float32(0)), jnp.arange(_STEPS))[0]


def _rare(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        carry = carry * 0.5 + x
        lox.log({"x": carry}, when=x % 1000 == 0, step=x.astype(int))
        return carry, None

    return lax.scan(body, jnp.float32(0), xs)[0]


def _ignore(logs: lox.logdict) -> None:
    del logs
