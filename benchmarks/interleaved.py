"""Interleaved timing: ratios of times that are valid on a busy machine."""

import gc
import time
from collections.abc import Callable
from typing import Any

Contender = Callable[[], Any]

# The remaining relative error of a ratio of two times.
NOISE = 0.05


def best_times(
    *contenders: Contender,
    calls: int = 1,
    rounds: int = 9,
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """The shortest time of a call of each contender, in seconds.

    Every round calls each contender, so that a slow moment affects all of them. The
    order is reversed after each round, so that none always follows the same one.
    Between rounds, garbage is collected, which takes long, so short calls make
    `repeats` rounds at a time.
    """
    for contender in contenders:
        contender()
    times = [float("inf")] * len(contenders)
    order = list(range(len(contenders)))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for _ in range(repeats):
                for i in order:
                    times[i] = min(times[i], _time(contenders[i], calls, clock))
                order.reverse()
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return times


def _time(contender: Contender, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        contender()
    return (clock() - start) / calls
