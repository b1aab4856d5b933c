"""Reads the logs of a closed writer as they were written, call by call."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lox._errors import StoreError
from lox._logs.key import Key
from lox._logs.logdict import from_keys, logdict

from .joining import KeyPart, restore_axes
from .local_files import LocalLocation
from .losses import Finished
from .segments import Segment, WrittenSegments


class Call(NamedTuple):
    """One call of `Writer.write`.

    Attributes:
        first: the number of its first event in the writer's order.
        rows: the number of its events.
        stacked: the keys that have a time axis.
    """

    first: int
    rows: int
    stacked: frozenset[str]


class Replay:
    """The logs of a writer, by the numbers of their events. Reads all into memory.

    Args:
        directory: the directory of the writer.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        writer = WrittenSegments(0, LocalLocation(directory), Finished({}))
        written = [segment for segment in writer.segments if segment.count]
        self._segments = [_Rows(writer, segment) for segment in written]

    def logs_of(self, call: Call) -> logdict:
        """The logs of a call; raises if some are missing."""
        keys: dict[str, Key] = {}
        steps: dict[str, None] = {}
        found = 0
        for rows in self._segments:
            start, stop = rows.between(call.first, call.first + call.rows)
            if start < stop:
                found += stop - start
                keys |= rows.keys(start, stop, call.stacked)
                steps |= dict.fromkeys(name for name, _ in rows.schema.steps)
        if found != call.rows:
            raise StoreError(
                f"{self._directory} has lost {call.rows - found} of {call.rows} rows."
            )
        return from_keys(keys.items(), steps)


class _Rows:
    """The records of one segment."""

    def __init__(self, writer: WrittenSegments, segment: Segment) -> None:
        self.schema = segment.schema
        masked = segment.schema.mask is not None
        parts = {name: KeyPart(writer, segment, name) for name in segment.keys}
        self._by_name = {name: part.rows(masked) for name, part in parts.items()}
        self._numbers = writer.numbers(segment).astype(np.int64)

    def between(self, first: int, end: int) -> tuple[int, int]:
        """The rows of the events from number `first` to `end`, which are in order."""
        start, stop = np.searchsorted(self._numbers, (first, end))
        return int(start), int(stop)

    def keys(self, start: int, stop: int, stacked: frozenset[str]) -> dict[str, Key]:
        found = {}
        for key in self.schema.keys:
            rows = self._by_name[key.name].arrays(lambda x, axis: x[start:stop])
            restored = restore_axes(rows, key, key.name in stacked)
            # a program that logs several rows of a key sends them one by one
            if self.schema.stacked != restored.info.stacked:
                info = restored.info._replace(multi_row=self.schema.stacked)
                restored = restored._replace(info=info)
            found[key.name] = restored
        return found


def split_calls(calls: Sequence[tuple[Call, int]], start: int) -> Iterator[Call]:
    """Yields the calls of a run-length encoded list, without the first `start`.

    Args:
        calls: calls, and how many times each is repeated with the next numbers.
        start: the number of calls to leave out.
    """
    for call, repeats in calls:
        for i in range(min(start, repeats), repeats):
            yield call._replace(first=call.first + i * call.rows)
        start = max(start - repeats, 0)
