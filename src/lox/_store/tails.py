"""The last records of a writer, read without its other records.

A store may have thousands of runs, so only a few system calls are made per segment.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lox._errors import StoreError
from lox._logs.key import Key, KeyInfo

from .copied import Copied, CopiedSegment
from .format import COPIED, SEGMENT, build_tree, numbered, read_places, reading
from .layouts import Layout, layout_of
from .locations import Location
from .losses import warn_of_loss
from .schema import Column, KeySchema
from .segments import names_in

_MAX_COPIED_BYTES = 2**16  # of larger records, only the scalars are read


class Tail(NamedTuple):
    """The end of a segment.

    Attributes:
        path: its `.json` file.
        layout: what its JSON file says.
        rows: the number of its records.
        record: the last record, as an array of length 1; None if there is none, or it
            has no scalars.
        written: the time of the last write.
    """

    path: Location
    layout: Layout
    rows: int
    record: Any
    written: float

    def last_rows(self) -> dict[str, Key]:
        """The last row of each key that is a scalar."""
        if self.record is None:
            return {}
        schema, first_step = self.layout.schema, self.layout.first_step
        steps = {
            name: self._value(column, first_step + i)
            for i, (name, column) in enumerate(schema.steps)
            if column.shape == ()
        }
        rows = {}
        for key, first in self.layout.scalars:
            leaves = [self._value(x, first + i) for i, x in enumerate(key.columns)]
            rows[key.name] = _row(key, leaves, steps)
        return rows

    def _value(self, column: Column, index: int) -> Any:
        return column.decode(self.record[f"c{index}"])[0]

    def last_number(self) -> int:
        """The number of the event of the last record, in the writer's order."""
        path = self.path.with_suffix(".places")
        places = read_places(path, last=True)
        if not len(places) or places["row"][-1] >= self.rows:  # a later record
            places = read_places(path, limit=self.rows)
        if not len(places):
            return -1
        return int(places["number"][-1]) + self.rows - 1 - int(places["row"][-1])


def _row(key: KeySchema, leaves: list[Any], steps: dict[str, Any]) -> Key:
    value = leaves[0] if key.tree == _ONE_LEAF else build_tree(key.tree, leaves)
    info = KeyInfo(False, 0, (0,) * len(leaves), key.tags)
    return Key(value, steps, None, info)


_ONE_LEAF = "0"  # the structure of a single array


def tails_of(writer: Location, numbers: Iterable[int] | None = None) -> list[Tail]:
    """The ends of the segments of a writer, which may be writing.

    Warns about segments that cannot be read.

    Args:
        writer: the directory of the writer.
        numbers: the segments that it has, if they are known.
    """
    if writer.is_link():  # a link could lead anywhere
        raise StoreError(f"{writer} is a symbolic link, so it is not read.")
    copied = None
    if numbers is None:
        names = _names(writer)
        numbers = [number for number, _ in numbered(names, SEGMENT)]
        if COPIED in names:
            copied = Copied.read(writer)
    tails = []
    for number in numbers:
        limit = None
        if copied is not None:
            limit = copied.get(number, CopiedSegment()).records
        try:
            tails.append(_tail_of(writer / f"{number:04d}.json", limit))
        except FileNotFoundError:
            continue
        except StoreError as error:
            warn_of_loss(f"a segment is left out: {error}")
    return tails


def _names(writer: Location) -> list[str]:
    try:
        return names_in(writer)
    except StoreError:
        if not writer.exists():  # it was removed
            return []
        raise


def _tail_of(path: Location, limit: int | None = None) -> Tail:
    """The end of a segment, of which only the first `limit` records count, if given."""
    layout = layout_of(path)
    name = path.with_suffix(".npy")
    size, start = layout.dtype.itemsize, len(layout.header)
    in_memory = bool(layout.scalars) and size <= _MAX_COPIED_BYTES
    record: Any = None
    with reading(name):
        try:
            ends = name.ends(start, size if in_memory and limit is None else 0)
            rows = layout.count_records(name, ends.head, ends.size)
            rows = rows if limit is None else min(rows, limit)
            if ends.last:
                record = _record(ends.last, layout.dtype)
            elif rows and layout.scalars:
                record = name.records(layout.dtype, start + (rows - 1) * size, 1)
        except FileNotFoundError:
            return Tail(path, layout, 0, None, 0.0)
    return Tail(path, layout, rows, record, ends.modified)


def _record(raw: bytes, dtype: np.dtype[Any]) -> Any:
    # the file may be cut while it is read
    return np.frombuffer(raw, dtype) if len(raw) == dtype.itemsize else None
