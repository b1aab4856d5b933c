"""`lox.Reduction`, and the `reduce` option: by name, by key, or custom."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lox import _patterns
from lox._errors import LoxTypeError, LoxValueError

from .named import REDUCTIONS
from .protocol import Accumulator, AnyReduction, Leaves, StackedRows, ValueType

_ALIASES = {"replace": "last"}

# the result of `check`: None, one reduction for all keys, or pairs of a name or pattern
# and the reduction of the keys that match it
Checked = AnyReduction | tuple[tuple[str, AnyReduction | None], ...] | None


def _same(state: Any) -> Any:
    return state


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction(AnyReduction):
    """A custom reduction over time.

    It processes one value after the other, and carries a state of fixed size. Values
    are those passed to `lox.log`, without the lanes of a `vmap`.

    Args:
        init: the initial state: a pytree of arrays and numbers, or a function that
            creates it from an example value with the shapes and dtypes of the values.
        update: a function `(state, value) -> state` that keeps the structure, shapes
            and dtypes of the state.
        finish: a function from the final state to the reduced value; by default, the
            state itself.

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

    # imported here, because only custom reductions always need JAX

    def in_loop(self, value: ValueType) -> Accumulator:
        from .custom import accumulator

        return accumulator(self, value)

    def stacked(self, rows: StackedRows) -> tuple[Leaves, Any]:
        from .custom import fold_stacked

        return fold_stacked(self, rows)


Reduction.__module__ = "lox"


def check(reduce: Any, where: str = "") -> Checked:
    """Checks a `reduce` option, and makes it hashable.

    Args:
        reduce: a reduction, a mapping from names or patterns to reductions, or None.
        where: text for error messages, such as the user's line.
    """
    if reduce is None:
        return None
    if isinstance(reduce, Mapping):
        for key in reduce:
            if not isinstance(key, str):
                raise LoxTypeError(
                    f"`reduce`{where} has the key {key!r}; its keys are names of "
                    "logged values, or patterns of these."
                )
        return tuple(
            (key, None if value is None else check_one(value, f"`reduce`{where}"))
            for key, value in reduce.items()
        )
    return check_one(reduce, f"`reduce`{where}")


def check_one(reduction: Any, what: str) -> AnyReduction:
    """Checks a single reduction; `what` names it in error messages."""
    if isinstance(reduction, Reduction):
        return reduction
    if isinstance(reduction, str):
        name = _ALIASES.get(reduction, reduction)
        if name in REDUCTIONS:
            return REDUCTIONS[name]
    raise LoxValueError(
        f"{what} got the unknown reduction {reduction!r}; it must be "
        f"{', '.join(REDUCTIONS)}, or a custom `lox.Reduction`."
    )


def choose(checked: Checked, key: str) -> AnyReduction | None:
    """The reduction of a key, from the result of `check`."""
    if not isinstance(checked, tuple):
        return checked
    exact = dict(checked)
    if key in exact:
        return exact[key]
    found = (one for name, one in checked if _patterns.matches(key, name))
    return next(found, None)


def unmatched(checked: Checked, keys: Iterable[str]) -> list[str]:
    """The names in a mapping of reductions that no key matches."""
    names = dict(checked) if isinstance(checked, tuple) else ()
    return _patterns.unmatched(names, keys)
