"""Exponential moving averages of the rows of a key."""

from typing import Any

import numpy as np

from lox._arrays import flatten
from lox._logs.key import Key


def smoothed(key: Key, weight: float) -> Key:
    """The key with an exponential moving average of its rows, per lane.

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
    out = []
    for leaf, own in zip(leaves, key.info.ndims, strict=True):
        axis = key.info.time_axis(leaf, own)
        values = np.moveaxis(np.asarray(leaf, np.float64), axis, 0)
        valid = np.isfinite(values)
        if key.mask is not None:
            valid &= np.moveaxis(np.asarray(key.mask), axis, 0)
        out.append(np.moveaxis(_average(values, valid, weight), 0, axis))
    return key._replace(value=tree.unflatten(out))


def _average(values: Any, valid: Any, weight: float) -> Any:
    total = np.zeros(values.shape[1:])
    norm = np.zeros(values.shape[1:])
    result = values.copy()
    for i, (row, ok) in enumerate(zip(values, valid, strict=True)):
        total = np.where(
            ok, weight * total + (1 - weight) * np.where(ok, row, 0), total
        )
        norm = np.where(ok, weight * norm + (1 - weight), norm)
        if np.any(ok):
            with np.errstate(invalid="ignore"):
                result[i] = np.where(ok, total / norm, row)
    return result
