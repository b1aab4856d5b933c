"""Copies the runs of a store to another place, for `lox sync`."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping

from lox._errors import StoreError

from .copy_run import RunCopy
from .locations import Entry, Location, Path, is_url, location_of
from .runs import is_run, run_directories


@dataclasses.dataclass
class Report:
    """What an update of a copy has done.

    Attributes:
        found: the number of runs in the store.
        runs: the runs of which something was sent.
        files: how many files were written.
        byte_count: how many bytes were written.
        unfinished: the runs that are still being written, or were never finished.
        skipped: the directories that were not copied, with the reason.
        errors: the runs that could not be copied, with the reason.
    """

    found: int = 0
    runs: list[str] = dataclasses.field(default_factory=list)
    files: int = 0
    byte_count: int = 0
    unfinished: list[str] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    errors: dict[str, str] = dataclasses.field(default_factory=dict)

    def add_run(self, other: "Report") -> None:
        """Adds the report of another run."""
        self.found += other.found
        self.runs += other.runs
        self.files += other.files
        self.byte_count += other.byte_count
        self.unfinished += other.unfinished
        self.skipped |= other.skipped
        self.errors |= other.errors


class StoreCopy:
    """A copy of a store, or of one run, which can be updated.

    Runs that are removed from the store stay in the copy.

    Args:
        source: the directory or URL of a store, or of a run.
        target: the directory or URL of the copy: a store.
        overwrite: whether to replace runs of the copy that have other rows.
        follows: whether the copy is updated again and again.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        overwrite: bool = False,
        follows: bool = False,
    ) -> None:
        self._source, self._target = _absolute(source), _absolute(target)
        self._overwrite = overwrite
        self._follows = follows
        self._runs: dict[str, RunCopy] = {}

    def update(self) -> Report:
        """Sends what is new."""
        if _identity(self._source) == _identity(self._target):
            raise StoreError(f"{self._source} cannot be copied to itself.")
        if is_run(self._target):
            raise StoreError(
                f"{self._target} is a run, but a copy is a store: a directory of runs."
            )
        is_single = is_run(self._source)
        found = [self._source] if is_single else run_directories(self._source)
        try:
            existing = self._target.entries()
        except FileNotFoundError:
            existing = {}

        def copy(run: Location) -> Report:
            if not is_run(run):
                return Report()
            if run.is_link() and not is_single:
                return Report(skipped={run.name: f"{run} is a symbolic link."})
            return self._copy(run, existing)

        slower = self._target if self._target.is_remote else self._source
        report = Report()
        for each in slower.map(copy, sorted(found, key=lambda run: run.name)):
            report.add_run(each)
        return report

    def _copy(self, run: Location, existing: Mapping[str, Entry]) -> Report:
        name = run.name
        try:
            if not is_plain(name):
                raise StoreError(f"{name!r} is not a portable name of a directory.")
            if name in existing and existing[name].kind != "directory":
                raise StoreError(f"{self._target / name} is not a directory.")
            sent, finished = self._copy_of(run).update(name in existing)
        except (OSError, StoreError) as error:
            return Report(found=1, errors={name: str(error)})
        return Report(
            found=1,
            runs=[name] if sent.files else [],
            files=sent.files,
            byte_count=sent.byte_count,
            unfinished=[] if finished else [name],
        )

    def _copy_of(self, run: Location) -> RunCopy:
        if run.name not in self._runs:
            target = self._target / run.name
            self._runs[run.name] = RunCopy(run, target, self._overwrite, self._follows)
        return self._runs[run.name]


def _absolute(path: Path) -> Location:
    """The absolute path, so that a run has a name even if its path is `.`."""
    return location_of(path if is_url(path) else os.path.abspath(path))


def _identity(location: Location) -> str:
    """A value that is the same for all paths of one local directory."""
    path = re.sub("^(file|local)://", "", str(location))
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def is_plain(name: str) -> bool:
    """Whether a name stays in its directory, on any operating system."""
    return name not in ("", ".", "..") and pathlib.PureWindowsPath(name).name == name
