"""All streams of a program, and their states.

Keys that are always logged together, with the same stages, share a stream.
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
from lox._interpreter.contents import events_inside, events_of
from lox._interpreter.rows import Record, Rows, map_rows
from lox._logs.grouping import group_keys

from .stages import State
from .stream import Plan, Stream

StreamStates = dict[int, State]
Emit = Callable[[Stream, Record, State, Any], None]
Update = Callable[[Stream, State, Record], State]


class Streams:
    """The streams of a program by number; their states have the same numbers."""

    def __init__(self, streams: Mapping[int, Stream], selection: Selection) -> None:
        self._streams = streams
        self._selection = selection
        self._of_key = {
            key: number for number, stream in streams.items() for key in stream.rows
        }

    @classmethod
    def of(
        cls,
        closed: Any,
        types: Mapping[str, Rows],
        plans: Mapping[str, Plan],
        selection: Selection,
        emits: bool,
    ) -> "Streams":
        """Creates streams for the keys that have a plan.

        Args:
            closed: the program.
            types: the types of the rows of all keys.
            plans: the stages by key.
            selection: which events are collected.
            emits: as in `Stream`.
        """
        sites: dict[str, set[Event]] = {key: set() for key in plans}
        for event in filter(selection.selects_event, events_of(closed)):
            for key in event.call.keys:
                if key in sites:
                    sites[key].add(event)
        groups = group_keys(plans, lambda key: (frozenset(sites[key]), plans[key]))
        # not a generator, where a `StopIteration` of a user's reduction would be lost
        streams = [
            Stream({key: types[key] for key in keys}, plans[keys[0]], emits)
            for keys in groups
        ]
        return cls(dict(enumerate(streams)), selection)

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __contains__(self, key: str) -> bool:
        return key in self._of_key

    def items(self) -> Iterable[tuple[int, Stream]]:
        return self._streams.items()

    def initial(self) -> StreamStates:
        return {number: one.initial() for number, one in self._streams.items()}

    def check_optional(self, record: Mapping[str, Rows]) -> None:
        """Raises if these rows must not bypass their streams.

        In the rules of custom functions, there is no state, and types cannot be
        inferred.
        """
        for key, rows in record.items():
            if key in self and self._streams[self._of_key[key]].changes_rows:
                raise UnsupportedPrimitiveError(
                    f"{key!r}, logged at {rows.source}, is in the derivative or "
                    "batching rule of a custom function, where it can be neither "
                    "counted nor reduced. Leave out `interval`, `reduce` and `window`, "
                    "or select other keys with `argnames`."
                )

    def only(self, keys: Iterable[str]) -> "Streams":
        """The streams of these keys, with the same numbers."""
        numbers = {self._of_key[key] for key in keys if key in self}
        return Streams({n: self._streams[n] for n in numbers}, self._selection)

    def part(self, state: StreamStates, eqn: Any) -> StreamStates:
        """The states that the events inside an equation need."""
        if not state:
            return state
        chosen = filter(self._selection.selects_event, events_inside(eqn))
        keys = {key for event in chosen for key in event.call.keys}
        numbers = {self._of_key[key] for key in keys if key in self}
        return {number: one for number, one in state.items() if number in numbers}

    def over(self, eqn: Any) -> dict[int, frozenset[str]]:
        """The `over` of events inside an equation, by the number of their stream.

        All events of a stream that are in one `shard_map` have the same.
        """
        found: dict[int, frozenset[str]] = {}
        for event in filter(self._selection.selects_event, events_inside(eqn)):
            for key in event.call.keys:
                if key in self:
                    found[self._of_key[key]] = frozenset(event.call.over)
        return found

    def _numbers_for(self, record: Record, state: StreamStates) -> list[int]:
        """The numbers of the streams that receive the rows of one event."""
        if not state:
            return []
        numbers = dict.fromkeys(self._of_key[key] for key in record if key in self)
        return [
            number
            for number in numbers
            if number in state and record.keys() >= self._streams[number].rows.keys()
        ]

    def update(
        self, state: StreamStates, record: Record, emit: Emit | None = None
    ) -> tuple[Record, StreamStates]:
        """Puts rows into their streams, in order.

        Args:
            state: the states.
            record: the rows.
            emit: called with a stream, its rows, its new state, and whether the rows in
                that state are complete.

        Returns:
            The rows that belong to no stream, and the new states.
        """

        def update(stream: Stream, one: State, rows: Record) -> State:
            new, due = stream.update(one, rows)
            if emit is not None:
                emit(stream, rows, new, due)
            return new

        for number in self._numbers_for(record, state):
            stream = self._streams[number]
            rows = Record((key, record[key]) for key in stream.rows)
            state = {**state, number: _each_row(update, stream, state[number], rows)}
            record = Record((k, one) for k, one in record.items() if k not in rows)
        return record, state


def _each_row(update: Update, stream: Stream, state: State, rows: Record) -> State:
    """Updates a stream with rows, in order of time."""
    if not next(iter(rows.values())).stacked:
        return _each_lane(update, stream, state, rows)

    def body(state: State, row: Record) -> tuple[State, None]:
        row = map_rows(row, lambda one: dataclasses.replace(one, stacked=False))
        return _each_lane(update, stream, state, row), None

    return jax.lax.scan(body, state, rows)[0]


def _each_lane(update: Update, stream: Stream, state: State, rows: Record) -> State:
    """Updates a stream with an event; extra lanes are processed one after the other.

    The event has more lanes than the stream if lanes are joined along time.
    """
    first = next(iter(rows.values()))
    # inside a `shard_map`, rows have no device axis
    lanes = stream.first.lanes - stream.first.devices
    more = first.lanes - lanes
    if more <= 0:
        return update(stream, state, rows)

    def lanes_first(x: Any) -> Any:
        moved = jnp.moveaxis(x, range(lanes, first.lanes), range(more))
        count = math.prod(moved.shape[:more])
        return moved.reshape(count, *moved.shape[more:])

    def body(state: State, row: Record) -> tuple[State, None]:
        return update(stream, state, row), None

    by_lane = Record(
        (key, dataclasses.replace(one.arrays(lanes_first), lanes=lanes))
        for key, one in rows.items()
    )
    return jax.lax.scan(body, state, by_lane)[0]
