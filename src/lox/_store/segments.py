"""Reads the segments of a writer, also while it is writing."""

import contextlib
import functools
import re
from typing import Any

import numpy as np

from lox._errors import StoreError

from .copied import Copied
from .format import (
    COPIED,
    SEGMENT,
    WRITER,
    is_empty,
    npy_header,
    numbered,
    read_places,
    reading,
)
from .layouts import layout_of
from .locations import Location
from .losses import Finished, lost_files, lost_records, placed_records, warn_of_loss
from .times import TIMES, EventTimes

# Columns with more bytes, or spread over more pages of their file, are memory-mapped:
# only the parts that are used are read from disk.
_MAX_COPIED_BYTES = 2**24
_MAX_PAGES = 2**20
_PAGE_SIZE = 4096
# A larger file that takes up less than a hundredth of its size on disk is damaged.
_MIN_SPARSE_BYTES, _SPARSE_RATIO = 2**28, 100


class Segment:
    """The records of one schema that a writer has written so far.

    Args:
        path: the JSON file of the segment.
        finished: the number of records, if its writer has finished; else 0.
        limit: the number of records that are part of the run; in a copy, files may
            already have more.

    Attributes:
        number: the number of the segment.
        path: the JSON file of the segment.
        records_path: the file of the records.
        places_path: the file of their places.
        has_records_file: whether the file of the records has its header.
        schema: the schema of the records.
        keys: the schema of each key, and the index of its first column.
        first_step: the index of the column of the first step; the mask is last.
        count: the number of records.
    """

    def __init__(self, path: Location, finished: int, limit: int | None = None) -> None:
        self.number = int(path.name.partition(".")[0])
        self.path = path
        self.records_path = path.with_suffix(".npy")
        self.places_path = path.with_suffix(".places")
        self._finished = finished
        self._limit = limit
        self._records: Any = None
        try:
            self._layout = layout = layout_of(path)
        except FileNotFoundError:
            raise StoreError(f"{path} was removed while it was being read.") from None
        self.schema = layout.schema
        self.keys = layout.keys
        self.first_step = layout.first_step
        self._dtype = layout.dtype
        self._header = layout.header
        placed = placed_records(self.places_path)
        count, self._closed = self._count_records()
        self.has_records_file = count is not None
        self.count = self._limited(count or 0)
        known = max(self._closed, finished, limit or 0)
        loss = lost_records(self.records_path, count, placed, known, layout.names)
        if loss:
            warn_of_loss(loss)

    def __str__(self) -> str:
        return str(self.path)

    def _limited(self, count: int) -> int:
        return count if self._limit is None else min(count, self._limit)

    @property
    def closed(self) -> int:
        """The number of records if the file was closed with them; else 0.

        A writer that has finished closes its files soon after.
        """
        return self.count if self.count in (self._closed, self._finished) else 0

    @property
    def header(self) -> bytes:
        """The header of a file of the first `count` records."""
        return npy_header(self._dtype, self.closed)

    @property
    def record_size(self) -> int:
        return self._dtype.itemsize

    def position(self, index: int) -> int:
        """The position of a record in the file of the records."""
        return len(self._header) + index * self._dtype.itemsize

    def _count_records(self) -> tuple[int | None, int]:
        """The number of records now, and when the file was closed.

        The first is None if there is no file, the second 0 if it was not closed.
        """
        header, size = b"", 0
        with reading(self.records_path), contextlib.suppress(FileNotFoundError):
            # the header first: the file may grow and be closed in between
            header, size = self.records_path.read_and_size(len(self._header))
        if len(header) < len(self._header):
            return None, 0
        count = self._layout.count_records(self.records_path, header, size)
        return count, _length_in(header)

    def fetch(self) -> None:
        """Fetches the records of a remote segment, once for all columns.

        Segments can be fetched in parallel.
        """
        if self._records is None:
            self._records = self._read_records()

    def _read_records(self, first: int = 0) -> Any:
        start = self.position(first)
        with reading(self.records_path):
            return self.records_path.records(self._dtype, start, self.count - first)

    def column(self, index: int, first: int = 0) -> Any:
        """One column of the records from `first` on; a memory map if it is large."""
        if self._records is not None:
            records = self._records[first:]
        else:  # not kept: a memory map is an open file
            records = self._read_records(first)
        rows = records[f"c{index}"].view(np.ndarray)
        pages = min(len(rows), len(rows) * self._dtype.itemsize // _PAGE_SIZE)
        if rows.nbytes <= _MAX_COPIED_BYTES and pages <= _MAX_PAGES:
            return rows.copy()
        return rows

    def check_not_sparse(self) -> None:
        """Raises if most of the file is a hole, which would still take up memory.

        lox itself writes no holes.
        """
        with reading(self.records_path):
            on_disk = self.records_path.bytes_on_disk()
            size = 0 if on_disk is None else self.records_path.size()
        if size > max(_MIN_SPARSE_BYTES, _SPARSE_RATIO * (on_disk or 0)):
            raise StoreError(
                f"{self.records_path} is damaged: its size is {size} bytes, of which "
                f"only {on_disk} are on disk. Its keys cannot be read into memory. "
                "Load the other keys by their names."
            )

    def next_number(self) -> int | None:
        """The number of the event of the first record written after `count`, if any."""
        count, (new_count, _) = self.count, self._count_records()
        if new_count is None or self._limited(new_count) <= count:
            return None
        self.count = self._limited(new_count)
        (number,) = self.numbers(count, count + 1)
        self.count = count
        return int(number)

    def numbers(self, start: int, stop: int) -> Any:
        """The numbers of the events of some records, in the writer's order."""
        rows, numbers, _ = self.places()
        at = np.arange(start, stop, dtype=np.uint64)
        series = np.searchsorted(rows, at, side="right") - 1
        return numbers[series] + at - rows[series]

    def last_number(self) -> int:
        """The number of the event of the last record."""
        return int(self.numbers(self.count - 1, self.count)[0])

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


def _length_in(header: bytes) -> int:
    """The number of records in the header of a `.npy` file; 0 until it is closed."""
    digits = header.rpartition(b"(")[2].partition(b",")[0].strip()
    return int(digits) if re.fullmatch(rb"\d{1,20}", digits) else 0


class WrittenSegments:
    """The segments that one writer has written so far.

    Attributes:
        number: the number of the writer.
        process: the index of its process.
        path: its directory.
        is_partial: whether it is a copy that is not complete.
        has_times: whether it has recorded when it wrote its rows.
    """

    def __init__(
        self, number: int, path: Location, finished: Finished, process: int = 0
    ) -> None:
        self.number = number
        self.process = process
        self.path = path
        names = names_in(path)
        self.has_times = TIMES in names
        # before the files, which may grow beyond it
        copied = Copied.read(path) if COPIED in names else None
        self.is_partial = copied is not None
        listed = [(n, path / name) for n, name in numbered(names, SEGMENT)]
        if copied is not None:
            listed = [(n, segment) for n, segment in listed if n in copied]
        found = [(n, segment) for n, segment in listed if not is_empty(segment)]
        for loss in lost_files(path, names, {n for n, _ in found}, finished, copied):
            warn_of_loss(loss)
        self.segments = [
            Segment(
                segment,
                finished.count(number),
                None if copied is None else copied[number].records,
            )
            for number, segment in found
        ]
        is_growing = copied is None and finished.content is None
        later = self._later_segments(names) if self.segments and is_growing else []
        if len(self.segments) > 1 or later:
            self._cut_to_prefix(later)

    def _later_segments(self, names: list[str]) -> list[Location]:
        """The segments that were created after the files had been listed."""
        known = {*names}
        now = numbered(names_in(self.path), SEGMENT)
        return [self.path / name for _, name in now if name not in known]

    def _cut_to_prefix(self, later: list[Location]) -> None:
        """Leaves out all events after the first one that was not read.

        Segments are read one after the other while they grow: the first segment may
        lack an event that comes before events already read from the last segment. Such
        an event may also be in a segment that was created in between.

        Args:
            later: segments that were not read.
        """
        unread = [segment.next_number() for segment in self.segments]
        for path in later:
            places = read_places(path.with_suffix(".places"), limit=1)
            unread += places["number"].tolist()
        first = min((number for number in unread if number is not None), default=None)
        for segment in self.segments if first is not None else ():
            if segment.count:
                _, numbers, lengths = segment.places()
                numbers, lengths = numbers.astype(np.int64), lengths.astype(np.int64)
                before = np.clip(first - numbers, 0, lengths)
                segment.count = int(before.sum())

    @functools.cached_property
    def _places(self) -> dict[Segment, Any]:
        """The places of each segment, which are checked against each other."""
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
        return dict(zip(segments, places, strict=True))

    def numbers(self, segment: Segment) -> Any:
        """The number of the event of each record of a segment."""
        rows, numbers, lengths = self._places[segment]
        starts = np.repeat(numbers - rows, lengths.astype(np.int64))
        return starts + np.arange(segment.count, dtype=np.uint64)

    @functools.cached_property
    def _times(self) -> EventTimes | None:
        return EventTimes.read(self.path / TIMES)

    def times(self, segment: Segment) -> Any:
        """When each record of a segment was written, in seconds since 1970.

        None if it is not known, as in runs of older versions.
        """
        if self._times is None:
            return None
        return self._times.of(self.numbers(segment))


def names_in(directory: Location) -> list[str]:
    """The names in a directory of a run."""
    # a link could lead anywhere
    if WRITER.fullmatch(directory.name) and directory.is_link():
        raise StoreError(f"{directory} is a symbolic link, so it is not read.")
    with reading(directory):
        return directory.names()
