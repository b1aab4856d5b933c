"""The expected output of a stream, by NumPy, from the events of a plain Python run."""

import dataclasses
import random
from typing import Any

import jax
import numpy as np

from lox._logs.access import key_of

from . import oracle

REDUCTIONS = ("mean", "sum", "min", "max", "first", "last", "count", "std", "var")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `lox.spool` and `lox.tap`, by the same names."""

    interval: int | None = None
    reduce: str | None = None
    window: int | None = None

    def given(self) -> dict[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


def options(seed: int) -> Options:
    rng = random.Random(seed)
    interval = rng.choice((None, None, 1, 2, 3, 7))
    reduce = rng.choice((None, *REDUCTIONS))
    window = rng.choice((None, 1, 2, 3, 10)) if reduce else None
    return Options(interval, reduce, window)


def rows_of(events: Any, options: Options) -> dict[str, tuple[list[Any], list[Any]]]:
    """The expected values and steps of each key."""
    values = oracle.by_key(events)
    steps = oracle.by_key([(dict.fromkeys(data, s), None) for data, s in events])
    return {key: _stream(values[key], steps[key], options) for key in values}


def _stream(values: Any, steps: Any, options: Options) -> tuple[list[Any], list[Any]]:
    values = values[:: options.interval or 1]
    steps = steps[:: options.interval or 1]
    if options.reduce is None:
        return values, steps
    window = options.window or len(values)
    starts = range(0, len(values), window)
    which = 0 if options.reduce == "first" else -1
    return (
        [reduced(options.reduce, values[i : i + window]) for i in starts],
        [steps[i : i + window][which] for i in starts],
    )


def reduced(name: str, values: list[Any]) -> Any:
    if name == "count":
        return np.int32(len(values))
    function = {
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
        **{n: getattr(np, n) for n in ("mean", "sum", "min", "max", "std", "var")},
    }[name]

    def leaf(*leaves: Any) -> Any:
        stacked = np.stack(leaves).astype(np.float64)
        return function(stacked) if name in ("first", "last") else function(stacked, 0)

    with np.errstate(invalid="ignore"):  # the variance of infinite values is NaN
        return jax.tree.map(leaf, *values)


def assert_spooled(logs: Any, events: Any, options: Options) -> None:
    wanted = rows_of(events, options)
    some = {key for key in logs if key_of(logs, key).length()}
    assert some == set(wanted), (sorted(some), sorted(wanted))
    for key, (values, steps) in wanted.items():
        _compare(logs, key, values, steps)
        if options.reduce is not None:
            assert key_of(logs, key).info.stacked == (options.window is not None), key


def _compare(logs: Any, key: str, values: list[Any], steps: list[Any]) -> None:
    assert key_of(logs, key).length() == len(values), (key, logs[key], values)
    found = jax.tree.map(
        lambda leaf, own: np.reshape(leaf, (len(values), *np.shape(own))),
        logs[key],
        values[0],
    )
    oracle.compare(oracle.stack(values), found)
    for name in steps[0]:
        expected = np.asarray([s[name] for s in steps], dtype=np.float32)
        oracle.compare(expected, np.reshape(getattr(logs, name)[key], expected.shape))


def assert_tapped(
    calls: list[Any], events: Any, options: Options, buffer: int | None
) -> None:
    """The calls, joined, are all rows in order, and none has more than `buffer`."""
    wanted = rows_of(events, options)
    found: dict[str, list[Any]] = {}
    for logs in calls:
        for key in logs:
            length = key_of(logs, key).length()
            assert 0 < length <= (buffer or 1), (key, length)
            found.setdefault(key, []).append(logs.filter([key]))
    assert set(found) == set(wanted), (sorted(found), sorted(wanted))
    for key, (values, steps) in wanted.items():
        lengths = [key_of(part, key).length() for part in found[key]]
        # only the last one may be smaller
        assert all(length == (buffer or 1) for length in lengths[:-1]), (key, lengths)
        joined = found[key][0]
        for part in found[key][1:]:
            joined = joined + part
        _compare(joined, key, values, steps)
