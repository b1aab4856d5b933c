"""JAX's rules for `checkify`."""

from collections.abc import Callable, Sequence
from typing import Any

from . import compat


def when_rules_exist(hook: Callable[[], Any]) -> None:
    """Calls `hook` once JAX's rules for `checkify` can be wrapped."""
    compat.when_imported("checkify", hook)


def split_arguments(
    args: Sequence[Any],
) -> tuple[Callable[[Any, Sequence[Any]], Any], Sequence[Any]]:
    """Splits the arguments of a `checkify` rule.

    Returns:
        A function that evaluates a jaxpr with its checks and returns the error and the
        results; and the operands of the equation.
    """
    evaluate = compat.private(
        "checkify.checkify_jaxpr", "log in the condition of a checked `while_loop`"
    )
    at = _error_position(args)
    context, error, enabled = args[:at], args[at], args[at + 1]

    def call(jaxpr: Any, inputs: Sequence[Any]) -> Any:
        return evaluate(*context, jaxpr, enabled, error, *inputs)

    return call, args[at + 2 :]


def with_error(front: Sequence[Any], error: Any) -> list[Any]:
    """The arguments of a `checkify` rule before the operands, with another error."""
    at = _error_position(front)
    return [*front[:at], error, *front[at + 1 :]]


def _error_position(args: Sequence[Any]) -> int:
    # from 0.12 on, there is a context before it
    kind = compat.private(
        "checkify.Error", "log in the condition of a checked `while_loop`"
    )
    return next(i for i, arg in enumerate(args) if isinstance(arg, kind))
