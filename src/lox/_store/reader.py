"""Reads a run, also while it is being written. Values stay on disk until used."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import StoreError
from lox._logs.logdict import from_keys, logdict
from lox._patterns import matches_any, names_of, unmatched
from lox._source import user_line, warn

from .format import FINISHED, RUN_FILE, WRITER, numbered, read_json
from .joining import KeyPart, join_parts
from .locations import Location, Path, location_of
from .losses import Finished, warn_of_loss, warnings_at
from .processes import first_writer, job_of, parts_of
from .segments import Segment, WrittenSegments, names_in
from .statuses import Status
from .summaries import Summary


class Run:
    """A run in a store.

    If several processes have written the run, they are read as one.

    Attributes:
        path: the directory of the run: a `pathlib.Path`, or a URL.
        name: the name of the run.
        key: the data of the PRNG key that the run was created with, or None.
        config: the config passed to the logger.
        started: the time when the run was created, in seconds since 1970.
        versions: the versions of the packages that created the run.

    The other attributes are read from the files whenever they are used, without loading
    the run: `status`, `error`, `duration`, `rows`, `keys` and `last`.
    """

    def __init__(self, path: Path | Location) -> None:
        self._location = location_of(path)
        description = _describe(self._location)
        self.name: str = description["name"]
        key = description.get("key")
        self.key = None if key is None else np.array(key, np.uint32)
        self.config: dict[str, Any] = description["config"]
        self.started: float = description["started"]
        self.versions: dict[str, str] = description["versions"]
        self._first_writer: int = description.get("first_writer", 0)

    @property
    def path(self) -> Any:
        """The directory of the run: a `pathlib.Path`, or a URL."""
        return self._location.path

    def __repr__(self) -> str:
        return f"<lox run {self.name!r} at {str(self.path)!r}>"

    def load(
        self,
        argnames: str | Iterable[str] | None = None,
        process: int | None = None,
    ) -> logdict:
        """Loads the logs of the run as NumPy arrays.

        A key has a time axis if its program logs it in a loop or several times, or if
        there are several rows.

        Args:
            argnames: the keys to load, by name or pattern; all by default. Other keys
                are not read from disk.
            process: load only the rows of this process of a job; those of all by
                default.
        """
        selected = names_of("argnames", argnames)
        logs, known = self.load_selected(selected, process)
        warn_of_unmatched(selected, known, str(self))
        return logs

    def load_selected(
        self, selected: Sequence[str] | None, process: int | None = None
    ) -> tuple[logdict, dict[str, None]]:
        """Loads the keys that match names or patterns; also returns all known keys."""
        parts: dict[str, list[KeyPart]] = {}
        known: dict[str, None] = {}
        for writer in self._writers(process):
            for segment in writer.segments:
                for name in segment.keys if segment.count else ():
                    known[name] = None
                    if selected is None or matches_any(name, selected):
                        part = KeyPart(writer, segment, name)
                        parts.setdefault(name, []).append(part)
        if self._location.is_remote:
            segments = (part.segment for found in parts.values() for part in found)
            self._location.map(Segment.fetch, dict.fromkeys(segments))
        keys = ((name, join_parts(name, found)) for name, found in parts.items())
        return from_keys(keys), known

    def summary(self) -> Summary:
        """The attributes that are read from the files, all at the same moment."""
        return Summary(self._location, self.started, self._first_writer)

    @property
    def status(self) -> Status:
        """`"running"`, or how the run has ended.

        - `"finished"`: its logger has finished it, or it was saved by `lox.save`.
        - `"failed"`: an exception has ended the process, see `error`.
        - `"killed"`: the process is gone, or was interrupted by a `KeyboardInterrupt`.
        - `"stale"`: nothing was written for ten minutes, and the process is on another
          machine or in another container, so that it may be running or killed.
        """
        return self.summary().status

    @property
    def error(self) -> str | None:
        """The exception that has ended the process, if one has."""
        return self.summary().error

    @property
    def duration(self) -> float:
        """The seconds from the start of the run to its end.

        For a run that is still running, until now; for a killed run, until its last
        row.
        """
        return self.summary().duration

    @property
    def rows(self) -> int:
        """The number of rows; keys that were logged together share a row."""
        return self.summary().rows

    @property
    def keys(self) -> list[str]:
        """The names of the keys that have rows."""
        return self.summary().keys

    @property
    def last(self) -> logdict:
        """The last row of each key whose rows are scalars, with its steps.

        Only the ends of the files are read.
        """
        return self.summary().last

    @property
    def processes(self) -> list[int]:
        """The processes of a job that have opened the run; `[0]` without a job."""
        return list(self._directories())

    @property
    def unfinished_processes(self) -> list[int]:
        """The processes whose rows may be incomplete.

        They are still writing, or have ended without `finish` (for example, were
        killed), or could not write all rows (for example, because the disk was full).

        A `SaveLogger` finishes its part of a run; `lox.save` does not.
        """
        return [
            process
            for process, directory in self._directories().items()
            if not _is_finished(directory)
        ]

    def _directories(self) -> dict[int, Location]:
        """The directories of the processes that have opened the run."""
        return {0: self._location, **parts_of(self._location)}

    def _writers(self, selected: int | None = None) -> Iterator[WrittenSegments]:
        directories = self._directories()
        if selected is not None and selected not in directories:
            raise StoreError(
                f"{self} has no rows of process {selected!r}; its processes are "
                f"{', '.join(map(str, directories))}."
            )
        if len(directories) > 1:
            self._warn_of_unfinished(directories)
        line = user_line()

        def read(part: tuple[int, Location]) -> list[WrittenSegments]:
            process, directory = part
            with warnings_at(line):
                return list(_writers_in(directory, process))

        parts = [x for x in directories.items() if selected in (None, x[0])]
        return itertools.chain.from_iterable(self._location.map(read, parts))

    def _warn_of_unfinished(self, directories: dict[int, Location]) -> None:
        jobs = {process: job_of(path) for process, path in directories.items()}
        if not any(jobs.values()):  # `lox.save` does not finish runs, and has no job
            return
        unfinished = [i for i in self.unfinished_processes if jobs[i] != ""]
        # if no process has finished, the job is probably running
        if 0 < len(unfinished) < len(directories):
            names = ", ".join(map(str, unfinished))
            warn_of_loss(
                f"{self} may lack rows of the process(es) {names}, which have not "
                "finished it, although others have: they are still writing, have ended "
                "without `finish` (for example, were killed), or could not write all "
                "rows. The rows that they have written are loaded."
            )


def _is_finished(directory: Location) -> bool:
    """Whether all writers of one process have finished."""
    names = names_in(directory)
    first = 0
    with contextlib.suppress(StoreError):  # reported when the run is loaded
        first = first_writer(directory)
    writers, finished = (
        {number: name for number, name in numbered(names, kind) if number >= first}
        for kind in (WRITER, FINISHED)
    )
    if not writers and RUN_FILE not in names:
        return False  # the process has opened the run, but has written nothing yet
    return not writers.keys() - finished.keys() and not any(
        _is_incomplete(directory / name) for name in finished.values()
    )


def _is_incomplete(path: Location) -> bool:
    """Whether a finished writer could not write all rows."""
    try:
        return bool(read_json(path).get("incomplete"))
    except (OSError, StoreError):  # reported when the run is loaded
        return False


def warn_of_unmatched(
    selected: Sequence[str] | None, known: Iterable[str], where: str
) -> None:
    """Warns about names and patterns that match no key."""
    for pattern in unmatched(selected or (), known):
        names = ", ".join(map(repr, known)) or "none"
        warn(f"no key of {where} matches {pattern!r}; available: {names}.")


def writers_of(run: Run) -> list[WrittenSegments]:
    """What the writers of a run have written so far, in the order of its rows."""
    return list(run._writers())


def _writers_in(directory: Location, process: int) -> Iterator[WrittenSegments]:
    """The writers of one process that are part of the run."""
    first = first_writer(directory)
    finished = {
        number: Finished.read(directory / name)
        for number, name in numbered(names_in(directory), FINISHED)
        if number >= first
    }
    # listed later: there is a directory for each list, unless it was lost
    for number, name in numbered(names_in(directory), WRITER):
        if number >= first:
            written = finished.pop(number, Finished({}))
            yield WrittenSegments(number, directory / name, written, process)
    for number, written in finished.items():
        loss = written.lost_directory(directory / f"writer-{number:04d}")
        if loss:
            warn_of_loss(loss)


def _describe(path: Location) -> dict[str, Any]:
    """The description of a run, by the first process that has written one."""
    for directory in _possible_directories(path):
        with contextlib.suppress(FileNotFoundError):
            return checked_description(read_json(directory / RUN_FILE), directory)
    raise StoreError(f"{path} is not a run: it has no {RUN_FILE!r}.")


def _possible_directories(path: Location) -> Iterator[Location]:
    yield path
    if path.is_directory():
        yield from parts_of(path).values()


def checked_description(description: dict[str, Any], run: Location) -> dict[str, Any]:
    """Returns the description of a run; raises if it is not one."""
    key, started = description.get("key"), description.get("started")
    first = description.get("first_writer", 0)
    if not (
        (key is None or type(key) is list)
        and all(type(word) is int and 0 <= word < 2**32 for word in key or ())
        and isinstance(started, int | float)
        and 0 <= started < 2**63
        and type(description.get("name")) is str
        and type(description.get("config")) is dict
        and type(description.get("versions")) is dict
        and type(first) is int
        and first >= 0
    ):
        raise StoreError(f"{run / RUN_FILE} does not describe a run.")
    return description
