"""From a program to its rows: what `lox.spool` and `logify.logify` share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from lox._events.event import Event
from lox._events.selection import Selection
from lox._interpreter.inference import survey, survey_equation
from lox._interpreter.rows import Record, Reductions, Rows, is_reduced, rows_of
from lox._interpreter.taker import Taker, check_window
from lox._interpreter.walk import Collector, State, Walk, events_of
from lox._reduce import reductions
from lox._streams.key_group import Stream
from lox._streams.program import Streams, groups


class Options(NamedTuple):
    """What to make of which events; each as `lox.spool` takes it, but checked."""

    selection: Selection
    keep_logs: bool = False
    reduce: Any = None
    interval: int | None = None
    window: int | None = None
    capacity: int | None = None

    def reduction(self, key: str, at_call: Any) -> Any:
        """The reduction that a key gets, given what its `lox.log` asks for."""
        return reductions.choose(self.reduce, key) or reductions.choose(at_call, key)

    def plain(self, closed: Any) -> bool:
        """Whether every row of a program is kept as it is."""
        if self.reduce or self.interval or self.window or self.capacity:
            return False
        chosen = filter(self.selection.takes_event, events_of(closed))
        return all(event.reduce is None for event in chosen)


def collect(
    closed: Any, args: Sequence[Any], options: Options, outermost: bool
) -> tuple[list[Any], Record, dict[str, Any]]:
    """Evaluates a program.

    Returns:
        Its results, its rows, and, for the keys with a capacity, how many rows there
        was no room for.
    """
    types, streams = Record(), Streams()
    if not options.plain(closed):
        types = survey(closed, options.selection, options.reduction)
        check_window(options.window, types, "spool")
        streams = _streams(types, closed, options)
    spooler = _Spooler(options, outermost, streams)
    outs, record, state = Walk(spooler)(closed, args, streams.initial())
    return outs, *_joined(record, types, streams, state)


class _Spooler(Taker):
    """Gives each event back as a row, or puts it into its stream.

    The state is that of the streams.
    """

    def __init__(self, options: Options, outermost: bool, streams: Streams) -> None:
        super().__init__(options.selection, options.keep_logs, outermost)
        self._options = options
        self._reductions: Reductions = options.reduction
        self._streams = streams

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        record = rows_of(event, operands, self._reductions)
        return self._streams.fold(state, record)

    def keyed(self, state: State) -> list[bool]:
        return [True] * len(jax.tree.leaves(state))

    def part(self, state: State, eqn: Any) -> State:
        return self._streams.part(state, eqn)

    def whole(self, state: State, part: State) -> State:
        return {**state, **part}

    def rows_only(self, walk: Walk, eqn: Any) -> Collector:
        types = survey_equation(walk, eqn, self._selection, self._reductions)
        unbounded = [key for key, rows in types.items() if rows.unbounded]
        return _Spooler(self._options, self._outermost, self._streams.only(unbounded))

    def absorb(self, record: Record, state: State) -> tuple[Record, State]:
        return self._streams.fold_all(state, record)


def _streams(types: Record, closed: Any, options: Options) -> Streams:
    """Streams for the keys of which not every row is kept.

    A key that has no bound and no room stays without: its loop will say so.
    """
    interval, window = options.interval, options.window
    sizes: dict[str, tuple[int | None, bool, bool]] = {}
    for key, rows in types.items():
        reduced = is_reduced(rows)
        thinned = bool(interval) and (rows.stacked or rows.unbounded)
        happens = rows.length or rows.unbounded
        if not happens or not (reduced or thinned or rows.unbounded):
            continue
        size = None
        if not reduced or window:
            size = options.capacity if rows.unbounded else _size(rows, options)
            if size is None:
                continue
        sizes[key] = size, reduced, rows.reduce == "first"
    streams = []
    for keys in groups(sizes, closed, options.selection):
        size, reduced, _ = sizes[keys[0]]
        streams.append(
            Stream(
                {key: types[key] for key in keys},
                {key: types[key].reduce for key in keys} if reduced else {},
                interval=interval or 1,
                window=window if reduced else None,
                size=size,
                emits=False,
            )
        )
    return Streams(streams, options.selection)


def _size(rows: Rows, options: Options) -> int:
    taken = -(-rows.length // (options.interval or 1))
    if options.window is None or not is_reduced(rows):
        return taken
    return -(-taken // options.window)


def _joined(
    record: Record, types: Record, streams: Streams, state: State
) -> tuple[Record, dict[str, Any]]:
    """The rows of the program and of its streams, in the order in which keys came."""
    dropped: dict[str, Any] = {}
    found = dict(record)
    for name, stream in streams.items():
        reduced, lost = stream.rows_of(state[name])
        found.update(reduced)
        if lost is not None:
            dropped.update(dict.fromkeys(reduced, lost))
    joined = Record()
    for key in types or record:
        rows = found[key]
        if rows.reduce is not None and key not in streams:
            if not rows.length and is_reduced(rows):
                continue  # of nothing, there is nothing to tell
            rows = rows.with_time()
        joined[key] = rows
    return joined, dropped
