"""`lox.tap`: logs to a callback on the host, as they come."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from . import _compat, _custom_rules, _rules  # noqa: F401  (registers the rules)
from ._errors import LoxTypeError, UnsupportedPrimitiveError
from ._events import Event, Selection
from ._host import CallbackSink, callback_errors
from ._logdict import logdict
from ._primitive import log_p
from ._rows import Record
from ._settings import default_handler
from ._take import Taker, check_interval, check_prefix, is_outermost, warn_unmatched
from ._transform import Static, Transformed, check_callable, compiled
from ._walk import State, Walk, events_of

P = ParamSpec("P")
T = TypeVar("T")
Callback = Callable[[logdict], Any]
Names = str | Iterable[str] | None


class _Tapper(Taker):
    """Gives each event the sink that delivers it.

    With an interval, the state counts the events of each key.
    """

    gives_rows = False

    def __init__(
        self,
        selection: Selection,
        keep_logs: bool,
        outermost: bool,
        sink: CallbackSink,
        ordered: bool,
        prefix: str,
        interval: int | None,
    ) -> None:
        super().__init__(selection, keep_logs, outermost)
        self._sink = sink
        self._ordered = ordered
        self._prefix = prefix
        self._interval = interval
        self._group: dict[str, int] = {}

    def initial_state(self, closed: Any) -> State:
        """A count for each group of keys that are always logged together."""
        if self._interval is None:
            return ()
        sites: dict[str, set[Event]] = {}
        for event in filter(self._selects, events_of(closed)):
            for key in filter(self._selection.takes_key, event.keys):
                sites.setdefault(key, set()).add(event)
        groups: dict[frozenset[Event], int] = {}
        for key, events in sites.items():
            self._group[key] = groups.setdefault(frozenset(events), len(groups))
        return [jnp.int32(0)] * len(groups)

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        if self._interval is None:
            log_p.bind(*operands, event=self._tapped(event))
            return Record(), state
        if state is None or event.masked:
            raise UnsupportedPrimitiveError(_uncountable(event))
        groups = sorted({self._group[key] for key in event.keys})
        due = [state[group] % self._interval == 0 for group in groups]

        def deliver(which: int) -> Callable[[list[Any]], None]:
            def branch(operands: list[Any]) -> None:
                chosen = {g for i, g in enumerate(groups) if which >> i & 1}
                part, values = event.only(
                    lambda key: self._group[key] in chosen, operands
                )
                if part.keys:
                    log_p.bind(*values, event=self._tapped(part))

            return branch

        index = sum(
            jax.lax.convert_element_type(one, "int32") << i for i, one in enumerate(due)
        )
        branches = [deliver(which) for which in range(2 ** len(groups))]
        jax.lax.switch(index, branches, list(operands))
        counted = [
            count + 1 if group in groups else count for group, count in enumerate(state)
        ]
        return Record(), counted

    def _tapped(self, event: Event) -> Event:
        # XLA crashes on order where only some axes of a mesh are manual
        ordered = self._ordered and not _compat.partly_manual()
        event = event.renamed(self._prefix)
        return dataclasses.replace(event, sink=self._sink, ordered=ordered, quiet=False)


def _uncountable(event: Event) -> str:
    keys = ", ".join(map(repr, event.keys))
    if event.masked:
        return (
            f"{keys}, logged at {event.source}, is in a branch or loop that differs "
            "between the lanes of a `vmap` inside `lox.tap`, where `interval` cannot "
            "count. Write `jax.vmap(lox.tap(f, ...))` instead of "
            "`lox.tap(jax.vmap(f), ...)`."
        )
    return (
        f"{keys}, logged at {event.source}, is in the derivative rule of a custom "
        "function, where `interval` cannot count. Leave `interval` out, or choose "
        "other keys by `argnames`."
    )


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
    every = check_interval(interval, "tap")
    check_prefix(prefix, "tap")
    static = Static.of(fun, static_argnums, static_argnames)
    key = ("tap", selection, prefix, bool(keep_logs), every, bool(ordered), batched)

    def form(name: Any, outermost: bool, make_sink: Callable[[], CallbackSink]) -> Any:
        def build() -> tuple[Any, CallbackSink]:
            sink = make_sink()

            def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], None]:
                warn_unmatched(closed, selection, None, "tap")
                tapper = _Tapper(
                    selection, keep_logs, outermost, sink, ordered, prefix, every
                )
                state = tapper.initial_state(closed)
                outs, _, _ = Walk(tapper)(closed, args, state)
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
