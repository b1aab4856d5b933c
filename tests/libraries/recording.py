"""What a program of a library logs, collected without lox, and comparisons with it.

A program is written once, as a function `make(log)` that returns the program. With
`lox.log` it is what a user writes, with `quiet` it logs nothing, and with a `Recorder`
it calls the host for every event, in program order, with JAX's own ordered callbacks.

`LOX_LIBRARY_STEPS=10` runs ten times as many steps.
"""

import functools
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

import lox

_TIMES = int(os.environ.get("LOX_LIBRARY_STEPS", "1"))

Event = tuple[dict[str, Any], dict[str, Any]]  # values and steps, by name
Make = Callable[[Callable[..., Any]], Callable[..., Any]]


# for tests that would take too long in the short form
long = pytest.mark.skipif(_TIMES == 1, reason="runs with `make libraries STEPS=10`")


def scaled(steps: int) -> int:
    """The number of steps to run; `steps` in the short form."""
    return steps * _TIMES


# --- the same program without lox ------------------------------------------


def quiet(data: Any, **options: Any) -> None:
    """Logs nothing."""


class Recorder:
    """Collects events by ordered callbacks, which JAX allows under neither `vmap` nor
    `grad` of the whole program: lanes are recorded one by one, and forward."""

    def __init__(self, in_custom_rules: bool = False) -> None:
        self.events: list[Event] = []
        self._in_custom_rules = in_custom_rules

    def log(self, data: dict[str, Any], **steps: Any) -> None:
        # derivatives within the program must not reach the callback
        event = jax.lax.stop_gradient((data, steps))
        if self._in_custom_rules:
            # JAX refuses `io_callback` in functions with custom derivative rules
            jax.debug.callback(self._append, *event, ordered=True)
        else:
            io_callback(self._append, None, *event, ordered=True)

    def _append(self, data: Any, steps: Any) -> None:
        self.events.append(jax.tree.map(np.array, (data, steps)))


def record(
    make: Make, *args: Any, in_custom_rules: bool = False
) -> tuple[Any, list[Event]]:
    """The result and the events of one run of a program."""
    recorder = Recorder(in_custom_rules)
    result = jax.block_until_ready(jax.jit(make(recorder.log))(*args))
    jax.effects_barrier()
    return result, recorder.events


def record_lanes(make: Make, *args: Any, **options: Any) -> list[list[Event]]:
    """The events of every lane, run alone; all arguments have a leading lane axis."""
    recorder = Recorder(**options)
    program = jax.jit(make(recorder.log))
    lanes = []
    for i in range(len(jax.tree.leaves(args)[0])):
        jax.block_until_ready(program(*jax.tree.map(lambda x, i=i: x[i], args)))
        jax.effects_barrier()
        lanes.append(recorder.events[:])
        recorder.events.clear()
    return lanes


def events_of(threaded: dict[str, Any], **steps: Any) -> list[Event]:
    """Events of values that a program returned by hand, with a leading time axis."""
    count = len(jax.tree.leaves(threaded)[0])
    both = jax.tree.map(np.asarray, (threaded, steps))
    return [jax.tree.map(lambda x, i=i: x[i], both) for i in range(count)]


# --- comparisons -----------------------------------------------------------


def assert_bitwise(found: Any, wanted: Any) -> None:
    """Asserts that results are the same, to the last bit."""

    def compare(path: Any, found: Any, wanted: Any) -> None:
        if jax.dtypes.issubdtype(found.dtype, jax.dtypes.prng_key):
            found, wanted = jax.random.key_data(found), jax.random.key_data(wanted)
        found, wanted = np.asarray(found), np.asarray(wanted)
        where = jax.tree_util.keystr(path)
        assert found.dtype == wanted.dtype, where
        np.testing.assert_array_equal(found, wanted, err_msg=where)

    jax.tree_util.tree_map_with_path(compare, found, wanted)


