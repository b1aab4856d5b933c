"""Sums in loops that lose no digits, over a million float32 steps and more.

Loaded without JAX; what is added up are arrays of JAX's.
"""

from typing import Any, NamedTuple

from lox._arrays import imported_jax, namespace


def cast(x: Any, dtype: Any) -> Any:
    same = x.dtype == dtype
    return x if same else imported_jax().lax.convert_element_type(x, dtype)


def zeros(kind: Any, dtype: Any = None) -> Any:
    """Zeros of a type; of another dtype, if one is given."""
    from lox._jax import array_types

    return array_types.strong_zeros(kind, dtype)


class CompensatedSum(NamedTuple):
    """A sum, what its roundings lost, and what the roundings of that lost (Klein's).

    No part waits for another one, so that a loop that has little else to do is no
    slower for it.
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
        # a derivative goes through the sum alone
        lost = _lost(*map(imported_jax().lax.stop_gradient, (self.high, x, high)))
        middle = self.middle + lost
        return CompensatedSum(high, middle, self.low + _lost(self.middle, lost, middle))

    def total(self) -> Any:
        xp = namespace(self.high)
        # what an infinity loses is NaN
        whole = self.high + (self.middle + self.low)
        return xp.where(xp.isfinite(self.high), whole, self.high)


def _lost(x: Any, y: Any, total: Any) -> Any:
    """What rounding `x + y` to `total` lost, exactly (Knuth's two-sum)."""
    added = total - x
    return (x - (total - added)) + (y - added)


def number_like(number: Any, x: Any) -> Any:
    """A number of events, to divide by, in the dtype of `x`."""
    jax, dtype = imported_jax(), x.real.dtype
    if isinstance(number, int):
        # XLA would multiply by the inverse of a constant, which rounds twice
        return jax.lax.optimization_barrier(jax.numpy.asarray(number, dtype))
    # the result for no events is never used; but a division by zero may be reported
    return jax.numpy.maximum(number, 1).astype(dtype)
