"""The rows of a key with one column per lane, aligned by a step."""

import math
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import is_tracer, is_typed_key, leaves_of
from lox._errors import LoxTypeError, LoxValueError

from .key import Key
from .lane_step import LANE, PROCESS


class LanePoints(NamedTuple):
    """The rows of a key, as points that the lanes share.

    Attributes:
        steps: the steps of the points, by name: those on which all lanes agree.
        step: the name of the step by which the lanes are aligned; None without steps.
        leaves: the values, of the shape `(points, lanes, *own axes)`.
        present: which lanes have which points.
    """

    steps: dict[str, Any]
    step: str | None
    leaves: list[Any]
    present: Any


def has_lanes(key: Key) -> bool:
    """Whether the rows of a key have lane axes, or name their lanes."""
    return key.lane_count() is not None or LANE in key.steps


def align_lanes(name: str, key: Key, step: str | None = None) -> LanePoints:
    """Aligns the rows of all lanes by a step, or by position if there is no step.

    If lanes have several rows with the same step, their first rows form one point,
    their second rows another, and so on. The points are sorted by the step, unless all
    lanes have the same steps in the same order. The lanes of a key without a time axis
    are one point, whatever their steps are.

    Args:
        name: the name of the key, for messages.
        key: the key.
        step: the name of the step; by default the first one.
    """
    leaves = leaves_of(key.value)
    if any(map(is_tracer, [*leaves, *key.steps.values(), key.mask])):
        raise LoxTypeError(
            f"lanes of {name!r} cannot be aligned under a trace, since the result "
            "depends on their steps. Do so outside `jax.jit`."
        )
    for leaf in leaves:
        if is_typed_key(leaf) or np.asarray(leaf).dtype.kind == "c":
            raise LoxTypeError(
                f"{name!r} has the dtype {leaf.dtype}, which has no statistics over "
                "lanes. Select other keys with `filter`."
            )
    names = [x for x in key.steps if x not in (LANE, PROCESS)]
    if step is not None and step not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise LoxValueError(f"{name!r} has no step {step!r}; its steps are {known}.")
    if step is None:
        step = names[0] if names else None
    columns = _Columns.of(key)
    # lanes of a key without a time axis are one point
    by = step if key.info.stacked else None
    if LANE not in key.steps and columns.are_points(by):
        steps = columns.common_steps(names)
        return LanePoints(steps, by, columns.leaves, columns.present)
    return _aligned(columns, names, by)


class _Columns(NamedTuple):
    """The arrays of a key, with time as the first and lanes as the second axis."""

    leaves: list[Any]
    steps: dict[str, Any]
    present: Any

    @classmethod
    def of(cls, key: Key) -> "_Columns":
        rows = key.stacked()
        shape = rows.row_shape()
        axis = rows.outer_lanes()
        # not left to `reshape`, which cannot infer sizes of empty arrays
        lanes = math.prod(shape[:axis] + shape[axis + 1 :])

        def time_first(x: Any, own: tuple[int, ...] = ()) -> Any:
            moved = np.moveaxis(np.asarray(x), axis, 0)
            return moved.reshape(len(moved), lanes, *own)

        leaves = [np.asarray(leaf) for leaf in leaves_of(rows.value)]
        mask = np.ones(shape, bool) if rows.mask is None else rows.mask
        return cls(
            [time_first(leaf, leaf.shape[len(shape) :]) for leaf in leaves],
            {
                name: time_first(np.broadcast_to(np.asarray(x), shape))
                for name, x in rows.steps.items()
            },
            time_first(mask).astype(bool),
        )

    def have_equal_steps(self, step: str | None) -> bool:
        """Whether all lanes have the same steps, in the same order."""
        if step is None:  # positions count only the rows that happened
            return bool(self.present.all()) or len(self.present) == 1
        steps = self.steps[step]
        if not steps.shape[1]:
            return True
        reference = np.take_along_axis(steps, self.present.argmax(1)[:, None], axis=1)
        return bool((_same(steps, reference) | ~self.present).all())

    def are_points(self, step: str | None) -> bool:
        """Whether the rows at each position are one point.

        They are not if some lanes lack one of several rows with the same step, and
        other lanes another one.
        """
        if not self.have_equal_steps(step):
            return False
        if step is None or self.present.all():
            return True
        reference = self.common_steps([step]).get(step, ())
        return len(np.unique(reference)) == len(reference)

    def common_steps(self, names: list[str]) -> dict[str, Any]:
        """The steps on which all lanes agree."""
        first = self.present.argmax(1)[:, None] if self.present.shape[1] else None
        common = {}
        for name in names:
            steps = self.steps[name]
            if first is not None and self.have_equal_steps(name):
                common[name] = np.take_along_axis(steps, first, axis=1)[:, 0]
        return common


