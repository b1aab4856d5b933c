"""Reductions as users give them: by name, by key, or as a `lox.Reduction`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lox._errors import LoxTypeError, LoxValueError
from lox._patterns import matches

from .named import REDUCTIONS
from .protocol import Accumulator, AnyReduction, Leaves, StackedRows, ValueType

_ALIASES = {"replace": "last"}

# what `check` gives: nothing, one reduction for all keys, or names and patterns with
# the reductions of the keys that match them
Checked = AnyReduction | tuple[tuple[str, AnyReduction | None], ...] | None


def _same(state: Any) -> Any:
    return state


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction(AnyReduction):
    """A reduction over time of your own.

    It sees one value after the other, and carries a state of a fixed size. Values are
    what `lox.log` was given, without the lanes of a `vmap`.

    Args:
        init: the state before the first value: arrays and numbers in any pytree, or a
            function that makes it from a value, of which only the shapes and dtypes
            count.
        update: a function of the state and a value that gives the new state, of the
            same structure, shapes and dtypes.
        finish: a function of the last state that gives the reduced value; by default,
            that is the state itself.

    Example:
        >>> def smooth(average, x):
        ...     return 0.9 * average + 0.1 * x
        >>> moving_average = lox.Reduction(0.0, smooth)
        >>> def f(xs):
        ...     return jax.lax.map(lambda x: lox.log({"x": x}) and x, xs)
        >>> _, logs = lox.spool(f, reduce=moving_average)(jnp.ones(2))
        >>> logs
        {'x': 0.19}
    """

    init: Any
    update: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any] = _same

    def __post_init__(self) -> None:
        for name in ("update", "finish"):
            if not callable(getattr(self, name)):
                raise LoxTypeError(
                    f"`{name}` of a `lox.Reduction` must be a function, not "
                    f"{getattr(self, name)!r}."
                )

    # its functions compute with `jax.numpy`, so that both forms need JAX

    def in_loop(self, value: ValueType) -> Accumulator:
        from .custom import accumulator

        return accumulator(self, value)

    def stacked(self, rows: StackedRows) -> tuple[Leaves, Any]:
        from .custom import fold_stacked

        return fold_stacked(self, rows)


Reduction.__module__ = "lox"


def check(reduce: Any, where: str = "") -> Checked:
    """A reduction for all keys, or a mapping of them, validated and hashable.

    Args:
        reduce: a reduction, a mapping from names or patterns to these, or None.
        where: what to add to the error, such as the user's line.

    Returns:
        None, a reduction, or a tuple of pairs.
    """
    if reduce is None:
        return None
    if isinstance(reduce, Mapping):
        for key in reduce:
            if not isinstance(key, str):
                raise LoxTypeError(
                    f"`reduce`{where} has the key {key!r}; its keys are names, or "
                    "patterns of names, that `lox.log` was given."
                )
        return tuple(
            (key, None if value is None else check_one(value, f"`reduce`{where}"))
            for key, value in reduce.items()
        )
    return check_one(reduce, f"`reduce`{where}")


def check_one(reduction: Any, what: str) -> AnyReduction:
    """A reduction that a user gives; `what` says in errors whose it is."""
    if isinstance(reduction, Reduction):
        return reduction
    if isinstance(reduction, str):
        name = _ALIASES.get(reduction, reduction)
        if name in REDUCTIONS:
            return REDUCTIONS[name]
    raise LoxValueError(
        f"{what} got the unknown reduction {reduction!r}; there are "
        f"{', '.join(REDUCTIONS)}, and `lox.Reduction` for one of your own."
    )


def choose(checked: Checked, key: str) -> AnyReduction | None:
    """The reduction that `check` found for one key."""
    if not isinstance(checked, tuple):
        return checked
    exact = dict(checked)
    if key in exact:
        return exact[key]
    for pattern, reduction in checked:
        if matches(key, pattern):
            return reduction
    return None


def unmatched(checked: Checked, keys: Iterable[str]) -> list[str]:
    """The names in a mapping of reductions that no key matches."""
    if not isinstance(checked, tuple):
        return []
    seen = list(keys)
    return [
        pattern
        for pattern, _ in checked
        if not any(matches(key, pattern) for key in seen)
    ]
