"""The scalars, histograms and images that a run can show, and how to read them."""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._errors import StoreError
from lox._logs.lane_step import (
    LANE,
    NO_LANE,
    PROCESS,
    have_several_processes,
    lanes_in,
)
from lox._store.joining import KeyPart
from lox._store.schema import Column, KeySchema
from lox._store.segments import Segment, WrittenSegments

Array = np.ndarray[Any, Any]

SCALAR, HISTOGRAM, IMAGE = "scalar", "histogram", "image"
CLOCK = "#clock"  # the x-axis of the times at which rows were written
_COUNTS, _EDGES = "/counts", "/edges"
_MIN_IMAGE_SIDE = 4
# how much is read first to find the end of a growing file; doubled until it is found
_TAIL_ROWS = 256


class Leaf(NamedTuple):
    """One leaf of a key in one segment.

    Attributes:
        writer: the writer of the segment.
        segment: the segment.
        key: the schema of the key.
        column: the column of the leaf.
        position: the position of the column in the records.
        steps: the position and the column of each step.
    """

    writer: WrittenSegments
    segment: Segment
    key: KeySchema
    column: Column
    position: int
    steps: dict[str, tuple[int, Column]]

    @property
    def lane_axes(self) -> int:
        return self.key.outer + self.key.lanes

    @property
    def own_shape(self) -> tuple[int, ...]:
        return self.column.shape[self.lane_axes :]

    def read(self, index: int, column: Column, first: int) -> Array:
        """A column as rows of `(time, lanes, *own axes)`."""
        rows = np.asarray(column.decode(self.segment.column(index, first)))
        lanes = math.prod(column.shape[: self.lane_axes])
        return rows.reshape(len(rows), lanes, *column.shape[self.lane_axes :])

    def mask(self, first: int) -> Array | None:
        """Which lanes logged each row; None if all did."""
        schema = self.segment.schema
        if schema.mask is None:
            return None
        index = len(schema.columns) - 1
        return self.read(index, schema.mask, first).astype(bool)


@dataclasses.dataclass(frozen=True)
class Signal:
    """One scalar, histogram or image that a run logs over time.

    Attributes:
        name: the key, and the path of the leaf in it.
        kind: how to show it: `SCALAR`, `HISTOGRAM` or `IMAGE`.
        leaves: its parts, one per segment; of a histogram, those of the counts.
        edges: of a histogram, the parts of the edges of its bins.
    """

    name: str
    kind: str
    leaves: list[Leaf]
    edges: list[Leaf] = dataclasses.field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        """The steps that all its rows have, without those that number lanes."""
        names = [set(leaf.steps) for leaf in self.leaves]
        common = set.intersection(*names) - {LANE, PROCESS}
        return [name for name in self.leaves[0].steps if name in common]

    @property
    def count(self) -> int:
        return sum(leaf.segment.count for leaf in self.leaves)

    @property
    def has_times(self) -> bool:
        """Whether it is known when some of its rows were written."""
        return any(leaf.writer.has_times for leaf in self.leaves)

    def shares_rows(self, other: "Signal") -> bool:
        """Whether both are logged by the same events."""
        return [x.segment for x in self.leaves] == [x.segment for x in other.leaves]


class Rows(NamedTuple):
    """Rows of one lane, in the order in which they were logged.

    Attributes:
        lane: the name of the lane; None if there is only one.
        x: their positions on the x-axis.
        values: their values.
    """

    lane: str | None
    x: Array
    values: Array


def signals_of(writers: Iterable[WrittenSegments]) -> dict[str, Signal]:
    """Everything that a run can show, by name."""
    leaves: dict[str, list[Leaf]] = {}
    for writer in writers:
        for segment in writer.segments:
            for name, leaf in _leaves(writer, segment) if segment.count else ():
                leaves.setdefault(name, []).append(leaf)
    found: dict[str, Signal] = {}
    for name, parts in leaves.items():
        if name.endswith(_EDGES):
            base = name.removesuffix(_EDGES)
            counts = leaves.get(base + _COUNTS, [])
            if _are_bins(counts, parts):
                found[base] = Signal(base, HISTOGRAM, counts, parts)
    for name, parts in leaves.items():
        kind = _kind_of(parts)
        base = name.removesuffix(_EDGES).removesuffix(_COUNTS)
        binned = base != name and base in found and found[base].kind == HISTOGRAM
        if kind is not None and not binned and name not in found:
            found[name] = Signal(name, kind, parts)
    return found


def _leaves(writer: WrittenSegments, segment: Segment) -> Iterator[tuple[str, Leaf]]:
    schema = segment.schema
    values = sum(len(key.columns) for key in schema.keys)
    steps = {name: (values + i, c) for i, (name, c) in enumerate(schema.steps)}
    for key, first in segment.keys.values():
        for path, i in _paths(json.loads(key.tree)):
            column = key.columns[i]
            if column.impl is None:
                leaf = Leaf(writer, segment, key, column, first + i, steps)
                yield "/".join((key.name, *path)), leaf


