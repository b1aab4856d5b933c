"""Collects the rows of a program: shared by `lox.spool` and `logify.logify`."""

from collections.abc import Mapping, Sequence
from typing import Any

from lox._events.event import Event
from lox._interpreter.contents import events_of
from lox._interpreter.device_flow import check_part_of_devices
from lox._interpreter.handlers import Collector, State
from lox._interpreter.inference import infer_rows, infer_rows_of_equation
from lox._interpreter.rows import Record, Reductions, rows_of
from lox._interpreter.selecting_collector import SelectingCollector
from lox._interpreter.walk import Walk
from lox._streams.program import Streams, StreamStates
from lox._streams.stream import Plan

from .options import Options


def collect(
    closed: Any, args: Sequence[Any], options: Options, outermost: bool
) -> tuple[list[Any], Record, dict[str, Any]]:
    """Evaluates a program and collects its rows.

    Args:
        closed: the program.
        args: its arguments.
        options: which events to collect, and how.
        outermost: whether no other transformation encloses the call.

    Returns:
        The results of the program, its rows, and how many rows there were in total, for
        each key with a capacity.
    """
    check_part_of_devices(closed)
    types, streams = Record(), Streams({}, options.selection)
    chosen = filter(options.selection.selects_event, events_of(closed))
    if not options.every_row or any(event.call.reduce is not None for event in chosen):
        types = infer_rows(closed, options.selection, options.reduction)
        options.check_window(types, "lox.spool")
        streams = _streams(types, closed, options)
    spooler = _Spooler(options, outermost, streams)
    outs, record, state = Walk(spooler)(closed, args, State(streams.initial()))
    return outs, *_joined(record, types, streams, state.streams)


class _Spooler(SelectingCollector):
    """Returns each event as a row, or puts it into its stream."""

    def __init__(self, options: Options, outermost: bool, streams: Streams) -> None:
        super().__init__(options.selection, options.keep_logs, outermost)
        self._options = options
        self._reductions: Reductions = options.reduction
        self._streams = streams

    def collect(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        return self.absorb(rows_of(event, operands, self._reductions), state)

    def part(self, state: State, eqn: Any) -> State:
        return state.with_streams(self._streams.part(state.streams, eqn))

    def over(self, eqn: Any) -> Mapping[int, frozenset[Any]]:
        return self._streams.over(eqn)

    def rows_only(self, eqn: Any) -> Collector:
        types = infer_rows_of_equation(eqn, self._selection, self._reductions)
        unbounded = [key for key, rows in types.items() if rows.unbounded]
        return _Spooler(self._options, self._outermost, self._streams.only(unbounded))

    def absorb(self, record: Record, state: State) -> tuple[Record, State]:
        record, streams = self._streams.update(state.streams, record)
        return record, state.with_streams(streams)


def _streams(types: Record, closed: Any, options: Options) -> Streams:
    """Streams for the keys of which not every row is kept.

    A key in a loop without a static length gets none if there is no capacity: the rule
    of its loop raises an error.
    """
    interval = options.interval or 1
    plans: dict[str, Plan] = {}
    for key, rows in types.items():
        reduction = rows.reduction
        multi_row = rows.stacked or rows.unbounded
        logged = rows.length or rows.unbounded
        # rows with a `when` may be few: a capacity is room for those that happen
        sparse = rows.sparse and multi_row and options.capacity is not None
        thinned = sparse or (options.interval and multi_row)
        needed = reduction or rows.unbounded or thinned
        if not logged or not needed:
            continue
        window = options.window if reduction else None
        size = None
        if not reduction or window:
            size = options.capacity
            if not rows.unbounded:
                length = -(-rows.length // (interval * (window or 1)))
                size = min(length, size or length) if sparse else length
            if size is None:
                continue
        step = reduction.step if reduction else None
        plans[key] = Plan(interval, step, window, size)
    return Streams.of(closed, types, plans, options.selection, emits=False)


def _joined(
    record: Record, types: Record, streams: Streams, state: StreamStates
) -> tuple[Record, dict[str, Any]]:
    """The rows of the program and of its streams, in the order of their first event."""
    totals: dict[str, Any] = {}
    found = dict(record)
    for name, stream in streams.items():
        reduced, total = stream.all_rows(state[name])
        found.update(reduced)
        if total is not None:
            totals.update(dict.fromkeys(reduced, total))
    joined = Record()
    for key in types or record:
        rows = found[key]
        if rows.reduce is not None and key not in streams:
            if not rows.length and rows.reduction:
                continue  # a reduction of no rows
            rows = rows.with_time()
        joined[key] = rows
    return joined, totals
