"""Copies the times of rows, which may include rows that are not copied yet."""

from collections.abc import Mapping

from .copy_segment import FileCopy, Sent
from .locations import Entry, Location
from .segments import WrittenSegments
from .times import ENTRY, TIMES


class TimesCopy:
    """A copy of the times of a writer.

    Args:
        source: what the writer has written.
        directory: the directory of the copy.
        entries: the entries of the directory.
    """

    def __init__(
        self,
        source: WrittenSegments,
        directory: Location,
        entries: Mapping[str, Entry],
    ) -> None:
        self._exists = source.has_times
        self._file = FileCopy.find(source.path / TIMES, directory, entries)

    def is_complete(self) -> bool:
        """Whether it has the times of a finished writer, by their size."""
        return self._file.size == (self._end() if self._exists else -1)

    def _end(self) -> int:
        """The size of the complete entries; the last one may be torn."""
        return self._file.source.size() // ENTRY.itemsize * ENTRY.itemsize

    def update(self, sent: Sent) -> None:
        """Copies what is new."""
        source, target, known = self._file
        if not self._exists:
            if known >= 0:
                target.remove()
            return
        end = self._end()
        if known == end:
            return
        start = 0
        if target.can_patch and ENTRY.itemsize <= known < end:
            last = known // ENTRY.itemsize * ENTRY.itemsize
            before = last - ENTRY.itemsize, ENTRY.itemsize
            if target.read(*before) == source.read(*before):  # else another run
                start = last
        if start == 0 and known > end:
            target.remove()
        target.write(self._file.chunks(start, end), start)
        sent.add(end - start)
