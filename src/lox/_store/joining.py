"""Joins the records of a key, from all its segments, into one `Key`."""

import copy
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from lox._arrays import namespace
from lox._errors import StoreError
from lox._logs.key import Key, KeyInfo, all_tags, combine
from lox._logs.lane_step import LANE, NO_LANE, PROCESS

from .format import build_tree, leaf_order
from .schema import Column, KeySchema
from .segments import Segment, WrittenSegments


class KeyPart:
    """The records of one key in one segment."""

    def __init__(self, writer: WrittenSegments, segment: Segment, name: str) -> None:
        self.writer = writer
        self.segment = segment
        self.key, self._first_leaf = segment.keys[name]

    def rows(self, masked: bool, typed_keys: bool = True) -> Key:
        """The records as rows, with time as the first axis and, if `masked`, a mask.

        Without `typed_keys`, PRNG keys are represented by their data, and JAX is not
        imported.
        """
        key, schema = self.key, self.segment.schema
        columns, lanes = key.columns, key.outer + key.lanes
        ndims = tuple(
            len(columns[i].shape) - lanes - (typed_keys and bool(columns[i].impl))
            for i in leaf_order(key.tree, len(columns))
        )
        leaves = [
            self._decode(column, self._first_leaf + i, typed_keys)
            for i, column in enumerate(columns)
        ]
        steps = {
            name: self._decode(column, self.segment.first_step + i)
            for i, (name, column) in enumerate(schema.steps)
        }
        mask = self._mask(columns[0].shape[:lanes]) if masked else None
        info = KeyInfo(True, lanes, ndims, key.tags)
        return Key(build_tree(key.tree, leaves), steps, mask, info)

    def with_key_data(self, indices: Collection[int]) -> "KeyPart":
        """The same records, with the data of typed PRNG keys in some columns."""
        part = copy.copy(self)
        part.key = self.key.with_key_data(indices)
        return part

    def _mask(self, lane_shape: tuple[int, ...]) -> Any:
        self.segment.check_not_sparse()
        schema = self.segment.schema
        if schema.mask is None:  # all rows happened in all lanes
            return np.ones((self.segment.count, *lane_shape), bool)
        position = self.segment.first_step + len(schema.steps)
        return self._decode(schema.mask, position).astype(bool)

    def has_step(self, name: str) -> bool:
        return any(name == step for step, _ in self.segment.schema.steps)

    def numbers(self) -> Any:
        """The number of the event of each record, in the writer's order."""
        return self.writer.numbers(self.segment)

    def _decode(self, column: Column, index: int, typed_keys: bool = True) -> Any:
        if not typed_keys:
            column = dataclasses.replace(column, impl=None)
        if column.impl is not None:  # copied to a JAX array, not memory-mapped
            self.segment.check_not_sparse()
        rows = self.segment.column(index)
        try:
            return column.decode(rows)
        except StoreError as error:
            raise StoreError(f"{self.segment} cannot be read: {error}.") from None


def join_parts(name: str, parts: list[KeyPart]) -> Key:
    """Joins one key from its segments, in the order in which it was written."""
    try:
        return _join(name, parts)
    except MemoryError:
        segments = ", ".join(str(part.segment) for part in parts[:3])
        raise StoreError(
            f"{name!r} does not fit into memory, which is needed to join its "
            f"{len(parts)} segments: {segments}. Load the other keys by their names."
        ) from None


def _join(name: str, parts: list[KeyPart]) -> Key:
    parts = _with_key_data(parts)
    first = parts[0]
    has_lanes = any(part.has_step(LANE) for part in parts)
    for other in parts[1:]:
        if _form(other) != _form(first):
            raise StoreError(
                f"{name!r} was written in two incompatible forms: with "
                f"{first.segment.schema.form(first.key)}{_where(first, other)}, and "
                f"with {other.segment.schema.form(other.key)}{_where(other, first)}. "
                f"{_remedy([first, other])}"
            )
    masked = any(part.segment.schema.mask is not None for part in parts)
    rows = [part.rows(masked) for part in parts]
    if has_lanes:
        rows = [with_step(key, LANE, NO_LANE) for key in rows]
    if any(part.writer.process for part in parts):
        rows = [
            with_step(key, PROCESS, part.writer.process)
            for key, part in zip(rows, parts, strict=True)
        ]
    count = sum(part.segment.count for part in parts)
    key = rows[0] if len(parts) == 1 else _in_order(name, parts, rows)
    restored = restore_axes(
        key, first.key, stacked=count > 1 or first.segment.schema.stacked
    )
    tags = all_tags(part.key.tags for part in parts)
    return restored._replace(info=restored.info._replace(tags=tags))


