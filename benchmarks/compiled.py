"""`jax.jit(lox.spool(f))`, compared with a program that returns the values by hand."""

from collections.abc import Iterator

import jax
import numpy as np

import lox

from .figure import Figure
from .hlo import instructions
from .interleaved import NOISE, best_times
from .programs import PAIRS, Pair


def figures() -> Iterator[Figure]:
    for pair in PAIRS:
        spooled = lox.spool(pair.logged)
        _check(spooled, pair)
        count = len(instructions(spooled, pair.argument))
        count_by_hand = len(instructions(pair.by_hand, pair.argument))
        yield Figure(
            f"jit(spool(f)) / hand-written, instructions: {pair.name}",
            count / count_by_hand,
            1.0,
        )
        time, time_by_hand = best_times(
            _runs(spooled, pair.argument),
            _runs(pair.by_hand, pair.argument),
            calls=20,
            rounds=15,
        )
        yield Figure("  run time", time / time_by_hand, 1.0 + NOISE)


def _runs(fun, x):
    jitted = jax.jit(fun)
    return lambda: jitted(x)[0].block_until_ready()


def _check(spooled, pair: Pair) -> None:
    """Checks that both programs return the same values."""
    result, logs = jax.jit(spooled)(pair.argument)
    expected, expected_logs = jax.jit(pair.by_hand)(pair.argument)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert logs.keys() == expected_logs.keys()
    for key, value in logs.items():
        np.testing.assert_allclose(value, expected_logs[key], rtol=1e-6)
