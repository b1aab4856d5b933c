"""Statistics over lanes: one table, used by `over_lanes`, plots and notebooks.

Each is a function of `Sample`: a matrix with one line per point and one column per
lane, of which only some entries count.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_CONFIDENCE = 0.95
RESAMPLES = 2000
_SEED = 0
# how many resampled means are in memory at a time
_MAX_MEANS = 2**22


class Sample:
    """The values of several lanes at several points.

    Args:
        values: a matrix with one line per point and one column per lane.
        valid: which of them count.
    """

    def __init__(self, values: Any, valid: Any) -> None:
        self.values = values
        self.valid = valid
        self.count = valid.sum(1)

    @functools.cached_property
    def mean(self) -> Any:
        return _divide(np.where(self.valid, self.floats, 0).sum(1), self.count)

    @functools.cached_property
    def floats(self) -> Any:
        return self.values.astype(np.float64)

    @functools.cached_property
    def std(self) -> Any:
        deviations = np.where(self.valid, self.floats - self.mean[:, None], 0)
        return np.sqrt(_divide((deviations**2).sum(1), self.count - 1))

    @functools.cached_property
    def sorted(self) -> Any:
        """The values that count, in increasing order, and then infinities."""
        return np.sort(np.where(self.valid, self.floats, np.inf), axis=1)

    def quantile(self, q: float) -> Any:
        """Interpolates linearly between the two nearest values."""
        position = np.maximum(self.count - 1, 0) * q
        below = np.floor(position).astype(np.int64)
        above = np.minimum(below + 1, np.maximum(self.count - 1, 0))
        low, high = self._ranked(below), self._ranked(above)
        found = low + (high - low) * (position - below)
        return np.where(self.count > 0, found, np.nan)

    def _ranked(self, rank: Any) -> Any:
        if not self.sorted.shape[1]:
            return np.full(len(self.sorted), np.nan)
        found = np.take_along_axis(self.sorted, rank[:, None], axis=1)[:, 0]
        return np.where(self.count > 0, found, np.nan)

    def extreme(self, choose: Any, worst: Callable[[Any], Any]) -> Any:
        """The minimum or maximum; integers stay exact."""
        values = self.values
        if values.dtype.kind in "iu" and values.shape[1] and (self.count > 0).all():
            limit = worst(np.iinfo(values.dtype))
            return choose(np.where(self.valid, values, limit), axis=1)
        limit = worst(np.finfo(np.float64))
        filled = np.where(self.valid, self.floats, limit)
        found = choose(filled, axis=1, initial=limit)
        return np.where(self.count > 0, found, np.nan)


def _divide(sums: Any, counts: Any) -> Any:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _iqm(sample: Sample) -> Any:
    """The mean of the middle half: a quarter of the values is cut at either end."""
    cut = sample.count // 4
    rank = np.arange(sample.sorted.shape[1])
    kept = (rank >= cut[:, None]) & (rank < (sample.count - cut)[:, None])
    sums = np.where(kept, sample.sorted, 0).sum(1)
    return _divide(sums, sample.count - 2 * cut)


def _ci(sample: Sample) -> tuple[Any, Any]:
    """A percentile bootstrap interval of the mean; NaN for fewer than two lanes.

    All points with the same number of lanes use the same resamples.
    """
    low = np.full(len(sample.count), np.nan)
    high = low.copy()
    # the values that count first, in the order of the lanes
    order = np.argsort(~sample.valid, axis=1, kind="stable")
    values = np.take_along_axis(sample.floats, order, axis=1)
    tails = 100 * np.array([(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    for n in np.unique(sample.count):
        if n < 2:
            continue
        weights = _weights(int(n))
        (points,) = np.nonzero(sample.count == n)
        size = max(1, _MAX_MEANS // RESAMPLES)
        for start in range(0, len(points), size):
            part = points[start : start + size]
            means = values[part, :n] @ weights
            low[part], high[part] = np.percentile(means, tails, axis=1)
    return low, high


@functools.lru_cache(maxsize=8)
def _weights(n: int) -> Any:
    """How much each of n values contributes to the mean of each resample."""
    drawn = np.random.default_rng(_SEED).integers(0, n, (RESAMPLES, n))
    flat = drawn + n * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(flat.ravel(), minlength=RESAMPLES * n)
    return counts.reshape(RESAMPLES, n).T / n


_Compute = Callable[[Sample], tuple[Any, ...]]

# The names of statistics, the suffixes of their keys, and how to compute them.
STATISTICS: dict[str, tuple[Sequence[str], _Compute]] = {
    "mean": (["mean"], lambda x: (x.mean,)),
    "median": (["median"], lambda x: (x.quantile(0.5),)),
    "iqm": (["iqm"], lambda x: (_iqm(x),)),
    "std": (["std"], lambda x: (x.std,)),
    "sem": (["sem"], lambda x: (x.std / np.sqrt(np.maximum(x.count, 1)),)),
    "min": (["min"], lambda x: (x.extreme(np.min, lambda info: info.max),)),
    "max": (["max"], lambda x: (x.extreme(np.max, lambda info: info.min),)),
    "iqr": (["q25", "q75"], lambda x: (x.quantile(0.25), x.quantile(0.75))),
    "ci": (["low", "high"], _ci),
    "count": (["count"], lambda x: (x.count,)),
}