def _with_key_data(parts: list[KeyPart]) -> list[KeyPart]:
    """Reads typed PRNG keys as their data, in columns of which some parts are data.

    Programs deliver the data of a key, and eager calls the key itself.
    """
    columns = zip(*(part.key.columns for part in parts), strict=False)
    mixed = {i for i, column in enumerate(columns) if _mixes_key_data(column)}
    return [part.with_key_data(mixed) for part in parts] if mixed else parts


def _mixes_key_data(column: Collection[Column]) -> bool:
    """Whether one column is typed keys in some parts, and in others their data.

    Without their types, keys of several implementations could not be told apart.
    """
    impls = {of_part.impl for of_part in column}
    dtypes = {of_part.dtype for of_part in column}
    return None in impls and len(impls) == 2 and len(dtypes) == 1


def _where(part: KeyPart, other: KeyPart) -> str:
    process = part.writer.process
    by = "" if process == other.writer.process else f" by process {process}"
    return f"{by} in {part.segment}"


def _remedy(parts: Sequence[KeyPart]) -> str:
    processes = sorted({part.writer.process for part in parts})
    if len(processes) < 2:
        return "Load the other keys by their names."
    return (
        "Load the other keys by their names (`argnames`), or the rows of one process: "
        f"`process={processes[-1]}`."
    )


def restore_axes(rows: Key, schema: KeySchema, stacked: bool) -> Key:
    """Restores the axes of a key from its rows, whose first axis is time.

    Args:
        rows: the rows, as returned by `KeyPart.rows`.
        schema: the schema of the key.
        stacked: whether to keep the time axis; otherwise there is one row.
    """
    outer = schema.outer
    if outer:
        rows = rows.arrays(lambda x, axis: namespace(x).moveaxis(x, 0, outer))
    if not stacked:
        rows = rows.arrays(lambda x, axis: namespace(x).squeeze(x, outer))
    return rows._replace(info=rows.info._replace(stacked=stacked, lanes=schema.lanes))


def with_step(rows: Key, name: str, number: int) -> Key:
    """Adds a step with the same number to all rows that do not have it."""
    if name in rows.steps:
        return rows
    step = np.full(rows.row_shape(), number, np.int32)
    return rows._replace(steps={**rows.steps, name: step})


def _in_order(name: str, parts: list[KeyPart], rows: list[Key]) -> Key:
    """Joins the rows of several segments, in the order in which they were written."""
    for part in parts:
        part.segment.check_not_sparse()
    order = _order(parts)

    def join(arrays: list[Any], axis: int) -> Any:
        promoted = promote(name, arrays, parts)
        joined = namespace(arrays[0]).concatenate(promoted)
        return joined if order is None else joined[order]

    return combine(rows, join)


def _order(parts: list[KeyPart]) -> Any:
    """The order of the rows of several segments; None if it is that of the segments."""
    writers = [(part.writer.process, part.writer.number) for part in parts]
    if len(set(writers)) == len(parts):  # writers follow one after another
        return None
    numbers = np.concatenate([part.numbers() for part in parts])
    counts = [part.segment.count for part in parts]
    processes, writer_numbers = np.repeat(writers, counts, axis=0).T
    return np.lexsort([numbers, writer_numbers, processes])


def promote(
    name: str, arrays: Sequence[Any], parts: Sequence[KeyPart] = ()
) -> Sequence[Any]:
    """Converts arrays to one dtype, without changing any number.

    A Python number logged outside a JAX program has more bits than one logged inside.

    Args:
        name: the key, for messages.
        arrays: the arrays.
        parts: the part of the key that each array comes from, for messages.
    """
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    found = {str(array.dtype) for array in arrays}
    if len({part.writer.process for part in parts}) > 1:
        found = {
            f"{array.dtype} by process {part.writer.process}"
            for array, part in zip(arrays, parts, strict=True)
        }
    dtypes = ", ".join(sorted(found))
    try:
        common = np.result_type(*(array.dtype for array in arrays))
    except TypeError:  # NumPy cannot promote the dtypes of `ml_dtypes`
        common = np.dtype(np.float64)
    try:
        promoted = [array.astype(common) for array in arrays]
    except TypeError:
        promoted = []
    for old, new in zip(arrays, promoted, strict=False):
        with np.errstate(invalid="ignore"):  # a float that no integer can represent
            back = new.astype(old.dtype)
        # NaN is not equal to itself
        if not np.all((back == old) | ((back != back) & (old != old))):
            promoted = []
    if not promoted:
        raise StoreError(
            f"{name!r} was written as {dtypes}, but no dtype can hold all its values. "
            f"{_remedy(parts)}"
        )
    return promoted


def _form(part: KeyPart) -> Any:
    """What all parts of a key must have in common."""
    columns = [(c.shape, c.impl) for c in part.key.columns]
    # rows inside and outside a `vmap` are joined
    columns_of_steps = part.segment.schema.steps
    steps = sorted((name, c.shape) for name, c in columns_of_steps if name != LANE)
    return part.key.tree, columns, part.key.outer, part.key.lanes, steps
