"""The list of what has been copied so far from a writer, in the copy of a run.

Files are copied one after the other. Without the list, which is replaced as a whole, a
reader of the copy could see events of one file without earlier ones of another. The
list is removed once the copy of a finished writer is complete.
"""

from typing import Any, NamedTuple

from lox._errors import StoreError

from .format import COPIED, VERSION, format_json, read_json
from .locations import Location


class CopiedSegment(NamedTuple):
    """What has been copied of a segment.

    Attributes:
        records: the number of records.
        places: the number of places.
        closed: the number of records in the header of the file; 0 if it has none.
    """

    records: int = 0
    places: int = 0
    closed: int = 0


class Copied(dict[int, CopiedSegment]):
    """What has been copied of each segment of a writer, by number.

    Anything else is not part of the copy yet.
    """

    @classmethod
    def read(cls, directory: Location) -> "Copied | None":
        """Reads the list; None if the writer is not a copy, or a complete one."""
        path = directory / COPIED
        try:
            listed: Any = read_json(path).get("segments")
        except FileNotFoundError:
            return None
        try:
            copied = cls((n, CopiedSegment._make(counts)) for n, *counts in listed)
        except (TypeError, ValueError):
            copied = cls({-1: CopiedSegment()})
        for number, counts in copied.items():
            if not all(type(n) is int and 0 <= n < 2**63 for n in (number, *counts)):
                raise StoreError(f"{path} does not list what was copied.")
        return copied

    def write(self, directory: Location) -> int:
        """Writes the list; returns its size in bytes."""
        segments = [[number, *counts] for number, counts in self.items()]
        content = format_json({"version": VERSION, "segments": segments})
        (directory / COPIED).replace(content)
        return len(content)
