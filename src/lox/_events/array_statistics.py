"""The table of the array statistics that `lox.stats` and `lox.watch` compute.

Values are scaled by a power of two before they are squared or summed, so that neither
squares nor sums overflow; scaling by a power of two does not round.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._arrays import is_integer

_BINS = 32


def statistics_of(x: Any, names: Sequence[str]) -> dict[str, Any]:
    """The statistics of an array that are defined for it, in the order of the names."""
    found = _compute(x, tuple(names))
    return {name: found[name] for name in names if name in found}


# compiled, for eager calls; while tracing, leaves of the same shape are traced once
@functools.partial(jax.jit, static_argnames=("names",))
def _compute(x: Any, names: tuple[str, ...]) -> dict[str, Any]:
    values = _Values(x)
    found = {name: STATISTICS[name](values) for name in names}
    return {name: value for name, value in found.items() if value is not None}


class _Values:
    """An array, and intermediate results that several statistics share."""

    def __init__(self, x: Any) -> None:
        if x.dtype == jnp.bool_:
            x = x.astype(jnp.uint8)
        self.is_integer = is_integer(x.dtype)
        self.is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
        # squares and sums of integers and of float16 are far from the limits of float32
        self.may_overflow = not self.is_integer and jnp.finfo(x.dtype).maxexp > 16
        if self.is_integer:
            self.x = x.astype(_integer_dtype(x.dtype))
            self.float_dtype = jnp.result_type(float)
        else:
            self.x = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
            self.float_dtype = jnp.finfo(self.x.dtype).dtype
        self.size = math.prod(x.shape)

    @functools.cached_property
    def parts(self) -> list[Any]:
        """The real part, and the imaginary part of complex numbers, as floats."""
        if self.is_complex:
            return [self.x.real, self.x.imag]
        return [self.x.astype(self.float_dtype)]

    @functools.cached_property
    def low(self) -> Any:
        return self.x.min()

    @functools.cached_property
    def high(self) -> Any:
        return self.x.max()

    @functools.cached_property
    def largest(self) -> Any:
        """The largest absolute value of a part."""
        return functools.reduce(jnp.maximum, (jnp.abs(p).max() for p in self.parts))

    @functools.cached_property
    def scale(self) -> Any:
        """The divisor that keeps the squares of values from overflowing."""
        if not self.may_overflow or not self.size:
            return jnp.ones((), self.float_dtype)
        return _power_of_two(self.largest)

    @functools.cached_property
    def scaled(self) -> list[Any]:
        if not self.may_overflow:
            return self.parts
        inverse = 1 / self.scale
        return [part * inverse for part in self.parts]

    @functools.cached_property
    def squares(self) -> Any:
        """The squared absolute values of the scaled values."""
        return functools.reduce(jnp.add, map(jnp.square, self.scaled))

    @functools.cached_property
    def offset(self) -> Any:
        """A number near the values; differences of integers from it are exact."""
        return self.low if self.is_integer else jnp.zeros((), self.x.dtype)

    @functools.cached_property
    def shifted(self) -> list[Any]:
        """The scaled values, minus the offset."""
        if not self.is_integer:
            return self.scaled
        difference = _unsigned(self.x) - _unsigned(self.low)
        return [difference.astype(self.float_dtype)]

    @functools.cached_property
    def means(self) -> list[Any]:
        """The means of the shifted values."""
        return [part.mean() for part in self.shifted]

    def fraction(self, chosen: Any) -> Any:
        return jnp.sum(chosen).astype(self.float_dtype) / self.size


def _integer_dtype(dtype: Any) -> Any:
    """The dtype itself, or 8 bits for narrower integers, which lack operations."""
    if jnp.iinfo(dtype).bits >= 8:
        return dtype
    return jnp.uint8 if jnp.iinfo(dtype).min == 0 else jnp.int8


def _unsigned(x: Any) -> Any:
    """Integers modulo the number of values of their dtype."""
    return x.astype(f"uint{8 * x.dtype.itemsize}")


def _power_of_two(x: Any) -> Any:
    """A power of two near `x`, if that is finite; both it and its inverse are normal.

    It is a constant to derivatives, since results do not depend on it.
    """
    x = jax.lax.stop_gradient(x)
    limit = jnp.finfo(x.dtype).maxexp - 2
    exponent = jnp.where(jnp.isfinite(x), jnp.frexp(x)[1], limit)
    return jnp.ldexp(jnp.ones((), x.dtype), jnp.clip(exponent, -limit, limit))


Statistic = Callable[[_Values], Any]


def _not_empty(statistic: Statistic) -> Statistic:
    return lambda values: statistic(values) if values.size else None


def _ordered(statistic: Statistic) -> Statistic:
    return lambda values: None if values.is_complex else statistic(values)


def _rms(values: _Values) -> Any:
    return values.scale * jnp.sqrt(values.squares.mean())


def _norm(values: _Values) -> Any:
    return values.scale * jnp.sqrt(values.squares.sum())


def _mean(values: _Values) -> Any:
    means = [values.scale * mean for mean in values.means]
    if values.is_complex:
        return jax.lax.complex(*means)
    return values.offset.astype(values.float_dtype) + means[0]


def _std(values: _Values) -> Any:
    deviations = [
        jnp.square(part - mean).mean()
        for part, mean in zip(values.shifted, values.means, strict=True)
    ]
    return values.scale * jnp.sqrt(functools.reduce(jnp.add, deviations))


def _mean_abs(values: _Values) -> Any:
    if values.is_complex:
        return values.scale * jnp.sqrt(values.squares).mean()
    return values.scale * jnp.abs(values.scaled[0]).mean()


def _max_abs(values: _Values) -> Any:
    if values.is_complex:
        return values.scale * jnp.sqrt(values.squares.max())
    if not values.is_integer:
        return values.largest
    # unsigned, since the smallest integer has no positive counterpart
    below = jnp.where(values.low < 0, -_unsigned(values.low), 0)
    above = jnp.where(values.high > 0, _unsigned(values.high), 0)
    return jnp.maximum(below, above)


def _nonfinite(values: _Values) -> Any:
    if values.is_integer:
        return jnp.zeros((), int)
    return jnp.sum(~jnp.isfinite(values.x))


def _histogram(values: _Values) -> Any:
    (x,) = values.parts
    finite = jnp.isfinite(x)
    low = jnp.min(x, where=finite, initial=jnp.inf)
    high = jnp.max(x, where=finite, initial=-jnp.inf)
    empty, one_value = low > high, low == high
    low = jnp.where(empty, 0, jnp.where(one_value, low - 0.5, low))
    high = jnp.where(empty, 1, jnp.where(one_value, high + 0.5, high))
    edges = _even_edges(low, high)
    x = jnp.where(finite, x, jnp.nan)
    # Counting what is below each edge is exact, however the edges are rounded. It is a
    # loop, since XLA may keep the comparisons with all edges in memory otherwise.
    below = jax.lax.map(lambda edge: jnp.sum(x < edge), edges[1:-1])
    counts = jnp.diff(jnp.pad(below, (1, 0)), append=jnp.sum(finite))
    return {"counts": counts, "edges": edges}


def _even_edges(low: Any, high: Any) -> Any:
    scale = _power_of_two(jnp.maximum(-low, high))
    position = jnp.arange(_BINS + 1, dtype=low.dtype) / _BINS
    edges = (low / scale) * (1 - position) + (high / scale) * position
    edges = jnp.clip(edges * scale, low, high)
    return jax.lax.cummax(edges)  # sorted, despite rounding


STATISTICS: dict[str, Statistic] = {
    "rms": _not_empty(_rms),
    "norm": _norm,
    "mean": _not_empty(_mean),
    "std": _not_empty(_std),
    "min": _not_empty(_ordered(lambda values: values.low)),
    "max": _not_empty(_ordered(lambda values: values.high)),
    "max_abs": _not_empty(_max_abs),
    "mean_abs": _not_empty(_mean_abs),
    "zero_fraction": _not_empty(lambda values: values.fraction(values.x == 0)),
    "nonfinite": _nonfinite,
    "histogram": _ordered(_histogram),
}
