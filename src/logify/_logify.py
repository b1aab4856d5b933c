"""`logify.logify`: makes a function return its logs."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from lox._events.selection import Selection
from lox._interpreter.contents import events_of
from lox._interpreter.rows import to_logdict
from lox._transforms.arguments import Argnames, Argnums, Static
from lox._transforms.collect import collect
from lox._transforms.compiled import Form, Forms
from lox._transforms.options import Options, decorator
from lox._transforms.transformed import Transformed, check_callable

from ._log import API
from ._logs import Logs

P = ParamSpec("P")
T = TypeVar("T")


@overload
def logify(
    fun: Callable[P, T],
    *,
    capacity: int | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[P, tuple[T, Logs]]: ...


@overload
def logify(
    fun: None = None,
    *,
    capacity: int | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[[Callable[P, T]], Callable[P, tuple[T, Logs]]]: ...


def logify(
    fun: Any = None,
    *,
    capacity: int | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Any:
    """Makes `fun` return its `logify.log` values along with its result.

    Args:
        fun: the function; if omitted, a decorator with these options is returned.
        capacity: the maximum number of values to keep per name that is appended to in
            a loop without a static length.
        static_argnums: the positions of static arguments, as in `jax.jit`.
        static_argnames: the names of static arguments, as in `jax.jit`.

    Returns:
        A function with the arguments of `fun` that returns `(result, logs)`;
        `logs.asdict()` returns the values by name and reduction.

    Example:
        >>> import logify
        >>> @jax.jit
        ... @logify.logify
        ... def f(a, b):
        ...     logify.log("b", b, reduction="sum")
        ...     logify.log("b", b + 1, reduction="sum")
        ...     return a + b
        >>> result, logs = f(1.0, 2.0)
        >>> logs
        {'b': {'sum': 5.0}}
    """
    if fun is None:
        return decorator(logify, locals())
    check_callable(fun, f"{API}.logify")
    options = Options(f"{API}.logify", Selection(api=API), capacity=capacity)
    static = Static.of(fun, static_argnums, static_argnames)

    def evaluate(
        closed: Any, args: Sequence[Any], form: Form
    ) -> tuple[list[Any], Logs]:
        outs, record, totals = collect(closed, args, options, form.outermost)
        names = {
            event.call.keys[0]: event.call.api_data
            for event in events_of(closed)
            if options.selection.selects_event(event)
        }
        kept = tuple((key, *names[key]) for key in record)
        return outs, Logs(to_logdict(record, "", totals), kept)

    # Python numbers are not traced: `fun` gets its arguments unchanged
    outermost = Form(outermost=True, numbers=False)
    forms = Forms.of(fun, ("logify", options), evaluate, static, outermost)
    return Transformed("logify", fun, forms, static)
