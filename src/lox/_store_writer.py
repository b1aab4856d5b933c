"""Writing to a run: segments that only grow."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from ._key import Key, equal
from ._logdict import logdict
from ._schema import Column, KeySchema, Schema
from ._store import PLACE, VERSION, describe_tree, npy_header, write_json


class _SegmentWriter:
    """Appends the records of one schema."""

    def __init__(self, path: pathlib.Path, schema: Schema) -> None:
        self._schema = schema
        self._columns = schema.columns
        self._dtype = schema.dtype
        content = {"version": VERSION, "schema": schema.to_json()}
        write_json(path.with_suffix(".json"), content)
        # unbuffered: what a call has written is there, whatever happens to the process
        self._places = path.with_suffix(".places").open("ab", buffering=0)
        self._file = path.with_suffix(".npy").open("ab", buffering=0)
        self._header = npy_header(self._dtype, 0)
        self._file.write(self._header)
        self._rows = 0
        self._next = -1
        # the records of the last call, whose memory the next one uses again
        self._records = np.empty(0, self._dtype)
        self._fields: list[Any] = []
        self._bytes = memoryview(b"")

    def append(self, arrays: Sequence[Any], number: int) -> None:
        """Writes rows, which are one event after the other from `number` on."""
        pairs = zip(self._columns, arrays, strict=True)
        self.append_plain(
            [column.encode(rows) for column, rows in pairs], len(arrays[0]), number
        )

    def append_plain(self, arrays: Sequence[Any], length: int, number: int) -> None:
        """The same for arrays that can be written as they are."""
        if len(self._records) != length:
            self._records = np.empty(length, self._dtype)
            names = self._dtype.names or ()
            self._fields = [self._records[name] for name in names]
            self._bytes = self._records.view(np.uint8).data
        for field, rows in zip(self._fields, arrays, strict=True):
            field[...] = rows
        if number != self._next:
            # before the records: a place without any says nothing
            _write_all(self._places, np.array([(self._rows, number)], PLACE).data)
        try:
            _write_all(self._file, self._bytes)
        except BaseException:
            # what was cut off must not be in the way of what comes after it
            end = len(self._header) + self._rows * self._dtype.itemsize
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise FileNotFoundError(
                f"{self._file.name} was removed while it was written"
            )
        self._rows += length
        self._next = number + length

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        os.fsync(self._places.fileno())

    def close(self) -> None:
        # so that `numpy.load` knows the length, too
        with contextlib.suppress(OSError), open(self._file.name, "r+b") as file:
            file.write(npy_header(self._dtype, self._rows))
        self._file.close()
        self._places.close()


def _write_all(file: Any, data: Any) -> None:
    written = file.write(data)
    if written != data.nbytes:
        view = memoryview(data).cast("B")[written:]
        while view:
            view = view[file.write(view) :]


class Writer:
    """Appends logs to a run, in a directory of its own, so that many may write."""

    def __init__(self, run: pathlib.Path) -> None:
        self._directory = _new_directory(run, "writer")
        self._segments: dict[Schema, _SegmentWriter] = {}
        self._plans: dict[int, _Plan] = {}
        self._number = 0
        self._lock = threading.Lock()

    def write(self, logs: logdict) -> None:
        """Writes all rows. When it returns, the system has them (see `sync`)."""
        with self._lock:
            plan = self._plans.get(id(logs._info))
            if plan is not None and plan.fits(logs):
                arrays, length = plan.arrays(logs)
                plan.segment.append_plain(arrays, length, self._number)
                self._number += length
                return
            segments = []
            for schema, arrays in _records(logs):
                segment = self._segments.get(schema)
                if segment is None:
                    path = self._directory / f"{len(self._segments):04d}"
                    segment = self._segments[schema] = _SegmentWriter(path, schema)
                segment.append(arrays, self._number)
                self._number += len(arrays[0])
                segments.append(segment)
            if len(segments) == 1 and _Plan.serves(logs):
                if len(self._plans) > _MOST_PLANS:
                    self._plans.clear()
                self._plans[id(logs._info)] = _Plan(logs, segments[0])

    def sync(self) -> None:
        """Makes sure that what was written survives a crash of the whole machine."""
        with self._lock:
            for segment in self._segments.values():
                segment.sync()

    def close(self) -> None:
        with self._lock:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()


_MOST_PLANS = 1000


class _Plan:
    """How logs like these were written, so that the next need no second thought.

    Logs that come again and again share the description of their axes, and so are told
    by its identity.
    """

    def __init__(self, logs: logdict, segment: _SegmentWriter) -> None:
        self.segment = segment
        self._info = logs._info
        self._names = tuple(logs)
        self._steps = tuple(logs._steps)
        self._stacked = logs._key(self._names[0]).info.stacked
        self._form = self._form_of(self._arrays(logs))

    @staticmethod
    def serves(logs: logdict) -> bool:
        return (
            not logs._mask
            and len(logs) == len(logs._info)
            and all(
                type(value) is np.ndarray
                and value.dtype.kind in "biufc"
                and value.dtype.isnative
                and not hasattr(ml_dtypes, value.dtype.name)
                for value in logs.values()
            )
            and not any(logs._key(name).outer_lanes() for name in logs)
            and all(name in of for of in logs._steps.values() for name in logs)
        )

    def fits(self, logs: logdict) -> bool:
        if logs._info is not self._info or logs._mask:
            return False
        for of in logs._steps.values():
            first = of.get(self._names[0])
            if first is None or any(of.get(name) is not first for name in self._names):
                return False
        if tuple(logs._steps) != self._steps:
            return False
        arrays = self._arrays(logs)
        if self._stacked and len({len(x) for x in arrays}) > 1:
            return False
        return self._form_of(arrays) == self._form

    def _arrays(self, logs: logdict) -> list[Any]:
        first = self._names[0]
        return [*logs.values(), *[of[first] for of in logs._steps.values()]]

    def _form_of(self, arrays: list[Any]) -> Any:
        start = int(self._stacked)
        return [(type(x), x.dtype, x.shape[start:]) for x in arrays]

    def arrays(self, logs: logdict) -> tuple[list[Any], int]:
        arrays = self._arrays(logs)
        return arrays, len(arrays[0]) if self._stacked else 1


def _new_directory(parent: pathlib.Path, name: str) -> pathlib.Path:
    number = 0
    while True:
        path = parent / f"{name}-{number:04d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def _records(logs: logdict) -> Iterable[tuple[Schema, list[Any]]]:
    """The rows of logs, for each group of keys that can share a record."""
    compact = logs.compact()
    for names in _groups(compact):
        stacked = compact._key(names[0]).info.stacked
        keys = [compact._key(name).stacked() for name in names]
        outer = [key.outer_lanes() for key in keys]
        keys = [key.arrays(_time_first) for key in keys]
        leaves = [jax.tree.leaves(key.value) for key in keys]
        steps, mask = keys[0].steps, keys[0].mask
        schema = Schema(
            keys=tuple(
                KeySchema(
                    name,
                    describe_tree(key.value),
                    tuple(map(Column.of, arrays)),
                    count,
                    key.info.lanes,
                )
                for name, key, arrays, count in zip(
                    names, keys, leaves, outer, strict=True
                )
            ),
            steps=tuple((name, Column.of(step)) for name, step in steps.items()),
            stacked=stacked,
            mask=None if mask is None else Column.of(mask),
        )
        arrays = [leaf for key_leaves in leaves for leaf in key_leaves]
        yield schema, [*arrays, *steps.values(), *([] if mask is None else [mask])]


def _time_first(x: Any, axis: int) -> Any:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return jax.numpy.moveaxis(x, axis, 0)
    return np.moveaxis(np.asarray(x), axis, 0)


def _groups(logs: logdict) -> list[list[str]]:
    groups: list[tuple[Key, list[str]]] = []
    for name in logs:
        key = logs._key(name)
        for first, names in groups:
            if _together(first, key):
                names.append(name)
                break
        else:
            groups.append((key, [name]))
    return [names for _, names in groups]


def _together(first: Key, other: Key) -> bool:
    return (
        first.info.stacked == other.info.stacked
        and first.info.lanes == other.info.lanes
        and first.outer_lanes() == other.outer_lanes()
        and first.length() == other.length()
        and equal(first.steps, other.steps)
        and (first.mask is other.mask or equal(first.mask, other.mask))
    )
