"""`lox.spool`: the logs beside the result."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from . import _custom_rules, _reduce, _rules  # noqa: F401  (registers the rules)
from ._events import Event, Selection
from ._logdict import logdict
from ._rows import Record, Rows, rows_of, to_logdict
from ._take import Taker, check_interval, check_prefix, is_outermost, warn_unmatched
from ._transform import (
    Compiled,
    Static,
    Transformed,
    check_callable,
    compiled,
    remembered,
)
from ._walk import State, Walk

P = ParamSpec("P")
T = TypeVar("T")
Names = str | Iterable[str] | None


class _Spooler(Taker):
    """Gives each event back as a row."""

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        return rows_of(event, operands), state


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
        interval: keep the events 0, k, 2k, … of each key.
        reduce: reduce over time: one of `mean sum min max first last count std var
            append`, or a dict of these by key.
        prefix: put in front of every key.
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
    argnames, tags, keep_logs, interval, _, reduce, prefix, *static_args = options
    check_callable(fun, "spool")
    selection = Selection.of(argnames, tags)
    every = check_interval(interval, "spool")
    reductions = _reduce.check(reduce, " of `lox.spool`")
    check_prefix(prefix, "spool")
    static = Static.of(fun, *static_args)
    key = ("spool", selection, bool(keep_logs), every, reductions, prefix)

    def form(outermost: bool) -> Compiled:
        def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], logdict]:
            warn_unmatched(closed, selection, reductions, "spool")
            walk = Walk(_Spooler(selection, keep_logs, outermost))
            outs, record, _ = walk(closed, args, ())
            return outs, _finish(record, every, reductions, prefix)

        return compiled(fun, (key, outermost), lambda: (evaluate, None), static)

    return form(False), form(True)


def _finish(
    record: Record, interval: int | None, reductions: Any, prefix: str
) -> logdict:
    """Thins, reduces and names the rows, as the options say."""
    chosen = {}
    for key, rows in record.items():
        asked = _reduce.choose(reductions, key)
        chosen[key] = asked or _reduce.choose(rows.reduce, key)
        if interval is not None:
            record[key] = _thinned(rows, interval)
    logs = to_logdict(record)
    if any(chosen.values()):
        logs = logs.reduce(chosen)
    return logs.prefix(prefix) if prefix else logs


def _thinned(rows: Rows, interval: int) -> Rows:
    if not rows.stacked:
        return rows
    if rows.mask is None:
        return rows.arrays(lambda x: x[::interval])
    number = jnp.cumsum(rows.mask, axis=0) - 1
    return rows.masked(rows.mask & (jax.lax.rem(number, interval) == 0))
