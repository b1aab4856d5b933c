"""Reductions one event at a time: what is carried through a loop instead of its rows.

Sums are compensated: beside each goes the sum of what its roundings lost, so that a
million float32 steps lose no digits. A derivative goes through the sum alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lox._errors import LoxTypeError
from lox._jax import array_types

from .custom import UserAccumulator
from .reductions import Reduction, inexact_dtype

Leaves = tuple[Any, ...]


class Accumulator(Protocol):
    """How the values of one key are reduced; made for their types."""

    # the structure of the reduced value
    tree: Any
    # whether `update` needs to know how many events came before
    counts: bool
    # whether `init` belongs to no trace, and so can be called inside any other
    starts_anywhere: bool

    def init(self) -> Any:
        """What is carried before the first event."""
        ...

    def restart(self, carried: Any) -> Any:
        """The same, from what is carried at the end of a window."""
        ...

    def update(self, carried: Any, leaves: Sequence[Any], number: Any) -> Any:
        """What is carried after an event, the `number`-th from zero."""
        ...

    def finish(self, carried: Any, number: Any) -> Leaves:
        """The leaves of the reduced value of that many events."""
        ...


def accumulator(
    reduction: str | Reduction, tree: Any, types: Sequence[Any], lanes: int, where: str
) -> Accumulator:
    """The accumulator of a reduction.

    Args:
        reduction: the reduction.
        tree: the structure of the value.
        types: the types of its leaves.
        lanes: how many lane axes they have in front.
        where: the key and its line, for errors.
    """
    if isinstance(reduction, Reduction):
        return UserAccumulator(reduction, tree, types, lanes, where)
    if reduction == "count":
        return _Count(types, lanes)
    return _ByLeaf(reduction, tree, types, where)


class _Count:
    """The number itself."""

    tree = jax.tree.structure(0)
    counts = True
    starts_anywhere = True

    def __init__(self, types: Sequence[Any], lanes: int) -> None:
        self._lanes = types[0].shape[:lanes]

    def init(self) -> Any:
        return ()

    def restart(self, carried: Any) -> Any:
        return carried

    def update(self, carried: Any, leaves: Sequence[Any], number: Any) -> Any:
        return carried

    def finish(self, carried: Any, number: Any) -> Leaves:
        return (jnp.broadcast_to(jnp.asarray(number, jnp.int32), self._lanes),)


class _ByLeaf:
    """A reduction that knows neither the other leaves nor the lanes of a value."""

    starts_anywhere = True

    def __init__(self, name: str, tree: Any, types: Sequence[Any], where: str) -> None:
        self.tree = tree
        self._leaf = _LEAVES[name]
        self.counts = self._leaf.counts
        self._types = types
        for kind in types:
            if name not in ("first", "last") and not _is_number(kind.dtype):
                raise LoxTypeError(
                    f"{where} is of the dtype {kind.dtype}, which has no {name}. Use "
                    '`reduce="last"`, `"first"` or `"append"`.'
                )

    def init(self) -> Any:
        return [self._leaf.init(kind) for kind in self._types]

    def restart(self, carried: Any) -> Any:
        return self.init()

    def update(self, carried: Any, leaves: Sequence[Any], number: Any) -> Any:
        return [
            self._leaf.update(one, leaf, number)
            for one, leaf in zip(carried, leaves, strict=True)
        ]

    def finish(self, carried: Any, number: Any) -> Leaves:
        return tuple(
            self._leaf.finish(one, number, kind.dtype)
            for one, kind in zip(carried, self._types, strict=True)
        )


# --- leaf by leaf ------------------------------------------------------------


class _Leaf(NamedTuple):
    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finish: Callable[[Any, Any, Any], Any]
    counts: bool = False


def _is_number(dtype: Any) -> bool:
    return dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.number)


def _cast(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else jax.lax.convert_element_type(x, dtype)


# A sum, what its roundings lost, and what the roundings of that lost (Klein's). No part
# waits for another one, so that a loop that has little else to do is no slower for it.
_Sum = tuple[Any, Any, Any]


def _no_sum(kind: Any, dtype: Any) -> _Sum:
    return (
        array_types.strong_zeros(kind, dtype),
        array_types.strong_zeros(kind, dtype),
        array_types.strong_zeros(kind, dtype),
    )


def _add(total: _Sum, x: Any) -> _Sum:
    high, middle, low = total
    new = high + x
    lost = _lost(*map(jax.lax.stop_gradient, (high, x, new)))
    rest = middle + lost
    return new, rest, low + _lost(middle, lost, rest)


def _lost(x: Any, y: Any, total: Any) -> Any:
    """What rounding `x + y` to `total` lost, exactly (Knuth's two-sum)."""
    added = total - x
    return (x - (total - added)) + (y - added)


def _total(total: _Sum) -> Any:
    high, middle, low = total
    # what an infinity loses is NaN
    return jnp.where(jnp.isfinite(high), high + (middle + low), high)


def _wide(dtype: Any) -> Any:
    """The dtype to add up in: at least float32."""
    dtype = jnp.dtype(inexact_dtype(dtype))
    return dtype if dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def _sum_dtype(dtype: Any) -> Any:
    """What the sum of whole numbers is in: as in `jnp.sum`."""
    unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
    return jax.dtypes.canonicalize_dtype(jnp.uint64 if unsigned else jnp.int64)


def _sum_init(kind: Any) -> Any:
    if jnp.issubdtype(kind.dtype, jnp.inexact):
        return _mean_init(kind)
    return array_types.strong_zeros(kind, _sum_dtype(kind.dtype))


def _sum_update(carried: Any, x: Any, number: Any) -> Any:
    if isinstance(carried, tuple):
        return _add(carried, _cast(x, carried[0].dtype))
    return carried + _cast(x, carried.dtype)


def _sum_finish(carried: Any, number: Any, dtype: Any) -> Any:
    if isinstance(carried, tuple):
        return _cast(_total(carried), dtype)
    return carried


def _mean_init(kind: Any) -> Any:
    return _no_sum(kind, _wide(kind.dtype))


def _mean_finish(carried: Any, number: Any, dtype: Any) -> Any:
    total = _total(carried)
    return _cast(total / _number_like(number, total), inexact_dtype(dtype))


def _number_like(number: Any, x: Any) -> Any:
    dtype = x.real.dtype
    if isinstance(number, int):
        # XLA would multiply by the inverse of a constant, which rounds twice
        return jax.lax.optimization_barrier(jnp.asarray(number, dtype))
    # of none, nobody looks at the result; but a division by zero may be reported
    return jnp.maximum(number, 1).astype(dtype)


class _Moments(NamedTuple):
    # the first value: distances to it lose no digits to what all values have in common
    origin: Any
    total: _Sum
    squares: _Sum


def _var_init(kind: Any) -> _Moments:
    wide = _wide(kind.dtype)
    real = jnp.zeros((), wide).real.dtype
    return _Moments(
        array_types.strong_zeros(kind, wide), _no_sum(kind, wide), _no_sum(kind, real)
    )


def _var_update(carried: _Moments, x: Any, number: Any) -> _Moments:
    # Welford's: the distance to the mean of those before, of which there are `number`
    x = _cast(x, carried.origin.dtype)
    origin = jnp.where(number == 0, jax.lax.stop_gradient(x), carried.origin)
    x = x - origin
    before = jnp.asarray(number).astype(x.real.dtype)
    mean = _total(carried.total) / _number_like(number, x)
    square = _square(x - mean) * (before / (before + 1))
    return _Moments(origin, _add(carried.total, x), _add(carried.squares, square))


def _square(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


def _var_finish(carried: _Moments, number: Any, dtype: Any) -> Any:
    squares = _total(carried.squares)
    # as NumPy: an infinite value has no distance to an infinite mean
    finite = jnp.isfinite(carried.total[0])
    var = jnp.where(finite, squares / _number_like(number, squares), jnp.nan)
    real = jnp.zeros((), inexact_dtype(dtype)).real.dtype
    return _cast(var, real)


def _std_finish(carried: _Moments, number: Any, dtype: Any) -> Any:
    var = _var_finish(carried, number, carried.squares[0].dtype)
    # The root has no derivative at zero, where every window begins.
    root = jnp.where(var == 0, 0, jnp.sqrt(jnp.where(var == 0, 1, var)))
    real = jnp.zeros((), inexact_dtype(dtype)).real.dtype
    return _cast(root, real)


def _extreme(name: str) -> _Leaf:
    choose = jnp.minimum if name == "min" else jnp.maximum

    def ordered(dtype: Any) -> Any:
        """A dtype with the same order, for which there is arithmetic."""
        if jnp.issubdtype(dtype, jnp.inexact):
            return _wide(dtype)
        if dtype == jnp.bool_ or jnp.iinfo(dtype).bits < 8:
            return jnp.int8
        return dtype

    def init(kind: Any) -> Any:
        dtype = ordered(kind.dtype)
        zeros = array_types.strong_zeros(kind, dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            worst: Any = info.max if name == "min" else info.min
        else:
            worst = jnp.inf if name == "min" else -jnp.inf
            if jnp.issubdtype(dtype, jnp.complexfloating):
                worst = complex(worst, worst)
        return zeros + jnp.asarray(worst, dtype)

    return _Leaf(
        init,
        lambda carried, x, number: choose(carried, _cast(x, carried.dtype)),
        lambda carried, number, dtype: _cast(carried, dtype),
    )


_LEAVES = {
    "sum": _Leaf(_sum_init, _sum_update, _sum_finish),
    "mean": _Leaf(_mean_init, _sum_update, _mean_finish),
    "var": _Leaf(_var_init, _var_update, _var_finish, counts=True),
    "std": _Leaf(_var_init, _var_update, _std_finish, counts=True),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "first": _Leaf(
        array_types.strong_zeros,
        lambda carried, x, number: jnp.where(number == 0, x, carried),
        lambda carried, number, dtype: carried,
        counts=True,
    ),
    "last": _Leaf(
        array_types.strong_zeros,
        lambda carried, x, number: x,
        lambda carried, number, dtype: carried,
    ),
}
