"""`lox.tap`: logs to a callback on the host, as they come."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from . import _compat, _custom_rules, _reduce, _rules  # noqa: F401  (registers them)
from ._errors import LoxTypeError
from ._events import Event, Operands, Selection, Source
from ._host import CallbackSink, callback_errors
from ._logdict import logdict
from ._primitive import log_p
from ._rows import Record, Reductions, event_of, is_reduced, masked, rows_of
from ._settings import default_handler
from ._stream import Stream
from ._streams import Streams, emitting, groups
from ._survey import logs_alike, survey
from ._take import (
    Taker,
    check_number,
    check_prefix,
    check_window,
    is_outermost,
    warn_unmatched,
)
from ._transform import Static, Transformed, check_callable, compiled
from ._walk import State, Walk

P = ParamSpec("P")
T = TypeVar("T")
Callback = Callable[[logdict], Any]
Names = str | Iterable[str] | None


class _Tapper(Taker):
    """Gives each event the sink that delivers it, or puts it into its stream.

    The state is that of the streams.
    """

    gives_rows = False
    state_by_key = True

    def __init__(
        self,
        selection: Selection,
        keep_logs: bool,
        outermost: bool,
        reductions: Reductions,
        streams: Streams,
        sink: CallbackSink,
        ordered: bool,
        prefix: str,
    ) -> None:
        super().__init__(selection, keep_logs, outermost)
        self._reductions = reductions
        self._streams = streams
        self._sink = sink
        self._ordered = ordered
        self._prefix = prefix

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        if not self._streams:
            self._deliver(event, operands)
            return Record(), state

        def emit(stream: Stream, rows: Record, new: Any, due: Any) -> None:
            if stream.emits_late:
                return
            lanes = next(iter(rows.values())).lanes
            if stream.holds:
                self._deliver_batch(stream, new, due, lanes, event.source)
            else:
                if stream.apart:  # each lane has its own turn
                    rows = masked(rows, due)
                part, values = event_of(rows, event)
                self._deliver_if(due, values, lambda values: (part, values))

        record = rows_of(event, operands, self._reductions)
        left, state = self._streams.fold(state, record, emit)
        if left:
            self._streams.check_optional(left)
            self._deliver(*event_of(left, event))
        return Record(), state

    def part(self, state: State, eqn: Any) -> State:
        return self._streams.part(state, eqn)

    def whole(self, state: State, part: State) -> State:
        return {**state, **part} if state else part

    def logs_alike(self, rule: Any, function: Any) -> bool:
        return logs_alike(rule, function, self._selection, self._reductions)

    def flush(self, state: State) -> None:
        """Delivers what is left at the end."""
        for name, stream in self._streams.items():
            if stream.holds:
                left = state[name]
                if stream.apart:  # the callback gets whole values in any case
                    left = jax.tree.map(_compat.whole, left)
                self._deliver_batch(stream, left, None, stream.lanes, stream.source)

    def _deliver_batch(
        self, stream: Stream, state: Any, due: Any, lanes: int, source: Source
    ) -> None:
        """Delivers the rows that are due; at the end (None), those that are left."""
        final = due is None
        some = stream.left(state, lanes) if final else due
        event = Event(
            keys=tuple(stream.rows),
            trees=tuple(map(stream.tree_of, stream.rows)),
            steps=stream.steps,
            source=source,
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

        self._deliver_if(some, (state, some), opened)

    def _deliver_if(
        self, some: Any, held: Any, opened: Callable[[Any], tuple[Event, Sequence[Any]]]
    ) -> None:
        """Delivers, if there is any, the event that `opened` makes of `held`."""
        fixed = jax.tree.map(jax.lax.stop_gradient, held)

        def body(again: Any) -> Any:
            self._deliver(*opened(fixed))
            return jnp.zeros_like(again)

        # on CPUs, a loop that runs once or never costs a fifth of a conditional
        jax.lax.while_loop(lambda go: go, body, jnp.any(some))

    def _deliver(self, event: Event, operands: Sequence[Any]) -> None:
        # XLA crashes on order where only some axes of a mesh are manual
        ordered = self._ordered and not _compat.partly_manual()
        event = event.renamed(self._prefix)
        event = dataclasses.replace(
            event, sink=self._sink, ordered=ordered, quiet=False
        )
        log_p.bind(*operands, event=event)


class _SwitchSink(CallbackSink):
    """A sink whose callback can be exchanged between calls.

    An eager call of a tapped function waits for its callbacks. So one compiled program
    serves every callback, and a lambda written anew at each call compiles nothing.
    """

    def __init__(self, batched: bool) -> None:
        super().__init__(_nobody, batched)
        self._users = 0
        self._switch = threading.Lock()

    def acquire(self, callback: Callback) -> bool:
        """Sets the callback, unless a call with another one is under way."""
        with self._switch:
            if self._users and self.callback is not callback:
                return False
            self.callback = callback
            self._users += 1
            return True

    def release(self) -> None:
        with self._switch:
            self._users -= 1
            if not self._users:
                self.callback = _nobody


def _nobody(logs: logdict) -> None:
    raise RuntimeError(f"no callback is set for {logs}")  # would be a bug of lox's


def _print(logs: logdict) -> None:
    default_handler()(logs)


@overload
def tap(
    fun: Callable[P, T],
    callback: Callback | None = None,
    argnames: Names = None,
    tags: Names = None,
    prefix: str = "",
    *,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    window: int | None = None,
    buffer: int | None = None,
    ordered: bool = True,
    batched: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[P, T]: ...


@overload
def tap(
    fun: None = None,
    callback: Callback | None = None,
    argnames: Names = None,
    tags: Names = None,
    prefix: str = "",
    *,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    window: int | None = None,
    buffer: int | None = None,
    ordered: bool = True,
    batched: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def tap(
    fun: Any = None,
    callback: Callback | None = None,
    argnames: Names = None,
    tags: Names = None,
    prefix: str = "",
    *,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    window: int | None = None,
    buffer: int | None = None,
    ordered: bool = True,
    batched: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Any:
    """Streams the logs of `fun` to a callback on the host, as they come.

    An eager call returns once its callbacks have run. Inside `jax.jit`, they run while
    the program goes on; `jax.effects_barrier()` waits for them. An exception in a
    callback is raised by the eager call, or by the next barrier.

    Args:
        fun: the function; without one, a decorator with these options is returned.
        callback: a function of one `lox.logdict` of NumPy values, called once an event
            and lane. It must not call JAX. By default, events are printed.
        argnames: which keys to take: a name or several, or shell-style patterns.
        tags: take only events that have one of these tags.
        prefix: put in front of every key.
        keep_logs: also leave the events for a transformation outside this one.
        interval: take the events 0, k, 2k, … of each key.
        reduce: reduce over time on the device: one of `mean sum min max first last
            count std var append` or a `lox.Reduction`, or a dict of these by key. The
            callback gets the reduced values once, when `fun` has ended.
        window: give the callback one reduced row for every so many events, as they
            come, and one for the rest. The `reduce` of `lox.log` counts too, then.
        buffer: give the callback up to so many rows at a time, stacked along a leading
            time axis, and the rest when `fun` has ended. Keys that are always logged
            together come together.
        ordered: whether events come in program order. Where a program is split over
            devices, each device has an order of its own.
        batched: call once an event with all lanes of a `vmap`, instead of once a lane.
        static_argnums: which arguments are static, as in `jax.jit`.
        static_argnames: the same, by name.

    Returns:
        A function with the arguments and the result of `fun`.

    Example:
        >>> def f(xs):
        ...     def step(carry, x):
        ...         lox.log({"carry": carry + x})
        ...         return carry + x, None
        ...     return jax.lax.scan(step, 0, xs)[0]
        >>> y = lox.tap(f, callback=lambda logs: print("got", logs))(jnp.arange(3))
        got {'carry': 0}
        got {'carry': 1}
        got {'carry': 3}
    """
    options: dict[str, Any] = {
        "callback": callback,
        "argnames": argnames,
        "tags": tags,
        "prefix": prefix,
        "keep_logs": keep_logs,
        "interval": interval,
        "reduce": reduce,
        "window": window,
        "buffer": buffer,
        "ordered": ordered,
        "batched": batched,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    if fun is None:
        return lambda fun: tap(fun, **options)
    check_callable(fun, "tap")
    if callback is not None and not callable(callback):
        raise LoxTypeError(
            f"`callback` of `lox.tap` must be a function of a `lox.logdict`, not "
            f"{callback!r}."
        )
    deliver = _print if callback is None else callback
    selection = Selection.of(argnames, tags)
    every = check_number(interval, "interval", "tap")
    width = check_number(window, "window", "tap")
    room = check_number(buffer, "buffer", "tap")
    asked = _reduce.check(reduce, " of `lox.tap`")
    check_prefix(prefix, "tap")
    static = Static.of(fun, static_argnums, static_argnames)
    key = (
        *("tap", selection, prefix, bool(keep_logs), every, asked, width, room),
        *(bool(ordered), batched),
    )

    def reductions(key: str, at_call: Any) -> Any:
        chosen = _reduce.choose(asked, key)
        return chosen or (_reduce.choose(at_call, key) if width else None)

    def form(name: Any, outermost: bool, make_sink: Callable[[], CallbackSink]) -> Any:
        def build() -> tuple[Any, CallbackSink]:
            sink = make_sink()

            def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], None]:
                warn_unmatched(closed, selection, asked, "tap")
                streams = Streams()
                if every or asked or width or room:
                    types = survey(closed, selection, reductions)
                    check_window(width, types, "tap")
                    streams = _streams(types, closed, selection, every, width, room)
                tapper = _Tapper(
                    selection,
                    keep_logs,
                    outermost,
                    reductions,
                    streams,
                    sink,
                    ordered,
                    prefix,
                )
                outs, _, state = Walk(tapper)(closed, args, streams.initial())
                tapper.flush(state)
                return outs, None

            return evaluate, sink

        return compiled(fun, (key, name), build, static)

    def own_sink() -> CallbackSink:
        return CallbackSink(deliver, batched)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_outermost():
            return form(("inside", deliver), False, own_sink)(*args, **kwargs)[0]
        shared = form("outermost", True, lambda: _SwitchSink(batched))
        if not shared.sink.acquire(deliver):
            return _finished(form(("own", deliver), True, own_sink), args, kwargs)
        try:
            return _finished(shared, args, kwargs)
        finally:
            shared.sink.release()

    return _Tap(fun, call)


class _Tap(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forms(*args, **kwargs)


def _finished(run: Any, args: Any, kwargs: Any) -> Any:
    """Calls, and waits for the callbacks, which may raise."""
    try:
        out = run(*args, **kwargs)[0]
        _compat.wait_for_callbacks()
    finally:
        callback_errors.raise_of(run.sink)
    return out


def _streams(
    types: Record,
    closed: Any,
    selection: Selection,
    interval: int | None,
    window: int | None,
    buffer: int | None,
) -> Streams:
    """Streams for the keys that are not delivered event by event."""
    options = {
        key: (is_reduced(rows), rows.reduce == "first")
        for key, rows in types.items()
        if rows.length and (is_reduced(rows) or interval or buffer)
    }
    streams = []
    for keys in groups(options, closed, selection):
        reduced, _ = options[keys[0]]
        streams.append(
            emitting(
                {key: types[key] for key in keys},
                {key: types[key].reduce for key in keys} if reduced else {},
                interval=interval or 1,
                window=window if reduced else None,
                size=buffer if window or not reduced else None,
            )
        )
    return Streams(streams, selection)
