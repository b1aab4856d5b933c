"""The named reductions, one class each.

A reduction has two forms. In a loop, an accumulator is carried from event to event. On
stacked rows, it is a function of an array. Both use NumPy for NumPy arrays and
`jax.numpy` for JAX arrays, so this module does not import JAX.
"""

from typing import Any, NamedTuple

import numpy as np

from lox._arrays import (
    default_float,
    imported_jax,
    integer_range,
    is_inexact,
    is_integer,
    is_typed_key,
    namespace,
    structure_of,
    widest_integer,
)
from lox._errors import LoxTypeError, LoxValueError

from .compensated import CompensatedSum, cast, number_like, zeros
from .protocol import Accumulator, AnyReduction, Leaves, StackedRows, ValueType


class Named(AnyReduction):
    """A reduction that is applied to each leaf; subclasses reduce one leaf."""

    name: str
    # whether `update` needs the number of previous events
    counts = False
    # whether typed PRNG keys can be reduced
    takes_keys = False
    # whether the reduction of no rows is defined
    takes_no_rows = True

    def __repr__(self) -> str:
        return repr(self.name)

    def _check_dtypes(self, leaves: Leaves, where: str) -> None:
        for leaf in () if self.takes_keys else leaves:
            if is_typed_key(leaf):
                raise LoxTypeError(
                    f"{where} is of the dtype {leaf.dtype}, which has no {self.name}. "
                    'Use `reduce="last"`, `"first"` or `"append"`.'
                )

    def in_loop(self, value: ValueType) -> Accumulator:
        types = value.types
        self._check_dtypes(types, value.where)

        def init() -> list[Any]:
            return [self.init(kind) for kind in types]

        def update(carried: Any, leaves: Leaves, number: Any) -> list[Any]:
            pairs = zip(carried, leaves, strict=True)
            return [self.update(one, leaf, number) for one, leaf in pairs]

        def finish(carried: Any, number: Any) -> tuple[Any, ...]:
            finished = (self.finish(one, number) for one in carried)
            return tuple(map(cast, finished, (self.dtype(x.dtype) for x in types)))

        return Accumulator(
            value.tree, init, lambda carried: init(), update, finish, self.counts
        )

    def dtype(self, dtype: Any) -> Any:
        """The dtype of the reduction of values of a dtype."""
        return dtype

    def init(self, kind: Any) -> Any:
        """The initial carry for a leaf of a type."""
        raise NotImplementedError

    def update(self, carried: Any, x: Any, number: Any) -> Any:
        """The carry after the value `x`, given the number of previous values."""
        raise NotImplementedError

    def finish(self, carried: Any, number: Any) -> Any:
        """The reduction of `number` values; its dtype may be wider than `dtype`."""
        return carried

    def stacked(self, rows: StackedRows) -> tuple[Leaves, Any]:
        self._check_dtypes(rows.leaves, repr(rows.key))
        reduced = []
        for leaf, axis, own in zip(rows.leaves, rows.axes, rows.ndims, strict=True):
            if leaf.shape[axis] == 0 and not self.takes_no_rows:
                raise LoxValueError(
                    f"cannot reduce {rows.key!r}: the {self.name} of no rows is not "
                    "defined."
                )
            mask = rows.mask
            if mask is not None:
                mask = mask.reshape(mask.shape + (1,) * own)
            result = self.over_axis(leaf, axis, mask)
            dtype = self.dtype_of_stacked(leaf)
            reduced.append(result if result.dtype == dtype else result.astype(dtype))
        return reduced, rows.tree

    def dtype_of_stacked(self, rows: Any) -> Any:
        """The dtype of the reduction of stacked rows."""
        return self.dtype(rows.dtype)

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        """Reduces an array; a mask, if any, says which rows were logged.

        The dtype of the result may be wider than `dtype_of_stacked`.
        """
        raise NotImplementedError


# --- sums --------------------------------------------------------------------


def _inexact(dtype: Any) -> Any:
    """The dtype of the mean of values of a dtype."""
    return dtype if is_inexact(dtype) else default_float()


def wide_dtype(dtype: Any) -> Any:
    """The dtype to add up in: at least float32."""
    dtype = np.dtype(_inexact(dtype))
    return dtype if dtype.itemsize >= 4 else np.dtype(np.float32)


def _stacked_dtype(rows: Any) -> Any:
    """The dtype to add up stacked rows in.

    NumPy adds up one row after the other, without compensation. XLA adds up parts of
    the rows, so that rounding errors do not grow with their number.
    """
    wide = wide_dtype(rows.dtype)
    return np.result_type(wide, np.float64) if namespace(rows) is np else wide


def _real(dtype: Any) -> Any:
    return np.zeros((), dtype).real.dtype


