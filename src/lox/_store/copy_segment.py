"""Copies a segment: the records and places that a copy does not have yet."""

import dataclasses
from collections.abc import Iterator, Mapping

from lox._errors import StoreError

from .copied import CopiedSegment
from .format import PLACE, read_json_bytes, read_places
from .locations import Entry, Location
from .segments import Segment

_CHUNK_BYTES = 2**22
# The end of what was copied before is compared with the source. It differs if the copy
# is of another run, or if the source has withdrawn rows after a failed write.
_COMPARED_BYTES = 2**12
NOTHING = CopiedSegment(0, 0, 0)
_NO_ENTRY = Entry("none", -1)


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


def copy_segment(
    source: Segment,
    directory: Location,
    entries: Mapping[str, Entry],
    before: CopiedSegment | None,
    sent: Sent,
) -> CopiedSegment:
    """Copies what is new in a segment.

    Args:
        source: the segment.
        directory: the directory of the copy.
        entries: the entries of the directory.
        before: what has been copied already; None if nothing.
        sent: counts what is sent.

    Returns:
        What has been copied now.
    """
    schema = entries.get(source.path.name, _NO_ENTRY)
    if before is None or schema.size != source.path.size():
        sent.replace(directory / source.path.name, read_json_bytes(source.path))
    before = before or NOTHING
    if not source.has_records_file:
        name = source.places_path.name
        if name not in entries and source.places_path.exists():
            # as in the source: without it, the records would count as lost
            (directory / name).write([], 0)
        return NOTHING
    source.check_not_sparse()
    _copy_records(source, directory, entries, before, sent)
    places = _copy_places(source, directory, entries, before, sent)
    return CopiedSegment(source.count, places, source.closed)


def copied_by_other_means(
    source: Segment, directory: Location, entries: Mapping[str, Entry]
) -> CopiedSegment | None:
    """What a copy has of a segment, if nothing lists it; None if it has nothing."""
    files = source.path, source.records_path, source.places_path
    schema, records, places = (entries.get(file.name) for file in files)
    if schema is None:
        if records is not None or places is not None:
            raise DifferentRowsError
        return None
    copy = directory / source.path.name
    if read_json_bytes(copy) != read_json_bytes(source.path):
        raise DifferentRowsError
    size = 0 if records is None else records.size - len(source.header)
    count = max(size, 0) // source.record_size
    place_size = 0 if places is None else places.size
    # as if its header were not up to date, so that it is sent
    found = CopiedSegment(count, place_size // PLACE.itemsize, 0)
    _compare(source, directory, entries, found)
    return found


def is_complete(
    source: Segment, directory: Location, entries: Mapping[str, Entry]
) -> bool:
    """Whether a copy has the files of a finished segment, by their sizes."""
    files = source.path, source.records_path, source.places_path
    schema, records, places = (entries.get(file.name, _NO_ENTRY) for file in files)
    if schema.size != source.path.size():
        return False
    return not source.has_records_file or (
        places.size >= 0
        and records.size == len(source.header) + source.count * source.record_size
        and places.size
        == _count_places(source, places.size // PLACE.itemsize) * PLACE.itemsize
    )


def _copy_records(
    source: Segment,
    directory: Location,
    entries: Mapping[str, Entry],
    before: CopiedSegment,
    sent: Sent,
) -> None:
    target = directory / source.records_path.name
    header = source.header
    start = len(header) + before.records * source.record_size
    end = len(header) + source.count * source.record_size
    known = entries.get(target.name, _NO_ENTRY).size
    if known >= start == end and before.closed == source.closed:
        return
    if not before.records or known < start or not target.can_patch:
        chunks = _chunks(source.records_path, len(header), end)
        target.write(_joined(header, chunks), 0)
        sent.add(end)
        return
    _compare(source, directory, entries, before)
    if start < end:
        target.write(_chunks(source.records_path, start, end), start)
        sent.add(end - start)
    if before.closed != source.closed:
        target.write([header], 0)
        sent.add(len(header))


def _copy_places(
    source: Segment,
    directory: Location,
    entries: Mapping[str, Entry],
    before: CopiedSegment,
    sent: Sent,
) -> int:
    target = directory / source.places_path.name
    count = _count_places(source, before.places)
    start, end = before.places * PLACE.itemsize, count * PLACE.itemsize
    known = entries.get(target.name, _NO_ENTRY).size
    if known >= start == end:
        return count
    if known < start or not target.can_patch:
        start = 0
    target.write(_chunks(source.places_path, start, end), start)
    sent.add(end - start)
    return count


def _count_places(source: Segment, known: int) -> int:
    """The number of places of records that are copied, of which some are known."""
    rows = read_places(source.places_path, start=known)["row"]
    return known + int((rows < source.count).sum())


def _compare(
    source: Segment,
    directory: Location,
    entries: Mapping[str, Entry],
    before: CopiedSegment,
) -> None:
    """Raises an error if the end of what was copied before is not in the source."""
    header = len(source.header)
    ends = (
        (source.records_path, header, header + before.records * source.record_size),
        (source.places_path, 0, before.places * PLACE.itemsize),
    )
    if before.records > source.count:
        raise DifferentRowsError
    for path, begin, end in ends:
        target = directory / path.name
        count = min(end - begin, _COMPARED_BYTES)
        if count <= 0:
            continue
        known = entries.get(target.name, _NO_ENTRY).size
        if known < end or target.read(end - count, count) != path.read(
            end - count, count
        ):
            raise DifferentRowsError


def _chunks(path: Location, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, _CHUNK_BYTES):
        count = min(_CHUNK_BYTES, end - position)
        chunk = path.read(position, count)
        if len(chunk) != count:
            raise StoreError(f"{path} was truncated while it was being copied.")
        yield chunk


def _joined(header: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield header
    yield from chunks
