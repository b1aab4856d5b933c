"""`when`: the cost of an event that rarely or never happens.

On CPUs, XLA (as of JAX 0.10) runs a loop body of up to eight kernels in sequence, and a
larger one by a scheduler, which takes 0.4 µs longer. An event with a `when` adds a
kernel for the `when` and one for the conditional delivery, and kernels for values that
nothing else needs, such as the step: four in all. The first body has more than eight
kernels with and without the event, and the second one has at most eight. The third one
has more than eight only with the event, also in the program by hand.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback

import lox

from .figure import Figure
from .loop_bodies import Loop, Ratios, details, ratios

_LONG = 1_000_000
_KEPT = 1_000


def figures() -> Iterator[Figure]:
    tapped, by_hand, _ = _ratios(_kernels, statistics=6)
    yield Figure(
        "tap of `log(when=False)` / no log, loop body of 11 µs", tapped.direct, 1.02
    )
    yield from details(tapped)
    yield Figure(
        "  / `cond` and callback by hand", tapped.direct / by_hand.direct, 1.02
    )
    tapped, by_hand, _ = _ratios(_fused, statistics=0)
    yield Figure(
        "tap of `log(when=False)` / no log, body of four kernels", tapped.direct, 1.02
    )
    yield from details(tapped)
    tapped, by_hand, _ = _ratios(_fused, statistics=1)
    yield Figure(
        "tap of `log(when=False)` / no log, body of five kernels", tapped.direct
    )
    yield from details(tapped)
    yield Figure(
        "  / `cond` and callback by hand", tapped.direct / by_hand.direct, 1.02
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


def _ratios(work: Any, statistics: int) -> list[Ratios]:
    """The ratios of a tapped event, of the same by hand, and of no event."""

    def loop(log: Any) -> Loop:
        def make(steps: int, repetitions: int) -> Any:
            fun = _loop(log, steps, work, repetitions, statistics)
            return lox.tap(fun, _ignore) if log is _log else fun

        return make

    return ratios([loop(_log), loop(_log_by_hand), loop(None)], jnp.eye(16) * 0.5)


def _loop(log: Any, steps: int, work: Any, repetitions: int, statistics: int) -> Any:
    def loop(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            x, size, *others = carry
            for _ in range(repetitions):
                x = work(x)
            size = size * 0.5 + x.sum()
            others = [0.9 * other + k for k, other in enumerate(others)]
            if log is not None:
                log(size, i)
            return (x, size, *others), None

        start = x, *[jnp.float32(k) for k in range(1 + statistics)]
        return lax.scan(body, start, jnp.arange(steps))[0]

    return loop


def _kernels(x: Any) -> Any:
    return jnp.tanh(x @ x) + 0.1


def _fused(x: Any) -> Any:
    return jnp.tanh(x) + 0.1


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