class _Sum(Named):
    name = "sum"

    def dtype(self, dtype: Any) -> Any:
        if is_inexact(dtype):
            return dtype
        # as in `jnp.sum`
        return widest_integer(is_integer(dtype) and integer_range(dtype)[0] == 0)

    def dtype_of_stacked(self, rows: Any) -> Any:
        dtype = self.dtype(rows.dtype)
        if is_inexact(dtype) or namespace(rows) is not np:
            return dtype
        # loaded rows do not overflow: NumPy has 64 bits, even if JAX has not
        return np.dtype(f"{dtype.kind}8")

    def init(self, kind: Any) -> Any:
        dtype = self.dtype(kind.dtype)
        if is_inexact(dtype):
            return CompensatedSum.zero(kind, wide_dtype(dtype))
        return zeros(kind, dtype)

    def update(self, carried: Any, x: Any, number: Any) -> Any:
        if isinstance(carried, CompensatedSum):
            return carried.plus(x)
        return carried + cast(x, carried.dtype)

    def finish(self, carried: Any, number: Any) -> Any:
        return carried.total() if isinstance(carried, CompensatedSum) else carried

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        dtype = self.dtype_of_stacked(rows)
        wide = _stacked_dtype(rows) if is_inexact(dtype) else dtype
        where = True if mask is None else mask
        return namespace(rows).sum(rows, axis=axis, dtype=wide, where=where)


class _Mean(_Sum):
    name = "mean"

    def dtype(self, dtype: Any) -> Any:
        return _inexact(dtype)

    def finish(self, carried: CompensatedSum, number: Any) -> Any:
        total = carried.total()
        return total / number_like(number, total)

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        xp = namespace(rows)
        if mask is None:
            return xp.mean(rows, axis=axis, dtype=_stacked_dtype(rows))
        return xp.squeeze(_masked_mean(rows, axis, mask)[0], axis)


def _masked_mean(rows: Any, axis: int, mask: Any) -> tuple[Any, Any]:
    """The mean of the logged rows, and their number, or 1 if there are none."""
    xp, wide = namespace(rows), _stacked_dtype(rows)
    number = xp.maximum(xp.sum(mask, axis=axis, keepdims=True), 1).astype(_real(wide))
    total = xp.sum(rows, axis=axis, dtype=wide, keepdims=True, where=mask)
    return total / number, number


class _Moments(NamedTuple):
    # the first value, which is subtracted from all values to avoid cancellation
    origin: Any
    total: CompensatedSum
    squares: CompensatedSum


class _Var(Named):
    name = "var"
    counts = True

    def dtype(self, dtype: Any) -> Any:
        return _real(_inexact(dtype))

    def init(self, kind: Any) -> _Moments:
        wide = wide_dtype(kind.dtype)
        total = CompensatedSum.zero(kind, wide)
        squares = CompensatedSum.zero(kind, _real(wide))
        return _Moments(zeros(kind, wide), total, squares)

    def update(self, carried: _Moments, x: Any, number: Any) -> _Moments:
        # Welford's algorithm: the distance to the mean of the previous values
        jax = imported_jax()
        x = cast(x, carried.origin.dtype)
        constant = jax.lax.stop_gradient(x)
        origin = jax.numpy.where(number == 0, constant, carried.origin)
        x = x - origin
        before = jax.numpy.asarray(number).astype(x.real.dtype)
        mean = carried.total.total() / number_like(number, x)
        square = _square(x - mean) * (before / (before + 1))
        return _Moments(origin, carried.total.plus(x), carried.squares.plus(square))

    def finish(self, carried: _Moments, number: Any) -> Any:
        squares = carried.squares.total()
        xp = namespace(squares)
        # like NumPy: the distance of an infinite value to an infinite mean is NaN
        finite = xp.isfinite(carried.total.high)
        return xp.where(finite, squares / number_like(number, squares), np.nan)

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        xp, rows = namespace(rows), rows.astype(_stacked_dtype(rows))
        if mask is None:
            return xp.var(rows, axis=axis)
        mean, number = _masked_mean(rows, axis, mask)
        squares = xp.sum(_square(rows - mean), axis=axis, where=mask)
        return squares / xp.squeeze(number, axis)


def _square(x: Any) -> Any:
    xp = namespace(x)
    if xp.iscomplexobj(x):
        return xp.square(x.real) + xp.square(x.imag)
    return xp.square(x)


class _Std(_Var):
    name = "std"

    def finish(self, carried: _Moments, number: Any) -> Any:
        var = super().finish(carried, number)
        xp = namespace(var)
        # the square root has no derivative at zero, where every window begins
        return xp.where(var == 0, 0, xp.sqrt(xp.where(var == 0, 1, var)))

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        xp = namespace(rows)
        if mask is None:
            return xp.std(rows.astype(_stacked_dtype(rows)), axis=axis)
        return xp.sqrt(super().over_axis(rows, axis, mask))


