"""Logs that wait on disk until a slow backend has time for them.

They use the directory and format of unsent logs, so they can be read in the same way if
the process is killed.
"""

import collections
import contextlib
import os
import threading
from collections.abc import Iterator

from lox._errors import LoxError
from lox._logs.access import metadata_of
from lox._logs.logdict import logdict
from lox._store.replaying import Call, Replay, remove_replayed, split_calls
from lox._store.writer import Writer
from lox._trackers.unsent import Origin

from .unsent import UnsentRuns

# The size of a chunk, which is read into memory as a whole. It is removed when all of
# it was sent, so a killed process may leave behind this many logs that were already
# sent.
_MAX_CHUNK_ROWS = 10_000
_MAX_CHUNK_BYTES = 8 << 20


class Spill:
    """The logs of one run that wait on disk, in chunks, oldest first.

    Args:
        name: the name of the logger.
        runs: creates the runs that they are written to.
    """

    def __init__(self, name: str, runs: UnsentRuns) -> None:
        self._name = name
        self._runs = runs
        self._chunks: list[Chunk] = []

    def __bool__(self) -> bool:
        """Whether logs wait that no job sends yet."""
        return bool(self._chunks)

    def write(self, logs: logdict, size: int) -> None:
        """Writes logs to disk; raises if that is not possible."""
        if not self._chunks or self._chunks[-1].is_full:
            self._add_chunk()
        try:
            self._chunks[-1].write(logs, size)
        except LoxError:  # cannot be stored in one run with the previous logs
            self._add_chunk()
            self._chunks[-1].write(logs, size)

    def _add_chunk(self) -> None:
        writer = self._runs.new_writer()
        if self._chunks:
            self._chunks[-1].close()
        self._chunks.append(Chunk(self._name, writer))

    def claim(self) -> list["Chunk"]:
        """Returns all chunks, for the caller to send; later logs start another one."""
        chunks, self._chunks = self._chunks, []
        if chunks:
            chunks[-1].close()
        return chunks


class Chunk:
    """Some logs of one run, stored as a separate run."""

    def __init__(self, name: str, writer: Writer) -> None:
        self.path = writer.directory.parent
        self._name = name
        self._writer = writer
        self._size = 0
        # run-length encoded: most calls have as many rows as the one before
        self._calls: list[tuple[Call, int]] = []
        # how many calls, and how many of their rows, are done or still wait
        self._done = 0
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        rows = self._writer.count
        return rows >= _MAX_CHUNK_ROWS or self._size >= _MAX_CHUNK_BYTES

    def write(self, logs: logdict, size: int) -> None:
        first = self._writer.count
        self._writer.write(logs)
        count = self._writer.count - first
        if not count:
            return
        info = metadata_of(logs).info
        stacked = frozenset(name for name in info if info[name].stacked)
        self._size += size
        self._waiting += count
        waiting.add(self._name, count)
        if self._calls:
            last, repeats = self._calls[-1]
            follows = first == last.first + repeats * count
            if follows and (count, stacked) == (last.rows, last.stacked):
                self._calls[-1] = last, repeats + 1
                return
        self._calls.append((Call(first, count, stacked), 1))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # everything is written already
            self._writer.close()

    def begin(self, origin: Origin | None) -> None:
        """Records where the logs belong, in case the process is killed while sending.

        Args:
            origin: the tracker's run, as it is now.
        """
        if origin is not None and not self._done:
            with contextlib.suppress(Exception):  # then some may be sent twice
                origin.begun().write(self.path)

    def remaining(self) -> Iterator[tuple[Call, logdict]]:
        """Yields the calls that are not done, and their logs."""
        replay = Replay(self._writer.directory)
        for call in split_calls(self._calls, self._done):
            yield call, replay.logs_of(call)

    def mark_done(self, call: Call) -> None:
        """Marks the first remaining call as done."""
        self._done += 1
        self._waiting -= call.rows
        waiting.add(self._name, -call.rows)

    def remove(self) -> None:
        remove_replayed(self.path)

    def forget(self) -> None:
        """Marks that the logs no longer wait to be sent; they stay on disk."""
        waiting.add(self._name, -self._waiting)
        self._waiting = 0


class _WaitingRows:
    """How many rows of each logger wait on disk, in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._rows: collections.Counter[str] = collections.Counter()

    def add(self, name: str, rows: int) -> None:
        with self._lock:
            self._rows[name] += rows

    def __str__(self) -> str:
        """Formats them: `3,120 rows of WandbLogger waiting on disk`; empty if none."""
        with self._lock:
            counts = [(name, rows) for name, rows in self._rows.items() if rows > 0]
        return ", ".join(
            f"{rows:,} rows of {name} waiting on disk" for name, rows in counts
        )


waiting = _WaitingRows()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=waiting.reset)
