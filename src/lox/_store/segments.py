"""Reads the segments of a writer, also while it is writing."""

import functools
import itertools
import os
import pathlib
import re
from typing import Any

import numpy as np

from lox._errors import StoreError

from .format import (
    SEGMENT,
    WRITER,
    file_size,
    is_empty,
    npy_header,
    read_json,
    read_places,
)
from .losses import Finished, PlacedRecords, lost_files, lost_records, warn_of_loss
from .schema import KeySchema, Schema

# Columns with more bytes, or spread over more pages of their file, are memory-mapped:
# only the parts that are used are read from disk.
_MAX_COPIED_BYTES = 2**24
_MAX_PAGES = 2**20
_PAGE_SIZE = 4096
# A larger file that takes up less than a hundredth of its size on disk is damaged.
_MIN_SPARSE_BYTES, _SPARSE_RATIO = 2**28, 100


class Segment:
    """The records of one schema that a writer has written so far.

    Attributes:
        schema: the schema of the records.
        count: the number of records.
    """

    def __init__(self, path: pathlib.Path, finished: int) -> None:
        self._path = path
        self._file = path.with_suffix(".npy")
        self.places_path = path.with_suffix(".places")
        try:
            content = read_json(path)
        except FileNotFoundError:
            raise StoreError(f"{path} was removed while it was being read.") from None
        try:
            self.schema = Schema.from_json(content["schema"])
            self._dtype = self.schema.dtype
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = error if isinstance(error, StoreError) else repr(error)
            raise StoreError(f"{path} does not describe records: {reason}.") from None
        self._header = npy_header(self._dtype, 0)
        placed = PlacedRecords.read(self.places_path)
        count, closed = self._count_records()
        self.count = count or 0
        names = [key.name for key in self.schema.keys]
        known = max(closed, finished)
        loss = lost_records(self._file, count, placed, known, names)
        if loss:
            warn_of_loss(loss)

    def __str__(self) -> str:
        return str(self._path)

    @functools.cached_property
    def keys(self) -> dict[str, tuple[KeySchema, int]]:
        """The schema of each key, and the index of its first column."""
        keys = self.schema.keys
        ends = itertools.accumulate(len(key.columns) for key in keys)
        return {
            key.name: (key, end - len(key.columns))
            for key, end in zip(keys, ends, strict=True)
        }

    def _count_records(self) -> tuple[int | None, int]:
        """The number of records now, and when the file was closed.

        The first is None if there is no file, the second 0 if it was not closed.
        """
        try:
            file_size(self._file)  # raises if it is not a regular file
            with open(self._file, "rb") as file:
                header = file.read(len(self._header))
                # after the header: the file may be growing, and be closed meanwhile
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None, 0
        except OSError as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        if len(header) < len(self._header):
            return None, 0
        count = max(size - len(self._header), 0) // self._dtype.itemsize
        if count and not same_header(header, self._header):
            raise StoreError(
                f"{self._file} is damaged: its header does not match its schema."
            )
        return count, _length_in(header)

    def column(self, index: int) -> Any:
        """One column of all records; a memory map if it is large."""
        start, shape = len(self._header), (self.count,)
        try:
            records = np.memmap(self._file, self._dtype, "r", start, shape)
            rows = records[f"c{index}"].view(np.ndarray)
        except (OSError, OverflowError, ValueError) as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        pages = min(self.count, self.count * self._dtype.itemsize // _PAGE_SIZE)
        if rows.nbytes <= _MAX_COPIED_BYTES and pages <= _MAX_PAGES:
            return rows.copy()
        return rows

    def check_not_sparse(self) -> None:
        """Raises if most of the file is a hole, which would still take up memory.

        lox itself writes no holes.
        """
        try:
            status = self._file.lstat()
        except OSError as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        if not hasattr(status, "st_blocks"):  # on Windows
            return
        on_disk = status.st_blocks * 512
        if status.st_size > max(_MIN_SPARSE_BYTES, _SPARSE_RATIO * on_disk):
            raise StoreError(
                f"{self._file} is damaged: its size is {status.st_size} bytes, of "
                f"which only {on_disk} are on disk. Its keys cannot be read into "
                "memory. Load the other keys by their names."
            )

    def next_number(self) -> int | None:
        """The number of the event of the first record written after `count`, if any."""
        count, (new_count, _) = self.count, self._count_records()
        if new_count is None or new_count <= count:
            return None
        self.count = new_count
        rows, numbers, _ = self.places()
        self.count = count
        last = int(np.searchsorted(rows, count, side="right")) - 1
        return int(numbers[last]) + count - int(rows[last])

    def places(self) -> Any:
        """The places of the records in the writer's order.

        Returns:
            For each series of consecutive events, the index of its first record, the
            number of its first event, and its length.
        """
        self.check_not_sparse()
        # at most one entry per record, and one whose record was not written
        places = read_places(self.places_path, limit=self.count + 1)
        rows, numbers = places["row"], places["number"]
        if not len(rows) or rows[0] != 0:
            raise StoreError(
                f"{self.places_path} is damaged: the order of the records is unknown. "
                "Load the keys that are in one segment by their names."
            )
        written = rows < self.count
        lengths = np.diff(np.append(rows[written], np.uint64(self.count)))
        return rows[written], numbers[written], lengths


def same_header(first: bytes, second: bytes) -> bool:
    """Whether two headers of `.npy` files differ in nothing but their lengths."""
    return _without_length(first) == _without_length(second)


def _without_length(header: bytes) -> tuple[bytes, bytes]:
    """The parts of the header of a `.npy` file before and after its length."""
    before, _, after = header.rpartition(b"(")
    return before, after[after.find(b",") :]


def _length_in(header: bytes) -> int:
    """The number of records in the header of a `.npy` file; 0 until it is closed."""
    digits = header.rpartition(b"(")[2].partition(b",")[0].strip()
    return int(digits) if re.fullmatch(rb"\d{1,20}", digits) else 0


class WrittenSegments:
    """The segments that one writer has written so far.

    Attributes:
        number: the number of the writer.
        process: the index of its process.
    """

    def __init__(
        self, number: int, path: pathlib.Path, finished: Finished, process: int = 0
    ) -> None:
        self.number = number
        self.process = process
        listed = numbered_paths(path, SEGMENT)
        found = [(n, segment) for n, segment in listed if not is_empty(segment)]
        for loss in lost_files(path, {n for n, _ in found}, finished):
            warn_of_loss(loss)
        self.segments = [
            Segment(segment, finished.count(number)) for number, segment in found
        ]
        if len(self.segments) > 1:
            self._cut_to_prefix()

    def _cut_to_prefix(self) -> None:
        """Leaves out all events after the first one that was not read.

        Segments are read one after the other while they grow: the first segment may
        lack an event that comes before events already read from the last segment.
        """
        unread = [segment.next_number() for segment in self.segments]
        first = min((number for number in unread if number is not None), default=None)
        for segment in self.segments if first is not None else ():
            if segment.count:
                _, numbers, lengths = segment.places()
                numbers, lengths = numbers.astype(np.int64), lengths.astype(np.int64)
                before = np.clip(first - numbers, 0, lengths)
                segment.count = int(before.sum())

    @functools.cached_property
    def numbers(self) -> dict[Segment, Any]:
        """The number of the event of each record."""
        segments = [segment for segment in self.segments if segment.count]
        places = [segment.places() for segment in segments]
        # if a `.places` file was truncated, its last series appears too long
        owners = np.repeat(np.arange(len(places)), [len(rows) for rows, _, _ in places])
        starts = np.concatenate([numbers for _, numbers, _ in places])
        lengths = np.concatenate([length for _, _, length in places])
        order = np.argsort(starts, kind="stable")
        ends = (starts + lengths)[order]
        for i in np.nonzero(ends[:-1] > starts[order][1:])[0][:1]:
            first, second = (segments[owners[order[j]]].places_path for j in (i, i + 1))
            raise StoreError(
                f"{first} and {second} assign the same number to two events: one of "
                "them is damaged, or two writers shared the directory, which older "
                "versions of lox allowed. Load the keys that are in one segment by "
                "their names."
            )
        return {
            segment: np.repeat(numbers - rows, length.astype(np.int64))
            + np.arange(segment.count, dtype=np.uint64)
            for segment, (rows, numbers, length) in zip(segments, places, strict=True)
        }


def numbered_paths(
    directory: pathlib.Path, pattern: re.Pattern[str]
) -> list[tuple[int, pathlib.Path]]:
    """The paths in a directory that match a pattern, in the order of their numbers."""
    # a link could lead anywhere
    if directory.is_symlink() and WRITER.fullmatch(directory.name):
        raise StoreError(f"{directory} is a symbolic link, and is not read.")
    try:
        paths = list(directory.iterdir())
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error}.") from error
    found = [(pattern.fullmatch(path.name), path) for path in paths]
    return sorted((int(match[1]), path) for match, path in found if match)
