"""From a program to its rows: what `lox.spool` and `logify.logify` share."""

from collections.abc import Sequence
from typing import Any

from lox._events.event import Event
from lox._interpreter.contents import events_of
from lox._interpreter.handlers import Collector, State
from lox._interpreter.inference import survey, survey_equation
from lox._interpreter.rows import Record, Reductions, rows_of
from lox._interpreter.taker import Taker
from lox._interpreter.walk import Walk
from lox._streams.program import Streams, StreamStates
from lox._streams.stream import Plan

from .options import Options


def collect(
    closed: Any, args: Sequence[Any], options: Options, outermost: bool
) -> tuple[list[Any], Record, dict[str, Any]]:
    """Evaluates a program.

    Returns:
        Its results, its rows, and, for the keys with a capacity, how many rows there
        was no room for.
    """
    types, streams = Record(), Streams({}, options.selection)
    chosen = filter(options.selection.takes_event, events_of(closed))
    if not options.every_row or any(event.call.reduce is not None for event in chosen):
        types = survey(closed, options.selection, options.reduction)
        options.check_window(types, "lox.spool")
        streams = _streams(types, closed, options)
    spooler = _Spooler(options, outermost, streams)
    outs, record, state = Walk(spooler)(closed, args, State(streams.initial()))
    return outs, *_joined(record, types, streams, state.streams)


class _Spooler(Taker):
    """Gives each event back as a row, or puts it into its stream."""

    def __init__(self, options: Options, outermost: bool, streams: Streams) -> None:
        super().__init__(options.selection, options.keep_logs, outermost)
        self._options = options
        self._reductions: Reductions = options.reduction
        self._streams = streams

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        record = rows_of(event, operands, self._reductions)
        record, streams = self._streams.update(state.streams, record)
        return record, state.with_streams(streams)

    def part(self, state: State, eqn: Any) -> State:
        return state.with_streams(self._streams.part(state.streams, eqn))

    def rows_only(self, walk: Walk, eqn: Any) -> Collector:
        types = survey_equation(walk, eqn, self._selection, self._reductions)
        unbounded = [key for key, rows in types.items() if rows.unbounded]
        return _Spooler(self._options, self._outermost, self._streams.only(unbounded))

    def absorb(self, record: Record, state: State) -> tuple[Record, State]:
        record, streams = self._streams.update_all(state.streams, record)
        return record, state.with_streams(streams)


def _streams(types: Record, closed: Any, options: Options) -> Streams:
    """Streams for the keys of which not every row is kept.

    A key that has no bound and no room stays without: its loop will say so.
    """
    interval = options.interval or 1
    plans: dict[str, Plan] = {}
    for key, rows in types.items():
        reduction = rows.reduction
        thinned = bool(options.interval) and (rows.stacked or rows.unbounded)
        happens = rows.length or rows.unbounded
        if not happens or not (reduction or thinned or rows.unbounded):
            continue
        window = options.window if reduction else None
        size = None
        if not reduction or window:
            size = options.capacity
            if not rows.unbounded:
                size = -(-rows.length // (interval * (window or 1)))
            if size is None:
                continue
        step = reduction.step if reduction else None
        plans[key] = Plan(interval, step, window, size)
    return Streams.of(closed, types, plans, options.selection, emits=False)


def _joined(
    record: Record, types: Record, streams: Streams, state: StreamStates
) -> tuple[Record, dict[str, Any]]:
    """The rows of the program and of its streams, in the order in which keys came."""
    dropped: dict[str, Any] = {}
    found = dict(record)
    for name, stream in streams.items():
        reduced, lost = stream.all_rows(state[name])
        found.update(reduced)
        if lost is not None:
            dropped.update(dict.fromkeys(reduced, lost))
    joined = Record()
    for key in types or record:
        rows = found[key]
        if rows.reduce is not None and key not in streams:
            if not rows.length and rows.reduction:
                continue  # of nothing, there is nothing to tell
            rows = rows.with_time()
        joined[key] = rows
    return joined, dropped