def assert_close(found: Any, wanted: Any, rtol: float = 1e-5, at: str = "") -> None:
    """Asserts that trees are equal up to the rounding of another compilation."""

    def compare(found: Any, wanted: Any) -> None:
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert found.shape == wanted.shape, at
        finite = np.abs(wanted[np.isfinite(wanted)])
        atol = rtol * float(finite.max(initial=0))  # allows for cancellation
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=at)

    jax.tree.map(compare, found, wanted)


def by_key(events: list[Event]) -> dict[str, list[tuple[Any, dict[str, Any]]]]:
    """The rows of every key, each with its steps."""
    rows = defaultdict(list)
    for data, steps in events:
        for key, value in data.items():
            rows[key].append((value, steps))
    return dict(rows)


def spooled_rows(logs: lox.logdict) -> dict[str, list[tuple[Any, dict[str, Any]]]]:
    """The same of spooled or buffered logs of one lane."""
    rows = {}
    for key in logs:
        of_key = logs.compact().filter([key])
        rows[key] = [
            (row[key], {name: of[key] for name, of in row.steps.items()})
            for row in of_key.rows()
        ]
    return {key: of_key for key, of_key in rows.items() if of_key}


def _assert_rows(found: Any, wanted: Any, rtol: float) -> None:
    counts = {key: len(rows) for key, rows in wanted.items()}
    assert {key: len(rows) for key, rows in found.items()} == counts
    for key, rows in wanted.items():
        assert_close(_stacked(found[key]), _stacked(rows), rtol, key)


def _stacked(rows: Any) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def assert_recorded(events: list[Event], by_hand: list[Event]) -> None:
    """Asserts that recorded events are the values that the program returned by hand."""
    keys = {key for data, _ in by_hand for key in data}
    rows = by_key(events)
    _assert_rows({key: rows[key] for key in keys}, by_key(by_hand), 1e-6)


def assert_spooled(logs: lox.logdict, events: list[Event], rtol: float = 1e-5) -> None:
    """Asserts that spooled logs have every row of each key, with steps, in order."""
    _assert_rows(spooled_rows(logs), by_key(events), rtol)


def assert_tapped(
    calls: list[lox.logdict], events: list[Event], rtol: float = 1e-5
) -> None:
    """Asserts that a callback got the events one by one, in program order."""
    assert [set(logs) for logs in calls] == [set(data) for data, _ in events]
    found = [
        (dict(logs), {name: next(iter(of.values())) for name, of in logs.steps.items()})
        for logs in calls
    ]
    _assert_rows(by_key(found), by_key(events), rtol)


def assert_buffered(
    calls: list[lox.logdict], events: list[Event], rtol: float = 1e-5
) -> None:
    """Asserts that a callback got the events of each key in order, in batches."""
    rows = defaultdict(list)
    for logs in calls:
        for key, of_key in spooled_rows(logs).items():
            rows[key] += of_key
    _assert_rows(dict(rows), by_key(events), rtol)


