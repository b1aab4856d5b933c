"""`lox.spool`: the logs beside the result."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Never, ParamSpec, TypeVar, overload

from lox._events.selection import Selection
from lox._interpreter.rows import to_logdict
from lox._logs.logdict import logdict

from .arguments import Static
from .collect import collect
from .options import Options, decorator, refuse_unknown
from .transformed import (
    INSIDE,
    OUTERMOST,
    Compiled,
    Form,
    Transformed,
    check_callable,
    compiled,
    is_outermost,
    remembered,
)

P = ParamSpec("P")
T = TypeVar("T")
Names = str | Iterable[str] | None


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
    **others: Never,
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
        _forms(fun, given)  # equals what is kept for 1, but is not a number
    forms = remembered(fun, given, _forms)
    return _Spool(fun, forms, forms[0].static)


class _Spool(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner, outer = self._forms
        if not is_outermost():
            return inner(*args, **kwargs)
        result, logs = outer(*args, **kwargs)
        # on the host, nobody sees rows that did not happen
        return result, logs.compact()


def _forms(fun: Any, given: tuple[Any, ...]) -> tuple[Compiled, Compiled]:
    """The function as it is inside another transformation, and outermost."""
    check_callable(fun, "lox.spool")
    options = Options("lox.spool", Selection.of(*given[:2]), *given[2:8])
    static = Static.of(fun, *given[8:])

    def form(where: Form) -> Compiled:
        def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], logdict]:
            options.warn_unmatched(closed, "lox.spool")
            outs, record, dropped = collect(closed, args, options, where.outermost)
            return outs, to_logdict(record, options.prefix, dropped)

        return compiled(
            fun, ("spool", options), lambda: (evaluate, None), where, static
        )

    return form(INSIDE), form(OUTERMOST)
