"""Runs that are followed while they are written, resumed, replaced and removed."""

from collections.abc import Sequence
from typing import Any

from lox._errors import StoreError

from .format import WRITER
from .new_rows import NewRows, Row
from .reader import Run
from .runs import is_run
from .segments import names_in


class Followed:
    """A run that is followed.

    A run that has ended is followed, too, since it may be resumed or replaced.

    Args:
        run: the run.
        keys: names or patterns of keys; None for all rows.
        limit: the maximum number of rows to read first, counted from the end; None for
            all.

    Attributes:
        rows: reads its rows.
        is_running: whether it was running when its rows were last read.
    """

    def __init__(
        self, run: Run, keys: Sequence[str] | None, limit: int | None = None
    ) -> None:
        self._patterns = keys
        self._limit = limit
        self.rows = NewRows(run, keys)
        self.is_running = True
        # its files and their sizes when it had ended; None if it has not
        self._contents: Any = None
        self._reported: str | None = None

    def update(self) -> list[Row]:
        """Returns the rows since the last call."""
        try:
            return self._update()
        except (OSError, StoreError):  # while it is replaced, its files are removed
            return self._update()

    def _update(self) -> list[Row]:
        run = Run(self.rows.run._location)
        if self._is_recreated(run):
            self.rows = NewRows(run, self._patterns)
            self._contents = None
        self.rows.run = run
        contents = _contents_of(run)
        if contents == self._contents:
            return []
        status = run.status  # before the last rows are read
        self.is_running = status == "running"
        found = self.rows.read(self._limit)
        self._limit = self._reported = None
        # a stale run may still be written to, by its process on another machine
        has_ended = status not in ("running", "stale")
        self._contents = contents if has_ended else None
        return found

    def exists(self) -> bool:
        """Whether the run is still there; it may be unreadable now, and not later."""
        return is_run(self.rows.run._location)

    def is_new(self, error: Exception) -> bool:
        """Whether an error of `update` differs from the one before."""
        before, self._reported = self._reported, str(error)
        return before != self._reported

    def _is_recreated(self, run: Run) -> bool:
        """Whether the run was removed, and another one has its name.

        The writers of a run that was overwritten have numbers that are new.
        """
        last = self.rows.run
        return run.started != last.started and run._first_writer <= last._first_writer


def _contents_of(run: Run) -> Any:
    """What changes if a run that has ended is resumed, replaced or appended to."""
    writers = [
        directory / name
        for directory in run._directories().values()
        for name in names_in(directory)
        if WRITER.fullmatch(name)
    ]
    return run.started, [(str(writer), writer.entries()) for writer in writers]