def _paths(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, int]]:
    """The paths and positions of the leaves of a tree structure."""
    if type(node) is int:
        yield path, node
    elif node is not None:
        ((kind, children),) = node.items()
        pairs = children if kind == "dict" else enumerate(children)
        for name, child in pairs:
            yield from _paths(child, (*path, str(name)))


def _kind_of(parts: Sequence[Leaf]) -> str | None:
    leaf = parts[0]
    dtype, shape = leaf.column.dtype, leaf.own_shape
    if any(part.column.dtype.startswith("complex") for part in parts):
        return None
    if math.prod(shape) == 1:
        return SCALAR
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    if is_image and min(shape[:2]) >= _MIN_IMAGE_SIDE and not leaf.lane_axes:
        shown = dtype in ("uint8", "bool") or "float" in dtype
        return IMAGE if shown else None
    return None


def _are_bins(counts: list[Leaf], edges: list[Leaf]) -> bool:
    shapes = [(a.own_shape, b.own_shape) for a, b in zip(counts, edges, strict=False)]
    return len(counts) == len(edges) and all(
        len(a) == len(b) == 1 and b[0] == a[0] + 1 > 1 for a, b in shapes
    )


# --- reading -----------------------------------------------------------------


def read_rows(
    leaves: Sequence[Leaf],
    x: str | None,
    across: Sequence[Leaf] | None = None,
    after: float | None = None,
) -> list[Rows]:
    """Reads rows, one `Rows` per lane.

    Args:
        leaves: the parts of a signal.
        x: the step to use as the x-axis, or `CLOCK`; None counts the rows.
        across: the parts of a scalar to use as the x-axis instead.
        after: only rows with at least this `x` are needed. More may be returned.
    """
    firsts = [0] * len(leaves)
    counts_rows = x is None and across is None
    # for each lane, only the rows that it has logged, as in `logs.over_lanes`
    counts_by_lane = counts_rows and any(map(_has_own_rows, leaves))
    can_skip = across is None and not counts_by_lane and _are_in_order(leaves)
    if after is not None and can_skip:
        firsts = _first_needed(leaves, x, after)
    parts = [
        _read_part(leaf, x, first) for leaf, first in zip(leaves, firsts, strict=True)
    ]
    if across is not None:
        others = [leaf.read(leaf.position, leaf.column, 0) for leaf in across]
        parts = [
            part._replace(x=other.reshape(other.shape[0], -1))
            for part, other in zip(parts, others, strict=True)
        ]
    values, positions, mask, numbers, processes = _joined(leaves, parts)
    if counts_rows:
        count = sum(leaf.segment.count for leaf in leaves)
        positions = np.arange(count - len(values), count)[:, None]
    count = values.shape[1]
    if mask is not None:
        mask = np.broadcast_to(mask, (len(values), count))
    positions = np.broadcast_to(positions, (len(values), count))
    if numbers is not None:
        lanes = {LANE: numbers, PROCESS: processes}
        found = _by_lane(values, positions, mask, lanes)
    else:
        names: list[str | None] = [f"lane {i}" for i in range(count)]
        names = names if count > 1 else [None] * count
        found = [
            _lane(name, values[:, i], positions[:, i], mask, i)
            for i, name in enumerate(names)
        ]
    if counts_by_lane:
        found = [rows._replace(x=np.arange(len(rows.values))) for rows in found]
    return found


def _has_own_rows(leaf: Leaf) -> bool:
    """Whether each lane has only some of the rows."""
    return LANE in leaf.steps or leaf.segment.schema.mask is not None


class _Part(NamedTuple):
    values: Array
    x: Array
    mask: Array | None
    numbers: Array | None  # the lanes of rows that name them
    processes: Array  # the processes that have logged the rows


def _read_part(leaf: Leaf, x: str | None, first: int) -> _Part:
    steps = leaf.steps
    try:
        values = leaf.read(leaf.position, leaf.column, first)
        numbers = leaf.read(*steps[LANE], first) if LANE in steps else None
        positions = np.zeros((len(values), 1))
        if x == CLOCK:
            positions = _times(leaf)[first:, None]
        elif x is not None:
            positions = leaf.read(*steps[x], first)
        processes = np.full((len(values), 1), leaf.writer.process)
        if PROCESS in steps:
            processes = leaf.read(*steps[PROCESS], first)
        return _Part(values, positions, leaf.mask(first), numbers, processes)
    except StoreError as error:
        raise StoreError(f"{leaf.segment} cannot be read: {error}.") from None


