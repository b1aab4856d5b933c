"""The last records of a writer, read without its other records.

A store may have thousands of runs, most of them with the same schema, so a schema that
was read before is not parsed again, and only a few system calls are made per segment.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lox._errors import StoreError
from lox._logs.key import Key, KeyInfo

from .copied import Copied, CopiedSegment
from .format import (
    COPIED,
    SEGMENT,
    build_tree,
    npy_header,
    parse_json,
    read_json_bytes,
    read_places,
)
from .locations import Location
from .losses import warn_of_loss
from .schema import Column, KeySchema, Schema
from .segments import names_in, numbered, same_header

_MAX_LAYOUTS = 256
_MAX_COPIED_BYTES = 2**16  # of a record; of larger ones, only the scalars are read


class _Layout:
    """What the JSON file of a segment says about its records.

    Attributes:
        names: the keys of the segment.
        dtype: the dtype of its records.
        header: the header of its file, with a length of 0.
        scalars: the keys of which each row is a scalar, or a tree of scalars, with the
            columns and fields of their leaves.
        steps: the steps of these keys, with their fields.
    """

    def __init__(self, path: Location, raw: bytes) -> None:
        content = parse_json(raw, path)
        try:
            schema = Schema.from_json(content["schema"])
            self.dtype = schema.dtype
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = error if isinstance(error, StoreError) else repr(error)
            raise StoreError(f"{path} does not describe records: {reason}.") from None
        self.header = npy_header(self.dtype, 0)
        self.names = [key.name for key in schema.keys]
        # the fields of a key are numbered, and those of the steps come last
        self.scalars: list[tuple[KeySchema, list[Any]]] = []
        start = 0
        for key in schema.keys:
            fields = [(column, f"c{start + i}") for i, column in enumerate(key.columns)]
            if all(x.shape == () and x.impl is None for x in key.columns):
                self.scalars.append((key, fields))
            start += len(key.columns)
        self.steps = [
            (name, column, f"c{start + i}")
            for i, (name, column) in enumerate(schema.steps)
            if column.shape == ()
        ]


_layouts: dict[bytes, _Layout] = {}


def _layout_of(path: Location) -> _Layout:
    raw = read_json_bytes(path)
    found = _layouts.get(raw)
    if found is None:
        if len(_layouts) >= _MAX_LAYOUTS:
            _layouts.clear()
        found = _layouts[raw] = _Layout(path, raw)
    return found


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
    layout: _Layout
    rows: int
    record: Any
    written: float

    def last_rows(self) -> dict[str, Key]:
        """The last row of each key that is a scalar."""
        if self.record is None:
            return {}
        record = self.record
        steps = {
            name: _scalar(column, record[field])
            for name, column, field in self.layout.steps
        }
        return {
            key.name: _row(
                key, [_scalar(x, record[field]) for x, field in fields], steps
            )
            for key, fields in self.layout.scalars
        }

    def last_number(self) -> int:
        """The number of the event of the last record, in the writer's order."""
        path = self.path.with_suffix(".places")
        places = read_places(path, last=True)
        if not len(places) or places["row"][-1] >= self.rows:  # of a later record
            places = read_places(path, limit=self.rows)
        if not len(places):
            return -1
        return int(places["number"][-1]) + self.rows - 1 - int(places["row"][-1])


def _row(key: KeySchema, leaves: list[Any], steps: dict[str, Any]) -> Key:
    value = leaves[0] if key.tree == _ONE_LEAF else build_tree(key.tree, leaves)
    info = KeyInfo(False, 0, (0,) * len(leaves), key.tags)
    return Key(value, steps, None, info)


_ONE_LEAF = "0"  # the structure of a single array


def _scalar(column: Column, field: Any) -> Any:
    return column.decode(field)[0]


def tails_of(writer: Location, numbers: Iterable[int] | None = None) -> list[Tail]:
    """The ends of the segments of a writer, which may be writing.

    Warns of segments that cannot be read.

    Args:
        writer: the directory of the writer.
        numbers: the segments that it has, if they are known.
    """
    if writer.is_link():  # a link could lead anywhere
        raise StoreError(f"{writer} is a symbolic link, and is not read.")
    copied = None
    if numbers is None:
        names = _names(writer)
        numbers = [number for number, _ in numbered(names, SEGMENT)]
        if COPIED in names:
            copied = Copied.read(writer)
    tails = []
    for number in numbers:
        limit = None if copied is None else copied.segments.get(number, _NOTHING)
        try:
            path = writer / f"{number:04d}.json"
            tails.append(_tail_of(path, None if limit is None else limit.records))
        except FileNotFoundError:
            continue
        except StoreError as error:
            warn_of_loss(f"a segment is left out: {error}")
    return tails


_NOTHING = CopiedSegment(0, 0, 0)


def _names(writer: Location) -> list[str]:
    try:
        return names_in(writer)
    except StoreError:
        if not writer.exists():  # it was removed meanwhile
            return []
        raise


def _tail_of(path: Location, limit: int | None = None) -> Tail:
    """The end of a segment, of which only the first `limit` records count, if given."""
    layout = _layout_of(path)
    name = path.with_suffix(".npy")
    size, start = layout.dtype.itemsize, len(layout.header)
    in_memory = bool(layout.scalars) and size <= _MAX_COPIED_BYTES
    try:
        ends = name.ends(start, size if in_memory and limit is None else 0)
        rows = max(ends.size - start, 0) // size
        rows = rows if limit is None else min(rows, limit)
        record: Any = None
        if ends.last:
            record = _record(ends.last, layout.dtype)
        elif rows and layout.scalars:
            record = name.records(layout.dtype, start + (rows - 1) * size, 1)
    except FileNotFoundError:
        return Tail(path, layout, 0, None, 0.0)
    except (OSError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{name} cannot be read: {error}.") from error
    if rows and not same_header(ends.head, layout.header):
        raise StoreError(f"{name} is damaged: its header does not match its schema.")
    return Tail(path, layout, rows, record, ends.modified)


def _record(raw: bytes, dtype: np.dtype[Any]) -> Any:
    # the file may be cut while it is read
    return np.frombuffer(raw, dtype) if len(raw) == dtype.itemsize else None