def _aligned(columns: _Columns, names: list[str], step: str | None) -> LanePoints:
    # each row that happened, by its lane and time
    lanes, times = np.nonzero(columns.present.T)
    series, count = _series(columns, lanes, times)
    order = np.lexsort([times, series])  # rows of a series, in their order
    lanes, times, series = lanes[order], times[order], series[order]
    if step is None:
        points = _nth(series)
        size = int(points.max(initial=-1)) + 1
    else:
        at = columns.steps[step][times, lanes]
        by_step = np.lexsort([at, series])  # stable
        nth = np.empty(len(at), np.int64)
        nth[by_step] = _nth_of_pairs(series[by_step], at[by_step])
        points, size = _numbered(at, nth)
    present = np.zeros((size, count), bool)
    present[points, series] = True
    steps = {}
    for name in names:
        values = columns.steps[name][times, lanes]
        common = np.zeros(size, values.dtype)
        common[points] = values
        if _same(common[points], values).all():
            steps[name] = common
    leaves = []
    for leaf in columns.leaves:
        values = np.zeros((size, count, *leaf.shape[2:]), leaf.dtype)
        values[points, series] = leaf[times, lanes]
        leaves.append(values)
    return LanePoints(steps, step, leaves, present)


def _same(a: Any, b: Any) -> Any:
    """Where two arrays are equal; a NaN step is the same step as another one."""
    return (a == b) | ((a != a) & (b != b))


def _series(columns: _Columns, lanes: Any, times: Any) -> tuple[Any, int]:
    """The number of the series of each row: a lane axis, and a lane that rows name.

    Processes of a job may use the same numbers for different lanes.
    """
    width = columns.present.shape[1]
    if LANE not in columns.steps:
        return lanes, width
    named = [
        columns.steps[name][times, lanes].astype(np.int64)
        for name in (LANE, PROCESS)
        if name in columns.steps
    ]
    found, series = np.unique(np.stack([lanes, *named]), axis=1, return_inverse=True)
    return series.reshape(-1), found.shape[1]


def _nth(series: Any) -> Any:
    """The position of each row in its series; the rows are sorted by series."""
    return _nth_of_pairs(series, np.zeros(len(series), np.int8))


def _nth_of_pairs(first: Any, second: Any) -> Any:
    """How many equal pairs come before each pair; the pairs are sorted."""
    if not len(first):
        return np.zeros(0, np.int64)
    new = np.append(
        True, ~(_same(first[1:], first[:-1]) & _same(second[1:], second[:-1]))
    )
    starts = np.nonzero(new)[0]
    return np.arange(len(first)) - starts[np.cumsum(new) - 1]


def _numbered(at: Any, nth: Any) -> tuple[Any, int]:
    """Numbers the distinct pairs in their order."""
    order = np.lexsort([nth, at])
    at, nth = at[order], nth[order]
    new = np.append(False, ~(_same(at[1:], at[:-1]) & _same(nth[1:], nth[:-1])))
    numbers = np.empty(len(at), np.int64)
    numbers[order] = np.cumsum(new[: len(at)])
    return numbers, int(numbers.max(initial=-1)) + 1
