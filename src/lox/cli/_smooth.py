"""Exponential moving averages of the rows of a key."""

from typing import Any

import numpy as np

from lox._arrays import flatten
from lox._logs.key import Key
from lox._logs.lane_step import LANE, PROCESS


def smoothed(key: Key, weight: float) -> Key:
    """The key with an exponential moving average of its rows, per lane.

    Lanes are lane axes, and lanes that rows name.

    The average is normalized by the sum of its weights, so that it does not start near
    zero. Rows that are not finite, or did not happen, do not change it, and stay as
    they are.

    Args:
        key: the key; it is returned as it is if its rows are not scalars.
        weight: the weight of the previous average, from 0 up to 1.
    """
    if not key.info.stacked or any(key.info.ndims):
        return key
    leaves, tree = flatten(key.value)
    series = _series(key)
    out = []
    for leaf, own in zip(leaves, key.info.ndims, strict=True):
        axis = key.info.time_axis(leaf, own)
        values = np.moveaxis(np.asarray(leaf, np.float64), axis, 0)
        valid = np.isfinite(values)
        if key.mask is not None:
            valid &= np.moveaxis(np.asarray(key.mask), axis, 0)
        named = None if series is None else np.moveaxis(series, axis, 0)
        out.append(np.moveaxis(_average(values, valid, named, weight), 0, axis))
    return key._replace(value=tree.unflatten(out))


def _series(key: Key) -> Any:
    """A number for the lane that each row names; None if rows name none."""
    if LANE not in key.steps:
        return None
    found = np.zeros(key.row_shape(), np.int64)
    for name in (LANE, PROCESS):
        if name in key.steps:
            known, numbers = np.unique(key.steps[name], return_inverse=True)
            numbers = numbers.reshape(np.shape(key.steps[name]))
            found = found * len(known) + numbers
    return found


def _average(values: Any, valid: Any, series: Any, weight: float) -> Any:
    rows, counts = values.reshape(len(values), -1), valid.reshape(len(valid), -1)
    if counts.all() and series is None:
        return _moving_average(rows, weight).reshape(values.shape)
    result = rows.copy()
    for lane in range(rows.shape[1]):
        (kept,) = np.nonzero(counts[:, lane])
        for some in _by_series(kept, series, lane):
            result[some, lane] = _moving_average(rows[some, lane, None], weight)[:, 0]
    return result.reshape(values.shape)


def _by_series(kept: Any, series: Any, lane: int) -> list[Any]:
    """The rows of each series, in their order."""
    if series is None:
        return [kept]
    numbers = series.reshape(len(series), -1)[kept, lane]
    order = np.argsort(numbers, kind="stable")
    return np.split(kept[order], np.flatnonzero(np.diff(numbers[order])) + 1)


# how many rows are averaged by one product of matrices
_BLOCK = 256


def _moving_average(rows: Any, weight: float) -> Any:
    """The average of each column, of shape `(rows, columns)`; all values count."""
    age = np.arange(_BLOCK)[:, None] - np.arange(_BLOCK)
    weights = np.where(age >= 0, (1 - weight) * weight ** np.maximum(age, 0), 0)
    decay = weight ** np.arange(1, _BLOCK + 1)[:, None]
    sums = np.empty(rows.shape)
    before = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        count = len(block)
        found = weights[:count, :count] @ block + decay[:count] * before
        sums[start : start + count], before = found, found[-1]
    # the sum of all weights so far, 1 - weight ** n
    norm = -np.expm1(np.arange(1, len(rows) + 1) * np.log(weight))
    return sums / norm[:, None]
