"""Detects lost records and files of a run.

A run with a truncated file would load like a complete one with fewer records. But the
store is redundant: the header of a closed `.npy` file has the number of its records, an
entry of a `.places` file implies all records before it, and a finished writer leaves a
list of everything it has written. If these disagree, a warning says what is missing.
"""

import contextlib
import contextvars
import dataclasses
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import LoxWarning, StoreError
from lox._source import user_line

from .copied import Copied
from .format import is_empty, parse_json, read_json_bytes, read_places
from .locations import Location
from .statuses import FINISHED_NORMALLY, Ending

_MAX_NAMES = 5
_MAX_HEADER_BYTES = 2**14  # NumPy refuses `.npy` files with longer headers
_SEGMENT_DATA = re.compile(r"(\d{4,})\.(?:npy|places)")


# the user's line, for threads that do not have it on their stack
_line: contextvars.ContextVar[tuple[str, int] | None] = contextvars.ContextVar(
    "line", default=None
)


def warn_of_loss(loss: str) -> None:
    warnings.warn_explicit(loss, LoxWarning, *(_line.get() or user_line()))


@contextlib.contextmanager
def warnings_at(line: tuple[str, int]) -> Iterator[None]:
    """Makes the warnings of this thread name a line of the user's code."""
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """The list that a finished writer leaves; empty, if it was not finished.

    Attributes:
        segments: by segment number, the number of records and the names of the keys.
        ending: how the writer has ended; older versions do not say.
        content: the content of the file; None if the writer was not finished.
    """

    segments: dict[int, tuple[int, Sequence[str]]]
    ending: Ending = FINISHED_NORMALLY
    content: bytes | None = None

    @classmethod
    def read(cls, path: Location) -> "Finished":
        try:
            content = read_json_bytes(path)
            parsed = parse_json(content, path)
            listed: Any = parsed.get("segments")
            segments = {number: (count, names) for number, count, names in listed}
            if all(map(_is_segment, segments.items())):
                return cls(segments, Ending.from_json(parsed), content)
            reason = f"{path} does not list what was written."
        except FileNotFoundError:  # removed while the run was read
            return cls({})
        except StoreError as error:
            reason = str(error)
        except (TypeError, ValueError):
            reason = f"{path} does not list what was written."
        warn_of_loss(f"missing rows cannot be detected: {reason}")
        return cls({})

    def count(self, number: int) -> int:
        """The number of records of a segment; 0 if it is not known."""
        return self.segments.get(number, (0, ()))[0]

    def lost_directory(self, path: Location) -> str | None:
        """The message for a missing directory of the writer; None if it was empty."""
        count = sum(count for count, _ in self.segments.values())
        names = dict.fromkeys(x for _, names in self.segments.values() for x in names)
        if not count:
            return None
        return f"{path} is missing, with {count} records{_of_keys(list(names))}."


def placed_records(path: Location) -> int | None:
    """The minimum number of records that were written, given their `.places` file.

    None if no file of records was created. Call it before counting the records: both
    may be growing.
    """
    try:
        if path.size() == 0:  # it is created before the file of records
            return None
        last = read_places(path, last=True)["row"].tolist()
    except (OSError, StoreError):  # raised again if the places are needed
        return 0
    return last[0] if last else 0


def lost_records(
    path: Location,
    count: int | None,
    placed: int | None,
    known: int,
    names: list[str],
) -> str | None:
    """The message for lost records of a segment; None if there are none.

    Args:
        path: the file of the records.
        count: the number of records; None if the file or its header is missing.
        placed: what `placed_records` has returned.
        known: the number of records when the file was closed; 0 if it was not.
        names: the keys of the segment.
    """
    if count is None and placed is None and not known:
        return None  # the process was killed before it created the file
    at_least = placed or 0
    if count is not None and count >= max(known, at_least):
        return None
    amount = str(known or "an unknown number of")
    if at_least > known:
        amount = f"at least {at_least}"
    loss = f"{count or 0} are left of {amount} records"
    if not path.exists():
        loss = f"the file is missing, with {amount} records"
    return f"{path} has lost records{_of_keys(names)}: {loss}."


def lost_files(
    directory: Location,
    names: Sequence[str],
    found: set[int],
    finished: Finished,
    copied: Copied | None,
) -> Iterator[str]:
    """Yields a message per segment whose JSON file is missing or empty.

    Args:
        directory: the directory of the writer.
        names: the names in it.
        found: the numbers of the segments that have their JSON file; not an empty one.
        finished: the list that the writer has left.
        copied: in a copy, what has been copied so far.
    """
    matches = [_SEGMENT_DATA.fullmatch(name) for name in names]
    numbers = {int(match[1]) for match in matches if match} | {*finished.segments}
    if copied is not None:  # other files are being copied
        numbers = {*copied}
    for number in sorted(numbers - found):
        path = directory / f"{number:04d}.json"
        count, keys = finished.segments.get(number, (0, ()))
        amount = str(count) if count else _describe_count(path)
        # a writer may have created it, and then records, since `found` was listed
        empty = is_empty(path)
        if amount and (empty or not path.exists()):
            state = "empty" if empty else "missing"
            yield (
                f"{path} is {state}. Without it, {amount} records{_of_keys(keys)} in "
                f"{path.with_suffix('.npy').name} cannot be read."
            )


def _describe_count(path: Location) -> str:
    """The number of records of a segment without its JSON file; empty if none."""
    places = path.with_suffix(".places")
    count = _count_records(path.with_suffix(".npy"))
    if count is not None:
        return str(count or "")
    placed = placed_records(places)
    if placed:
        return f"at least {placed}"
    has_places = placed is not None and places.exists()
    written = path.with_suffix(".npy").exists() or has_places
    return "an unknown number of" if written else ""


def _count_records(path: Location) -> int | None:
    """The number of records in a `.npy` file; None if it cannot be read."""
    try:
        first, size = path.read_and_size(_MAX_HEADER_BYTES)
        file = io.BytesIO(first)
        if np.lib.format.read_magic(file) != (2, 0):
            return None
        _, _, dtype = np.lib.format.read_array_header_2_0(file)
        return (size - file.tell()) // dtype.itemsize
    except Exception:  # the file may contain anything
        return None


def _is_segment(item: Any) -> bool:
    number, (count, names) = item
    return type(number) is int and type(count) is int and type(names) is list


def _of_keys(names: Sequence[Any]) -> str:
    if not names:
        return ""
    shown = ", ".join(f"{name!r:.80}" for name in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f" of {shown}{more}"
