"""`lox.spool`: returns the logs of a function along with its result."""

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Never, ParamSpec, TypeVar, overload

from lox._events.selection import Selection
from lox._interpreter.rows import to_logdict
from lox._jax.tracing import TOP_TRACE, trace_state
from lox._libraries import nnx
from lox._logs.logdict import logdict

from .arguments import Argnames, Argnums, Static, all_arrays, array_types
from .cache import PerFunction
from .collect import collect
from .compiled import Compiled, Form, Forms, cached, is_outermost
from .options import Names, Options, decorator, refuse_unknown
from .transformed import Transformed, check_callable

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

# the class of the functions that `lox.spool(f)` returns, without options
_known = PerFunction()


def _with_known_functions(spool: F) -> F:
    """Adds a shortcut to `lox.spool`, for functions that it has transformed before.

    It has no options, because passing their defaults takes longer than the rest.
    """
    entries = _known.entries
    new = object.__new__

    @functools.wraps(spool)
    def with_known_functions(fun: Any = None, *given: Any, **options: Any) -> Any:
        if not given and not options:
            try:
                reference, kind = entries[id(fun)]
            except KeyError:
                pass
            else:
                if reference() is fun:
                    transformed = new(kind)  # as `kind.of` does
                    transformed.__wrapped__ = fun
                    return transformed
        transformed = spool(fun, *given, **options)
        if not given and not options and fun is not None:
            with contextlib.suppress(TypeError):
                _known.get(fun, type(transformed))
        return transformed

    return with_known_functions  # type: ignore[return-value]


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


@_with_known_functions
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
            without a static length, or with `when`. The first rows are kept; a warning
            says how many were dropped. Other keys, such as those of a `scan`, keep all
            rows.
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
        # raises: the cache would return the entry of 1, since `True == 1`
        _spooled(fun, given)
    return cached(fun, given, _spooled).of(fun)


def _spooled(fun: Any, given: tuple[Any, ...]) -> type[Transformed]:
    """The class of what `lox.spool` returns for a function and options."""
    forms = _forms(fun, given)
    inside, outermost = forms.inside, forms.outermost

    def call(_: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        return (outermost if is_outermost() else inside).call(args, kwargs)

    if outermost.all_traced:
        call = _with_shortcut(call, outermost)
    return Transformed.subclass("spool", call, forms.static)


def _with_shortcut(
    call: Callable[..., tuple[Any, logdict]], outermost: Compiled
) -> Callable[..., tuple[Any, logdict]]:
    """Adds a shortcut for most eager calls, those with arrays and numbers only.

    A jitted function takes a few microseconds, so each additional Python call matters.
    """
    jitted, finish = outermost.jitted, outermost.finish

    def with_shortcut(self: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        if trace_state.value is TOP_TRACE or is_outermost():
            has_nnx = "flax.nnx" in _modules
            if not kwargs and (not has_nnx or nnx.captures_none(self.__wrapped__)):
                for arg in args:
                    if type(arg) not in array_types:
                        break
                else:
                    return finish(jitted(*args))
            if not has_nnx and all_arrays(args, kwargs):
                return finish(jitted(*args, **kwargs))
        return call(self, *args, **kwargs)

    return with_shortcut


_modules = sys.modules


def _forms(fun: Any, given: tuple[Any, ...]) -> Forms:
    check_callable(fun, "lox.spool")
    options = Options("lox.spool", Selection.of(*given[:2]), *given[2:8])

    def evaluate(
        closed: Any, args: Sequence[Any], form: Form
    ) -> tuple[list[Any], logdict]:
        options.warn_unmatched(closed, "lox.spool")
        outs, record, totals = collect(closed, args, options, form.outermost)
        return outs, to_logdict(record, options.prefix, totals)

    static = Static.of(fun, *given[8:])
    return Forms.of(fun, ("spool", options), evaluate, static, packs=True)
