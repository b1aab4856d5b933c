"""The list of what has been copied so far of a writer, in the copy of a run.

Files are copied one after the other. Without the list, which is replaced as a whole, a
reader of the copy could see events of one file without earlier ones of another. The
list is removed once the copy of a finished writer is complete.
"""

import dataclasses
from typing import Any, NamedTuple

from lox._errors import StoreError

from .format import COPIED, VERSION, format_json, read_json
from .locations import Location


class CopiedSegment(NamedTuple):
    """What has been copied of a segment.

    Attributes:
        records: the number of records.
        places: the number of places.
        closed: the number of records that the header of the file says; 0 if none.
    """

    records: int
    places: int
    closed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """What has been copied of a writer; anything else is not part of the copy yet.

    Attributes:
        segments: what has been copied of each segment, by number.
    """

    segments: dict[int, CopiedSegment]

    @classmethod
    def read(cls, directory: Location) -> "Copied | None":
        """Reads the list; None if the writer is not a copy, or a complete one."""
        path = directory / COPIED
        try:
            listed: Any = read_json(path).get("segments")
        except FileNotFoundError:
            return None
        try:
            segments = {number: CopiedSegment(*counts) for number, *counts in listed}
        except (TypeError, ValueError):
            segments = {-1: CopiedSegment(0, 0, 0)}
        for number, counts in segments.items():
            if not all(type(n) is int and 0 <= n < 2**63 for n in (number, *counts)):
                raise StoreError(f"{path} does not list what was copied.")
        return cls(segments)

    def write(self, directory: Location) -> int:
        """Writes the list; returns its size in bytes."""
        segments = [[number, *counts] for number, counts in self.segments.items()]
        content = format_json({"version": VERSION, "segments": segments})
        (directory / COPIED).replace(content)
        return len(content)
