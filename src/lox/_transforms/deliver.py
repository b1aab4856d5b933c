"""From a program to callbacks: what `lox.tap` and the loggers share."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event, Operands
from lox._events.primitive import log_p
from lox._events.selection import Selection
from lox._host import signals
from lox._host.callbacks import CallbackSink, callback_errors
from lox._interpreter.inference import repeated, survey
from lox._interpreter.rows import (
    Record,
    Reductions,
    event_of,
    is_reduced,
    masked,
    rows_of,
)
from lox._interpreter.taker import Taker, check_number, check_prefix, check_window
from lox._interpreter.walk import State, Walk
from lox._jax import array_types, host
from lox._logs.key import all_tags
from lox._reduce import reductions
from lox._source import Source
from lox._streams.key_group import Stream
from lox._streams.program import Streams, emitting, groups

from .run_keys import with_run

# the state's name for the run that events belong to
RUN = "run"


class Options(NamedTuple):
    """What to deliver of which events; each as `lox.tap` takes it, but checked."""

    selection: Selection
    keep_logs: bool
    prefix: str
    interval: int | None
    reduce: Any
    window: int | None
    buffer: int | None
    ordered: bool

    @classmethod
    def checked(
        cls,
        name: str,
        argnames: Any,
        tags: Any,
        keep_logs: Any,
        prefix: Any,
        interval: Any,
        reduce: Any,
        window: Any,
        buffer: Any,
        ordered: Any,
    ) -> "Options":
        """From what the user gave to the function of that name."""
        return cls(
            selection=Selection.of(argnames, tags),
            keep_logs=bool(keep_logs),
            prefix=check_prefix(prefix, name),
            interval=check_number(interval, "interval", name),
            reduce=reductions.check(reduce, f" of `{name}`"),
            window=check_number(window, "window", name),
            buffer=check_number(buffer, "buffer", name),
            ordered=bool(ordered),
        )

    def reduction(self, key: str, at_call: Any) -> Any:
        """The reduction that a key gets, given what its `lox.log` asks for."""
        chosen = reductions.choose(self.reduce, key)
        return chosen or (reductions.choose(at_call, key) if self.window else None)

    @property
    def plain(self) -> bool:
        """Whether every event is delivered as it is."""
        return not (self.reduce or self.interval or self.window or self.buffer)


def deliver(
    closed: Any,
    args: Sequence[Any],
    options: Options,
    outermost: bool,
    sink: CallbackSink,
    run: Any = None,
) -> list[Any]:
    """Evaluates a program, and gives its results; its events go to the sink.

    Args:
        closed: the program.
        args: its arguments.
        options: which events go, and how.
        outermost: whether no other transformation is around this one.
        sink: where they go.
        run: the words of the key of the run that they belong to, if any.
    """
    streams = Streams()
    if not options.plain:
        types = survey(closed, options.selection, options.reduction)
        check_window(options.window, types, "tap")
        streams = _streams(types, closed, options)
    several = repeated(closed, options.selection)
    tapper = _Tapper(options, outermost, streams, sink, run is not None, several)
    state: dict[str, Any] = streams.initial()
    if run is not None:
        state[RUN] = run
    outs, _, state = Walk(tapper)(closed, args, state)
    tapper.flush(state)
    return outs


class _Tapper(Taker):
    """Gives each event the sink that delivers it, or puts it into its stream.

    The state is that of the streams, and the run that the events belong to, if they
    belong to one.
    """

    gives_rows = False

    def __init__(
        self,
        options: Options,
        outermost: bool,
        streams: Streams,
        sink: CallbackSink,
        has_run: bool,
        several: frozenset[str],
    ) -> None:
        super().__init__(options.selection, options.keep_logs, outermost)
        self._reductions: Reductions = options.reduction
        self._streams = streams
        self._sink = sink
        self._has_run = has_run
        self._several = several
        self._ordered = options.ordered
        self._prefix = options.prefix

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        run = self._run_of(event, state)
        if not self._streams:
            self._deliver(event, operands, run)
            return Record(), state

        def emit(stream: Stream, rows: Record, new: Any, due: Any) -> None:
            if stream.emits_late:
                return
            lanes = next(iter(rows.values())).lanes
            if stream.holds:
                self._deliver_batch(stream, new, due, lanes, event.source, run)
            else:
                if stream.apart:  # each lane has its own turn
                    rows = masked(rows, due)
                part, values = event_of(rows, event)
                self._deliver_if(due, values, lambda values: (part, values), run)

        record = rows_of(event, operands, self._reductions)
        left, state = self._streams.fold(state, record, emit)
        if left:
            self._streams.check_optional(left)
            self._deliver(*event_of(left, event), run)
        return Record(), state

    def keyed(self, state: State) -> list[bool]:
        if state is None:  # in a `def_vmap` rule
            return []
        names = [name for name, one in state.items() for _ in jax.tree.leaves(one)]
        return [name != RUN for name in sorted(names)]

    def part(self, state: State, eqn: Any) -> State:
        part = self._streams.part(state, eqn)
        return {**part, RUN: state[RUN]} if state and RUN in state else part

    def whole(self, state: State, part: State) -> State:
        return {**state, **part} if state else part

    def _run_of(self, event: Event, state: State) -> Any:
        if state is None and self._has_run:
            raise UnsupportedPrimitiveError(
                f"{', '.join(map(repr, event.keys))}, logged at {event.source}, is in "
                "the derivative or batching rule of a custom function, where nobody "
                "knows which run it belongs to. Log it in the function itself."
            )
        return state.get(RUN) if state else None

    def flush(self, state: State) -> None:
        """Delivers what is left at the end."""
        for name, stream in self._streams.items():
            if stream.holds:
                left = state[name]
                if stream.apart:  # the callback gets whole values in any case
                    left = jax.tree.map(array_types.whole, left)
                self._deliver_batch(
                    stream, left, None, stream.lanes, stream.source, state.get(RUN)
                )

    def _deliver_batch(
        self,
        stream: Stream,
        state: Any,
        due: Any,
        lanes: int,
        source: Source,
        run: Any,
    ) -> None:
        """Delivers the rows that are due; at the end (None), those that are left."""
        final = due is None
        some = stream.left(state, lanes) if final else due
        event = Event(
            keys=tuple(stream.rows),
            trees=tuple(map(stream.tree_of, stream.rows)),
            steps=stream.steps,
            source=source,
            tags=all_tags(rows.tags for rows in stream.rows.values()),
            lanes=lanes,
            masked=stream.apart,
            buffered=stream.buffers,
        )

        def opened(held: Any) -> tuple[Event, list[Any]]:
            state, some = held
            batch = stream.batch(state, lanes, final)
            operands = Operands(
                values=[list(batch.values[key]) for key in stream.rows],
                steps=[batch.steps[name] for name in stream.steps],
                mask=some if stream.apart else None,
                filled=batch.filled,
                anchors=[],
            )
            return event, operands.flat()

        several = False if stream.emits_late else stream.has_windows or None
        self._deliver_if(some, (state, some), opened, run, several)

    def _deliver_if(
        self,
        some: Any,
        held: Any,
        opened: Callable[[Any], tuple[Event, Sequence[Any]]],
        run: Any,
        several: bool | None = None,
    ) -> None:
        """Delivers, if there is any, the event that `opened` makes of `held`."""
        fixed = jax.tree.map(jax.lax.stop_gradient, held)

        def body(again: Any) -> Any:
            self._deliver(*opened(fixed), run, several)
            return jnp.zeros_like(again)

        # on CPUs, a loop that runs once or never costs a fifth of a conditional
        jax.lax.while_loop(lambda go: go, body, jnp.any(some))

    def _deliver(
        self,
        event: Event,
        operands: Sequence[Any],
        run: Any,
        several: bool | None = None,
    ) -> None:
        """Delivers an event; `several` as in `Event`, if it is known for all keys."""
        marks = tuple(
            key in self._several if several is None else several for key in event.keys
        )
        if run is not None:
            event, operands = with_run(event, operands, run)
        # XLA crashes on order where only some axes of a mesh are manual
        ordered = self._ordered and not array_types.partly_manual()
        event = event.renamed(self._prefix)
        event = dataclasses.replace(
            event, sink=self._sink, ordered=ordered, several=marks, quiet=False
        )
        log_p.bind(*operands, event=event)


def _streams(types: Record, closed: Any, options: Options) -> Streams:
    """Streams for the keys that are not delivered event by event."""
    interval, window, buffer = options.interval, options.window, options.buffer
    kinds = {
        key: (is_reduced(rows), rows.reduce == "first")
        for key, rows in types.items()
        if rows.length and (is_reduced(rows) or interval or buffer)
    }
    streams = []
    for keys in groups(kinds, closed, options.selection):
        reduced, _ = kinds[keys[0]]
        streams.append(
            emitting(
                {key: types[key] for key in keys},
                {key: types[key].reduce for key in keys} if reduced else {},
                interval=interval or 1,
                window=window if reduced else None,
                size=buffer if window or not reduced else None,
            )
        )
    return Streams(streams, options.selection)


def finished(run: Any, args: Any, kwargs: Any) -> Any:
    """Calls a program that delivers, and waits for the callbacks, which may raise."""
    sink = run.sink
    if sink.stopping:  # a call that was interrupted twice may have left its program
        host.wait_for_callbacks()
        sink.stopping = False
    runs = False
    try:
        out = run(*args, **kwargs)[0]
        runs = True
        jax.block_until_ready(out)  # which looks for signals, as tokens may not
        host.wait_for_callbacks()
    except Exception:
        callback_errors.raise_of(sink)  # in place of what XLA made of it
        raise
    except BaseException:
        if runs and not sink.unstoppable:
            _stop(sink)
        raise
    finally:
        signals.hand_back()
    callback_errors.raise_of(sink)
    return out


def _stop(sink: CallbackSink) -> None:
    """Ends a program that runs in a thread of XLA's, at its next event."""
    sink.stopping = True
    host.wait_for_callbacks()
    sink.stopping = False
