"""`lox.spool`: the logs beside the result."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from . import _custom_rules, _reduce, _rules  # noqa: F401  (registers the rules)
from ._events import Event, Selection
from ._logdict import logdict
from ._rows import Record, Reductions, Rows, is_reduced, rows_of, to_logdict
from ._streams import Stream, Streams, groups
from ._survey import logs_alike, survey
from ._take import (
    Taker,
    check_number,
    check_prefix,
    check_window,
    is_outermost,
    warn_unmatched,
)
from ._transform import (
    Compiled,
    Static,
    Transformed,
    check_callable,
    compiled,
    remembered,
)
from ._walk import State, Walk, events_of

P = ParamSpec("P")
T = TypeVar("T")
Names = str | Iterable[str] | None


class _Spooler(Taker):
    """Gives each event back as a row, or puts it into its stream.

    The state is that of the streams.
    """

    state_by_key = True

    def __init__(
        self,
        selection: Selection,
        keep_logs: bool,
        outermost: bool,
        reductions: Reductions,
        streams: Streams,
    ) -> None:
        super().__init__(selection, keep_logs, outermost)
        self._reductions = reductions
        self._streams = streams

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        record = rows_of(event, operands, self._reductions)
        return self._streams.fold(state, record)

    def part(self, state: State, eqn: Any) -> State:
        return self._streams.part(state, eqn)

    def whole(self, state: State, part: State) -> State:
        return {**state, **part}

    def logs_alike(self, rule: Any, function: Any) -> bool:
        return not self._streams or logs_alike(
            rule, function, self._selection, self._reductions
        )


@overload
def spool(
    fun: Callable[P, T],
    argnames: Names = None,
    tags: Names = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    *,
    window: int | None = None,
    capacity: int | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[P, tuple[T, logdict]]: ...


@overload
def spool(
    fun: None = None,
    argnames: Names = None,
    tags: Names = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    *,
    window: int | None = None,
    capacity: int | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, tuple[T, logdict]]]: ...


def spool(
    fun: Any = None,
    argnames: Names = None,
    tags: Names = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    *,
    window: int | None = None,
    capacity: int | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Any:
    """Makes `fun` return its logs beside its result.

    A key that is logged once, outside any loop, keeps its own shape. Every other key is
    stacked along a leading time axis, in the order in which a plain Python run of `fun`
    would log. Under `jax.vmap`, `spool(vmap(f))` has the lanes after the time axis, and
    `vmap(spool(f))` before it.

    Args:
        fun: the function; without one, a decorator with these options is returned.
        argnames: which keys to take: a name or several, or shell-style patterns.
        tags: take only events that have one of these tags.
        keep_logs: also leave the events for a transformation outside this one.
        interval: keep the events 0, k, 2k, … of each key, and no memory for the others.
        reduce: reduce over time, while the program runs: one of `mean sum min max first
            last count std var append` or a `lox.Reduction`, or a dict of these by key.
            It wins over the `reduce` of `lox.log`.
        prefix: put in front of every key.
        window: give one reduced row for every so many events, and one for the rest,
            instead of one for all.
        capacity: how many rows to keep of a key that is logged in a loop without a
            static length; if there are more, the first ones are kept, and a warning
            says how many were dropped.
        static_argnums: which arguments are static, as in `jax.jit`.
        static_argnames: the same, by name.

    Returns:
        A function with the arguments of `fun` that returns `(result, logs)`, where
        `logs` is a `lox.logdict`.

    Example:
        >>> def f(x):
        ...     lox.log({"x": x})
        ...     return x + 1.0
        >>> y, logs = lox.spool(f)(1.0)
        >>> logs
        {'x': 1.0}
        >>> def g(xs):
        ...     return jax.lax.scan(lambda c, x: (f(c), x), 0.0, xs)[0]
        >>> lox.spool(g)(jnp.arange(3))[1]
        {'x': [0.0, 1.0, 2.0]}
    """
    if fun is None:
        return lambda fun: spool(
            fun,
            argnames,
            tags,
            keep_logs,
            interval,
            reduce,
            prefix,
            window=window,
            capacity=capacity,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    options = (
        argnames,
        tags,
        keep_logs,
        interval,
        type(interval),  # True equals 1, but is no interval
        reduce,
        prefix,
        window,
        type(window),
        capacity,
        type(capacity),
        static_argnums,
        static_argnames,
    )
    return _Spool(fun, remembered(fun, options, _forms))


class _Spool(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner, outer = self._forms
        if not is_outermost():
            return inner(*args, **kwargs)
        result, logs = outer(*args, **kwargs)
        # on the host, nobody sees rows that did not happen
        return result, logs.compact() if logs._mask else logs


def _forms(fun: Any, options: tuple[Any, ...]) -> tuple[Compiled, Compiled]:
    """The function as it is inside another transformation, and outermost."""
    argnames, tags, keep_logs, interval, _, reduce, prefix = options[:7]
    window, _, capacity, _, *static_args = options[7:]
    check_callable(fun, "spool")
    selection = Selection.of(argnames, tags)
    every = check_number(interval, "interval", "spool")
    width = check_number(window, "window", "spool")
    room = check_number(capacity, "capacity", "spool")
    asked = _reduce.check(reduce, " of `lox.spool`")
    check_prefix(prefix, "spool")
    static = Static.of(fun, *static_args)
    key = ("spool", selection, bool(keep_logs), every, asked, prefix, width, room)

    def reductions(key: str, at_call: Any) -> Any:
        return _reduce.choose(asked, key) or _reduce.choose(at_call, key)

    def form(outermost: bool) -> Compiled:
        def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], logdict]:
            warn_unmatched(closed, selection, asked, "spool")
            types, streams = Record(), Streams()
            if every or width or room or _reduces(closed, selection, asked):
                types = survey(closed, selection, reductions)
                check_window(width, types, "spool")
                streams = _streams(types, closed, selection, every, width, room)
            spooler = _Spooler(selection, keep_logs, outermost, reductions, streams)
            outs, record, state = Walk(spooler)(closed, args, streams.initial())
            record, dropped = _joined(record, types, streams, state)
            return outs, to_logdict(record, prefix, dropped)

        return compiled(fun, (key, outermost), lambda: (evaluate, None), static)

    return form(False), form(True)


def _reduces(closed: Any, selection: Selection, asked: Any) -> bool:
    if asked is not None:
        return True
    chosen = filter(selection.takes_event, events_of(closed))
    return any(event.reduce is not None for event in chosen)


def _streams(
    types: Record,
    closed: Any,
    selection: Selection,
    interval: int | None,
    window: int | None,
    capacity: int | None,
) -> Streams:
    """Streams for the keys of which not every row is kept.

    A key that has no bound and no room stays without: its loop will say so.
    """
    sizes: dict[str, tuple[int | None, bool, bool]] = {}
    for key, rows in types.items():
        reduced = is_reduced(rows)
        thinned = bool(interval) and (rows.stacked or rows.unbounded)
        if not rows.length or not (reduced or thinned or rows.unbounded):
            continue
        size = None
        if not reduced or window:
            size = capacity if rows.unbounded else _size(rows, interval, window)
            if size is None:
                continue
        sizes[key] = size, reduced, rows.reduce == "first"
    streams = []
    for keys in groups(sizes, closed, selection):
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
    return Streams(streams)


def _size(rows: Rows, interval: int | None, window: int | None) -> int:
    taken = -(-rows.length // (interval or 1))
    return -(-taken // window) if window and is_reduced(rows) else taken


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
