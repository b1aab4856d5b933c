"""Writing to a run: segments that only grow."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._errors import ShapeError, StoreError
from ._logdict import logdict
from ._records import Plan, records_of
from ._schema import Schema
from ._store import PLACE, VERSION, npy_header, place_of, write_json

_MOST_PLANS = 1000


class _SegmentWriter:
    """Appends the records of one schema.

    Attributes:
        sound: false if something may be behind the records that is none of them, after
            which nothing can be appended.
    """

    def __init__(self, path: pathlib.Path, schema: Schema) -> None:
        self._columns = schema.columns
        self._dtype = schema.dtype
        self._header = npy_header(self._dtype, 0)
        self.sound = True
        # How many records there are, the number of the event that would need no place
        # of its own, and the size of the places; in one tuple, which no signal divides.
        self._end = 0, -1, 0
        # the records of the last call, whose memory the next one uses again
        self._records = np.empty(0, self._dtype)
        self._fields: list[Any] = []
        self._bytes = memoryview(b"")
        with contextlib.ExitStack() as on_failure:
            # unbuffered: what a call has written is there, whatever happens to the
            # process; and never a file that is there, which would be somebody else's
            self._places = path.with_suffix(".places").open("xb", buffering=0)
            on_failure.callback(_discard, path, self._places)
            content = {"version": VERSION, "schema": schema.to_json()}
            write_json(path.with_suffix(".json"), content)
            self._file = path.with_suffix(".npy").open("xb", buffering=0)
            on_failure.callback(_discard, path, self._file)
            _write_all(self._file, self._header)
            on_failure.pop_all()

    def append(self, arrays: Sequence[Any], number: int) -> None:
        """Writes rows, which are one event after the other from `number` on."""
        pairs = zip(self._columns, arrays, strict=True)
        self.append_plain(
            [column.encode(rows) for column, rows in pairs], len(arrays[0]), number
        )

    def append_plain(self, arrays: Sequence[Any], length: int, number: int) -> None:
        """The same for arrays that can be written as they are."""
        if len(self._records) != length:
            self._records = np.zeros(length, self._dtype)
            columns = range(len(self._columns))
            self._fields = [self._records[f"c{i}"] for i in columns]
            self._bytes = self._records.view(np.uint8).data
        for field, rows in zip(self._fields, arrays, strict=True):
            field[...] = rows
        rows_before, follows, placed = self._end
        end = rows_before + length, number + length, placed
        try:
            if number != follows:
                # before the records: a place without any says nothing
                end = *end[:2], placed + PLACE.itemsize
                _write_all(self._places, place_of(rows_before, number))
            _write_all(self._file, self._bytes)
            if os.fstat(self._file.fileno()).st_nlink == 0:
                raise FileNotFoundError(
                    f"{self._file.name} was removed while it was written"
                )
            self._end = end
        except BaseException:
            self._recover(end)
            raise

    def _recover(self, wanted: tuple[int, int, int]) -> None:
        """What was not written whole must not be in the way of what comes after it."""
        self.sound = False
        with contextlib.suppress(OSError):
            # a signal may also have come just after the last byte
            if os.fstat(self._file.fileno()).st_size == self._size(wanted[0]):
                self._end = wanted
            rows, _, placed = self._end
            for file, end in ((self._file, self._size(rows)), (self._places, placed)):
                file.truncate(end)
                file.seek(end)
            self.sound = True

    def _size(self, rows: int) -> int:
        return len(self._header) + rows * self._dtype.itemsize

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        os.fsync(self._places.fileno())

    def close(self) -> None:
        # so that `numpy.load` knows the length, too
        with contextlib.suppress(OSError):
            self._file.seek(0)
            self._file.write(npy_header(self._dtype, self._end[0]))
        self._file.close()
        self._places.close()


def _discard(path: pathlib.Path, file: Any) -> None:
    """Removes what there is of a segment that could not be begun."""
    file.close()
    for name in (path.with_suffix(".json"), pathlib.Path(file.name)):
        with contextlib.suppress(OSError):
            name.unlink()


def _write_all(file: Any, data: Any) -> None:
    written = file.write(data)
    if written != len(data):  # of bytes
        view = memoryview(data)[written:]
        while view:
            view = view[file.write(view) :]


class Writer:
    """Appends logs to a run, in a directory of its own, so that many may write."""

    def __init__(self, run: pathlib.Path) -> None:
        try:
            self._directory = _new_directory(run, "writer")
        except OSError as error:
            raise StoreError(f"cannot write to the run at {run}: {error}.") from error
        self._segments: dict[Schema, _SegmentWriter] = {}
        self._forms: dict[str, str] = {}
        self._begun = 0
        self._plans: dict[int, Plan] = {}
        self._number = 0
        self._lock = threading.Lock()

    def write(self, logs: logdict) -> None:
        """Writes all rows. When it returns, the system has them (see `sync`)."""
        with self._lock:
            plan = self._plans.get(id(logs._info))
            if plan is not None and plan.segment.sound:
                plain = plan.arrays(logs)
                if plain is not None:
                    length = len(plain[0]) if plan.stacked else 1
                    if length:
                        plan.segment.append_plain(plain, length, self._take(length))
                    return
            segments = []
            records = list(records_of(logs))
            for schema, _ in records:  # all of them, before one is written
                self._check(schema)
            for schema, arrays in records:
                segment = self._segment(schema)
                segment.append(arrays, self._take(len(arrays[0])))
                segments.append(segment)
            if len(segments) == 1 and Plan.serves(logs):
                if len(self._plans) > _MOST_PLANS:
                    self._plans.clear()
                self._plans[id(logs._info)] = Plan(logs, segments[0])

    def _take(self, count: int) -> int:
        """The number of the next event; taken even if it cannot be written then."""
        number = self._number
        self._number += count
        return number

    def _segment(self, schema: Schema) -> _SegmentWriter:
        found = self._segments.get(schema)
        if found is not None and found.sound:
            return found
        if found is not None:
            found.close()
        while True:
            path = self._directory / f"{self._begun:04d}"
            self._begun += 1
            # there already if another process has put its run where ours was
            with contextlib.suppress(FileExistsError):
                segment = self._segments[schema] = _SegmentWriter(path, schema)
                return segment

    def _check(self, schema: Schema) -> None:
        """Refuses rows that could not be loaded together with those before."""
        if schema in self._segments:
            return
        forms = {key.name: schema.form(key) for key in schema.keys}
        for name, form in forms.items():
            before = self._forms.get(name, form)
            if form != before:
                raise ShapeError(
                    f"{name!r} was saved with {before}, and is now to be saved with "
                    f"{form}. Give it the same in every row, or another name."
                )
        self._forms |= forms

    def sync(self) -> None:
        """Makes sure that what was written survives a crash of the whole machine."""
        with self._lock:
            for segment in self._segments.values():
                segment.sync()
            # the names, too: of the segments, the writer, the run and the store
            for directory in (self._directory, *self._directory.absolute().parents[:3]):
                _sync_directory(directory)

    def close(self) -> None:
        with self._lock:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()
            self._plans.clear()
            with contextlib.suppress(OSError):  # there is something in it
                self._directory.rmdir()


def _sync_directory(path: pathlib.Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):  # removed, or not ours
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_directory(parent: pathlib.Path, name: str) -> pathlib.Path:
    number = 0
    while True:
        path = parent / f"{name}-{number:04d}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
