"""Joins runs into one logdict, in which each run is a lane."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lox._arrays import (
    imported_jax,
    is_inexact,
    is_typed_key,
    leaves_of,
    namespace,
    structure_of,
)
from lox._errors import DtypeError, LoxError, ShapeError, StepError, StoreError
from lox._logs.access import keys_of
from lox._logs.key import Key, all_tags, combine
from lox._logs.lane_step import LANE, NO_LANE, PROCESS
from lox._logs.logdict import from_keys, logdict

from .joining import promote, with_step

_REMEDY = "Select runs with `where`, or other keys by their names."


def stack_runs(names: Sequence[str], logs: Sequence[logdict]) -> logdict:
    """Stacks the logs of runs along a new first axis.

    Rows that a run does not have are masked, and so are keys.

    Args:
        names: the names of the runs, for messages.
        logs: the logs of the runs.
    """
    keys = [keys_of(one) for one in logs]
    found = dict.fromkeys(name for one in keys for name in one)
    return from_keys(
        (key, _stack(key, names, [one.get(key) for one in keys])) for key in found
    )


def _stack(name: str, runs: Sequence[str], lanes: Sequence[Key | None]) -> Key:
    """Stacks one key of all runs; None for the runs that do not have it."""
    present = {i: lane for i, lane in enumerate(lanes) if lane is not None}
    for step, number in ((LANE, NO_LANE), (PROCESS, 0)):
        if any(step in lane.steps for lane in present.values()):
            present = {i: with_step(x, step, number) for i, x in present.items()}
    present = _with_key_data(present)
    if any(lane.info.stacked for lane in present.values()):
        present = {i: lane.stacked() for i, lane in present.items()}
    _check_alike(name, runs, present)
    length = max(lane.length() for lane in present.values())
    full = len(present) == len(lanes)
    masked = not full or any(
        lane.mask is not None or lane.length() < length for lane in present.values()
    )
    if masked:
        present = {i: lane.masked() for i, lane in present.items()}
    first = next(iter(present.values()))

    def join(arrays: list[Any], axis: int) -> Any:
        try:
            arrays = list(promote(name, arrays))
        except StoreError as error:
            raise DtypeError(f"{error} Or select runs with `where`.") from None
        rows = length if first.info.stacked else None
        padded = [_padded(array, axis, rows) for array in arrays]
        by_run = dict(zip(present, padded, strict=True))
        missing = _empty(padded[0].shape, padded[0])
        module = namespace(padded[0])
        return module.stack([by_run.get(i, missing) for i in range(len(lanes))])

    joined = combine(list(present.values()), join)
    tags = all_tags(lane.info.tags for lane in present.values())
    return joined._replace(info=joined.info._replace(tags=tags))


def _with_key_data(present: dict[int, Key]) -> dict[int, Key]:
    """Replaces typed PRNG keys with their data, if some runs have only their data."""
    types = [
        {leaf.dtype for leaf in leaves_of(lane.value) if is_typed_key(leaf)}
        for lane in present.values()
    ]
    # without their types, keys of several implementations could not be told apart
    if all(types) or len(set().union(*types)) != 1:
        return present
    return {i: lane.with_key_data() for i, lane in present.items()}


def _padded(array: Any, axis: int, rows: int | None) -> Any:
    """An array with this number of rows; None if it has no time axis."""
    if rows is None or array.shape[axis] == rows:
        return array
    shape = list(array.shape)
    shape[axis] = rows - shape[axis]
    rest = _empty(tuple(shape), array)
    return namespace(array).concatenate([array, rest], axis=axis)


def _empty(shape: tuple[int, ...], like: Any) -> Any:
    """The value of rows that did not happen: NaN, zero or `False`."""
    if is_typed_key(like):
        random = imported_jax().random
        impl = random.key_impl(like)
        words = random.key_data(like).shape[like.ndim :]
        data = np.zeros((*shape, *words), random.key_data(like).dtype)
        return random.wrap_key_data(data, impl=impl)
    fill = np.nan if is_inexact(like.dtype) else 0
    return np.full(shape, fill, like.dtype)


def _check_alike(name: str, runs: Sequence[str], present: dict[int, Key]) -> None:
    """Raises if the rows of two runs cannot be in one array."""
    (first, key), *others = present.items()
    for i, other in others:
        error: type[LoxError] | None = None
        if structure_of(key.value) != structure_of(other.value):
            error, what = ShapeError, "tree structures"
        elif _row_shapes(key) != _row_shapes(other):
            error = ShapeError
            what = f"shapes, {_row_shapes(key)} and {_row_shapes(other)}"
        elif key.steps.keys() != other.steps.keys():
            error = StepError
            what = f"steps, {sorted(key.steps)} and {sorted(other.steps)}"
        if error is not None:
            raise error(
                f"{name!r} has different {what}, in the runs {runs[first]} and "
                f"{runs[i]}, so they cannot be lanes of one logdict. {_REMEDY}"
            )


def _row_shapes(key: Key) -> list[Any]:
    """The shapes of rows: lanes and own axes, without time."""
    shapes = []
    for leaf, own in zip(leaves_of(key.value), key.info.ndims, strict=True):
        shape = list(np.shape(leaf))
        axis = key.info.time_axis(leaf, own)
        if key.info.stacked:
            del shape[axis]
        shapes.append((axis, tuple(shape)))
    return shapes
