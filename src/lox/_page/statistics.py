"""Bands of charts: statistics over lanes, with one column per point of the x-axis.

They are those of `logs.over_lanes`. Mean and standard deviation are computed here, in
less time and memory, since charts need them at every point of long curves. Values that
are not finite do not count: `n` says how many lanes a point has.
"""

from typing import Any, NamedTuple

import numpy as np

from lox._logs.lane_statistics import STATISTICS, Sample

Array = np.ndarray[Any, Any]

BANDS = ("ci", "std", "sem", "minmax", "iqr")


class Mean(NamedTuple):
    """The mean over lanes.

    Attributes:
        mean: per column; NaN where no lane is finite.
        n: the number of finite lanes per column.
        std: the standard deviation, with `n - 1` in the denominator.
    """

    mean: Array
    n: Array
    std: Array

    @property
    def sem(self) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.std / np.sqrt(self.n)


def mean_of(lanes: Array, finite: Array | None) -> Mean:
    """The mean of an array of shape `(lanes, columns)`.

    Args:
        lanes: the values.
        finite: where they are finite; None if all are.
    """
    count = len(lanes)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if finite is None:
            n = np.full(lanes.shape[1], count)
            mean = lanes.mean(axis=0, dtype=np.float64)
            squares = np.zeros(lanes.shape[1])
            for lane in lanes if count > 1 else ():
                squares += (lane - mean) ** 2
        else:
            n = finite.sum(axis=0)
            mean = np.where(finite, lanes, 0).sum(axis=0, dtype=np.float64) / n
            squares = np.zeros(lanes.shape[1])
            for lane, kept in zip(lanes, finite, strict=True):
                squares += np.where(kept, lane - mean, 0) ** 2
        std = np.sqrt(squares / np.where(n > 1, n - 1, np.nan))
    return Mean(mean, n, std)


def band_of(name: str, lanes: Array, finite: Array | None, mean: Mean) -> Any:
    """The lower and upper limit of a band at every column; NaN for fewer than 2 lanes.

    `"ci"` is a 95 % percentile bootstrap interval of the mean, and is slow for many
    columns.
    """
    if name == "std":
        return mean.mean - mean.std, mean.mean + mean.std
    if name == "sem":
        return mean.mean - mean.sem, mean.mean + mean.sem
    if name == "minmax":
        low = np.where(finite, lanes, np.inf) if finite is not None else lanes
        high = np.where(finite, lanes, -np.inf) if finite is not None else lanes
        several = mean.n > 1
        return (
            np.where(several, low.min(axis=0), np.nan),
            np.where(several, high.max(axis=0), np.nan),
        )
    valid = np.ones(lanes.shape, bool) if finite is None else finite
    _, compute = STATISTICS[name]
    low, high = compute(Sample(lanes.T, valid.T))
    several = mean.n > 1
    return np.where(several, low, np.nan), np.where(several, high, np.nan)
