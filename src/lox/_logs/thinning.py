"""Which points of a long curve are drawn: the extremes in each interval of the x-axis.

So every extreme is visible, and the range of the y-axis is that of all points.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Thinning(NamedTuple):
    """How many points are drawn.

    Attributes:
        intervals: into how many intervals the x-axis is divided.
        logarithmic: whether it is logarithmic.
    """

    intervals: int
    logarithmic: bool = False

    def kept(self, x: Any, low: Sequence[Any], high: Sequence[Any]) -> Any:
        """The indices of the points to draw.

        In each interval these are the lowest point of each curve in `low`, the highest
        of each in `high`, and one gap of the first curve, a value that is not finite.
        """
        count = len(x)
        if count <= self.intervals * (len(low) + len(high)):
            return np.arange(count)
        interval = self._intervals_of(x)
        drawable = interval >= 0
        if not drawable.any():
            return np.arange(0)
        found = [x[drawable].argmin(), x[drawable].argmax()]
        kept = [np.nonzero(drawable)[0][found]]
        for curves, sign in ((low, 1.0), (high, -1.0)):
            for curve in curves:
                signed = sign * np.asarray(curve, np.float64)
                kept.append(_first(interval, signed, np.isfinite(signed) & drawable))
        gaps = drawable & ~np.isfinite((*low, *high)[0])
        kept.append(_first(interval, np.arange(count), gaps))
        return np.unique(np.concatenate(kept))

    def _intervals_of(self, x: Any) -> Any:
        """The interval of each point; -1 if it cannot be drawn."""
        x = np.asarray(x, np.float64)
        with np.errstate(all="ignore"):
            x = np.log(x) if self.logarithmic else x / 2  # the range may be infinite
        drawable = np.isfinite(x)
        if not drawable.any():
            return np.full(len(x), -1)
        left, right = x[drawable].min(), x[drawable].max()
        places = np.zeros(len(x))
        if right > left:
            places[drawable] = (x[drawable] - left) / (right - left) * self.intervals
        interval = np.minimum(places.astype(np.int64), self.intervals - 1)
        return np.where(drawable, interval, -1)


def _first(interval: Any, values: Any, counts: Any) -> Any:
    """The index of the smallest value in each interval, of those that count."""
    (rows,) = np.nonzero(counts)
    order = np.lexsort([values[rows], interval[rows]])
    rows = rows[order]
    inside = interval[rows]
    return rows[np.append(True, inside[1:] != inside[:-1])[: len(rows)]]
