"""`lox.nolog`: removes the logs of a function."""

import types
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from lox._events.event import Event
from lox._interpreter.handlers import NO_STATE, Remover
from lox._interpreter.patches.missing import removing_events
from lox._interpreter.walk import Walk
from lox._jax import patches

from .arguments import Argnames, Argnums, Static
from .compiled import Form, Forms
from .options import decorator
from .transformed import Transformed, check_callable

P = ParamSpec("P")
T = TypeVar("T")


@overload
def nolog(
    fun: Callable[P, T],
    *,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[P, T]: ...


@overload
def nolog(
    fun: None = None,
    *,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def nolog(
    fun: Any = None, *, static_argnums: Argnums = None, static_argnames: Argnames = None
) -> Any:
    """Removes every `lox.log` from `fun`.

    The compiled program is that of `fun` without logs.

    Args:
        fun: the function; if omitted, a decorator with these options is returned.
        static_argnums: the positions of static arguments, as in `jax.jit`.
        static_argnames: the names of static arguments, as in `jax.jit`.

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
    forms = Forms.of(fun, "nolog", _evaluate, static, collects=False)

    def call(_: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not patches.missing():
            return forms(*args, **kwargs)[0]
        with removing_events:  # events that are removed need no patches
            return forms(*args, **kwargs)[0]

    # a method of `fun` keeps it alive, which the compiled forms do not
    return Transformed("nolog", fun, types.MethodType(call, fun), static)


def _evaluate(closed: Any, args: Sequence[Any], form: Form) -> tuple[list[Any], None]:
    outs, _, _ = Walk(Remover(_is_lox))(closed, args, NO_STATE)
    return outs, None


def _is_lox(event: Event) -> bool:
    return event.call.api == "lox"
