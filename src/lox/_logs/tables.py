"""Logs as tables: columns of rows that were logged together.

Columns, because handling one row at a time is a hundred times slower.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from lox._arrays import is_typed_key, leaves_with_paths, to_native

from .access import keys_of
from .compaction import compacted
from .grouping import group_by_steps
from .key import Key
from .lane_step import LANE, NO_LANE, inner_lane
from .logdict import logdict

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows that were logged together.

    Attributes:
        length: the number of rows.
        steps: their step numbers, by name.
        values: the columns of all values, by the path of the leaf; the first axis is
            time.
        scalars: those that a tracker shows as numbers.
        histograms: those that a tracker shows as histograms of their values.
        binned: those that are already histograms: their counts and their bin edges.
        images: those that a tracker shows as images.
        lane: the lane of all rows, if they were split by it.
    """

    length: int
    steps: dict[str, Array]
    values: dict[str, Array]
    scalars: dict[str, Array] = dataclasses.field(default_factory=dict)
    histograms: dict[str, Array] = dataclasses.field(default_factory=dict)
    binned: dict[str, tuple[Array, Array]] = dataclasses.field(default_factory=dict)
    images: dict[str, Array] = dataclasses.field(default_factory=dict)
    lane: int | None = None

    @property
    def shown(self) -> list[str]:
        """The names of everything that a tracker shows."""
        return [*self.scalars, *self.histograms, *self.binned, *self.images]

    def with_lane_names(self) -> "Table":
        """The table with its lane in all names, so that each lane is a curve."""
        if self.lane is None:
            return self

        def named(columns: dict[str, Any]) -> dict[str, Any]:
            return {f"{name}/lane_{self.lane}": x for name, x in columns.items()}

        return dataclasses.replace(
            self,
            values=named(self.values),
            scalars=named(self.scalars),
            histograms=named(self.histograms),
            binned=named(self.binned),
            images=named(self.images),
        )


def tables(logs: logdict) -> Iterator[Table]:
    """Splits the logs of a run, which may have lanes, by what was logged together.

    Rows of lanes have the step `lane`.
    """
    for keys in _lanes(keys_of(logs)):
        for names, length in group_by_steps(keys):
            steps = {
                step: np.asarray(numbers).reshape(length)
                for step, numbers in keys[names[0]].steps.items()
            }
            values: dict[str, Array] = {}
            taken: set[str] = set()
            for name in names:
                stacked = keys[name].info.stacked
                for path, leaf in named_leaves(name, keys[name].value):
                    column = _column(leaf)
                    path = unique_name(path, taken)
                    values[path] = column if stacked else column[None]
            yield Table(length, steps, values)


def split_by_lane(table: Table) -> list[Table]:
    """Splits a table whose rows name their lane, for trackers that plot curves."""
    if LANE not in table.steps:
        return [table]
    lanes = table.steps[LANE]

    def rows_of(number: int) -> Table:
        rows = lanes == number
        steps = {name: x[rows] for name, x in table.steps.items() if name != LANE}
        values = {name: column[rows] for name, column in table.values.items()}
        lane = None if number == NO_LANE else number
        return Table(int(rows.sum()), steps, values, lane=lane)

    return [rows_of(number) for number in np.unique(lanes).tolist()]


def _lanes(keys: dict[str, Key]) -> Iterator[dict[str, Key]]:
    """The keys of each lane, and those without lanes."""
    counts = {name: key.lane_count() for name, key in keys.items()}
    for count in dict.fromkeys(counts.values()):
        same = {name: key for name, key in keys.items() if counts[name] == count}
        if count is None:
            yield same
            continue
        for i in range(count):
            lane = {
                name: compacted(inner_lane(key.lane(i), count, i))
                for name, key in same.items()
            }
            yield from _lanes({name: key for name, key in lane.items() if key})


def unique_name(name: str, taken: set[str]) -> str:
    """A valid UTF-8 name that differs from those in `taken`, to which it is added."""
    name = name.encode("utf-8", "backslashreplace").decode()
    while name in taken:
        name += "_value"
    taken.add(name)
    return name


def python_numbers(column: Array) -> list[Any]:
    """Converts a column to Python numbers, exactly."""
    numbers: list[Any] = column.tolist()
    if column.dtype != np.float32 or (column.ndim == 1 and 0.0 not in numbers):
        return numbers
    return widen_subnormals(column).tolist()


def widen_subnormals(column: Array) -> Array:
    """Converts float32 to float64 if there are subnormal numbers in it.

    XLA's threads, and threads started by them, flush float32 subnormals to zero in
    conversions. In float64, the same numbers are not subnormal.
    """
    if column.dtype != np.float32:
        return column
    bits = column.view(np.uint32)
    mantissa = bits & 0x7FFFFF
    subnormal = ((bits & 0x7F800000) == 0) & (mantissa != 0)
    if not subnormal.any():
        return column
    wide = column.astype(np.float64)
    sign = np.where(bits[subnormal] >> 31, -1.0, 1.0)
    wide[subnormal] = sign * np.ldexp(mantissa[subnormal].astype(np.float64), -149)
    return wide


def named_leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """The leaves of a value, with their names: the key and their path."""
    if isinstance(value, np.ndarray | np.generic):
        return [(key, value)]
    return [("/".join((key, *path)), leaf) for path, leaf in leaves_with_paths(value)]


def _column(leaf: Any) -> Array:
    """Converts a leaf to an array of a dtype that NumPy itself has."""
    if is_typed_key(leaf):
        return np.empty(leaf.shape, object)  # PRNG keys, which trackers cannot show
    column: Array = to_native(np.asarray(leaf))
    return column
