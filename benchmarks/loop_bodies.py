"""Measures the time that something adds to a loop body of 11 µs.

A figure is measured twice: directly, by loops whose body takes about 11 µs, and as the
time that is added to a body of about 1 µs, divided by 11 µs. The second leaves out
costs per call. Long loops are timed by the CPU time of all threads: on a busy machine,
their elapsed times vary by more than the added time.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from .figure import Figure
from .interleaved import best_times

BODY = 11e-6  # seconds
# Costs per call, such as 0.2 ms for ordered callbacks, are spread over the iterations.
_STEPS = 20_000
_SHORT, _LONG = 100, 1_100

# Makes a program of x, from the number of iterations and of repetitions in the body.
Loop = Callable[[int, int], Callable[[Any], Any]]


class Ratios(NamedTuple):
    """How much longer a loop takes than the one that it is compared with.

    Attributes:
        direct: measured with a body of 11 µs.
        added: the time added to a short body, as if it took 11 µs.
        body: the time of an iteration of the loop compared with, in µs.
    """

    direct: float
    added: float
    body: float


def details(ratios: Ratios) -> list[Figure]:
    """What to show below the direct ratio."""
    return [
        Figure("  the same, from the time added to a body of 1 µs", ratios.added),
        Figure("  µs of the body without it", ratios.body),
    ]


def ratios(loops: Sequence[Loop], x: Any, baseline: int = -1) -> list[Ratios]:
    """Compares loops with one of them.

    Args:
        loops: the loops.
        x: their argument.
        baseline: the index of the loop that the others are compared with.
    """
    count = _repetitions(loops[baseline], x)
    direct = best_times(
        *(_contender(loop(_STEPS, count), x) for loop in loops),
        rounds=25,
        clock=time.process_time,
    )
    times = best_times(
        *(_contender(loop(n, 1), x) for loop in loops for n in (_SHORT, _LONG)),
        rounds=5,
        repeats=60,
    )
    pairs = zip(times[::2], times[1::2], strict=True)
    iteration = [(long - short) / (_LONG - _SHORT) for short, long in pairs]
    return [
        Ratios(
            direct[i] / direct[baseline],
            1 + (iteration[i] - iteration[baseline]) / BODY,
            direct[baseline] / _STEPS * 1e6,
        )
        for i in range(len(loops))
    ]


def _repetitions(loop: Loop, x: Any) -> int:
    """The number of repetitions that take the body 11 µs."""
    one, many, steps = 1, 9, 2_000
    short, long = best_times(
        *(_contender(loop(steps, count), x) for count in (one, many)),
        rounds=9,
        clock=time.process_time,
    )
    each = (long - short) / steps / (many - one)
    return max(1, round(one + (BODY - short / steps) / each))


def _contender(fun: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    run = jax.jit(fun)

    def call() -> None:
        jax.block_until_ready(run(x))
        jax.effects_barrier()

    return call
