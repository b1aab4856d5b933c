"""Compensated sums, accurate over a million float32 steps and more.

This module can be imported without JAX, although it adds up JAX arrays.
"""

from typing import Any, NamedTuple

from lox._arrays import imported_jax, namespace


def cast(x: Any, dtype: Any) -> Any:
    same = x.dtype == dtype
    return x if same else imported_jax().lax.convert_element_type(x, dtype)


def zeros(kind: Any, dtype: Any = None) -> Any:
    """Zeros of an array type, optionally with another dtype."""
    from lox._jax import array_types

    return array_types.strong_zeros(kind, dtype)


class CompensatedSum(NamedTuple):
    """A sum that tracks first- and second-order rounding errors (Klein's algorithm).

    The three updates depend little on each other, so that even a loop that does nothing
    else is not slowed down.
    """

    high: Any
    middle: Any
    low: Any

    @classmethod
    def zero(cls, kind: Any, dtype: Any) -> "CompensatedSum":
        return cls(zeros(kind, dtype), zeros(kind, dtype), zeros(kind, dtype))

    def plus(self, x: Any) -> "CompensatedSum":
        x = cast(x, self.high.dtype)
        high = self.high + x
        # only the sum itself is differentiated
        lost = _lost(*map(imported_jax().lax.stop_gradient, (self.high, x, high)))
        middle = self.middle + lost
        return CompensatedSum(high, middle, self.low + _lost(self.middle, lost, middle))

    def total(self) -> Any:
        xp = namespace(self.high)
        # the rounding error of an infinity is NaN
        whole = self.high + (self.middle + self.low)
        return xp.where(xp.isfinite(self.high), whole, self.high)


def _lost(x: Any, y: Any, total: Any) -> Any:
    """The exact rounding error of `total = x + y` (Knuth's two-sum)."""
    added = total - x
    return (x - (total - added)) + (y - added)


def number_like(number: Any, x: Any) -> Any:
    """A number of events as a divisor, in the dtype of `x`."""
    jax, dtype = imported_jax(), x.real.dtype
    if isinstance(number, int):
        # XLA replaces division by a constant with multiplication, which rounds twice
        return jax.lax.optimization_barrier(jax.numpy.asarray(number, dtype))
    # for no events, the result is not used, but `jax_debug_nans` would report it
    return jax.numpy.maximum(number, 1).astype(dtype)
