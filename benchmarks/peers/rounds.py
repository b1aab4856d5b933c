"""Times contenders in interleaved rounds, so that a slow moment affects all."""

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

_SHORTEST = 2e-4  # seconds; shorter calls are timed several at a time
_MOST_ROUNDS = 200
_FEWEST_ROUNDS = 3
_LONG = 5.0  # seconds; calls that take longer have two turns

Clock = Callable[[], float]


def time_in_rounds(
    runs: Sequence[Callable[[], Any]],
    estimates: Sequence[float],
    seconds: float,
    clock: Clock = time.perf_counter,
    after: Sequence[Callable[[], Any]] | None = None,
    most_rounds: int = _MOST_ROUNDS,
) -> list[list[float]]:
    """The times of calls of each contender.

    Each contender has the same number of seconds. One that is slow has fewer turns,
    spread evenly over the rounds: at least three, or two if a call takes longer than
    five seconds. The order is reversed after each round.

    Args:
        runs: what to time. Each has been called before.
        estimates: how long a call of each takes, about.
        seconds: how long all of them may take, about.
        clock: a clock.
        after: is called after each turn of a contender, and not timed.
        most_rounds: the number of turns of a fast contender.
    """
    calls, turns = [], []
    for took in estimates:
        calls.append(max(1, math.ceil(_SHORTEST / max(took, 1e-9))))
        each = max(took, 1e-9) * calls[-1]
        fitting = int(seconds / len(runs) / each)
        fewest = _FEWEST_ROUNDS if took < _LONG else _FEWEST_ROUNDS - 1
        turns.append(min(max(fitting, fewest), most_rounds))
    rounds = max(turns, default=0)
    times: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for k in range(rounds):
            for i in order:
                if (k + 1) * turns[i] // rounds > k * turns[i] // rounds:
                    times[i].append(_time(runs[i], calls[i], clock))
                    if after is not None:
                        after[i]()
            order.reverse()
            gc.collect(0)
    finally:
        if collecting:
            gc.enable()
    return times


def _time(run: Callable[[], Any], calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls
