"""Removes rows that did not happen."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import (
    is_jax_array,
    is_spread,
    is_tracer,
    is_typed_key,
    leaves_of,
    namespace,
    to_numpy,
)
from lox._errors import LoxTypeError

from .key import FirstRows, Key


class _Happened(NamedTuple):
    """Which rows of a key happened.

    Attributes:
        rows: the rows that happened in some lane: positions, a slice of the first ones,
            or None for all.
        in_all_lanes: whether these rows happened in all lanes.
    """

    rows: Any
    in_all_lanes: bool


class _Request(NamedTuple):
    """Some rows of an array."""

    array: Any
    rows: Any
    axis: int


def compacted(key: Key) -> Key | None:
    """Removes rows that did not happen in any lane; None if none did."""
    return compacted_keys([("", key)]).get("")


def compacted_keys(keys: Iterable[tuple[str, Key]]) -> dict[str, Key]:
    """`compacted` for several keys, whose masks may be `FirstRows`.

    An eager call waits for this, so the arrays of all keys are transferred together.
    """
    found: dict[str, Key] = {}
    partial: dict[str, FirstRows] = {}
    requests: list[_Request] = []
    fills = []
    for name, key in keys:
        happened = _happened(key)
        if happened is None:
            continue
        if isinstance(key.mask, FirstRows) and not happened.in_all_lanes:
            partial[name] = key.mask
        if isinstance(key.mask, FirstRows) or happened.in_all_lanes:
            key = key._replace(mask=None)
        found[name] = key
        if happened.rows is not None:
            arrays, fill = key.split()
            requests += [_Request(x, happened.rows, axis) for x, axis in arrays]
            fills.append((name, fill, len(arrays)))
    taken = iter(_taken(requests))
    for name, fill, count in fills:
        found[name] = fill(list(itertools.islice(taken, count)))
    for name, first in partial.items():
        key = found[name]
        found[name] = key._replace(mask=first.mask(key.value, key.info))
    return found


# --- which rows happened -----------------------------------------------------


def _happened(key: Key) -> _Happened | None:
    """Which rows of a key happened; None if none did."""
    if key.mask is None:
        return _Happened(None, in_all_lanes=True)
    counted = isinstance(key.mask, FirstRows)
    mask = key.mask.total if counted else key.mask
    if is_tracer(mask):
        raise LoxTypeError(
            "`compact` needs concrete values, since its shapes depend on them. "
            "Call it outside `jax.jit`."
        )
    if any(map(is_spread, (*leaves_of(key.value), *key.steps.values(), mask))):
        # other processes have the other rows
        return _Happened(None, in_all_lanes=False)
    return _first_rows(key, key.mask) if counted else _rows(key)


def _first_rows(key: Key, first: FirstRows) -> _Happened | None:
    least, most = first.range()
    if most <= 0:
        return None
    length = key.length() if first.capacity is None else first.capacity
    rows = slice(most) if most < length else None
    return _Happened(rows, in_all_lanes=least >= min(most, length))


def _rows(key: Key) -> _Happened | None:
    mask = to_numpy(key.mask)
    if not key.info.stacked:
        return _Happened(None, bool(mask.all())) if mask.any() else None
    axis = key.info.time_axis(mask, 0)
    if mask.ndim == 1:
        (rows,) = mask.nonzero()
        in_all_lanes = True
    else:
        others = tuple(i for i in range(mask.ndim) if i != axis)
        (rows,) = mask.any(axis=others).nonzero()
        in_all_lanes = bool(mask.take(rows, axis=axis).all())
    if not len(rows):
        return None
    return _Happened(None if len(rows) == mask.shape[axis] else rows, in_all_lanes)


# --- their rows --------------------------------------------------------------


def _taken(requests: Sequence[_Request]) -> list[Any]:
    """Rows of concrete arrays; with NumPy, because JAX would compile per length."""
    taken = list(map(_taken_on_host, requests))
    on_device = [
        i
        for i, request in enumerate(requests)
        if type(taken[i]) is np.ndarray and is_jax_array(request.array)
    ]
    if not on_device:
        return taken
    from lox._jax import host

    arrays = [requests[i].array for i in on_device]
    rows = host.put_rows([taken[i] for i in on_device], arrays)
    for i, array in zip(on_device, rows, strict=True):
        taken[i] = array
    return taken


def _taken_on_host(request: _Request) -> Any:
    array, rows, axis = request
    if type(array.dtype) is not np.dtype and is_typed_key(array):  # NumPy lacks these
        positions = np.arange(array.shape[axis])[rows]
        return namespace(array).take(array, positions, axis=axis)
    if type(rows) is slice:
        # a copy, because a view would keep the memory of all rows
        return to_numpy(array)[(slice(None),) * axis + (rows,)].copy()
    return to_numpy(array).take(rows, axis=axis)
