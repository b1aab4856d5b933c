"""Writing to a run: segments that only grow."""

import contextlib
import io
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import ShapeError, StoreError
from lox._logs.access import metadata_of
from lox._logs.logdict import OpenRow, logdict
from lox._serialized import Turns

from .format import (
    FINISHED,
    PLACE,
    RUN_FILE,
    VERSION,
    WRITER,
    npy_header,
    place_of,
    read_json,
    shown,
    write_json,
)
from .growing_file import GrowingFile, removed
from .records import Plan, records_of
from .schema import Schema

_MOST_PLANS = 1000


class _SegmentWriter:
    """Appends the records of one schema.

    Attributes:
        sound: false if something may be behind the records that is none of them, after
            which nothing can be appended.
    """

    def __init__(self, path: pathlib.Path, schema: Schema) -> None:
        self.path = path
        self.names = [key.name for key in schema.keys]
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
            self._places = GrowingFile(path.with_suffix(".places"))
            on_failure.callback(_discard, path, self._places)
            content = {"version": VERSION, "schema": schema.to_json()}
            write_json(path.with_suffix(".json"), content)
            self._file = GrowingFile(path.with_suffix(".npy"))
            on_failure.callback(_discard, path, self._file)
            self._file.append(self._header)
            on_failure.pop_all()

    @property
    def count(self) -> int:
        """How many records there are."""
        return self._end[0]

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
        self._append(self._bytes, length, number)

    def append_row(self, arrays: Sequence[Any], number: int) -> None:
        """The same for one row whose bytes, in this order, are its record."""
        try:
            record = b"".join(arrays)
        except TypeError:  # they are not contiguous
            record = b"".join([array.tobytes() for array in arrays])
        self._append(record, 1, number)

    def has_rows_like(self, arrays: Sequence[Any]) -> bool:
        """Whether the bytes of these arrays, in this order, are a record."""
        columns = [(column.dtype, column.shape) for column in self._columns]
        return (
            sys.byteorder == "little"
            and columns == [(x.dtype.name, x.shape) for x in arrays]
            and self._dtype.itemsize == sum(x.nbytes for x in arrays)
        )

    def _append(self, records: bytes | memoryview, count: int, number: int) -> None:
        rows_before, follows, placed = self._end
        end = rows_before + count, number + count, placed
        try:
            if number != follows:
                # before the records: a place without any says nothing
                end = *end[:2], placed + PLACE.itemsize
                self._places.append(place_of(rows_before, number))
            self._file.append(records)
            self._end = end
        except BaseException:
            self._recover(end)
            raise

    def _recover(self, wanted: tuple[int, int, int]) -> None:
        """What was not written whole must not be in the way of what comes after it."""
        self.sound = False
        with contextlib.suppress(OSError), self._opened() as (file, places):
            # a signal may also have come just after the last byte
            if os.fstat(file.fileno()).st_size == self._size(wanted[0]):
                self._end = wanted
            rows, _, placed = self._end
            for handle, end in ((file, self._size(rows)), (places, placed)):
                handle.truncate(end)
                handle.seek(end)
            self.sound = True

    def _size(self, rows: int) -> int:
        return len(self._header) + rows * self._dtype.itemsize

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[io.FileIO, io.FileIO]]:
        files = self._file, self._places
        try:
            yield self._file.acquire(), self._places.acquire()
        finally:
            for file in files:
                file.release()

    def check(self) -> None:
        """Raises `FileNotFoundError` if the records were removed."""
        with self._opened() as (handle, _):
            self._file.check_linked(handle)

    def sync(self) -> None:
        with self._opened() as handles:
            for handle in handles:
                os.fsync(handle.fileno())

    def discard(self) -> None:
        """Removes the files, whose directory has turned out to be lost."""
        for file in (self._file, self._places):
            _discard(self.path, file)

    def close(self) -> None:
        # so that `numpy.load` knows the length, too
        with contextlib.suppress(OSError), self._opened() as (file, _):
            file.seek(0)
            file.write(npy_header(self._dtype, self._end[0]))
        self._file.close()
        self._places.close()


