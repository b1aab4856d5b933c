"""Sends the logs of a stored run to a tracker, and sends only what is new.

All logs go through the tracker's backend in the order in which they were written, like
those of a logger, because names and steps may depend on earlier rows. Rows that the
tracker already has are left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lox._errors import StoreError
from lox._store.reader import Run, writers_of
from lox._store.replaying import WriterLogs
from lox._store.statuses import Status

from .backend import TrackerBackend
from .runs import Ending, Resumed, RunInfo, TrackerRun, identifier
from .sent import Part, SentFile, identity, total

_MAX_UNFLUSHED = 10_000  # items that a backend may buffer
# the writers of a run, by process and number
Writers = Mapping[tuple[int, int], WriterLogs]


class RunSender:
    """Sends one run.

    Args:
        run: the run.
        backend: the tracker's backend.
        again: whether to send all of it again, as a new run of the tracker.
        info: the run for the backend to open; by default that of the store.
        resumed: how to open it for the first time.

    Attributes:
        run: the run.
        handle: the tracker's run, if it is open.
        was_opened: whether the tracker has opened it.
        state: the state of the tracker's run when it was closed.
    """

    def __init__(
        self,
        run: Run,
        backend: TrackerBackend,
        again: bool = False,
        info: RunInfo | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self.run = run
        self._backend = backend
        words = () if run.key is None else tuple(run.key.tolist())
        self._info = info or RunInfo(words, run.name, run.config)
        self._file = SentFile(run, backend.command_name, backend.destination())
        self._again = again
        self._resumed = resumed
        self._read_file()
        self.handle: TrackerRun | None = None
        self.was_opened = False
        self.state: dict[str, Any] = {}
        # how many of the sent events this process has read
        self._read: dict[tuple[int, int], int] = {}

    def _read_file(self) -> None:
        found = self._file.read()
        if self._again and found is not None:
            found = self._file.new(found.generation + 1)
        self._is_known = found is not None
        self._sent = found or self._file.new()

    @property
    def ending(self) -> Ending:
        """How the run has ended, as far as is known."""
        return _ENDINGS[self.run.status]

    def new_rows(self) -> int:
        """The number of rows that the tracker has not confirmed."""
        return self._unconfirmed(self._writers())

    def is_up_to_date(self) -> bool:
        same = self._sent.ending in (self.ending, "finished")
        return self._is_known and same and not self.new_rows()

    def send(self, keep_open: bool = False) -> int:
        """Sends the rows that the tracker lacks; returns their number.

        Rows that were sent before and not confirmed are sent again, or left out if the
        tracker has them.

        Args:
            keep_open: whether to keep the tracker's run open, for another call. What is
                sent is confirmed by a call that closes it.
        """
        try:
            return self._send(keep_open)
        except BaseException:
            self.handle = None  # it is opened again for another attempt
            self._read.clear()
            raise

    def _send(self, keep_open: bool) -> int:
        if self.handle is None:  # another process may have sent it
            self._read_file()
            self._again = False
        ending = self.ending  # before its rows: later rows are sent another time
        writers = self._writers()
        sent = self._sent
        missing = _missing(writers, [*sent.confirmed, *sent.pending])
        new = self._unconfirmed(writers) if self.handle is None else total(missing)
        interrupted = not self._is_known or bool(sent.pending)
        sent.pending += missing
        self._file.write(sent)
        self._is_known = True
        if self.handle is None:
            self.handle = self._open(interrupted)
            self.was_opened = True
        self._write(self.handle, writers)
        if not keep_open:
            self.close(ending)
        return new

    def close(self, ending: Ending) -> None:
        """Closes the tracker's run, which confirms everything that was sent."""
        assert self.handle is not None
        ended = self.run.summary().ended if ending != "running" else None
        self._backend.end(self.handle, ending, ended)
        self._sent.confirm(self.handle.items, ending)
        self._file.write(self._sent)
        self.state = self.handle.state()
        self.handle = None
        self._read.clear()

    def _open(self, interrupted: bool) -> TrackerRun:
        sent = self._sent
        resumed = self._resumed or Resumed(self._identifier(), self.run.started)
        if sent.before is not None:
            resumed = dataclasses.replace(
                resumed, before=sent.before, asks=False, sent=sent.items
            )
        resumed = dataclasses.replace(resumed, interrupted=interrupted)
        handle: TrackerRun = self._backend.open(self._info, resumed)
        if sent.before is None:
            sent.before, sent.items = handle.before, resumed.sent
            self._file.write(sent)
        return handle

    def _identifier(self) -> str:
        """The identifier of the tracker's run, the same for each copy of the run."""
        again = f"-{self._sent.generation}" if self._sent.generation else ""
        return identifier(self.run.name, f"{identity(self.run)}{again}")

    def _write(self, handle: TrackerRun, writers: Writers) -> None:
        read: dict[tuple[int, int], int] = {}
        for process, number, count in [*self._sent.confirmed, *self._sent.pending]:
            writer = process, number
            start = read.get(writer, 0)
            stop = read[writer] = start + count
            start = max(start, self._read.get(writer, 0))
            if start < stop:
                self._write_part(handle, writers, writer, start, stop)
        self._backend.flush(handle)
        self._read |= read

    def _write_part(
        self,
        handle: TrackerRun,
        writers: Writers,
        writer: tuple[int, int],
        start: int,
        stop: int,
    ) -> None:
        if writer not in writers or writers[writer].count < stop:
            raise StoreError(f"rows of {self.run.path} that were sent are lost.")
        flushed = handle.items
        for logs in writers[writer].between(start, stop):
            self._backend.write(handle, logs)
            if handle.items - flushed >= _MAX_UNFLUSHED:
                self._backend.flush(handle)
                flushed = handle.items

    def _writers(self) -> Writers:
        found = writers_of(self.run)
        several = any(writer.process for writer in found)
        return {
            (writer.process, writer.number): WriterLogs(writer, several)
            for writer in found
        }

    def _unconfirmed(self, writers: Writers) -> int:
        return total(_missing(writers, self._sent.confirmed))


def _missing(writers: Writers, sent: list[Part]) -> list[Part]:
    """The events that are not among those that were sent."""
    counts: dict[tuple[int, int], int] = {}
    for process, number, count in sent:
        counts[process, number] = counts.get((process, number), 0) + count
    found = []
    for (process, number), logs in writers.items():
        missing = logs.count - counts.get((process, number), 0)
        if missing > 0:
            found.append((process, number, missing))
    return found


_ENDINGS: dict[Status, Ending] = {
    "running": "running",
    "stale": "running",  # on another machine, it may be
    "finished": "finished",
    "failed": "failed",
    "killed": "killed",
}
