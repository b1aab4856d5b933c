"""`lox.spool`: returns the logs of a function along with its result."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Never, ParamSpec, TypeVar, overload

from lox._events.selection import Selection
from lox._interpreter.rows import to_logdict
from lox._logs.logdict import logdict

from .arguments import Argnames, Argnums, Static
from .collect import collect
from .compiled import Form, Forms, cached, is_outermost
from .options import Names, Options, decorator, refuse_unknown
from .transformed import Transformed, check_callable

P = ParamSpec("P")
T = TypeVar("T")


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
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
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
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
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
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    **others: Never,
) -> Any:
    """Makes `fun` return its logs along with its result.

    A key that is logged once, outside any loop, keeps its own shape. Every other key is
    stacked along a leading time axis, in the order in which `fun` would log as plain
    Python. With `spool(vmap(f))`, the lanes come after the time axis; with
    `vmap(spool(f))`, before it.

    Args:
        fun: the function; if omitted, a decorator with these options is returned.
        argnames: the keys to collect: names or shell-style patterns. By default, all.
        tags: collect only events that have at least one of these tags.
        keep_logs: leave the events for an outer transformation too.
        interval: collect every `interval`-th event per key, starting with the first;
            the others take no memory.
        reduce: reduce over time while the program runs: one of `mean sum min max first
            last count std var append`, a `lox.Reduction`, or a dict of these by key.
            Overrides the `reduce` of `lox.log`.
        prefix: a string to put in front of every key.
        window: return one reduced row per `window` events, and one for the remaining
            events, instead of one for all events.
        capacity: the maximum number of rows to keep per key that is logged in a loop
            without a static length. The first rows are kept; a warning says how many
            were dropped.
        static_argnums: the positions of static arguments, as in `jax.jit`.
        static_argnames: the names of static arguments, as in `jax.jit`.

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
    if others:
        refuse_unknown("lox.spool", others, spool)
    if fun is None:
        return decorator(spool, locals())
    given = (  # in the order of `Options`
        argnames,
        tags,
        keep_logs,
        interval,
        reduce,
        prefix,
        window,
        capacity,
        static_argnums,
        static_argnames,
    )
    if interval is True or window is True or capacity is True:
        # raises; the cache would find the entry of 1, which equals
        _spooled(fun, given)
    call, static = cached(fun, given, _spooled)
    # a method of `fun` keeps it alive, which the cached function does not
    return Transformed("spool", fun, types.MethodType(call, fun), static)


def _spooled(
    fun: Any, given: tuple[Any, ...]
) -> tuple[Callable[..., tuple[Any, logdict]], Static]:
    """What `lox.spool` returns, as a method of `fun`, and its static arguments."""
    forms = _forms(fun, given)
    inside, outermost = forms.inside, forms.outermost

    def call(_: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        if not is_outermost():
            return inside.call(args, kwargs)
        result, logs = outermost.call(args, kwargs)
        # on the host, rows that were not logged are removed
        return result, logs.compact()

    return call, forms.static


def _forms(fun: Any, given: tuple[Any, ...]) -> Forms:
    check_callable(fun, "lox.spool")
    options = Options("lox.spool", Selection.of(*given[:2]), *given[2:8])

    def evaluate(
        closed: Any, args: Sequence[Any], form: Form
    ) -> tuple[list[Any], logdict]:
        options.warn_unmatched(closed, "lox.spool")
        outs, record, totals = collect(closed, args, options, form.outermost)
        return outs, to_logdict(record, options.prefix, totals)

    return Forms.of(fun, ("spool", options), evaluate, Static.of(fun, *given[8:]))