def _times(leaf: Leaf) -> Array:
    """When the rows were written; NaN if it is not known."""
    times = leaf.writer.times(leaf.segment)
    return np.full(leaf.segment.count, np.nan) if times is None else times


def _joined(leaves: Sequence[Leaf], parts: list[_Part]) -> Any:
    """The rows of all parts, in the order in which they were written."""
    if len(parts) == 1:
        return parts[0]
    if len({part.values.shape[1:] for part in parts}) > 1:
        raise StoreError(
            f"{leaves[0].key.name!r} was written with different shapes or lanes, and "
            "cannot be shown as one curve."
        )
    counts = [len(part.values) for part in parts]
    order: Any = slice(None)
    if not _are_in_order(leaves):
        writers = [(leaf.writer.process, leaf.writer.number) for leaf in leaves]
        keys = [KeyPart(leaf.writer, leaf.segment, leaf.key.name) for leaf in leaves]
        numbers = np.concatenate([key.numbers() for key in keys])
        process, number = np.repeat(np.array(writers), counts, axis=0).T
        order = np.lexsort([numbers, number, process])

    def join(name: str, missing: Any) -> Any:
        arrays = [getattr(part, name) for part in parts]
        if all(array is None for array in arrays):
            return None
        shapes = [array.shape for array in arrays if array is not None]
        filled = [
            np.full((n, *shapes[0][1:]), missing) if array is None else array
            for n, array in zip(counts, arrays, strict=True)
        ]
        lanes = max(array.shape[1] for array in filled)
        wide = [np.broadcast_to(a, (len(a), lanes, *a.shape[2:])) for a in filled]
        return _concatenated(wide)[order]

    return _Part(
        join("values", 0),
        join("x", 0),
        join("mask", True),
        join("numbers", NO_LANE),
        join("processes", 0),
    )


def _concatenated(arrays: Sequence[Array]) -> Array:
    """Joins arrays of numbers, whose dtypes may differ."""
    dtypes = {array.dtype for array in arrays}
    # NumPy promotes dtypes of `ml_dtypes` to narrow ones, or to none
    if len(dtypes) > 1 and any(dtype.isbuiltin != 1 for dtype in dtypes):
        arrays = [array.astype(np.float64) for array in arrays]
    return np.concatenate(arrays)


def _by_lane(
    values: Array, positions: Array, mask: Array | None, steps: dict[str, Array]
) -> list[Rows]:
    """Splits rows that name their lane."""
    shape = values.shape[:2]
    steps = {name: np.broadcast_to(step, shape) for name, step in steps.items()}
    lanes = lanes_in([steps])
    several = have_several_processes(lanes)
    found = []
    for lane in lanes:
        is_named = several or lane.number != NO_LANE
        name = lane.name(several) if is_named else None
        of_lane = lane.is_of(steps)
        for i in range(shape[1]):
            rows = of_lane[:, i]
            if rows.any():
                kept = None if mask is None else mask[rows]
                found.append(_lane(name, values[rows, i], positions[rows, i], kept, i))
    return found


def _lane(
    name: str | None, values: Array, x: Array, mask: Array | None, i: int
) -> Rows:
    if mask is not None:
        values, x = values[mask[:, i]], x[mask[:, i]]
    return Rows(name, x, values)


def _are_in_order(leaves: Sequence[Leaf]) -> bool:
    """Whether all rows of a part were logged before those of the next one."""
    writers = [(leaf.writer.process, leaf.writer.number) for leaf in leaves]
    return len(set(writers)) == len(writers) and sorted(writers) == writers


def _first_needed(leaves: Sequence[Leaf], x: str | None, after: float) -> list[int]:
    """The first row to read of each part, to get all rows with at least this `x`.

    Searches from the end of the files, so that the cost of following a long run depends
    only on the new rows.
    """
    found = []
    before = 0  # rows of the parts before
    for leaf in leaves:
        count = leaf.segment.count
        if x is None:
            found.append(min(max(int(after) - before, 0), count))
        else:
            found.append(_first_in_tail(leaf, x, after))
        before += count
    return found


def _first_in_tail(leaf: Leaf, x: str, after: float) -> int:
    count, tail = leaf.segment.count, _TAIL_ROWS
    while tail < count:
        steps = leaf.read(*leaf.steps[x], count - tail)
        if steps[0].max() < after:
            return count - tail
        tail *= 2
    return 0


def as_numbers(values: Array) -> Array:
    """Converts a column of scalars to floats that represent it exactly, if possible."""
    flat = values.reshape(len(values))
    if flat.dtype in (np.float32, np.float64):
        return flat
    narrow = flat.dtype.itemsize < 4 or flat.dtype.kind == "b"
    return flat.astype(np.float32 if narrow else np.float64)
