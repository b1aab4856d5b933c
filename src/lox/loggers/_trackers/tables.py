"""Logs as tables: columns of rows that were logged together.

Columns, because handling one row at a time is a hundred times slower.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._logs.logdict import logdict

Array = np.ndarray[Any, Any]


class Columns(NamedTuple):
    """Rows that were logged together.

    Attributes:
        length: the number of rows.
        steps: their step numbers, by name.
        values: the values of each leaf, by its path; the first axis is time.
    """

    length: int
    steps: dict[str, Array]
    values: dict[str, Array]


def tables(logs: logdict) -> Iterator[Columns]:
    """Splits the logs of a run, which may have lanes, by what was logged together."""
    for lane in _lanes(logs):
        for keys, length in lane._groups():
            steps = {
                name: np.asarray(step).reshape(length)
                for name, step in lane._key_steps(keys[0]).items()
            }
            values: dict[str, Array] = {}
            taken: set[str] = set()
            for key in keys:
                stacked = lane._info_for(key).stacked
                for name, leaf in _leaves(key, lane[key]):
                    column = _column(leaf)
                    name = unique_name(name, taken)
                    values[name] = column if stacked else column[None]
            yield Columns(length, steps, values)


def _lanes(logs: logdict) -> Iterator[logdict]:
    """The logs of each lane, and those of the keys without lanes."""
    counts = {key: logs._key(key).lane_count() for key in logs}
    if not any(count is not None for count in counts.values()):
        yield logs
        return
    for count in dict.fromkeys(counts.values()):
        same_lanes = logs._with((k, logs._key(k)) for k in logs if counts[k] == count)
        if count is None:
            yield same_lanes
            continue
        for lane in same_lanes.lanes():
            yield from _lanes(lane)


def unique_name(name: str, taken: set[str]) -> str:
    """Makes a name different from those `taken`, adds it there, and makes it UTF-8."""
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


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """The arrays of a value, with their paths."""
    if isinstance(value, np.ndarray | np.generic):
        return [(key, value)]
    pairs = jax.tree_util.tree_leaves_with_path(value)
    return [
        ("/".join((key, *(jax.tree_util.keystr((k,), simple=True) for k in path))), x)
        for path, x in pairs
    ]


def _column(leaf: Any) -> Array:
    """Converts a leaf to an array of a dtype that NumPy itself has."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.extended):
        return np.empty(leaf.shape, object)  # PRNG keys, which trackers cannot show
    column = np.asarray(leaf)
    if column.dtype.kind in "biufc":
        return column
    name = column.dtype.name
    if name.startswith(("bfloat", "float")):
        return column.astype(np.float32)
    if name.startswith(("int", "uint")):
        return column.astype(np.int8 if name.startswith("int") else np.uint8)
    return column
