"""Appends records of one schema to the files of a segment."""

import contextlib
import io
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .format import PLACE, VERSION, encode_place, npy_header, write_json
from .growing_file import GrowingFile
from .schema import Schema


class SegmentWriter:
    """Appends the records of one schema.

    Attributes:
        path: the path of the segment's files, without their suffixes.
        names: the keys of the segment.
        intact: False if an incomplete record may follow the records, so that nothing
            can be appended.
    """

    def __init__(self, path: pathlib.Path, schema: Schema) -> None:
        self.path = path
        self.names = [key.name for key in schema.keys]
        self._columns = schema.columns
        self._dtype = schema.dtype
        self._header = npy_header(self._dtype, 0)
        self.intact = True
        # The number of records, the number of the event that would need no new place,
        # and the size of the places. One tuple, so that signal handlers see a
        # consistent state.
        self._end = 0, -1, 0
        # the records of the last call, whose memory is reused
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
    def files(self) -> list[pathlib.Path]:
        return [self.path.with_suffix(x) for x in (".json", ".npy", ".places")]

    @property
    def count(self) -> int:
        """The number of records."""
        return self._end[0]

    def append(self, arrays: Sequence[Any], number: int) -> None:
        """Writes rows of consecutive events, the first of which has this `number`."""
        pairs = zip(self._columns, arrays, strict=True)
        self.append_encoded(
            [column.encode(rows) for column, rows in pairs], len(arrays[0]), number
        )

    def append_encoded(self, arrays: Sequence[Any], length: int, number: int) -> None:
        """`append` for arrays that can be written unchanged."""
        if len(self._records) != length:
            self._records = np.zeros(length, self._dtype)
            columns = range(len(self._columns))
            self._fields = [self._records[f"c{i}"] for i in columns]
            self._bytes = self._records.view(np.uint8).data
        for field, rows in zip(self._fields, arrays, strict=True):
            field[...] = rows
        self._append(self._bytes, length, number)

    def append_row(self, arrays: Sequence[Any], number: int) -> None:
        """`append` for one row of arrays whose concatenated bytes are its record."""
        try:
            record = b"".join(arrays)
        except TypeError:  # not contiguous
            record = b"".join([array.tobytes() for array in arrays])
        self._append(record, 1, number)

    def can_append_row(self, arrays: Sequence[Any]) -> bool:
        """Whether the concatenated bytes of the arrays are a record."""
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
                # first: a place without records is ignored
                end = *end[:2], placed + PLACE.itemsize
                self._places.append(encode_place(rows_before, number))
            self._file.append(records)
            self._end = end
        except BaseException:
            self._recover(end)
            raise

    def _recover(self, wanted: tuple[int, int, int]) -> None:
        """Removes incomplete records, so that others can be appended.

        Args:
            wanted: the `_end` after a successful write.
        """
        self.intact = False
        with contextlib.suppress(OSError), self._opened() as (file, places):
            # a signal may also arrive just after the last byte
            if os.fstat(file.fileno()).st_size == self._size(wanted[0]):
                self._end = wanted
            rows, _, placed = self._end
            for handle, end in ((file, self._size(rows)), (places, placed)):
                handle.truncate(end)
                handle.seek(end)
            self.intact = True

    def _size(self, rows: int) -> int:
        return len(self._header) + rows * self._dtype.itemsize

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[io.FileIO, io.FileIO]]:
        files = self._file, self._places
        try:
            yield self._file.acquire(), self._places.acquire()
        finally:
            for file in files:
                file.in_use = False

    def check(self) -> None:
        """Raises `FileNotFoundError` if the records were removed."""
        with self._opened() as (handle, _):
            self._file.check_linked(handle)

    def discard(self) -> None:
        """Removes the files, which are not part of the run."""
        for file in (self._file, self._places):
            _discard(self.path, file)

    def close(self) -> None:
        # for `numpy.load`, and to detect lost records
        with contextlib.suppress(OSError), self._opened() as (file, _):
            file.seek(0)
            file.write(npy_header(self._dtype, self._end[0]))
        self._file.close()
        self._places.close()


def _discard(path: pathlib.Path, file: GrowingFile) -> None:
    """Removes the files of a segment that could not be created."""
    file.close()
    for name in (path.with_suffix(".json"), file.path):
        with contextlib.suppress(OSError):
            name.unlink()
