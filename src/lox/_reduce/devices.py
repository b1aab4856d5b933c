"""Reductions across devices: the collectives of `over`.

Values are reduced across axes of the mesh of a `shard_map`. The results are the same on
all devices along these axes, and JAX's types say so.

The types of the inputs may be wrong: a `cond` or `while_loop` whose predicate varies
returns values that vary, even if (as of JAX 0.12) their types do not. So all values are
reduced. Steps and masks are reduced only if their types vary: a loop often logs its
counter, and a collective takes longer than many loop bodies. `device_flow` refuses
steps and masks with wrong types.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._arrays import is_inexact, is_integer, is_typed_key
from lox._errors import LoxTypeError
from lox._jax import array_types, vma

from .compensated import cast, number_like
from .named import Named, wide_dtype, worst_value

KINDS = ("mean", "sum", "min", "max")


class Devices:
    """The devices along some axes of a mesh, which reduce their values.

    Args:
        axes: the names of the axes, which are manual.
        mask: whether this device has values, an array of any shape; None if all have.
            The shape of a value begins with that of the mask.
    """

    def __init__(self, axes: Sequence[str], mask: Any = None) -> None:
        self._axes = tuple(axes)
        self._size = array_types.axes_size(self._axes)
        self._index = lax.axis_index(self._axes)
        self._types_vary = bool(vma.varying_axes(jax.typeof(self._index)))
        self._given = mask
        # None if the devices do not differ
        self._mask: Any = None if mask is None or self._agree(mask) else mask

    @property
    def mask(self) -> Any:
        """Whether any device has values; None if all have."""
        return self._given if self._mask is None else self._count > 0

    def reduced(self, x: Any, reduction: Named, where: str) -> Any:
        """Reduces the values of the devices that have values.

        Args:
            x: the value of this device.
            reduction: the reduction, one of `KINDS`.
            where: what `x` is, for error messages.
        """
        name = reduction.name
        if is_typed_key(x):
            raise LoxTypeError(
                f"{where} is of the dtype {x.dtype}, which has no {name}. Log it "
                "without `over`."
            )
        dtype = reduction.dtype(x.dtype)
        wide = wide_dtype(dtype) if is_inexact(dtype) else _wide_integer(dtype)
        x = cast(lax.stop_gradient(x), wide)
        if name == "mean":
            result = self._mean(x)
        elif name == "sum":
            result = self._sum(x)
        else:
            result = self._extreme(x, name, where)
        return cast(result, dtype)

    def first(self, x: Any) -> Any:
        """The value of the first of the devices that have values."""
        if self._agree(x):
            return x
        x, dtype = lax.stop_gradient(x), x.dtype
        chosen = self._index == (0 if self._mask is None else self._first)
        wide = wide_dtype(dtype) if is_inexact(dtype) else _wide_integer(dtype)
        return cast(self._total(jnp.where(chosen, cast(x, wide), 0)), dtype)

    @functools.cached_property
    def _count(self) -> Any:
        """How many devices have values."""
        return lax.psum(self._varying(self._mask.astype(jnp.int32)), self._axes)

    @functools.cached_property
    def _first(self) -> Any:
        """The number of the first device that has values."""
        index = jnp.where(self._mask, self._index, self._size)
        return lax.pmin(self._varying(index), self._axes)

    def _mean(self, x: Any) -> Any:
        if self._agree(x):
            return self._mean_of_equal(x)
        total = self._total(self._masked(x, 0))
        if self._mask is not None:
            return total / number_like(_like(self._count, total), total)
        if self._size & (self._size - 1):
            return total / number_like(self._size, total)
        return total / self._size  # a power of two, so that this does not round

    def _mean_of_equal(self, x: Any) -> Any:
        """The mean of values whose type says that they are equal; then not rounded."""
        number = lax.broadcasted_iota(jnp.int32, (self._size, *x.shape), 0)
        every = self._total(jnp.where(number == self._index, x, jnp.zeros_like(x)))
        if self._mask is None:
            has_value: Any = True
            first, count = every[0], number_like(self._size, x)
        else:
            masks = jnp.where(number == self._index, _like(self._mask, x), False)
            has_value = self._total(masks.astype(jnp.int32)) > 0
            number_of_first = jnp.argmax(has_value, 0, keepdims=True)
            first = jnp.take_along_axis(every, number_of_first, 0)[0]
            count = number_like(_like(self._count, x), x)
        differ = jnp.any((every != first) & has_value, 0)
        mean = jnp.sum(jnp.where(has_value, every, 0), 0) / count
        return jnp.where(differ, mean, first)

    def _sum(self, x: Any) -> Any:
        return self._total(self._masked(x, 0))

    def _extreme(self, x: Any, name: str, where: str) -> Any:
        if jnp.iscomplexobj(x):
            raise LoxTypeError(
                f"{where} is complex, and complex numbers have no {name} across "
                "devices. Log its real and imaginary part."
            )
        collective = lax.pmin if name == "min" else lax.pmax
        given = self._masked(x, worst_value(name, x.dtype))
        result = collective(self._varying(given), self._axes)
        if is_inexact(x.dtype):  # on CPUs, the collectives of XLA ignore NaN
            bad = self._masked(jnp.isnan(x), False).astype(jnp.int32)
            bad = lax.pmax(self._varying(bad), self._axes)
            result = jnp.where(bad > 0, jnp.nan, result)
        return result

    def _total(self, x: Any) -> Any:
        return lax.psum(self._varying(x), self._axes)

    def _masked(self, x: Any, otherwise: Any) -> Any:
        if self._mask is None:
            return x
        return jnp.where(_like(self._mask, x), x, jnp.asarray(otherwise, x.dtype))

    def _varying(self, x: Any) -> Any:
        """`x` as the types of collectives require it."""
        axes = frozenset(self._axes if self._types_vary else ())
        return vma.vary_like(x, axes)

    def _agree(self, x: Any) -> bool:
        """Whether the type of `x` says that it is the same on all of these devices."""
        varying = vma.varying_axes(jax.typeof(x))
        return self._types_vary and varying.isdisjoint(self._axes)


def _like(per_row: Any, x: Any) -> Any:
    """One value per row, with the number of axes of `x`."""
    return jnp.reshape(per_row, per_row.shape + (1,) * (x.ndim - per_row.ndim))


def _wide_integer(dtype: Any) -> Any:
    """A dtype with collectives that holds all values of a boolean or integer dtype."""
    return dtype if is_integer(dtype) and np.dtype(dtype).itemsize >= 4 else jnp.int32
