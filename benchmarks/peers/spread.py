"""Summaries of measured times: median, spread, and the exponent of a cost."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Times of one contender, in seconds.

    Attributes:
        best: the shortest.
        low: the first quartile.
        median: the median.
        high: the third quartile.
        samples: how many there are.
    """

    best: float
    low: float
    median: float
    high: float
    samples: int


def spread(times: Sequence[float]) -> Spread:
    if not times:
        raise ValueError("no times")
    low, median, high = (float(x) for x in np.percentile(times, (25, 50, 75)))
    return Spread(min(times), low, median, high, len(times))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float | None:
    """The slope of times against sizes on logarithmic axes.

    1 is a cost in proportion to the size. A constant part of the cost makes the
    exponent smaller. None if there are fewer than three sizes.
    """
    points = [(n, t) for n, t in zip(sizes, times, strict=True) if n > 0 and t > 0]
    if len({n for n, _ in points}) < 3:
        return None
    x = np.array([math.log(n) for n, _ in points])
    y = np.array([math.log(t) for _, t in points])
    slope, _ = np.polyfit(x, y, 1)
    return round(float(slope), 3) + 0.0  # without a negative zero