# --- selections --------------------------------------------------------------


def worst_value(name: str, dtype: Any) -> Any:
    """The initial `"min"` or `"max"`, which every value of a dtype replaces."""
    if is_integer(dtype):
        least, most = integer_range(dtype)
        return most if name == "min" else least
    worst = np.inf if name == "min" else -np.inf
    return complex(worst, worst) if np.dtype(dtype).kind == "c" else worst


def _ordered_dtype(dtype: Any) -> Any:
    """A dtype with the same order that has comparisons, and a `worst_value`."""
    if is_inexact(dtype):
        return wide_dtype(dtype)
    is_small = dtype == np.bool_ or np.dtype(dtype).kind == "V"
    return np.dtype(np.int8) if is_small else dtype


class _Max(Named):
    name = "max"
    takes_no_rows = False

    def init(self, kind: Any) -> Any:
        dtype = _ordered_dtype(kind.dtype)
        start = zeros(kind, dtype)
        return start + namespace(start).asarray(worst_value(self.name, dtype), dtype)

    def update(self, carried: Any, x: Any, number: Any) -> Any:
        choose = getattr(namespace(x), f"{self.name}imum")
        return choose(carried, cast(x, carried.dtype))

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        dtype = _ordered_dtype(rows.dtype)
        rows = rows if rows.dtype == dtype else rows.astype(dtype)
        choose = getattr(namespace(rows), self.name)
        if mask is None:
            return choose(rows, axis=axis)
        # as an array: JAX converts Python integers to int32, where this may overflow
        worst = np.asarray(worst_value(self.name, dtype), dtype)
        return choose(rows, axis=axis, where=mask, initial=worst)


class _Min(_Max):
    name = "min"


class _Last(Named):
    name = "last"
    takes_keys = True
    takes_no_rows = False

    def init(self, kind: Any) -> Any:
        return zeros(kind)

    def update(self, carried: Any, x: Any, number: Any) -> Any:
        return x

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        xp, last = namespace(rows), rows.shape[axis] - 1
        if mask is None:
            return xp.take(rows, last, axis=axis)
        index = last - xp.argmax(xp.flip(mask, axis), axis=axis, keepdims=True)
        return _row_at(rows, index, axis)


class _First(_Last):
    name = "first"
    step = "first"
    counts = True

    def update(self, carried: Any, x: Any, number: Any) -> Any:
        return namespace(x).where(number == 0, x, carried)

    def over_axis(self, rows: Any, axis: int, mask: Any) -> Any:
        xp = namespace(rows)
        if mask is None:
            return xp.take(rows, 0, axis=axis)
        return _row_at(rows, xp.argmax(mask, axis=axis, keepdims=True), axis)


def _row_at(rows: Any, index: Any, axis: int) -> Any:
    xp = namespace(rows)
    shape = [1 if i == axis else size for i, size in enumerate(rows.shape)]
    index = xp.broadcast_to(index, shape)
    return xp.squeeze(xp.take_along_axis(rows, index, axis=axis), axis)


class _Append(Named):
    """Keeps all rows, so it needs neither form."""

    name = "append"
    keeps_rows = True


class _Count(Named):
    """The number of events: one number for the whole value."""

    name = "count"

    def in_loop(self, value: ValueType) -> Accumulator:
        lanes = value.types[0].shape[: value.lanes]

        def unchanged(carried: Any, *event: Any) -> Any:
            return carried  # events are counted by the stream

        def finish(carried: Any, number: Any) -> tuple[Any, ...]:
            jnp = imported_jax().numpy
            return (jnp.broadcast_to(jnp.asarray(number, np.int32), lanes),)

        return Accumulator(
            structure_of(0), tuple, unchanged, unchanged, finish, counts=True
        )

    def stacked(self, rows: StackedRows) -> tuple[Leaves, Any]:
        leaf, axis = rows.leaves[0], rows.axes[0]
        xp = namespace(leaf)
        if rows.mask is not None:
            number = xp.sum(rows.mask, axis=axis, dtype=np.int32)
        else:
            shape = leaf.shape[:axis] + leaf.shape[axis + 1 : axis + 1 + rows.lanes]
            number = xp.full(shape, leaf.shape[axis], dtype=np.int32)
        return [number], structure_of(0)


_ALL = _Mean, _Sum, _Min, _Max, _First, _Last, _Count, _Std, _Var, _Append
REDUCTIONS: dict[str, AnyReduction] = {kind.name: kind() for kind in _ALL}
