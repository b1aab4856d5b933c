"""Logs as tables: columns of rows that were logged together.

Whole columns, since a row at a time costs a hundred times as much.
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
        length: how many there are.
        steps: their step numbers, by name.
        values: the values of each leaf, by its path: arrays whose first axis is time.
    """

    length: int
    steps: dict[str, Array]
    values: dict[str, Array]


def tables(logs: logdict) -> Iterator[Columns]:
    """The logs of a run, which may have lanes, by what was logged together."""
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
                    values[free(name, taken)] = column if stacked else column[None]
            yield Columns(length, steps, values)


def _lanes(logs: logdict) -> Iterator[logdict]:
    """The logs of each lane, if a run has several; of keys that have none, once."""
    counts = {key: logs._key(key).lane_count() for key in logs}
    if not any(count is not None for count in counts.values()):
        yield logs
        return
    for count in dict.fromkeys(counts.values()):
        alike = logs._with((k, logs._key(k)) for k in logs if counts[k] == count)
        if count is None:
            yield alike
            continue
        for lane in alike.lanes():
            yield from _lanes(lane)


def free(name: str, taken: set[str]) -> str:
    """A name that is not taken, and is now; one that can be written, too."""
    name = name.encode("utf-8", "backslashreplace").decode()
    while name in taken:
        name += "_value"
    taken.add(name)
    return name


def python_numbers(column: Array) -> list[Any]:
    """The numbers of a column as Python's own, exactly."""
    numbers: list[Any] = column.tolist()
    if column.dtype != np.float32 or (column.ndim == 1 and 0.0 not in numbers):
        return numbers
    return exact(column).tolist()


def exact(column: Array) -> Array:
    """The same numbers, of which none is so small that a processor may forget it.

    In threads of XLA's, and in those that they start, it takes the smallest numbers of
    32 bits for zero. Among those of 64 bits they are not the smallest.
    """
    if column.dtype != np.float32:
        return column
    bits = column.view(np.uint32)
    part = bits & 0x7FFFFF
    small = ((bits & 0x7F800000) == 0) & (part != 0)
    if not small.any():
        return column
    wide = column.astype(np.float64)
    sign = np.where(bits[small] >> 31, -1.0, 1.0)
    wide[small] = sign * np.ldexp(part[small].astype(np.float64), -149)
    return wide


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """The arrays of a value, each by its path."""
    if isinstance(value, np.ndarray | np.generic):
        return [(key, value)]
    pairs = jax.tree_util.tree_leaves_with_path(value)
    return [
        ("/".join((key, *(jax.tree_util.keystr((k,), simple=True) for k in path))), x)
        for path, x in pairs
    ]


def _column(leaf: Any) -> Array:
    """A leaf as an array of a dtype that others know."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.extended):
        return np.empty(leaf.shape, object)  # PRNG keys, which no tracker draws
    column = np.asarray(leaf)
    if column.dtype.kind in "biufc":
        return column
    name = column.dtype.name
    if name.startswith(("bfloat", "float")):
        return column.astype(np.float32)
    if name.startswith(("int", "uint")):
        return column.astype(np.int8 if name.startswith("int") else np.uint8)
    return column