def assert_reduced(
    logs: lox.logdict, events: list[Event], modes: dict[str, str], rtol: float = 1e-5
) -> None:
    """Asserts that reductions are what NumPy computes from the events."""
    reduce = {"mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max}
    reduce |= {"count": lambda x, axis: x.shape[0], "last": lambda x, axis: x[-1]}
    rows = by_key(events)
    for key, mode in modes.items():
        values = _stacked([value for value, _ in rows[key]])
        wanted = jax.tree.map(lambda x, mode=mode: reduce[mode](x, axis=0), values)
        assert_close(logs[key], wanted, rtol, key)


def check_logs(
    make: Make,
    args: tuple[Any, ...],
    events: list[Event],
    reduce: dict[str, str],
    *,
    capacity: int | None = None,
    rtol: float = 1e-5,
) -> None:
    """Checks `spool`, `tap` with and without a buffer, `nolog`, and reductions.

    Args:
        make: the program, of `log`.
        args: what it is called with.
        events: what it logs.
        reduce: the reductions to check, by key.
        capacity: for keys of unbounded loops.
        rtol: the relative tolerance of values.
    """
    logged = make(lox.log)
    plain = jax.jit(make(quiet))(*args)

    result, logs = jax.jit(lox.spool(logged, capacity=capacity))(*args)
    assert_spooled(logs, events, rtol)
    assert_close(result, plain, rtol)

    calls: list[lox.logdict] = []
    assert_close(lox.tap(logged, calls.append)(*args), plain, rtol)
    assert_tapped(calls, events, rtol)

    # two transformations, one inside the other, in one program
    calls = []
    reducing = lox.spool(logged, argnames=list(reduce), reduce=reduce, keep_logs=True)
    buffered = lox.tap(reducing, calls.append, buffer=7)
    assert_reduced(buffered(*args)[1], events, reduce, rtol)
    assert_buffered(calls, events, rtol)

    assert_bitwise(jax.jit(lox.nolog(logged))(*args), plain)


def check_gradient(
    make: Make,
    args: tuple[Any, ...],
    events: list[Event],
    *,
    capacity: int | None = None,
    rtol: float = 1e-5,
) -> None:
    """Checks that derivatives by the last argument log what the program logs.

    The other arguments are constants: as with `jax.jit`, a backward rule cannot close
    over traced values of the function inside which it was made.
    """
    *constants, x = args

    def program(log: Callable[..., Any]) -> Callable[[Any], Any]:
        return functools.partial(make(log), *constants)

    logged = program(lox.log)
    plain = jax.jit(jax.grad(program(quiet)))(x)

    grad, logs = lox.spool(jax.grad(logged), capacity=capacity)(x)
    assert_spooled(logs, events, rtol)
    assert_close(grad, plain, rtol)

    spooled = lox.spool(logged, capacity=capacity)
    grad, logs = jax.jit(jax.grad(spooled, has_aux=True))(x)
    assert_spooled(logs, events, rtol)
    assert_close(grad, plain, rtol)

    calls: list[lox.logdict] = []
    assert_close(jax.grad(lox.tap(logged, calls.append))(x), plain, rtol)
    jax.effects_barrier()
    assert_tapped(calls, events, rtol)

    assert_bitwise(jax.jit(lox.nolog(jax.grad(logged)))(x), plain)
    assert_bitwise(jax.jit(jax.grad(lox.nolog(logged)))(x), plain)


def assert_lanes(
    logs: lox.logdict, lanes: list[list[Event]], rtol: float = 1e-5
) -> None:
    """Asserts that every lane of spooled logs has the rows that it logs alone."""
    for lane, events in zip(logs.lanes(), lanes, strict=True):
        assert_spooled(lane, events, rtol)


def check_lanes(
    make: Make,
    args: tuple[Any, ...],
    lanes: list[list[Event]],
    *,
    capacity: int | None = None,
    rtol: float = 1e-5,
) -> None:
    """Checks that every lane logs what it logs alone.

    Events have a step `lane`, so that a callback can tell them apart.
    """
    logged = make(lox.log)
    plain = jax.jit(jax.vmap(make(quiet)))(*args)

    outside = jax.jit(jax.vmap(lox.spool(logged, capacity=capacity)))
    result, logs = outside(*args)
    assert_lanes(logs, lanes, rtol)
    assert_close(result, plain, rtol)
    _, logs = lox.spool(jax.vmap(logged), capacity=capacity)(*args)
    assert_lanes(logs, lanes, rtol)

    calls: list[lox.logdict] = []
    lox.tap(jax.vmap(logged), calls.append)(*args)
    tapped: dict[int, list[lox.logdict]] = defaultdict(list)
    for call in calls:
        tapped[int(next(iter(call.lane.values())))].append(call)
    for number, events in enumerate(lanes):
        assert_tapped(tapped[number], events, rtol)

    assert_bitwise(jax.jit(jax.vmap(lox.nolog(logged)))(*args), plain)
