"""Summarizes a run without loading it: its status, rows and last rows.

Files are read on demand. The status of a run that has ended is in one small file; the
last rows are at the ends of the files of records.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from lox._errors import StoreError
from lox._logs.key import Key
from lox._logs.logdict import from_keys, logdict

from .format import WRITER_FILE, numbered
from .locations import Location
from .losses import Finished, warn_of_loss
from .owners import is_running
from .processes import PART, first_writer
from .segments import names_in
from .statuses import Status
from .tails import Tail, tails_of


class Summary:
    """A run at one moment.

    Args:
        path: the directory of the run.
        started: when the run was created.
        first_writer: the first writer of the run's own directory that is part of it.
    """

    def __init__(self, path: Location, started: float, first_writer: int = 0) -> None:
        self._started = started
        self._writers = _writers_of(path, first_writer)
        # the last writer of each process says how its part of the run has ended
        self._last_writers = {writer.process: writer for writer in self._writers}

    @functools.cached_property
    def status(self) -> Status:
        """Whether the run is running, or how it has ended."""
        if any(
            writer.is_open and writer.status == "running" for writer in self._writers
        ):
            return "running"
        statuses = {writer.status for writer in self._last_writers.values()}
        found = (status for status in _BY_PRECEDENCE if status in statuses)
        return next(found, "finished")

    @property
    def error(self) -> str | None:
        """The exception that has ended the run, if one has."""
        errors = (writer.error for writer in self._last_writers.values())
        return next(filter(None, errors), None)

    @property
    def duration(self) -> float:
        """The seconds from the start to the end, or until now if it is running."""
        ended = time.time() if self.status == "running" else self.ended
        return max(ended - self._started, 0.0)

    @functools.cached_property
    def ended(self) -> float:
        """When the run has ended, or was last written to."""
        return max((writer.ended for writer in self._writers), default=self._started)

    @functools.cached_property
    def rows(self) -> int:
        """The number of records."""
        return sum(count for writer in self._writers for count, _ in writer.segments)

    @functools.cached_property
    def keys(self) -> list[str]:
        """The keys that have rows."""
        segments = [segment for writer in self._writers for segment in writer.segments]
        names = (name for count, names in segments if count for name in names)
        return list(dict.fromkeys(names))

    @property
    def last(self) -> logdict:
        """The last row of each key whose rows are scalars."""
        return from_keys(self._last_rows.items())

    @property
    def last_values(self) -> dict[str, Any]:
        """The values of the last rows, without steps."""
        return {name: row.value for name, row in self._last_rows.items()}

    @functools.cached_property
    def _last_rows(self) -> dict[str, Key]:
        found: dict[str, Key] = {}
        for writer in self._writers:
            found |= writer.last_rows()
        return found


# The first of these that a process of the run has is the status of the run.
_BY_PRECEDENCE: tuple[Status, ...] = ("failed", "killed", "stale")


class _Writer:
    """One writer of a run.

    Attributes:
        process: the index of its process.
        is_open: whether its files say that it is open; its process may have been
            killed.
    """

    def __init__(self, path: Location, process: int, files: set[str]) -> None:
        self._path = path
        self.process = process
        self._finished: Finished | None = None
        if _FINISHED in files:
            self._finished = Finished.read(path.with_suffix(_FINISHED))
        self.is_open = _OPEN in files and self._finished is None

    @functools.cached_property
    def status(self) -> Status:
        if self._finished is not None:
            return self._finished.ending.status
        if not self.is_open:  # `lox.save` does not record that it has ended
            return "finished"
        path = self._path.with_suffix(_OPEN)
        try:
            running = is_running(path, lambda: self.ended)
            if running is None:
                return "stale"
            if running:
                return "running"
            if path.exists():
                return "killed"
        except FileNotFoundError:
            pass
        # it has finished, and then ended, since it was listed
        self._finished = Finished.read(self._path.with_suffix(_FINISHED))
        return self._finished.ending.status

    @property
    def error(self) -> str | None:
        return None if self._finished is None else self._finished.ending.error

    @functools.cached_property
    def ended(self) -> float:
        """When it has ended, or written the last row."""
        if self._finished is not None and self._finished.ending.time is not None:
            return self._finished.ending.time
        written = (tail.written for tail in self._tails)
        return max(written, default=0.0) or self._path.modified()

    @functools.cached_property
    def segments(self) -> list[tuple[int, Sequence[str]]]:
        """The number of records and the keys of each segment."""
        if self._finished is not None and self._finished.segments:
            return list(self._finished.segments.values())
        return [(tail.rows, tail.layout.names) for tail in self._tails]

    def last_rows(self) -> dict[str, Key]:
        """The last row of each key whose rows are scalars."""
        rows = [(tail, tail.last_rows()) for tail in self._tails]
        names = [name for _, of_tail in rows for name in of_tail]
        if len({*names}) < len(names):  # in several segments: in the order of events
            rows.sort(key=lambda each: each[0].last_number())
        return {name: row for _, of_tail in rows for name, row in of_tail.items()}

    @functools.cached_property
    def _tails(self) -> list[Tail]:
        listed = None if self._finished is None else self._finished.segments
        return tails_of(self._path, listed or None)


_FINISHED, _OPEN = ".json", ".open.json"  # suffixes of a `WRITER_FILE`


def _writers_of(run: Location, first: int) -> list[_Writer]:
    """The writers of a run, in order, by process and number."""
    names = names_in(run)
    writers = list(_writers_in(run, 0, first, names))
    for process, name in numbered(names, PART):
        part = run / name
        if part.is_link():  # a link could lead anywhere
            warn_of_loss(f"{part} is a symbolic link, so it is not read.")
            continue
        try:
            first = first_writer(part)
        except StoreError as error:
            warn_of_loss(f"a process is left out: {error}")
            continue
        writers += _writers_in(part, process, first, names_in(part))
    return writers


def _writers_in(
    directory: Location, process: int, first: int, names: list[str]
) -> Iterator[_Writer]:
    files: dict[int, set[str]] = {}
    for name in names:
        match = WRITER_FILE.fullmatch(name)
        if match and int(match[1]) >= first:
            files.setdefault(int(match[1]), set()).add(match[2])
    for number, kinds in sorted(files.items()):
        yield _Writer(directory / f"writer-{number:04d}", process, kinds)
