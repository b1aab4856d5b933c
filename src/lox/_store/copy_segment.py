"""Copies a segment: the records and places that a copy does not have yet."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lox._errors import StoreError

from .copied import CopiedSegment
from .format import PLACE, read_json_bytes, read_places
from .locations import Entry, Location
from .segments import Segment

_CHUNK_BYTES = 2**22
# The end of what was copied before is compared with the source. It differs if the copy
# is of another run, or if the source has withdrawn rows after a failed write.
_COMPARED_BYTES = 2**12


@dataclasses.dataclass
class Sent:
    """What was sent: the number of files that were written, and of bytes in them."""

    files: int = 0
    byte_count: int = 0

    def replace(self, target: Location, content: bytes) -> None:
        """Writes a small file."""
        target.replace(content)
        self.add(len(content))

    def add(self, size: int) -> None:
        self.files += 1
        self.byte_count += size


class DifferentRowsError(Exception):
    """The copy has records that the source does not have."""


class FileCopy(NamedTuple):
    """A file and its copy.

    Attributes:
        source: the file.
        target: its copy.
        size: the size of the copy in bytes; -1 if it does not exist.
    """

    source: Location
    target: Location
    size: int

    @classmethod
    def find(
        cls, source: Location, directory: Location, entries: Mapping[str, Entry]
    ) -> "FileCopy":
        """The copy of a file in a directory with these entries."""
        size = entries[source.name].size if source.name in entries else -1
        return cls(source, directory / source.name, size)

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        for position in range(start, end, _CHUNK_BYTES):
            count = min(_CHUNK_BYTES, end - position)
            chunk = self.source.read(position, count)
            if len(chunk) != count:
                raise StoreError(
                    f"{self.source} was truncated while it was being copied."
                )
            yield chunk

    def compare(self, begin: int, end: int) -> None:
        """Raises an error if the last bytes up to `end` are not those of the source."""
        count = min(end - begin, _COMPARED_BYTES)
        if count > 0 and (
            self.size < end
            or self.target.read(end - count, count)
            != self.source.read(end - count, count)
        ):
            raise DifferentRowsError

    def cut(self, size: int) -> None:
        if self.size > size and self.target.can_patch:
            self.target.truncate(size)


class SegmentCopy:
    """A copy of a segment.

    Args:
        source: the segment.
        directory: the directory of the copy.
        entries: the entries of the directory.

    Attributes:
        files: the files of the segment: schema, records and places.
    """

    def __init__(
        self, source: Segment, directory: Location, entries: Mapping[str, Entry]
    ) -> None:
        self.source = source
        paths = source.path, source.records_path, source.places_path
        self.files = [FileCopy.find(path, directory, entries) for path in paths]
        self._schema, self._records, self._places = self.files

    def update(self, before: CopiedSegment | None, sent: Sent) -> CopiedSegment:
        """Copies what is new; returns what has been copied now.

        Args:
            before: what has been copied already; None if nothing.
            sent: counts what is sent.
        """
        source, schema = self.source, self._schema
        if before is None or schema.size != source.path.size():
            sent.replace(schema.target, read_json_bytes(source.path))
        if not source.has_records_file:
            if self._places.size < 0 and source.places_path.exists():
                # as in the source: without it, the records would count as lost
                self._places.target.write([], 0)
            return CopiedSegment()
        source.check_not_sparse()
        before = before or CopiedSegment()
        self._copy_records(before, sent)
        places = self._copy_places(before, sent)
        return CopiedSegment(source.count, places, source.closed)

    def find(self) -> CopiedSegment | None:
        """What another program has copied, if nothing lists it; None if nothing."""
        if self._schema.size < 0:
            if self._records.size >= 0 or self._places.size >= 0:
                raise DifferentRowsError
            return None
        if read_json_bytes(self._schema.target) != read_json_bytes(self._schema.source):
            raise DifferentRowsError
        size = self._records.size - self.source.position(0)
        records = max(size, 0) // self.source.record_size
        places = max(self._places.size, 0) // PLACE.itemsize
        # treated as if its header were out of date, so that it is sent
        found = CopiedSegment(records, places, closed=0)
        self._compare(found)
        return found

    def is_complete(self) -> bool:
        """Whether the sizes of its files are those of a finished segment."""
        source, places = self.source, self._places.size
        if self._schema.size != source.path.size():
            return False
        return not source.has_records_file or (
            places >= 0
            and self._records.size == source.position(source.count)
            and places == self._count_places(places // PLACE.itemsize) * PLACE.itemsize
        )

    def cut(self, counts: CopiedSegment) -> None:
        """Removes what follows the copied records, if a copy was interrupted."""
        self._records.cut(self.source.position(counts.records))
        self._places.cut(counts.places * PLACE.itemsize)

    def _copy_records(self, before: CopiedSegment, sent: Sent) -> None:
        source, file = self.source, self._records
        header = source.header
        start, end = source.position(before.records), source.position(source.count)
        if file.size >= start == end and before.closed == source.closed:
            return
        if not before.records or file.size < start or not file.target.can_patch:
            chunks = file.chunks(source.position(0), end)
            file.target.write(itertools.chain([header], chunks), 0)
            sent.add(end)
            return
        self._compare(before)
        if start < end:
            file.target.write(file.chunks(start, end), start)
            sent.add(end - start)
        if before.closed != source.closed:
            file.target.write([header], 0)
            sent.add(len(header))

    def _copy_places(self, before: CopiedSegment, sent: Sent) -> int:
        file = self._places
        count = self._count_places(before.places)
        start, end = before.places * PLACE.itemsize, count * PLACE.itemsize
        if file.size >= start == end:
            return count
        if file.size < start or not file.target.can_patch:
            start = 0
        file.target.write(file.chunks(start, end), start)
        sent.add(end - start)
        return count

    def _count_places(self, known: int) -> int:
        """The number of places of records that are copied, of which some are known."""
        count = self.source.count
        limit = max(count + 1 - known, 0)  # as for readers; a damaged file has more
        rows = read_places(self.source.places_path, start=known, limit=limit)["row"]
        return known + int((rows < count).sum())

    def _compare(self, before: CopiedSegment) -> None:
        """Raises an error if the end of what was copied before is not in the source."""
        source = self.source
        if before.records > source.count:
            raise DifferentRowsError
        self._records.compare(source.position(0), source.position(before.records))
        self._places.compare(0, before.places * PLACE.itemsize)
