"""Delivers the events of a program to the host: shared by `lox.tap` and loggers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Call, Event, Layout, Operands
from lox._events.primitive import log_p
from lox._host import signals
from lox._host.callbacks import HostSink
from lox._host.errors import callback_errors
from lox._interpreter.device_flow import check_part_of_devices
from lox._interpreter.handlers import Handler, State
from lox._interpreter.inference import infer_rows, multi_row_keys
from lox._interpreter.rows import (
    Record,
    Reductions,
    event_of,
    masked,
    rows_of,
)
from lox._interpreter.selecting_collector import SelectingCollector
from lox._interpreter.walk import Walk
from lox._jax import array_types, host
from lox._logs.key import all_tags
from lox._logs.lane_step import DTYPE, LANE
from lox._reduce.protocol import AnyReduction
from lox._reduce.reductions import Checked
from lox._source import Source
from lox._streams.program import Streams
from lox._streams.stages import State as StreamState
from lox._streams.stream import Plan, Stream

from .compiled import Compiled
from .options import Options
from .run_keys import with_run


def deliver(
    closed: Any,
    args: Sequence[Any],
    options: Options,
    outermost: bool,
    sink: HostSink,
    run: Any = None,
) -> list[Any]:
    """Evaluates a program and delivers its events to a sink.

    Args:
        closed: the program.
        args: its arguments.
        options: which events to deliver, and how.
        outermost: whether no other transformation encloses the call.
        sink: the destination of the events.
        run: the key data of the run that the events belong to, if any.

    Returns:
        The results of the program.
    """
    check_part_of_devices(closed)
    streams = Streams({}, options.selection)
    if not options.every_row:
        types = infer_rows(closed, options.selection, _reductions(options))
        options.check_window(types, "lox.tap")
        streams = _streams(types, closed, options)
    multi_row = multi_row_keys(closed, options.selection)
    tapper = _Tapper(options, outermost, streams, sink, run is not None, multi_row)
    state = State(streams.initial(), run)
    outs, _, state = Walk(tapper)(closed, args, state)
    tapper.flush(state)
    return outs


def _reductions(options: Options) -> Reductions:
    """The reduction per key; that of `lox.log` applies only to windows.

    Without a window, a callback gets every event.
    """

    def reduction(key: str, at_call: Checked) -> AnyReduction | None:
        return options.reduction(key, at_call if options.window else None)

    return reduction


class _Tapper(SelectingCollector):
    """Delivers each event to the sink, or puts it into its stream.

    Inside the derivative and batching rules of custom functions, there is no state.
    """

    def __init__(
        self,
        options: Options,
        outermost: bool,
        streams: Streams,
        sink: HostSink,
        has_run: bool,
        multi_row: frozenset[str],
    ) -> None:
        super().__init__(options.selection, options.keep_logs, outermost)
        self._reductions = _reductions(options)
        self._streams = streams
        self._sink = sink
        self._has_run = has_run
        self._multi_row = multi_row
        self._ordered = options.ordered
        self._prefix = options.prefix

    def collect(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        run = self._run_of(event, state)
        if not self._streams:
            self._deliver_happened(event, operands, run)
            return Record(), state

        def emit(stream: Stream, rows: Record, new: StreamState, due: Any) -> None:
            if stream.emits_late:
                return
            lanes = next(iter(rows.values())).lanes
            if stream.holds:
                call = event.call
                self._deliver_batch(
                    stream, new, due, lanes, call.source, call.over, run
                )
            else:
                if stream.per_lane:  # each lane is due at its own event
                    rows = masked(rows, due)
                part, values = event_of(rows, event)
                self._deliver_if(due, values, lambda values: (part, values), run)

        record = rows_of(event, operands, self._reductions)
        remaining = record
        if state.streams:
            remaining, new = self._streams.update(state.streams, record, emit)
            state = state.with_streams(new)
        if remaining:
            self._streams.check_optional(remaining)
            self._deliver_happened(*event_of(remaining, event), run)
        return Record(), state

    def part(self, state: State, eqn: Any) -> State:
        return state.with_streams(self._streams.part(state.streams, eqn))

    def over(self, eqn: Any) -> Mapping[int, frozenset[Any]]:
        return self._streams.over(eqn)

    def without_rows(self) -> Handler:
        return self  # it returns no rows

    def _run_of(self, event: Event, state: State) -> Any:
        if state.run is None and self._has_run:
            raise UnsupportedPrimitiveError(
                f"{event.call.description}, is in the derivative or batching rule of a "
                "custom function, where its run is not known. Log it in the function "
                "itself."
            )
        return state.run

    def flush(self, state: State) -> None:
        """Delivers the remaining rows at the end of the program."""
        for name, stream in self._streams.items():
            if stream.holds:
                remaining = state.streams[name]
                if stream.per_lane:  # the callback gets unsharded values
                    remaining = jax.tree.map(array_types.replicated, remaining)
                self._deliver_batch(
                    stream,
                    remaining,
                    None,
                    stream.first.lanes,
                    stream.first.source,
                    stream.first.over,
                    state.run,
                )

    def _deliver_happened(
        self, event: Event, operands: Sequence[Any], run: Any
    ) -> None:
        """Delivers an event; one with a `when` only if it is true in some lane."""
        if not event.call.conditional:
            self._deliver(event, operands, run)
            return
        parts = event.split(operands)
        mask = parts.mask
        if not (event.layout.lanes or event.layout.elements):
            # Where it is delivered, the mask is true. Without the mask, XLA need not
            # copy it in each iteration, and the host has fewer operands to convert.
            parts.mask = None
            event = event.with_layout(masked=False)
        self._deliver_if(mask, parts.flat(), lambda values: (event, values), run)

    def _deliver_batch(
        self,
        stream: Stream,
        state: StreamState,
        due: Any,
        lanes: int,
        source: Source,
        over: tuple[str, ...],
        run: Any,
    ) -> None:
        """Delivers the rows of a stream.

        Args:
            stream: the stream.
            state: its state.
            due: whether its rows are complete; None at the end of the program, where
                the remaining rows are delivered.
            lanes: how many lane axes the rows have here.
            source: the line that the event names.
            over: the `over` of the events.
            run: the key data of the run.
        """
        final = due is None
        if final:
            due = stream.has_incomplete(state, lanes)
        call = Call(
            keys=tuple(stream.rows),
            trees=tuple(map(stream.tree_of, stream.rows)),
            steps=tuple(stream.first.steps),
            source=source,
            tags=all_tags(rows.tags for rows in stream.rows.values()),
            over=over,
        )
        layout = Layout(lanes, masked=stream.per_lane, buffered=stream.buffers)
        event = Event(call, layout)

        def make_event(inputs: Any) -> tuple[Event, list[Any]]:
            state, due = inputs
            row, filled = stream.batch(state, lanes, final)
            operands = Operands(
                values=[list(row.values[key]) for key in stream.rows],
                steps=[row.steps[name] for name in stream.first.steps],
                mask=due if stream.per_lane else None,
                filled=filled,
                anchors=[],
            )
            return event, operands.flat()

        multi_row = False if stream.emits_late else stream.has_windows or None
        self._deliver_if(due, (state, due), make_event, run, multi_row)

    def _deliver_if(
        self,
        due: Any,
        inputs: Any,
        make_event: Callable[[Any], tuple[Event, Sequence[Any]]],
        run: Any,
        multi_row: bool | None = None,
    ) -> None:
        """Delivers `make_event(inputs)`, if any lane is due."""
        fixed = jax.tree.map(jax.lax.stop_gradient, inputs)

        def body(again: Any) -> Any:
            self._deliver(*make_event(fixed), run, multi_row)
            return jnp.zeros_like(again)

        # on CPUs, a loop of at most one iteration takes a fifth of the time of a `cond`
        jax.lax.while_loop(lambda again: again, body, jnp.any(due))

    def _deliver(
        self,
        event: Event,
        operands: Sequence[Any],
        run: Any,
        multi_row: bool | None = None,
    ) -> None:
        """Delivers an event.

        Args:
            event: the event.
            operands: its operands.
            run: the key data of the run.
            multi_row: whether the program may deliver more than one such row; None to
                decide per key.
        """
        keys = event.call.keys
        event, operands = _with_device(event, operands)
        if run is not None:
            operands = with_run(event, operands, run)
        if self._prefix:
            event = event.with_call(keys=tuple(f"{self._prefix}{key}" for key in keys))
        event = event.with_route(
            sink=self._sink,
            quiet=False,
            missed=(),
            # XLA crashes on ordered effects if only some axes of a mesh are manual
            ordered=self._ordered and not array_types.partly_manual(),
            multi_row=tuple(
                key in self._multi_row if multi_row is None else multi_row
                for key in keys
            ),
        )
        log_p.bind(*operands, event=event)


def _with_device(event: Event, operands: Sequence[Any]) -> tuple[Event, Sequence[Any]]:
    """Adds the step `lane` to an event in a `shard_map`, which each device delivers.

    Devices are the outermost lanes, as in the logs that `lox.spool` returns.
    """
    device = array_types.device_in_shard_map(event.call.over)
    if device is None or LANE in event.call.steps:
        return event, operands
    index, count = device
    layout, shape = event.layout, jnp.shape(operands[0])
    lanes = shape[: layout.lanes]
    inner = np.arange(math.prod(lanes), dtype=DTYPE).reshape(lanes)
    number = index * inner.size + inner
    rows = shape[layout.lanes : layout.lanes + (layout.elements or layout.buffered)]
    number = jnp.broadcast_to(number.reshape(*lanes, *[1] * len(rows)), lanes + rows)
    parts = event.split(operands)
    parts.steps.append(number)
    event = event.with_call(steps=(*event.call.steps, LANE))
    event = event.with_layout(device_lanes=(count, layout.lanes))
    return event, parts.flat()


def _streams(types: Record, closed: Any, options: Options) -> Streams:
    """Streams for the keys that are not delivered event by event."""
    window, buffer = options.window, options.buffer
    plans: dict[str, Plan] = {}
    for key, rows in types.items():
        reduction = rows.reduction
        if rows.length and (reduction or options.interval or buffer):
            plans[key] = Plan(
                interval=options.interval or 1,
                step=reduction.step if reduction else None,
                window=window if reduction else None,
                size=buffer if window or not reduction else None,
            )
    return Streams.of(closed, types, plans, options.selection, emits=True)


def call_and_wait(program: Compiled, args: Any, kwargs: Any) -> Any:
    """Calls a program that delivers events, and waits for its callbacks.

    Returns:
        The result of the program.

    Raises:
        Exception: what a callback raised.
    """
    sink = program.sink
    if sink.stopping:  # a call that was interrupted twice may still be running
        host.wait_for_callbacks()
        sink.stopping = False
    started = False
    try:
        out = program(*args, **kwargs)[0]
        started = True
        jax.block_until_ready(out)  # handles signals, unlike waiting for tokens
        host.wait_for_callbacks()
    except Exception:
        callback_errors.raise_errors_of(sink)  # instead of XLA's error
        raise
    except BaseException:
        if started and not sink.unstoppable:
            _stop(sink)
        raise
    finally:
        signals.unwrap_handlers()
    callback_errors.raise_errors_of(sink)
    return out


def _stop(sink: HostSink) -> None:
    """Ends a program that runs in one of XLA's threads, at its next event."""
    sink.stopping = True
    host.wait_for_callbacks()
    sink.stopping = False