def _discard(path: pathlib.Path, file: GrowingFile) -> None:
    """Removes what there is of a segment that could not be begun."""
    file.close()
    for name in (path.with_suffix(".json"), file.path):
        with contextlib.suppress(OSError):
            name.unlink()


class Writer:
    """Appends logs to a run, in a directory of its own, so that many may write.

    The directory has a number that no other writer of the run ever gets, so that one
    whose rows were replaced finds that they are gone and does not touch those of
    others. It is told once, by a `FileNotFoundError`; what it is given afterwards goes
    to a new directory.

    Args:
        run: the run's directory.
        replaces: whether the writer is to replace what is there, by `begin_run`.

    Attributes:
        number: that of the directory.
    """

    def __init__(self, run: pathlib.Path, replaces: bool = False) -> None:
        self._run = run.absolute()  # wherever the process may go
        self._replaces = replaces
        self._plans: dict[Any, Plan] = {}
        self._last_plan: Plan | None = None
        # the segments of the rows that programs hand over
        self._segments_of_rows: dict[OpenRow, _SegmentWriter] = {}
        self._turns = Turns()
        self._lock = self._turns.lock
        self._begin()

    def _begin(self) -> None:
        try:
            # by a number above 0, a run is known to have replaced another
            self.number, self._directory = _claim_directory(
                self._run, int(self._replaces)
            )
        except OSError as error:
            raise StoreError(
                f"cannot write to the run at {shown(self._run)}: {error}."
            ) from error
        _, self._started = _replacements(self._run)
        self._segments: dict[Schema, _SegmentWriter] = {}
        self._all_segments: list[_SegmentWriter] = []
        self._forms: dict[str, str] = {}
        self._begun = 0
        self._forget_plans()
        self._number = 0
        self._lost = False

    def begin_run(self, about: dict[str, Any]) -> None:
        """Writes the file about the run, of which this writer is the first.

        If it replaces another run, writers of lower numbers are no part of the run from
        that moment on. If not, `FileExistsError` says that somebody was quicker.
        """
        if self._replaces:
            about = {**about, "first_writer": self.number}
        write_json(self._run / RUN_FILE, about, new=not self._replaces)
        self._started = about["started"]

    def write(self, logs: logdict) -> None:
        """Writes all rows. When it returns, the system has them (see `sync`)."""
        self._turns.call(self._write, logs)

    def write_row(self, open_row: OpenRow, arrays: Sequence[Any]) -> None:
        """Writes one row that a program hands over.

        Args:
            open_row: makes logs of the row.
            arrays: its values, and then its steps.
        """
        self._turns.call(self._write_row, open_row, arrays)

    def _write_row(self, open_row: OpenRow, arrays: Sequence[Any]) -> None:
        segment = self._segments_of_rows.get(open_row)
        if segment is None or not segment.sound:
            segment = self._write(open_row(arrays))
            if segment is not None and segment.has_rows_like(arrays):
                if len(self._segments_of_rows) > _MOST_PLANS:
                    self._segments_of_rows.clear()
                self._segments_of_rows[open_row] = segment
            return
        try:
            segment.append_row(arrays, self._take(1))
        except FileNotFoundError:
            self._lose()
            raise

    def _write(self, logs: logdict) -> _SegmentWriter | None:
        """Writes logs, and gives the segment they are in, if it is a single one."""
        if self._lost:
            self._begin()
        try:
            return self._write_rows(logs)
        except FileNotFoundError:
            self._lose()
            raise

    def _lose(self) -> None:
        """What was written so far was removed."""
        self._lost = True
        self._close_segments()

    def _write_rows(self, logs: logdict) -> _SegmentWriter | None:
        plan = self._plan_for(logs)
        if plan is not None and plan.segment.sound:
            plain = plan.arrays(logs)
            if plain is not None:
                length = len(plain[0]) if plan.stacked else 1
                if length:
                    plan.segment.append_plain(plain, length, self._take(length))
                return plan.segment
        segments = []
        records = list(records_of(logs))
        for schema, _ in records:  # all of them, before one is written
            self._check(schema)
        for schema, arrays in records:
            segment = self._segment(schema)
            segment.append(arrays, self._take(len(arrays[0])))
            segments.append(segment)
        if len(segments) != 1:
            return None
        if Plan.supports(logs):
            if len(self._plans) > _MOST_PLANS:
                self._plans.clear()
            self._last_plan = Plan(logs, segments[0])
            self._plans[Plan.key_of(logs)] = self._last_plan
        return segments[0]

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._last_plan = None
        self._segments_of_rows.clear()

    def _plan_for(self, logs: logdict) -> Plan | None:
        # logs that come again and again share the description of their axes
        last, info = self._last_plan, metadata_of(logs).info
        if last is not None and last.info is info and last.has_names_of(logs):
            return last
        plan = self._plans.get(Plan.key_of(logs))
        if plan is not None:
            plan.info = info
            self._last_plan = plan
        return plan

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
            del self._segments[schema]
        for other in [*self._segments.values()][:1]:
            other.check()
        path = self._directory / f"{self._begun:04d}"
        self._begun += 1
        try:
            segment = _SegmentWriter(path, schema)
        except (FileExistsError, FileNotFoundError) as error:
            # somebody has removed the directory, and perhaps another made one there
            raise removed(self._directory) from error
        try:
            self._check_not_replaced()
        except BaseException:
            segment.discard()
            raise
        self._segments[schema] = segment
        self._all_segments.append(segment)
        return segment

    def _check_not_replaced(self) -> None:
        """Raises if rows here are no longer part of the run.

        It comes after the files are made. So either the new file about the run is seen
        here, or whoever wrote it sees the files, and removes them.
        """
        first, started = _replacements(self._run)
        # a run that replaces another says from which writer on; one that was made
        # after somebody had deleted the other one does not
        made_anew = not first and None not in (started, self._started)
        if first > self.number or (made_anew and started != self._started):
            raise removed(self._directory)

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
            for directory in (self._directory, *self._directory.parents[:3]):
                _sync_directory(directory)

    def finish(self) -> None:
        """Says how much was written, so that losses can be told; and waits for it.

        If the run was replaced since the last row, there is nothing to say.
        """
        with self._lock:
            try:
                for segment in self._segments.values():
                    segment.check()
            except FileNotFoundError:
                self._lose()
            if self._all_segments and not self._lost:
                segments = [
                    [int(segment.path.name), segment.count, segment.names]
                    for segment in self._all_segments
                ]
                content = {"version": VERSION, "segments": segments}
                # without it, all that was written is there
                with contextlib.suppress(OSError, StoreError):
                    write_json(self._directory.with_suffix(".json"), content)
            self.sync()

    def close(self) -> None:
        with self._lock:
            self._close_segments()
            if not self._begun:  # else it was not empty, and may be another's by now
                with contextlib.suppress(OSError):
                    self._directory.rmdir()

    def _close_segments(self) -> None:
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._forget_plans()


def _sync_directory(path: pathlib.Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):  # removed, or not ours
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _claim_directory(run: pathlib.Path, lowest: int) -> tuple[int, pathlib.Path]:
    """Makes a directory of a number that none has, nor had before a replacement."""
    while True:
        first, _ = _replacements(run)
        numbers = [
            int(match[1])
            for name in os.listdir(run)
            if (match := WRITER.fullmatch(name) or FINISHED.fullmatch(name))
        ]
        number = max([lowest - 1, first - 1, *numbers]) + 1
        path = run / f"writer-{number:04d}"
        try:
            path.mkdir()
        except FileExistsError:  # another writer was quicker
            continue
        # whoever replaces the run from now on removes the directory
        if _replacements(run)[0] <= number:
            return number, path
        with contextlib.suppress(OSError):
            path.rmdir()


def _replacements(run: pathlib.Path) -> tuple[int, Any]:
    """The first writer that is part of a run, and when the run was made, if known."""
    try:
        about = read_json(run / RUN_FILE)
    except (OSError, StoreError):
        return 0, None
    first = about.get("first_writer", 0)
    return (first if type(first) is int else 0), about.get("started")
