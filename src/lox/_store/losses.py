"""What a run has lost, as far as its files can tell.

A file that was cut off leaves a run with fewer records that loads as if it were whole.
But much is said twice: the head of a closed `.npy` file has the number of its records,
a `.places` file speaks of records before them, and a writer that was finished leaves a
list of all that it has written. Where they disagree, a warning says what is missing.
"""

import dataclasses
import os
import pathlib
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import LoxWarning, StoreError
from lox._source import user_line

from .format import file_size, read_json, read_places

_MAX_NAMES = 5
_RECORDS = re.compile(r"(\d{4,})\.(?:npy|places)")


def warn_of(loss: str) -> None:
    warnings.warn_explicit(loss, LoxWarning, *user_line())


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """What a writer said of itself when it was finished; nothing, if it was not.

    Attributes:
        segments: by their numbers, how many records each has, and the names of its
            keys.
    """

    segments: dict[int, tuple[int, Sequence[str]]]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Finished":
        try:
            listed: Any = read_json(path).get("segments")
            found = {number: (count, names) for number, count, names in listed}
            if all(map(_is_segment, found.items())):
                return cls(found)
            why = f"{path} does not say what was written."
        except FileNotFoundError:  # removed while the run was read
            return cls({})
        except StoreError as error:
            why = str(error)
        except (TypeError, ValueError):
            why = f"{path} does not say what was written."
        warn_of(f"missing rows cannot be detected: {why}")
        return cls({})

    def count(self, number: int) -> int:
        return self.segments.get(number, (0, ()))[0]

    def lost_directory(self, path: pathlib.Path) -> str | None:
        """What is lost with the writer's directory, if anything."""
        count = sum(count for count, _ in self.segments.values())
        names = dict.fromkeys(x for _, names in self.segments.values() for x in names)
        if not count:
            return None
        return f"{path} is gone, and with it {count} records{_of_keys(list(names))}."


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """What the places of a segment say about its records.

    Attributes:
        has_file: whether there was a file of records, in which there may be none.
        at_least: how many records there were, or more.
    """

    has_file: bool
    at_least: int

    @classmethod
    def read(cls, path: pathlib.Path) -> "Begun":
        """To be called before the records are counted, since both may be growing."""
        try:
            if file_size(path) == 0:  # it is made before the file of records
                return cls(False, 0)
            last = read_places(path, last=True)["row"].tolist()
        except (OSError, StoreError):  # which says so if somebody needs them
            return cls(True, 0)
        return cls(True, last[0] if last else 0)


def lost_records(
    path: pathlib.Path, count: int | None, begun: Begun, known: int, names: list[str]
) -> str | None:
    """What a segment has lost, if anything.

    Args:
        path: the file of its records.
        count: how many there are; None if there is no such file, or no head in it.
        begun: what its places say.
        known: how many there were when it was closed; 0 if it was not.
        names: its keys.
    """
    if count is None and not begun.has_file and not known:
        return None  # a process was killed before it made the file
    if count is not None and count >= max(known, begun.at_least):
        return None
    amount = str(known or "an unknown number")
    if begun.at_least > known:
        amount = f"at least {begun.at_least}"
    there = f"there are {count or 0} of {amount}"
    if not os.path.lexists(path):
        there = f"the file is gone, and with it {amount}"
    return f"{path} has lost records{_of_keys(names)}: {there}."


def lost_files(
    directory: pathlib.Path, found: set[int], finished: Finished
) -> Iterator[str]:
    """What is lost with the descriptions of segments that are not there.

    Args:
        directory: that of the writer.
        found: the numbers of those that are there.
        finished: what the writer has said of itself.
    """
    try:
        matches = [_RECORDS.fullmatch(name) for name in os.listdir(directory)]
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error}.") from error
    numbers = {int(match[1]) for match in matches if match} | {*finished.segments}
    for number in sorted(numbers - found):
        path = directory / f"{number:04d}.json"
        count, names = finished.segments.get(number, (0, ()))
        amount = str(count) if count else _amount_in(path)
        # it may have been made since the directory was read, and before the records
        if amount and not path.exists():
            yield (
                f"{path} is gone. Without it, {amount} records in "
                f"{path.with_suffix('.npy').name}{_of_keys(names)} cannot be read."
            )


def _amount_in(path: pathlib.Path) -> str:
    """How many records a segment had whose description is gone; empty if none."""
    places = path.with_suffix(".places")
    count = _count_in(path.with_suffix(".npy"))
    if count is not None:
        return str(count or "")
    begun = Begun.read(places)
    if begun.at_least:
        return f"at least {begun.at_least}"
    written = os.path.lexists(path.with_suffix(".npy")) or (
        begun.has_file and os.path.lexists(places)
    )
    return "an unknown number of" if written else ""


def _count_in(path: pathlib.Path) -> int | None:
    """How many records are in a `.npy` file; None if it does not say."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return None
        with open(path, "rb") as file:
            if np.lib.format.read_magic(file) != (2, 0):
                return None
            _, _, dtype = np.lib.format.read_array_header_2_0(file)
            return (status.st_size - file.tell()) // dtype.itemsize
    except Exception:  # of whatever a stranger may have written
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
