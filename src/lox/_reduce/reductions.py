"""Reductions over time: their names, and what they give on rows that are stacked."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lox._arrays import default_float, integer_range, is_inexact, is_integer, namespace
from lox._errors import LoxTypeError, LoxValueError
from lox._patterns import matches

NAMES = (
    "mean",
    "sum",
    "min",
    "max",
    "first",
    "last",
    "count",
    "std",
    "var",
    "append",
)
_ALIASES = {"replace": "last"}


def _same(state: Any) -> Any:
    return state


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
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


Reduction.__module__ = "lox"


def check(reduce: Any, where: str = "") -> Any:
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


def check_one(reduction: Any, what: str) -> str | Reduction:
    """A reduction by its proper name; `what` says in errors whose it is."""
    if isinstance(reduction, Reduction):
        return reduction
    if isinstance(reduction, str):
        name = _ALIASES.get(reduction, reduction)
        if name in NAMES:
            return name
    raise LoxValueError(
        f"{what} got the unknown reduction {reduction!r}; there are "
        f"{', '.join(NAMES)}, and `lox.Reduction` for one of your own."
    )


def choose(checked: Any, key: str) -> Any:
    """The reduction that `check` found for one key."""
    if not isinstance(checked, tuple):
        return checked
    exact = dict(checked)
    if key in exact:
        return exact[key]
    for pattern, name in checked:
        if matches(key, pattern):
            return name
    return None


def unmatched(checked: Any, keys: Iterable[str]) -> list[str]:
    """The names in a mapping of reductions that no key matches."""
    if not isinstance(checked, tuple):
        return []
    seen = list(keys)
    return [
        pattern
        for pattern, _ in checked
        if not any(matches(key, pattern) for key in seen)
    ]


def reduce_stacked(
    name: str, rows: Any, axis: int, lanes: int = 0, mask: Any = None
) -> Any:
    """Reduces stacked rows along their time axis.

    Args:
        name: one of `NAMES`, but not `append`.
        rows: an array.
        axis: its time axis.
        lanes: how many lane axes come after it.
        mask: which rows happened, of a shape that broadcasts to `rows`; None for all.
            What a reduction of no rows gives is then of no meaning.
    """
    xp = namespace(rows)
    if name == "count":
        return _count(xp, rows, axis, lanes, mask)
    if rows.shape[axis] == 0 and name in ("first", "last", "min", "max"):
        raise LoxValueError(f"the {name} of no rows is not defined")
    if name in ("first", "last"):
        return _pick(xp, name, rows, axis, mask)
    if name in ("min", "max"):
        return _extreme(xp, name, rows, axis, mask)
    if name == "sum":
        return xp.sum(rows, axis=axis, where=True if mask is None else mask)
    rows = rows.astype(inexact_dtype(rows.dtype))
    if mask is None:
        return {"mean": xp.mean, "std": xp.std, "var": xp.var}[name](rows, axis=axis)
    return _masked_moment(xp, name, rows, axis, mask)


def inexact_dtype(dtype: Any) -> Any:
    """What the mean of values of a dtype has."""
    return dtype if is_inexact(dtype) else default_float()


def _masked_moment(xp: Any, name: str, rows: Any, axis: int, mask: Any) -> Any:
    number = xp.maximum(xp.sum(mask, axis=axis, keepdims=True), 1).astype(rows.dtype)
    mean = xp.sum(rows, axis=axis, keepdims=True, where=mask) / number
    if name == "mean":
        return xp.squeeze(mean, axis)
    squares = xp.abs(rows - mean) ** 2
    var = xp.sum(squares, axis=axis, where=mask) / xp.squeeze(xp.real(number), axis)
    return xp.sqrt(var) if name == "std" else var


def _count(xp: Any, rows: Any, axis: int, lanes: int, mask: Any) -> Any:
    shape = rows.shape[:axis] + rows.shape[axis + 1 : axis + 1 + lanes]
    if mask is None:
        return xp.full(shape, rows.shape[axis], dtype=np.int32)
    counted = xp.sum(mask, axis=axis, dtype=np.int32)
    return counted.reshape(shape)


def _pick(xp: Any, name: str, rows: Any, axis: int, mask: Any) -> Any:
    length = rows.shape[axis]
    if mask is None:
        return xp.take(rows, 0 if name == "first" else length - 1, axis=axis)
    if name == "first":
        index = xp.argmax(mask, axis=axis, keepdims=True)
    else:
        index = length - 1 - xp.argmax(xp.flip(mask, axis), axis=axis, keepdims=True)
    shape = [1 if i == axis else size for i, size in enumerate(rows.shape)]
    index = xp.broadcast_to(index, shape)
    return xp.squeeze(xp.take_along_axis(rows, index, axis=axis), axis)


def _extreme(xp: Any, name: str, rows: Any, axis: int, mask: Any) -> Any:
    function = xp.min if name == "min" else xp.max
    if rows.dtype == np.bool_:
        as_int = _extreme(xp, name, rows.astype(np.int8), axis, mask)
        return as_int.astype(np.bool_)
    if mask is None:
        return function(rows, axis=axis)
    if is_integer(rows.dtype):
        least, most = integer_range(rows.dtype)
        worst: Any = most if name == "min" else least
    else:
        worst = np.inf if name == "min" else -np.inf
    return function(rows, axis=axis, where=mask, initial=worst)
