"""`lox.stats`: named statistics of every array in a tree.

Sums are taken of values that are scaled by a power of two, so that neither they nor
squares overflow; scaling by a power of two rounds nothing.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._arrays import is_array, is_integer, is_typed_key
from lox._errors import LoxTypeError, LoxValueError, RangeError, describe
from lox._jax import host
from lox._jax.numbers import lost_by
from lox._libraries.nnx import as_arrays
from lox._source import user_source

from .log import too_large

DEFAULT = ("rms", "max_abs", "nonfinite")
_BINS = 32


def stats(tree: Any, which: str | Iterable[str] = DEFAULT) -> dict[str, Any]:
    """Computes statistics of every array in a tree.

    | name | statistic |
    |---|---|
    | `rms`, `norm` | the root mean square and the Euclidean norm |
    | `mean`, `std` | the mean and the standard deviation |
    | `min`, `max` | the smallest and the largest value |
    | `mean_abs`, `max_abs` | the mean and the largest absolute value |
    | `zero_fraction` | the fraction of values that are zero |
    | `nonfinite` | the number of values that are NaN or infinite |
    | `histogram` | a dict: `counts` of the finite values in 32 bins of equal width between the smallest and the largest one, and the 33 `edges` of the bins |

    They are computed in float32 or wider, and nothing overflows that fits into the
    result. NaN and infinities propagate as in NumPy. `min`, `max` and `max_abs` of
    integers are exact integers. Booleans count as 0 and 1.

    A statistic that is not defined for a leaf is left out: `min`, `max` and `histogram`
    of complex numbers, and everything but `norm`, `nonfinite` and `histogram` of an
    empty array. Leaves that are not arrays or numbers are left out, and so are PRNG
    keys and, as settings, Python bools and the numbers in Equinox modules.

    Args:
        tree: a pytree of arrays: parameters, gradients, a Flax or Equinox module.
        which: the names of the statistics.

    Returns:
        The statistics. Keys are the path of the leaf, joined by `/`, and the name of
        the statistic: `dense/kernel/rms`.

    Example:
        >>> params = {"dense": {"kernel": jnp.array([[3.0, -4.0]]), "bias": jnp.ones(1)}}
        >>> for key, value in lox.stats(params, ["norm", "max_abs"]).items():
        ...     print(key, value)
        dense/bias/norm 1.0
        dense/bias/max_abs 1.0
        dense/kernel/norm 5.0
        dense/kernel/max_abs 4.0
    """  # noqa: E501
    caller = f"`lox.stats` at {user_source()}"
    names = check_names(which, f"{caller}: `which`")
    return {
        join(path, name): value
        for path, x in named_arrays(tree, caller)
        for name, value in statistics_of(x, names).items()
    }


def join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def check_names(names: Any, option: str) -> tuple[str, ...]:
    """Checks the names of statistics; `option` names the argument for messages."""
    listed = (names,) if isinstance(names, str) else names
    known = ", ".join(STATISTICS)
    if not isinstance(listed, Iterable) or is_array(listed):
        raise LoxTypeError(
            f"{option} must be names of statistics, not {describe(names)}. There are "
            f"{known}."
        )
    found = tuple(listed)
    for name in found:
        if not isinstance(name, str) or name not in STATISTICS:
            raise LoxValueError(
                f"{option} has the unknown statistic {name!r}. There are {known}."
            )
    if not found:
        raise LoxValueError(f"{option} has no names of statistics. There are {known}.")
    return found


# --- leaves ------------------------------------------------------------------


def named_arrays(tree: Any, caller: str) -> list[tuple[str, Any]]:
    """The arrays of a tree, with their paths joined by `/`.

    Args:
        tree: a pytree.
        caller: what was called, and where, for messages.
    """
    found: dict[str, tuple[str, Any]] = {}
    for path, leaf in _leaves(as_arrays(tree)):
        if not has_statistics(leaf):
            continue
        name = join(*(jax.tree_util.keystr((k,), simple=True) for k in path))
        shown = jax.tree_util.keystr(path)
        if name in found:
            raise LoxValueError(
                f"{caller}: the leaves {found[name][0]} and {shown} have the same key "
                f"{name!r}. Rename one of them."
            )
        found[name] = shown, _array(leaf, name, caller)
    if not found:
        raise LoxTypeError(
            f"{caller} got {describe(tree)}, which holds no array. Pass a pytree of "
            "arrays."
        )
    return [(name, x) for name, (_, x) in found.items()]


def has_statistics(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers."""
    return is_array(leaf) and not isinstance(leaf, bool) and not is_typed_key(leaf)


def _leaves(tree: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The leaves with their paths, without the numbers in Equinox modules."""
    module = getattr(sys.modules.get("equinox"), "Module", ())

    def is_module(x: Any) -> bool:
        return isinstance(x, module)

    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_module)[0]:
        if not is_module(leaf):
            yield path, leaf
            continue
        for inner, x in jax.tree_util.tree_flatten_with_path(leaf)[0]:
            if not isinstance(x, int | float | complex):
                yield (*path, *inner), x


def _array(x: Any, name: str, caller: str) -> Any:
    lost = lost_by(x)
    if lost is not None:
        raise RangeError(f"{caller} got {too_large(lost, repr(name))}")
    return host.to_array(x)


# --- statistics --------------------------------------------------------------


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
    """An array, and what several statistics need of it."""

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
        """What to divide values by so that their squares do not overflow."""
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
    return jax.lax.cummax(edges)  # in order in spite of rounding


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
