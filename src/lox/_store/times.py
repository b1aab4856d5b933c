"""The times at which rows were written, in one file per writer.

An entry says that the event of this number, and no event before it, was written at this
time or later. There is one for the first event, then for the first event after each
interval of a second or more, and one at the end. So the time of every row is known up
to the interval, without storing a time per row. The file is optional: writers that
exist for less than the interval have none, so it costs them nothing.
"""

import contextlib
import math
import pathlib
import time
import zlib
from typing import Any

import numpy as np

from lox._errors import StoreError

from .growing_file import GrowingFile
from .locations import Location

TIMES = "times"
# the number of an event, seconds since 1970, and a checksum of both
ENTRY = np.dtype([("number", "<u8"), ("time", "<f8"), ("crc32", "<u8")])
_CHECKED_BYTES = 16
_MIN_SECONDS = 1.0
# the interval as a share of the time since the first event, so that the file of a long
# run stays small
_SHARE = 1e-3
_MAX_ENTRIES = 2**20


class EventClock:
    """Records when the events of a writer happen.

    Args:
        path: the directory of the writer.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path / TIMES
        self._file: GrowingFile | None = None
        self._first: float | None = None
        self._last = 0.0
        self._entry = 0.0, 0.0  # the last entry, by both clocks
        self._due = 0.0
        self._listed = 0  # the number of the last entry
        self._pending = b""

    def tick(self, number: int) -> None:
        """Called before each write with the number of its first event."""
        now = time.monotonic()
        self._last = now
        if now < self._due:
            return
        if self._first is None:
            self._first = now
            self._entry = now, 0.0
        self._due = now + max(_MIN_SECONDS, _SHARE * (now - self._first))
        self._add(number, time.time())

    def end(self, number: int) -> None:
        """Adds the time of the last event; `number` is that of the next one."""
        is_new = number > self._listed + 1 and self._due < math.inf
        if is_new and self._file is not None:
            self._add(number, 0.0)

    def _add(self, number: int, clock: float) -> None:
        self._listed = number
        # The system clock may be set back while a program runs. The monotonic clock
        # does not count the time in which the machine sleeps.
        before, at = self._entry
        self._entry = self._last, max(at + self._last - before, clock)
        entry = np.array([(number, self._entry[1], 0)], ENTRY)
        entry["crc32"] = zlib.crc32(entry.tobytes()[:_CHECKED_BYTES])
        self._pending += entry.tobytes()
        if self._file is None and len(self._pending) == ENTRY.itemsize:
            return  # the first one
        complete = False
        try:
            # Rows can be read without their times, and if the files were removed,
            # writing the rows reports it.
            with contextlib.suppress(OSError):
                if self._file is None:
                    self._file = GrowingFile(self._path)
                self._file.append(self._pending)
                self._file.close()  # the number of open files is limited
                self._pending = b""
                complete = True
        finally:
            if not complete:  # an incomplete entry may be at the end of the file
                self._due = math.inf


def _interval(elapsed: Any) -> Any:
    """The seconds until the next entry, given the seconds since the first one."""
    return np.maximum(_MIN_SECONDS, _SHARE * elapsed)


class EventTimes:
    """The times of the events of a writer.

    Attributes:
        numbers: the number of the event of each entry.
        times: their times, in seconds since 1970.
    """

    def __init__(self, numbers: Any, times: Any) -> None:
        self.numbers = numbers
        self.times = times

    @classmethod
    def read(cls, path: Location) -> "EventTimes | None":
        """Reads the file; None if there is none, as in runs of older versions."""
        try:
            raw = path.read(0, _MAX_ENTRIES * ENTRY.itemsize)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}.") from error
        raw = raw[: len(raw) // ENTRY.itemsize * ENTRY.itemsize]
        entries = np.frombuffer(raw, ENTRY)
        if not len(entries):
            return None
        starts = range(0, len(raw), ENTRY.itemsize)
        checksums = [zlib.crc32(raw[i : i + _CHECKED_BYTES]) for i in starts]
        numbers, times = entries["number"].astype(np.float64), entries["time"].copy()
        if entries["crc32"].tolist() != checksums:
            raise StoreError(f"{path} is damaged: its checksums do not match.")
        ascending = (np.diff(numbers) >= 0).all() and (np.diff(times) >= 0).all()
        if not ascending or not np.isfinite(times).all():
            raise StoreError(f"{path} is damaged: its times are not in order.")
        return cls(numbers, times)

    def of(self, numbers: Any) -> Any:
        """The times of events, in seconds since 1970.

        Events between two entries are spread evenly over the time in which they were
        written: it ends with the next entry, at the latest after the interval. Those
        after the last entry are as far apart as those before it.
        """
        limits = _interval(self.times - self.times[0])
        spans = np.minimum(np.diff(self.times), limits[:-1])
        apart = spans / np.maximum(np.diff(self.numbers), 1)
        apart = np.append(apart, apart[-1:] if len(apart) else 0.0)
        events = np.asarray(numbers, np.float64)
        i = np.maximum(np.searchsorted(self.numbers, events, side="right") - 1, 0)
        since = np.maximum(events - self.numbers[i], 0) * apart[i]
        return self.times[i] + np.minimum(since, limits[i])
