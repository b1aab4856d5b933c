"""Min-max decimation: each bucket of the x-axis keeps its smallest and largest value.

Buckets are intervals of the x-axis, whose limits are multiples of a width. They do not
depend on where the data begins or ends, so a growing curve keeps its complete buckets.
Near zero they are shorter, for logarithmic axes.
"""

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# buckets per octave, in the range in which a logarithmic axis needs shorter buckets
PER_OCTAVE = 12


def bucket_width(low: float, high: float, buckets: int) -> float:
    """A width of few binary digits, so that at most `buckets` buckets cover a range."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return 0.0
    mantissa, exponent = math.frexp(span / buckets)
    return math.ldexp(math.ceil(mantissa * 16), exponent - 4)


def bucket_limits(
    low: float, high: float, width: float, per_octave: int = PER_OCTAVE
) -> Array:
    """The lower limits of the buckets that cover a range, in ascending order.

    Without buckets `per_octave`, all have the same width.
    """
    first, last = math.floor(low / width), math.floor(high / width)
    limits = np.arange(first, last + 1) * width
    if low < 0 or not per_octave:
        return limits
    # geometric limits from the first value on, while they are closer than `width`
    top = width * per_octave / math.log(2)
    start = max(low, top * 2.0**-20)
    exponents = np.arange(
        math.floor(per_octave * math.log2(start / top)), 0, dtype=np.float64
    )
    return np.union1d(limits, top * 2.0 ** (exponents / per_octave))


def bucket_starts(x: Array, limits: Array) -> Array:
    """The position of the first row of each bucket that has rows; `x` is ascending."""
    starts = np.searchsorted(x, limits)
    first = np.concatenate([[0], starts[(starts > 0) & (starts < len(x))]])
    return np.unique(first) if len(x) else np.zeros(0, np.int64)


class Extremes(NamedTuple):
    """The smallest and the largest value of each bucket, in the order of their rows.

    A bucket without rows is NaN; one whose rows are all not finite is infinity.

    Attributes:
        first: of shape `(lanes, buckets)`.
        second: of shape `(lanes, buckets)`.
        first_row: the positions of these rows.
        second_row: the positions of these rows.
    """

    first: Array
    second: Array
    first_row: Array
    second_row: Array


def extremes(lanes: Array, finite: Array | None, starts: Array) -> Extremes:
    """Decimates an array of shape `(lanes, rows)`.

    Args:
        lanes: the values; NaN where a lane has no row, infinity where it is not finite.
        finite: where they are finite; None if all are.
        starts: the first row of each bucket.
    """
    if len(starts) == lanes.shape[1]:  # one row per bucket
        rows = np.broadcast_to(starts, lanes.shape)
        return Extremes(lanes, lanes, rows, rows)
    low = lanes if finite is None else np.where(finite, lanes, np.inf)
    high = lanes if finite is None else np.where(finite, lanes, -np.inf)
    shape = len(lanes), len(starts)
    smallest, largest = np.empty(shape, np.int64), np.empty(shape, np.int64)
    ends = [*starts[1:].tolist(), lanes.shape[1]]
    for i, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        smallest[:, i] = low[:, start:end].argmin(axis=1) + start
        largest[:, i] = high[:, start:end].argmax(axis=1) + start
    early, late = np.minimum(smallest, largest), np.maximum(smallest, largest)
    first = np.take_along_axis(lanes, early, axis=1)
    second = np.take_along_axis(lanes, late, axis=1)
    if finite is not None:
        # without finite values, both positions are arbitrary
        none = ~np.isfinite(np.take_along_axis(low, smallest, axis=1))
        present = np.add.reduceat(~np.isnan(lanes), starts, axis=1) > 0
        empty = np.where(present, np.inf, np.nan)
        first, second = np.where(none, empty, first), np.where(none, empty, second)
        first, second = first.astype(lanes.dtype), second.astype(lanes.dtype)
    return Extremes(first, second, early, late)
