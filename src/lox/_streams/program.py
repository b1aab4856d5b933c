"""All streams of a program: which keys go into which, and their states.

Keys that are always logged together, and for which the same is asked, share a stream.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.selection import Selection
from lox._interpreter.rows import Record, Rows
from lox._interpreter.walk import events_inside, events_of

from .key_group import State, Stream

Emit = Callable[[Stream, Record, State, Any], None]


class Streams:
    """The streams of a program; their states are a dict by name."""

    def __init__(
        self, streams: Iterable[Stream] = (), selection: Selection | None = None
    ) -> None:
        self._selection = selection or Selection()
        self._streams = {str(i): stream for i, stream in enumerate(streams)}
        self._of_key = {
            key: name for name, stream in self._streams.items() for key in stream.rows
        }

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __contains__(self, key: str) -> bool:
        return key in self._of_key

    def items(self) -> Iterable[tuple[str, Stream]]:
        return self._streams.items()

    def initial(self) -> dict[str, State]:
        return {name: stream.initial() for name, stream in self._streams.items()}

    def check_optional(self, record: Mapping[str, Rows]) -> None:
        """Raises if these rows must not go past their streams.

        The rules of custom functions cannot be surveyed, nor have they a state.
        """
        for key, rows in record.items():
            if key in self and self._streams[self._of_key[key]].changes_rows:
                raise UnsupportedPrimitiveError(
                    f"{key!r}, logged at {rows.source}, is in the derivative or "
                    "batching rule of a custom function, where it can be neither "
                    "counted nor reduced. Leave `interval`, `reduce` and `window` out, "
                    "or choose other keys by `argnames`."
                )

    def only(self, keys: Iterable[str]) -> "Streams":
        """Those of these keys, by the same names."""
        names = {self._of_key[key] for key in keys if key in self}
        some = Streams((), self._selection)
        some._streams = {name: self._streams[name] for name in names}
        some._of_key = {k: name for k, name in self._of_key.items() if name in names}
        return some

    def part(self, state: Any, eqn: Any) -> Any:
        """The states of those that events inside an equation go into."""
        if not state:
            return state
        chosen = filter(self._selection.takes_event, events_inside(eqn))
        keys = {key for event in chosen for key in event.keys}
        names = {self._of_key[key] for key in keys if key in self._of_key}
        return {name: one for name, one in state.items() if name in names}

    def _taking(self, record: Mapping[str, Rows], state: Any) -> list[str]:
        """The names of those that the rows of one event go into."""
        if state is None:
            return []
        names = dict.fromkeys(self._of_key[key] for key in record if key in self)
        return [
            name
            for name in names
            if name in state and record.keys() >= self._streams[name].rows.keys()
        ]

    def fold_all(self, state: Any, record: Record) -> tuple[Record, Any]:
        """Puts rows of many events into their streams, one after the other."""
        for name in self._taking(record, state):
            stream = self._streams[name]
            rows = Record((key, record[key]) for key in stream.rows)

            def fold(one: State, row: Record, stream: Stream = stream) -> State:
                return stream.fold(one, row)[0]

            def body(one: State, row: Record, stream: Stream = stream) -> Any:
                row = Record(
                    (key, dataclasses.replace(rows, stacked=False))
                    for key, rows in row.items()
                )
                return _each(stream, fold, one, row), None

            if next(iter(rows.values())).stacked:
                new, _ = jax.lax.scan(body, state[name], rows)
            else:
                new, _ = body(state[name], rows)
            state = {**state, name: new}
            record = Record((k, one) for k, one in record.items() if k not in rows)
        return record, state

    def fold(
        self, state: Any, record: Record, then: Emit | None = None
    ) -> tuple[Record, Any]:
        """Puts the rows of one event into their streams.

        Args:
            state: the states.
            record: the rows.
            then: called with a stream, its rows, its new state, and whether that has
                complete rows.

        Returns:
            The rows that no stream took, and the new states.
        """
        for name in self._taking(record, state):
            stream = self._streams[name]
            rows = Record((key, record[key]) for key in stream.rows)

            def step(one: State, rows: Record, stream: Stream = stream) -> State:
                new, due = stream.fold(one, rows)
                if then is not None:
                    then(stream, rows, new, due)
                return new

            state = {**state, name: _each(stream, step, state[name], rows)}
            record = Record((k, one) for k, one in record.items() if k not in rows)
        return record, state


def _each(stream: Stream, step: Any, state: State, rows: Record) -> State:
    """Takes an event, which has more lanes than its stream if those join along time."""
    first = next(iter(rows.values()))
    # on a device of a mesh, the axis of the devices is not there
    lanes = stream.lanes - stream.devices
    more = first.lanes - lanes
    if more <= 0:
        return step(state, rows)

    def lanes_first(x: Any) -> Any:
        moved = jnp.moveaxis(x, range(lanes, first.lanes), range(more))
        count = math.prod(moved.shape[:more])
        return moved.reshape(count, *moved.shape[more:])

    def body(state: State, row: Record) -> tuple[State, None]:
        return step(state, row), None

    by_lane = Record(
        (key, dataclasses.replace(one.arrays(lanes_first), lanes=lanes))
        for key, one in rows.items()
    )
    return jax.lax.scan(body, state, by_lane)[0]


def groups(
    keys: Mapping[str, Any], closed: Any, selection: Selection
) -> list[list[str]]:
    """The keys that are always logged together and have the same options.

    Args:
        keys: the options by key.
        closed: the program.
        selection: which events count.
    """
    sites: dict[str, set[Event]] = {key: set() for key in keys}
    for event in filter(selection.takes_event, events_of(closed)):
        for key in event.keys:
            if key in sites:
                sites[key].add(event)
    together: dict[Any, list[str]] = {}
    for key, options in keys.items():
        together.setdefault((frozenset(sites[key]), options), []).append(key)
    return list(together.values())


# A callback in a loop makes XLA run its operations one by one, so that an accumulator
# takes longer than writing a row. Windows of up to so many bytes are folded at their
# end.
_MOST_UNFOLDED = 1 << 20


def emitting(
    rows: Mapping[str, Rows],
    reductions: Mapping[str, Any],
    interval: int,
    window: int | None,
    size: int | None,
) -> Stream:
    """A stream whose rows leave as soon as they are complete."""
    if not reductions or window is None:
        return Stream(rows, reductions, interval, window, size, emits=True)
    then = Stream(rows, reductions, 1, window, size, emits=False)
    then.events = None  # it gets what a buffer has, which may not be full
    period = window * (size or 1)
    length = period * sum(map(_bytes, then.rows.values()))
    if length > _MOST_UNFOLDED or not then.starts_anywhere:
        return Stream(rows, reductions, interval, window, size, emits=True)
    return Stream(rows, {}, interval, None, period, emits=True, then=then)


def _bytes(row: Rows) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in row.leaves)
