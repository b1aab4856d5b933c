"""`when`: what an event costs that rarely or never happens.

On CPUs, XLA (as of JAX 0.10) runs a loop body of up to eight kernels in sequence, and a
larger one by a scheduler, which takes 0.4 µs longer. An event with a `when` adds a
kernel for the `when` and one for the conditional delivery, and those of values that
nothing else needs, such as the step. The first body has more than eight kernels with
and without the event. The second one exceeds them only with the event, by hand too.

The bodies take about 1 µs, so that what the event adds can be measured on a busy
machine. The ratios are those of a body of 11 µs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback

import lox

from .figure import Figure
from .interleaved import best_times

_SHORT, _STEPS = 100, 1_000
_LONG = 1_000_000
_KEPT = 1_000
_BODY = 11e-6  # seconds


def figures() -> Iterator[Figure]:
    tapped, plain = _times(_log, None, statistics=6)
    yield Figure(
        "tap of `log(when=False)` / no log, loop body of 11 µs",
        1 + (tapped - plain) / _BODY,
        1.02,
    )
    tapped, by_hand, plain = _times(_log, _log_by_hand, None, statistics=0)
    yield Figure(
        "  / `cond` and callback by hand, body of five kernels",
        (_BODY + tapped - plain) / (_BODY + by_hand - plain),
        1.02,
    )
    yield Figure("  / no log, body of five kernels", 1 + (tapped - plain) / _BODY)
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


def _times(*logs: Any, statistics: int) -> list[float]:
    """The times of an iteration, with each of these ways to log.

    They are differences between a long and a short loop: calling a program with
    ordered callbacks takes JAX 0.2 ms longer, however long its loop is.
    """
    matrix = jnp.eye(16) * 0.5

    def contender(log: Any, steps: int) -> Any:
        fun = _loop(log, steps, statistics)
        run = jax.jit(lox.tap(fun, _ignore) if log is _log else fun)

        def call() -> None:
            jax.block_until_ready(run(matrix))
            jax.effects_barrier()

        return call

    lengths = (_SHORT, _SHORT + _STEPS)
    contenders = [contender(log, steps) for log in logs for steps in lengths]
    times = best_times(*contenders, rounds=5, repeats=60)
    pairs = zip(times[::2], times[1::2], strict=True)
    return [(long - short) / _STEPS for short, long in pairs]


def _loop(log: Any, steps: int, statistics: int) -> Any:
    def loop(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            x, size, *others = carry
            x = jnp.tanh(x @ x) + 0.1
            size = size * 0.5 + x.sum()
            others = [0.9 * other + k for k, other in enumerate(others)]
            if log is not None:
                log(size, i)
            return (x, size, *others), None

        start = x, *[jnp.float32(k) for k in range(1 + statistics)]
        return lax.scan(body, start, jnp.arange(steps))[0]

    return loop


def _log(size: Any, i: Any) -> None:
    lox.log({"size": size}, when=size > 1e9, step=i)


def _log_by_hand(size: Any, i: Any) -> None:
    def call() -> None:
        io_callback(lambda *_: None, None, size, i, ordered=True)

    lax.cond(size > 1e9, call, lambda: None)


def _rare(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        carry = carry * 0.5 + x
        lox.log({"x": carry}, when=x % 1000 == 0, step=x.astype(int))
        return carry, None

    return lax.scan(body, jnp.float32(0), xs)[0]


def _ignore(logs: lox.logdict) -> None:
    del logs
