"""`lox.nolog`: the same function without its logs."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from lox._events.event import Event
from lox._interpreter.handlers import NO_STATE, Remover
from lox._interpreter.patches.missing import events_are_removed
from lox._interpreter.walk import Walk
from lox._jax import patches

from .arguments import Static
from .options import decorator
from .transformed import (
    INSIDE,
    OUTERMOST,
    Transformed,
    check_callable,
    compiled,
    is_outermost,
)

P = ParamSpec("P")
T = TypeVar("T")


@overload
def nolog(
    fun: Callable[P, T], *, static_argnums: Any = None, static_argnames: Any = None
) -> Callable[P, T]: ...


@overload
def nolog(
    fun: None = None, *, static_argnums: Any = None, static_argnames: Any = None
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def nolog(
    fun: Any = None, *, static_argnums: Any = None, static_argnames: Any = None
) -> Any:
    """Removes every `lox.log` from `fun`.

    What is compiled is the program without logs.

    Args:
        fun: the function; without one, a decorator with these options is returned.
        static_argnums: which arguments are static, as in `jax.jit`.
        static_argnames: the same, by name.

    Returns:
        A function with the arguments and the result of `fun`.

    Example:
        >>> quiet = lox.nolog(lambda x: (lox.log({"x": x}), x + 1)[1])
        >>> int(quiet(1))
        2
    """
    if fun is None:
        return decorator(nolog, locals())
    check_callable(fun, "lox.nolog")
    static = Static.of(fun, static_argnums, static_argnames)
    inner, outer = (
        compiled(fun, "nolog", lambda: (_evaluate, None), form, static)
        for form in (INSIDE, OUTERMOST)
    )
    return _Nolog(fun, (inner, outer), static)


class _Nolog(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner, outer = self._forms
        form = outer if is_outermost() else inner
        if patches.missing():  # by events that are removed, they are not needed
            with events_are_removed():
                return form(*args, **kwargs)[0]
        return form(*args, **kwargs)[0]


def _evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], None]:
    outs, _, _ = Walk(Remover(_is_ours))(closed, args, NO_STATE)
    return outs, None


def _is_ours(event: Event) -> bool:
    return event.call.api == "lox"
